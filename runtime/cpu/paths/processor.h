// What this machine can run, each by its own word: the processor's (CPUID, the auxiliary vector), and that the
// system saves the registers.  Nothing is remembered.
#pragma once

namespace orrery::cpu {

bool has_avx2();      // with FMA and F16C
bool has_avx2vnni();  // has_avx2(), and AVX-VNNI
bool has_avx512();    // F, BW, VL, DQ and VNNI
bool has_avx512bf16();  // has_avx512(), BF16 and VBMI
// Products of bf16 on vectors take half the time that floats' do, as AMD's processors have it; an Intel Xeon's take twice the time
// (106 GFLOP/s a core beside 214: bench_cpu avx512bf16 1 prefill F16).
bool has_quick_bf16();
// has_avx512bf16(), and AMX with bytes and bf16. Asks the system for the registers, for this whole process.
bool has_amx();
bool has_neon_dot();  // 64-bit ARM's dot products

}  // namespace orrery::cpu
