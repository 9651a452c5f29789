#include "runtime/model/load/load_adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "runtime/base/checked.h"
#include "runtime/gguf/dequantize.h"

namespace orrery::model {

namespace {

constexpr uint64_t kAlignment = 64;
constexpr std::string_view kA = ".lora_a", kB = ".lora_b";

// A pair of the file, and the model's matrix.
struct Pair {
  const gguf::Tensor *a = nullptr, *b = nullptr;
  const gguf::Tensor* tensor = nullptr;
  const Weight* matrix = nullptr;  // null: the model is not loaded
};
struct Contents {
  std::vector<Pair> pairs;  // in the order of their names
  double alpha = 0;         // 0: the file has none
  int64_t rank = 0;         // the largest
  uint64_t bytes = 0;
};

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() > end.size() && text.substr(text.size() - end.size()) == end;
}

uint64_t float_bytes(uint64_t n) { return align_up(n * sizeof(float), kAlignment); }
uint64_t tiled_elements(const gguf::Tensor& b) { return align_up(b.dims[1], static_cast<uint64_t>(kAdapterTile)) * b.dims[0]; }

Status about_tensor(Status status, const gguf::Tensor& t) {
  status.detail().offset = t.offset;
  return status;
}

Status check_key(const gguf::File& file, const char* key, std::string_view expected, Code code, const char* why) {
  ORRERY_ASSIGN(const std::string_view found, file.get_string(key, ""));
  if (found == expected) return ok_status();
  return error(code, "%s: key '%s' is '%s', expected '%.*s': %s", file.path().c_str(), key, gguf::printable(found).c_str(),
               static_cast<int>(expected.size()), expected.data(), why);
}

// Keys whose meaning would be lost are refused. The prompt's beginning and the task's name are for people.
Status check_keys(const gguf::File& file, const char* family, double* alpha) {
  ORRERY_TRY(check_key(file, "general.type", "adapter", Code::bad_model, "the file is no adapter"));
  ORRERY_TRY(check_key(file, "adapter.type", "lora", Code::unsupported, "adapters of other kinds are not run"));
  ORRERY_TRY(check_key(file, "general.architecture", family, Code::bad_model, "the adapter is for another model"));
  constexpr std::string_view kKnown[] = {"adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix"};
  for (uint64_t i = 0; i < file.n_keys(); ++i) {
    const std::string_view key = file.key(i);
    if (key.substr(0, 8) != "adapter." || std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown)) continue;
    return error(Code::unsupported, "%s: key '%s': adapters that need it are not run", file.path().c_str(), gguf::printable(key).c_str());
  }
  ORRERY_ASSIGN(*alpha, file.get_f64("adapter.lora.alpha", 0));
  if (std::isfinite(static_cast<float>(*alpha))) return ok_status();
  return error(Code::bad_model, "%s: key 'adapter.lora.alpha' is %g, expected a number", file.path().c_str(), *alpha);
}

Status check_type(const gguf::File& file, const gguf::Tensor& t) {
  constexpr TensorType kTypes[] = {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0};
  if (std::find(std::begin(kTypes), std::end(kTypes), t.type) != std::end(kTypes)) return ok_status();
  const TypeTraits* const traits = type_traits(t.type);
  return about_tensor(error(Code::unsupported_quantization, "%s: tensor '%s' is of type %s, expected F32, F16, BF16 or Q8_0",
                            file.path().c_str(), gguf::printable(t.name).c_str(), traits ? traits->name : "unknown"),
                      t);
}

