#include "runtime/policy/parts.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"
#include "runtime/kv/arena.h"

namespace orrery::policy {

UniformAllocation::UniformAllocation(const Shape& shape, const Budget& budget)
    : n_kv_heads_(shape.n_kv_heads), n_context_(shape.n_context), share_(budget.share) {
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    window_.push_back(static_cast<uint32_t>(shape.window[l]));
    if (window_.back() > 0)
      windowed_slots_ += uint64_t{std::min(window_.back(), n_context_)} * n_kv_heads_;
    else
      n_full_ += n_kv_heads_;
  }
  if (n_full_ > 0) most_ = (budget.max_slots - std::min(windowed_slots_, budget.max_slots)) / n_full_;
}

void UniformAllocation::allocate(uint32_t n_tokens, Span<uint32_t> capacity) const {
  // A full share is the whole context, and not merely all that is there: nothing is ever replaced.
  const uint64_t wanted = share_.of_tokens() >= 1 ? n_context_ : share_.tokens(n_tokens);
  const uint64_t slots = std::max<uint64_t>(wanted, kLeastSlots);
  const uint32_t each = static_cast<uint32_t>(std::min({slots, most_, uint64_t{n_context_}}));
  for (size_t head = 0; head < capacity.size(); ++head) {
    const uint32_t window = window_[head / n_kv_heads_];
    capacity[head] = window > 0 ? std::min(window, n_context_) : each;
  }
}

WindowRings::WindowRings(const Shape& shape)
    : n_kv_heads_(shape.n_kv_heads), next_(size_t{shape.n_layers} * shape.n_kv_heads) {
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    window_.push_back(std::min(static_cast<uint32_t>(shape.window[l]), shape.n_context));
    slots_ += uint64_t{window_.back()} * n_kv_heads_;
    if (window_.back() == 0) n_other_ += n_kv_heads_;
  }
}

uint32_t WindowRings::slot_for(uint32_t head, uint32_t length) {
  const uint32_t window = capacity(head);
  if (length < window) return length;
  const uint32_t slot = next_[head];
  next_[head] = (slot + 1) % window;
  return slot;
}

uint64_t TailedBudget::selected_with(uint32_t n_tokens, uint32_t n_full, uint32_t tail) const {
  const uint64_t horizon = uint64_t{n_tokens} + tail, n_compressed = n_heads_ - n_full, more = beside(n_full);
  // A millionth of a slot is a rounding of the share, and no token.
  const auto share = static_cast<uint64_t>(share_.of_tokens() * static_cast<double>(horizon) * n_heads_ + 1e-6);
  uint64_t slots = std::min(std::max(share, n_heads_ * std::min<uint64_t>(horizon, kLeastSlots) + more), n_heads_ * horizon + more);
  // Where the context is far from full the plan has room for the full heads, however small the share.
  const uint64_t least = n_full * horizon + n_compressed * std::min<uint64_t>(horizon, 2 * uint64_t{tail}) + more;
  slots = std::min(std::max(slots, least), max_slots_);
  const uint64_t taken = n_full * horizon + n_compressed * tail + more;
  return slots > taken ? std::min(slots - taken, n_compressed * n_tokens) : 0;
}

uint32_t TailedBudget::tail_at(uint32_t n_tokens) const {
  if (tail_.slots > 0) return tail_.slots;
  if (tail_.least_part == 0) return std::clamp(n_tokens / 32, 16u, 256u);
  const uint32_t tail = std::max(n_tokens / 32, 16u);
  const double each = std::min(share_.of_tokens() * n_tokens, static_cast<double>(max_slots_) / n_heads_);
  return std::clamp(static_cast<uint32_t>(each / tail_.least_part + 1e-6), 8u, tail);
}

