// The pictures of `orrery profile`, as PNG files: of the profile's JSON and of the steps' (orrery.h says what is in
// them), which the library has written.
//   roles.png       the role of every head, and who follows whom
//   stability.png   heads by stability, and by how much they have in common with their most similar head
//   similarity.png  layer by layer, heads against heads
//   layers.png      layers against layers: how much of a head's set its best match there has
//   drift.png       what is left of the prompt's sets, decode step by step, role by role
//   drift-layers.png  the same, layer by layer
#pragma once

#include <string>
#include <vector>

#include "json_file.h"

namespace orrery::tool {

// Into the folder, as many as there are data for: an imported profile has roles alone. `name` is of the model, or the
// file. Gives the paths.
std::vector<std::string> write_profile_charts(const std::string& folder, const std::string& name, const Json& profile,
                                              const Json* steps);

}  // namespace orrery::tool
