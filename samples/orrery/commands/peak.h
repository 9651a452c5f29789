// What one core's arithmetic gives: kernels over registers alone, for an instruction path that the machine
// has.
#pragma once

#include <cstdint>
#include <string>

namespace orrery::peak {

// The rates that prefill's products are held against.
enum class Kind {
  floats,        // fused multiply-adds of floats
  bytes,         // products of bytes summed in 32 bits at once: maddubs, madd, add; with VNNI one instruction
  bytes_16_bit,  // summed in 16 bits eight times before, as small codes allow; with VNNI the same as bytes
  bf16,          // products of bf16 summed as floats: of "avx512bf16", for F16 and BF16, and of "amx", for all weights but F32
};

// Whether there is such a kernel for `path` (of the CPU backend): for "plain" there is none.
bool known(const std::string& path, Kind kind);

// Does some thousand operations `times` over, and says how many (a multiply and an add are two).
double run(const std::string& path, Kind kind, int64_t times);

}  // namespace orrery::peak
