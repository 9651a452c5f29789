// append_kv and attend, of every KV type on every instruction set.
//
// The oracle reads the pages back with gguf's own dequantization and attends in double precision, the whole
// softmax at once.  Pages lie scattered, each at the end of its own mapping and poisoned where no token is: a
// key that is not visible must contribute nothing, whatever its bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/checked.h"
#include "tests/support/bf16.h"
#include "tests/support/doubles.h"
#include "tests/support/kv_tokens.h"
#include "tests/unit/cpu/fixture.h"

namespace orrery::attend_test {
namespace {

using namespace orrery::testing;

// One sequence's pages and the true keys and values of each position, as floats before they are stored.
class Sequence {
 public:
  Sequence(const KvFormat& format, int32_t n_tokens, uint64_t seed)
      : format_(format), row_(2 * static_cast<size_t>(format.n_kv_heads * format.head_dim)), kv_(static_cast<size_t>(n_tokens) * row_) {
    for (int32_t i = 0; i < div_up(n_tokens, kPageTokens); ++i) {
      pages_.push_back(std::make_unique<Guarded<std::byte>>(format.page_span()));
      addresses_.push_back(pages_.back()->ptr().address);
    }
    fill_normal(kv_, seed);
  }
  KvView view() const { return {addresses_.data(), static_cast<int32_t>(addresses_.size())}; }
  // (n_kv_heads, head_dim) of K, then V, rows stride() apart.
  Ptr<const float> k(int32_t token) const { return kv_.cptr() + static_cast<uint64_t>(token) * row_; }
  Ptr<const float> v(int32_t token) const { return k(token) + row_ / 2; }
  int64_t stride() const { return static_cast<int64_t>(row_); }
  float* token(int32_t t) const { return kv_.data() + static_cast<size_t>(t) * row_; }

  // What lies in the pages.
  std::vector<float> stored(int32_t layer, int32_t head, int32_t token, bool value) const {
    const std::byte* at = pages_[static_cast<size_t>(token / kPageTokens)]->data() + format_.head_offset(layer, head) +
                          static_cast<size_t>(token % kPageTokens) * format_.token_bytes() +
                          (value && format_.shared_values == 0 ? format_.key_bytes() : 0);
    std::vector<float> x = (value ? read_value : read_key)(format_.type, at, static_cast<uint64_t>(format_.head_dim));
    if (value) x.resize(static_cast<size_t>(format_.value_dim()));
    return x;
  }
  const std::byte* bytes(int32_t page) const { return pages_[static_cast<size_t>(page)]->data(); }

