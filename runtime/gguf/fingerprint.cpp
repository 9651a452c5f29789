// A model's fingerprint: it ties a saved session or a head profile to its weights.
//
// The fingerprint hashes the header's raw bytes (metadata and tensor table, with every type, shape and offset) and
// samples of every tensor. Re-quantizing or fine-tuning changes every tensor nearly everywhere, so the first and last
// 4 KiB of each tensor tell models apart without reading gigabytes. Callers that must notice a single flipped bit ask
// for `full`.
#include <algorithm>

#include "runtime/base/hash.h"
#include "runtime/gguf/impl.h"

namespace orrery::gguf {

namespace {

constexpr uint64_t kSample = 4096;
constexpr uint64_t kPiece = uint64_t{64} << 20;  // between two calls of progress

}  // namespace

Status File::Impl::hash(bool full, const Progress& progress, uint8_t out[16]) const {
  Hash128 state;
  const auto number = [&](uint64_t n) { state.update(&n, sizeof n); };
  uint64_t done = 0;
  bool cancelled = false;
  const auto bytes = [&](const std::byte* p, uint64_t n) {
    number(n);  // the length keeps two different sequences of pieces from giving one stream
    for (uint64_t at = 0; at < n && !cancelled; at += kPiece) {
      const uint64_t piece = std::min(kPiece, n - at);
      state.update(p + at, piece);
      done += piece;
      cancelled = progress && !progress(std::min(done, file_bytes), file_bytes);
    }
  };
  const bool data = tensors.empty() || tensors[0].data != nullptr;
  number(!data ? 0 : full ? 2 : 1);
  number(parts.size());
  for (const Part& part : parts) bytes(part.header->bytes.data(), part.header->header_bytes);
  for (const Tensor& t : tensors) {
    if (!t.data) continue;
    if (full || t.bytes <= 2 * kSample) {
      bytes(t.data, t.bytes);
    } else {
      bytes(t.data, kSample);
      bytes(t.data + t.bytes - kSample, kSample);
    }
    if (cancelled) return error(Code::cancelled, "%s: hashing the model was cancelled", path.c_str());
  }
  state.digest(out);
  return ok_status();
}

void File::fingerprint(bool full, uint8_t out[16]) const {
  const Status never_fails = impl_->hash(full, {}, out);
  (void)never_fails;
}

Status File::full_fingerprint(const Progress& progress, uint8_t out[16]) const { return impl_->hash(true, progress, out); }

}  // namespace orrery::gguf
