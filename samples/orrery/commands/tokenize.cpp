// orrery tokenize: text to token ids, on one line. The text's bytes are used unchanged. Works on any GGUF file with a
// tokenizer, with or without tensors.
#include "api.h"
#include "command.h"
#include "json_file.h"

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
  const uint32_t flags =
      (args.has("--bos") ? ORRERY_TOKENIZE_BOS : 0u) | (args.has("--special") ? ORRERY_TOKENIZE_SPECIAL : 0u);
  const Vocab vocab = open_vocab(words[0]);
  const std::vector<int32_t> tokens = tokenize(vocab.get(), text, flags);
  const auto piece = [&](int32_t token) {
    return detokenize(vocab.get(), &token, 1, ORRERY_DETOKENIZE_SPECIAL);
  };
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

}  // namespace orrery::tool
