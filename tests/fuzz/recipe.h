// Recipes: a valid tiny GGUF file, and edits that make it another one, valid or not. An input of a few bytes
// is a whole model file in this way, and one byte of it changes a key, a tensor's shape, a token: what stands
// on both sides of it stays in step, as random bytes would not.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/checks.h"
#include "tests/support/gguf_builder.h"

namespace orrery::fuzz {

// A GGUF file, taken apart.
struct FileParts {
  struct Key {
    std::string name;
    uint32_t type;
    testing::Bytes value;  // as it stands in the file
  };
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type;
    testing::Bytes data;
  };
  std::vector<Key> keys;
  std::vector<Tensor> tensors;
  std::vector<std::pair<uint32_t, uint8_t>> pokes;  // where (modulo the file's size), and what is written there
  uint32_t version = 3;
  uint32_t cut = UINT32_MAX;                 // bytes of the file that are left
  uint64_t more_keys = 0, more_tensors = 0;  // than there are, by the header

  // Of a file that is valid, and not split: anything else traps.
  static FileParts take_apart(const testing::Bytes& file);
  testing::Bytes build() const;
  // The same into a buffer that is used again, whose memory the next file finds there: a fresh one costs a page fault for every 4 KiB.
  void build(testing::Bytes* file) const;

  Key* find(const std::string& name);
};

// What edits can do; each reads its arguments from `r`. Keys and tensors are named by number, modulo how many
// there are.
enum class Edit : uint8_t {
  set_number,        // key, value: the key keeps its type
  retype_key,        // key, type, value
  set_text,          // key, text
  rename_key,        // key, text
  drop_key,          // key
  double_key,        // key
  set_element,       // key, index, value (or text): of an array
  resize_array,      // key, number of elements
  set_dim,           // tensor, dimension, size, whether the data stay as they are
  add_dim,           // tensor, size
  retype_tensor,     // tensor, type, whether the data stay as they are
  fill_data,         // tensor, offset, count, pattern
  rename_tensor,     // tensor, text
  drop_tensor,       // tensor
  double_tensor,     // tensor, text
  swap_tensors,      // two tensors' names
  scale_everywhere,  // size, other size: in all shapes and keys of that number
  set_family,        // architecture: its name, and every key's prefix
  add_known_key,     // which, value
  set_token,         // index, text: of the vocabulary, with its type and score
  add_merge,         // text
  poke,              // offset, byte
  cut,               // bytes that are left
  claim,             // keys and tensors more than there are, version
  set_alignment,     // value
  count
};
inline constexpr uint8_t kEdits = static_cast<uint8_t>(Edit::count);
void apply(Edit edit, Reader* r, FileParts* file);

}  // namespace orrery::fuzz
