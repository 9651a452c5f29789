// Reads a PNG file's bytes, by stb_image and with the checksums of its chunks, which stb_image skips.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orrery::testing {

struct Image {
  int width = 0, height = 0, channels = 0;
  std::vector<uint8_t> pixels;  // (height, width, 3)
};

// Width 0 where the bytes are no sound PNG.
Image read_png(const std::string& bytes);

}  // namespace orrery::testing
