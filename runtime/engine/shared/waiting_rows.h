// Rows of logits that steps have left on the device for whoever asks, with the embedding beside each (ForwardOutput::request).
//
// A step leaves its row where the next step writes its own. So whoever runs that one has room made first: the row goes on to one of the
// workspace's rows behind it, which only steps of many rows of logits write. Sessions that take turns so have one each, as many as
// kLogitRows; of more, the row that has waited longest goes to its owner's host memory, as all do where such a step comes.
//
// All of it by the thread whose turn it is.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/model/forward.h"

namespace orrery::engine {

class WaitingRows {
 public:
  // Where a row goes when it is fetched, and what says whether it waits: it is known by that.
  struct Owner {
    std::atomic<bool>* waits = nullptr;   // false as soon as both are there, or dropped
    float* logits = nullptr;              // (n_vocab)
    float* embedding = nullptr;           // (n_embd)
  };

  WaitingRows(int32_t n_vocab, int32_t n_embd);

  // The workspace that steps run in. No row waits.
  void use(const model::Workspace& workspace);
  // Before a step of n_logits rows of logits.
  Status make_room(Backend* backend, int32_t n_logits);
  // A step of one row of logits and n_rows of its own has left it.
  void add(const Owner& owner, const model::Hyperparameters& h, int32_t n_rows);
  // Where the owner's logits lie; null: they do not wait.
  Ptr<const float> logits(const std::atomic<bool>* owner) const;
  // What the owner has left goes to it, if anything; or what anybody has.
  Status fetch(Backend* backend, const std::atomic<bool>* owner);
  Status fetch_all(Backend* backend);
  // Its owner wants it no more.
  void drop(const std::atomic<bool>* owner);

 private:
  struct Row {
    Owner owner;
    Ptr<const float> logits, embedding;
    uint64_t number = 0;   // of all rows that were added: the smallest has waited longest
  };
  size_t row_of(const std::atomic<bool>* owner) const;   // rows_.size(): none
  Status fetch(Backend* backend, Row* row);

  uint64_t n_vocab_, n_embd_;
  model::Workspace workspace_;
  std::array<Row, model::kLogitRows> rows_;   // by the workspace's rows of logits; the first is the last step's
  uint64_t n_added_ = 0;
};

}  // namespace orrery::engine
