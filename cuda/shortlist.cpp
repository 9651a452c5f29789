// Sampling candidates: a row's shortlist, at the end of its step, and the bands and entries of its tail, between steps.
#include <algorithm>
#include <cstring>

#include "cuda/backend.h"

namespace orrery::cuda {

namespace {

int32_t count_allowed(Span<const uint32_t> mask, int32_t n) {
  if (mask.empty()) return n;
  int32_t n_allowed = 0;
  for (int32_t first = 0; first < n; first += 32) {
    const uint32_t word = mask[static_cast<size_t>(first) / 32], behind = n - first < 32 ? ~0u << (n - first) : 0;
    n_allowed += __builtin_popcount(word & ~behind);
  }
  return n_allowed;
}

}  // namespace

// The request travels with the step's upload. If the step has been sent, the request is a copy of its own. A mask is a copy of its own, to
// the row's work space: it runs ahead of the operations that are recorded but not sent, and unmasked steps carry nothing for it.
void CudaBackend::shortlist(Ptr<const float> logits, int64_t n, const ShortlistRequest& request, Ptr<std::byte> out) {
  DeviceShortlist on_device = {};
  on_device.n_best = request.n_best;
  on_device.n_tokens = static_cast<int32_t>(request.tokens.size());
  on_device.n_sums = request.n_sums;
  on_device.inverse_temperature = request.inverse_temperature;
  on_device.n_allowed = count_allowed(request.mask, static_cast<int32_t>(n));
  on_device.masked = !request.mask.empty();
  std::copy(request.tokens.begin(), request.tokens.end(), on_device.tokens);
  const DriverError fits = n_shortlists_ < n_blocks_ ? DriverError::none : DriverError::invalid_value;
  if (queue_.failed() || !queue_.check(fits, "asking for more shortlists than a step has")) return;
  upload_mask(request.mask, n, out);
  const uint64_t at = plan_.sequences + n_shortlists_ * plan_.sequence_bytes + plan_.shortlist;
  if (step_waits_) std::memcpy(step_bounce_->now().data() + at, &on_device, sizeof on_device);
  else upload({address(scratch_ + at)}, &on_device, sizeof on_device);
  Operation& op = note(Operation::Kind::shortlist, 1);
  op.first_row = static_cast<int32_t>(n_shortlists_++);
  op.in = {device(logits), n};
  op.out = {reinterpret_cast<float*>(device(out)), n};
  op.dim = n;
}

void CudaBackend::upload_mask(Span<const uint32_t> mask, int64_t n, Ptr<std::byte> out) {
  if (!mask.empty()) upload(out + shortlist_mask_at(n), mask.data(), mask.size() * sizeof(uint32_t));
}

void CudaBackend::shortlist_bands(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, Ptr<std::byte> out, uint64_t* sums) {
  const OnDevice here(*gpu_, queue_);
  upload_mask(tail.mask, n, out);
  cuda::shortlist_bands(queue_, device(logits), n, tail, device(out));
  download(sums, out, ShortlistTail::kBands * sizeof(uint64_t));
}

void CudaBackend::shortlist_entries(Ptr<const float> logits, int64_t n, const ShortlistTail& tail, int32_t band, int32_t other_band,
                                    Ptr<std::byte> out, ShortlistTailEntries* entries) {
  const OnDevice here(*gpu_, queue_);
  upload_mask(tail.mask, n, out);
  cuda::shortlist_entries(queue_, device(logits), n, tail, band, other_band, device(out));
  download(entries, out, sizeof *entries);
}

}  // namespace orrery::cuda
