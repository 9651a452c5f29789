// mma.sync: products of small matrices by a warp. The manual says which element each register of each lane holds. Of an 8-row block, lane l
// holds row l / 4; so the registers of 32 lanes, in order, are the block, row after row.
//
// Of floats the manual leaves the order and the rounding of the sums open. Here a sum is rounded once.
#include "tests/ptx/executor/half.h"
#include "tests/ptx/executor/lanes.h"

namespace orrery::ptx {

namespace {

constexpr unsigned kRows = 16, kColumns = 8;

void halves(const uint32_t* registers, float* out) { half_values(reinterpret_cast<const uint16_t*>(registers), out, 2 * kLanes); }
void bfloats(const uint32_t* registers, float* out) {
  const uint16_t* in = reinterpret_cast<const uint16_t*>(registers);
  for (unsigned k = 0; k < 2 * kLanes; ++k) out[k] = bfloat_value(in[k]);
}

// Operands: d (4), a (4), b (2), c (4). Blocks of 8 by 8: a = [[a0, a2], [a1, a3]]; b0 and b1 hold b's columns as rows.
template <void (*kValues)(const uint32_t*, float*)>
void product_16816(Warp& w, const Instruction& i, uint32_t) {
  constexpr unsigned kInner = 16;
  alignas(64) float block[2 * kLanes];
  alignas(64) double a[kRows][kInner], b[kInner][kColumns], sum[kColumns];
  for (unsigned r = 0; r < 4; ++r) {
    kValues(w.lanes<const uint32_t>(i.operand[4 + r]), block);
    for (unsigned k = 0; k < 64; ++k) a[k / 8 + 8 * (r % 2)][k % 8 + 8 * (r / 2)] = static_cast<double>(block[k]);
  }
  for (unsigned r = 0; r < 2; ++r) {
    kValues(w.lanes<const uint32_t>(i.operand[8 + r]), block);
    for (unsigned k = 0; k < 64; ++k) b[k % 8 + 8 * r][k / 8] = static_cast<double>(block[k]);
  }
  for (unsigned row = 0; row < kRows; ++row) {
    for (double& s : sum) s = 0;
    for (unsigned k = 0; k < kInner; ++k)
      for (unsigned n = 0; n < kColumns; ++n) sum[n] += a[row][k] * b[k][n];
    for (unsigned n = 0; n < kColumns; ++n) {
      const unsigned r = n % 2 + 2 * (row / 8), l = row % 8 * 4 + n / 2;
      const float c = w.lanes<const float>(i.operand[10 + r])[l];
      w.lanes<float>(i.operand[r])[l] = static_cast<float>(sum[n] + static_cast<double>(c));
    }
  }
  w.block->counters.products += kRows * kColumns * kInner;
}

// Bytes with signs: operands d (4), a (kInner / 8), b (kInner / 16), c (4). Blocks of a have 8 rows of 16.
template <unsigned kInner>
void product_bytes(Warp& w, const Instruction& i, uint32_t) {
  constexpr unsigned kA = kInner / 8, kB = kInner / 16;
  alignas(64) int16_t a[kRows][kInner], b[kColumns][kInner];
  for (unsigned r = 0; r < kA; ++r) {
    const int8_t* in = w.lanes<const int8_t>(i.operand[4 + r]);
    for (unsigned k = 0; k < 128; ++k) a[k / 16 + 8 * (r % 2)][k % 16 + 16 * (r / 2)] = in[k];
  }
  for (unsigned r = 0; r < kB; ++r) {
    const int8_t* in = w.lanes<const int8_t>(i.operand[4 + kA + r]);
    for (unsigned k = 0; k < 128; ++k) b[k / 16][k % 16 + 16 * r] = in[k];
  }
  for (unsigned row = 0; row < kRows; ++row)
    for (unsigned n = 0; n < kColumns; ++n) {
      int32_t sum = 0;
      for (unsigned k = 0; k < kInner; ++k) sum += int32_t{a[row][k]} * b[n][k];
      const unsigned r = n % 2 + 2 * (row / 8), l = row % 8 * 4 + n / 2;
      const uint32_t c = w.lanes<const uint32_t>(i.operand[4 + kA + kB + r])[l];
      w.lanes<uint32_t>(i.operand[r])[l] = c + static_cast<uint32_t>(sum);
    }
  w.block->counters.products += kRows * kColumns * kInner;
}

}  // namespace

void add_products(Table* table) {
  const auto add = [&](const std::string& name, const std::string& operands, Execute f) {
    (*table)["mma.sync.aligned." + name] = {operands, Class::product, f, Flow::whole_warp};
  };
  add("m16n8k16.row.col.f32.f16.f16.f32", "wwww=wwwwwwwwww", product_16816<halves>);
  add("m16n8k16.row.col.f32.bf16.bf16.f32", "wwww=wwwwwwwwww", product_16816<bfloats>);
  add("m16n8k32.row.col.s32.s8.s8.s32", "wwww=wwwwwwwwww", product_bytes<32>);
  add("m16n8k16.row.col.s32.s8.s8.s32", "wwww=wwwwwww", product_bytes<16>);
}

}  // namespace orrery::ptx
