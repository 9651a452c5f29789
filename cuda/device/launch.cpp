// See launch.h.
#include "cuda/device/launch.h"

namespace orrery::cuda {

void launch_named(Queue& queue, const Geometry& g, const char* name, void** parameters) {
  if (queue.failed() || g.grid.x == 0 || g.grid.y == 0 || g.grid.z == 0) return;
  const Driver& driver = queue.driver();
  const Kernel found = queue.gpu().kernel(name);
  const Function kernel = found.function;
  if (!queue.check(kernel ? DriverError::none : DriverError::not_found, "looking for a kernel in the archive")) return;
  if (g.shared_bytes > kSharedBytesUnasked &&
      !queue.check(driver.set_function_attribute(kernel, FunctionAttribute::dynamic_shared_bytes, static_cast<int>(g.shared_bytes)),
                   "asking for shared memory"))
    return;
  if (g.early && queue.overlaps() && found.can_start_early) {
    LaunchAttribute early = {LaunchAttribute::kStartsEarly, 0, {1}};
    const LaunchConfig config = {g.grid.x,       g.grid.y, g.grid.z, g.block.x, g.block.y, g.block.z, static_cast<unsigned>(g.shared_bytes),
                                 queue.stream(), &early,   1};
    queue.check(driver.launch_with(&config, kernel, parameters, nullptr), "launching a kernel");
    return;
  }
  queue.check(driver.launch(kernel, g.grid.x, g.grid.y, g.grid.z, g.block.x, g.block.y, g.block.z, static_cast<unsigned>(g.shared_bytes),
                            queue.stream(), parameters, nullptr),
              "launching a kernel");
}

}  // namespace orrery::cuda
