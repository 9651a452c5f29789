// See vectors.h.
#include "answers/vectors.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "wire/fields.h"
#include "wire/texts.h"

namespace orrery::server {
namespace {

orrery_embed_options options_with(const std::function<bool()>& goes_on) {
  auto o = defaults(&orrery_embed_options_init);
  o.progress = [](void* user, uint64_t, uint64_t) -> int32_t { return (*static_cast<const std::function<bool()>*>(user))() ? 0 : 1; };
  o.progress_user = const_cast<std::function<bool()>*>(&goes_on);
  return o;
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> out;
  for (const std::string& text : texts) out.push_back(text.c_str());
  return out;
}

Json usage_of(const std::vector<uint32_t>& n_tokens, Metrics* metrics) {
  const uint64_t n = std::accumulate(n_tokens.begin(), n_tokens.end(), uint64_t{0});
  metrics->prompt_tokens += n;
  metrics->texts += n_tokens.size();
  return {{"prompt_tokens", n}, {"total_tokens", n}};
}

std::string base64(const float* values, size_t n) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<unsigned char> bytes;  // little-endian, on any machine
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<unsigned char>(bits >> shift));
  }
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t left = std::min<size_t>(bytes.size() - i, 3);
    uint32_t three = 0;
    for (size_t k = 0; k < 3; ++k) three = three << 8 | (k < left ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= left ? kDigits[three >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::string embeddings(orrery_model* model, const Json& body, const Options& options, const std::function<bool()>& goes_on,
                       Metrics* metrics) {
  const TextsToEmbed request = read_embeddings(body, options);
  orrery_embed_options o = options_with(goes_on);
  o.n_dimensions = request.n_dimensions;
  const std::vector<const char*> texts = pointers(request.texts);
  std::vector<uint32_t> n_tokens(texts.size());
  const auto vectors = sized<std::vector<float>>([&](float* out, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_embed(model, texts.data(), texts.size(), &o, out, capacity, n, out ? n_tokens.data() : nullptr, error);
  });
  const size_t size = vectors.size() / texts.size();
  Json data = Json::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    const float* vector = vectors.data() + i * size;
    Json embedding = request.base64 ? Json(base64(vector, size)) : Json(std::vector<float>(vector, vector + size));
    data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(embedding)}});
  }
  return text_of({{"object", "list"}, {"data", std::move(data)}, {"model", options.name}, {"usage", usage_of(n_tokens, metrics)}});
}

std::string ranking(orrery_model* model, const Json& body, const Options& options, const std::function<bool()>& goes_on, Metrics* metrics) {
  const TextsToRank request = read_rerank(body, options);
  const orrery_embed_options o = options_with(goes_on);
  const std::vector<const char*> texts = pointers(request.texts);
  std::vector<uint32_t> n_tokens(texts.size());
  std::vector<float> scores(texts.size());
  call([&](orrery_error* error) {
    return orrery_rank(model, request.query.c_str(), texts.data(), texts.size(), &o, scores.data(), scores.size(), n_tokens.data(), error);
  });
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min<size_t>(order.size(), request.most));
  Json results = Json::array();
  for (const size_t i : order) {
    Json result = {{"index", i}, {"relevance_score", scores[i]}};
    if (request.with_texts) result["document"] = {{"text", request.texts[i]}};
    results.push_back(std::move(result));
  }
  return text_of({{"object", "list"}, {"results", std::move(results)}, {"model", options.name}, {"usage", usage_of(n_tokens, metrics)}});
}

}  // namespace

std::string vectors_body(orrery_model* model, const Job& job, const Options& options, const std::function<bool()>& goes_on,
                         Metrics* metrics) {
  const Json body = parse_body(job.body);
  return job.kind == Job::Kind::rerank ? ranking(model, body, options, goes_on, metrics)
                                       : embeddings(model, body, options, goes_on, metrics);
}

}  // namespace orrery::server
