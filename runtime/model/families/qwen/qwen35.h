// What Qwen3.5's families share: of four layers, three are gated delta nets; the fourth has gated attention, whose RoPE turns a part of
// each head. Blocks behind the last layer guess tokens (MTP): the model is run without them, and the first one is a head of its own
// (blocks/guessing_head.h).
#pragma once

#include "runtime/model/blocks/recurrent/delta_net.h"
#include "runtime/model/blocks/reading.h"

namespace orrery::model::qwen35 {

// The number of blocks to skip. Comes before the keys that files have for each block; trim() ends the list of layers.
Status read_skipped(Reading& in);
void trim(Reading& in);
// Which layers are recurrent, and both mixers.
Status read_mixers(Reading& in, const delta_net::Parts& parts);

}  // namespace orrery::model::qwen35
