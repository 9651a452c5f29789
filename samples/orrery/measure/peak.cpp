// Enough chains of sums that no instruction waits for the previous one. An empty asm statement tells the compiler
// that an operand has changed, so the compiler computes every step. The statement costs nothing.
#include "measure/peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace orrery::peak {
namespace {

constexpr int kSteps = 64;   // steps of each chain per repetition of run()
constexpr int kChains = 10;  // with their operands and a product they fit into sixteen registers

[[gnu::target("avx2,fma")]] double floats_avx2(int64_t times) {
  __m256 sums[kChains], a = _mm256_set1_ps(1.0f), b = a;
#pragma GCC unroll 16
  for (__m256& s : sums) {
    s = a;
    asm volatile("" : "+x"(s));
  }
  for (int64_t i = 0; i < times * kSteps; ++i)
#pragma GCC unroll 16
    for (__m256& s : sums) s = _mm256_fmadd_ps(a, b, s);
#pragma GCC unroll 16
  for (__m256& s : sums) asm volatile("" ::"x"(s));
  return 2.0 * 8 * kChains * kSteps * static_cast<double>(times);
}

[[gnu::target("avx2")]] double bytes_avx2(int64_t times) {
  __m256i sums[kChains], codes = _mm256_set1_epi8(3), activations = _mm256_set1_epi8(-5);
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (__m256i& s : sums) s = ones;
  for (int64_t i = 0; i < times * kSteps; ++i)
#pragma GCC unroll 16
    for (__m256i& s : sums) {
      asm volatile("" : "+x"(activations));
      s = _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, activations), ones));
    }
#pragma GCC unroll 16
  for (__m256i& s : sums) asm volatile("" ::"x"(s));
  return 2.0 * 32 * kChains * kSteps * static_cast<double>(times);
}

[[gnu::target("avx2")]] double bytes_16_bit_avx2(int64_t times) {
  __m256i sums[kChains], codes = _mm256_set1_epi8(3), activations = _mm256_set1_epi8(-5);
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (__m256i& s : sums) s = ones;
  for (int64_t i = 0; i < times * kSteps / 8; ++i)
#pragma GCC unroll 16
    for (__m256i& s : sums) {
      asm volatile("" : "+x"(activations));
      __m256i small = _mm256_maddubs_epi16(codes, activations);
#pragma GCC unroll 8
      for (int k = 1; k < 8; ++k) {
        asm volatile("" : "+x"(activations));
        small = _mm256_add_epi16(small, _mm256_maddubs_epi16(codes, activations));
      }
      s = _mm256_add_epi32(s, _mm256_madd_epi16(small, ones));
    }
#pragma GCC unroll 16
  for (__m256i& s : sums) asm volatile("" ::"x"(s));
  return 2.0 * 32 * kChains * kSteps * static_cast<double>(times);
}

[[gnu::target("avx2,avxvnni")]] double bytes_avx2vnni(int64_t times) {
  __m256i sums[kChains], codes = _mm256_set1_epi8(3), activations = _mm256_set1_epi8(-5);
#pragma GCC unroll 16
  for (__m256i& s : sums) {
    s = codes;
    asm volatile("" : "+x"(s));
  }
  for (int64_t i = 0; i < times * kSteps; ++i)
#pragma GCC unroll 16
    for (__m256i& s : sums) s = _mm256_dpbusd_avx_epi32(s, codes, activations);
#pragma GCC unroll 16
  for (__m256i& s : sums) asm volatile("" ::"x"(s));
  return 2.0 * 32 * kChains * kSteps * static_cast<double>(times);
}

[[gnu::target("avx512f")]] double floats_avx512(int64_t times) {
  __m512 sums[kChains], a = _mm512_set1_ps(1.0f), b = a;
#pragma GCC unroll 16
  for (__m512& s : sums) {
    s = a;
    asm volatile("" : "+v"(s));
  }
  for (int64_t i = 0; i < times * kSteps; ++i)
#pragma GCC unroll 16
    for (__m512& s : sums) s = _mm512_fmadd_ps(a, b, s);
#pragma GCC unroll 16
  for (__m512& s : sums) asm volatile("" ::"v"(s));
  return 2.0 * 16 * kChains * kSteps * static_cast<double>(times);
}

