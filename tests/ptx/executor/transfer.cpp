// Loads, stores, atomics, ldmatrix and cp.async. access.cpp checks the addresses; this file moves the values.
#include <type_traits>

#include "tests/ptx/executor/lanes.h"

namespace orrery::ptx {

namespace {

void addresses(const Warp& w, const Instruction& i, int32_t operand, int64_t offset, bool wide, uint64_t* out) {
  if (wide) {
    const uint64_t* a = w.lanes<const uint64_t>(operand);
    for (unsigned l = 0; l < kLanes; ++l) out[l] = a[l] + static_cast<uint64_t>(offset);
  } else {
    const uint32_t* a = w.lanes<const uint32_t>(operand);
    for (unsigned l = 0; l < kLanes; ++l) out[l] = static_cast<uint32_t>(a[l] + static_cast<uint32_t>(offset));
  }
  (void)i;
}

// T: in memory; D: the register.
template <class T, class D>
void load(Warp& w, const Instruction& i, uint32_t m) {
  uint64_t address[kLanes];
  std::byte* at[kLanes];
  addresses(w, i, i.operand[kAddress], i.offset, i.address_64, address);
  Warp::Access how;
  how.read_only = i.read_only;
  w.access(i, i.space, m, address, i.n_values * static_cast<unsigned>(sizeof(T)), how, at);
  for (unsigned k = 0; k < i.n_values; ++k) {
    D* d = w.lanes<D>(i.operand[k]);
    for (uint32_t rest = m; rest; rest &= rest - 1) {
      const unsigned l = static_cast<unsigned>(__builtin_ctz(rest));
      T value;
      std::memcpy(&value, at[l] + k * sizeof(T), sizeof(T));
      d[l] = static_cast<D>(value);
    }
  }
}
template <class T, class D>
void store(Warp& w, const Instruction& i, uint32_t m) {
  uint64_t address[kLanes];
  std::byte* at[kLanes];
  addresses(w, i, i.operand[kAddress], i.offset, i.address_64, address);
  Warp::Access how;
  how.write = true;
  w.access(i, i.space, m, address, i.n_values * static_cast<unsigned>(sizeof(T)), how, at);
  for (unsigned k = 0; k < i.n_values; ++k) {
    const D* d = w.lanes<const D>(i.operand[k]);
    for (uint32_t rest = m; rest; rest &= rest - 1) {
      const unsigned l = static_cast<unsigned>(__builtin_ctz(rest));
      const T value = static_cast<T>(d[l]);
      std::memcpy(at[l] + k * sizeof(T), &value, sizeof(T));
    }
  }
}
template <class T>
void atomic_add(Warp& w, const Instruction& i, uint32_t m) {
  uint64_t address[kLanes];
  std::byte* at[kLanes];
  addresses(w, i, i.operand[kAddress], i.offset, i.address_64, address);
  Warp::Access how;
  how.write = how.atomic = true;
  w.access(i, i.space, m, address, sizeof(T), how, at);
  T* d = w.lanes<T>(i.operand[0]);
  const T* added = w.lanes<const T>(i.operand[kAdded]);
  for (uint32_t rest = m; rest; rest &= rest - 1) {
    const unsigned l = static_cast<unsigned>(__builtin_ctz(rest));
    T before;
    std::memcpy(&before, at[l], sizeof(T));
    const T after = static_cast<T>(before + added[l]);
    std::memcpy(at[l], &after, sizeof(T));
    d[l] = before;
  }
}

// ldmatrix: lane 8 m + r has the address of row r of matrix m, 8 rows of 8 halves. Lane l receives, of each matrix, halves 2 (l % 4) and
// the next of row l / 4; transposed, of the matrix with rows and columns exchanged.
template <unsigned kMatrices, bool kTransposed>
void load_matrices(Warp& w, const Instruction& i, uint32_t) {
  uint64_t address[kLanes];
  std::byte* at[kLanes];
  addresses(w, i, i.operand[kAddress], i.offset, i.address_64, address);
  Warp::Access how;
  how.every_lane = true;
  w.access(i, Space::shared, kMatrices == 4 ? kAll : (1u << 8 * kMatrices) - 1, address, 16, how, at);
  for (unsigned k = 0; k < kMatrices; ++k) {
    uint16_t matrix[8][8];
    for (unsigned r = 0; r < 8; ++r) std::memcpy(matrix[r], at[8 * k + r], 16);
    uint32_t* d = w.lanes<uint32_t>(i.operand[k]);
    for (unsigned l = 0; l < kLanes; ++l) {
      const unsigned row = l / 4, column = l % 4 * 2;
      const uint32_t low = kTransposed ? matrix[column][row] : matrix[row][column];
      const uint32_t high = kTransposed ? matrix[column + 1][row] : matrix[row][column + 1];
      d[l] = low | high << 16;
    }
  }
}

// cp.async.cg.shared.global [to], [from], 16, bytes: copies `bytes` bytes, and fills up to 16 with zeros. Nothing arrives before its wait.
void copy_async(Warp& w, const Instruction& i, uint32_t m) {
  uint64_t to[kLanes], from[kLanes];
  std::byte* at[kLanes];
  addresses(w, i, i.operand[kAddress], i.offset, i.address_64, to);
  addresses(w, i, i.operand[kFromAddress], i.from_offset, true, from);
  const uint32_t* bytes = w.lanes<const uint32_t>(i.operand[kFromBytes]);
  uint32_t reads = 0;
  for (unsigned l = 0; l < kLanes; ++l)
    if (m >> l & 1) {
      if (bytes[l] > 16) w.fail(l, "copies " + std::to_string(bytes[l]) + " bytes of 16");
      reads |= static_cast<uint32_t>(bytes[l] != 0) << l;
    }
  Warp::Access source;
  source.copies = true;
  source.read_bytes = bytes;
  w.access(i, Space::global, reads, from, 16, source, at);
  Warp::Access how;
  how.write = how.asynchronous = true;
  w.access(i, Space::shared, m, to, 16, how, at);
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!(m >> l & 1)) continue;
    std::memset(at[l], 0xFF, 16);
    w.copies.push_back({static_cast<uint8_t>(l), static_cast<uint8_t>(bytes[l]), w.open_group[l], static_cast<uint32_t>(to[l]), from[l]});
  }
}

