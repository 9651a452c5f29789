// Pieces of device memory as a part of a state (StateBytes), one behind the other.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/state_bytes.h"

namespace orrery::kv {

class DevicePieces {
 public:
  void add(Ptr<std::byte> at, uint64_t bytes) {
    if (bytes > 0) pieces_.push_back({at, bytes}), bytes_ += bytes;
  }
  // Writes the pieces to `s`, or takes them from there. What is taken must stay until the backend has synchronized. backend: null while `s`
  // is checked.
  Status state(Backend* backend, StateBytes* s) const {
    if (s->reads()) {
      Span<const std::byte> from;
      ORRERY_TRY(s->next(bytes_, &from));
      if (!s->takes()) return ok_status();
      std::vector<Upload> uploads;
      uploads.reserve(pieces_.size());
      const std::byte* at = from.data();
      for (const Piece& piece : pieces_) uploads.push_back({piece.at, at, piece.bytes}), at += piece.bytes;
      backend->upload_all(uploads);
      return ok_status();
    }
    std::vector<Download> downloads;
    downloads.reserve(pieces_.size());
    std::byte* at = s->room(bytes_);
    for (const Piece& piece : pieces_) downloads.push_back({at, piece.at, piece.bytes}), at += piece.bytes;
    backend->download_all(downloads);
    return backend->synchronize();
  }

 private:
  struct Piece {
    Ptr<std::byte> at;
    uint64_t bytes;
  };
  std::vector<Piece> pieces_;
  uint64_t bytes_ = 0;
};

}  // namespace orrery::kv