 private:
  KvFormat format_;
  size_t row_;
  Guarded<float> kv_;
  std::vector<std::unique_ptr<Guarded<std::byte>>> pages_;
  std::vector<uint64_t> addresses_;
};

struct Attention {
  KvFormat format;
  int32_t n_heads;
  int32_t window;
  float scale;
  std::vector<float> sinks = {};    // (n_heads), or none
  int32_t ahead = 0, n_tokens = 0;  // AttendShape::ahead; with it all of the sequence's tokens
};

// Appends tokens [first, first + n) of `s` to `layer` and attends to them with queries q (n, n_heads,
// head_dim). Without queries it only appends.
std::vector<float> run(Rig& rig, const Attention& a, Phase phase, const Sequence& s, int32_t first, int32_t n, const float* q,
                       int32_t layer = 0) {
  const size_t width = static_cast<size_t>(a.n_heads * a.format.head_dim),
               out_width = static_cast<size_t>(a.n_heads * a.format.value_dim());
  const auto v = [&] { return a.format.shared_values > 0 ? Ptr<const float>() : s.v(first); };
  std::vector<Row> rows;
  for (int32_t i = 0; i < n; ++i) rows.push_back({0, first + i, 0});
  const KvView view = s.view();
  if (q == nullptr) {
    rig->begin_step({phase, rows, {&view, 1}, a.format});
    rig->append_kv(layer, s.k(first), v(), s.stride());
    rig->end_step();
    return {};
  }
  Guarded<float> queries(width * static_cast<size_t>(n)), out(out_width * static_cast<size_t>(n));
  std::memcpy(queries.data(), q, queries.size() * sizeof(float));
  rig->begin_step({phase, rows, {&view, 1}, a.format});
  rig->append_kv(layer, s.k(first), v(), s.stride());
  AttendShape shape{a.n_heads, static_cast<int64_t>(width), static_cast<int64_t>(out_width), a.scale, a.window};
  shape.ahead = a.ahead;
  if (!a.sinks.empty()) shape.sinks = {reinterpret_cast<uintptr_t>(a.sinks.data())};
  rig->attend(layer, queries.cptr(), out.ptr(), shape);
  rig->end_step();
  return std::vector<float>(out.data(), out.data() + out.size());
}

bool in_bf16(const std::string& path, KvType type, Phase phase) { return phase == Phase::prefill && rounds_attention(path, type); }

// The values of K and V of one KV head's positions up to `last`, read back once for all query heads of its group.
struct StoredHead {
  StoredHead(const Sequence& s, int32_t layer, int32_t kv_head, int32_t from, int32_t last) : first(from) {
    for (int32_t t = first; t <= last; ++t) {
      k.push_back(s.stored(layer, kv_head, t, false));
      v.push_back(s.stored(layer, kv_head, t, true));
    }
  }
  const std::vector<float>& key(int32_t t) const { return k[static_cast<size_t>(t - first)]; }
  const std::vector<float>& value(int32_t t) const { return v[static_cast<size_t>(t - first)]; }
  int32_t first;
  std::vector<std::vector<float>> k, v;  // (positions, head_dim), (positions, value_dim)
};
int32_t first_visible(const Attention& a, int32_t p) { return a.window > 0 ? std::max(0, p - a.window + 1) : 0; }

int32_t last_visible(const Attention& a, int32_t p) { return a.ahead > 0 ? std::min(p + a.ahead, a.n_tokens - 1) : p; }

enum class Rounding { none, tiles, words };  // of what q, K and V are as bf16; with the bounds of 16-bit words

struct Expected {
  std::vector<double> out;     // (value_dim)
  std::vector<double> spread;  // sum of weights * |v - out|: weights that are each wrong by a share e move out by e / (1 - e) of it
  std::vector<double> size;    // sum of weights * |v|
  std::vector<double> words;   // how far weights move it out that are words of 16 bits times scales (attends_in_words)
  double score_size = 0;       // the largest sum of |q k|, scaled
  double score_words = 0;      // how far queries that are words move a score at most
};

// softmax(q K^T) V over what position `p` may see, and over the sink of head h, whose value is 0.
Expected expected(const std::string& path, const Attention& a, const StoredHead& stored, int32_t p, const float* q, int32_t h,
                  Rounding rounding = Rounding::none) {
  const int32_t dim = a.format.head_dim, value_dim = a.format.value_dim();
  const bool tiles = rounding == Rounding::tiles;
  std::vector<float> rounded(static_cast<size_t>(dim));
  const auto kept = [&](const std::vector<float>& x) {
    if (!tiles) return x.data();
    for (size_t i = 0; i < x.size(); ++i) rounded[i] = to_bf16(x[i]);
    return static_cast<const float*>(rounded.data());
  };
  const float log2_e = 1.44269504088896f;
  std::vector<double> scaled;
  for (int32_t i = 0; i < dim; ++i)
    scaled.push_back(tiles ? to_bf16(q[i] * (a.scale * log2_e)) * std::log(2.0) : static_cast<double>(q[i]) * a.scale);
  const auto largest_of_blocks = [&](const auto& x) {  // for each of the dimensions
    std::vector<double> most(x.size());
    for (size_t i = 0; i < x.size(); ++i) most[i / 32 * 32] = std::max(most[i / 32 * 32], std::fabs(static_cast<double>(x[i])));
    for (size_t i = 0; i < x.size(); ++i) most[i] = most[i / 32 * 32];
    return most;
  };
  const int32_t from = first_visible(a, p), to = last_visible(a, p);
  Expected e;
  std::vector<double> scores;
  const double sink = a.sinks.empty() ? -INFINITY : static_cast<double>(a.sinks[static_cast<size_t>(h)]);
  double largest = sink;
  for (int32_t t = from; t <= to; ++t) {
    const std::vector<float>& k = stored.key(t);
    const float* x = kept(k);
    const double size = dot_of_sizes(x, scaled.data(), scaled.size());
    if (rounding == Rounding::words)
      e.score_words = std::max(e.score_words, word_error(path, a.format.type, q, k.data(), k.size()) * static_cast<double>(a.scale));
    scores.push_back(dot(x, scaled.data(), scaled.size()));
    if (std::isfinite(size)) e.score_size = std::max(e.score_size, size);
    largest = std::max(largest, scores.back());
  }
  for (auto* sums : {&e.out, &e.spread, &e.size, &e.words}) sums->assign(static_cast<size_t>(value_dim), 0.0);
  double sum = 0;
  for (double& w : scores) sum += w = std::exp(w - largest);
  sum += std::exp(sink - largest);
  const auto each = [&](const auto& add) {
    for (int32_t t = from; t <= to; ++t) {
      const double w = scores[static_cast<size_t>(t - from)] / sum;
      if (w > 0) add(w, kept(stored.value(t)));
    }
  };
  const auto n = static_cast<size_t>(value_dim);
  each([&](double w, const float* v) { add_times(w, v, n, e.out.data()), add_size_times(w, v, n, e.size.data()); });
  each([&](double w, const float* v) { add_distance_times(w, v, e.out.data(), n, e.spread.data()); });
  for (size_t i = 0; i < n; ++i) e.spread[i] += std::exp(sink - largest) / sum * std::fabs(e.out[i]);
  if (rounding != Rounding::words) return e;
  // A page's weights times V's scales are words in units of the largest, and off by half of one; codes are at most what the scale is of.
  for (int32_t page = from / kPageTokens; page <= p / kPageTokens; ++page) {
    std::vector<double> most(static_cast<size_t>(value_dim));
    const int32_t first = std::max(from, page * kPageTokens), last = std::min(p, page * kPageTokens + kPageTokens - 1);
    for (int32_t t = first; t <= last; ++t) {
      const std::vector<double> v = largest_of_blocks(stored.value(t));
      for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], scores[static_cast<size_t>(t - from)] / sum * v[i]);
    }
    for (size_t i = 0; i < most.size(); ++i) e.words[i] += (last - first + 1) * .5 / 32512 * most[i];
  }
  return e;
}