TailedBudget::Division TailedBudget::divide(uint32_t n_tokens, uint32_t n_full) const {
  const uint32_t n_compressed = n_heads_ - n_full, room = n_context_ - n_tokens;
  Division division;
  division.tail = std::min(room, everything() || n_compressed == 0 ? room : tail_at(n_tokens));
  // A tail takes no more than the prompt's part; where there is hardly room, one token of each.
  division.selected = selected_with(n_tokens, n_full, division.tail);
  while (division.tail > 1 && n_compressed > 0 &&
         division.selected < std::min<uint64_t>(division.tail, n_tokens) * n_compressed) {
    division.tail = (division.tail + 1) / 2;
    division.selected = selected_with(n_tokens, n_full, division.tail);
  }
  if (division.selected < n_compressed) division.selected = 0;
  return division;
}

uint64_t TailedBudget::least_slots(uint32_t n_full) const {
  // At the context's end: full heads hold all of it, the others a prompt token and a generated one.
  return uint64_t{n_full} * n_context_ + 2 * uint64_t{n_heads_ - n_full} + beside(n_full);
}

double TailedBudget::least_share(uint32_t n_full) const {
  return share_.least(div_up(least_slots(n_full), uint64_t{n_heads_}), n_context_);   // whole slots of a head
}

bool TailedBudget::fits(uint32_t n_full) const {
  if (n_full == n_heads_) return max_slots_ >= uint64_t{n_heads_} * n_context_;
  return divide(std::max(n_context_, 2u) - 1, n_full).selected > 0;
}

TailedPolicy::TailedPolicy(const Shape& shape, const Budget& budget, Tail tail, const Calibration& calibration,
                           SharedProfile profile, Ratio beside)
    : profile_(std::move(profile)),
      calibration_(calibration),
      n_kv_heads_(shape.n_kv_heads),
      n_layers_(shape.n_layers),
      n_context_(shape.n_context),
      window_(shape.window.begin(), shape.window.end()),
      rings_(shape),
      budget_(rings_.n_other_heads(), shape.n_context, budget.share, max_slots(budget), tail, beside) {}

Status TailedPolicy::check_room(const Budget& budget, const char* what) const {
  const uint32_t n_full = n_full_heads();
  if (rings_.n_other_heads() == 0 || budget_.fits(n_full)) return ok_status();
  if (n_full == 0)   // a share always has room
    return error(Code::invalid_argument, "policy %s: a KV budget of %llu slots (tokens of one head) holds nothing of %u heads; it must "
                 "be at least %llu slots", name(), static_cast<unsigned long long>(budget.max_slots), rings_.n_other_heads(),
                 static_cast<unsigned long long>(rings_.slots() + budget_.least_slots(0)));
  if (budget.slot_bytes > 0) {
    const uint64_t least = (rings_.slots() + budget_.least_slots(n_full)) * budget.slot_bytes;
    return error(Code::invalid_argument,
                 "policy %s: %u of %u heads %s, which a KV budget of %llu bytes does not hold at a context of %u; it must be "
                 "at least %llu bytes",
                 name(), n_full, rings_.n_other_heads(), what,
                 static_cast<unsigned long long>(budget.max_slots * budget.slot_bytes), n_context_,
                 static_cast<unsigned long long>(align_up(least, kv::kArenaAlignment)));
  }
  return error(Code::invalid_argument,
               "policy %s: %u of %u heads %s, which a KV budget of %g (%llu slots) does not hold; it must be at least %.3f",
               name(), n_full, rings_.n_other_heads(), what, budget.share.of_bytes(),
               static_cast<unsigned long long>(budget.max_slots), budget_.least_share(n_full));
}

void TailedPolicy::begin_settling(uint32_t n_tokens, Span<uint32_t> capacity) {
  ++report_.n_settled;
  rings_.settle();
  n_tokens_ = n_tokens;
  n_steps_ = 0;
  queries_.clear();
  for (uint32_t head = 0; head < capacity.size(); ++head) capacity[head] = rings_.capacity(head);
}

uint64_t TailedPolicy::tailed_bytes() const {
  const uint64_t calibrated = profile_ ? 0 : calibration_bytes(shape(), calibration_);
  return bytes_of<uint8_t>(n_context_) + bytes_of<Replacement>(n_context_ + uint64_t{1}) +
         bytes_of<KeyQuery>(uint64_t{n_layers_} * n_kv_heads_) * 2 + calibrated;
}

