// Reader for the metadata keys of one architecture, NAME.key. A reader asks for the keys that it understands.
// refuse_the_rest() then refuses a file with any other key, unless keys.cpp lists the key as harmless at its value. A
// key that the library does not know is therefore an error that names the key, never a wrong answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/gguf/gguf.h"

namespace orrery::model {

struct Description;

class Keys {
 public:
  Keys(const gguf::File& file, const char* prefix) : file_(file), prefix_(std::string(prefix) + ".") {}

  const gguf::File& file() const { return file_; }
  std::string name(std::string_view key) const { return prefix_ + std::string(key); }
  // The value of a key, or null if the key is absent. Afterwards the key counts as understood.
  const gguf::Value* find(const char* key);
  bool has(const char* key) { return find(key) != nullptr; }

  // An integer in [least, most].
  Status integer(const char* key, uint64_t least, uint64_t most, int32_t* out);
  Status integer_or(const char* key, uint64_t fallback, uint64_t least, uint64_t most, int32_t* out);
  // A number, finite and in [least, most].
  Status number_or(const char* key, double fallback, double least, double most, float* out);
  Status text_or(const char* key, std::string_view fallback, std::string_view* out);
  // One integer for all layers, or an array of one per layer.
  Status per_layer(const char* key, size_t n_layers, uint64_t least, uint64_t most, std::vector<int32_t>* out);

  // An array of true and false, one per layer.
  Status flags(const char* key, size_t n_layers, std::vector<bool>* out);

  // Returns unsupported_architecture for a key of this architecture that no reader asked for and that is not
  // harmless.
  Status refuse_the_rest(const Description& h) const;

 private:
  Status in_range(const char* key, uint64_t n, uint64_t least, uint64_t most, int32_t* out) const;

  const gguf::File& file_;
  const std::string prefix_;
  std::set<std::string, std::less<>> understood_;  // without the prefix
};

// Checks general.*: the file must be a model in blocks that this library reads. Runs before any other check.
Status check_general_keys(const gguf::File& file);

}  // namespace orrery::model
