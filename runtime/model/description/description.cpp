#include "runtime/model/description/description.h"

#include <algorithm>
#include <utility>

namespace orrery::model {

uint64_t LayerShape::state_floats() const {
  switch (mixer) {
    case Mixer::delta_net: return delta_net.state_floats();
    case Mixer::mamba2: return mamba2.state_floats();
    case Mixer::short_conv: return short_conv.state_floats();
    case Mixer::attention:
    case Mixer::none: break;
  }
  return 0;
}

uint64_t LayerShape::head_state_floats() const {
  switch (mixer) {
    case Mixer::delta_net: return static_cast<uint64_t>(delta_net.key_dim) * static_cast<uint64_t>(delta_net.value_dim);
    case Mixer::mamba2: return static_cast<uint64_t>(mamba2.state_dim) * static_cast<uint64_t>(mamba2.head_dim);
    case Mixer::short_conv:
    case Mixer::attention:
    case Mixer::none: break;
  }
  return 0;
}

uint64_t LayerShape::guessed_floats() const {
  switch (mixer) {
    case Mixer::delta_net: return static_cast<uint64_t>(delta_net.guessed_floats());
    case Mixer::mamba2: return static_cast<uint64_t>(mamba2.guessed_floats());
    case Mixer::short_conv: return static_cast<uint64_t>(short_conv.guessed_floats());
    case Mixer::attention:
    case Mixer::none: break;
  }
  return 0;
}

int64_t Description::max_ff() const {
  int64_t most = n_per_layer;
  for (const LayerShape& layer : layers)
    most = std::max<int64_t>({most, layer.feed_forward.width, layer.experts.used_width(), layer.experts.shared_width});
  return most;
}

ExpertsShape Description::experts() const {
  ExpertsShape most;
  for (const LayerShape& layer : layers) {
    const ExpertsShape& its = layer.experts;
    most.router.n_experts = std::max(most.router.n_experts, its.router.n_experts);
    most.router.n_used = std::max(most.router.n_used, its.router.n_used);
    most.width = std::max(most.width, its.width);
  }
  return most;
}

int64_t Description::mixer_floats() const {
  int64_t most = 0;
  for (const LayerShape& layer : layers) {
    const auto floats = [&]() -> int64_t {
      const AttentionShape& a = layer.attention;
      const DeltaNetShape& net = layer.delta_net;
      const Mamba2Shape& mamba2 = layer.mamba2;
      const LatentShape& latent = layer.latent;
      switch (layer.mixer) {
        case Mixer::attention:
          return latent       ? int64_t{latent.q_rank} + int64_t{a.n_heads} * std::max(latent.query_dim(), latent.value_dim)
                 : a.gated    ? 3 * int64_t{a.q_dim()}
                 : a.own_gate ? int64_t{a.q_dim()}
                              : 0;
        case Mixer::delta_net: return 2 * int64_t{net.channels()} + 2 * int64_t{net.values()} + 2 * int64_t{net.n_value_heads};
        case Mixer::mamba2: return int64_t{mamba2.projected()} + mamba2.channels() + mamba2.inner();
        case Mixer::short_conv: return 5 * int64_t{layer.short_conv.n_channels};
        case Mixer::none: return 0;
      }
      return 0;
    };
    most = std::max(most, floats());
  }
  return most;
}

int64_t Description::max_in() const {
  int64_t most = std::max<int64_t>({n_embd, reads_hidden ? 2 * int64_t{n_embd} : 0, max_q_dim(), n_per_layer});
  for (const LayerShape& layer : layers) {
    most = std::max<int64_t>({most, layer.feed_forward.width, layer.experts.width, layer.experts.shared_width});
    if (const LatentShape& latent = layer.latent) {
      constexpr int64_t kPadded = 256;  // each head's input is quantized by itself
      const int64_t widest = std::max(latent.nope, latent.rank);
      most = std::max<int64_t>({most, latent.q_rank, layer.attention.n_heads * ((widest + kPadded - 1) / kPadded * kPadded),
                                int64_t{layer.attention.n_heads} * latent.value_dim});
    }
    if (layer.mixer == Mixer::delta_net) most = std::max<int64_t>(most, layer.delta_net.values());
    if (layer.mixer == Mixer::mamba2) most = std::max<int64_t>(most, layer.mamba2.inner());
  }
  return most;
}

int32_t Description::max_q_dim() const {
  int32_t most = 0;
  for (const KvGroup& group : groups) most = std::max(most, group.q_dim());
  return most;
}

bool Description::shares_kv() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerShape& layer) { return layer.mixer == Mixer::attention && layer.attention.kv_of >= 0; });
}

