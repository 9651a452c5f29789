#include "runtime/policy/refresh/misses.h"

namespace orrery::policy {

void plan_misses(Span<const uint32_t> held, Span<const uint32_t> wanted, uint32_t first_slot, std::vector<uint8_t>* marks,
                 std::vector<Replacement>* misses) {
  // Without branches, which could not be predicted.
  enum : uint8_t { kUnmarked, kWanted, kResident = 3 };
  uint8_t* mark = marks->data();
  misses->resize(wanted.size() + 1);
  Replacement* miss = misses->data();
  for (const uint32_t token : wanted) mark[token] = kWanted;
  for (const uint32_t token : held) mark[token] = static_cast<uint8_t>(mark[token] * kResident);
  size_t n = 0, n_free = 0;
  for (const uint32_t token : wanted) miss[n].position = token, n += mark[token] != kResident;
  for (uint32_t slot = 0; n_free < n; ++slot) miss[n_free].slot = first_slot + slot, n_free += mark[held[slot]] != kResident;
  for (const uint32_t token : wanted) mark[token] = kUnmarked;
  misses->resize(n);
}

Status refill_selection(Heads* heads, uint32_t head, uint32_t first_slot, Span<const uint32_t> wanted, uint64_t visible_at,
                        std::vector<uint8_t>* marks, std::vector<Replacement>* misses, Report* report) {
  const Span<const uint32_t> held = heads->positions(head).subspan(first_slot, wanted.size());
  plan_misses(held, wanted, first_slot, marks, misses);
  report->wanted_tokens += wanted.size();
  report->missed_tokens += misses->size();
  return misses->empty() ? ok_status() : heads->refill(head, *misses, visible_at);
}

}  // namespace orrery::policy
