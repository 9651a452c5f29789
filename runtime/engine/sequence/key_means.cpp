#include "runtime/engine/sequence/key_means.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/backend/hadamard.h"
#include "runtime/base/checked.h"
#include "runtime/base/hash.h"
#include "runtime/engine/sequence/repeated_tokens.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"

namespace orrery::engine {

namespace {

constexpr int32_t kFirstTokens = 4;  // not measured: attention sinks have keys of their own

// Calls f(first, second, frequency) for the pairs of a head that RoPE rotates. rope: null where it rotates none.
template <class F>
void for_each_pair(const model::RopeTable* rope, F f) {
  const size_t half = rope ? rope->inverse_frequency.size() : 0;
  for (size_t i = 0; i < half; ++i)
    rope->interleaved ? f(2 * i, 2 * i + 1, static_cast<double>(rope->inverse_frequency[i]))
                      : f(i, i + half, static_cast<double>(rope->inverse_frequency[i]));
}

void rotate(double* x, double* y, double cosine, double sine) {
  const double a = *x, b = *y;
  *x = a * cosine - b * sine, *y = a * sine + b * cosine;
}

// Adds up the keys of a step, layer by layer, turned back to position 0.
class KeySums final : public model::LayerHook {
 public:
  KeySums(Backend* backend, const model::Description& h, const model::RopeTables& ropes)
      : backend_(*backend), h_(h), ropes_(ropes), sums_(h.key_values()) {}
  void begin(int32_t from, int32_t n) { from_ = from, n_ = n; }

  bool in_all_groups() const override { return true; }
  Status before_attend(KvLayer layer, Ptr<const float> q, int64_t stride) override {
    const model::KvGroup& group = h_.groups[static_cast<size_t>(layer.group)];
    const auto kv_dim = static_cast<size_t>(group.kv_dim()), dim = static_cast<size_t>(group.head_dim);
    rows_.resize(static_cast<size_t>(n_ - 1) * static_cast<size_t>(stride) + kv_dim);
    backend_.download(rows_.data(), {(q + static_cast<uint64_t>(group.q_dim())).address}, rows_.size() * sizeof(float));
    std::vector<double> key(kv_dim);
    double* sums = sums_.data() + group.first_key + static_cast<size_t>(layer.layer) * kv_dim;
    for (int32_t row = 0; row < n_; ++row) {
      if (from_ + row < kFirstTokens) continue;
      n_summed_ += layer.group == 0 && layer.layer == 0;
      const float* at = rows_.data() + static_cast<size_t>(row) * static_cast<size_t>(stride);
      std::copy(at, at + kv_dim, key.begin());
      for (size_t head = 0; head < kv_dim; head += dim)
        for_each_pair(rope_of(group, layer.layer), [&](size_t a, size_t b, double frequency) {
          const double angle = (from_ + row) * frequency;
          rotate(&key[head + a], &key[head + b], std::cos(angle), -std::sin(angle));
        });
      for (size_t i = 0; i < kv_dim; ++i) sums[i] += key[i];
    }
    return ok_status();
  }
  // The mean of the keys, at a position anywhere in the first kMeanPositions.
  KeyMeans means() {
    for (const model::KvGroup& group : h_.groups)
      for (int32_t layer = 0; layer < group.n_layers(); ++layer) move(group, layer);
    KeyMeans means(sums_.size());
    const int32_t n = std::max(n_summed_, 1);
    std::transform(sums_.begin(), sums_.end(), means.begin(), [n](double sum) { return static_cast<float>(sum / n); });
    return means;
  }

 private:
  const model::RopeTable* rope_of(const model::KvGroup& group, int32_t layer) const {
    return ropes_.of(h_.layer(group.layers[static_cast<size_t>(layer)]));
  }
  // Rotates a layer's sums from position 0 to the mean of the first positions.
  void move(const model::KvGroup& group, int32_t layer) {
    const auto dim = static_cast<size_t>(group.head_dim), kv_dim = static_cast<size_t>(group.kv_dim());
    double* sums = sums_.data() + group.first_key + static_cast<size_t>(layer) * kv_dim;
    for_each_pair(rope_of(group, layer), [&](size_t a, size_t b, double frequency) {
      double cosine = 0, sine = 0;
      for (uint32_t p = 0; p < kMeanPositions; ++p) cosine += std::cos(p * frequency), sine += std::sin(p * frequency);
      for (size_t head = 0; head < kv_dim; head += dim)
        rotate(&sums[head + a], &sums[head + b], cosine / kMeanPositions, sine / kMeanPositions);
    });
  }

