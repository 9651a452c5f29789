// See staging.h.
#include "cuda/staging.h"

#include <algorithm>

#include "runtime/base/checked.h"

namespace orrery::cuda {

Status Staging::create(const Gpu& gpu) {
  ORRERY_TRY(stream_.create(gpu));
  for (EventOwner* event : {&begun_, &appended_, &copied_[0], &copied_[1], &read_[0], &read_[1]}) ORRERY_TRY(event->create(gpu));
  copies_ = stream_.queue(&copies_.gpu());
  return ok_status();
}

void Staging::use(std::byte* scratch, const ScratchPlan& plan) {
  halves_ = scratch + plan.staging, half_bytes_ = plan.staging_half_bytes;
  m_and_l_ = reinterpret_cast<float*>(scratch + plan.m_and_l);
}

bool Staging::takes(const Step& step, uint64_t arena, uint64_t arena_bytes) const {
  if (half_bytes_ < step.kv.layer_bytes() || step.phase != Phase::prefill || step.sequences.size() != 1) return false;
  const KvView& pages = step.sequences[0];
  return std::any_of(pages.pages, pages.pages + pages.n_pages, [&](uint64_t page) { return page - arena >= arena_bytes; });
}

void Staging::begin(Queue& queue) {
  begun_.mark(queue);
  begun_.order(copies_);
}

// One copy takes the pages that lie side by side: pages of one unit of kPagesTogether, which lie in the memory of one share_host(). With a
// single layer pages of several units may lie side by side, so each page is a copy of its own.
void Staging::copy(const KvView& pages, const KvFormat& kv, int32_t layer, int32_t first, int32_t end, std::byte* to) {
  const uint64_t bytes = kv.layer_bytes();
  for (int32_t page = first; page < end && !copies_.failed();) {
    int32_t n = 1;
    while (kv.n_layers > 1 && page + n < end && pages.pages[page + n] == pages.pages[page] + static_cast<uint64_t>(n) * bytes) ++n;
    const auto* from = reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(pages.pages[page] + kv.head_offset(layer, 0)));
    copies_.copy(to, from, static_cast<uint64_t>(n) * bytes, "staging a prompt's keys");
    to += static_cast<uint64_t>(n) * bytes;
    page += n;
  }
}

void Staging::attend(Queue& queue, const DeviceShape& device, const StepView& view, const Step& step, const Attention& shape, ConstRows q,
                     Rows out) {
  const int32_t first_row = step.rows[0].position, n_rows = static_cast<int32_t>(step.rows.size());
  const int32_t own_page = first_row / kPageTokens, n_pages = (first_row + n_rows - 1) / kPageTokens + 1;
  const int32_t begin = first_visible(first_row, shape.window) / kPageTokens;
  const int32_t fitting = static_cast<int32_t>(half_bytes_ / shape.kv.layer_bytes());
  appended_.mark(queue);
  for (int32_t page = begin, end; page < n_pages && !queue.failed(); page = end) {
    end = std::min(page + fitting, page < own_page ? own_page : n_pages);
    std::byte* half = halves_ + static_cast<uint64_t>(turn_) * half_bytes_;
    read_[turn_].order(copies_);
    if (end > own_page) appended_.order(copies_);
    copy(step.sequences[0], shape.kv, shape.layer, page, end, half);
    copied_[turn_].mark(copies_);
    copied_[turn_].order(queue);
    KeySegment keys;
    keys.first = page * kPageTokens, keys.end = end * kPageTokens;
    keys.staged = half, keys.m_and_l = m_and_l_;
    keys.goes_on = page > begin, keys.is_last = end == n_pages;
    attend_prefill(queue, device, view, shape, q, out, n_rows, keys);
    read_[turn_].mark(queue);
    turn_ ^= 1;
  }
}

}  // namespace orrery::cuda
