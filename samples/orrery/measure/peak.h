// The peak arithmetic rate of one core: kernels on registers alone, for an instruction set that the machine has.
#pragma once

#include <cstdint>
#include <string>

namespace orrery::peak {

// The kinds of products that prefill is compared with.
enum class Kind {
  floats,        // fused multiply-adds of floats
  bytes,         // products of bytes summed in 32 bits: maddubs, madd, add; one instruction with VNNI
  bytes_16_bit,  // eight products are first summed in 16 bits, as small codes allow; with VNNI as bytes
  bf16,          // products of bf16 summed as floats: "avx512bf16" for F16 and BF16 weights, "amx" for all weights but F32
};

// Whether `path` (an instruction set of the CPU backend) has such a kernel. "plain" has none.
bool known(const std::string& path, Kind kind);

// Runs some thousand operations `times` times. Returns the number of operations (a multiply and an add are two).
double run(const std::string& path, Kind kind, int64_t times);

}  // namespace orrery::peak
