// Compiles stb_image_write, here alone, and gives the one function in use a name. write_file() replaces its file
// output.
#include "charts/canvas_png.h"

// Warnings in third-party code are off.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

namespace orrery::tool {

bool encode_png(const uint8_t* pixels, int width, int height, std::string* bytes) {
  const auto append = [](void* to, void* data, int size) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(data), static_cast<size_t>(size));
  };
  bytes->clear();
  return stbi_write_png_to_func(append, bytes, width, height, 3, pixels, width * 3) != 0;
}

}  // namespace orrery::tool
