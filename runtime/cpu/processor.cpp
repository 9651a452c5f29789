// See processor.h. __builtin_cpu_supports asks CPUID, and XGETBV whether the system saves the wide registers;
// but not every compiler's knows all that is asked here.
#include "runtime/cpu/processor.h"

#ifdef ORRERY_CPU_X86
#include <cpuid.h>
#endif
#ifdef ORRERY_CPU_ARM64
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace orrery::cpu {

#ifdef ORRERY_CPU_X86
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
// Zeros where there is no such leaf.
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}
// Leaf 7 has as many more as it says itself.
Registers features(unsigned subleaf) {
  return subleaf <= cpuid(7, 0).a ? cpuid(7, subleaf) : Registers();
}
bool bit(unsigned word, int i) { return (word >> i & 1) != 0; }

}  // namespace

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && bit(cpuid(1, 0).c, 29);
}

bool has_avx2vnni() { return has_avx2() && bit(features(1).a, 4); }

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#else
bool has_avx2() { return false; }
bool has_avx2vnni() { return false; }
bool has_avx512() { return false; }
#endif

#ifdef ORRERY_CPU_ARM64
bool has_neon_dot() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#else
bool has_neon_dot() { return false; }
#endif

}  // namespace orrery::cpu
