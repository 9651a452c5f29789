#include "runtime/policy/options.h"

#include <algorithm>

namespace orrery::policy {

const std::string* nearest_name(const std::string& name, const std::vector<std::string>& known) {
  // Levenshtein distance, at most a third of the name's length.
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
      return option_error(Code::invalid_argument, "policy_options", "policy option %s.%s is '%.40s', expected a whole number from %u to %u",
                          policy_, name, text.c_str(), least, most);
    *value = static_cast<uint32_t>(n);
  }
  return ok_status();
}

Status OptionReader::odd(const char* name, uint32_t most, uint32_t* value) {
  ORRERY_TRY(count(name, 1, most, value));
  if (*value % 2 == 1) return ok_status();
  return option_error(Code::invalid_argument, "policy_options", "policy option %s.%s is %u, expected an odd number", policy_, name, *value);
}

Status OptionReader::number(const char* name, double least, double most, double* value) {
  known_.emplace_back(name);
  for (const auto& [key, text] : options_) {
    if (key != name) continue;
    // Digits and one point: the locale has no influence.
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
      return option_error(Code::invalid_argument, "policy_options", "policy option %s.%s is '%.40s', expected a number from %g to %g",
                          policy_, name, text.c_str(), least, most);
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
      return option_error(Code::invalid_argument, "policy_options", "policy option %s.%s is '%.40s', expected one of: %s", policy_, name,
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
      return option_error(Code::invalid_argument, "policy_options",
                          "policy option %s.%s is '%.40s', expected whole numbers up to %u that ascend, joined by +", policy_, name,
                          text.c_str(), most);
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
    return option_error(Code::invalid_argument, "policy_options", "policy %s has no option '%.40s'%s%s%s", policy_, key.c_str(),
                        near ? "; did you mean '" : "", near ? near->c_str() : "", near ? "'?" : "");
  }
  return ok_status();
}

}  // namespace orrery::policy
