// KV from one type to another, on every instruction set: KvMoves::move_kv against gguf's own conversions, byte for byte. And a decode step
// whose resident heads are coarser than its pages: the slot holds the bytes of move_kv, and the step attends to them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/support/kv_tokens.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::move_kv_test {
namespace {

using namespace orrery::testing;

std::vector<std::pair<KvType, KvType>> pairs() {
  std::vector<std::pair<KvType, KvType>> all;
  for (const KvType from : kKvTypes)
    for (const KvType to : kKvTypes) all.emplace_back(from, to);
  return all;
}
uint64_t bytes_of(KvType type, uint64_t n) { return key_bytes(type, n / 2) + value_bytes(type, n / 2); }  // of tokens of n values

class CpuMoveKv : public ::testing::TestWithParam<std::string> {};

TEST_P(CpuMoveKv, GivesTheFormatsBytes) {
  Random random(1);
  for (const int32_t n_threads : {1, 3}) {
    Rig rig(GetParam(), n_threads, {1, 1, 1, 1, 32, 64});
    for (const auto& [from_type, to_type] : pairs()) {
      for (const uint64_t n : {8u, 32u, 40u, 64u, 80u, 256u, 320u, 1024u, 1152u, 30000u, 65536u}) {
        if (n % 64 != 0 && (in_blocks(from_type) || in_blocks(to_type))) continue;
        SCOPED_TRACE(std::string(kv_type_name(from_type)) + " to " + kv_type_name(to_type) + ", " + std::to_string(n));
        std::vector<float> values(n);
        for (uint64_t i = 0; i < n; ++i) {  // blocks of every size, of zeros, and of numbers too small for a scale
          constexpr float kSizes[] = {1.0f, 1e-3f, 300.0f, 0.0f, 1e-30f, 1e-41f};
          values[i] = random.normal() * kSizes[i / 32 % 6];
        }
        Guarded<std::byte> from(bytes_of(from_type, n)), to(bytes_of(to_type, n));
        write_tokens(from_type, values.data(), n / 2, 1, from.data());
        const KvMove all{to.ptr().address, from.ptr().address, 1};
        rig->kv_moves()->move_kv({&all, 1}, to_type, from_type, n);
        ASSERT_TRUE(rig->synchronize().ok());
        const std::vector<std::byte> want = converted_tokens(from.data(), from_type, to_type, n / 2);
        ASSERT_EQ(std::memcmp(to.data(), want.data(), want.size()), 0);
      }
    }
  }
}

// Values that lie in the middle between two codes, of either sign: the scale is 1.
TEST_P(CpuMoveKv, MiddlesGoAwayFromZero) {
  Rig rig(GetParam(), 1, {1, 1, 1, 1, 32, 64});
  constexpr uint64_t kValues = 512;
  Guarded<float> from(kValues);
  for (size_t i = 0; i < kValues; ++i) {
    const auto middle = static_cast<float>(i % 127) + .5f;
    from[i] = i % 32 == 0 ? 127.0f : i % 3 == 0 ? -middle : middle;
  }
  Guarded<std::byte> to(bytes_of(KvType::q8_0, kValues));
  const KvMove all{to.ptr().address, from.ptr().address, 1};
  rig->kv_moves()->move_kv({&all, 1}, KvType::q8_0, KvType::f32, kValues);
  ASSERT_TRUE(rig->synchronize().ok());
  for (size_t i = 0; i < kValues; ++i)
    ASSERT_EQ(static_cast<int8_t>(to[i / 32 * 34 + 2 + i % 32]), static_cast<int>(from[i] + std::copysign(.5f, from[i]) * (i % 32 != 0)))
        << from[i];
}

// Runs of 1 to 5 tokens, whose order on the two sides differs; what lies between them stays as it is. The longer list is more than caches
// hold: whole lines go past them, where the type has such.
TEST_P(CpuMoveKv, TokensGoWhereTheyBelong) {
  constexpr uint64_t kValues = 128, kMost = 5;
  for (const uint64_t n_runs : {700u, 1500u}) {
    Rig rig(GetParam(), n_runs == 700 ? 1 : 3, {1, 1, 1, 1, 64, 64});
    for (const auto& [from_type, to_type] : pairs()) {
      const uint64_t from_bytes = bytes_of(from_type, kValues), to_bytes = bytes_of(to_type, kValues);
      Random random(5);
      Guarded<std::byte> from(n_runs * kMost * from_bytes), to(n_runs * kMost * to_bytes);
      std::vector<float> values(n_runs * kMost * kValues);
      for (float& x : values) x = random.normal();
      write_tokens(from_type, values.data(), kValues / 2, n_runs * kMost, from.data());
      std::fill_n(to.data(), to.size(), std::byte{0x5A});
      std::vector<std::byte> want(to.data(), to.data() + to.size());
      std::vector<KvMove> moves;
      for (uint64_t i = 0; i < n_runs; ++i) {
        const uint64_t at = i * 403 % n_runs * kMost, n = 1 + i % kMost;
        moves.push_back({to.ptr().address + at * to_bytes, from.ptr().address + i * kMost * from_bytes, static_cast<uint32_t>(n)});
        const std::vector<std::byte> run = converted_tokens(from.data() + i * kMost * from_bytes, from_type, to_type, kValues / 2, n);
        std::copy(run.begin(), run.end(), want.begin() + static_cast<ptrdiff_t>(at * to_bytes));
      }
      rig->kv_moves()->move_kv(moves, to_type, from_type, kValues);
      ASSERT_EQ(std::memcmp(to.data(), want.data(), want.size()), 0) << kv_type_name(from_type) << " to " << kv_type_name(to_type);
    }
  }
}

// Blocks hold no infinity and no NaN: such values become zero, as those that are appended do.
TEST_P(CpuMoveKv, ValuesThatAreNotFiniteAreThoseOfAppending) {
  Rig rig(GetParam(), 1, {1, 1, 1, 1, 32, 64});
  for (const KvType to_type : {KvType::q8_0, KvType::q4_0, KvType::k8v4}) {
    for (const KvType from_type : {KvType::f32, KvType::f16}) {
      for (const float odd : {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
        const KvFormat format{to_type, 1, 1, 32};
        std::vector<float> token(64, 1.5f);
        token[5] = token[40] = odd;
        Guarded<std::byte> from(bytes_of(from_type, 64)), to(bytes_of(to_type, 64)), page(format.page_bytes());
        write_tokens(from_type, token.data(), 32, 1, from.data());
        const KvMove all{to.ptr().address, from.ptr().address, 1};
        rig->kv_moves()->move_kv({&all, 1}, to_type, from_type, 64);
        Guarded<float> kv(64);
        std::copy(token.begin(), token.end(), kv.data());
        const uint64_t address = page.ptr().address;
        const KvView view{&address, 1};
        const Row row{0, 0, 0};
        rig->begin_step({Phase::decode, {&row, 1}, {&view, 1}, format});
        rig->append_kv(0, kv.cptr(), kv.cptr() + 32, 64);
        rig->end_step();
        EXPECT_EQ(std::memcmp(to.data(), page.data(), to.size()), 0) << odd;
      }
    }
  }
}

// Tokens 0 .. n-1 of one layer, three KV heads: in pages of one type, and converted in slots of another, in reverse
// order, as pages of the other type would hold them.
struct Coarse {
  static constexpr int32_t kLayer = 1;
  KvFormat format, heads_kv;
  int32_t n;
  Guarded<float> kv;  // (n, 2, n_kv_heads, head_dim)
  std::vector<std::unique_ptr<Guarded<std::byte>>> pages, tiles;
  std::vector<uint64_t> addresses;
  std::vector<std::vector<uint64_t>> tile_addresses;  // (heads of all layers)
  std::vector<HeadView> views;

  Coarse(KvType type, KvType heads_type, int32_t dim, int32_t n_tokens)
      : format{type, 2, 3, dim}, heads_kv{heads_type, 2, 3, dim}, n(n_tokens), kv(static_cast<size_t>(n * 6 * dim)) {
    fill_normal(kv, 7);
    const size_t n_pages = static_cast<size_t>((n + 63) / 64);
    for (size_t i = 0; i < n_pages; ++i) {
      pages.push_back(std::make_unique<Guarded<std::byte>>(format.page_span()));
      tiles.push_back(std::make_unique<Guarded<std::byte>>(heads_kv.page_span()));
      addresses.push_back(pages.back()->ptr().address);
    }
    for (uint32_t head = 0; head < 6; ++head) {
      tile_addresses.emplace_back();
      for (const auto& tile : tiles) tile_addresses.back().push_back(tile->ptr().address + heads_kv.head_offset(head));
    }
  }
  KvView view() const { return {addresses.data(), static_cast<int32_t>(addresses.size())}; }
  Ptr<const float> k(int32_t token) const { return kv.cptr() + static_cast<uint64_t>(token * 6 * format.head_dim); }
  Ptr<const float> v(int32_t token) const { return k(token) + static_cast<uint64_t>(3 * format.head_dim); }
  const std::byte* in_page(uint32_t head, int32_t token) const {
    return pages[static_cast<size_t>(token / 64)]->data() + format.head_offset(head) +
           static_cast<uint64_t>(token % 64) * format.token_bytes();
  }
  uint64_t slot(uint32_t head, int32_t slot) const {
    return tile_addresses[head][static_cast<size_t>(slot / 64)] + static_cast<uint64_t>(slot % 64) * heads_kv.token_bytes();
  }
  // Prompt tokens 0 .. n-2, and their conversions in slots n-2 .. 0.
  void fill(Rig& rig) {
    std::vector<Row> rows;
    for (int32_t i = 0; i + 1 < n; ++i) rows.push_back({0, i, 0});
    const KvView pages_view = view();
    rig->begin_step({Phase::prefill, rows, {&pages_view, 1}, format});
    rig->append_kv(kLayer, k(0), v(0), 6 * format.head_dim);
    rig->end_step();
    for (uint32_t head = 3; head < 6; ++head)
      for (int32_t t = 0; t + 1 < n; ++t) {
        const KvMove token{slot(head, n - 2 - t), reinterpret_cast<uintptr_t>(in_page(head, t)), 1};
        rig->kv_moves()->move_kv({&token, 1}, heads_kv.type, format.type, format.token_values());
      }
    for (uint32_t head = 0; head < 6; ++head) views.push_back({tile_addresses[head].data(), n, slot(head, n - 1)});
  }
};

TEST_P(CpuMoveKv, AStepAppendsToBothAndAttendsToTheHeads) {
  for (const auto& [type, heads_type] : pairs()) {
    if (finer(heads_type, type)) continue;
    for (const int32_t dim : {32, 64, 96, 512}) {
      const int32_t n = 150, n_heads = 6;
      Rig rig(GetParam(), 2, {n, n, n_heads, 3, dim, 64});
      Coarse c(type, heads_type, dim, n);
      c.fill(rig);
      Guarded<float> q(static_cast<size_t>(n_heads * dim)), out(q.size()), again(q.size());
      fill_normal(q, 9);
      const AttendShape shape{n_heads, n_heads * dim, n_heads * dim, 0.2f, 0};
      const Row row{0, n - 1, 0};
      const KvView view = c.view();
      Step step;
      step.phase = Phase::decode;
      step.rows = {&row, 1};
      step.sequences = {&view, 1};
      step.kv = c.format;
      step.heads = c.views;
      step.heads_kv = c.heads_kv;
      rig->begin_step(step);
      rig->append_kv(Coarse::kLayer, c.k(n - 1), c.v(n - 1), 6 * dim);
      rig->attend(Coarse::kLayer, q.cptr(), out.ptr(), shape);
      rig->end_step();
      for (uint32_t head = 3; head < 6; ++head) {
        const float* vectors[] = {c.kv.data() + (n - 1) * 6 * dim + (head - 3) * static_cast<uint32_t>(dim),
                                  c.kv.data() + (n - 1) * 6 * dim + head * static_cast<uint32_t>(dim)};
        std::vector<float> token(vectors[0], vectors[0] + dim);
        token.insert(token.end(), vectors[1], vectors[1] + dim);
        std::vector<std::byte> in_page(c.format.token_bytes());
        write_tokens(type, token.data(), static_cast<uint64_t>(dim), 1, in_page.data());
        ASSERT_EQ(std::memcmp(c.in_page(head, n - 1), in_page.data(), in_page.size()), 0);
        const std::vector<std::byte> want = converted_tokens(c.in_page(head, n - 1), type, heads_type, static_cast<uint64_t>(dim));
        ASSERT_EQ(std::memcmp(reinterpret_cast<const std::byte*>(c.slot(head, n - 1)), want.data(), want.size()), 0);
      }
      // The tiles, taken for pages of the coarser type, are attended to with the same bits.
      std::vector<uint64_t> as_pages;
      for (const auto& tile : c.tiles) as_pages.push_back(tile->ptr().address);
      const KvView tiles{as_pages.data(), static_cast<int32_t>(as_pages.size())};
      rig->begin_step({Phase::decode, {&row, 1}, {&tiles, 1}, c.heads_kv});
      rig->attend(Coarse::kLayer, q.cptr(), again.ptr(), shape);
      rig->end_step();
      ASSERT_TRUE(same_bits(out.data(), again.data(), out.size()));
      for (size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(std::isfinite(out[i]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuMoveKv, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::move_kv_test