void TailedPolicy::end_settling(size_t most) {
  renew(&marks_, n_tokens_);
  std::fill(marks_.begin(), marks_.end(), uint8_t{0});
  misses_.reserve(most + 1);
}

Status refill_selection(Heads* heads, uint32_t head, uint32_t first_slot, Span<const uint32_t> wanted, uint64_t visible_at,
                        std::vector<uint8_t>* marks, std::vector<Replacement>* misses, Report* report) {
  const Span<const uint32_t> held = heads->positions(head).subspan(first_slot, wanted.size());
  plan_misses(held, wanted, first_slot, marks, misses);
  report->wanted_tokens += wanted.size();
  report->missed_tokens += misses->size();
  return misses->empty() ? ok_status() : heads->refill(head, *misses, visible_at);
}

uint64_t calibration_bytes(const Shape& shape, const Calibration& calibration) {
  const uint64_t n_heads = shape.n_kv_heads, n_queries = std::min(calibration.n_queries, shape.n_context);
  const uint64_t k = std::min(calibration.top_k, std::max(1u, shape.n_context / 4));
  const uint64_t overlaps = LayerOverlaps::host_bytes(n_heads, std::max<uint64_t>(n_queries, 2) - 1, k, shape.n_context);
  return bytes_of<uint32_t>(n_heads * (n_queries + 1) * k) + bytes_of<KeyQuery>(n_heads) + shape.n_layers * overlaps;
}

Result<Calibrated> calibrate(Heads* heads, const WindowRings& rings, const Shape& shape, uint32_t n_tokens,
                             const Calibration& calibration) {
  const uint32_t n_queries = std::min({calibration.n_queries, heads->n_queries(), n_tokens});
  const uint32_t oldest = n_tokens - n_queries, n_keys = oldest + 1;
  const uint32_t k = std::min(calibration.top_k, std::max(1u, n_keys / 4));
  const uint32_t n_steps = std::max(n_queries, 2u) - 1;
  Calibrated found;
  found.top_k = k;
  std::vector<uint32_t> best(size_t{shape.n_kv_heads} * n_queries * k);
  std::vector<KeyQuery> queries(shape.n_kv_heads);
  std::vector<Tokens> sets(shape.n_kv_heads);
  for (uint32_t l = 0; l < shape.n_layers; ++l) {
    if (rings.has(l * shape.n_kv_heads)) continue;
    for (uint32_t h = 0; h < shape.n_kv_heads; ++h)
      queries[h] = {l * shape.n_kv_heads + h, oldest, n_queries, n_keys, k, false, &best[size_t{h} * n_queries * k]};
    ORRERY_TRY(heads->top_keys(queries, calibration.rule));
    ORRERY_ASSIGN(LayerOverlaps overlaps, LayerOverlaps::make(shape.n_kv_heads, n_steps));
    for (uint32_t step = 0; step <= n_steps; ++step) {
      const uint32_t row = n_queries - 1 - std::min(step, n_queries - 1);
      for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
        const auto begin = best.begin() + static_cast<ptrdiff_t>((size_t{h} * n_queries + row) * k);
        sets[h].assign(begin, begin + k);
      }
      ORRERY_TRY(overlaps.add(step, sets));
    }
    found.layers.push_back(std::move(overlaps));
  }
  return found;
}

const std::string* nearest_name(const std::string& name, const std::vector<std::string>& known) {
  // Levenshtein's distance, at most a third of the name.
  const std::string* best = nullptr;
  size_t least = name.size() / 3 + 1;
  std::vector<size_t> row;
  for (const std::string& k : known) {
    row.resize(k.size() + 1);
    for (size_t j = 0; j <= k.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= k.size(); ++j) {
        const size_t change = diagonal + (name[i - 1] != k[j - 1]);
        diagonal = row[j];
        row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
      }
    }
    if (row[k.size()] <= least) least = row[k.size()], best = &k;
  }
  return best;
}

