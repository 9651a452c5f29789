// Chooses an instruction set. kPaths has a line for each: its table, and the test whether the machine has the instructions.
#include "runtime/cpu/paths/paths.h"

#include <string>

#include "runtime/cpu/paths/processor.h"

namespace orrery::cpu {

namespace {

bool always() { return true; }

struct Path {
  const Kernels* kernels;
  bool (*available)();
  bool (*worthwhile)() = always;
};

// "auto" takes the first one that is available and worthwhile.
constexpr Path kPaths[] = {
#ifdef ORRERY_CPU_X86
#ifdef ORRERY_CPU_AMX
    {&kAmxKernels, has_amx},
#endif
#ifndef ORRERY_CPU_AVX2_ONLY
    {&kAvx512Bf16Kernels, has_avx512bf16, has_quick_bf16},
    {&kAvx512Kernels, has_avx512},
    {&kAvx2VnniKernels, has_avx2vnni},
#endif
    {&kAvx2Kernels, has_avx2},
#endif
#ifdef ORRERY_CPU_ARM64
    {&kNeonKernels, has_neon_dot},
#endif
    {&kPlainKernels, always},
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
  static const Names available;  // a fact about the machine, so it may be static
  return {available.names, available.count};
}

Result<const Kernels*> find_kernels(std::string_view path) {
  std::string known;
  for (const Path& p : kPaths) {
    if (path == "auto" && p.available() && p.worthwhile()) return p.kernels;
    if (path == p.kernels->name) {
      if (p.available()) return p.kernels;
      return option_error(Code::unsupported, "cpu_path", "this machine cannot run the instruction set '%s'", p.kernels->name);
    }
    known += known.empty() ? "" : ", ";
    known += p.kernels->name;
  }
  return option_error(Code::invalid_argument, "cpu_path", "there is no instruction set '%.*s': auto, %s", static_cast<int>(path.size()),
                      path.data(), known.c_str());
}

}  // namespace orrery::cpu
