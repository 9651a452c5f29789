// What families and blocks read a description with.
#pragma once

#include "runtime/base/status.h"
#include "runtime/model/blocks/keys.h"
#include "runtime/model/description/description.h"

namespace orrery::model {

inline constexpr uint64_t kMaxLayers = 1024, kMaxWidth = 1 << 20, kMaxVocab = 1 << 24, kMaxContext = 1 << 27;

struct Reading {
  Keys& keys;                // of the file's architecture
  const RopeOverride& rope;  // the caller's
  Description& d;            // what has been read so far
};

// What every family has: layers, width, context, and the epsilon of its norms.
// norm_eps: null, or the key of the epsilon in files without attention.layer_norm_rms_epsilon.
Status read_sizes(Reading& in, const char* norm_eps);

}  // namespace orrery::model
