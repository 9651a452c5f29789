// The shapes of published models: the headers of their files, without the files. `orrery plan` and `orrery inspect` read them, and
// benchmarks write random weights behind them.
//
// Sizes are those of the models' published configurations. A type of weights stands for the mixture that llama.cpp's converter makes of it
// (Q4_K_M: Q4_K, and Q6_K for some matrices); rows that are no whole blocks of 256 take Q5_0 or Q8_0 in their place. Norms, routers and
// other small tensors are in F32.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shapes/gguf_header.h"

namespace orrery::tool {

// "qwen3.8-27b", ...
std::vector<std::string> shape_names();
// "Q4_K_M" (the default), ...
std::vector<std::string> shape_types();

// NAME or NAME:TYPE. Nothing: there is no such name or type. vocabulary: the header has tokens of no meaning, too.
std::optional<GgufHeader> shape_header(std::string_view shape, bool vocabulary = false);

}  // namespace orrery::tool
