#include "runtime/policy/engines/paged.h"

#include <numeric>

#include "runtime/policy/allocate/over_heads.h"
#include "runtime/policy/table.h"

#include <algorithm>

#include "runtime/base/checked.h"

namespace orrery::policy {

namespace {

// Layers that keep everything take at most this part of the budget: 1 / 10. Where they took more, on two published models at 20 to 60%,
// they cost more than they gave (tests/bench/results/real-models.md).
constexpr uint64_t kWholeLayersPart = 10;
constexpr uint32_t kFewPages = 16;  // a head that would hold fewer gets smaller pages
}  // namespace

Status PagedSettings::read(OptionReader* reader) {
  static constexpr const char* kPages[] = {"auto", "4", "8", "16", "32", "64"};
  static constexpr const char* kDigests[] = {"range", "deviation"};
  uint32_t size = 0, digest = deviation;
  ORRERY_TRY(reader->choice("page", {kPages, 6}, &size));
  ORRERY_TRY(reader->choice("digest", {kDigests, 2}, &digest));
  if (reader->given("page")) page = size > 0 ? 2u << size : 0;
  deviation = digest == 1;
  return read_kept(reader);
}

Status PagedSettings::read_kept(OptionReader* reader) {
  ORRERY_TRY(reader->count("sinks", 0, 1u << 20, &sinks));
  ORRERY_TRY(reader->count("window", 1, 1u << 20, &window));
  ORRERY_TRY(reader->count("first_layers", 0, 4096, &first_layers));
  first_layers_given = reader->given("first_layers");
  return ok_status();
}

PagedPolicy::PagedPolicy(const char* name, const Shape& shape, const Budget& budget, const PagedSettings& settings)
    : name_(name), settings_(settings), rings_(shape), n_layers_(shape.n_layers), n_kv_heads_(shape.n_kv_heads),
      n_context_(shape.n_context), budget_(budget), slot_bytes_(shape.slot_bytes), digest_bytes_(shape.digest_bytes),
      head_dim_(shape.head_dim), code_turns_(shape.code_turns) {
  const uint64_t n = rings_.n_other_heads();
  budget_.max_slots -= std::min(budget.max_slots, rings_.slots());
  holds_all_ = budget.share.of_tokens() >= 1 && budget_.max_slots >= n * n_context_;
  const auto find_heads = [&] {
    heads_.clear(), full_.clear();
    uint32_t layer = 0;
    for (uint32_t l = 0; l < shape.n_layers; ++l) {
      if (rings_.has(l * n_kv_heads_)) continue;
      const bool full = holds_all_ || layer++ < settings_.first_layers;
      for (uint32_t h = 0; h < n_kv_heads_; ++h) (full ? full_ : heads_).push_back(l * n_kv_heads_ + h);
    }
  };
  find_heads();
  if (!settings_.first_layers_given && !holds_all_ && kWholeLayersPart * full_.size() * n_context_ > budget_.max_slots)
    settings_.first_layers = 0, find_heads();
  if (settings_.page == 0) {
    settings_.page = 32;
    while (settings_.page > 8 && slots_at(n_context_) < kFewPages * uint64_t{settings_.page} &&
           4 * digest_slots(n_context_, settings_.page / 2) < planned_slots())
      settings_.page /= 2;
  }
}

Status PagedPolicy::check() const {
  const uint64_t least = least_tokens();
  if (settings_.in_place) return check_digests();
  if (full_.size() * uint64_t{n_context_} <= budget_.max_slots &&
      (heads_.empty() || slots_at(n_context_) >= std::min<uint64_t>(least, n_context_)))
    return ok_status();
  const uint64_t slots =
      rings_.slots() + full_.size() * uint64_t{n_context_} + heads_.size() * least + digest_slots(n_context_, settings_.page);
  if (budget_.slot_bytes > 0)
    return error(
        Code::invalid_argument,
        "policy %s: %zu heads with %llu tokens in pages of %u, digests of %u tokens and %zu whole heads take %llu bytes of KV, which "
        "a KV budget of %llu bytes does not hold",
        name_, heads_.size(), static_cast<unsigned long long>(least), settings_.page, n_context_, full_.size(),
        static_cast<unsigned long long>(slots * slot_bytes_),
        static_cast<unsigned long long>((budget_.max_slots + rings_.slots()) * slot_bytes_));
  return error(Code::invalid_argument,
               "policy %s: %zu heads with %llu tokens in pages of %u, digests of %u tokens and %zu whole heads take %llu slots, which a KV "
               "budget of %g (%llu slots) does not hold; it must be at least %.3f",
               name_, heads_.size(), static_cast<unsigned long long>(least), settings_.page, n_context_, full_.size(),
               static_cast<unsigned long long>(slots), budget_.share.of_bytes(),
               static_cast<unsigned long long>(budget_.max_slots + rings_.slots()), least_share(slots));
}

Status PagedPolicy::check_digests() const {
  const uint64_t slots = heads_.empty() ? 0 : digest_slots(n_context_, settings_.page), most = budget_.max_slots;
  if (slots <= most) return ok_status();
  const auto bytes = [this](uint64_t n) { return static_cast<unsigned long long>(n * slot_bytes_); };
  return error(Code::invalid_argument,
               "policy %s: %zu heads with digests of %u tokens take %llu bytes, which a KV budget of %llu bytes does not hold", name_,
               heads_.size(), n_context_, bytes(slots), bytes(most));
}

uint64_t PagedPolicy::slots_in_place() const {
  if (!settings_.in_place) return 0;
  return rings_.slots() + full_.size() * uint64_t{n_context_} + heads_.size() * slots_at(n_context_);
}

void PagedPolicy::begin_settling(uint32_t n_tokens, Span<uint32_t> capacity) {
  ++report_.n_settled;
  rings_.settle();
  for (uint32_t head = 0; head < capacity.size(); ++head) capacity[head] = rings_.capacity(head);
  for (const uint32_t head : full_) capacity[head] = n_context_;
  const uint32_t page = settings_.page;
  const auto slots = static_cast<uint32_t>(slots_at(n_tokens));
  for (const uint32_t head : heads_) capacity[head] = slots;
  n_pages_ = slots / page - 1;  // without the page that is being written
  paged_ = !heads_.empty() && n_tokens + 1 > slots;
  if (!paged_) return;
  // At most a quarter each, unless a head has room for what `exact` asks for.
  const bool has_room = settings_.exact > 0 && slots >= uint64_t{settings_.exact} + settings_.sinks + settings_.window;
  const uint32_t most = has_room ? slots : slots / 4;
  n_sink_pages_ = std::max(std::min(settings_.sinks, most) / page, settings_.sinks > 0 && n_pages_ > 2 ? 1u : 0u);
  n_window_pages_ = std::max(std::min(settings_.window, most) / page, 2u) - 1;
  set_sink_pages(n_sink_pages_);
}

void PagedPolicy::set_sink_pages(uint32_t n) {
  n_sink_pages_ = n;
  n_selected_pages_ = n_pages_ - n_sink_pages_ - n_window_pages_;
  selected_begin_.resize(heads_.size() + 1);
  for (size_t i = 0; i <= heads_.size(); ++i) selected_begin_[i] = i * n_selected_pages_;
  resize_discarding(&selected_, selected_begin_.back());
}

void PagedPolicy::set_selected_pages(Span<const uint64_t> counts, Span<uint32_t> capacity) {
  for (size_t i = 0; i < heads_.size(); ++i) {
    selected_begin_[i + 1] = selected_begin_[i] + counts[i];
    capacity[heads_[i]] = (head_pages(i) + 1) * settings_.page;
  }
}

Status PagedPolicy::paged_state(StateBytes* s, const SavedMoment& at, bool selects) {
  const kv::SlotTable& slots = *at.slots;
  const uint32_t page = settings_.page, n_whole = at.n_tokens / page;
  const uint64_t end = uint64_t{n_whole} + 1;
  ORRERY_TRY(rings_.state(s, slots));
  ORRERY_TRY(s->flag(&paged_, "whether heads hold pages is neither yes nor no"));
  for (const uint32_t head : full_) ORRERY_TRY(s->check(slots.capacity[head] == n_context_, "a whole head has too few slots"));
  if (!paged_) return ok_status();
  ORRERY_TRY(s->check(!heads_.empty(), "no head holds pages"));
  ORRERY_TRY(s->number(&n_pages_, end, "heads have more pages than the session"));
  ORRERY_TRY(s->number(&n_sink_pages_, end, "more sink pages than pages"));
  ORRERY_TRY(s->number(&n_window_pages_, end, "more window pages than pages"));
  ORRERY_TRY(s->number(&n_selected_pages_, end, "more selected pages than pages"));
  ORRERY_TRY(s->check(n_selected_pages_ > 0 && uint64_t{n_sink_pages_} + n_window_pages_ + n_selected_pages_ == n_pages_,
                      "a head's pages do not add up"));
  const uint32_t n = n_whole - std::min(n_whole, n_sink_pages_ + n_window_pages_);  // candidates
  if (s->reads()) selected_begin_.assign(heads_.size() + 1, 0);
  std::vector<uint8_t> marks;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const uint32_t head = heads_[i];
    auto count = static_cast<uint32_t>(s->reads() ? 0 : selected(i).size());
    ORRERY_TRY(s->number(&count, uint64_t{n} + 1, "a head selects more pages than there are"));
    ORRERY_TRY(s->check(count > 0, "a head selects no page"));
    if (!s->reads()) continue;
    selected_begin_[i + 1] = selected_begin_[i] + count;
    const uint64_t n_held = uint64_t{n_sink_pages_} + count + n_window_pages_, n_slots = slots.capacity[head];
    ORRERY_TRY(s->check((n_held + 1) * page <= n_slots, "a head has too few slots for its pages"));
    if (settings_.in_place) continue;
    ORRERY_TRY(s->check(slots.length[head] >= n_held * page, "a head lacks pages"));
    if (page == 1) {  // tokens: sinks, selected ones, a ring of the last
      ORRERY_TRY(s->check(slots.holds(head, n_sink_pages_, uint64_t{n_sink_pages_} + count, n_sink_pages_, uint64_t{n_sink_pages_} + n),
                          "a selected token is none that can be"));
      continue;
    }
    ORRERY_TRY(s->check(slots.length[head] == n_held * page + at.n_tokens % page, "a head's last page is another"));
    const Span<const uint32_t> held = slots.of(head);
    marks.assign(n_whole + size_t{1}, 0);
    for (size_t slot = 0; slot < held.size(); ++slot) {
      const uint32_t of = held[slot] / page;
      const bool begins = slot % page == 0, last = slot >= n_held * page;
      ORRERY_TRY(s->check(
          held[slot] % page == slot % page && (begins || of == held[slot - 1] / page) && last == (of == n_whole) && (!begins || !marks[of]),
          "a head's slots are no pages"));
      marks[of] = 1;
    }
  }
  if (s->reads()) selected_.assign(selected_begin_.back(), n_sink_pages_);
  if (!selects) return ok_status();
  return s->numbers(&selected_, selected_begin_.back(), n_whole, "a selected page is not the session's");
}

