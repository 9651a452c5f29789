// The leading subspace of a symmetric matrix: what is known of it by construction.
#include "runtime/base/subspace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace orrery::subspace_test {
namespace {

std::vector<double> orthonormal(int64_t n, std::mt19937_64* random) {  // (n, n), rows
  std::normal_distribution<double> normal;
  std::vector<double> q(static_cast<size_t>(n * n));
  for (double& x : q) x = normal(*random);
  const auto row = [&](int64_t i) { return q.data() + i * n; };
  for (int64_t i = 0; i < n; ++i) {
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t j = 0; j < i; ++j) {
        double product = 0;
        for (int64_t k = 0; k < n; ++k) product += row(i)[k] * row(j)[k];
        for (int64_t k = 0; k < n; ++k) row(i)[k] -= product * row(j)[k];
      }
    double square = 0;
    for (int64_t k = 0; k < n; ++k) square += row(i)[k] * row(i)[k];
    for (int64_t k = 0; k < n; ++k) row(i)[k] /= std::sqrt(square);
  }
  return q;
}

void leading_subspace(const float* matrix, size_t n, size_t rank, std::vector<float>* basis) {
  basis->assign(rank * n, 5.0f);
  Subspace(static_cast<int64_t>(n), static_cast<int64_t>(rank)).find(matrix, basis->data());
}

// Of eigenvectors and eigenvalues.
std::vector<float> matrix_of(const std::vector<double>& vectors, const std::vector<double>& values) {
  const size_t n = values.size();
  std::vector<double> sum(n * n);
  for (size_t r = 0; r < n; ++r)
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) sum[i * n + j] += values[r] * vectors[r * n + i] * vectors[r * n + j];
  return {sum.begin(), sum.end()};
}

void expect_orthonormal(const std::vector<float>& basis, size_t rank, size_t n) {
  for (size_t a = 0; a < rank; ++a)
    for (size_t b = 0; b <= a; ++b) {
      double product = 0;
      for (size_t i = 0; i < n; ++i) product += static_cast<double>(basis[a * n + i]) * basis[b * n + i];
      ASSERT_NEAR(product, a == b, 1e-6) << a << ", " << b;
    }
}

TEST(Subspace, FindsTheLargestDirections) {
  std::mt19937_64 random(1);
  for (const size_t n : {size_t{1}, size_t{5}, size_t{48}, size_t{150}}) {
    const std::vector<double> vectors = orthonormal(static_cast<int64_t>(n), &random);
    std::vector<double> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = 100 * std::pow(.8, static_cast<double>(i));
    const std::vector<float> matrix = matrix_of(vectors, values);
    const size_t rank = (n + 3) / 4;
    std::vector<float> basis;
    leading_subspace(matrix.data(), n, rank, &basis);
    ASSERT_EQ(basis.size(), rank * n);
    expect_orthonormal(basis, rank, n);
    for (size_t r = 0; r < rank; ++r) {  // each by the sign of its largest component
      double product = 0, largest = 0;
      for (size_t i = 0; i < n; ++i) {
        product += static_cast<double>(basis[r * n + i]) * vectors[r * n + i];
        if (std::fabs(vectors[r * n + i]) > std::fabs(largest)) largest = vectors[r * n + i];
      }
      ASSERT_NEAR(product, largest < 0 ? -1 : 1, 1e-4) << "of " << n << ", " << r;
    }
  }
}

// Where the spectrum hardly falls single vectors mean little; what the subspace holds of the matrix is nearly the most there is.
TEST(Subspace, HoldsNearlyAllThatAnyCouldOfAFlatSpectrum) {
  std::mt19937_64 random(2);
  const size_t n = 200, rank = 40;
  const std::vector<double> vectors = orthonormal(n, &random);
  std::vector<double> values(n);
  double most = 0, found = 0;
  for (size_t i = 0; i < n; ++i) values[i] = 1 / std::sqrt(1. + static_cast<double>(i)), most += i < rank ? values[i] : 0;
  const std::vector<float> matrix = matrix_of(vectors, values);
  std::vector<float> basis, again;
  leading_subspace(matrix.data(), n, rank, &basis);
  for (size_t r = 0; r < rank; ++r)
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) found += static_cast<double>(basis[r * n + i]) * matrix[i * n + j] * basis[r * n + j];
  EXPECT_GT(found, .995 * most);
  EXPECT_LE(found, 1.0001 * most);
  leading_subspace(matrix.data(), n, rank, &again);
  EXPECT_EQ(basis, again);
}

TEST(Subspace, FewerDirectionsThanAskedFor) {
  std::mt19937_64 random(3);
  const size_t n = 64, rank = 20, there = 7;
  const std::vector<double> vectors = orthonormal(n, &random);
  std::vector<double> values(n);
  for (size_t i = 0; i < there; ++i) values[i] = 1 + static_cast<double>(i);
  const std::vector<float> matrix = matrix_of(vectors, values);
  std::vector<float> basis;
  leading_subspace(matrix.data(), n, rank, &basis);
  for (size_t r = 0; r < there; ++r) {  // each is wholly within
    double inside = 0;
    for (size_t b = 0; b < rank; ++b) {
      double product = 0;
      for (size_t i = 0; i < n; ++i) product += static_cast<double>(basis[b * n + i]) * vectors[r * n + i];
      inside += product * product;
    }
    ASSERT_NEAR(inside, 1, 1e-5);
  }
  for (const float x : basis) ASSERT_TRUE(std::isfinite(x));
}

TEST(Subspace, NothingAndWhatIsNotFinite) {
  std::vector<float> matrix(32 * 32), basis;
  leading_subspace(matrix.data(), 32, 4, &basis);
  EXPECT_EQ(basis, std::vector<float>(4 * 32));
  for (const float x : {NAN, INFINITY}) {
    matrix.assign(32 * 32, 1.0f);
    matrix[5] = x;
    leading_subspace(matrix.data(), 32, 4, &basis);
    EXPECT_EQ(basis, std::vector<float>(4 * 32));
  }
}

}  // namespace
}  // namespace orrery::subspace_test
