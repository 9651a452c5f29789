// Low-rank keys (LowRankOperations::key_products, low_rank_rows, low_rank_queries, rebuild_keys), on every instruction set, of every KV
// type and RoPE style.
//
// The oracle reads the stored keys with gguf's own dequantization, rotates them back with its own angles and sums in double. Where an
// instruction set rounds factors to bf16, the oracle does too. Pages lie scattered, each before a guard page; so do rows, basis, slots and
// working memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/checked.h"
#include "tests/support/bf16.h"
#include "tests/support/doubles.h"
#include "tests/support/kv_tokens.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::low_rank_test {
namespace {

using namespace orrery::testing;
using Doubles = std::vector<double>;

constexpr int32_t kLayers = 2, kKvHeads = 3, kLayer = 1, kTokens = 300;  // more than a batch, and no whole page

struct Rope {
  bool interleaved;
  int32_t n_rot;
  float magnitude;
  std::vector<float> frequencies;
  Rope(bool pairs, int32_t n, float m) : interleaved(pairs), n_rot(n), magnitude(m) {
    for (int32_t i = 0; i < n / 2; ++i) frequencies.push_back(static_cast<float>(std::pow(1e4, -2.0 * i / n)));
  }
  RopeSpec spec() const { return {interleaved, n_rot, frequencies.data(), magnitude}; }
  // By `sign` times its position's angles.
  void turn(double* key, int32_t position, double sign, double factor) const {
    for (int32_t i = 0; i < n_rot / 2; ++i) {
      const double angle = sign * position * static_cast<double>(frequencies[static_cast<size_t>(i)]), c = std::cos(angle),
                   s = std::sin(angle);
      double &a = key[interleaved ? 2 * i : i], &b = key[interleaved ? 2 * i + 1 : i + n_rot / 2];
      const double first = a;
      a = factor * (first * c - b * s), b = factor * (first * s + b * c);
    }
  }
};

// A layer's pages among others, rows, a basis and the memory to work in.
class Layer {
 public:
  // Of all its KV heads, or of one alone.
  Layer(KvType type, int32_t dim, const Rope& rope, int32_t rank, uint64_t seed, int32_t kv_head = -1)
      : kv{type, kLayers, kKvHeads, dim}, rope_(rope), width(static_cast<size_t>((kv_head < 0 ? kKvHeads : 1) * dim)),
        rank_(static_cast<size_t>(rank)), rows(rank_ * kTokens), basis(rank_ * width) {
    Random random(seed);
    std::vector<float> x(2 * static_cast<size_t>(dim));
    for (int32_t i = 0; i < div_up(kTokens, kPageTokens); ++i) {
      pages_.push_back(std::make_unique<Guarded<std::byte>>(kv.page_span()));
      addresses_.push_back(pages_.back()->ptr().address);
    }
    for (int32_t t = 0; t < kTokens; ++t)
      for (int32_t h = 0; h < kKvHeads; ++h) {
        for (float& v : x) v = random.normal();
        write_tokens(type, x.data(), static_cast<uint64_t>(dim), 1, at(t, h));
      }
    x.resize(width);
    for (size_t r = 0; r < rank_; ++r) {
      for (float& v : x) v = random.normal() / std::sqrt(static_cast<float>(width));
      write_key(KvType::f16, x.data(), width, reinterpret_cast<std::byte*>(basis.data() + r * width));
    }
    keys.kv = kv, keys.rope = rope_.spec(), keys.layer = kLayer, keys.rank = rank, keys.kv_head = kv_head;
    keys.rows = {rows.ptr().address}, keys.basis = {basis.ptr().address}, keys.pages = addresses_.data();
    work_ = std::make_unique<Guarded<std::byte>>(keys.work_bytes());
    keys.work = work_->ptr();
  }
  std::byte* at(int32_t token, int32_t head) const {
    return pages_[static_cast<size_t>(token / kPageTokens)]->data() + kv.head_offset(kLayer, head) +
           static_cast<uint64_t>(token % kPageTokens) * kv.token_bytes();
  }
  Doubles key(int32_t token) const {  // (width) before RoPE
    Doubles all;
    for (int32_t h = std::max(keys.kv_head, 0); h < std::max(keys.kv_head, 0) + keys.n_heads(); ++h) {
      const std::vector<float> one = read_key(kv.type, at(token, h), static_cast<uint64_t>(kv.head_dim));
      Doubles key(one.begin(), one.end());
      rope_.turn(key.data(), token, -1, 1 / static_cast<double>(rope_.magnitude));
      all.insert(all.end(), key.begin(), key.end());
    }
    return all;
  }
  Doubles halves(const Guarded<uint16_t>& from, size_t first, size_t n) const {
    const std::vector<float> x = read_key(KvType::f16, reinterpret_cast<const std::byte*>(from.data() + first), n);
    return {x.begin(), x.end()};
  }
  Doubles row(int32_t token) const { return halves(rows, static_cast<size_t>(token) * rank_, rank_); }
  Doubles basis_row(size_t r) const { return halves(basis, r * width, width); }
  // (head_dim) behind RoPE, of rows and basis as they stand, or rounded to bf16.
  Doubles rebuilt(int32_t token, int32_t head, bool rounds) const {
    const auto factor = [rounds](double x) { return rounds ? static_cast<double>(to_bf16(static_cast<float>(x))) : x; };
    const auto dim = static_cast<size_t>(kv.head_dim);
    const Doubles mine = row(token);
    Doubles key(dim);
    for (size_t r = 0; r < rank_; ++r) {
      const Doubles one = halves(basis, r * width + static_cast<size_t>(head) * dim, dim);
      for (size_t i = 0; i < dim; ++i) key[i] += factor(mine[r]) * factor(one[i]);
    }
    rope_.turn(key.data(), token, 1, static_cast<double>(rope_.magnitude));
    return key;
  }

