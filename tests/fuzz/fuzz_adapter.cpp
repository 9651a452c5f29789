// LoRA adapters from strangers, on a live model: refused, or fit to work with.
//
// Input: an adapter's file.
#include <cmath>

#include "tests/fuzz/checks.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace orrery;
using namespace orrery::fuzz;
using namespace orrery::testing;

struct World {
  TempDir dir;
  Runtime runtime = make_runtime();
  Model model;
  Session session;
  uint64_t arena = 0;

  World() {
    TinyModel spec;
    spec.n_layers = 1;
    model = open_model(runtime, dir.write("tiny.gguf", spec.build()));
    session = open_session(model, 64);
    arena = arena_used(runtime);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World* const world = new World;
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  CheckedError error;
  orrery_adapter* adapter = nullptr;
  const orrery_status status =
      error.check(orrery_adapter_open(world->model.get(), memory_source(bytes.data(), bytes.size()), &adapter, error.get()));
  require((status == ORRERY_OK) == (adapter != nullptr), "an adapter, or an error");
  require(status != ORRERY_INTERNAL, "no bug of ours");
  if (status == ORRERY_OK) {
    const orrery_adapter_use use = {adapter, nullptr, 0.5f, 0};
    require(error.check(orrery_session_set_adapters(world->session.get(), &use, 1, error.get())) == ORRERY_OK, "an open adapter is used");
    const int32_t tokens[] = {70, 71, 72};
    require(error.check(orrery_session_evaluate(world->session.get(), tokens, 3, nullptr, error.get())) == ORRERY_OK,
            "tokens are computed");
    require(error.check(orrery_session_set_adapters(world->session.get(), nullptr, 0, error.get())) == ORRERY_OK, "and without it");
    orrery_adapter_free(adapter);
  }
  require(arena_used(world->runtime) == world->arena, "an adapter's memory is given back");
  return 0;
}
