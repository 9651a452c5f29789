// The plain kernels: portable C++, short enough to be checked by reading. The other kernels are tested against them, and they run
// on machines that support no other instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/backend/hadamard.h"
#include "runtime/base/half.h"
#include "runtime/cpu/formats/blocks.h"
#include "runtime/cpu/kernels/kernels.h"
#include "runtime/cpu/paths/kernels_plain.h"
#include "runtime/cpu/kernels/moves.h"

namespace orrery::cpu {

namespace {

constexpr int64_t kRows = 16;  // rows that share one unpacking of a weight block

// A block of 32. The largest magnitude gives the scale. A value that is not finite makes the scale NaN, and so every output that
// depends on the block. A block too small to have a scale counts as zero.
void quantize_block(const float* x, int64_t n, int8_t* q, float* d, int16_t* sums) {
  uint32_t largest = 0;  // as bits, which order like magnitudes; infinity and NaN are above all numbers
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = float_bits(x[i]) & 0x7FFFFFFFu;
    if (magnitude > largest) largest = magnitude;
  }
  std::memset(q, 0, 32);
  sums[0] = sums[1] = 0;
  *d = 0;
  if (largest >= 0x7F800000u) {
    *d = NAN;
    return;
  }
  const float max = float_from_bits(largest);
  if (max < kSmallestBlockMax) return;
  *d = max / 127.0f;
  const float inverse = 127.0f / max;
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  for (int i = 0; i < 32; ++i) sums[i / 16] = static_cast<int16_t>(sums[i / 16] + q[i]);
}

void quantize_row(const float* x, int64_t n, std::byte* out) {
  const int64_t padded = padded_columns(n);
  int8_t* q = reinterpret_cast<int8_t*>(out);
  float* d = reinterpret_cast<float*>(out + padded);
  int16_t* sums = reinterpret_cast<int16_t*>(out + padded + padded / 32 * 4);
  for (int64_t i = 0; i < padded; i += 32) {
    const int64_t left = n - i < 0 ? 0 : n - i < 32 ? n - i : 32;
    quantize_block(x + (left ? i : 0), left, q + i, d + i / 32, sums + i / 16);
  }
}

void store(const MatmulTask& t, int64_t row, int64_t o, float sum) {
  float* out = t.out + row * t.out_stride + o;
  if (t.bias) sum += t.bias[o];
  *out = t.accumulate ? *out + sum : sum;
}

void matmul_blocks(const MatmulTask& t, const BlockFormat& format) {
  UnpackedBlock block;
  for (int64_t first = t.first_row; first < t.last_row; first += kRows) {
    const int64_t n = t.last_row - first < kRows ? t.last_row - first : kRows;
    for (int64_t o = t.first_out; o < t.last_out; ++o) {
      const uint8_t* w = reinterpret_cast<const uint8_t*>(t.weight + o * t.row_bytes);
      float sums[kRows] = {};
      for (int64_t c = 0; c < t.n_columns; c += format.n_weights, w += format.n_bytes) {
        format.unpack(w, &block);
        for (int64_t r = 0; r < n; ++r) {
          const QuantizedRow x = quantized_row(t.quantized + (first + r) * t.quantized_stride, t.n_columns);
          for (int g = 0; g < format.n_weights / format.group; ++g) {
            const int64_t at = c + g * format.group;
            int32_t dot = 0, sum = 0;
            for (int i = 0; i < format.group; ++i) dot += block.q[g * format.group + i] * x.q[at + i];
            for (int i = 0; i < format.group; i += 16) sum += x.sums[(at + i) / 16];
            const float d = x.d[at / 32];
            sums[r] += d * block.scale[g] * static_cast<float>(dot);
            if (format.has_min) sums[r] -= d * block.min[g] * static_cast<float>(sum);
          }
        }
      }
      for (int64_t r = 0; r < n; ++r) store(t, first + r, o, sums[r]);
    }
  }
}

// Float weights: a run of columns at a time, so that halves are converted once for all rows.
void matmul_floats(const MatmulTask& t) {
  constexpr int64_t kRun = 256;
  float w[kRun];
  for (int64_t first = t.first_row; first < t.last_row; first += kRows) {
    const int64_t n = t.last_row - first < kRows ? t.last_row - first : kRows;
    for (int64_t o = t.first_out; o < t.last_out; ++o) {
      const std::byte* row = t.weight + o * t.row_bytes;
      float sums[kRows] = {};
      for (int64_t c = 0; c < t.n_columns; c += kRun) {
        const int64_t run = t.n_columns - c < kRun ? t.n_columns - c : kRun;
        dequantize(t.type, row + c * (t.type == TensorType::f32 ? 4 : 2), run, w);
        for (int64_t r = 0; r < n; ++r) {
          const float* x = t.x + (first + r) * t.x_stride + c;
          float sum = sums[r];
          for (int64_t i = 0; i < run; ++i) sum += w[i] * x[i];
          sums[r] = sum;
        }
      }
      for (int64_t r = 0; r < n; ++r) store(t, first + r, o, sums[r]);
    }
  }
}

void matmul(const MatmulTask& t) {
  if (const BlockFormat* format = block_format(t.type)) {
    matmul_blocks(t, *format);
  } else {
    matmul_floats(t);
  }
}

void rms_norm(const float* x, const float* weight, float* out, int64_t dim, float eps) {
  double squares = 0;
  for (int64_t i = 0; i < dim; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double mean = squares / static_cast<double>(dim);
  const float scale = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
  for (int64_t i = 0; i < dim; ++i) out[i] = weight ? x[i] * scale * weight[i] : x[i] * scale;
}

void rope(float* x, const float* cosines, const float* sines, int32_t n_rot, bool interleaved, int32_t n_heads, int32_t head_dim) {
  const int32_t half = n_rot / 2;
  for (int32_t h = 0; h < n_heads; ++h, x += head_dim)
    for (int32_t i = 0; i < half; ++i) {
      float* a = interleaved ? x + 2 * i : x + i;
      float* b = interleaved ? x + 2 * i + 1 : x + i + half;
      const float a0 = *a, b0 = *b;
      *a = a0 * cosines[i] - b0 * sines[i];
      *b = a0 * sines[i] + b0 * cosines[i];
    }
}

void transform_heads(float* x, const float* shift, int32_t n_heads, int32_t head_dim, int32_t block) {
  const int32_t n = n_heads * head_dim;
  if (shift)
    for (int32_t i = 0; i < n; ++i) x[i] -= shift[i];
  if (block <= 1) return;
  hadamard(x, n, block);
}

void swiglu(const float* gate, const float* up, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void geglu(const float* gate, const float* up, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = gate[i];
    out[i] = 0.5f * x * (1.0f + std::tanh(kGeluScale * (x + kGeluCube * x * x * x))) * up[i];
  }
}

void soft_cap(float* x, int64_t n, float cap) {
  for (int64_t i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void convolve_head(const ConvolveTask& t) {
  double squares = 0;
  for (int32_t i = 0; i < t.dim; ++i) {
    float sum = 0;
    for (int32_t tap = 0; tap < t.n_taps; ++tap) sum += t.inputs[tap][i] * t.weights[i * t.n_taps + tap];
    if (t.bias) sum += t.bias[i];
    t.out[i] = t.gate ? t.gate[i] * sum : sum / (1.0f + std::exp(-sum));
    squares += static_cast<double>(t.out[i]) * t.out[i];
  }
  if (t.scale <= 0) return;
  const float scale = static_cast<float>(static_cast<double>(t.scale) / std::sqrt(squares + static_cast<double>(t.eps)));
  for (int32_t i = 0; i < t.dim; ++i) t.out[i] *= scale;
}

void delta_head(const DeltaTask& t) {
  const int32_t n = t.value_dim;
  for (int32_t row = 0; row < t.n_rows; ++row) {
    const float *q = t.q + row * t.stride, *k = t.k + row * t.stride, *v = t.v + row * t.stride;
    const DeltaGates gates = delta_gates(t, row);
    float* out = t.out ? t.out + row * t.value_stride : nullptr;
    for (int32_t j = 0; j < n; ++j) {
      float read = 0;
      for (int32_t i = 0; i < t.key_dim; ++i) {
        float& s = t.state[i * n + j];
        s *= gates.decay;
        read += s * k[i];
      }
      const float d = gates.beta * (v[j] - read);
      float sum = 0;
      for (int32_t i = 0; i < t.key_dim; ++i) {
        float& s = t.state[i * n + j];
        s += k[i] * d;
        sum += s * q[i];
      }
      if (out) out[j] = sum;
    }
    if (!out) continue;
    rms_norm(out, t.norm, out, n, t.eps);
    const float* z = t.z + row * t.value_stride;
    for (int32_t j = 0; j < n; ++j) out[j] *= z[j] / (1.0f + std::exp(-z[j]));
  }
}

void mamba2_head(const Mamba2Task& t) {
  for (int32_t row = 0; row < t.n_rows; ++row) {
    const float *x = t.x + row * t.stride, *b = t.b + row * t.stride, *c = t.c + row * t.stride;
    const Mamba2Gates gates = mamba2_gates(t, row);
    float* out = t.out ? t.out + row * t.out_stride : nullptr;
    for (int32_t j = 0; j < t.head_dim; ++j) {
      float sum = 0;
      for (int32_t i = 0; i < t.state_dim; ++i) {
        float& s = t.state[i * t.head_dim + j];
        s = s * gates.decay + b[i] * (gates.step * x[j]);
        sum += s * c[i];
      }
      if (out) out[j] = sum + t.skip * x[j];
    }
  }
}

void apply_gates(float* x, const float* gates, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] /= 1.0f + std::exp(-gates[i]);
}

void plain_add_low_rank(const AdapterTask& t) {
  for (int64_t r = 0; r < t.n_rows; ++r)
    for (int64_t o = t.first_out; o < t.last_out; ++o) {
      const float* b = t.b + o / kAdapterTile * t.rank * kAdapterTile + o % kAdapterTile;
      float sum = 0;
      for (int64_t k = 0; k < t.rank; ++k) sum += t.low[r * t.low_stride + k] * b[k * kAdapterTile];
      t.out[r * t.out_stride + o] += t.scale * sum;
    }
}

void load_kv_vector(KvType type, const std::byte* x, int32_t n, float* out) { load_kv(key_tensor_type(type), x, n, out); }

void store_kv_vector(KvType type, const float* x, int32_t n, std::byte* out) { store_kv(key_tensor_type(type), x, n, out); }

void plain_move_tokens(const MoveTask& t) {
  for (int64_t i = 0; i < t.n; ++i)
    std::memcpy(at_address(t.moves[i].to), at_address(t.moves[i].from), t.moves[i].n_tokens * t.token_bytes);
}

void plain_rotate_keys(const RotateTask& t) {
  const int32_t half = t.n_rot / 2;
  for (int32_t k = 0; k < t.n_keys; ++k) {
    const float* page = t.page_rotations + int64_t{t.positions[k] / kPageTokens} * t.n_rot;
    const float* rotation = t.rotations + int64_t{t.positions[k] % kPageTokens} * t.n_rot;
    for (int32_t i = 0; i < half; ++i) {
      t.table[i] = page[i] * rotation[i] - page[half + i] * rotation[half + i];
      t.table[half + i] = page[half + i] * rotation[i] + page[i] * rotation[half + i];
    }
    rope(t.keys + k * t.width, t.table, t.table + half, t.n_rot, t.interleaved, 1, t.head_dim);
    store_kv_vector(key_type(t.type), t.keys + k * t.width, t.head_dim, t.to[k]);
    const KvFormat slot{t.type, 1, 1, t.head_dim};
    if (t.values && t.values[k]) std::copy_n(t.values[k], slot.value_bytes(), t.to[k] + slot.key_bytes());
  }
}

}  // namespace

const Kernels kPlainKernels = {
    "plain",
    quantize_row,
    matmul,
    matmul,
    nullptr,
    nullptr,
    16,
    64,
    0,
    [](TensorType) { return false; },
    [](TensorType) { return false; },
    rms_norm,
    rope,
    transform_heads,
    swiglu,
    geglu,
    soft_cap,
    add,
    convolve_head,
    delta_head,
    mamba2_head,
    apply_gates,
    plain_add_low_rank,
    load_kv_vector,
    store_kv_vector,
    plain_move_tokens,
    plain_attend_decode,
    plain_merge_partials,
    .693147181f,
    plain_attend_prefill,
    [](KvType, int32_t) { return kQueryTile; },
    plain_attend_scratch_bytes,
    plain_widen,
    plain_key_weights,
    plain_encode_key,
    plain_code_weights,
    plain_code_values,
    plain_key_scores,
    plain_list_reaching,
    plain_tile_shares,
    plain_add_means,
    plain_key_moments,
    plain_add_gram,
    plain_project_keys,
    plain_pack_basis,
    plain_rebuild_keys,
    kRebuilt,
    plain_rotate_keys,
};

}  // namespace orrery::cpu
