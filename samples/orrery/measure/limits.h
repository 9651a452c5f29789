// The machine's measured limits: the bytes per second that the library's number of threads can read, and the products
// per second that their registers can compute. `bench` compares the library with these limits. The measurement uses
// no code of the library, so it is independent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "system/process.h"

namespace orrery::tool {

class Limits {
 public:
  // `path`: the library's instruction set. `bytes`: bytes that a token reads. The buffer has that size, at most 4 GiB
  // and a quarter of physical memory, so caches help both equally.
  Limits(int n_threads, const std::string& path, uint64_t bytes);
  ~Limits();

  // Measures every limit once more, which takes some tenths of a second. Called between the runs that are compared.
  void sample();

  // Medians of the samples; of reading, the largest of its ways' medians (limits.cpp). 0 if there are no samples, or if peak.h has no
  // kernel for the instruction set. A product and its sum count as two operations.
  double read_bytes_per_second() const;
  double float_ops_per_second() const;      // F32, fused
  double half_ops_per_second() const;       // the limit for F16 and BF16 weights: bf16 products if the instruction set has them, else
                                            // F32
  double quantized_ops_per_second() const;  // the limit for quantized weights: bf16 products if the instruction set has them, else
                                            // bytes summed in 32 bits

 private:
  int n_threads_;
  std::string path_;
  SystemMemory buffer_;
  static constexpr size_t kReadWays = 4;
  std::vector<double> read_[kReadWays];
  std::vector<double> float_, half_, quantized_;
};

}  // namespace orrery::tool