[[gnu::target("avx512f,avx512vnni")]] double bytes_avx512(int64_t times) {
  __m512i sums[kChains], codes = _mm512_set1_epi32(0x03030303), activations = _mm512_set1_epi32(0x05FA05FA);
#pragma GCC unroll 16
  for (__m512i& s : sums) {
    s = codes;
    asm volatile("" : "+v"(s));
  }
  for (int64_t i = 0; i < times * kSteps; ++i)
#pragma GCC unroll 16
    for (__m512i& s : sums) s = _mm512_dpbusd_epi32(s, codes, activations);
#pragma GCC unroll 16
  for (__m512i& s : sums) asm volatile("" ::"v"(s));
  return 2.0 * 64 * kChains * kSteps * static_cast<double>(times);
}

[[gnu::target("avx512f,avx512bf16")]] double bf16_avx512(int64_t times) {
  __m512 sums[kChains];
  __m512i numbers = _mm512_set1_epi32(0x3F813F83);
#pragma GCC unroll 16
  for (__m512& s : sums) {
    s = _mm512_setzero_ps();
    asm volatile("" : "+v"(s));
  }
  for (int64_t i = 0; i < times * kSteps; ++i)
#pragma GCC unroll 16
    for (__m512& s : sums) s = _mm512_dpbf16_ps(s, __builtin_bit_cast(__m512bh, numbers), __builtin_bit_cast(__m512bh, numbers));
#pragma GCC unroll 16
  for (__m512& s : sums) asm volatile("" ::"v"(s));
  return 2.0 * 32 * kChains * kSteps * static_cast<double>(times);
}

#ifndef _WIN32  // GCC 12's tile loads take a 32-bit long there, which no address fits
// Multiplies whole tiles into six accumulator tiles in turn. A product takes 16 cycles; its sums are ready after 52.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;
constexpr double kTileProducts = 16 * 16 * 32;

[[gnu::target("amx-tile,amx-bf16")]] double bf16_amx(int64_t times) {
  // Numbers from 1 to 2. Products with zeros take less power, so they would run faster than real products.
  alignas(64) uint16_t numbers[16][32];
  for (uint32_t i = 0; i < 16 * 32; ++i) numbers[i / 32][i % 32] = static_cast<uint16_t>(0x3F80 | (i * 2654435761u >> 25));
  asm volatile("" : "+m"(numbers));
  _tile_loadconfig(&kTileConfig);
  _tile_loadd(6, numbers, 64);
  _tile_loadd(7, numbers, 64);
  for (int64_t i = 0; i < times * kSteps / 8; ++i) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_release();
  return 2.0 * kTileProducts * 6 * kSteps / 8 * static_cast<double>(times);
}
#endif

using Kernel = double (*)(int64_t times);
constexpr struct {
  const char* path;
  Kind kind;
  Kernel run;
} kKernels[] = {
    {"avx2", Kind::floats, floats_avx2},
    {"avx2", Kind::bytes, bytes_avx2},
    {"avx2", Kind::bytes_16_bit, bytes_16_bit_avx2},
    {"avx2vnni", Kind::floats, floats_avx2},
    {"avx2vnni", Kind::bytes, bytes_avx2vnni},
    {"avx2vnni", Kind::bytes_16_bit, bytes_avx2vnni},
    {"avx512", Kind::floats, floats_avx512},
    {"avx512", Kind::bytes, bytes_avx512},
    {"avx512", Kind::bytes_16_bit, bytes_avx512},
    {"avx512bf16", Kind::floats, floats_avx512},
    {"avx512bf16", Kind::bytes, bytes_avx512},
    {"avx512bf16", Kind::bytes_16_bit, bytes_avx512},
    {"avx512bf16", Kind::bf16, bf16_avx512},
    {"amx", Kind::floats, floats_avx512},
#ifndef _WIN32
    {"amx", Kind::bf16, bf16_amx},
#endif
};
Kernel find(const std::string& path, Kind kind) {
  for (const auto& kernel : kKernels)
    if (path == kernel.path && kind == kernel.kind) return kernel.run;
  return nullptr;
}

}  // namespace

bool known(const std::string& path, Kind kind) { return find(path, kind) != nullptr; }

double run(const std::string& path, Kind kind, int64_t times) {
  const Kernel kernel = find(path, kind);
  return kernel ? kernel(times) : 0;
}

}  // namespace orrery::peak

#else

namespace orrery::peak {
bool known(const std::string&, Kind) { return false; }
double run(const std::string&, Kind, int64_t) { return 0; }
}  // namespace orrery::peak

#endif
