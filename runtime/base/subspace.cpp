#include "runtime/base/subspace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orrery {

namespace {

constexpr int kRounds = 6;
constexpr int64_t kSpare = 16;              // extra directions, which make the last requested directions converge
constexpr int kSweeps = 16;                 // upper bound on Jacobi sweeps
constexpr int64_t kRows = 4, kColumns = 4;  // of a product that are summed together

double dot(const double* a, const double* b, int64_t n) {
  double sums[8] = {};  // separate lanes, which the compiler can vectorise
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return std::accumulate(sums, sums + 8, 0.0);
}
void add_times(double factor, const double* x, double* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// Makes the rows (n_rows, n) orthonormal. A row that depends on the rows before it becomes 0.
void orthonormalize(double* rows, int64_t n_rows, int64_t n) {
  for (int64_t r = 0; r < n_rows; ++r) {
    double* row = rows + r * n;
    const double before = std::sqrt(dot(row, row, n));
    for (int pass = 0; pass < 2; ++pass)  // the second pass removes what the rounding of the first pass left
      for (int64_t other = 0; other < r; ++other) add_times(-dot(rows + other * n, row, n), rows + other * n, row, n);
    const double length = std::sqrt(dot(row, row, n));
    const double inverse = length > 1e-10 * before && std::isfinite(length) ? 1 / length : 0;
    for (int64_t i = 0; i < n; ++i) row[i] = inverse > 0 ? row[i] * inverse : 0;
  }
}

// out (n_rows, n) = rows (n_rows, n) * matrix (n, n). Each sum goes in the order of k, from 0 on.
void multiply(const double* rows, int64_t n_rows, const float* matrix, int64_t n, double* out) {
  for (int64_t r = 0; r < n_rows; r += kRows)
    for (int64_t j = 0; j < n; j += kColumns) {
      const int64_t n_r = std::min(kRows, n_rows - r), n_j = std::min(kColumns, n - j);
      double sums[kRows][kColumns] = {};  // in registers
      if (n_r == kRows && n_j == kColumns) {
        for (int64_t k = 0; k < n; ++k)
          for (int64_t i = 0; i < kRows; ++i)
            for (int64_t c = 0; c < kColumns; ++c) sums[i][c] += rows[(r + i) * n + k] * static_cast<double>(matrix[k * n + j + c]);
      } else {
        for (int64_t k = 0; k < n; ++k)
          for (int64_t i = 0; i < n_r; ++i)
            for (int64_t c = 0; c < n_j; ++c) sums[i][c] += rows[(r + i) * n + k] * static_cast<double>(matrix[k * n + j + c]);
      }
      for (int64_t i = 0; i < n_r; ++i) std::copy_n(sums[i], n_j, out + (r + i) * n + j);
    }
}

// Diagonalises the symmetric matrix a (n, n): its diagonal becomes the eigenvalues, and the rows of `vectors` (n, n) the
// eigenvectors.
void jacobi(double* a, double* vectors, int64_t n) {
  std::fill(vectors, vectors + n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double diagonal = 0, rest = 0;
    for (int64_t i = 0; i < n; ++i) {
      diagonal += a[i * n + i] * a[i * n + i];
      for (int64_t j = 0; j < i; ++j) rest += a[i * n + j] * a[i * n + j];
    }
    if (!(rest > 1e-24 * diagonal)) return;
    for (int64_t p = 0; p < n; ++p)
      for (int64_t q = p + 1; q < n; ++q) {
        const double off = a[p * n + q];
        if (off * off <= 1e-32 * std::fabs(a[p * n + p] * a[q * n + q])) continue;
        const double ratio = (a[q * n + q] - a[p * n + p]) / (2 * off);
        const double t = (ratio < 0 ? -1 : 1) / (std::fabs(ratio) + std::sqrt(1 + ratio * ratio)), c = 1 / std::sqrt(1 + t * t), s = t * c;
        const auto turn = [c, s](double* x, double* y) {
          const double before = *x;
          *x = c * before - s * *y, *y = s * before + c * *y;
        };
        for (int64_t i = 0; i < n; ++i) turn(&a[p * n + i], &a[q * n + i]);
        for (int64_t i = 0; i < n; ++i) turn(&a[i * n + p], &a[i * n + q]);
        for (int64_t i = 0; i < n; ++i) turn(&vectors[p * n + i], &vectors[q * n + i]);
      }
  }
}

}  // namespace

Subspace::Subspace(int64_t n, int64_t rank)
    : n_(n), rank_(rank), width_(std::min(n, rank + kSpare)), rows_(static_cast<size_t>(width_ * n)), products_(rows_.size()),
      inner_(static_cast<size_t>(width_ * width_)), vectors_(inner_.size()), order_(static_cast<size_t>(width_)) {}

void Subspace::find(const float* matrix, float* basis) noexcept {
  const int64_t n = n_;
  std::fill(basis, basis + rank_ * n, 0.0f);
  if (!std::all_of(matrix, matrix + n * n, [](float x) { return std::isfinite(x); })) return;
  uint64_t state = 1;  // any start works that has a component in every direction
  for (double& x : rows_) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<double>(state >> 33) / 2147483648.0 - .5;
  }
  orthonormalize(rows_.data(), width_, n);
  for (int round = 0; round < kRounds; ++round) {
    multiply(rows_.data(), width_, matrix, n, products_.data());
    rows_.swap(products_);
    orthonormalize(rows_.data(), width_, n);
  }
  // Rayleigh-Ritz: the eigenvectors of the matrix restricted to the subspace.
  multiply(rows_.data(), width_, matrix, n, products_.data());
  double* inner = inner_.data();
  for (int64_t i = 0; i < width_; ++i)
    for (int64_t j = 0; j <= i; ++j) inner[i * width_ + j] = inner[j * width_ + i] = dot(products_.data() + i * n, rows_.data() + j * n, n);
  jacobi(inner, vectors_.data(), width_);
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
    const double x = inner[a * width_ + a], y = inner[b * width_ + b];
    return x != y ? x > y : a < b;
  });
  for (int64_t r = 0; r < std::min(rank_, width_); ++r) {
    const double* weights = vectors_.data() + order_[static_cast<size_t>(r)] * width_;
    double* row = products_.data();
    std::fill(row, row + n, 0.0);
    for (int64_t i = 0; i < width_; ++i) add_times(weights[i], rows_.data() + i * n, row, n);
    const double largest = *std::max_element(row, row + n, [](double a, double b) { return std::fabs(a) < std::fabs(b); });
    std::transform(row, row + n, basis + r * n, [largest](double x) { return static_cast<float>(largest < 0 ? -x : x); });
  }
}

}  // namespace orrery
