#include "runtime/engine/state/state_kind.h"

#include <algorithm>
#include <vector>

namespace orrery::engine {

Status RecurrentFloats::read(Backend* backend, uint32_t, std::byte* to) const {
  backend->download(to, {data().address}, bytes_);
  return ok_status();
}

Status RecurrentFloats::write(Backend* backend, uint32_t, const std::byte* from) {
  backend->upload(data(), from, bytes_);
  return ok_status();
}

Status RecurrentFloats::clear(Backend* backend) {
  constexpr uint64_t kAtOnce = uint64_t{1} << 20;
  const std::vector<std::byte> zeros(std::min(kAtOnce, bytes_));
  for (uint64_t done = 0; done < bytes_; done += kAtOnce) backend->upload(data() + done, zeros.data(), std::min(kAtOnce, bytes_ - done));
  return ok_status();
}

void RecurrentFloats::copy_from(Backend* backend, const StateKind& other) {
  backend->copy(data(), {static_cast<const RecurrentFloats&>(other).data().address}, bytes_);
}

}  // namespace orrery::engine
