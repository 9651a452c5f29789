#include "runtime/model/store/host_side.h"

namespace orrery::model {

namespace {

// What the processor's backend computes needs neither a context nor heads' states.
StepLimits limits_on_host(StepLimits limits) {
  limits.max_context = 1, limits.max_top_keys = 0, limits.staging_bytes = 0, limits.max_head_state = 0;
  return limits;
}

}  // namespace

uint64_t HostSide::scratch_bytes(const Device& host, const StepLimits& limits) { return host.scratch_bytes(limits_on_host(limits)); }

void HostSide::use(std::byte* scratch, const StepLimits& limits) {
  scratch_ = scratch, limits_ = limits_on_host(limits);
  step_rows_.assign(static_cast<size_t>(limits.max_rows), Row{});
}

// Another model may have used the same backend.
void HostSide::begin_step(Phase phase, int32_t n_rows) {
  (void)host_.set_scratch({reinterpret_cast<uintptr_t>(scratch_)}, limits_);  // host memory: nothing is taken, nothing can fail
  Step step;
  step.phase = phase, step.rows = {step_rows_.data(), static_cast<size_t>(n_rows)};
  host_.begin_steps({&step, 1});
}

}  // namespace orrery::model
