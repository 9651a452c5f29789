#include "runtime/policy/refresh/misses.h"

#include <algorithm>

#include "runtime/policy/select/top_k.h"

namespace orrery::policy {

namespace {

Result<Tokens> sorted_unique(Span<const uint32_t> tokens, const char* what) {
  Tokens sorted(tokens.begin(), tokens.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) return error(Code::invalid_argument, "token %u is %s twice", *twice, what);
  return sorted;
}

bool contains(const Tokens& sorted, uint32_t token) { return std::binary_search(sorted.begin(), sorted.end(), token); }

}  // namespace

Result<std::vector<Replacement>> plan_refresh(Span<const uint32_t> resident, Span<const uint32_t> wanted) {
  if (resident.size() != wanted.size()) {
    return error(Code::invalid_argument, "%zu tokens are wanted in %zu slots", wanted.size(), resident.size());
  }
  ORRERY_ASSIGN(const Tokens held, sorted_unique(resident, "resident"));
  ORRERY_ASSIGN(const Tokens needed, sorted_unique(wanted, "wanted"));
  std::vector<Replacement> out;
  for (uint32_t slot = 0; slot < resident.size(); ++slot) {
    if (!contains(needed, resident[slot])) out.push_back({slot, 0});
  }
  auto next = out.begin();
  for (const uint32_t token : wanted) {
    if (!contains(held, token)) next++->position = token;
  }
  return out;
}

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
