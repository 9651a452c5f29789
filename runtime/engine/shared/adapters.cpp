#include "runtime/engine/shared/adapters.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/hash.h"
#include "runtime/engine/shared/language_model.h"

namespace orrery::engine {

Result<std::shared_ptr<const LoadedAdapter>> LoadedAdapter::open(std::shared_ptr<LanguageModel> model, const ModelSource& source) {
  Runtime& runtime = model->runtime();
  ORRERY_TRY(runtime.device().check_adapters());
  gguf::OpenOptions open;
  open.load = gguf::Load::read;
  ORRERY_ASSIGN(const gguf::File file, source.open(open));
  ORRERY_ASSIGN(auto adapter, model::load_adapter(file, model->weights(), &runtime.turns(), &runtime.arena()));
  runtime.log(LogLevel::info, "%s: an adapter of %zu matrices, rank %lld, %llu bytes", file.path().c_str(), adapter->pairs.size(),
              static_cast<long long>(adapter->rank), static_cast<unsigned long long>(adapter->region.bytes()));
  return std::shared_ptr<const LoadedAdapter>(new LoadedAdapter(std::move(model), std::move(adapter)));
}

Result<std::shared_ptr<const AdapterSet>> AdapterSet::make(Span<const AdapterChoice> choices) {
  if (choices.size() > kMostAdapters)
    return option_error(Code::invalid_argument, "adapters", "%zu adapters were given, expected at most %zu", choices.size(), kMostAdapters);
  std::shared_ptr<AdapterSet> set(new AdapterSet());
  Hash128 hash;
  for (size_t i = 0; i < choices.size(); ++i) {
    const AdapterChoice& choice = choices[i];
    if (!std::isfinite(choice.scale))
      return option_error(Code::invalid_argument, "adapters", "the scale of adapter %zu is %g, expected a finite number", i,
                          static_cast<double>(choice.scale));
    if (choice.scale == 0.0f) continue;
    set->choices_.push_back(choice);
    if (!choice.adapter) continue;
    const model::Adapter& weights = choice.adapter->weights();
    set->uses_.push_back({&weights, choice.scale});
    hash.update(weights.fingerprint.data(), weights.fingerprint.size());
    hash.update(&choice.scale, sizeof choice.scale);
  }
  if (set->choices_.empty()) return std::shared_ptr<const AdapterSet>();
  hash.digest(set->hash_.data());
  return std::shared_ptr<const AdapterSet>(std::move(set));
}

bool AdapterSet::has_sources() const {
  return std::any_of(choices_.begin(), choices_.end(), [](const AdapterChoice& choice) { return !choice.adapter; });
}

Status check_adapters_of(const Adapters& adapters, const LanguageModel& model) {
  if (!adapters) return ok_status();
  if (adapters->has_sources())
    return option_error(Code::invalid_argument, "adapters", "an adapter is a source: a plan takes it, a session takes open adapters");
  for (const AdapterChoice& choice : adapters->choices())
    if (&choice.adapter->model() != &model)
      return option_error(Code::invalid_argument, "adapters", "an adapter was opened for another model");
  return ok_status();
}

}  // namespace orrery::engine
