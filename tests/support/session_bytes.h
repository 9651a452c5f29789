// Saved sessions as bytes, and the same without the resident state: what a version wrote that had none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/hash.h"
#include "runtime/engine/session/session_file.h"
#include "tests/support/engine_fixture.h"

namespace orrery::testing {

using SessionBytes = std::vector<std::byte>;

inline SessionBytes save_bytes(engine::Session* session) {
  SessionBytes bytes;
  unwrap(engine::SessionFile::save(session, [&](Span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return ok_status();
  }));
  return bytes;
}

// The layout of runtime/engine/session/session_file.cpp.
struct SessionLayout {
  static constexpr size_t kForm = 80, kHeader = 88, kResident = 56, kHash = 40, kChecksum = 16;
  static constexpr uint32_t kHasResident = 8;
  template <class T>
  static T at(const SessionBytes& file, size_t offset) {
    T value;
    std::memcpy(&value, file.data() + offset, sizeof value);
    return value;
  }
  explicit SessionLayout(const SessionBytes& file) {
    has_resident = (at<uint32_t>(file, kForm) & kHasResident) != 0;
    head = uint64_t{at<uint32_t>(file, 44)} * 5 + at<uint64_t>(file, 64) + uint64_t{at<uint32_t>(file, 84)} * sizeof(float);
    if (!has_resident) return;
    floats = at<uint64_t>(file, kHeader + 24) * sizeof(float);
    state = at<uint64_t>(file, kHeader + 32);
    state_at = kHeader + kResident + head + floats;
  }
  bool has_resident = false;
  uint64_t head = 0, floats = 0, state = 0;  // bytes: tokens to means; logits and embedding; the resident state
  size_t state_at = 0;
};

inline void put_checksum(SessionBytes* file) {
  const size_t n = file->size() - SessionLayout::kChecksum;
  if (const SessionLayout layout(*file); layout.has_resident) {
    constexpr size_t kHashAt = SessionLayout::kHeader + SessionLayout::kHash, kHead = SessionLayout::kHeader + SessionLayout::kResident;
    const uint64_t end = std::min<uint64_t>(layout.state_at + layout.state, n);
    Hash128 of_head;
    of_head.update(file->data(), kHashAt);
    if (end > kHead) of_head.update(file->data() + kHead, end - kHead);
    of_head.digest(reinterpret_cast<uint8_t*>(file->data() + kHashAt));
  }
  Hash128 hash;
  hash.update(file->data(), n);
  hash.digest(reinterpret_cast<uint8_t*>(file->data() + n));
}

inline SessionBytes without_resident(const SessionBytes& file) {
  const SessionLayout layout(file);
  if (!layout.has_resident) return file;
  SessionBytes plain(file.begin(), file.begin() + SessionLayout::kHeader);
  const auto head = file.begin() + SessionLayout::kHeader + SessionLayout::kResident, end = head + static_cast<ptrdiff_t>(layout.head);
  plain.insert(plain.end(), head, end);
  plain.insert(plain.end(), end + static_cast<ptrdiff_t>(layout.floats + layout.state), file.end());
  const uint32_t form = SessionLayout::at<uint32_t>(file, SessionLayout::kForm) & ~SessionLayout::kHasResident;
  std::memcpy(plain.data() + SessionLayout::kForm, &form, sizeof form);
  put_checksum(&plain);
  return plain;
}

}  // namespace orrery::testing
