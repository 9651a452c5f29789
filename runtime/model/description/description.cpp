#include "runtime/model/description/description.h"

#include <algorithm>

namespace orrery::model {

std::vector<int32_t> Description::windows() const {
  std::vector<int32_t> windows;
  for (const LayerShape& layer : layers) windows.push_back(layer.attention.window);
  return windows;
}

int32_t Description::max_ff() const {
  int32_t most = 0;
  for (const LayerShape& layer : layers) most = std::max(most, layer.feed_forward.width);
  return most;
}

bool Description::any_post_norms() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerShape& layer) { return layer.post_norms; });
}

void group_layers(Description* d) {
  d->groups.clear();
  for (int32_t i = 0; i < d->n_layers; ++i) {
    const AttentionShape& a = d->layer(i).attention;
    const auto same = [&](const KvGroup& g) { return g.n_heads == a.n_heads && g.n_kv_heads == a.n_kv_heads && g.head_dim == a.head_dim; };
    auto group = std::find_if(d->groups.begin(), d->groups.end(), same);
    if (group == d->groups.end()) group = d->groups.insert(group, {a.n_heads, a.n_kv_heads, a.head_dim, {}});
    group->layers.push_back(i);
  }
}

uint32_t reach_of_context(const Description& d) {
  const double trained = d.trained_context;
  if (d.rope.scaling == RopeScaling::none) return static_cast<uint32_t>(d.trained_context);
  const double original = d.rope.original_context > 0 ? d.rope.original_context : trained;
  const double reach = std::max(trained, original * static_cast<double>(d.rope.factor));
  return static_cast<uint32_t>(std::min(reach, 4294967295.0));
}

}  // namespace orrery::model