Status PagedPolicy::divide_by_attention(Heads* heads, uint32_t n_tokens, double floor, Span<uint32_t> capacity) {
  const uint32_t page = settings_.page, n = n_candidates(n_tokens), w = std::min(kPageQueries, heads->n_queries()), group = heads->group();
  const size_t n_heads = heads_.size();
  const uint64_t total = uint64_t{n_selected_pages_} * n_heads;
  std::vector<float> weights(size_t{group} * n_tokens), mass(n_heads * n);
  std::vector<double> head_counts(n_heads, kLeastHeadCount);
  for (uint32_t position = n_tokens - w; position < n_tokens; ++position) {
    std::fill(mass.begin(), mass.end(), 0.0f);
    for (size_t i = 0; i < n_heads; ++i) {
      const WeightsQuery query{heads_[i], position, 1, n_tokens, false, weights.data()};
      ORRERY_TRY(heads->key_weights({&query, 1}));
      for (uint32_t g = 0; g < group; ++g)
        for (uint32_t p = 0; p < n; ++p) {
          const float* of_page = &weights[size_t{g} * n_tokens + size_t{n_sink_pages_ + p} * page];
          mass[i * n + p] += std::accumulate(of_page, of_page + page, 0.0f);
        }
    }
    ORRERY_ASSIGN(const std::vector<uint64_t> counts, count_best(mass, n_heads, total, 1));
    for (size_t i = 0; i < n_heads; ++i) head_counts[i] += static_cast<double>(counts[i]);
  }
  return divide_by_counts(head_counts, floor, n, capacity);
}