// Tiles round a weight to bf16, of eight bits, its fraction to a 64th, and its score, of a number of two, to 2^-10 with every 32
// dimensions.
double tile_weight_error(int32_t dim) {
  const double to_64th = 0.0025, steps = (dim + 31) / 32 + 1;
  const double e = 1.0 / 256 + to_64th + std::log(2.0) * steps / 2048;
  return e / (1 - e);
}

// known: may be null. Of each head the result that is not rounded: prefill's check fills it, and decode's check of the same row reads it.
void check_row(const std::string& path, Phase phase, const Attention& a, const Sequence& s, int32_t p, const float* q, const float* out,
               int32_t layer = 0, std::vector<Expected>* known = nullptr) {
  const int32_t dim = a.format.head_dim, value_dim = a.format.value_dim();
  const bool tiles = in_bf16(path, a.format.type, phase);
  const bool words = !tiles && phase == Phase::decode && attends_in_words(path, a.format.type);
  const int32_t group = a.n_heads / a.format.n_kv_heads;
  std::unique_ptr<StoredHead> stored;
  for (int32_t h = 0; h < a.n_heads; ++h) {
    const bool reads = known && phase == Phase::decode && !words;
    if (h % group == 0 && !reads) stored = std::make_unique<StoredHead>(s, layer, h / group, first_visible(a, p), last_visible(a, p));
    const auto compare = [&](const Expected& e, double of_spread, double of_size, double of_words = 0) {
      for (int32_t i = 0; i < value_dim; ++i) {
        const size_t at = static_cast<size_t>(i);
        ASSERT_NEAR(out[h * value_dim + i], e.out[at], 1e-5 + of_spread * e.spread[at] + of_size * e.size[at] + of_words * e.words[at])
            << (phase == Phase::prefill ? "prefill" : "decode") << " position " << p << " head " << h << " dim " << i << " of " << dim
            << ", group " << a.n_heads / a.format.n_kv_heads << ", window " << a.window;
      }
    };
    const Expected exact =
        reads ? known->at(static_cast<size_t>(h)) : expected(path, a, *stored, p, q + h * dim, h, words ? Rounding::words : Rounding::none);
    if (known && phase == Phase::prefill) known->push_back(exact);
    if (!tiles) {
      const double weights = words ? std::exp(exact.score_words) - 1 : 0;
      compare(exact, weights / (1 - weights), 0, words);
      continue;
    }
    const double weight_error = tile_weight_error(dim), u = 1.0 / 256;
    compare(expected(path, a, *stored, p, q + h * dim, h, Rounding::tiles), weight_error, 0);
    // q, k and v change by u of themselves, scores so by (2 u + u u) of their terms, weights by e to the power of twice that.
    const double weights = std::exp(2 * (2 * u + u * u) * exact.score_size) * (1 + weight_error) - 1;
    compare(exact, weights, u * (1 + weights));
  }
}

class CpuAttend : public ::testing::TestWithParam<std::string> {};

// The stored bytes: exactly what the formats define, in the right place, and nothing else of the page
// touched.
TEST_P(CpuAttend, AppendWritesTheFormatsBytesAndNothingElse) {
  for (KvType type : kKvTypes)
    for (int32_t dim : {32, 64, 96, 128, 512}) {
      const KvFormat format{type, 2, 3, dim};
      const Sequence s(format, 130, 5);
      Rig rig(GetParam(), 2, {130, 130, 3, 3, dim, 64});
      std::vector<Row> rows;
      for (int32_t i = 0; i < 130; ++i) rows.push_back({0, i, 0});
      const KvView view = s.view();
      rig->begin_step({Phase::prefill, rows, {&view, 1}, format});
      rig->append_kv(1, s.k(0), s.v(0), s.stride());
      rig->end_step();
      for (int32_t page = 0; page < 3; ++page) {
        std::vector<std::byte> want(format.page_span(), std::byte{0xFF});
        for (int32_t t = 0; t < kPageTokens && page * kPageTokens + t < 130; ++t)
          for (int32_t h = 0; h < 3; ++h)
            for (const bool value : {false, true})
              (value ? write_value : write_key)(type, s.token(page * kPageTokens + t) + (3 * value + h) * dim, static_cast<uint64_t>(dim),
                                                want.data() + format.head_offset(1, h) + static_cast<uint64_t>(t) * format.token_bytes() +
                                                    (value ? format.key_bytes() : 0));
        ASSERT_EQ(std::memcmp(want.data(), s.bytes(page), want.size()), 0) << dim << " page " << page;
      }
    }
}

