// A kernel in the form in which it runs: instructions whose operands are numbers. decode.cpp makes them of a module's text; the tables of
// the instruction files (integer.cpp, floating.cpp, ...) say what each mnemonic does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace orrery::ptx {

inline constexpr unsigned kLanes = 32;
inline constexpr uint32_t kAll = 0xFFFFFFFFu;

class Warp;
struct Instruction;
using Execute = void (*)(Warp& warp, const Instruction& instruction, uint32_t lanes);

// What an instruction counts as (counters.h).
enum class Class : uint8_t { integer, single, twice, half, convert, move, memory, control, exchange, product, kCount };

enum class Flow : uint8_t {
  plain,
  branch,  // to `target`
  exit,
  lanes_named,  // waits for the lanes that operand `mask_at` names
  whole_warp,   // .aligned: all lanes that have not ended
  barrier,      // of the block; .aligned
};

// What an instruction of Class::memory does.
enum class Traffic : uint8_t {
  none,
  load,  // ldmatrix, too
  store,
  atomic,
  copy,    // cp.async
  commit,  // of the copies of a group
  wait,    // for groups
  fence,   // a barrier of the warp
};

enum class Space : uint8_t { generic, global, shared, local, parameter };

inline constexpr int32_t kTrue = -1, kFalse = -2;  // operands that are constant predicates

struct Instruction {
  Execute execute = nullptr;
  Flow flow = Flow::plain;
  Class counted = Class::move;
  bool guard_negated = false;
  int16_t guard = -1;         // the predicate that lets a lane execute; -1: none
  int32_t operand[14] = {};   // Warp::lanes() and Warp::predicate() read these numbers
  int64_t offset = 0;         // that is added to the address of a load or store
  int64_t from_offset = 0;    // of cp.async: to the address that is read
  uint32_t target = 0;        // of a branch
  uint32_t line = 0;          // in the module's text
  uint32_t used_bytes = ~0u;  // of a load: the bytes that the kernel uses, as the compiler says
  uint8_t n_values = 1;       // of a load or store
  uint8_t value_bytes = 0;
  Space space = Space::generic;
  bool address_64 = false;
  bool read_only = false;  // ld.global.nc
  uint8_t mask_at = 0;     // which operand names lanes; or an immediate's value
  Traffic traffic = Traffic::none;
  const char* form = nullptr;  // Meaning::operands; null where kAddress and its like say what the operands are
};

// Text that the executor refuses; says where and why.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Parameter {
  std::string name;
  uint32_t offset, bytes;
};

struct Kernel {
  std::string file, name;
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0;
  std::vector<Instruction> code;
  std::vector<std::byte> constants;  // 32 equal lanes for each immediate operand
  uint32_t register_bytes = 0, n_predicates = 0, local_bytes = 0;
  uint32_t static_shared_bytes = 0;  // as ptxas lays the arrays out
  uint32_t placed_shared_bytes = 0;  // as the executor does: no array is better aligned than it asks for
  uint32_t dynamic_shared_at = 0;    // where the dynamic array begins
  uint32_t max_threads = 1024;
  unsigned granule = 4;  // bytes of the narrowest store: races are looked for in pieces of this size
};

// One text of PTX. Its kernels are decoded when they are asked for.
class Module {
 public:
  // `file` is for messages. Throws Refused.
  Module(std::string file, std::string text);
  ~Module();
  Module(Module&&) noexcept;
  std::vector<std::string> entries() const;
  const Kernel& kernel(const std::string& entry);  // throws Refused
  // Variables of the module in device memory: address and bytes.
  std::vector<std::pair<const void*, size_t>> variables() const;

 private:
  struct Text;
  std::unique_ptr<Text> text_;
  std::map<std::string, Kernel> kernels_;
};

// What a mnemonic means. `operands`: destinations = sources, a letter each. h, w, q: a register of 16, 32, 64 bits, or among the sources a
// constant; p: a predicate.
struct Meaning {
  std::string operands;
  Class counted;
  Execute execute;
  Flow flow = Flow::plain;
  uint8_t mask_at = 0;
  Traffic traffic = Traffic::none;
};
using Table = std::unordered_map<std::string, Meaning>;
const Table& meanings();
void add_integer(Table* table);
void add_floating(Table* table);
void add_conversions(Table* table);
void add_moves(Table* table);
void add_exchanges(Table* table);
void add_products(Table* table);

// Operands of a load, store or atomic: the registers of values from 0 on, then these.
inline constexpr unsigned kAddress = 4, kAdded = 5, kFromAddress = 6, kFromBytes = 7;
// Fills in the fields of a load, store, atomic, ldmatrix or cp.async that its mnemonic's parts say. `register_bits` is the width of the
// values' registers. False if the parts are not known.
bool memory_instruction(const std::vector<std::string>& parts, unsigned register_bits, Instruction* instruction);

}  // namespace orrery::ptx
