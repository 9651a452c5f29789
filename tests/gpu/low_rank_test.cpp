// Tests low-rank keys (cuda/kernels/low_rank.cu) against the CPU backend's plain kernels.
#include "tests/gpu/kv_pages.h"

namespace orrery::low_rank_test {
namespace {

using namespace testing;

constexpr int32_t kKvHeads = 3, kLayers = 2, kTokens = 300;

struct Shape {
  int32_t dim, rank, n_rot;
  bool interleaved;
  float magnitude;
  bool has_turns;  // LowRankKeys::rotations; without them the GPU makes turns itself
};
constexpr Shape kShapes[] = {{16, 5, 16, false, 1.0f, false},  {32, 40, 32, true, 1.0f, true},     {80, 7, 40, false, 1.19f, true},
                             {128, 33, 64, true, 1.0f, false}, {128, 130, 128, false, 1.1f, true}, {512, 70, 512, false, 1.0f, false}};

StepLimits limits(int32_t dim) {
  StepLimits l;
  l.max_rows = 1, l.max_context = 320;
  l.n_heads = kKvHeads, l.n_kv_heads = kKvHeads, l.head_dim = dim, l.max_in = 256;
  return l;
}

struct Made {
  std::vector<float> products, sums, rows, slots;  // slots: K and V of the rebuilt tokens
};

std::vector<float> floats_of_halves(const std::vector<std::byte>& bytes, size_t n) {
  std::vector<float> out(n);
  cpu::load_kv(TensorType::f16, bytes.data(), static_cast<int32_t>(n), out.data());
  return out;
}

Made make(Machine* m, KvType type, KvType slot_type, const Shape& shape) {
  const KvFormat kv = kv_format(type, kLayers, kKvHeads, shape.dim), slot = kv_format(slot_type, 1, 1, shape.dim);
  const Pages pages(m, kv, kTokens, 5);
  std::vector<float> frequencies;
  for (int32_t i = 0; i < shape.n_rot / 2; ++i) frequencies.push_back(static_cast<float>(std::pow(1e4, -2.0 * i / shape.n_rot)));
  LowRankKeys keys;
  keys.kv = kv, keys.layer = 1, keys.rank = shape.rank, keys.pages = pages.addresses();
  keys.rope = {shape.interleaved, shape.n_rot, frequencies.data(), shape.magnitude};
  std::vector<float> turns;
  const auto add_turns = [&](int32_t position, double magnitude) {
    for (const auto f : {+[](double x) { return std::cos(x); }, +[](double x) { return std::sin(x); }})
      for (const float frequency : frequencies)
        turns.push_back(static_cast<float>(f(static_cast<double>(position) * static_cast<double>(frequency)) * magnitude));
  };
  constexpr int32_t kPages = (kTokens + kPageTokens - 1) / kPageTokens;
  for (int32_t page = 0; page < kPages; ++page) add_turns(page * kPageTokens, static_cast<double>(shape.magnitude));
  for (int32_t p = 0; p < kPageTokens; ++p) add_turns(p, 1);
  Buffer<float> turns_at(m, turns);
  if (shape.has_turns) keys.page_rotations = turns_at.ptr(), keys.rotations = turns_at.ptr() + static_cast<uint64_t>(kPages * shape.n_rot);
  const auto width = static_cast<size_t>(keys.width()), rank = static_cast<size_t>(shape.rank);
  std::vector<std::byte> basis(2 * rank * width);
  const std::vector<float> values = normal_values(rank * width, 6, .1f);
  cpu::store_kv(TensorType::f16, values.data(), static_cast<int32_t>(values.size()), basis.data());
  const uint64_t shift = shape.rank == 7 ? 8 : 0;  // 16 bytes need not divide the place of a basis
  basis.insert(basis.begin(), shift, std::byte{0});
  basis.insert(basis.end(), shift, std::byte{0});  // a buffer of the emulation ends at a page's end
  Buffer<std::byte> basis_at(m, basis), rows(m, 2 * rank * kTokens), work(m, keys.work_bytes());
  keys.basis = basis_at.ptr() + shift, keys.rows = rows.ptr(), keys.work = work.ptr();
  Made made;
  made.products.resize(width * width), made.sums.resize(width);
  (*m)->low_rank()->key_products(keys, kTokens, made.products.data(), made.sums.data());
  (*m)->low_rank()->low_rank_rows(keys, 0, 259);
  (*m)->low_rank()->low_rank_rows(keys, 259, kTokens);
  EXPECT_TRUE((*m)->synchronize().ok());
  made.rows = floats_of_halves(rows.get(), rank * kTokens);
  // Both backends start from the same coefficients, so that different roundings of these do not matter here.
  std::vector<std::byte> same(2 * rank * kTokens);
  const std::vector<float> row_values = normal_values(rank * kTokens, 7);
  cpu::store_kv(TensorType::f16, row_values.data(), static_cast<int32_t>(row_values.size()), same.data());
  rows.set(same);

  constexpr size_t kSlots = 40;
  std::vector<std::byte> fetched(kSlots * kv.value_bytes());
  std::vector<float> v = normal_values(kSlots * static_cast<size_t>(shape.dim), 8);
  for (size_t i = 0; i < v.size(); ++i)
    if (i / 32 % 3 == 1) v[i] *= 1e-7f;  // a copy by way of floats would change these
  cpu::store_kv(value_tensor_type(type), v.data(), static_cast<int32_t>(v.size()), fetched.data());
  std::vector<std::byte> zeros(kSlots * slot.token_bytes());
  Buffer<std::byte> values_at(m, fetched), slots(m, zeros);
  const auto to = [&](uint64_t n) { return Ptr<std::byte>{slots.address() + n * slot.token_bytes()}; };
  const auto from = [&](uint64_t n) { return Ptr<const std::byte>{values_at.address() + n * kv.value_bytes()}; };
  const std::vector<RebuiltRun> runs = {
      {280, 20, to(0), from(0), 2}, {7, 1, to(20), from(20), 0}, {64, 8, to(21), from(21), 2}, {100, 11, to(29), {}, 1}};
  (*m)->low_rank()->rebuild_keys(keys, slot_type, runs);
  EXPECT_TRUE((*m)->synchronize().ok());
  made.slots = read_tokens(slot_type, slots.get().data(), static_cast<uint64_t>(shape.dim), kSlots);
  return made;
}

void expect_as_plain(KvType type, KvType slot_type, const Shape& shape) {
  SCOPED_TRACE(std::string(kv_type_name(type)) + " to " + kv_type_name(slot_type) + " of " + std::to_string(shape.dim));
  const auto [expected, got] = on_both(limits(shape.dim), [&](Machine* m) { return make(m, type, slot_type, shape); });
  expect_near(got.products, expected.products, 1e-6);
  expect_near(got.sums, expected.sums, 1e-5);
  expect_near(got.rows, expected.rows, 1e-3);
  // The bound is one step of the slots' type: a value may round to the other side.
  const KvType keys = key_type(slot_type);
  expect_near(got.slots, expected.slots, keys == KvType::f32 ? 1e-6 : keys == KvType::f16 ? 1e-3 : keys == KvType::q8_0 ? 1e-2 : .14);
  const auto dim = static_cast<size_t>(shape.dim);
  for (size_t at = dim; at < got.slots.size(); at += 2 * dim)
    EXPECT_TRUE(same_bits(got.slots.data() + at, expected.slots.data() + at, dim)) << "V of token " << at / (2 * dim);
}

TEST(GpuLowRank, AsThePlainPath) {
  for (const Shape& shape : kShapes) {
    for (const KvType type : kKvTypes)
      for (const KvType slot_type : {type, KvType::q4_0}) {
        // All types in one shape; in the others, slots of the pages' type, and of another one beside F16.
        if (&shape != &kShapes[1] && slot_type != type && type != KvType::f16) continue;
        if (shape.dim == 512 && type != KvType::f16 && type != KvType::q4_0) continue;  // 1,536 columns take the time of all others
        if (stores(type, shape.dim) && stores(slot_type, shape.dim)) expect_as_plain(type, slot_type, shape);
      }
    if (stores(KvType::k8v4, shape.dim) && shape.dim < 512) expect_as_plain(KvType::q8_0, KvType::k8v4, shape);
  }
}

TEST(GpuLowRank, TheLargestHeads) {
  Shape shape = kShapes[0];
  shape.dim = 256, shape.rank = 9, shape.n_rot = 256;
  expect_as_plain(KvType::f16, KvType::f16, shape);
}

// More runs than a grid may have in y, all but the last one empty.
TEST(GpuLowRank, AnyNumberOfRuns) {
  constexpr int32_t kDim = 32, kRank = 4, kHeads = 96;
  constexpr size_t kRuns = 65537;
  const KvFormat kv = kv_format(KvType::f32, 1, kHeads, kDim), slot = kv_format(KvType::f32, 1, 1, kDim);
  const auto [expected, got] = on_both(limits(kDim), [&](Machine* m) {
    LowRankKeys keys;
    keys.kv = kv, keys.rank = kRank;
    const auto values = static_cast<size_t>(kRank * keys.width());
    EXPECT_LE(kRuns, LowRankKeys::kBatch * static_cast<size_t>(keys.padded_width()) * sizeof(float) / sizeof(RebuiltRun)) << "one launch";
    std::vector<std::byte> basis(2 * values), rows(2 * kRank);
    cpu::store_kv(TensorType::f16, normal_values(values, 6).data(), static_cast<int32_t>(values), basis.data());
    cpu::store_kv(TensorType::f16, normal_values(kRank, 7).data(), kRank, rows.data());
    Buffer<std::byte> basis_at(m, basis), rows_at(m, rows), work(m, keys.work_bytes());
    Buffer<std::byte> slots(m, std::vector<std::byte>(slot.token_bytes()));
    keys.basis = basis_at.ptr(), keys.rows = rows_at.ptr(), keys.work = work.ptr();
    std::vector<RebuiltRun> runs(kRuns);
    runs.back() = {0, 1, slots.ptr(), {}, 3};
    (*m)->low_rank()->rebuild_keys(keys, KvType::f32, runs);
    const Status status = (*m)->synchronize();
    EXPECT_TRUE(status.ok()) << status.message();
    return read_tokens(KvType::f32, slots.get().data(), kDim);
  });
  expect_near(got, expected, 1e-6);
  EXPECT_NE(got[0], 0.0f);
}

// Keys of a single head, not rotated back, with a basis of its own; and the queries of all heads, each by its KV head's basis.
Made make_by_head(Machine* m, KvType type, int32_t dim, int32_t rank) {
  constexpr int32_t kGroup = 2, kHeads = kGroup * kKvHeads;
  const KvFormat kv = kv_format(type, kLayers, kKvHeads, dim);
  const Pages pages(m, kv, kTokens, 5);
  const size_t n = static_cast<size_t>(dim), values = n * static_cast<size_t>(rank), gap = values + 16;  // from one basis to the next
  LowRankKeys keys;
  keys.kv = kv, keys.layer = 1, keys.rank = rank, keys.pages = pages.addresses(), keys.kv_head = 1;
  std::vector<std::byte> bases(2 * gap * kKvHeads);
  const std::vector<float> basis_values = normal_values(gap * kKvHeads, 6, .1f);
  cpu::store_kv(TensorType::f16, basis_values.data(), static_cast<int32_t>(basis_values.size()), bases.data());
  Buffer<std::byte> bases_at(m, bases), rows(m, 2 * static_cast<size_t>(rank) * kTokens), work(m, keys.work_bytes());
  Buffer<float> q(m, normal_values(n * kHeads, 9)), out(m, std::vector<float>(static_cast<size_t>(rank * kHeads)));
  keys.basis = bases_at.ptr(), keys.rows = rows.ptr(), keys.work = work.ptr();
  Made made;
  made.products.resize(n * n), made.sums.resize(n);
  (*m)->low_rank()->key_products(keys, kTokens, made.products.data(), made.sums.data());
  (*m)->low_rank()->low_rank_rows(keys, 0, kTokens);
  keys.kv_head = 0;
  (*m)->low_rank()->low_rank_queries(keys, 2 * gap, kHeads, q.ptr(), out.ptr());
  EXPECT_TRUE((*m)->synchronize().ok());
  made.rows = floats_of_halves(rows.get(), static_cast<size_t>(rank) * kTokens);
  made.slots = out.get();
  return made;
}

TEST(GpuLowRank, ByHeadAsThePlainPath) {
  for (const auto& [dim, rank] : {std::pair(16, 4), std::pair(32, 32), std::pair(80, 20), std::pair(128, 40)})
    for (const KvType type : kKvTypes) {
      if (!stores(type, dim)) continue;
      SCOPED_TRACE(std::string(kv_type_name(type)) + " of " + std::to_string(dim));
      const int32_t d = dim, r = rank;
      const auto [expected, got] = on_both(limits(dim), [&](Machine* m) { return make_by_head(m, type, d, r); });
      expect_near(got.products, expected.products, 1e-6);
      expect_near(got.sums, expected.sums, 1e-5);
      expect_near(got.rows, expected.rows, 1e-3);
      expect_near(got.slots, expected.slots, 1e-5);
    }
}

}  // namespace
}  // namespace orrery::low_rank_test