TEST_P(CpuAttend, MatchesTheDoubleSoftmax) {
  const int32_t lengths[] = {1, 2, 63, 64, 65, 130, 600}, groups[] = {1, 2, 3, 4, 7, 8, 16};
  const int32_t dims[] = {8, 16, 24, 32, 40, 64, 80, 96, 104, 112, 128, 192, 256, 264, 320, 512};
  for (KvType type : kKvTypes)
    for (size_t d = 0; d < std::size(dims); ++d) {
      const int32_t dim = dims[d];
      if (!stores(type, dim)) continue;
      // The usual sizes of heads meet every group; 512 meets the groups of its models; the others every second one, of even or of odd place
      // in the list.
      for (size_t g = 0; g < std::size(groups); ++g) {
        const int32_t group = groups[g];
        if (dim % 32 != 0 && group > 4) continue;
        if (dim == 512 ? group != 1 && group != 2 && group != 4 && group != 8 : dim != 64 && dim != 128 && (g + d) % 2 == 0) continue;
        const int32_t n_kv = group >= 7 ? 1 : 2;
        const Attention a{{type, 1, n_kv, dim}, n_kv * group, 0, 1.7f / std::sqrt(static_cast<float>(dim))};
        // Long enough for two splits where the model sizes are usual, for three pages everywhere.
        const int32_t n = (dim == 64 || dim == 128) && group <= 4 ? 600 : 130;
        const Sequence s(a.format, n, static_cast<uint64_t>(dim * 31 + group));
        Rig rig(GetParam(), 2, {n, n, a.n_heads, n_kv, dim, 64});
        std::vector<float> q(static_cast<size_t>(n * a.n_heads * dim));
        Random random(3);
        for (float& x : q) x = random.normal();
        const size_t width = static_cast<size_t>(a.n_heads * dim);
        // Of a long prompt the beginning and the end attend, which hold all rows that are looked at.
        const int32_t beginning = std::min(n, 130), end = n > beginning ? n - 10 : n;
        const std::vector<float> prefill = run(rig, a, Phase::prefill, s, 0, beginning, q.data());
        std::vector<float> last;
        if (n > beginning) {
          run(rig, a, Phase::prefill, s, beginning, end - beginning, nullptr);
          last = run(rig, a, Phase::prefill, s, end, n - end, q.data() + static_cast<size_t>(end) * width);
        }
        for (int32_t length : lengths) {
          if (length > n) continue;
          const int32_t p = length - 1;
          const float* row = q.data() + static_cast<size_t>(p) * width;
          const float* of_prompt =
              p < beginning ? prefill.data() + static_cast<size_t>(p) * width : last.data() + static_cast<size_t>(p - end) * width;
          std::vector<Expected> known;
          check_row(GetParam(), Phase::prefill, a, s, p, row, of_prompt, 0, &known);
          const std::vector<float> decode = run(rig, a, Phase::decode, s, p, 1, row);
          check_row(GetParam(), Phase::decode, a, s, p, row, decode.data(), 0, &known);
          if (HasFatalFailure()) return;
        }
      }
    }
}

// Latent attention: a row is the key, and its first values are the value.
TEST_P(CpuAttend, ValuesThatAreAPartOfKeys) {
  struct Shape {
    int32_t dim, values;
  };
  for (KvType type : {KvType::f32, KvType::f16, KvType::q8_0, KvType::q4_0})
    for (const Shape shape :
         {Shape{24, 16}, Shape{48, 32}, Shape{72, 64}, Shape{96, 64}, Shape{320, 256}, Shape{576, 512}, Shape{568, 504}})
      for (const int32_t group : {1, 3, 5, 8, 20}) {
        if (!stores(type, shape.dim) || !stores(type, shape.values)) continue;
        if (shape.dim > 320 && group != 20 && group != 1) continue;
        const Attention a{{type, 2, 1, shape.dim, shape.values}, group, 0, 1.7f / std::sqrt(static_cast<float>(shape.dim))};
        const int32_t n = shape.dim == 48 ? 600 : 130;  // 600: two splits
        const Sequence s(a.format, n, static_cast<uint64_t>(shape.dim + group));
        Rig rig(GetParam(), 2, {n, n, group, 1, shape.dim, 64});
        const int32_t width = group * shape.dim, out_width = group * shape.values;
        std::vector<float> q(static_cast<size_t>(n * width));
        Random random(3);
        for (float& x : q) x = random.normal();
        const std::vector<float> prefill = run(rig, a, Phase::prefill, s, 0, n, q.data(), 1);
        for (const int32_t p : {0, 62, 63, 64, 129, 599}) {
          if (p >= n) continue;
          const float* row = q.data() + p * width;
          check_row(GetParam(), Phase::prefill, a, s, p, row, prefill.data() + p * out_width, 1);
          const std::vector<float> decode = run(rig, a, Phase::decode, s, p, 1, row, 1);
          check_row(GetParam(), Phase::decode, a, s, p, row, decode.data(), 1);
          if (HasFatalFailure()) return;
        }
      }
}

