// Pixels to the bytes of a PNG file, by stb_image_write.
#pragma once

#include <cstdint>
#include <string>

namespace orrery::tool {

// pixels: (height, width, 3). Returns false if memory ran out.
bool encode_png(const uint8_t* pixels, int width, int height, std::string* bytes);

}  // namespace orrery::tool
