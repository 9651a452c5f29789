// The instruction sets that this machine can run. Each test asks the processor (CPUID, the auxiliary vector) and whether the system
// saves the registers. Nothing is cached.
#pragma once

namespace orrery::cpu {

bool has_avx2();        // with FMA and F16C
bool has_avx2vnni();    // has_avx2(), and AVX-VNNI
bool has_avx512();      // F, BW, VL, DQ and VNNI
bool has_avx512bf16();  // has_avx512(), with BF16 and VBMI
// Whether products of bf16 on vectors are faster than products of floats. On AMD's processors they take half the time. On an Intel
// Xeon they take twice the time (106 GFLOP/s a core, floats 214: bench_cpu avx512bf16 1 prefill F16).
bool has_quick_bf16();
// has_avx512bf16(), and AMX with int8 and bf16. Asks the system for the tile registers, for the whole process.
bool has_amx();
bool has_neon_dot();  // 64-bit ARM's dot products

}  // namespace orrery::cpu
