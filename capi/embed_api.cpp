// Embeddings and ranking.
#include <algorithm>
#include <string_view>
#include <vector>

#include "capi/handles.h"
#include "runtime/engine/embed/embed.h"

namespace orrery::capi {

uint32_t pooling_number(model::Pooling pooling) {
  switch (pooling) {
    case model::Pooling::mean: return ORRERY_POOLING_MEAN;
    case model::Pooling::first: return ORRERY_POOLING_FIRST;
    case model::Pooling::last: return ORRERY_POOLING_LAST;
    default: return ORRERY_POOLING_NONE;
  }
}

}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

namespace {

Result<engine::EmbedOptions> embed_options(const orrery_embed_options* given, const model::Description& d) {
  orrery_embed_options o;
  ORRERY_TRY(read_options(given, &orrery_embed_options_init, "orrery_embed_options", &o));
  engine::EmbedOptions out;
  switch (o.pooling) {
    case ORRERY_POOLING_MODEL: out.pooling = engine::default_pooling(d); break;
    case ORRERY_POOLING_MEAN: out.pooling = model::Pooling::mean; break;
    case ORRERY_POOLING_FIRST: out.pooling = model::Pooling::first; break;
    case ORRERY_POOLING_LAST: out.pooling = model::Pooling::last; break;
    case ORRERY_POOLING_NONE: out.pooling = model::Pooling::none; break;
    default: return option_error(Code::invalid_argument, "pooling", "pooling is %u, expected an ORRERY_POOLING_ value", o.pooling);
  }
  out.normalize = o.normalize != 0;
  out.dimensions = o.n_dimensions;
  out.max_tokens = o.max_tokens;
  out.truncate = o.truncate != 0;
  if (o.progress)
    out.progress = [fn = o.progress, user = o.progress_user](uint64_t done, uint64_t total) { return fn(user, done, total) == 0; };
  return out;
}

Result<std::vector<std::string_view>> read_texts(const char* const* texts, size_t n_texts) {
  if (n_texts > 0) ORRERY_REQUIRE(texts);
  std::vector<std::string_view> out;
  for (size_t i = 0; i < n_texts; ++i) {
    if (texts[i] == nullptr) return error(Code::invalid_argument, "texts[%zu] is NULL", i);
    ORRERY_TRY(check_utf8(texts[i], format("texts[%zu]", i).c_str()));
    out.emplace_back(texts[i]);
  }
  return out;
}

}  // namespace

extern "C" {

void orrery_embed_options_init(orrery_embed_options* options, size_t struct_size) {
  orrery_embed_options defaults = {};
  defaults.normalize = 1;
  init_struct(options, struct_size, defaults);
}

orrery_status orrery_embed(orrery_model* model, const char* const* texts, size_t n_texts, const orrery_embed_options* options,
                           float* vectors, size_t capacity, size_t* n_floats, uint32_t* n_tokens, orrery_error* error) {
  if (n_floats) *n_floats = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_REQUIRE(n_floats);
    engine::LanguageModel& m = *model->model;
    ORRERY_TRY(check_process(m.runtime()));
    const AccountScope scope(model->account);
    ORRERY_ASSIGN(const engine::EmbedOptions o, embed_options(options, m.description()));
    ORRERY_ASSIGN(const std::vector<std::string_view> given, read_texts(texts, n_texts));
    ORRERY_ASSIGN(const engine::EncodedTexts encoded, engine::encode_texts(m, {given.data(), given.size()}, o));
    const size_t size = static_cast<size_t>(encoded.n_floats(o.pooling));
    std::vector<float> computed;
    if (vectors != nullptr && capacity >= size) {
      ORRERY_ASSIGN(computed, engine::embed(model->model, encoded, o));
    }
    ORRERY_TRY(copy_out(computed.data(), size, vectors, capacity, n_floats));
    for (size_t i = 0; n_tokens != nullptr && i < n_texts; ++i) n_tokens[i] = static_cast<uint32_t>(encoded.tokens[i].size());
    return ok_status();
  });
}

orrery_status orrery_rank(orrery_model* model, const char* query, const char* const* texts, size_t n_texts,
                          const orrery_embed_options* options, float* scores, size_t n_scores, uint32_t* n_tokens, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_REQUIRE(query);
    if (n_texts > 0) ORRERY_REQUIRE(scores);
    if (n_scores != n_texts)
      return orrery::error(Code::invalid_argument, "n_scores is %zu, expected %zu, one of each text", n_scores, n_texts);
    engine::LanguageModel& m = *model->model;
    ORRERY_TRY(check_process(m.runtime()));
    const AccountScope scope(model->account);
    ORRERY_TRY(check_utf8(query, "query"));
    ORRERY_ASSIGN(const engine::EmbedOptions o, embed_options(options, m.description()));
    if (options != nullptr && options->pooling != 0)
      return orrery::option_error(Code::invalid_argument, "pooling", "pooling is %u, expected 0: a reranker's head has its own",
                                  options->pooling);
    if (o.dimensions != 0)
      return orrery::option_error(Code::invalid_argument, "n_dimensions", "n_dimensions is %u, expected 0: a score is one number",
                                  o.dimensions);
    ORRERY_ASSIGN(const std::vector<std::string_view> given, read_texts(texts, n_texts));
    ORRERY_ASSIGN(const engine::EncodedTexts encoded, engine::encode_pairs(m, query, {given.data(), given.size()}, o));
    ORRERY_ASSIGN(const std::vector<float> computed, engine::rank(model->model, encoded, o));
    std::copy(computed.begin(), computed.end(), scores);
    for (size_t i = 0; n_tokens != nullptr && i < n_texts; ++i) n_tokens[i] = static_cast<uint32_t>(encoded.tokens[i].size());
    return ok_status();
  });
}

}  // extern "C"
