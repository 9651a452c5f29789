// How a model's KV lies in pages, and the operation that moves tokens of KV.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/memory.h"
#include "runtime/base/span.h"
#include "runtime/base/tensor_type.h"

namespace orrery {

// Session files hold these numbers.
enum class KvType : uint8_t { f32 = 0, f16 = 1, q8_0 = 2, q4_0 = 3, k8v4 = 4 };

// The facts of a KV type, which all other code asks.
struct KvTypeRow {
  KvType type;
  const char* name;
  KvType key, value;     // the types of K and V: the type itself, or of a mixed type two others
  TensorType stored;     // how one K or V lies; of a mixed type, how K does
  int32_t block_values;  // that share a scale; 1: no blocks
  int32_t block_bytes;   // of a mixed type the mean of K's and V's
  bool rotated;          // few bits: rotated where the model allows it (KvTransform)
  constexpr double bits() const { return 8.0 * block_bytes / block_values; }  // of a value
};
inline constexpr KvTypeRow kKvTypeRows[] = {
    {KvType::f32, "F32", KvType::f32, KvType::f32, TensorType::f32, 1, 4, false},
    {KvType::f16, "F16", KvType::f16, KvType::f16, TensorType::f16, 1, 2, false},
    {KvType::q8_0, "Q8_0", KvType::q8_0, KvType::q8_0, TensorType::q8_0, 32, 34, false},
    {KvType::q4_0, "Q4_0", KvType::q4_0, KvType::q4_0, TensorType::q4_0, 32, 18, true},
    {KvType::k8v4, "K8V4", KvType::q8_0, KvType::q4_0, TensorType::q8_0, 32, 26, true},
};
inline constexpr size_t kKvTypeCount = sizeof kKvTypeRows / sizeof *kKvTypeRows;
constexpr const KvTypeRow& kv_type_row(KvType type) { return kKvTypeRows[static_cast<size_t>(type)]; }
// Whether each row stands at its type's number, names no mixed type for K or V, and has the blocks of the tensor types.
constexpr bool are_kv_rows(const KvTypeRow* rows, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const KvTypeRow& row = rows[i];
    const auto key = static_cast<size_t>(row.key), value = static_cast<size_t>(row.value);
    if (row.type != static_cast<KvType>(i) || key >= n || value >= n) return false;
    if (rows[key].key != rows[key].value || rows[value].key != rows[value].value || row.stored != rows[key].stored) return false;
    const TypeTraits &k = *type_traits(rows[key].stored), &v = *type_traits(rows[value].stored);
    const auto values = static_cast<uint32_t>(row.block_values), bytes = static_cast<uint32_t>(row.block_bytes);
    if (k.block_elements != values || v.block_elements != values || k.block_bytes + v.block_bytes != 2 * bytes) return false;
  }
  return true;
}
static_assert(are_kv_rows(kKvTypeRows, kKvTypeCount), "a fact of a KV type contradicts another");

constexpr KvType key_type(KvType type) { return kv_type_row(type).key; }
constexpr KvType value_type(KvType type) { return kv_type_row(type).value; }
constexpr bool mixed(KvType type) { return key_type(type) != value_type(type); }
constexpr const char* kv_type_name(KvType type) { return kv_type_row(type).name; }

// Of one K or V.
constexpr TensorType key_tensor_type(KvType type) { return kv_type_row(key_type(type)).stored; }
constexpr TensorType value_tensor_type(KvType type) { return kv_type_row(value_type(type)).stored; }
constexpr uint64_t key_bytes(KvType type, uint64_t head_dim) { return row_bytes(key_tensor_type(type), head_dim); }
constexpr uint64_t value_bytes(KvType type, uint64_t head_dim) { return row_bytes(value_tensor_type(type), head_dim); }
constexpr bool in_blocks(KvType type) { return kv_type_row(type).block_values > 1; }  // of 32 values and their scale
// Whether values of type a keep more of a number than values of type b.
constexpr bool finer(KvType a, KvType b) { return key_bytes(a, 32) + value_bytes(a, 32) > key_bytes(b, 32) + value_bytes(b, 32); }

// Tokens of a KV page. Attention is cut into tiles of this many keys at fixed absolute positions, so a page is also the unit of the
// (o, m, l) merge. Forks share whole pages, and copies move them.
inline constexpr int32_t kPageTokens = 64;

// Pages that lie side by side in memory, layer by layer: one layer's KV heads of all these pages are contiguous, and attention
// reads them in order. Longer contiguous reads are faster (Intel Xeon with AMX, 8 KV heads of 64 in F16, one core: 128 KB reads
// reach 79% of the rate of megabyte reads, 512 KB reads 98%). Memory is reserved in units of this many pages.
inline constexpr int32_t kPagesTogether = 4;

// How one model's KV lies in pages: [layer][page, of kPagesTogether][kv head][token][K (head_dim), V (head_dim)]. One layer of a page,
// one head of that layer, and one token of that head are each contiguous. A page's address is the address of its first layer.
// With shared_values, a token is K alone, and its first values are V: latent attention (MLA) stores one row for both.
struct KvFormat {
  KvType type = KvType::f16;
  int32_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  int32_t shared_values = 0;  // > 0: V is the first shared_values values of K. KV policies know no such tokens