bool Description::shares_values() const {
  return std::any_of(groups.begin(), groups.end(), [](const KvGroup& group) { return group.shared_values > 0; });
}

bool Description::any_post_norms() const {
  if (n_positions > 0 || n_token_types > 0) return true;  // their sum takes the same buffer
  return std::any_of(layers.begin(), layers.end(), [](const LayerShape& layer) { return layer.post_norms; });
}

void group_layers(Description* d) {
  constexpr uint64_t kAligned = 16;  // floats
  d->groups.clear();
  d->kv_layers.assign(d->layers.size(), KvLayer(-1));
  d->states.assign(d->layers.size(), {});
  d->state_floats = d->guessed_floats = 0;
  const auto aligned = [](uint64_t floats) { return (floats + kAligned - 1) / kAligned * kAligned; };
  for (int32_t i = 0; i < d->n_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    d->states[at] = {d->state_floats, d->guessed_floats};
    d->state_floats += aligned(d->layer(i).state_floats());
    d->guessed_floats += aligned(kMostGuessedRows * d->layer(i).guessed_floats());
    if (d->layer(i).mixer != Mixer::attention || d->layer(i).attention.kv_of >= 0) continue;
    const AttentionShape& a = d->layer(i).attention;
    const auto same = [&](const KvGroup& g) {
      return g.n_heads == a.n_heads && g.n_kv_heads == a.n_kv_heads && g.head_dim == a.head_dim && g.shared_values == a.shared_values &&
             g.scale == a.scale && g.window == a.window;
    };
    auto group = std::find_if(d->groups.begin(), d->groups.end(), same);
    if (group == d->groups.end())
      group = d->groups.insert(group, {a.n_heads, a.n_kv_heads, a.head_dim, a.scale, a.window, {}, {}, 0, a.shared_values});
    group->layers.push_back(i);
    group->windows.push_back(a.window);
  }
  std::stable_partition(d->groups.begin(), d->groups.end(), [](const KvGroup& g) { return g.window == 0; });
  uint64_t first_key = 0;
  for (size_t g = 0; g < d->groups.size(); ++g) {
    KvGroup& group = d->groups[g];
    group.first_key = std::exchange(first_key, first_key + group.key_values());
    for (int32_t l = 0; l < group.n_layers(); ++l)
      d->kv_layers[static_cast<size_t>(group.layers[static_cast<size_t>(l)])] = {l, static_cast<int32_t>(g)};
  }
  for (size_t i = 0; i < d->layers.size(); ++i)
    if (const LayerShape& layer = d->layers[i]; layer.mixer == Mixer::attention && layer.attention.kv_of >= 0)
      d->kv_layers[i] = d->kv_layers[static_cast<size_t>(layer.attention.kv_of)];
}

Description describe_head(const Description& d) {
  Description head;
  head.family = d.family, head.name = d.name;
  head.n_layers = 1, head.n_embd = d.n_embd, head.n_vocab = d.n_vocab;
  head.trained_context = d.trained_context;
  head.norm_eps = d.norm_eps;
  head.embedding_scale = d.embedding_scale;
  head.output_norm = d.output_norm;
  head.logit_scale = d.logit_scale, head.logit_cap = d.logit_cap;
  head.ropes = d.ropes;
  head.layers = {d.guessing_layer};
  head.first_block = d.n_layers;
  head.reads_hidden = true;
  group_layers(&head);
  return head;
}

uint32_t reach_of_context(const Description& d) {
  const double trained = d.trained_context;
  if (d.rope().scaling == RopeScaling::none) return static_cast<uint32_t>(d.trained_context);
  const double original = d.rope().original_context > 0 ? d.rope().original_context : trained;
  const double reach = std::max(trained, original * static_cast<double>(d.rope().factor));
  return static_cast<uint32_t>(std::min(reach, 4294967295.0));
}

}  // namespace orrery::model