Status check_shapes(const gguf::File& file, const std::string& name, const Pair& pair, int64_t most_rank) {
  const gguf::Tensor &a = *pair.a, &b = *pair.b, &w = *pair.tensor;
  using ull = unsigned long long;
  for (const gguf::Tensor* t : {&a, &b}) {
    ORRERY_TRY(check_type(file, *t));
    if (t->dims[2] != 1 || t->dims[3] != 1)
      return about_tensor(error(Code::bad_model, "%s: tensor '%s' has %u dimensions, expected a matrix", file.path().c_str(),
                                gguf::printable(t->name).c_str(), t->n_dims),
                          *t);
  }
  if (a.dims[0] != w.dims[0])
    return about_tensor(
        error(Code::bad_model, "%s: tensor '%s%s' has shape (%llu, %llu), expected (rank, %llu) by the model's tensor", file.path().c_str(),
              name.c_str(), kA.data(), static_cast<ull>(a.dims[1]), static_cast<ull>(a.dims[0]), static_cast<ull>(w.dims[0])),
        a);
  if (b.dims[1] != w.dims[1] || b.dims[0] != a.dims[1])
    return about_tensor(
        error(Code::bad_model, "%s: tensor '%s%s' has shape (%llu, %llu), expected (%llu, %llu) by the model's tensor and %s",
              file.path().c_str(), name.c_str(), kB.data(), static_cast<ull>(b.dims[1]), static_cast<ull>(b.dims[0]),
              static_cast<ull>(w.dims[1]), static_cast<ull>(a.dims[1]), kA.data()),
        b);
  if (a.dims[1] > static_cast<uint64_t>(most_rank))
    return about_tensor(error(Code::bad_model, "%s: tensor '%s%s' has a rank of %llu, expected at most %lld", file.path().c_str(),
                              name.c_str(), kA.data(), static_cast<ull>(a.dims[1]), static_cast<long long>(most_rank)),
                        a);
  return ok_status();
}

// Finds the pairs, and checks all of the file.
Result<Contents> read(const gguf::File& file, const gguf::File& model, const Description& d, Span<const NamedMatrix> matrices) {
  Contents out;
  ORRERY_TRY(check_keys(file, d.family, &out.alpha));
  std::map<std::string, Pair> pairs;
  for (const gguf::Tensor& t : file.tensors()) {
    const bool is_a = ends_with(t.name, kA);
    if (!is_a && !ends_with(t.name, kB))
      return about_tensor(error(Code::unsupported, "%s: tensor '%s' is no matrix of a pair: expected names that end in .lora_a and .lora_b",
                                file.path().c_str(), gguf::printable(t.name).c_str()),
                          t);
    const std::string name(t.name.substr(0, t.name.size() - kA.size()));
    (is_a ? pairs[name].a : pairs[name].b) = &t;
  }
  if (pairs.empty()) return error(Code::bad_model, "%s: the adapter has no tensors", file.path().c_str());
  for (auto& [name, pair] : pairs) {
    const gguf::Tensor& any = *(pair.a ? pair.a : pair.b);
    const std::string shown = gguf::printable(name);
    if (!pair.a || !pair.b)
      return about_tensor(error(Code::bad_model, "%s: tensor '%s%s' is missing: the file has '%s%s'", file.path().c_str(), shown.c_str(),
                                (pair.a ? kB : kA).data(), shown.c_str(), (pair.a ? kA : kB).data()),
                          any);
    pair.tensor = model.find_tensor(name);
    if (!pair.tensor)
      return about_tensor(error(Code::bad_model, "%s: tensor '%s%s' changes '%s', which the model has not", file.path().c_str(),
                                shown.c_str(), kA.data(), shown.c_str()),
                          any);
    const gguf::Tensor* const tensor = pair.tensor;
    const auto found = std::find_if(matrices.begin(), matrices.end(), [tensor](const NamedMatrix& m) { return m.tensor == tensor; });
    if (found == matrices.end())
      return about_tensor(error(Code::unsupported,
                                "%s: tensor '%s%s' changes '%s', which adapters cannot change here: expected a matrix of attention, of a "
                                "feed-forward block, of a recurrent layer or of the output",
                                file.path().c_str(), shown.c_str(), kA.data(), shown.c_str()),
                          any);
    pair.matrix = found->weight;
    ORRERY_TRY(check_shapes(file, shown, pair, std::max(d.max_in(), int64_t{d.n_embd})));
    out.rank = std::max(out.rank, static_cast<int64_t>(pair.a->dims[1]));
    out.bytes += float_bytes(pair.a->n_elements) + float_bytes(tiled_elements(*pair.b));
    out.pairs.push_back(pair);
  }
  out.bytes += static_cast<uint64_t>(Adapter::kRows * Adapter::kPairs * out.rank) * sizeof(float);
  return out;
}

