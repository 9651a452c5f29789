#include "runtime/engine/resident/attention_sums.h"

#include <algorithm>
#include <cmath>

namespace orrery::engine {

AttentionSums::AttentionSums(const model::Description& h, uint32_t n_context, uint64_t n_slots)
    : h_(h), n_context_(n_context), sums_(static_cast<size_t>(h.kv().n_layers() * h.kv().n_kv_heads) * stride(n_context)),
      step_weights_(n_slots) {
  jobs_.reserve(static_cast<size_t>(h.kv().n_kv_heads));
}

bool AttentionSums::begin(uint32_t from, uint32_t n) {
  if (under_way()) n_rows_ = 0, n_coming_ = 0;  // the unfinished queries have changed some sums
  if (from != n_rows_) return false;
  if (from == 0) std::fill(sums_.begin(), sums_.end(), 0.0f);
  first_coming_ = from, n_coming_ = n;
  return true;
}

Status AttentionSums::add_layer(Backend* backend, const kv::PageTable& pages, int32_t layer, Ptr<const float> q, int64_t q_stride) {
  if (h_.layer(layer).attention.window > 0) return ok_status();
  const KvFormat& format = pages.format();
  const auto n_keys = static_cast<int32_t>(stride(first_coming_ + n_coming_));
  jobs_.clear();
  for (int32_t head = 0; head < h_.kv().n_kv_heads; ++head) {
    KeyWeightsJob job;
    job.kv_head = head;
    job.tiles = pages.view().pages;
    job.offset = format.head_offset(layer, head);
    job.n_keys = n_keys;
    job.first_position = static_cast<int32_t>(first_coming_), job.n_positions = static_cast<int32_t>(n_coming_);
    job.mean = job.add = true;
    job.out = of(static_cast<uint32_t>(layer * h_.kv().n_kv_heads + head)).data();
    jobs_.push_back(job);
  }
  KeysShape shape;
  shape.kv = format;
  shape.n_heads = h_.kv().n_heads;
  shape.scale = h_.layer(layer).attention.scale;
  shape.queries = {{q.address}, static_cast<int32_t>(n_coming_), static_cast<int32_t>(first_coming_), q_stride};
  backend->keys()->key_weights(jobs_, shape);
  return backend->synchronize();
}

void AttentionSums::finish() {
  n_rows_ = first_coming_ + n_coming_;
  n_coming_ = 0;
}

void AttentionSums::assume(uint32_t n_tokens) {
  std::fill(sums_.begin(), sums_.end(), 0.0f);
  n_rows_ = n_tokens, n_coming_ = 0;
}

void AttentionSums::copy_from(Backend*, const AttentionSums& other) {
  std::copy(other.sums_.begin(), other.sums_.end(), sums_.begin());
  n_rows_ = other.n_rows_, n_coming_ = 0;
}

// Behind the tokens sums are 0: weights of keys behind a query are.
Status AttentionSums::state(StateBytes* s, uint32_t n_tokens) {
  uint32_t n_rows = under_way() ? 0 : n_rows_;
  ORRERY_TRY(s->number(&n_rows, uint64_t{n_tokens} + 1, "sums of more queries than the session has tokens"));
  const size_t n_heads = sums_.size() / stride(n_context_);
  std::vector<float> sums;
  if (!s->reads())
    for (uint32_t head = 0; head < n_heads; ++head) sums.insert(sums.end(), of(head).begin(), of(head).begin() + n_rows);
  ORRERY_TRY(s->values(&sums, n_heads * n_rows));
  if (!s->takes()) return ok_status();
  std::fill(sums_.begin(), sums_.end(), 0.0f);
  for (uint32_t head = 0; head < n_heads; ++head) std::copy_n(sums.data() + size_t{head} * n_rows, n_rows, of(head).begin());
  n_rows_ = n_rows, n_coming_ = 0;
  return ok_status();
}

}  // namespace orrery::engine
