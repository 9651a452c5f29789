// Each kernel that launch.h launches registers itself by its name, before main(): so the emulated driver finds the functions that stand for
// compiled kernels.
#pragma once

#include <cstddef>
#include <utility>

#include "tests/emulation/cuda/device.h"

namespace orrery::cuda {
template <auto* kKernel>
const char* kernel_name();
}  // namespace orrery::cuda

namespace orrery::emulated {

template <auto* kKernel, class... P, size_t... I>
void call(void** parameters, std::index_sequence<I...>) {
  (void)parameters;
  kKernel(*static_cast<P*>(parameters[I])...);
}
template <auto* kKernel, class... P>
struct Registered {
  static void body(void* parameters) { call<kKernel, P...>(static_cast<void**>(parameters), std::index_sequence_for<P...>()); }
  static inline const bool done = add_kernel(cuda::kernel_name<kKernel>(), {sizeof(P)...}, body);
};
template <auto* kKernel, class... P>
bool registered() {
  return Registered<kKernel, P...>::done;
}

}  // namespace orrery::emulated
