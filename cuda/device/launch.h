// Launches of kernels by name. The host's compiler reads a kernel's declaration: its name finds the compiled kernel in the archive, and its
// parameters are checked against the arguments.
#pragma once

#include <cstddef>
#include <tuple>
#include <typeinfo>
#include <utility>

#include "cuda/device/queue.h"
#if defined(ORRERY_EMULATED_KERNELS)
#include "emulated_kernels.h"
#endif

namespace orrery::cuda {

// What a thread block may have of shared memory, static and dynamic: 99 KiB on sm_86, sm_89 and sm_120; other GPUs have more.
inline constexpr int kMostSharedBytes = 99 << 10;
inline constexpr size_t kSharedBytesUnasked = size_t{48} << 10;  // dynamic; a kernel must ask for more
inline constexpr unsigned kMostGridYZ = 65535;

struct Dim3 {
  unsigned x, y, z;
  constexpr explicit Dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct Geometry {  // grid.y and grid.z: at most kMostGridYZ
  Dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  // The kernel may start before the kernels ahead of it end (programmatic dependent launch: sm_90 and newer, in a graph): each of its
  // threads calls wait_for_earlier_kernels() (ptx.h) before it reads what kernels write, and before it writes.
  bool early = false;
};

template <auto* kKernel>
struct KernelTag {};
// A name of the kernel, constant data, which readable_name() understands. It takes no more than the kernel's declaration.
template <auto* kKernel>
const char* kernel_name() {
  return typeid(KernelTag<kKernel>).name();
}

// `parameters`: the addresses of the kernel's arguments.
void launch_named(Queue& queue, const Geometry& geometry, const char* name, void** parameters);

template <auto* kKernel, class... P, class... A>
void launch_as(void (*)(P...), Queue& queue, const Geometry& geometry, A&&... args) {
#if defined(__CUDACC__)
  (void)kKernel;  // so that nvcc compiles it
#elif defined(ORRERY_EMULATED_KERNELS)
  emulated::registered<kKernel, P...>();
#endif
  std::tuple<P...> values(static_cast<P>(std::forward<A>(args))...);
  std::apply(
      [&](auto&... value) {
        void* parameters[sizeof...(P) + 1] = {&value..., nullptr};
        launch_named(queue, geometry, kernel_name<kKernel>(), parameters);
      },
      values);
}

// Launches a kernel: launch<add_kernel>(queue, {grid, block}, x, y, n). A kernel that the archive does not have is the queue's failure.
template <auto* kKernel, class... A>
void launch(Queue& queue, const Geometry& geometry, A&&... args) {
  launch_as<kKernel>(static_cast<decltype(kKernel)>(nullptr), queue, geometry, std::forward<A>(args)...);
}

}  // namespace orrery::cuda