std::vector<float> values_of(const gguf::Tensor& t) {
  std::vector<float> values(t.n_elements);
  gguf::dequantize_row(t.type, t.data, values.data(), t.n_elements);
  return values;
}

// B times `factor` in tiles: (tiles, rank, kAdapterTile).
std::vector<float> tiles_of(const gguf::Tensor& t, float factor) {
  const std::vector<float> values = values_of(t);
  const uint64_t rank = t.dims[0], n_out = t.dims[1], tile = kAdapterTile;
  std::vector<float> tiles(tiled_elements(t));
  for (uint64_t o = 0; o < n_out; ++o)
    for (uint64_t k = 0; k < rank; ++k) tiles[(o / tile * rank + k) * tile + o % tile] = factor * values[o * rank + k];
  return tiles;
}

Status place(const std::vector<float>& values, Turns* turns, Ptr<std::byte> at) {
  const Turn turn = turns->take();
  turn.backend().upload(at, values.data(), values.size() * sizeof(float));
  return turn.backend().synchronize();
}

}  // namespace

Result<uint64_t> adapter_bytes(const gguf::File& adapter, const gguf::File& model, const Description& description) {
  std::vector<NamedMatrix> matrices;
  ORRERY_TRY(name_matrices(model, description, &matrices));
  ORRERY_ASSIGN(const Contents contents, read(adapter, model, description, matrices));
  return align_up(contents.bytes, kv::kArenaAlignment);
}

Result<std::unique_ptr<Adapter>> load_adapter(const gguf::File& file, const Model& model, Turns* turns, kv::Arena* arena) {
  ORRERY_TRY(turns->device().check_adapters());
  ORRERY_ASSIGN(const Contents contents, read(file, *model.file, model.description, model.matrices));
  for (const Pair& pair : contents.pairs)
    if (!pair.matrix)
      return error(Code::unsupported, "%s: the adapter changes '%s', of which the processor computes a part: expected host_computes 2",
                   file.path().c_str(), gguf::printable(pair.tensor->name).c_str());
  for (const Pair& pair : contents.pairs) {
    const auto cols = static_cast<int64_t>(pair.a->dims[0]), rows = static_cast<int64_t>(pair.a->dims[1]);
    const uint64_t bytes = turns->device().weight_bytes(TensorType::f32, rows, cols);
    if (bytes != 0 && bytes != pair.a->n_elements * sizeof(float))
      return error(Code::unsupported,
                   "%s: the adapter changes '%s', which has %lld columns: this device stores rows of float32 with gaps then",
                   file.path().c_str(), gguf::printable(pair.tensor->name).c_str(), static_cast<long long>(cols));
  }
  auto adapter = std::make_unique<Adapter>();
  ORRERY_TRY(file.full_fingerprint({}, adapter->fingerprint.data()));
  ORRERY_ASSIGN(adapter->region, kv::ArenaRegion::take(arena, contents.bytes, "the adapter"));
  Ptr<std::byte> next = adapter->region.data();
  for (const Pair& pair : contents.pairs) {
    const double rank = static_cast<double>(pair.a->dims[1]);
    const float factor = contents.alpha == 0 ? 1.0f : static_cast<float>(contents.alpha / rank);
    const Ptr<std::byte> a = next, b = a + float_bytes(pair.a->n_elements);
    ORRERY_TRY(place(values_of(*pair.a), turns, a));
    ORRERY_TRY(place(tiles_of(*pair.b, factor), turns, b));
    next = b + float_bytes(tiled_elements(*pair.b));
    LowRankPair placed;
    placed.a = {TensorType::f32, static_cast<int64_t>(pair.a->dims[1]), static_cast<int64_t>(pair.a->dims[0]), a};
    placed.b = {b.address};
    placed.n_out = static_cast<int64_t>(pair.b->dims[1]);
    adapter->pairs.emplace(pair.matrix, placed);
  }
  adapter->rank = contents.rank;
  adapter->low = {next.address};
  return adapter;
}

}  // namespace orrery::model
