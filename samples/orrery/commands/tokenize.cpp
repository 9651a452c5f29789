// orrery tokenize and orrery grammar: texts and a vocabulary, without a model's weights. Both work on any GGUF file with a tokenizer, with
// or without tensors. tokenize: the ids of a text, whose bytes are used unchanged. grammar: compiles a grammar, lists its keywords that do
// not constrain, and says whether a text fits.
#include <algorithm>

#include "api.h"
#include "command.h"
#include "json_file.h"
#include "sampling.h"

namespace orrery::tool {
namespace {

// A token's text as one visible word: printable ASCII unchanged, other bytes as \xNN.
std::string visible(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte >= 0x7F) {
      out += format("\\x%02X", byte);
    } else {
      out += c;
    }
  }
  return out;
}

int tokenize_text(const Args& args, Output& out) {
  const std::vector<std::string>& words = args.words();
  const std::string* file = args.find("--file");
  if (file && words.size() > 1) throw UsageError("give the text or --file, not both");
  std::string text;
  if (file) {
    text = read_file(*file);
  } else if (words.size() > 1 && words[1] != "-") {
    text = words[1];
  } else {
    text = read_file("-");
  }
  const uint32_t flags = (args.has("--bos") ? ORRERY_TOKENIZE_BOS : 0u) | (args.has("--special") ? ORRERY_TOKENIZE_SPECIAL : 0u);
  const Vocab vocab = open_vocab(words[0]);
  const std::vector<int32_t> tokens = tokenize(vocab.get(), text, flags);
  const auto piece = [&](int32_t token) { return detokenize(vocab.get(), &token, 1, ORRERY_DETOKENIZE_SPECIAL); };
  if (args.has("--json")) {
    Json json = {{"tokens", tokens}, {"n_tokens", tokens.size()}};
    if (args.has("--pieces")) {
      Json& pieces = json["pieces"] = Json::array();
      for (const int32_t token : tokens) pieces.push_back(piece(token));
    }
    out.text(dump_json(json, -1) + "\n");
  } else if (args.has("--pieces")) {
    for (const int32_t token : tokens) out.write(format("%7d  '%s'\n", token, visible(piece(token)).c_str()));
  } else {
    std::string line;
    for (const int32_t token : tokens) line += (line.empty() ? "" : " ") + std::to_string(token);
    out.write(line + "\n");
  }
  return kExitOk;
}

// The line of `text` that holds byte `at`, and a caret below that byte.
std::string caret(const std::string& text, size_t at) {
  const size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1), begin = before == std::string::npos ? 0 : before + 1;
  const size_t end = std::min(text.find('\n', at), text.size());
  constexpr size_t kMost = 60;
  const size_t from = at - begin > kMost ? at - kMost : begin;
  return text.substr(from, std::min(end, at + kMost / 3) - from) + "\n" + std::string(at - from, ' ') + "^";
}

int grammar(const Args& args, Output& out) {
  const Grammar form(args);
  if (!form.given) throw UsageError("no form: give --schema, --grammar or --regex");
  const std::vector<std::string>& words = args.words();
  const std::string* file = args.find("--file");
  if (file && words.size() > 1) throw UsageError("give the text or --file, not both");
  const bool checks = file || words.size() > 1;
  std::string text;
  if (file) text = read_file(*file);
  if (words.size() > 1) text = words[1] == "-" ? read_file("-") : words[1];
  if (checks && args.has("--trim"))
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();

  const Vocab vocab = open_vocab(words[0]);
  orrery_generate_options options;
  orrery_generate_options_init(&options, sizeof options);
  form.put(&options);
  const Matcher matcher =
      make<Matcher>([&](orrery_matcher** made, orrery_error* error) { return orrery_matcher_create(vocab.get(), &options, made, error); });
  const std::string described = sized<std::string>([&](char* json, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_matcher_describe(matcher.get(), json, capacity, n, error);
  });
  Json report = parse_json(described, "the description");
  size_t matched = 0;
  uint32_t complete = 0;
  if (checks) {
    call([&](orrery_error* error) { return orrery_matcher_match(matcher.get(), text.data(), text.size(), &matched, &complete, error); });
    report["fits"] = complete != 0;
    report["matched_bytes"] = matched;
    report["text_bytes"] = text.size();
  }
  if (args.has("--json")) {
    out.text(dump_json(report, 2) + "\n");
  } else {
    for (const Json& notice : report["notices"]) note("not a constraint: " + notice.get<std::string>());
    if (!checks) {
      out.text(counted(report["rules"].get<uint64_t>(), "rule") + ", " + counted(report["states"].get<uint64_t>(), "state") + ", " +
               human_bytes(report["bytes"].get<uint64_t>()) + "\n");
    } else if (complete) {
      out.text("the text fits\n");
    } else if (matched == text.size()) {
      out.text("the text is the beginning of one that fits\n");
    } else {
      out.text("byte " + grouped(matched) + " does not fit:\n" + caret(text, matched) + "\n");
    }
  }
  return !checks || complete ? kExitOk : kExitFailure;
}

}  // namespace

const Command& tokenize_command() {
  static const Command command = {
      "tokenize",
      "MODEL.gguf [TEXT | --file FILE | -] [options]",
      "the token ids of a text",
      "Prints the ids on one line, separated by spaces. The text is TEXT, the bytes of FILE, or standard input if neither\n"
      "is given. Its bytes are used unchanged. By default no BOS token comes first, and the name of a control token, such\n"
      "as <|im_end|>, is ordinary text. MODEL needs no tensors.\n",
      {{"Options",
        {{"--file", "FILE", "Take the text from FILE; - is standard input."},
         {"--bos", nullptr, "Begin with the BOS token, if the vocabulary has one."},
         {"--special", nullptr, "The name of a control token in the text becomes that token."},
         {"--pieces", nullptr, "One token per line, with its text."},
         {"--json", nullptr, "{\"tokens\": [...], \"n_tokens\": N}, and \"pieces\" with --pieces."}}}},
      "  orrery tokenize model.gguf 'Hello world'\n"
      "  orrery tokenize model.gguf --file report.txt | wc -w\n"
      "  echo -n 'Hello' | orrery tokenize model.gguf --pieces\n",
      1,
      2,
      tokenize_text};
  return command;
}

const Command& grammar_command() {
  static const Command command = {
      "grammar",
      "MODEL.gguf [TEXT | --file FILE | -] (--schema FILE | --grammar FILE | --regex EXPR) [options]",
      "try a form for answers on a text",
      "Compiles the form as an answer would, and says where it has a fault, and what of a schema does not constrain (unknown\n"
      "keywords and formats). With a text, says whether the whole text fits; the exit code is 1 if it does not, and a caret\n"
      "shows the first byte that cannot stand there. MODEL needs no tensors.\n",
      {grammar_group(),
       {"Options",
        {{"--file", "FILE", "Take the text from FILE; - is standard input."},
         {"--trim", nullptr, "Leave out line breaks at the end of the text."},
         {"--json", nullptr, "Rules, states, bytes, notices, and whether the text fits, as JSON."}}}},
      "  orrery grammar model.gguf --schema city.json\n"
      "  orrery grammar model.gguf '{\"name\": \"Lisbon\"}' --schema city.json\n"
      "  orrery grammar model.gguf --regex '[0-9]{4}-[0-9]{2}' 2026-11\n",
      1,
      2,
      grammar};
  return command;
}

}  // namespace orrery::tool
