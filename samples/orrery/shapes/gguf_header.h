// Writes the header of a GGUF file, version 3: metadata, and tensors by name, shape and type. Offsets follow from the order of the tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orrery::tool {

// ggml's tensor types, as far as shapes need them: a number, and blocks of `block` weights in `bytes` bytes.
struct WeightType {
  const char* name;
  uint32_t id, block, bytes;
};
constexpr WeightType kF32{"F32", 0, 1, 4}, kF16{"F16", 1, 1, 2}, kQ5_0{"Q5_0", 6, 32, 22}, kQ8_0{"Q8_0", 8, 32, 34},
    kQ4_K{"Q4_K", 12, 256, 144}, kQ5_K{"Q5_K", 13, 256, 176}, kQ6_K{"Q6_K", 14, 256, 210}, kQ4_0{"Q4_0", 2, 32, 18},
    kMxfp4{"MXFP4", 39, 32, 17};

class GgufHeader {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // the first one is contiguous
    WeightType type;
    uint64_t offset, bytes;  // behind the header
  };

  void key(const std::string& name, const std::string& text);
  void key(const std::string& name, const char* text) { key(name, std::string(text)); }
  void key(const std::string& name, uint32_t value);
  void key(const std::string& name, float value);
  void key(const std::string& name, bool value);
  void key(const std::string& name, const std::vector<int32_t>& values);
  void key(const std::string& name, const std::vector<bool>& values);
  void key(const std::string& name, const std::vector<std::string>& texts);
  void key(const std::string& name, const std::vector<float>& values);
  void tensor(const std::string& name, const std::vector<uint64_t>& dims, const WeightType& type);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  uint64_t data_bytes() const { return data_bytes_; }
  uint64_t n_weights() const;
  // Up to the tensors' data: a multiple of 32 bytes.
  std::string bytes() const;

 private:
  template <class T>
  static void append(std::string* to, T value);
  static void append_text(std::string* to, const std::string& text);
  void begin(const std::string& name, uint32_t type);
  void begin_array(const std::string& name, uint32_t type, uint64_t n);

  std::string keys_;
  uint64_t n_keys_ = 0, data_bytes_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace orrery::tool
