// AMX's tiles in software: a thread's eight tile registers, and the instructions that the kernels use, by Intel's definitions. An
// instruction that the processor would refuse (a tile that is not configured, shapes that do not fit) throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace emulated {

struct Tile {
  int rows = 0, row_bytes = 0;  // 0: not configured
  uint8_t bytes[16][64] = {};

  void clear() { std::memset(bytes, 0, sizeof bytes); }
  template <class T>
  T get(int row, int i) const {
    T value;
    std::memcpy(&value, bytes[row] + static_cast<size_t>(i) * sizeof(T), sizeof value);
    return value;
  }
  template <class T>
  void set(int row, int i, T value) {
    std::memcpy(bytes[row] + static_cast<size_t>(i) * sizeof(T), &value, sizeof value);
  }
};

inline void demand(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

class Tiles {
 public:
  // Palette 1: eight tiles. The configuration's bytes: 0 the palette, 1 the first row, 16 + 2 i the bytes of a row of tile i, 48 + i its
  // rows.
  void load_config(const void* config) {
    uint8_t c[64];
    std::memcpy(c, config, sizeof c);
    demand(c[0] == 1 && c[1] == 0, "not palette 1 from its first row on");
    for (int i = 2; i < 64; ++i) demand((i >= 16 && i < 32) || (i >= 48 && i < 56) || i == 0 || c[i] == 0, "reserved bytes");
    for (int i = 0; i < 8; ++i) {
      const int row_bytes = c[16 + 2 * i] | c[17 + 2 * i] << 8, rows = c[48 + i];
      demand(row_bytes <= 64 && rows <= 16 && (row_bytes == 0) == (rows == 0), "a tile has up to 16 rows of 64 bytes");
      tiles_[i].row_bytes = row_bytes;
      tiles_[i].rows = rows;
      tiles_[i].clear();
    }
    configured_ = true;
  }
  void release() {
    for (Tile& t : tiles_) t = Tile();
    configured_ = false;
  }
  bool configured() const { return configured_; }

  void zero(int i) { tile(i).clear(); }
  // Loads rows `stride` bytes apart. The rest of the tile's 16 x 64 bytes becomes zero.
  void load(int i, const void* from, int64_t stride) {
    Tile& t = tile(i);
    t.clear();
    for (int row = 0; row < t.rows; ++row)
      std::memcpy(t.bytes[row], static_cast<const char*>(from) + row * stride, static_cast<size_t>(t.row_bytes));
  }
  void store(int i, void* to, int64_t stride) {
    const Tile& t = tile(i);
    for (int row = 0; row < t.rows; ++row)
      std::memcpy(static_cast<char*>(to) + row * stride, t.bytes[row], static_cast<size_t>(t.row_bytes));
  }

  // c (m, n) += a (m, k dwords) b (k, n): four signed bytes in each dword.
  void dot_bytes(int to, int from_a, int from_b) {
    multiply(to, from_a, from_b, [](Tile& c, const Tile& a, const Tile& b, int m) {
      for (int k = 0; k < b.rows; ++k)
        for (int n = 0; n < c.row_bytes / 4; ++n) {
          int32_t dot = 0;
          for (int j = 0; j < 4; ++j) dot += static_cast<int8_t>(a.bytes[m][4 * k + j]) * static_cast<int8_t>(b.bytes[k][4 * n + j]);
          c.set(m, n, static_cast<int32_t>(static_cast<uint32_t>(c.get<int32_t>(m, n)) + static_cast<uint32_t>(dot)));
        }
    });
  }
  // As above, with two bf16 in each dword. Even and odd products are summed apart, from zero, with fused operations; then both sums are
  // added to c. Subnormal numbers count as zero, before and after.
  void dot_halves(int to, int from_a, int from_b) {
    float halves[2][16][16];  // of b: even and odd ones, by row
    const Tile& all = tile(from_b);
    for (int k = 0; k < all.rows; ++k)
      for (int n = 0; n < all.row_bytes / 4; ++n)
        for (int j = 0; j < 2; ++j) halves[j][k][n] = half(all.get<uint16_t>(k, 2 * n + j));
    multiply(to, from_a, from_b, [&halves](Tile& c, const Tile& a, const Tile& b, int m) {
      float sums[2][16] = {};
      for (int k = 0; k < b.rows; ++k)
        for (int j = 0; j < 2; ++j) add_products(half(a.get<uint16_t>(m, 2 * k + j)), halves[j][k], c.row_bytes / 4, sums[j]);
      for (int n = 0; n < c.row_bytes / 4; ++n) c.set(m, n, flushed(flushed(c.get<float>(m, n)) + flushed(sums[0][n] + sums[1][n])));
    });
  }

 private:
  Tile& tile(int i) {
    demand(configured_ && tiles_[i].rows > 0, "a tile that is not configured");
    return tiles_[i];
  }
  template <class F>
  void multiply(int to, int from_a, int from_b, const F& row) {
    Tile &c = tile(to), &a = tile(from_a), &b = tile(from_b);
    demand(to != from_a && to != from_b && from_a != from_b, "three tiles");
    demand(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows, "shapes of a product");
    demand(c.row_bytes % 4 == 0, "whole dwords");
    for (int m = 0; m < c.rows; ++m) row(c, a, b, m);
  }
  static float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f * x : x; }
  // Most of an emulated product's time, so GCC compiles it for speed wherever it stands.
#ifndef __clang__
  [[gnu::optimize("O3")]]
#endif
  static void
  add_products(float a, const float* b, int n, float* sums) {
    for (int i = 0; i < n; ++i) {
      const float sum = __builtin_fmaf(a, b[i], sums[i]);
      sums[i] = __builtin_fabsf(sum) < 0x1p-126f ? 0.0f * sum : sum;
    }
  }
  static float half(uint16_t upper) {
    const uint32_t bits = static_cast<uint32_t>(upper) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return flushed(x);
  }

  Tile tiles_[8];
  bool configured_ = false;
};

inline Tiles& tiles() {
  static thread_local Tiles registers;
  return registers;
}

}  // namespace emulated
