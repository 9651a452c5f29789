#include "runtime/policy/parts.h"

#include <algorithm>
#include <cmath>

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
  const double wanted = share_ >= 1.0 ? n_context_ : std::ceil(share_ * n_tokens);
  const uint64_t slots = std::max<uint64_t>(static_cast<uint64_t>(wanted), kLeastSlots);
  const uint32_t each = static_cast<uint32_t>(std::min({slots, most_, uint64_t{n_context_}}));
  for (size_t head = 0; head < capacity.size(); ++head) {
    const uint32_t window = window_[head / n_kv_heads_];
    capacity[head] = window > 0 ? std::min(window, n_context_) : each;
  }
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