Status PagedPolicy::divide_by_counts(Span<const double> counts, double floor, uint32_t n, Span<uint32_t> capacity) {
  const auto least = std::max<uint64_t>(static_cast<uint64_t>(floor * n_selected_pages_), 1);
  ORRERY_ASSIGN(const std::vector<uint64_t> pages, apportion(counts, uint64_t{n_selected_pages_} * heads_.size(), least, n));
  set_selected_pages(pages, capacity);
  return ok_status();
}

uint64_t PagedPolicy::dividing_bytes(uint32_t group) const {
  return bytes_of<float>(group * uint64_t{n_context_} + 3 * heads_.size() * (n_context_ / settings_.page));
}

void PagedPolicy::select(uint32_t head, uint32_t n_tokens, uint32_t, std::vector<uint32_t>* out) {
  if (rings_.has(head)) return rings_.select(head, n_tokens, out);
  out->clear();
  const uint32_t page = settings_.page, n_pages = n_tokens / page;
  const auto add = [&](uint32_t p) {
    for (uint32_t i = 0; i < page; ++i) out->push_back(p * page + i);
  };
  const auto found = std::lower_bound(heads_.begin(), heads_.end(), head);
  if (!paged_ || found == heads_.end() || *found != head) {
    for (uint32_t p = 0; p < n_tokens; ++p) out->push_back(p);
    return;
  }
  const size_t at = static_cast<size_t>(found - heads_.begin());
  for (uint32_t p = 0; p < n_sink_pages_; ++p) add(p);
  for (const uint32_t p : selected(at)) add(p);
  for (uint32_t p = n_pages - n_window_pages_; p < n_pages; ++p) add(p);
  for (uint32_t p = n_pages * page; p < n_tokens; ++p) out->push_back(p);
}