  int32_t value_dim() const { return shared_values > 0 ? shared_values : head_dim; }               // of V, so of attention's output
  uint64_t key_bytes() const { return orrery::key_bytes(type, static_cast<uint64_t>(head_dim)); }  // K of one token and head
  uint64_t value_bytes() const {
    return shared_values > 0 ? 0 : orrery::value_bytes(type, static_cast<uint64_t>(head_dim));
  }  // V, if stored apart
  uint64_t token_bytes() const { return key_bytes() + value_bytes(); }
  uint64_t token_values() const { return (shared_values > 0 ? 1 : 2) * static_cast<uint64_t>(head_dim); }
  uint64_t head_bytes() const { return kPageTokens * token_bytes(); }                        // one page of one head
  uint64_t layer_bytes() const { return static_cast<uint64_t>(n_kv_heads) * head_bytes(); }  // of a page
  uint64_t layer_stride() const { return kPagesTogether * layer_bytes(); }                   // from one layer of a page to the next
  uint64_t page_bytes() const { return static_cast<uint64_t>(n_layers) * layer_bytes(); }
  // From a page's address to the end of its last layer. Layers of other pages lie between.
  uint64_t page_span() const { return n_layers > 0 ? static_cast<uint64_t>(n_layers - 1) * layer_stride() + layer_bytes() : 0; }
  // From the start of memory that holds whole units of kPagesTogether pages to page i.
  uint64_t page_offset(uint64_t i) const {
    constexpr uint64_t kTogether = kPagesTogether;
    return i / kTogether * kTogether * page_bytes() + i % kTogether * layer_bytes();
  }
  // From a page's address to the head's first token.
  uint64_t head_offset(int32_t layer, int32_t kv_head) const {
    return static_cast<uint64_t>(layer) * layer_stride() + static_cast<uint64_t>(kv_head) * head_bytes();
  }
  uint64_t head_offset(uint32_t head) const {  // layer * n_kv_heads + KV head
    const auto heads = static_cast<uint32_t>(n_kv_heads);
    return head_offset(static_cast<int32_t>(head / heads), static_cast<int32_t>(head % heads));
  }
};

// How K and V are changed before they are stored, and queries before they attend. With T the normalised Hadamard transform of each head's
// blocks, K is stored as T(K - mean), V as T(V), and a query becomes T(q). T is orthogonal and its own inverse, so q k changes by the same
// number for all keys of a query, which the softmax cancels; the attention's output is T of the true one. Quantized types lose less of
// centred, rotated vectors: no dimension is much larger than the others of its block.
struct KvTransform {
  Ptr<const float> key_means;  // of each KV group in turn (n_layers, n_kv_heads, head_dim); null: K is not centred
  bool rotated = false;        // false: T is the identity
  explicit operator bool() const { return rotated || static_cast<bool>(key_means); }
};
// The width of T's blocks: the largest power of two that divides head_dim.
constexpr int32_t hadamard_block(int32_t head_dim) { return head_dim & -head_dim; }

// One sequence's KV: token p lies in page pages[p / kPageTokens], slot p % kPageTokens.
struct KvView {
  const uint64_t* pages = nullptr;  // (n_pages) device addresses, host memory; valid during the step
  int32_t n_pages = 0;
};

// Layers whose KV has equal shape form a KV group, which has pages of its own. KV policies divide group 0; a step attends to all keys of
// the others, as far as its windows reach.
inline constexpr int32_t kMostKvGroups = 4;

// A layer of KV: its number in its group; -1: a layer without KV.
struct KvLayer {
  int32_t layer = 0, group = 0;
  constexpr KvLayer(int32_t its_layer = 0, int32_t its_group = 0) : layer(its_layer), group(its_group) {}
};

// Tokens of one KV head that move, contiguous on both sides.
struct KvMove {
  uint64_t to = 0, from = 0;  // addresses
  uint32_t n_tokens = 1;
};

// The operation by which a compressed session moves its resident KV.
class KvMoves {
 public:
  // Moves tokens of token_values values each (K and V), and converts them from one type to the other: values are read as floats, and
  // stored as StepOperations::append_kv() stores floats. Equal types are copied. token_values is a multiple of 64 where a type is
  // quantized: its first half is K. Targets overlap neither sources nor each other. The caller may change the list when the call returns.
  virtual void move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) = 0;
  // move_kv() behind all operations so far and behind earlier calls, and perhaps in parallel with later operations. Returns the number of
  // the call; numbers grow, from 1 on. Operations behind join_moves(n) find the tokens of call n and of all calls before it.
  virtual uint64_t move_kv_ahead(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) {
    move_kv(moves, to_type, from_type, token_values);
    return 1;
  }
  virtual void join_moves(uint64_t n) { (void)n; }

 protected:
  ~KvMoves() = default;
};

}  // namespace orrery
