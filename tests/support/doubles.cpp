// See doubles.h.
#include "tests/support/doubles.h"

#include <cmath>
#include <vector>

namespace orrery::testing {

namespace {

template <class Term>
double sum(size_t n, const Term& term) {
  double s[4] = {};
  size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (size_t j = 0; j < 4; ++j) s[j] += term(i + j);
  for (; i < n; ++i) s[0] += term(i);
  return (s[0] + s[1]) + (s[2] + s[3]);
}

}  // namespace

double dot(const float* a, const float* b, size_t n) {
  return sum(n, [=](size_t i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
}
double dot(const float* a, const double* b, size_t n) {
  return sum(n, [=](size_t i) { return static_cast<double>(a[i]) * b[i]; });
}
double dot_of_sizes(const float* a, const float* b, size_t n) {
  return sum(n, [=](size_t i) { return std::fabs(static_cast<double>(a[i]) * static_cast<double>(b[i])); });
}
double dot_of_sizes(const float* a, const double* b, size_t n) {
  return sum(n, [=](size_t i) { return std::fabs(static_cast<double>(a[i]) * b[i]); });
}

void add_times(double w, const float* x, size_t n, double* out) {
  for (size_t i = 0; i < n; ++i) out[i] += w * static_cast<double>(x[i]);
}
void add_times(double w, const double* x, size_t n, double* out) {
  for (size_t i = 0; i < n; ++i) out[i] += w * x[i];
}
void add_size_times(double w, const float* x, size_t n, double* out) {
  for (size_t i = 0; i < n; ++i) out[i] += w * std::fabs(static_cast<double>(x[i]));
}
void add_distance_times(double w, const float* x, const double* middle, size_t n, double* out) {
  for (size_t i = 0; i < n; ++i) out[i] += w * std::fabs(static_cast<double>(x[i]) - middle[i]);
}

void sylvester(const double* x, size_t n, size_t block, double* out) {
  std::vector<float> row(block);
  for (size_t i = 0; i < block; ++i) {
    for (size_t j = 0; j < block; ++j) {
      bool odd = false;
      for (size_t common = i & j; common != 0; common &= common - 1) odd = !odd;
      row[j] = odd ? -1.0f : 1.0f;
    }
    for (size_t first = 0; first < n; first += block)
      out[first + i] = dot(row.data(), x + first, block) / std::sqrt(static_cast<double>(block));
  }
}

void rotate(double c, double s, double* x, double* y, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double a = x[i], b = y[i];
    x[i] = c * a + s * b, y[i] = c * b - s * a;
  }
}

}  // namespace orrery::testing