// A query with something in it that is no number: no output of its head may look like one, and no other head's may change.
TEST_P(CpuAttend, AQueryThatIsNoNumberShows) {
  for (KvType type : kKvTypes)
    for (const int32_t group : {1, 2, 3, 4, 7, 8})
      for (const float odd : {INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
        const Attention a{{type, 1, 1, 64}, group, 0, .125f};
        const int32_t n = 70;
        const Sequence s(a.format, n, 23);
        Rig rig(GetParam(), 1, {n, n, group, 1, 64, 64});
        std::vector<float> q(static_cast<size_t>(n * group) * 64);
        Random random(5);
        for (float& x : q) x = random.normal();
        run(rig, a, Phase::prefill, s, 0, n, q.data());
        const float* last = q.data() + static_cast<size_t>((n - 1) * group) * 64;
        std::vector<float> row(last, last + group * 64);
        const std::vector<float> before = run(rig, a, Phase::decode, s, n - 1, 1, row.data());
        row[static_cast<size_t>(group - 1) * 64 + 40] = odd;
        const std::vector<float> out = run(rig, a, Phase::decode, s, n - 1, 1, row.data());
        EXPECT_TRUE(same_bits(out.data(), before.data(), static_cast<size_t>(group - 1) * 64)) << "group " << group;
        for (size_t i = static_cast<size_t>(group - 1) * 64; i < out.size(); ++i)
          ASSERT_FALSE(std::isfinite(out[i])) << "type " << static_cast<int>(type) << ", group " << group << ", " << odd << ": " << out[i];
      }
}

// Groups of three and of seven heads have kernels of their own: the bits of the same heads in groups of four and of eight.
TEST_P(CpuAttend, ThreeAndSevenHeadsHaveTheBitsOfFourAndEight) {
  for (KvType type : kKvTypes)
    for (const int32_t dim : {32, 64, 96, 128})
      for (const int32_t group : {4, 8}) {
        if (GetParam() == "amx" && type == KvType::q8_0) continue;  // tiles take seven heads, vectors take eight
        for (const int32_t window : {0, 70}) {                      // 70: the first key lies within a page
          const int32_t n = 129;
          const Attention more{{type, 1, 1, dim}, group, window, .125f}, fewer{{type, 1, 1, dim}, group - 1, window, .125f};
          const Sequence s(more.format, n, 31);
          Rig rig(GetParam(), 1, {n, n, group, 1, dim, 64});
          std::vector<float> q(static_cast<size_t>(n * group * dim));
          Random random(14);
          for (float& x : q) x = random.normal();
          run(rig, more, Phase::prefill, s, 0, n, q.data());
          const std::vector<float> all = run(rig, more, Phase::decode, s, n - 1, 1, q.data());
          const std::vector<float> most = run(rig, fewer, Phase::decode, s, n - 1, 1, q.data());
          ASSERT_TRUE(same_bits(most.data(), all.data(), most.size()))
              << kv_type_name(type) << ", " << group << " heads of " << dim << ", window " << window;
        }
      }
}

// Rows of encoders see keys after their own position: all of them, or a window's half.
TEST_P(CpuAttend, KeysAhead) {
  for (KvType type : {KvType::f32, KvType::f16, KvType::q8_0})
    for (int32_t dim : {32, 64, 128})
      for (const auto& [window, ahead] : {std::pair(0, 1 << 28), std::pair(5, 4), std::pair(65, 64), std::pair(0, 1), std::pair(300, 70)})
        for (int32_t n : {1, 2, 63, 64, 65, 130, 257}) {
          const Attention a{{type, 1, 2, dim}, 6, window, 1 / std::sqrt(static_cast<float>(dim)), {}, ahead, n};
          const int32_t width = 6 * dim;
          const Sequence s(a.format, n, 17);
          Rig rig(GetParam(), 2, {n, n, 6, 2, dim, 64});
          std::vector<float> q(static_cast<size_t>(n * width));
          Random random(4);
          for (float& x : q) x = random.normal();
          const std::vector<float> prefill = run(rig, a, Phase::prefill, s, 0, n, q.data());
          for (int32_t p : {0, 1, 31, 62, 63, 64, 65, 128, 129, 192, 256}) {
            if (p >= n) continue;
            check_row(GetParam(), Phase::prefill, a, s, p, q.data() + p * width, prefill.data() + p * width);
            if (HasFatalFailure()) return;
          }
        }
}

TEST_P(CpuAttend, SlidingWindows) {
  for (KvType type : {KvType::f32, KvType::f16, KvType::q8_0, KvType::k8v4})
    for (int32_t dim : {64, 512})
      for (int32_t window : {1, 2, 63, 64, 65, 100, 512, 513, 2000}) {
        if (dim == 512 && (window > 65 || type == KvType::k8v4)) continue;
        const Attention a{{type, 1, 2, dim}, 6, window, 1 / std::sqrt(static_cast<float>(dim))};
        const int32_t n = dim == 64 ? 640 : 130, width = 6 * dim;
        const Sequence s(a.format, n, 17);
        Rig rig(GetParam(), 2, {n, n, 6, 2, dim, 64});
        std::vector<float> q(static_cast<size_t>(n * width));
        Random random(4);
        for (float& x : q) x = random.normal();
        const std::vector<float> prefill = run(rig, a, Phase::prefill, s, 0, n, q.data());
        for (int32_t p : {0, 1, 62, 63, 64, 65, 128, 511, 512, 576, 639}) {
          if (p >= n) continue;
          const float* row = q.data() + p * width;
          check_row(GetParam(), Phase::prefill, a, s, p, row, prefill.data() + p * width);
          const std::vector<float> decode = run(rig, a, Phase::decode, s, p, 1, row);
          check_row(GetParam(), Phase::decode, a, s, p, row, decode.data());
          if (HasFatalFailure()) return;
        }
      }
}

// Of each query head another sink: far below the scores, among them, above them, and so far above that nothing else counts.
TEST_P(CpuAttend, Sinks) {
  for (KvType type : {KvType::f32, KvType::f16, KvType::q8_0})
    for (const int32_t dim : {64, 512})
      for (const int32_t window : {0, 70}) {
        const Attention a{{type, 1, 2, dim}, 6, window, 1 / std::sqrt(static_cast<float>(dim)), {-300.0f, -2.0f, 0.5f, 3.0f, 9.0f, 300.0f}};
        const int32_t n = dim == 64 ? 600 : 201, width = 6 * dim;  // 600: two splits
        const Sequence s(a.format, n, 17);
        Rig rig(GetParam(), 2, {n, n, 6, 2, dim, 64});
        std::vector<float> q(static_cast<size_t>(n * width));
        Random random(4);
        for (float& x : q) x = random.normal();
        const std::vector<float> prefill = run(rig, a, Phase::prefill, s, 0, n, q.data());
        for (int32_t p : {0, 1, 63, 64, 200, 599}) {
          if (p >= n) continue;
          const float* row = q.data() + p * width;
          check_row(GetParam(), Phase::prefill, a, s, p, row, prefill.data() + p * width);
          const std::vector<float> decode = run(rig, a, Phase::decode, s, p, 1, row);
          check_row(GetParam(), Phase::decode, a, s, p, row, decode.data());
          if (HasFatalFailure()) return;
        }
      }
}

// However a prompt is cut into chunks, and by however many threads, every row's bits are the same.
TEST_P(CpuAttend, BitsDoNotDependOnChunksOrThreads) {
  const int32_t n = 140;  // three pages
  for (KvType type : {KvType::f16, KvType::q4_0, KvType::k8v4})
    for (int32_t window : {0, 70})
      for (int32_t group : {1, 3, 4}) {
        const Attention a{{type, 1, 2, 96}, 2 * group, window, 0.1f};
        const size_t width = static_cast<size_t>(a.n_heads * 96);
        const Sequence s(a.format, n, 29);
        std::vector<float> q(static_cast<size_t>(n) * width);
        Random random(6);
        for (float& x : q) x = random.normal();
        std::vector<float> whole;
        for (int32_t n_threads : {1, 2, 3, 4}) {
          Rig rig(GetParam(), n_threads, {n, n, a.n_heads, 2, 96, 64});
          for (int32_t chunk : {n, 1, 7, 64, 100}) {
            if (n_threads > 1 && chunk != n && chunk != 7) continue;
            std::vector<float> out;
            const Sequence fresh(a.format, n, 29);
            for (int32_t first = 0; first < n; first += chunk) {
              const std::vector<float> part =
                  run(rig, a, Phase::prefill, fresh, first, std::min(chunk, n - first), q.data() + static_cast<size_t>(first) * width);
              out.insert(out.end(), part.begin(), part.end());
            }
            if (whole.empty()) whole = out;
            ASSERT_TRUE(same_bits(out.data(), whole.data(), whole.size())) << "chunk " << chunk << " threads " << n_threads;
          }
        }
      }
}

// Rows of several sequences in one step, in every order, give what each gives alone.
TEST_P(CpuAttend, SequencesDoNotMix) {
  const Attention a{{KvType::f16, 2, 2, 64}, 8, 0, 0.125f};
  const size_t width = 8 * 64;
  const int32_t lengths[] = {700, 3, 65, 129, 640};
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<KvView> views;
  for (int32_t i = 0; i < 5; ++i) {
    sequences.push_back(std::make_unique<Sequence>(a.format, lengths[i], static_cast<uint64_t>(40 + i)));
    views.push_back(sequences.back()->view());
  }
  Rig rig(GetParam(), 3, {700, 700, 8, 2, 64, 64});
  std::vector<float> q(700 * width);
  Random random(8);
  for (float& x : q) x = random.normal();
  for (Phase phase : {Phase::prefill, Phase::decode}) {
    std::vector<float> alone;
    std::vector<Row> rows;
    for (int32_t i = 0; i < 5; ++i) {
      run(rig, a, Phase::prefill, *sequences[static_cast<size_t>(i)], 0, lengths[i], q.data(), 1);
      const std::vector<float> last =
          run(rig, a, phase, *sequences[static_cast<size_t>(i)], lengths[i] - 1, 1, q.data() + static_cast<size_t>(i) * width, 1);
      alone.insert(alone.end(), last.begin(), last.end());
      rows.push_back({0, lengths[i] - 1, i});
    }
    Guarded<float> queries(5 * width), out(5 * width);
    std::memcpy(queries.data(), q.data(), queries.size() * sizeof(float));
    rig->begin_step({phase, rows, views, a.format});
    rig->attend(1, queries.cptr(), out.ptr(), {8, static_cast<int64_t>(width), static_cast<int64_t>(width), 0.125f, 0});
    rig->end_step();
    EXPECT_TRUE(same_bits(out.data(), alone.data(), alone.size()));
  }
}

// Scores far apart, equal, and infinite: no NaN unless the input brings one.
TEST_P(CpuAttend, ExtremeScores) {
  const int32_t n = 200;
  for (KvType type : {KvType::f32, KvType::f16}) {
    const Attention a{{type, 1, 1, 64}, 2, 0, 1.0f};
    for (float size : {0.0f, 1e-30f, 1e-4f, 30.0f, 1e3f, 1e4f, 1e18f}) {
      if (type == KvType::f16 && size > 1e4f) continue;
      const Sequence s(a.format, n, 3);
      for (int32_t t = 0; t < n; ++t)
        for (int32_t i = 0; i < 64; ++i) s.token(t)[i] *= size;
      std::vector<float> q(static_cast<size_t>(n) * 128);
      Random random(9);
      for (float& x : q) x = random.normal();
      Rig rig(GetParam(), 1, {n, n, 2, 1, 64, 64});
      const std::vector<float> prefill = run(rig, a, Phase::prefill, s, 0, n, q.data());
      const std::vector<float> decode = run(rig, a, Phase::decode, s, n - 1, 1, q.data() + (n - 1) * 128);
      for (float x : prefill) ASSERT_TRUE(std::isfinite(x)) << size;
      for (float x : decode) ASSERT_TRUE(std::isfinite(x)) << size;
      if (size >= 31) continue;
      for (int32_t p : {0, 70, 199}) {
        if (in_bf16(GetParam(), type, Phase::prefill)) {
          check_row(GetParam(), Phase::prefill, a, s, p, q.data() + p * 128, prefill.data() + p * 128);
          continue;
        }
        for (int32_t h = 0; h < 2; ++h) {
          const std::vector<double> e = expected(GetParam(), a, StoredHead(s, 0, 0, 0, p), p, q.data() + p * 128 + h * 64, h).out;
          // Scores of size 240: their rounding is what the exponential magnifies.
          for (int32_t i = 0; i < 64; ++i)
            ASSERT_NEAR(prefill[static_cast<size_t>(p * 128 + h * 64 + i)], e[static_cast<size_t>(i)], size > 1 ? 1e-3 : 2e-6);
        }
      }
    }
    // Keys of -infinity weigh nothing, also where a page has no others.
    for (int32_t last : {63, 100, 199}) {
      const Sequence s(a.format, n, 3);
      for (int32_t t = 0; t < last; ++t) s.token(t)[0] = -INFINITY;
      std::vector<float> q(static_cast<size_t>(n) * 128, 0.25f);
      Rig rig(GetParam(), 1, {n, n, 2, 1, 64, 64});
      run(rig, a, Phase::prefill, s, 0, n, q.data());
      for (Phase phase : {Phase::prefill, Phase::decode}) {
        const std::vector<float> out = run(rig, a, phase, s, n - 1, 1, q.data() + (n - 1) * 128);
        check_row(GetParam(), phase, a, s, n - 1, q.data(), out.data());
      }
    }
  }
}

// Scores that grow from page to page by more than any unit of weights could hold, fall, and grow again.
TEST_P(CpuAttend, ScoresThatClimb) {
  const int32_t n = 520;
  const Attention a{{KvType::f16, 1, 1, 64}, 4, 0, 1.0f};
  for (float step : {0.5f, 3.0f, 40.0f, 400.0f}) {
    // Floats round the last ones by more than the tolerance allows; so do tiles, but theirs knows of it.
    if (step > 3 && !in_bf16(GetParam(), KvType::f16, Phase::prefill)) continue;
    const Sequence s(a.format, n, 11);
    for (int32_t t = 0; t < n; ++t) s.token(t)[0] = step * static_cast<float>((t + 20) / 40 % 7);
    std::vector<float> q(static_cast<size_t>(n) * 256);
    Random random(12);
    for (float& x : q) x = 0.25f * random.normal();
    for (size_t i = 0; i < q.size(); i += 64) q[i] = i % 128 == 0 ? 1.0f : -1.0f;
    Rig rig(GetParam(), 2, {n, n, 4, 1, 64, 64});
    const std::vector<float> prefill = run(rig, a, Phase::prefill, s, 0, n, q.data());
    for (int32_t p : {0, 19, 20, 63, 64, 140, 259, 300, 447, 448, 519})
      check_row(GetParam(), Phase::prefill, a, s, p, q.data() + p * 256, prefill.data() + p * 256);
  }
}

// A NaN in the keys or values of a later position leaves earlier ones alone, in the same chunk too.
TEST_P(CpuAttend, LaterPositionsCannotReachBack) {
  const int32_t n = 100;
  for (int32_t group : {1, 3, 16})
    for (int32_t first : {0, 64}) {  // of K and V, or of V alone
      const Attention a{{KvType::f16, 1, 1, 64}, group, 0, 0.125f};
      const size_t width = static_cast<size_t>(group) * 64;
      const Sequence clean(a.format, n, 3), spoilt(a.format, n, 3);
      for (int32_t i = first; i < 128; ++i) spoilt.token(70)[i] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> q(static_cast<size_t>(n) * width);
      Random random(10);
      for (float& x : q) x = random.normal();
      Rig rig(GetParam(), 2, {n, n, group, 1, 64, 64});
      const std::vector<float> a_out = run(rig, a, Phase::prefill, clean, 0, n, q.data());
      const std::vector<float> b_out = run(rig, a, Phase::prefill, spoilt, 0, n, q.data());
      EXPECT_TRUE(same_bits(a_out.data(), b_out.data(), 70 * width));
      for (size_t i = 70 * width; i < b_out.size(); ++i) ASSERT_TRUE(std::isnan(b_out[i]));
      EXPECT_TRUE(std::isnan(run(rig, a, Phase::decode, spoilt, 99, 1, q.data())[0]));
    }
}

// Nor can one that has left the window.
TEST_P(CpuAttend, PositionsBeforeTheWindowCannotReachIn) {
  const int32_t n = 200;
  const Attention a{{KvType::f16, 1, 1, 64}, 3, 40, 0.125f};
  const Sequence clean(a.format, n, 3), spoilt(a.format, n, 3);
  for (int32_t i = 0; i < 128; ++i) spoilt.token(70)[i] = std::numeric_limits<float>::infinity();
  std::vector<float> q(static_cast<size_t>(n) * 192);
  Random random(10);
  for (float& x : q) x = random.normal();
  Rig rig(GetParam(), 2, {n, n, 3, 1, 64, 64});
  const std::vector<float> a_out = run(rig, a, Phase::prefill, clean, 0, n, q.data());
  const std::vector<float> b_out = run(rig, a, Phase::prefill, spoilt, 0, n, q.data());
  EXPECT_TRUE(same_bits(a_out.data(), b_out.data(), 70 * 192));
  for (size_t i = 70 * 192; i < 110 * 192; ++i) ASSERT_FALSE(std::isfinite(b_out[i]));
  EXPECT_TRUE(same_bits(a_out.data() + 110 * 192, b_out.data() + 110 * 192, 90 * 192));
}

// A head whose slots are positions reads the tokens where they lie, in the order of its slots: the bits of slots that hold copies of them.
TEST_P(CpuAttend, TokensInPlaceGiveTheBitsOfTheirCopies) {
  for (const KvType type : {KvType::f16, KvType::q8_0, KvType::q4_0, KvType::k8v4})
    for (const int32_t dim : {32, 64, 128}) {
      const int32_t n = 900, n_heads = 6, n_kv = 2, layer = 1;
      const Attention a{{type, 2, n_kv, dim}, n_heads, 0, .2f};
      const Sequence s(a.format, n, 5);
      const size_t width = static_cast<size_t>(n_heads * dim);
      Random random(8);
      std::vector<float> q(width);
      for (float& x : q) x = random.normal();
      std::vector<std::vector<uint32_t>> positions(4);  // of both layers' heads: over and below a split
      std::vector<std::vector<std::byte>> slots(4);
      std::vector<std::vector<uint64_t>> tiles(4);
      std::vector<HeadView> in_place(4), copied(4);
      const int32_t own_slots[] = {0, 0, dim == 64 ? 600 : 333, 99}, lengths[] = {1, 1, 700, 100};
      std::vector<float> outs[3];
      for (const int32_t n_threads : {1, 3}) {
        Rig rig(GetParam(), n_threads, {n, n, n_heads, n_kv, dim, 64});
        run(rig, a, Phase::prefill, s, 0, n - 1, nullptr, layer);
        for (size_t head = 0; head < 4; ++head) {
          positions[head].clear();
          for (int32_t i = 0; i < lengths[head]; ++i)  // the first split of the longest head lies in order
            positions[head].push_back(dim == 64 && i < 512 ? static_cast<uint32_t>(i)
                                                           : static_cast<uint32_t>(random.below(static_cast<uint64_t>(n - 1))));
          slots[head].assign(static_cast<size_t>(lengths[head]) * a.format.token_bytes(), std::byte{});
          for (size_t i = 0; i < positions[head].size(); ++i)
            std::memcpy(&slots[head][i * a.format.token_bytes()],
                        s.bytes(static_cast<int32_t>(positions[head][i] / 64)) +
                            a.format.head_offset(layer, static_cast<int32_t>(head % 2)) + positions[head][i] % 64 * a.format.token_bytes(),
                        a.format.token_bytes());
          tiles[head].clear();
          for (int32_t i = 0; i < lengths[head]; i += kPageTokens)
            tiles[head].push_back(reinterpret_cast<uintptr_t>(&slots[head][static_cast<size_t>(i) * a.format.token_bytes()]));
          in_place[head] = HeadView(), copied[head] = HeadView();
          in_place[head].n_keys = copied[head].n_keys = lengths[head];
          in_place[head].positions = positions[head].data(), in_place[head].own_slot = own_slots[head];
          copied[head].tiles = tiles[head].data();
          copied[head].append_at = reinterpret_cast<uintptr_t>(&slots[head][static_cast<size_t>(own_slots[head]) * a.format.token_bytes()]);
          positions[head][static_cast<size_t>(own_slots[head])] = UINT32_MAX;  // stands for the step's token
        }
        const Row row{0, n - 1, 0};
        const KvView view = s.view();
        for (const bool copies : {true, false}) {
          Guarded<float> queries(width), out(width);
          std::memcpy(queries.data(), q.data(), width * sizeof(float));
          Step step;
          step.phase = Phase::decode, step.rows = {&row, 1}, step.sequences = {&view, 1}, step.kv = a.format;
          step.heads = copies ? copied : in_place, step.heads_kv = a.format;
          rig->begin_step(step);
          rig->append_kv(layer, s.k(n - 1), s.v(n - 1), s.stride());
          rig->attend(layer, queries.cptr(), out.ptr(), {n_heads, static_cast<int64_t>(width), static_cast<int64_t>(width), a.scale, 0});
          rig->end_step();
          outs[copies] = std::vector<float>(out.data(), out.data() + width);
        }
        for (const float x : outs[1]) ASSERT_TRUE(std::isfinite(x));
        ASSERT_TRUE(same_bits(outs[0].data(), outs[1].data(), width)) << dim << " dimensions, " << n_threads << " threads";
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuAttend, ::testing::ValuesIn(paths()), PathName());

}  // namespace
}  // namespace orrery::attend_test
