// See processor.h. __builtin_cpu_supports asks CPUID, and XGETBV whether the system saves the wide registers. Not every compiler's
// version knows all features that are needed here, so some are read directly.
#include "runtime/cpu/paths/processor.h"

#include "runtime/os/os.h"

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
// Zeros if the leaf does not exist.
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}
// Subleaves of leaf 7. Its own subleaf 0 says how many exist.
Registers features(unsigned subleaf) { return subleaf <= cpuid(7, 0).a ? cpuid(7, subleaf) : Registers(); }
bool bit(unsigned word, int i) { return (word >> i & 1) != 0; }

// XCR0: the parts of a thread's state that the system saves. 0 unless the system announces that it saves any (OSXSAVE).
uint64_t saved_state() {
  if (!bit(cpuid(1, 0).c, 27)) return 0;
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

}  // namespace

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && bit(cpuid(1, 0).c, 29); }

bool has_avx2vnni() { return has_avx2() && bit(features(1).a, 4); }

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

// Includes permutations of bytes (VBMI), which the first processors with bf16 lacked.
bool has_avx512bf16() { return has_avx512() && bit(features(1).a, 5) && bit(features(0).c, 1); }

bool has_quick_bf16() {
  const Registers vendor = cpuid(0, 0);  // the vendor's name, in b, d and c
  return vendor.b == signature_AMD_ebx && vendor.d == signature_AMD_edx && vendor.c == signature_AMD_ecx;
}

bool has_amx() {
  const unsigned d = features(0).d;
  const bool bf16 = bit(d, 22), tile = bit(d, 24), int8 = bit(d, 25);
  constexpr uint64_t kTileState = uint64_t{3} << 17;  // the tiles' shapes and data
  return has_avx512bf16() && bf16 && tile && int8 && (saved_state() & kTileState) == kTileState && os::request_tile_registers();
}
#else
bool has_avx2() { return false; }
bool has_avx2vnni() { return false; }
bool has_avx512() { return false; }
bool has_avx512bf16() { return false; }
bool has_quick_bf16() { return false; }
bool has_amx() { return false; }
#endif

#ifdef ORRERY_CPU_ARM64
bool has_neon_dot() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#else
bool has_neon_dot() { return false; }
#endif

}  // namespace orrery::cpu
