#include "runtime/engine/shared/waiting_rows.h"

#include <algorithm>

namespace orrery::engine {

WaitingRows::WaitingRows(int32_t n_vocab, int32_t n_embd)
    : n_vocab_(static_cast<uint64_t>(n_vocab)), n_embd_(static_cast<uint64_t>(n_embd)) {}

void WaitingRows::use(const model::Workspace& workspace) { workspace_ = workspace; }

Status WaitingRows::make_room(Backend* backend, int32_t n_logits) {
  if (n_logits > 1) return fetch_all(backend);
  Row& last = rows_[0];
  if (!last.owner.waits) return ok_status();
  // Takes a free row (number 0), or the row that has waited longest.
  const auto since = [](const Row& row) { return row.owner.waits ? row.number : 0; };
  Row* to = &*std::min_element(rows_.begin() + 1, rows_.end(), [&](const Row& a, const Row& b) { return since(a) < since(b); });
  ORRERY_TRY(fetch(backend, to));
  const uint64_t at = static_cast<uint64_t>(to - rows_.data());
  const Ptr<float> logits = workspace_.logits + at * n_vocab_, embedding = workspace_.exported_embeddings + at * n_embd_;
  backend->copy({logits.address}, {last.logits.address}, n_vocab_ * sizeof(float));
  backend->copy({embedding.address}, {last.embedding.address}, n_embd_ * sizeof(float));
  *to = {last.owner, logits, embedding, last.number};
  last = {};
  return ok_status();
}

void WaitingRows::add(const Owner& owner, const model::Description& h, int32_t n_rows) {
  rows_[0] = {owner, model::exported_logits(workspace_), model::exported_embedding(workspace_, h, n_rows), ++n_added_};
  owner.waits->store(true, std::memory_order_release);
}

void WaitingRows::add_row(const Owner& owner, size_t row) {
  rows_[row] = {owner, workspace_.logits + row * n_vocab_, workspace_.exported_embeddings + row * n_embd_, ++n_added_};
  owner.waits->store(true, std::memory_order_release);
}

size_t WaitingRows::row_of(const std::atomic<bool>* owner) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.owner.waits == owner; });
  return static_cast<size_t>(row - rows_.begin());
}

Ptr<const float> WaitingRows::logits(const std::atomic<bool>* owner) const {
  const size_t row = row_of(owner);
  return row < rows_.size() ? rows_[row].logits : Ptr<const float>();
}

Status WaitingRows::fetch(Backend* backend, Row* row) {
  if (!row->owner.waits) return ok_status();
  const Download both[] = {{row->owner.logits, {row->logits.address}, n_vocab_ * sizeof(float)},
                           {row->owner.embedding, {row->embedding.address}, n_embd_ * sizeof(float)}};
  backend->download_all({both, 2});
  ORRERY_TRY(backend->synchronize());  // after an error the row still waits, and the owner gets the error too
  drop(row->owner.waits);
  return ok_status();
}

Status WaitingRows::fetch(Backend* backend, const std::atomic<bool>* owner) {
  const size_t row = row_of(owner);
  return row < rows_.size() ? fetch(backend, &rows_[row]) : ok_status();
}

Status WaitingRows::fetch_all(Backend* backend) {
  for (Row& row : rows_) ORRERY_TRY(fetch(backend, &row));
  return ok_status();
}

void WaitingRows::drop(const std::atomic<bool>* owner) {
  const size_t row = row_of(owner);
  if (row == rows_.size()) return;
  rows_[row].owner.waits->store(false, std::memory_order_release);
  rows_[row] = {};
}

}  // namespace orrery::engine
