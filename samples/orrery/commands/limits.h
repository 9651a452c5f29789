// What this machine gives at best, measured: the bytes per second that as many threads as the library runs can merely read,
// and the products per second that their registers can form. `bench` puts its figures beside these; nothing of the library
// is in them, so that they also judge it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace orrery::tool {

class Limits {
 public:
  // `path`: the library's instruction path. `bytes`: what a token reads; the buffer is as large, up to 4 GiB and a quarter
  // of the physical memory, so that caches serve both alike.
  Limits(int n_threads, const std::string& path, uint64_t bytes);
  ~Limits();

  // Measures everything once more, in some tenths of a second: called between the runs that are judged.
  void sample();

  // Medians of the samples; 0 where there are none, as peaks of a path that peak.h does not know. A product and its sum count as two operations.
  double read_bytes_per_second() const;
  double float_ops_per_second() const;   // F32, fused
  double half_ops_per_second() const;    // what F16 and BF16 are held against: bf16 where the path has it, else F32
  double quantized_ops_per_second() const;    // of quantized weights: bf16 likewise, else bytes summed in 32 bits

 private:
  struct Unmap {
    uint64_t bytes;
    void operator()(uint64_t* memory) const;
  };
  int n_threads_;
  std::string path_;
  std::unique_ptr<uint64_t, Unmap> buffer_;
  std::vector<double> read_, float_, half_, quantized_;
};

}  // namespace orrery::tool
