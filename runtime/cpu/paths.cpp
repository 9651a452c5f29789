// Choosing an instruction path.  A new one is one line in kPaths: its table and what the machine must have.
#include "runtime/cpu/paths.h"

#include <string>

#ifdef ORRERY_CPU_X86
#include <cpuid.h>
#endif
#ifdef ORRERY_CPU_ARM64
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "runtime/cpu/cpu_backend.h"

namespace orrery::cpu {

namespace {

struct Path {
  const Kernels* kernels;
  bool (*available)();
};

#ifdef ORRERY_CPU_X86
// Not every compiler's __builtin_cpu_supports knows F16C: leaf 1, ECX bit 29.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
#endif

// __builtin_cpu_supports asks CPUID, and XGETBV whether the system saves the wide registers.
constexpr Path kPaths[] = {
#ifdef ORRERY_CPU_X86
    {&kAvx512Kernels,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vnni");
     }},
    {&kAvx2Kernels,
     [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }},
#endif
#ifdef ORRERY_CPU_ARM64
    {&kNeonKernels, [] { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }},
#endif
    {&kPlainKernels, [] { return true; }},
};
constexpr size_t kPathCount = sizeof kPaths / sizeof kPaths[0];

}  // namespace

Span<const char* const> available_paths() {
  struct Names {
    const char* names[kPathCount];
    size_t count = 0;
    Names() {
      for (const Path& p : kPaths)
        if (p.available()) names[count++] = p.kernels->name;
    }
  };
  static const Names available;  // a fact about the machine
  return {available.names, available.count};
}

Result<const Kernels*> find_kernels(std::string_view path) {
  std::string known;
  for (const Path& p : kPaths) {
    if (path == "auto" && p.available()) return p.kernels;
    if (path == p.kernels->name) {
      if (p.available()) return p.kernels;
      return error(Code::unsupported, "this machine cannot run the instruction path '%s'", p.kernels->name);
    }
    known += known.empty() ? "" : ", ";
    known += p.kernels->name;
  }
  return error(Code::invalid_argument, "there is no instruction path '%.*s': auto, %s",
               static_cast<int>(path.size()), path.data(), known.c_str());
}

}  // namespace orrery::cpu
