// See png_reader.h.
#include "tests/tool/png_reader.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-function"
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_PNG
#define STBI_NO_STDIO
#include <stb/stb_image.h>
#pragma GCC diagnostic pop

namespace orrery::testing {
namespace {

uint32_t big_endian(const unsigned char* p) { return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3]; }

uint32_t crc32(const unsigned char* p, size_t n) {  // bit by bit, from the PNG specification's annex D
  uint32_t crc = 0xFFFFFFFF;
  for (size_t i = 0; i < n; ++i) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? 0xEDB88320 ^ crc >> 1 : crc >> 1;
  }
  return ~crc;
}

// Chunks from the first byte after the signature to the end of IEND, each with the right checksum.
bool chunks_are_sound(const unsigned char* p, size_t n) {
  for (size_t at = 8; at + 12 <= n;) {
    const size_t length = big_endian(p + at);
    if (length > n - at - 12 || crc32(p + at + 4, length + 4) != big_endian(p + at + 8 + length)) return false;
    const bool end = std::string(reinterpret_cast<const char*>(p + at + 4), 4) == "IEND";
    at += 12 + length;
    if (end) return at == n;
  }
  return false;
}

}  // namespace

Image read_png(const std::string& bytes) {
  Image image;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  if (!chunks_are_sound(data, bytes.size())) return image;
  stbi_uc* pixels = stbi_load_from_memory(data, static_cast<int>(bytes.size()), &image.width, &image.height, &image.channels, 3);
  if (!pixels) return {};
  image.pixels.assign(pixels, pixels + size_t(image.width) * size_t(image.height) * 3);
  stbi_image_free(pixels);
  return image;
}

}  // namespace orrery::testing
