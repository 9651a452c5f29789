// Exported rows of logits: rows that wait on the device until their session asks for them, each with its embedding
// (ForwardOutput::request).
//
// A step writes its row to the workspace's first row. Before the next step, make_room() moves the row to another row of the workspace,
// which only steps with many rows of logits write. Steps of several sessions write a row each, which waits where it is. So up to kLogitRows
// sessions that take turns have a row each. If more sessions do, the row that has waited longest goes to its owner's host memory. Before a
// step with many rows of logits, all rows do.
//
// Only the thread that has the turn calls these functions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/model/forward/forward.h"

namespace orrery::engine {

class WaitingRows {
 public:
  // The destination of a row, and the flag that identifies its owner.
  struct Owner {
    std::atomic<bool>* waits = nullptr;  // true while the row waits: false after fetch() and drop()
    float* logits = nullptr;             // (n_vocab)
    float* embedding = nullptr;          // (n_embd)
  };

  WaitingRows(int32_t n_vocab, int32_t n_embd);

  // Sets the workspace that steps run in. Called while no row waits.
  void use(const model::Workspace& workspace);
  // Called before a step of n_logits rows of logits.
  Status make_room(Backend* backend, int32_t n_logits);
  // Called after a step of n_rows tokens and one row of logits: its row waits from now on.
  void add(const Owner& owner, const model::Description& h, int32_t n_rows);
  // Called after steps of several sessions, for the session of this row.
  void add_row(const Owner& owner, size_t row);
  // The owner's logits on the device. Null: no row of the owner waits.
  Ptr<const float> logits(const std::atomic<bool>* owner) const;
  // Copies the owner's waiting row, or all waiting rows, to their owners' host memory.
  Status fetch(Backend* backend, const std::atomic<bool>* owner);
  Status fetch_all(Backend* backend);
  // The owner does not want its row any more.
  void drop(const std::atomic<bool>* owner);

 private:
  struct Row {
    Owner owner;
    Ptr<const float> logits, embedding;
    uint64_t number = 0;  // of all rows that were added: the smallest has waited longest
  };
  size_t row_of(const std::atomic<bool>* owner) const;  // rows_.size(): no row waits
  Status fetch(Backend* backend, Row* row);

  uint64_t n_vocab_, n_embd_;
  model::Workspace workspace_;
  std::array<Row, model::kLogitRows> rows_;  // rows_[i] waits in the workspace's row i; row 0 is the last step's
  uint64_t n_added_ = 0;
};

}  // namespace orrery::engine
