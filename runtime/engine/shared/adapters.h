// Adapters of a model, and the list of them that a session has. The KV of a session's tokens belongs to its list: to the adapters' contents,
// their order and their scales (AdapterSet::hash).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/model/load/load_adapter.h"

namespace orrery::engine {

class LanguageModel;
struct ModelSource;

// An open adapter of a model. Any number of sessions use it.
class LoadedAdapter {
 public:
  // Reads the file and copies it to the arena: nothing uses the source afterwards.
  static Result<std::shared_ptr<const LoadedAdapter>> open(std::shared_ptr<LanguageModel> model, const ModelSource& source);

  const LanguageModel& model() const { return *model_; }
  const model::Adapter& weights() const { return *adapter_; }
  uint64_t bytes() const { return adapter_->region.bytes(); }

 private:
  LoadedAdapter(std::shared_ptr<LanguageModel> model, std::unique_ptr<model::Adapter> adapter)
      : model_(std::move(model)), adapter_(std::move(adapter)) {}
  std::shared_ptr<LanguageModel> model_;  // its arena holds the adapter
  std::unique_ptr<model::Adapter> adapter_;
};

// One entry of the options' list: an open adapter; in a plan also the file of one.
struct AdapterChoice {
  std::shared_ptr<const LoadedAdapter> adapter;
  std::shared_ptr<const ModelSource> source;
  float scale = 1.0f;
};

inline constexpr size_t kMostAdapters = 64;

class AdapterSet {
 public:
  // Null: no choice has an effect. invalid_argument: the list is longer than kMostAdapters, or a scale is not finite.
  static Result<std::shared_ptr<const AdapterSet>> make(Span<const AdapterChoice> choices);

  Span<const AdapterChoice> choices() const { return choices_; }
  Span<const model::AdapterUse> uses() const { return uses_; }
  const std::array<uint8_t, 16>& hash() const { return hash_; }
  bool has_sources() const;

 private:
  AdapterSet() = default;
  std::vector<AdapterChoice> choices_;  // with a scale other than 0
  std::vector<model::AdapterUse> uses_;
  std::array<uint8_t, 16> hash_ = {};
};
using Adapters = std::shared_ptr<const AdapterSet>;  // null: none

inline std::array<uint8_t, 16> hash_of(const Adapters& adapters) { return adapters ? adapters->hash() : std::array<uint8_t, 16>(); }
inline Span<const model::AdapterUse> uses_of(const Adapters& adapters) {
  return adapters ? adapters->uses() : Span<const model::AdapterUse>();
}
// Refuses what is not open, and adapters of another model.
Status check_adapters_of(const Adapters& adapters, const LanguageModel& model);

}  // namespace orrery::engine