  KvFormat kv;
  Rope rope_;
  size_t width, rank_;
  Guarded<uint16_t> rows, basis;
  LowRankKeys keys;

 private:
  std::vector<std::unique_ptr<Guarded<std::byte>>> pages_;
  std::vector<uint64_t> addresses_;
  std::unique_ptr<Guarded<std::byte>> work_;
};

StepLimits limits(const KvFormat& kv) { return {1, 64, kv.n_kv_heads, kv.n_kv_heads, kv.head_dim, 64, 0}; }

struct Shape {
  int32_t dim, rank;
  Rope rope;
};
const Shape kShapes[] = {{16, 5, {false, 16, 1.0f}},   {32, 32, {true, 32, 1.0f}},   {80, 7, {false, 40, 1.19f}},
                         {128, 48, {true, 64, 1.0f}},  {64, 163, {false, 64, 1.3f}},  // this one by parts
                         {512, 20, {false, 128, 1.0f}}};
const Rope kNoRope{false, 0, 1.0f};

class CpuLowRank : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuLowRank, ProductsAreThoseOfKeysTurnedBack) {
  for (const Shape& shape : kShapes)
    for (const KvType type : kKvTypes)
      for (const int32_t kv_head : {-1, 1}) {
        if (!stores(type, shape.dim)) continue;
        if (shape.dim == 512 && kv_head < 0 && type != KvType::f16) continue;  // columns of all heads: most of the time
        SCOPED_TRACE(std::to_string(shape.dim) + ", type " + std::to_string(static_cast<int>(type)));
        const Layer layer(type, shape.dim, kv_head < 0 ? shape.rope : kNoRope, shape.rank, 1, kv_head);
        const size_t n = layer.width;
        for (const int32_t n_tokens : {1, kTokens}) {
          Doubles expected(n * n), expected_sums(n), most(n);
          for (int32_t t = 0; t < n_tokens; ++t) {
            const Doubles key = layer.key(t);
            for (size_t i = 0; i < n; ++i) expected_sums[i] += key[i], most[i] += std::fabs(key[i]);
            for (size_t i = 0; i < n; ++i) add_times(key[i], key.data(), i + 1, &expected[i * n]);
          }
          for (size_t i = 0; i < n; ++i)
            for (size_t j = 0; j < i; ++j) expected[j * n + i] = expected[i * n + j];
          std::vector<float> first;
          for (const int32_t n_threads : {1, 3}) {
            Rig rig(GetParam(), n_threads, limits(layer.kv));
            const Guarded<float> out(n * n), sums(n);
            rig->low_rank()->key_products(layer.keys, n_tokens, out.data(), n_threads == 1 ? sums.data() : nullptr);
            for (size_t i = 0; i < n && n_threads == 1; ++i)
              ASSERT_NEAR(static_cast<double>(sums.data()[i]), expected_sums[i], 1e-5 * most[i]);
            const std::vector<float> found(out.data(), out.data() + n * n);
            if (first.empty()) first = found;
            ASSERT_EQ(found, first) << "threads show";
          }
          Doubles lengths(n);
          for (size_t i = 0; i < n; ++i) lengths[i] = std::sqrt(expected[i * n + i]);
          for (size_t i = 0; i < n; ++i) {
            const float* const found = &first[i * n];
            const double *const row = &expected[i * n], *const l = lengths.data();
            for (size_t j = 0; j < n; ++j)
              if (!(std::fabs(static_cast<double>(found[j]) - row[j]) <= 1e-5 * l[i] * l[j] + 1e-6))
                FAIL() << i << ", " << j << ": " << found[j] << ", expected " << row[j];
          }
        }
      }
}

