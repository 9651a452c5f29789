// See texts.h.
#include "wire/texts.h"

#include "wire/fields.h"
#include "wire/request.h"

namespace orrery::server {
namespace {

constexpr size_t kMostTexts = 2048;

std::string text_at(const Json& value, const std::string& place) {
  if (value.is_number() || value.is_array()) refuse_field(place, "tokens are of one vocabulary: this server takes texts");
  if (!value.is_string()) refuse_field(place, "expected a string");
  std::string text = value.get<std::string>();
  if (text.find('\0') != text.npos) refuse_field(place, "it has a NUL character");
  return text;
}

std::vector<std::string> texts_of(const Json& list, const std::string& place, bool objects) {
  if (!list.is_array() || list.empty() || list.size() > kMostTexts)
    refuse_field(place, "expected an array of 1 to " + std::to_string(kMostTexts) + " texts");
  std::vector<std::string> texts;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string here = place + "[" + std::to_string(i) + "]";
    if (objects && list[i].is_object()) {
      Fields fields(list[i], here);
      const auto text = fields.text("text");
      if (!text) refuse_field(here + ".text", "expected a string");
      fields.finish();
      texts.push_back(*text);
    } else {
      texts.push_back(text_at(list[i], here));
    }
  }
  return texts;
}

}  // namespace

TextsToEmbed read_embeddings(const Json& body, const Options& options) {
  Fields fields(body, "");
  TextsToEmbed out;
  check_model(fields, options);
  const Json* input = fields.take("input");
  if (!input) refuse_field("input", "expected a string, or an array of strings");
  if (input->is_string()) out.texts = {text_at(*input, "input")};
  else out.texts = texts_of(*input, "input", false);
  for (size_t i = 0; i < out.texts.size(); ++i)
    if (out.texts[i].empty()) refuse_field(input->is_string() ? "input" : "input[" + std::to_string(i) + "]", "it is empty");
  const std::string format = fields.text("encoding_format").value_or("float");
  if (format != "float" && format != "base64") refuse_field("encoding_format", "expected float or base64");
  out.base64 = format == "base64";
  out.n_dimensions = static_cast<uint32_t>(fields.integer("dimensions", 1, 1 << 20).value_or(0));
  fields.accept({"user"});
  fields.finish();
  return out;
}

TextsToRank read_rerank(const Json& body, const Options& options) {
  Fields fields(body, "");
  TextsToRank out;
  check_model(fields, options);
  const auto query = fields.text("query");
  if (!query || query->empty()) refuse_field("query", "expected a string");
  out.query = *query;
  const Json* documents = fields.take("documents");
  if (!documents) refuse_field("documents", "expected an array of texts");
  out.texts = texts_of(*documents, "documents", true);
  out.most = static_cast<uint32_t>(fields.integer("top_n", 1, INT32_MAX).value_or(INT32_MAX));
  out.with_texts = fields.boolean("return_documents").value_or(false);
  fields.accept({"user"});
  fields.finish();
  return out;
}

}  // namespace orrery::server