template <class T>
Execute load_of(unsigned register_bits) {
  if (register_bits < 8 * sizeof(T)) return nullptr;
  if constexpr (sizeof(T) <= 2)
    if (register_bits == 16) return load<T, uint16_t>;
  if constexpr (sizeof(T) <= 4)
    if (register_bits == 32) return load<T, uint32_t>;
  return register_bits == 64 ? load<T, uint64_t> : nullptr;
}
template <class T>
Execute store_of(unsigned register_bits) {
  if constexpr (sizeof(T) <= 2)
    if (register_bits == 16) return store<T, uint16_t>;
  if constexpr (sizeof(T) <= 4)
    if (register_bits == 32) return store<T, uint32_t>;
  return register_bits == 64 ? store<T, uint64_t> : nullptr;
}

}  // namespace

bool memory_instruction(const std::vector<std::string>& parts, unsigned register_bits, Instruction* i) {
  size_t at = 1;
  const auto next = [&](const char* word) { return at < parts.size() && parts[at] == word && ++at; };
  const std::string& name = parts[0];
  i->counted = Class::memory;
  if (name == "ldmatrix") {
    if (!next("sync") || !next("aligned") || !next("m8n8")) return false;
    i->n_values = next("x4") ? 4 : next("x2") ? 2 : 0;
    const bool transposed = next("trans");
    if (i->n_values == 0 || !next("shared") || !next("b16") || at != parts.size() || register_bits != 32) return false;
    i->flow = Flow::whole_warp;
    i->space = Space::shared;
    i->traffic = Traffic::load;
    i->execute = i->n_values == 4 ? (transposed ? load_matrices<4, true> : load_matrices<4, false>)
                                  : (transposed ? load_matrices<2, true> : load_matrices<2, false>);
    return true;
  }
  if (name == "cp") {
    i->execute = copy_async;
    i->value_bytes = 16;
    i->traffic = Traffic::copy;
    return next("async") && next("cg") && next("shared") && next("global") && at == parts.size();
  }
  if (name != "ld" && name != "st" && name != "atom") return false;
  i->space = next("global")   ? Space::global
             : next("shared") ? Space::shared
             : next("local")  ? Space::local
             : next("param")  ? Space::parameter
                              : Space::generic;
  i->traffic = name == "ld" ? Traffic::load : name == "st" ? Traffic::store : Traffic::atomic;
  if (name == "atom") {
    if (!next("add") || at + 1 != parts.size()) return false;
    const std::string& type = parts[at];
    if ((type == "u32" || type == "s32") && register_bits == 32) i->execute = atomic_add<uint32_t>, i->value_bytes = 4;
    if (type == "u64" && register_bits == 64) i->execute = atomic_add<uint64_t>, i->value_bytes = 8;
    return i->execute != nullptr;
  }
  const bool loads = name == "ld";
  if (loads && i->space == Space::global && next("nc")) i->read_only = true;
  if (loads && next("L1::no_allocate")) {
  } else if (i->space == Space::global && (next("cs") || next("cg"))) {
  }
  i->n_values = next("v4") ? 4 : next("v2") ? 2 : 1;
  if (at + 1 != parts.size()) return false;
  const std::string& type = parts[at];
  const unsigned bits = type.size() < 2 ? 0 : static_cast<unsigned>(std::stoul("0" + type.substr(1)));
  const char kind = type[0];
  if ((kind == 'f' && bits < 32) || (kind != 'f' && kind != 'b' && kind != 'u' && kind != 's')) return false;
  const bool sign = kind == 's';
  i->value_bytes = static_cast<uint8_t>(bits / 8);
  switch (bits) {
    case 8:
      i->execute = !loads ? store_of<uint8_t>(register_bits) : sign ? load_of<int8_t>(register_bits) : load_of<uint8_t>(register_bits);
      break;
    case 16:
      i->execute = !loads ? store_of<uint16_t>(register_bits) : sign ? load_of<int16_t>(register_bits) : load_of<uint16_t>(register_bits);
      break;
    case 32:
      i->execute = !loads ? store_of<uint32_t>(register_bits) : sign ? load_of<int32_t>(register_bits) : load_of<uint32_t>(register_bits);
      break;
    case 64: i->execute = !loads ? store_of<uint64_t>(register_bits) : load_of<uint64_t>(register_bits); break;
    default: return false;
  }
  return i->execute != nullptr && i->n_values * bits <= 128;
}

}  // namespace orrery::ptx
