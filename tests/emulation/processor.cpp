// Replaces runtime/cpu/paths/processor.cpp in programs that emulate instruction sets: every x86-64 instruction set can run.
#include "runtime/cpu/paths/processor.h"

namespace orrery::cpu {

bool has_avx2() { return true; }
bool has_avx2vnni() { return true; }
bool has_avx512() { return true; }
bool has_avx512bf16() { return true; }
bool has_quick_bf16() { return true; }
bool has_amx() { return true; }
bool has_neon_dot() { return false; }

}  // namespace orrery::cpu
