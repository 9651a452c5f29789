// orrery embed: vectors of texts, or with --query the texts' scores, as JSON lines in the order of the texts.
#include <cmath>

#include "api.h"
#include "command.h"
#include "json_file.h"
#include "settings.h"

namespace orrery::tool {
namespace {

// The words, or the lines of a file.
std::vector<std::string> texts_of(const Args& args) {
  const std::vector<std::string>& words = args.words();
  const std::string* file = args.find("--file");
  if (file && words.size() > 1) throw UsageError("give texts or --file, not both");
  if (words.size() > 1 && !(words.size() == 2 && words[1] == "-")) return {words.begin() + 1, words.end()};
  const std::string all = read_text(file ? *file : "-");
  std::vector<std::string> lines;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    std::string line = all.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

// One number of a vector, with the digits that give the float back.
std::string number(float x) { return std::isfinite(x) ? format("%.9g", static_cast<double>(x)) : "null"; }

int embed(const Args& args, Output& out) {
  static const std::vector<const char*> kPoolings = {"model", "mean", "first", "last", "none"};  // by their ORRERY_POOLING_ values
  for (const char* of_vectors : {"--pooling", "--dimensions"})
    if (args.has("--query") && args.has(of_vectors)) throw UsageError(std::string(of_vectors) + " is of vectors: --query gives scores");
  const std::vector<std::string> texts = texts_of(args);
  auto options = [] {
    orrery_embed_options o;
    orrery_embed_options_init(&o, sizeof o);
    return o;
  }();
  options.pooling = static_cast<uint32_t>(args.choice("--pooling", kPoolings, 0));
  options.n_dimensions = static_cast<uint32_t>(args.integer("--dimensions", 1, UINT32_MAX, 0));
  options.max_tokens = static_cast<uint32_t>(args.tokens("--max-tokens", 1, UINT32_MAX, 0));
  options.normalize = !args.has("--raw");
  options.truncate = args.has("--truncate");
  options.progress = [](void*, uint64_t, uint64_t) -> int32_t { return interrupt_pending(); };
  const Interrupts interrupts;
  const Loaded loaded = load(args.words()[0], args, interrupts);

  std::vector<const char*> given;
  for (const std::string& text : texts) given.push_back(text.c_str());
  std::vector<uint32_t> n_tokens(texts.size());
  const auto line_of = [&](size_t i) {
    return "{\"index\": " + std::to_string(i) + ", \"n_tokens\": " + std::to_string(n_tokens[i]) +
           (args.has("--text") ? ", \"text\": " + dump_json(texts[i], -1) : "");
  };
  if (const std::string* query = args.find("--query")) {
    std::vector<float> scores(texts.size());
    call([&](orrery_error* error) {
      return orrery_rank(loaded.model.get(), query->c_str(), given.data(), given.size(), &options, scores.data(), scores.size(),
                         n_tokens.data(), error);
    });
    for (size_t i = 0; i < texts.size(); ++i) out.text(line_of(i) + ", \"score\": " + number(scores[i]) + "}\n");
    return kExitOk;
  }
  const auto vectors = sized<std::vector<float>>([&](float* to, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_embed(loaded.model.get(), given.data(), given.size(), &options, to, capacity, n, to ? n_tokens.data() : nullptr, error);
  });
  orrery_model_info info;
  orrery_model_info_init(&info, sizeof info);
  call([&](orrery_error* error) { return orrery_model_get_info(loaded.model.get(), &info, error); });
  const size_t size = options.n_dimensions ? options.n_dimensions : info.n_embd;
  const float* at = vectors.data();
  const auto vector = [&] {
    std::string list;
    for (size_t i = 0; i < size; ++i) list += (i > 0 ? ", " : "") + number(*at++);
    return "[" + list + "]";
  };
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string line = line_of(i) + (options.pooling == ORRERY_POOLING_NONE ? ", \"embeddings\": [" : ", \"embedding\": ") + vector();
    for (uint32_t row = 1; options.pooling == ORRERY_POOLING_NONE && row < n_tokens[i]; ++row) line += ", " + vector();
    out.text(line + (options.pooling == ORRERY_POOLING_NONE ? "]}\n" : "}\n"));
  }
  return kExitOk;
}

}  // namespace

const Command& embed_command() {
  static const Command command = {
      "embed",
      "MODEL.gguf [TEXT... | --file FILE | -] [options]",
      "vectors of texts, or their scores by a query, as JSON lines",
      "Prints one line for each text, in their order: {\"index\": 0, \"n_tokens\": 5, \"embedding\": [...]}. The texts are the\n"
      "TEXTs, or the lines of FILE or of standard input that are not empty. Any model embeds; one that is trained for it does\n"
      "it well. With --query the model must have a reranker's head, and a line has \"score\": more is better.\n",
      {{"Options",
        {{"--file", "FILE", "Take the texts from the lines of FILE; - is standard input."},
         {"--query", "TEXT", "Score the texts by this query: the probability that a text answers it."},
         {"--pooling", "KIND", "model (default), mean, first, last, or none: a vector for each token, \"embeddings\"."},
         {"--dimensions", "N", "The first N values of each vector, for models trained so."},
         {"--raw", nullptr, "Vectors as the model gives them, not of length 1; scores as log-odds."},
         {"--max-tokens", "N", "The most tokens of a text; default: the context that the model was trained for."},
         {"--truncate", nullptr, "Cut a longer text, in place of refusing it."},
         {"--text", nullptr, "Each line has its text, too."}}},
       runtime_group(),
       model_group()},
      "  orrery embed all-minilm.gguf 'A gray wolf.' 'A white fox.'\n"
      "  orrery embed qwen3-embedding.gguf --file lines.txt --dimensions 256 > vectors.jsonl\n"
      "  orrery embed reranker.gguf --query 'Who lives in Salem?' --file lines.txt | sort -t: -k4 -gr | head -3\n",
      1,
      SIZE_MAX,
      embed};
  return command;
}

}  // namespace orrery::tool
