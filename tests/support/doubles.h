// Sums in double precision, for references that compute by definition. Compiled as the rooms are (doubles.cpp): the tests themselves are
// hardly optimised, and these sums take most of a reference's time. Their order is not that of any kernel: four sums side by side.
#pragma once

#include <cstddef>

namespace orrery::testing {

// Sums of a[i] b[i], and of |a[i] b[i]|, over n values.
double dot(const float* a, const float* b, size_t n);
double dot(const float* a, const double* b, size_t n);
double dot_of_sizes(const float* a, const float* b, size_t n);
double dot_of_sizes(const float* a, const double* b, size_t n);

// out[i] += w x[i], w |x[i]|, and w |x[i] - middle[i]|.
void add_times(double w, const float* x, size_t n, double* out);
void add_times(double w, const double* x, size_t n, double* out);
void add_size_times(double w, const float* x, size_t n, double* out);
void add_distance_times(double w, const float* x, const double* middle, size_t n, double* out);

// T x by rows of Sylvester's matrix, of each `block` of the n values: entry (i, j) of T is -1 to the number of common bits, over the root of `block`.
void sylvester(const double* x, size_t n, size_t block, double* out);

// (x[i], y[i]) = (c x[i] + s y[i], c y[i] - s x[i]).
void rotate(double c, double s, double* x, double* y, size_t n);

}  // namespace orrery::testing
