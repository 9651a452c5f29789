// How the experts of a mixture lie in memory, where not all of them lie in the arena. A unit is one expert of one layer: its matrices, one
// after the other, as the backend stores them. Units of a layer have one size.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/backend/experts.h"
#include "runtime/base/checked.h"
#include "runtime/kv/memory/arena.h"

namespace orrery::model {

// The matrices of a layer's experts: down(act(gate x) * up x), each with a bias or without.
struct ExpertMatrices {
  ExpertWeights gate, up;                          // (width, n_embd) each; both in `gate`, or `up` alone, as the family has them
  ExpertWeights down;                              // (n_embd, width)
  Ptr<const float> gate_bias, up_bias, down_bias;  // (n_experts, width) twice, (n_experts, n_embd)
};

struct ExpertUnits {
  struct Layer {
    int32_t layer = 0;  // of the model
    int32_t n_experts = 0;
    uint64_t bytes = 0;        // of a unit, a multiple of the arena's alignment
    uint64_t first_unit = 0;   // units count through all layers
    uint64_t host_offset = 0;  // of the layer's first unit, where all units lie one after the other
  };
  std::vector<Layer> layers;  // those with experts, in their order

  explicit operator bool() const { return !layers.empty(); }
  uint64_t n_units() const { return layers.empty() ? 0 : layers.back().first_unit + static_cast<uint64_t>(layers.back().n_experts); }
  uint64_t bytes() const {
    return layers.empty() ? 0 : layers.back().host_offset + static_cast<uint64_t>(layers.back().n_experts) * layers.back().bytes;
  }
  uint64_t slot_bytes() const { return largest(&Layer::bytes); }  // room for any unit
  // The fewest units that a cache has room for: while the units of a layer are in use, those of another one arrive.
  uint64_t least_slots() const { return 2 * static_cast<uint64_t>(largest(&Layer::n_experts)); }
  // Unit u of the order in which units are given a place on the device: the first expert of each layer, then the second of each, ...
  template <class F>
  void for_first(uint64_t n, const F& f) const {  // f(index of the layer in `layers`, expert), n times
    for (int32_t e = 0; n > 0 && e < largest(&Layer::n_experts); ++e)
      for (size_t l = 0; n > 0 && l < layers.size(); ++l)
        if (e < layers[l].n_experts) f(l, e), --n;
  }
  void add(Layer layer) {
    layer.bytes = align_up(layer.bytes, kv::kArenaAlignment);
    layer.first_unit = n_units(), layer.host_offset = bytes();
    layers.push_back(layer);
  }

 private:
  template <class T>
  T largest(T Layer::*of) const {
    T most = 0;
    for (const Layer& layer : layers) most = std::max(most, layer.*of);
    return most;
  }
};

}  // namespace orrery::model
