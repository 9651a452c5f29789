// Random Unicode strings from weighted pools of characters. They are byte for byte the strings that tests/golden/make_tokenizer_goldens.py
// draws (class Strings there), so that goldens need not store them.
#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/text/unicode/utf8.h"
#include "tests/support/shared.h"

namespace orrery::testing {

// Undoes %xx.
inline std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); i++) {
    if (text[i] == '%') {
      out.push_back(static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16)));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

class RandomStrings {
 public:
  // `pools`: the first that many pools of tests/golden/tokenizer/pools.txt.
  RandomStrings(uint64_t seed, size_t pools) : state_(seed) {
    std::ifstream in(source_path("tests/golden/tokenizer/pools.txt"));
    std::string line;
    while (pools_.size() < pools && std::getline(in, line)) {
      std::istringstream words(line);
      size_t weight = 0;
      std::string kind, item;
      words >> weight >> kind;
      std::vector<std::string> pool;
      while (words >> item) {
        if (kind == "strings") {
          pool.push_back(unescape(item));
          continue;
        }
        const size_t dash = item.find('-');
        const auto last = static_cast<uint32_t>(std::stoul(item.substr(dash + 1), nullptr, 16));
        for (auto c = static_cast<uint32_t>(std::stoul(item, nullptr, 16)); c <= last; c++) {
          pool.emplace_back();
          text::utf8_append(c, &pool.back());
        }
      }
      table_.insert(table_.end(), weight, pools_.size());
      pools_.push_back(std::move(pool));
    }
  }
  static constexpr size_t kPlainPools = 24;  // without names of special tokens
  static constexpr size_t kPoolsInAll = 25;
  bool ok() const { return !pools_.empty(); }

  uint64_t next() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  size_t next(size_t n) { return static_cast<size_t>(next() % n); }

  std::string string() {
    std::string out;
    for (size_t runs = 1 + next(8); runs > 0; runs--) {
      const std::vector<std::string>& pool = pools_[table_[next(table_.size())]];
      const size_t length = 1 + next(next(16) == 0 ? 40 : 4);
      const bool same = next(8) == 0;
      const size_t first = next(pool.size());
      for (size_t i = 0; i < length; i++) out += pool[same || i == 0 ? first : next(pool.size())];
    }
    return out;
  }

 private:
  uint64_t state_;
  std::vector<std::vector<std::string>> pools_;
  std::vector<size_t> table_;  // a pool's index, as often as it weighs
};

}  // namespace orrery::testing
