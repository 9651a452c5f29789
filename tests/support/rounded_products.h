// A query's products with keys by codes, in double precision, as the CPU's tables have them: a group's product is rounded to steps, which
// are parts of the widest group's range. Floats may round a product to the next step: that is step() times the key's factor.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/backend/key_codes.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::testing {

class RoundedProducts {
 public:
  // query: (head_dim), rotated as the keys are.
  RoundedProducts(const std::vector<double>& query, int32_t bits) : query_(query), of_group_(static_cast<size_t>(4 / bits)) {
    const auto largest_level = static_cast<double>(key_code_level(bits, (1 << bits) - 1));
    for (size_t i = 0; i < query.size(); i += of_group_) {
      double sum = 0;
      for (size_t d = i; d < std::min(i + of_group_, query.size()); ++d) sum += std::fabs(query[d]);
      largest_.push_back(sum * largest_level);
    }
    step_ = 2 * *std::max_element(largest_.begin(), largest_.end()) / cpu::most_entry(bits);
  }
  // The product with a key: the levels of its codes (head_dim), in units of `factor`.
  double operator()(const std::vector<double>& levels, double factor) const {
    double sum = 0;
    for (size_t i = 0; i < query_.size(); i += of_group_) {
      double product = 0;
      const double largest = largest_[i / of_group_];
      for (size_t d = i; d < std::min(i + of_group_, query_.size()); ++d) product += query_[d] * levels[d];
      sum += step_ * std::floor((product + largest) / step_ + .5) - largest;
    }
    return sum * factor;
  }
  double step() const { return step_; }

 private:
  std::vector<double> query_;
  const size_t of_group_;
  std::vector<double> largest_;  // of each group's products
  double step_;
};

}  // namespace orrery::testing
