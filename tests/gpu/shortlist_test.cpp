// Tests sampling candidates on the device (cuda/kernels/shortlist.cu) against their definition.
#include "tests/gpu/device_fixture.h"
#include "tests/support/shortlist_reference.h"

namespace orrery::shortlist_test {
namespace {

using namespace testing;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ShortlistResult shortlist_of(Machine* m, Phase phase, const std::vector<float>& logits, const ShortlistRequest& request) {
  const int64_t n = static_cast<int64_t>(logits.size());
  const uint64_t bytes = (*m)->shortlist_bytes(n);
  if (bytes == 0) throw std::runtime_error("no shortlist of so many logits");
  // 16-byte aligned, as the interface demands. The floats behind the row's end do not belong to the row.
  Buffer<float> row(m, (logits.size() + 3) / 4 * 4);
  std::vector<float> padded(logits);
  padded.resize((logits.size() + 3) / 4 * 4, kInfinity);
  row.set(padded);
  Buffer<std::byte> out(m, bytes);
  m->begin(phase, 1);
  (*m)->shortlists()->shortlist(row.cptr(), n, request, out.ptr());
  m->end();
  return read_shortlist(out.get().data(), request);
}

void expect_same(const ShortlistResult& got, const ShortlistResult& expected) {
  EXPECT_EQ(got.head.n_best, expected.head.n_best);
  EXPECT_EQ(got.head.most, expected.head.most);
  EXPECT_EQ(got.head.most_allowed, expected.head.most_allowed);
  if (std::isfinite(expected.head.most)) {
    EXPECT_EQ(got.head.sum, expected.head.sum);  // to the last bit
  }
  if (std::isfinite(expected.head.most_allowed)) {
    EXPECT_NEAR(got.head.tempered_sum, expected.head.tempered_sum, 1e-12 * expected.head.tempered_sum);
  }
  ASSERT_EQ(got.sums.size(), expected.sums.size());
  for (size_t i = 0; i < got.sums.size(); ++i) ASSERT_NEAR(got.sums[i], expected.sums[i], 1e-12 * expected.sums[i]) << i;
  ASSERT_EQ(got.best.size(), expected.best.size());
  for (size_t i = 0; i < got.best.size(); ++i) {
    ASSERT_EQ(got.best[i].token, expected.best[i].token) << i;
    ASSERT_EQ(std::memcmp(&got.best[i].logit, &expected.best[i].logit, sizeof(float)), 0) << i;
  }
  ASSERT_EQ(got.logits.size(), expected.logits.size());
  EXPECT_EQ(std::memcmp(got.logits.data(), expected.logits.data(), got.logits.size() * sizeof(float)), 0);
}

std::vector<int32_t> some_tokens(size_t n, size_t n_vocab, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random.below(n_vocab));
  return tokens;
}

int32_t n_blocks(size_t n) { return static_cast<int32_t>((n + 255) / 256); }

TEST(GpuShortlist, AnyVocabulary) {
  Machine m(true, product_limits(1, 64));
  int turn = 0;
  for (const size_t n : {1u, 2u, 31u, 32u, 33u, 255u, 257u, 1000u, 4099u, 32003u, 128256u})
    for (const int32_t n_best : {0, 1, 40, 1024}) {
      SCOPED_TRACE(std::to_string(n) + ", the best " + std::to_string(n_best));
      const std::vector<int32_t> tokens = some_tokens(static_cast<size_t>(turn % 3 * 1024), n, 2);
      const ShortlistRequest request = {n_best, tokens, turn % 2 ? 1.25 : 0.0, turn % 4 > 1 ? n_blocks(n) : 0};
      const std::vector<float> logits = normal_values(n, static_cast<uint64_t>(++turn), 4.0f);
      expect_same(shortlist_of(&m, turn % 4 ? Phase::decode : Phase::prefill, logits, request), expected_shortlist(logits, request));
    }
}

// The best token and another one that is better than the rest, where threads and warps begin and end.
TEST(GpuShortlist, TheBestAnywhere) {
  Machine m(true, product_limits(1, 64));
  for (const size_t at : {0u, 4095u, 4096u, 8191u, 8192u, 12288u, 16383u, 16384u, 28672u, 32002u}) {
    SCOPED_TRACE(at);
    std::vector<float> logits(32003, -1.0f);
    logits[8193] = 4.0f, logits[at] = 5.0f;
    const ShortlistRequest request = {1, {}, 0.0, 0};
    expect_same(shortlist_of(&m, Phase::decode, logits, request), expected_shortlist(logits, request));
  }
}

TEST(GpuShortlist, OddRows) {
  Machine m(true, product_limits(1, 64));
  const auto with = [](std::vector<float> x, std::initializer_list<std::pair<size_t, float>> values) {
    for (const auto& [at, value] : values) x[at] = value;
    return x;
  };
  std::vector<float> rounded = normal_values(5000, 3, 2.0f), rising(5000), falling(5000), crowded(5000, -1.0f);
  for (float& x : rounded) x = std::round(x);  // zeros of both signs among many equals
  for (size_t i = 0; i < 5000; ++i) rising[i] = static_cast<float>(i), falling[i] = -static_cast<float>(i);
  for (size_t i = 3000; i < 4100; ++i) crowded[i] = 1.0f + 1e-3f * static_cast<float>(i % 700);  // the best side by side
  const std::vector<float> odd =
      with(rounded, {{0, kNan}, {31, kInfinity}, {32, -kInfinity}, {4999, std::numeric_limits<float>::max()}, {4998, kInfinity}});
  const std::vector<std::vector<float>> rows = {
      rounded,
      rising,
      falling,
      crowded,
      odd,
      std::vector<float>(5000, 0.0f),
      std::vector<float>(5000, -kInfinity),
      std::vector<float>(5000, kNan),
      std::vector<float>(5000, kInfinity),
      with(std::vector<float>(5000, kNan), {{4321, -7.0f}}),
      with(std::vector<float>(5000, -3e38f), {{17, 3e38f}, {4000, 1e-42f}}),
  };
  const std::vector<int32_t> tokens = {0, 31, 32, 4999, 0};
  for (size_t i = 0; i < rows.size(); ++i)
    for (const int32_t n_best : {1, 33, 1000, 1024}) {
      SCOPED_TRACE(std::to_string(i) + ", the best " + std::to_string(n_best));
      const ShortlistRequest request = {n_best, tokens, 0.5, n_best == 33 ? 20 : 0};
      expect_same(shortlist_of(&m, Phase::decode, rows[i], request), expected_shortlist(rows[i], request));
    }
}

// Masks that ban most, half, a few, all but one, or all tokens, one by one or in stretches, of rows whose best are banned by far: on one
// machine, beside requests without a mask.
std::vector<uint32_t> mask_of_tokens(size_t n, int kind, uint64_t seed) {
  Random random(seed);
  std::vector<uint32_t> mask((n + 31) / 32, kind == 5 ? ~0u : 0u);
  const size_t allowed[] = {3, 50, 97, 0, 0, 100}, stretch = seed % 2 ? 1 : 300;
  bool allows = false;
  for (size_t i = 0; i < n; ++i) {
    if (i % stretch == 0) allows = random.below(100) < allowed[kind];
    if (allows || (kind == 4 && i == n / 2)) mask[i / 32] |= 1u << (i % 32);
  }
  return mask;
}

TEST(GpuShortlist, UnderAMask) {
  Machine m(true, product_limits(1, 64));
  uint64_t turn = 0;
  for (const size_t n : {1u, 33u, 1000u, 4099u, 32003u})
    for (int kind = 0; kind < 6; ++kind)
      for (const int32_t n_best : {1, 40, 1024}) {
        SCOPED_TRACE(std::to_string(n) + ", mask " + std::to_string(kind) + ", the best " + std::to_string(n_best));
        const std::vector<uint32_t> mask = mask_of_tokens(n, kind, ++turn);
        std::vector<float> logits = normal_values(n, turn, 4.0f);
        if (turn % 3 == 0)
          for (size_t i = 0; i < n; ++i)
            if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[i] += 3000.0f;
        if (turn % 4 == 0)
          for (float& x : logits) x = std::round(x);
        if (turn % 5 == 0) logits[n / 2] = kNan;
        const std::vector<int32_t> tokens = some_tokens(9, n, 2);
        ShortlistRequest request = {n_best, tokens, turn % 2 ? 1.25 : 0.0, turn % 2 ? n_blocks(n) : 0, mask};
        const Phase phase = turn % 4 ? Phase::decode : Phase::prefill;
        expect_same(shortlist_of(&m, phase, logits, request), expected_shortlist(logits, request));
        if (n_best != 40) continue;
        request.mask = {};
        expect_same(shortlist_of(&m, phase, logits, request), expected_shortlist(logits, request));
      }
}

// Bands of the logits that rank behind an entry, and the entries of two bands.
TEST(GpuShortlist, Tails) {
  Machine m(true, product_limits(1, 64));
  int turn = 0;
  for (const size_t n : {2u, 33u, 1000u, 4099u, 32003u, 128256u}) {
    SCOPED_TRACE(n);
    std::vector<float> logits = normal_values(n, n, 3.0f);
    if (++turn % 2)
      for (float& x : logits) x = std::round(8 * x) / 8;  // many equals
    if (n > 100) logits[7] = kNan, logits[50] = -kInfinity, logits[99] = kInfinity;
    Buffer<float> row(&m, (n + 3) / 4 * 4);
    std::vector<float> padded(logits);
    padded.resize((n + 3) / 4 * 4, 0.5f);
    row.set(padded);
    Buffer<std::byte> out(&m, m->shortlist_bytes(static_cast<int64_t>(n)));
    ShortlistTail tail;
    tail.last = {logits[n / 3], static_cast<int32_t>(n / 3)};
    tail.inverse_temperature = 0.7, tail.bands_per_logit = 128 * 0.7f;
    const std::vector<uint32_t> mask = mask_of_tokens(n, turn % 3, static_cast<uint64_t>(turn));
    if (turn % 4 > 1) tail.mask = mask;
    std::vector<uint64_t> sums(ShortlistTail::kBands, 77);
    m->shortlists()->shortlist_bands(row.cptr(), static_cast<int64_t>(n), tail, out.ptr(), sums.data());
    const std::vector<uint64_t> expected = expected_band_sums(logits, tail);
    std::vector<double> n_entries(sums.size());  // of each band
    for (const int32_t band : expected_bands(logits, tail))
      if (band >= 0 && static_cast<size_t>(band) < n_entries.size()) n_entries[static_cast<size_t>(band)] += 1;
    for (size_t i = 0; i < sums.size(); ++i) {
      const double each = n_entries[i];
      ASSERT_NEAR(static_cast<double>(sums[i]), static_cast<double>(expected[i]), each + 1e-12 * static_cast<double>(expected[i])) << i;
    }
    for (const auto& [band, other] : {std::make_pair(0, 0), std::make_pair(40, 3), std::make_pair(5, ShortlistTail::kBands - 1)}) {
      auto got = std::make_unique<ShortlistTailEntries>(), wanted = std::make_unique<ShortlistTailEntries>();
      got->n = -1;
      m->shortlists()->shortlist_entries(row.cptr(), static_cast<int64_t>(n), tail, band, other, out.ptr(), got.get());
      expected_entries(logits, tail, band, other, wanted.get());
      ASSERT_EQ(got->n, wanted->n);
      if (got->n > ShortlistTail::kMostEntries) continue;
      const auto by_token = [](const ShortlistEntry& a, const ShortlistEntry& b) { return a.token < b.token; };
      std::sort(got->entries, got->entries + got->n, by_token), std::sort(wanted->entries, wanted->entries + got->n, by_token);
      EXPECT_EQ(std::memcmp(got->entries, wanted->entries, static_cast<size_t>(got->n) * sizeof(ShortlistEntry)), 0);
    }
  }
}

// As many entries of a band as are listed.
TEST(GpuShortlist, TheMostEntriesOfATail) {
  Machine m(true, product_limits(1, 64));
  constexpr auto kMost = static_cast<size_t>(ShortlistTail::kMostEntries);
  std::vector<float> logits((kMost + 41 + 3) / 4 * 4, -100.0f);
  std::fill(logits.begin(), logits.begin() + kMost + 1, 1.0f);
  Buffer<float> row(&m, logits);
  const auto n = static_cast<int64_t>(logits.size());
  Buffer<std::byte> out(&m, m->shortlist_bytes(n));
  ShortlistTail tail;
  tail.last = {1.0f, 0};
  tail.inverse_temperature = 1.0, tail.bands_per_logit = 128.0f;
  auto got = std::make_unique<ShortlistTailEntries>();
  m->shortlists()->shortlist_entries(row.cptr(), n, tail, 0, 0, out.ptr(), got.get());
  ASSERT_EQ(got->n, ShortlistTail::kMostEntries);
  std::sort(got->entries, got->entries + got->n, [](const ShortlistEntry& a, const ShortlistEntry& b) { return a.token < b.token; });
  for (int32_t i = 0; i < got->n; ++i) {
    ASSERT_EQ(got->entries[i].token, i + 1);
    ASSERT_EQ(got->entries[i].logit, 1.0f);
  }
}

// The largest vocabulary with a shortlist. With one more token there is no shortlist.
TEST(GpuShortlist, TheLargestVocabulary) {
  Machine m(true, product_limits(1, 64));
  constexpr size_t kMost = 524288;
  EXPECT_EQ(m->shortlist_bytes(kMost + 1), 0u);
  EXPECT_EQ(m->shortlist_bytes(0), 0u);
  const std::vector<float> logits = normal_values(kMost, 9, 3.0f);
  const std::vector<int32_t> tokens = {0, kMost - 1};
  const ShortlistRequest request = {1024, tokens, 2.0, n_blocks(kMost)};
  expect_same(shortlist_of(&m, Phase::decode, logits, request), expected_shortlist(logits, request));
}

}  // namespace
}  // namespace orrery::shortlist_test