TEST_P(CpuLowRank, RowsAreProductsWithTheBasis) {
  for (const Shape& shape : kShapes)
    for (const KvType type : kKvTypes)
      for (const int32_t kv_head : {-1, 2}) {
        if (!stores(type, shape.dim)) continue;
        SCOPED_TRACE(std::to_string(shape.dim) + ", type " + std::to_string(static_cast<int>(type)));
        const Rope& rope = kv_head < 0 ? shape.rope : kNoRope;
        const int32_t rank = kv_head < 0 ? shape.rank : std::min(shape.rank, shape.dim);
        const Layer layer(type, shape.dim, rope, rank, 2, kv_head), other(type, shape.dim, rope, rank, 2, kv_head);
        Rig rig(GetParam(), 2, limits(layer.kv));
        rig->low_rank()->low_rank_rows(layer.keys, 0, kTokens);
        for (int32_t t = 0; t < kTokens; t += 7) {
          const Doubles key = layer.key(t), row = layer.row(t);
          for (size_t r = 0; r < row.size(); ++r) {
            const Doubles basis = layer.basis_row(r);
            double product = 0, most = 0;
            for (size_t i = 0; i < key.size(); ++i) product += key[i] * basis[i], most += std::fabs(key[i] * basis[i]);
            ASSERT_NEAR(row[r], product, 5e-4 * std::fabs(product) + 1e-5 * most) << t << ", " << r;
          }
        }
        // Bit by bit the same however they are asked for.
        Rig single(GetParam(), 1, limits(layer.kv));
        for (const int32_t first : {0, 3, 259})
          single->low_rank()->low_rank_rows(other.keys, first, first == 0 ? 3 : first == 3 ? 259 : kTokens);
        ASSERT_TRUE(std::equal(layer.rows.data(), layer.rows.data() + layer.rank_ * kTokens, other.rows.data()));
      }
}

// Each by its KV head's basis, wherever the next one's lies.
TEST_P(CpuLowRank, QueriesAreProductsWithTheirHeadsBasis) {
  constexpr int32_t kGroup = 2, kHeads = kGroup * kKvHeads;
  for (const Shape& shape : kShapes) {
    const Layer layer(KvType::f16, shape.dim, kNoRope, shape.rank, 4, 0);
    const auto dim = static_cast<size_t>(shape.dim), rank = static_cast<size_t>(shape.rank), gap = dim * rank + 24;  // halves
    const Guarded<float> q(dim * kHeads), out(rank * kHeads);
    Guarded<uint16_t> bases(gap * (kKvHeads - 1) + dim * rank);
    fill_normal(q, 5);
    for (int32_t h = 0; h < kKvHeads; ++h) {
      std::vector<float> x(dim * rank);
      Random random(static_cast<uint64_t>(h));
      for (float& v : x) v = random.normal();
      write_key(KvType::f16, x.data(), x.size(), reinterpret_cast<std::byte*>(bases.data() + static_cast<size_t>(h) * gap));
    }
    LowRankKeys keys = layer.keys;
    keys.basis = {bases.ptr().address};
    Rig rig(GetParam(), 2, limits(layer.kv));
    rig->low_rank()->low_rank_queries(keys, 2 * gap, kHeads, q.ptr(), out.ptr());
    for (size_t h = 0; h < kHeads; ++h)
      for (size_t r = 0; r < rank; ++r) {
        const Doubles row = layer.halves(bases, h / kGroup * gap + r * dim, dim);
        double product = 0, most = 0;
        for (size_t i = 0; i < dim; ++i)
          product += row[i] * static_cast<double>(q.data()[h * dim + i]),
              most += std::fabs(row[i] * static_cast<double>(q.data()[h * dim + i]));
        ASSERT_NEAR(static_cast<double>(out.data()[h * rank + r]), product, 1e-5 * most) << "head " << h << ", " << r;
      }
  }
}

