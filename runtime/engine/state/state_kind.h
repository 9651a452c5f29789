// A kind of state that is not kept for every token. CheckpointedState has a list of kinds, and treats them alike: a checkpoint, a file, a
// kept prompt and a fork hold the copies of all kinds, one after another.
//
// KV pages that hold all tokens are no such kind: cutting the tokens cuts them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/base/status.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/sequence_pages.h"

namespace orrery::engine {

class StateKind {
 public:
  virtual ~StateKind() = default;
  virtual uint64_t bytes() const = 0;  // of a copy
  // Whether each token's step replaces the state, so that the states of fewer tokens are lost.
  virtual bool changed_in_place() const = 0;
  // Whether the state of n_tokens is still there, now that it has taken more tokens. Asked of kinds that are not changed in place.
  virtual bool holds(uint32_t n_tokens) const = 0;
  // Copies the state of n_tokens, which it is or holds, to the host; and back. The caller synchronizes.
  virtual Status read(Backend* backend, uint32_t n_tokens, std::byte* to) const = 0;
  virtual Status write(Backend* backend, uint32_t n_tokens, const std::byte* from) = 0;
  virtual Status clear(Backend* backend) = 0;  // it becomes the state of no tokens
  // For a fork that has its place: takes the state of `other`, a kind of the same class.
  virtual void copy_from(Backend* backend, const StateKind& other) = 0;
};

// The floats of recurrent layers (backend/recurrent.h), in a region of the arena.
class RecurrentFloats final : public StateKind {
 public:
  explicit RecurrentFloats(uint64_t bytes) : bytes_(bytes) {}
  void place(kv::ArenaRegion region) { region_ = std::move(region); }  // empty while the session is parked
  Ptr<std::byte> data() const { return region_.data(); }

  uint64_t bytes() const override { return bytes_; }
  bool changed_in_place() const override { return true; }
  bool holds(uint32_t) const override { return false; }
  Status read(Backend* backend, uint32_t n_tokens, std::byte* to) const override;
  Status write(Backend* backend, uint32_t n_tokens, const std::byte* from) override;
  Status clear(Backend* backend) override;
  void copy_from(Backend* backend, const StateKind& other) override;

 private:
  const uint64_t bytes_;
  kv::ArenaRegion region_;
};

// The windows of rings. The rings' pages hold more tokens than the windows, so the states of some fewer tokens are still there. Forks share
// pages, so a fork's rings have the windows already.
class RingWindows final : public StateKind {
 public:
  explicit RingWindows(uint64_t bytes) : bytes_(bytes) {}
  void place(kv::SequencePages* pages) { pages_ = pages; }  // null while the session is parked

  uint64_t bytes() const override { return bytes_; }
  bool changed_in_place() const override { return false; }
  bool holds(uint32_t n_tokens) const override { return pages_->hold_windows(n_tokens); }
  Status read(Backend* backend, uint32_t n_tokens, std::byte* to) const override { return pages_->download_windows(backend, n_tokens, to); }
  Status write(Backend* backend, uint32_t n_tokens, const std::byte* from) override {
    return pages_->upload_windows(backend, n_tokens, from);
  }
  Status clear(Backend* backend) override { return pages_->take_windows(backend, 0); }
  void copy_from(Backend*, const StateKind&) override {}

 private:
  const uint64_t bytes_;
  kv::SequencePages* pages_ = nullptr;
};

}  // namespace orrery::engine
