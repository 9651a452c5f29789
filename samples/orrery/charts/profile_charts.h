// The pictures of `orrery profile`, as PNG files, from the JSON of the profile and of the steps. The library writes
// both; orrery.h describes them.
//   roles.png       the role of every head, and the pivot of every satellite
//   stability.png   heads by stability, and by their overlap with the most similar head
//   similarity.png  heads against heads, layer by layer
//   layers.png      layers against layers: how much of a head's set its best match in the other layer has
//   drift.png       the share of the prompt's sets that remains, decode step by decode step, role by role
//   drift-layers.png  the same share, layer by layer
#pragma once

#include <string>
#include <vector>

#include "json_file.h"

namespace orrery::tool {

// Writes every picture that has data into the folder: an imported profile has roles alone. `name` names the model or
// the file. Returns the paths.
std::vector<std::string> write_profile_charts(const std::string& folder, const std::string& name, const Json& profile, const Json* steps);

}  // namespace orrery::tool