Status OptionReader::count(const char* name, uint32_t least, uint32_t most, uint32_t* value) {
  known_.emplace_back(name);
  for (const auto& [key, text] : options_) {
    if (key != name) continue;
    uint64_t n = 0;
    bool number = !text.empty() && text.size() <= 10;
    for (const char c : text) {
      number = number && c >= '0' && c <= '9';
      n = n * 10 + static_cast<uint64_t>(c - '0');
    }
    if (!number || n < least || n > most)
      return error(Code::invalid_argument, "policy option %s.%s is '%.40s', expected a whole number from %u to %u", policy_,
                   name, text.c_str(), least, most);
    *value = static_cast<uint32_t>(n);
  }
  return ok_status();
}

Status OptionReader::number(const char* name, double least, double most, double* value) {
  known_.emplace_back(name);
  for (const auto& [key, text] : options_) {
    if (key != name) continue;
    // Digits and one point, so that no locale has a say.
    double x = 0, place = 1;
    bool number = !text.empty() && text.size() <= 12 && text != ".", point = false;
    for (const char c : text) {
      if (c == '.' && !point) {
        point = true;
      } else if (c >= '0' && c <= '9') {
        x = x * 10 + (c - '0');
        if (point) place *= 10;
      } else {
        number = false;
      }
    }
    x /= place;
    if (!number || x < least || x > most)
      return error(Code::invalid_argument, "policy option %s.%s is '%.40s', expected a number from %g to %g", policy_, name,
                   text.c_str(), least, most);
    *value = x;
  }
  return ok_status();
}

Status OptionReader::choice(const char* name, Span<const char* const> choices, uint32_t* index) {
  known_.emplace_back(name);
  for (const auto& [key, text] : options_) {
    if (key != name) continue;
    const auto found = std::find(choices.begin(), choices.end(), text);
    if (found == choices.end()) {
      std::string list;
      for (const char* c : choices) list += (list.empty() ? "" : ", ") + std::string(c);
      return error(Code::invalid_argument, "policy option %s.%s is '%.40s', expected one of: %s", policy_, name,
                   text.c_str(), list.c_str());
    }
    *index = static_cast<uint32_t>(found - choices.begin());
  }
  return ok_status();
}

Status OptionReader::flag(const char* name, bool* value) {
  static constexpr const char* kChoices[] = {"0", "1"};
  uint32_t index = *value;
  ORRERY_TRY(choice(name, {kChoices, 2}, &index));
  *value = index == 1;
  return ok_status();
}

Status OptionReader::ascending(const char* name, uint32_t most, std::vector<uint32_t>* values) {
  known_.emplace_back(name);
  for (const auto& [key, text] : options_) {
    if (key != name) continue;
    values->clear();
    uint64_t n = 0;
    bool digits = false, fine = text.size() <= 64;
    for (size_t i = 0; fine && i <= text.size(); ++i) {
      if (i < text.size() && text[i] >= '0' && text[i] <= '9') {
        n = n * 10 + static_cast<uint64_t>(text[i] - '0'), digits = true;
        fine = n <= most;
        continue;
      }
      fine = digits && (i == text.size() || text[i] == '+') && (values->empty() || n > values->back());
      values->push_back(static_cast<uint32_t>(n));
      n = 0, digits = false;
    }
    if (!fine)
      return error(Code::invalid_argument, "policy option %s.%s is '%.40s', expected whole numbers up to %u that ascend, joined by +", policy_,
                   name, text.c_str(), most);
  }
  return ok_status();
}

bool OptionReader::given(const char* name) const {
  return std::any_of(options_.begin(), options_.end(), [&](const auto& option) { return option.first == name; });
}

Status OptionReader::finish() const {
  for (const auto& [key, text] : options_) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string* near = nearest_name(key, known_);
    return error(Code::invalid_argument, "policy %s has no option '%.40s'%s%s%s", policy_, key.c_str(),
                 near ? "; did you mean '" : "", near ? near->c_str() : "", near ? "'?" : "");
  }
  return ok_status();
}

}  // namespace orrery::policy