TEST_P(CpuLowRank, KeysAreRebuiltWithRopeAtTheirPositions) {
  for (const Shape& shape : kShapes)
    for (const KvType type : kKvTypes)
      for (const KvType slot_type : kKvTypes) {
        if (!stores(type, shape.dim) || !stores(slot_type, shape.dim) || finer(slot_type, type)) continue;
        SCOPED_TRACE(std::to_string(shape.dim) + ", type " + std::to_string(static_cast<int>(type)) + " to " +
                     std::to_string(static_cast<int>(slot_type)));
        const Layer layer(type, shape.dim, shape.rope, shape.rank, 3);
        Rig rig(GetParam(), 2, limits(layer.kv));
        rig->low_rank()->low_rank_rows(layer.keys, 0, kTokens);
        const KvFormat slots{slot_type, 1, 1, shape.dim};
        // Runs of one token, of some, and of a page; the last one's V stay.
        struct {
          int32_t position, count;
          bool values;
          int32_t head;
        } const kRuns[] = {{299, 1, true, 2}, {3, 8, true, 0}, {64, 64, true, 2}, {130, 13, false, 1}};
        // V one behind the other, or others between.
        const uint64_t gap = slot_type == KvType::f16 ? layer.kv.key_bytes() + 4 : 0, next_value = layer.kv.value_bytes() + gap;
        Guarded<std::byte> to(86 * slots.token_bytes()), values(73 * next_value - gap);
        std::fill(to.data(), to.data() + 86 * slots.token_bytes(), std::byte{1});
        std::vector<RebuiltRun> runs;
        int32_t n = 0;
        for (const auto& run : kRuns) {
          for (int32_t t = 0; t < run.count && run.values; ++t)
            std::copy_n(layer.at(run.position + t, run.head) + layer.kv.key_bytes(), layer.kv.value_bytes(),
                        values.data() + static_cast<uint64_t>(n + t) * next_value);
          runs.push_back(
              {run.position,
               run.count,
               {to.ptr().address + static_cast<uint64_t>(n) * slots.token_bytes()},
               run.values ? Ptr<const std::byte>{values.ptr().address + static_cast<uint64_t>(n) * next_value} : Ptr<const std::byte>{},
               run.head,
               static_cast<int32_t>(gap)});
          n += run.count;
        }
        if (static_cast<int>(type) % 2 == 1) {  // token by token, heads among each other
          std::vector<RebuiltRun> tokens;
          for (const RebuiltRun& run : runs)
            for (int32_t t = 0; t < run.count; ++t) {
              const auto i = static_cast<uint64_t>(t);
              tokens.push_back({run.position + t, 1, run.to + i * slots.token_bytes(), {}, run.kv_head});
              if (run.values) tokens.back().values = run.values + i * next_value;
            }
          runs.clear();
          for (size_t i = 0; i < tokens.size(); ++i) runs.push_back(tokens[i * 37 % tokens.size()]);
        }
        // By angles of their own, or by what their pages and places in them are turned by.
        LowRankKeys keys = layer.keys;
        const size_t half = static_cast<size_t>(shape.rope.n_rot) / 2, n_pages = kTokens / kPageTokens + 1;
        Guarded<float> rotations((n_pages + kPageTokens) * 2 * half);
        if ((static_cast<int>(type) + static_cast<int>(slot_type)) % 2 == 0) {
          for (size_t row = 0; row < n_pages + kPageTokens; ++row)
            for (size_t i = 0; i < half; ++i) {
              const double position = static_cast<double>(row < n_pages ? row * kPageTokens : row - n_pages);
              const double angle = position * static_cast<double>(keys.rope.inverse_frequency[i]),
                           by = row < n_pages ? static_cast<double>(keys.rope.magnitude) : 1.0;
              rotations.data()[(2 * row) * half + i] = static_cast<float>(std::cos(angle) * by);
              rotations.data()[(2 * row + 1) * half + i] = static_cast<float>(std::sin(angle) * by);
            }
          keys.page_rotations = rotations.ptr(), keys.rotations = rotations.ptr() + n_pages * 2 * half;
        }
        rig->low_rank()->rebuild_keys(keys, slot_type, runs);
        const double tolerance = slot_type == KvType::f32              ? 1e-5
                                 : slot_type == KvType::f16            ? 1e-3
                                 : key_type(slot_type) == KvType::q8_0 ? 1e-2
                                                                       : .13;
        n = 0;
        for (const auto& run : kRuns)
          for (int32_t t = 0; t < run.count; ++t, ++n) {
            const std::byte* slot = to.data() + static_cast<uint64_t>(n) * slots.token_bytes();
            const std::vector<float> key = read_key(slot_type, slot, static_cast<uint64_t>(shape.dim));
            const Doubles expected = layer.rebuilt(run.position + t, run.head, rounds_low_rank(GetParam(), slot_type));
            double most = 0;
            for (const double x : expected) most = std::max(most, std::fabs(x));
            for (size_t i = 0; i < key.size(); ++i)
              ASSERT_NEAR(static_cast<double>(key[i]), expected[i], tolerance * most)
                  << "position " << run.position + t << ", dimension " << i;
            std::vector<std::byte> value(slots.value_bytes(), std::byte{1});
            if (run.values)
              value = converted_value(layer.at(run.position + t, run.head) + layer.kv.key_bytes(), type, slot_type,
                                      static_cast<uint64_t>(shape.dim));
            ASSERT_TRUE(std::equal(value.begin(), value.end(), slot + slots.key_bytes())) << "V at position " << run.position + t;
          }
      }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuLowRank, ::testing::ValuesIn(paths()), [](const auto& tested) {
  std::string name = tested.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace orrery::low_rank_test