  Backend& backend_;
  const model::Description& h_;
  const model::RopeTables& ropes_;
  std::vector<double> sums_;
  std::vector<float> rows_;
  int32_t from_ = 0, n_ = 0, n_summed_ = 0;
};

}  // namespace

std::array<uint8_t, 16> hash_ropes(const model::RopeTables& ropes) {
  Hash128 hash;
  for (const model::RopeTable& rope : ropes.tables()) {
    hash.update(rope.inverse_frequency.data(), rope.inverse_frequency.size() * sizeof(float));
    hash.update(&rope.magnitude, sizeof rope.magnitude);
  }
  std::array<uint8_t, 16> out;
  hash.digest(out.data());
  return out;
}

kv::Region key_means_layout(const model::Description& h, const SessionOptions& options) {
  if (!options.centred(h)) return {};
  const uint64_t bytes = h.key_values() * sizeof(float);
  int32_t widest = 0;  // queries, keys and values
  for (const model::KvGroup& group : h.groups) widest = std::max(widest, group.q_dim() + 2 * group.kv_dim());
  // A copy of a file's means; and while they are measured: sums in double, rows of queries and keys, the vocabulary's tokens.
  const uint64_t host =
      4 * bytes + kMeasuredTokens * static_cast<uint64_t>(widest) * sizeof(float) + static_cast<uint64_t>(h.n_vocab) * sizeof(int32_t);
  return {"mean keys", kv::Holds::staging, align_up(bytes, kv::kArenaAlignment), 0, host, 0};
}

Result<std::shared_ptr<const KeyMeans>> mean_keys(LanguageModel* model, const Turn& turn, const model::RopeTables& ropes,
                                                  kv::SequencePages* pages, CheckpointedState* state, uint32_t max_rows,
                                                  const std::atomic<bool>* cancel) {
  const std::array<uint8_t, 16> hash = hash_ropes(ropes);
  for (const LanguageModel::MeasuredKeys& known : model->measured_keys(turn))
    if (known.type == pages->type() && known.rope == hash) return std::shared_ptr<const KeyMeans>(known.means);

  std::vector<int32_t> tokens;  // none where the vocabulary has no text
  if (Result<RepeatedTokens> repeated = RepeatedTokens::make(*model); repeated.ok()) tokens = std::move(repeated).value().tokens;
  if (tokens.size() > kMeasuredTokens) tokens.resize(kMeasuredTokens);
  Backend& backend = turn.backend();
  KeySums sums(&backend, model->description(), ropes);
  const auto n_tokens = static_cast<uint32_t>(tokens.size());
  if (state) ORRERY_TRY(state->restore(&backend, 0));
  Status status = ok_status();
  kv::StepPages step_pages;
  for (uint32_t from = 0; from < n_tokens && status.ok();) {
    const uint32_t n = std::min(n_tokens - from, max_rows);
    status = pages->make_writable(&backend, from, from + n);
    if (!status.ok()) break;
    std::vector<Row> rows(n);
    for (uint32_t i = 0; i < n; ++i) rows[i] = {tokens[from + i], static_cast<int32_t>(from + i), 0};
    Step step;
    step.phase = Phase::prefill;
    step.rows = rows;
    step_pages.give(*pages, &step);
    sums.begin(static_cast<int32_t>(from), static_cast<int32_t>(n));
    if (state) state->begin_step(from);
    status = model::forward(&backend, model->weights(), ropes.specs(), model->workspace(turn), step, cancel, {}, &sums,
                            state ? state->step() : SequenceState());
    from += n;
    if (state) state->end_step(from);
  }
  pages->truncate(0);
  if (state && n_tokens > 0) state->forget();
  ORRERY_TRY(std::move(status));
  const AccountScope scope(model->account());
  auto means = std::make_shared<const KeyMeans>(sums.means());
  model->measured_keys(turn).push_back({pages->type(), hash, means});
  return std::shared_ptr<const KeyMeans>(std::move(means));
}

namespace {

// Of a page of one KV group, whose mean keys begin at first_mean.
void change_form(const KvFormat& kv, uint64_t first_mean, const StoredForm& from, const StoredForm& to, std::byte* page) {
  const auto dim = static_cast<size_t>(kv.head_dim);
  std::vector<float> values(2 * dim);
  const size_t n_heads = static_cast<size_t>(kv.n_layers) * static_cast<size_t>(kv.n_kv_heads);
  for (size_t head = 0; head < n_heads; ++head)
    for (uint64_t t = 0; t < static_cast<uint64_t>(kPageTokens); ++t) {
      std::byte* token = page + head * kv.head_bytes() + t * kv.token_bytes();
      gguf::dequantize_row(key_tensor_type(kv.type), token, values.data(), dim);
      gguf::dequantize_row(value_tensor_type(kv.type), token + kv.key_bytes(), values.data() + dim, dim);
      if (from.rotated) hadamard(values.data(), 2 * kv.head_dim, hadamard_block(kv.head_dim));
      for (size_t d = 0; from.means && d < dim; ++d) values[d] += (*from.means)[first_mean + head * dim + d];
      for (size_t d = 0; to.means && d < dim; ++d) values[d] -= (*to.means)[first_mean + head * dim + d];
      if (to.rotated) hadamard(values.data(), 2 * kv.head_dim, hadamard_block(kv.head_dim));
      gguf::quantize_row(key_tensor_type(kv.type), values.data(), token, dim);
      gguf::quantize_row(value_tensor_type(kv.type), values.data() + dim, token + kv.key_bytes(), dim);
    }
}

}  // namespace

namespace {

// f(a group's format, where its mean keys begin), for the groups that are rings, or for the others.
template <class F>
void for_each_group(const kv::SequencePages& pages, bool rings, F f) {
  uint64_t first_mean = 0;
  for (size_t g = 0; g < pages.n_groups(); ++g) {
    const KvFormat& kv = pages.group(g).format();
    if (pages.group(g).ring() == rings) f(pages.group(g), first_mean);
    first_mean += static_cast<uint64_t>(kv.n_layers) * static_cast<uint64_t>(kv.n_kv_heads) * static_cast<uint64_t>(kv.head_dim);
  }
}

}  // namespace

void change_form(const kv::SequencePages& pages, const StoredForm& from, const StoredForm& to, std::byte* page) {
  for_each_group(pages, false, [&](const kv::PageTable& group, uint64_t first_mean) {
    change_form(group.format(), first_mean, from, to, page);
    page += group.format().page_bytes();
  });
}

void change_form_of_windows(const kv::SequencePages& pages, const StoredForm& from, const StoredForm& to, std::byte* windows) {
  for_each_group(pages, true, [&](const kv::PageTable& group, uint64_t first_mean) {
    for (uint32_t i = 0; i < kv::window_pages(group.window()); ++i, windows += group.format().page_bytes())
      change_form(group.format(), first_mean, from, to, windows);
  });
}

}  // namespace orrery::engine