uint64_t PagedPolicy::paged_bytes() const {
  const uint64_t pages = heads_.size() * (slots_at(n_context_) / settings_.page + 1);
  return bytes_of<uint32_t>(pages) + bytes_of<size_t>(heads_.size() + 1) + bytes_of<PageQuery>(heads_.size());
}

uint64_t PagedPolicy::digest_slots(uint32_t n_tokens, uint32_t page) const {
  if (settings_.code_bits > 0) {
    const KeyCodeFormat codes = {static_cast<int32_t>(settings_.code_bits), static_cast<int32_t>(head_dim_), settings_.compensation,
                                 static_cast<int32_t>(settings_.value_bits), static_cast<int32_t>(code_turns_)};
    return div_up(heads_.size() * codes.head_bytes(n_tokens), slot_bytes_);
  }
  // digest_bytes_ are those of two vectors.
  const uint64_t values = settings_.rank > 0 ? settings_.rank * (n_tokens + head_dim_) : n_tokens / page * 2 * head_dim_;
  return div_up(heads_.size() * values * digest_bytes_, 2 * head_dim_ * slot_bytes_);
}

uint64_t PagedPolicy::planned_slots() const { return budget_.max_slots - std::min(budget_.max_slots, full_.size() * uint64_t{n_context_}); }

uint64_t PagedPolicy::budget_at(uint32_t n_tokens) const {
  if (budget_.share.of_tokens() >= 1) return planned_slots();  // all bytes of the budget, however few tokens there are
  const double n = n_tokens, full = static_cast<double>(full_.size()), all = full + static_cast<double>(heads_.size());
  return std::min(static_cast<uint64_t>(std::max((budget_.share.of_tokens() * all - full) * n + 1e-6, 0.0)), planned_slots());
}

uint64_t PagedPolicy::slots_at(uint32_t n_tokens) const {
  const auto left = [this](uint64_t slots, uint32_t n) {
    const uint64_t digests = settings_.in_place ? 0 : digest_slots(n, settings_.page);
    return std::max((slots - std::min(slots, digests)) / std::max<uint64_t>(heads_.size(), 1), least_in_place(n));
  };
  const uint64_t wanted = settings_.exact > 0 ? uint64_t{settings_.exact} + settings_.sinks + settings_.window : UINT64_MAX;
  return std::min({std::max(left(budget_at(n_tokens), n_tokens), least_tokens()), left(planned_slots(), n_context_), uint64_t{n_context_},
                   std::max(wanted, least_tokens())});
}

double PagedPolicy::least_share(uint64_t slots) const {
  return budget_.share.least(div_up(slots, uint64_t{rings_.n_other_heads()}), n_context_);
}

std::pair<size_t, size_t> PagedPolicy::heads_of(uint32_t layer) const {
  const auto at = [this](uint32_t head) {
    return static_cast<size_t>(std::lower_bound(heads_.begin(), heads_.end(), head) - heads_.begin());
  };
  return {at(layer * n_kv_heads_), at((layer + 1) * n_kv_heads_)};
}

}  // namespace orrery::policy
