// Tests weights on the device: cuda/device/formats.h, cuda/kernels/blocks.cuh and weights.cu together give exactly the file's values.
#include "runtime/gguf/dequantize.h"
#include "cuda/device/formats.h"
#include "tests/gpu/device_fixture.h"
#include "tests/gpu/plain_rows.h"

namespace orrery::formats_test {
namespace {

using namespace testing;

std::vector<float> embedded(TensorType type, int64_t n_cols, int32_t n_rows, const std::byte* table) {
  StepLimits limits;
  limits.max_rows = n_rows, limits.max_context = 64, limits.n_heads = limits.n_kv_heads = 1, limits.head_dim = 32, limits.max_in = 32;
  Machine m(true, limits);
  Buffer<std::byte> at(&m, m->weight_bytes(type, n_rows, n_cols));
  Weight weight;
  EXPECT_TRUE(m->place_weight(type, n_rows, n_cols, table, at.ptr(), &weight).ok());
  Buffer<float> out(&m, static_cast<size_t>(n_rows * n_cols));
  m.begin(Phase::prefill, n_rows);  // row i is token i
  m->embed(weight, 1.0f, out.ptr());
  m.end();
  return out.get();
}

// A step's rows lie in pinned memory and in scratch until the device has run it. Other scratch memory for the next step, larger or not,
// takes neither away.
TEST(GpuFormats, ScratchChangesBehindAStep) {
  const int32_t n_rows = 5;
  const int64_t n_cols = 96;
  const std::vector<float> table = normal_values(static_cast<size_t>(n_rows * n_cols), 5);
  std::vector<uint64_t> schedules = {0};
#ifdef ORRERY_EMULATED
  for (const uint64_t seed : emulated::schedules()) schedules.push_back(seed);
#endif
  for (const uint64_t schedule : schedules)
    for (const Phase phase : {Phase::prefill, Phase::decode})
      for (const int32_t more : {0, 1 << 16}) {  // the latter's page tables are longer than all before
        SCOPED_TRACE(schedule);
        StepLimits limits = product_limits(n_rows, 32);
        Machine m(true, limits);
        Buffer<std::byte> at(&m, m->weight_bytes(TensorType::f32, n_rows, n_cols));
        Weight weight;
        ASSERT_TRUE(
            m->place_weight(TensorType::f32, n_rows, n_cols, reinterpret_cast<const std::byte*>(table.data()), at.ptr(), &weight).ok());
        Buffer<float> out(&m, table.size());
        limits.max_context += more;
        const uint64_t bytes = m->scratch_bytes(limits);
        const Ptr<std::byte> scratch = m.take(bytes);
        m->upload(scratch, std::vector<std::byte>(bytes, std::byte{0xFF}).data(), bytes);
        ASSERT_TRUE(m->synchronize().ok());
#ifdef ORRERY_EMULATED
        emulated::set_schedule(schedule);
#endif
        m.begin(phase, n_rows);
        m->embed(weight, 1.0f, out.ptr());
        m->end_step();
        ASSERT_TRUE(m->set_scratch(scratch, limits).ok());
        ASSERT_TRUE(m->synchronize().ok());
        const std::vector<float> got = out.get();
#ifdef ORRERY_EMULATED
        emulated::set_schedule(0);
#endif
        EXPECT_EQ(std::memcmp(got.data(), table.data(), table.size() * sizeof(float)), 0) << more;
      }
}

// Rows that the host writes: several buffers of short rows, and rows that fill a buffer each, in both phases.
TEST(GpuFormats, RowsThatTheHostWrites) {
  const RowReader read = [](const void* context, int32_t token, float* row) {
    const int64_t n = *static_cast<const int64_t*>(context);
    for (int64_t i = 0; i < n; ++i) row[i] = static_cast<float>(token * 1024 + i % 1021);
  };
  for (const auto& [n_rows, n_cols] : {std::pair<int32_t, int64_t>{5, 33}, {70, 20000}, {3, int64_t{1} << 20}})
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      SCOPED_TRACE(n_cols);
      Machine m(true, product_limits(n_rows, 32));
      Buffer<float> out(&m, static_cast<size_t>(n_rows * n_cols));
      m.begin(phase, n_rows);  // row i is token i
      m->read_rows(read, &n_cols, n_cols, out.ptr());
      m.end();
      const std::vector<float> got = out.get();
      std::vector<float> expected(static_cast<size_t>(n_cols));
      for (int32_t row = 0; row < n_rows; ++row) {
        read(&n_cols, row, expected.data());
        ASSERT_EQ(std::memcmp(got.data() + row * n_cols, expected.data(), expected.size() * sizeof(float)), 0) << row;
      }
    }
}

TEST(GpuFormats, EmbeddingsAreTheFilesValues) {
  const int32_t n_rows = 5;
  for (const TypeTraits& type : kTypeTraits)
    for (const int64_t n_cols : {32, 96, 288, 256, 768, 33, 7}) {
      if (n_cols % type.block_elements != 0) continue;
      const uint64_t n = static_cast<uint64_t>(n_rows * n_cols);
      std::vector<std::byte> table = random_blocks(type.type, n, 3, 1.0f);
      std::vector<float> expected(n);
      gguf::dequantize_row(type.type, table.data(), expected.data(), n);
      const std::vector<float> got = embedded(type.type, n_cols, n_rows, table.data());
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(bits_of(got[i]), bits_of(expected[i])) << type.name << ", " << n_cols << " columns, value " << i << ": " << got[i];
    }
}

// Random bytes, so that every field of a block has every value, and a target that is not zero before.
TEST(GpuFormats, RowsAreThoseOfPlainCode) {
  Random random(11);
  for (const TypeTraits& type : kTypeTraits)
    for (const int64_t n_cols : {7, 32, 64, 96, 256, 512, 768, 2304}) {
      if (n_cols % type.block_elements != 0) continue;
      for (int i = 0; i < 40; ++i) {
        std::vector<std::byte> file(row_bytes(type.type, static_cast<uint64_t>(n_cols)));
        for (std::byte& b : file) b = static_cast<std::byte>(random.bits());
        std::vector<std::byte> expected(cuda::device_row_bytes(type.type, n_cols)), got(expected.size() + 1, std::byte{0xA5});
        plain::repack_row(type.type, n_cols, file.data(), expected.data());
        cuda::repack_row(type.type, n_cols, file.data(), got.data());
        ASSERT_EQ(got.back(), std::byte{0xA5}) << type.name << ", " << n_cols << " columns: written behind the row";
        got.pop_back();
        ASSERT_TRUE(got == expected) << type.name << ", " << n_cols << " columns";
      }
    }
}

// A matrix that came to the device as in the file: the bytes of plain code, and none behind them. Random bytes, on a target that is not zero.
TEST(GpuFormats, BlocksOfTheFileAreRepackedThere) {
  Machine m(true, product_limits(1, 32));
  Random random(12);
  for (const TypeTraits& type : kTypeTraits)
    for (const auto& [n_rows, n_cols] : {std::pair<int64_t, int64_t>{1, 7}, {5, 33}, {3, 96}, {130, 256}, {7, 2304}}) {
      if (n_cols % type.block_elements != 0) continue;
      std::vector<std::byte> file(row_bytes(type.type, static_cast<uint64_t>(n_rows * n_cols)));
      for (std::byte& b : file) b = static_cast<std::byte>(random.bits());
      const uint64_t from_bytes = row_bytes(type.type, static_cast<uint64_t>(n_cols)), to_bytes = cuda::device_row_bytes(type.type, n_cols);
      std::vector<std::byte> expected(static_cast<size_t>(n_rows) * to_bytes + 64, std::byte{0xA5});
      for (size_t i = 0; i < static_cast<size_t>(n_rows); ++i)
        plain::repack_row(type.type, n_cols, file.data() + i * from_bytes, expected.data() + i * to_bytes);
      Buffer<std::byte> from(&m, file.size()), to(&m, expected.size());
      from.set(file), to.set(std::vector<std::byte>(expected.size(), std::byte{0xA5}));
      m.begin(Phase::prefill, 1);
      m->repack_there(type.type, n_rows, n_cols, {from.ptr().address}, to.ptr());
      m.end();
      ASSERT_TRUE(to.get() == expected) << type.name << ", " << n_rows << " x " << n_cols;
    }
}

// Blocks with one bit set, for every bit: each bit changes the values as it should.
TEST(GpuFormats, EveryBitOfABlockCounts) {
  for (const TypeTraits& type : kTypeTraits) {
    if (type.block_elements == 1) continue;
    const int32_t n_rows = static_cast<int32_t>(type.block_bytes) * 8;
    std::vector<std::byte> table(static_cast<size_t>(n_rows) * type.block_bytes);
    const std::vector<std::byte> base = random_blocks(type.type, type.block_elements, 9, 1.0f);
    for (size_t bit = 0; bit < static_cast<size_t>(n_rows); ++bit) {
      std::byte* block = table.data() + bit * type.block_bytes;
      std::memcpy(block, base.data(), base.size());
      block[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    }
    std::vector<float> expected(static_cast<size_t>(n_rows) * type.block_elements);
    gguf::dequantize_row(type.type, table.data(), expected.data(), expected.size());
    const std::vector<float> got = embedded(type.type, type.block_elements, n_rows, table.data());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_TRUE(bits_of(got[i]) == bits_of(expected[i]) || (std::isnan(got[i]) && std::isnan(expected[i])))
          << type.name << ", bit " << i / type.block_elements << ", value " << i % type.block_elements << ": " << got[i];
  }
}

// A matrix of several halves of the pinned memory, and one whose last half is not full. The device has the bytes of plain code whatever the
// number of threads, with and without a load, and when the last thing that the device does is a copy.
TEST(GpuFormats, DeviceBytesDependOnNoThread) {
  Machine m(true, product_limits(1, 32));
  const int64_t n_cols = 4096, n_rows = 9001;  // 21 MB, 30 MB
  for (const TensorType type : {TensorType::q4_k, TensorType::q6_k}) {
    const uint64_t from_bytes = row_bytes(type, static_cast<uint64_t>(n_cols)), to_bytes = cuda::device_row_bytes(type, n_cols);
    const std::vector<std::byte> file = random_blocks(type, static_cast<uint64_t>(n_rows * n_cols), 21, 1.0f);
    std::vector<std::byte> expected(static_cast<size_t>(n_rows) * to_bytes);
    for (size_t i = 0; i < static_cast<size_t>(n_rows); ++i)
      plain::repack_row(type, n_cols, file.data() + i * from_bytes, expected.data() + i * to_bytes);
    Buffer<std::byte> at(&m, m->weight_bytes(type, n_rows, n_cols));
    for (const int32_t n_threads : {-1, 1, 2, 5}) {  // -1: without a load
      at.set(std::vector<std::byte>(expected.size(), std::byte{0xFF}));
#ifdef ORRERY_EMULATED
      emulated::set_schedule(emulated::kLatest);
#endif
      const std::unique_ptr<Loading> loading = n_threads > 0 ? m->begin_loading(file.size(), n_threads, Priority::normal) : nullptr;
      EXPECT_EQ(loading != nullptr, n_threads > 0);
      Weight weight;
      ASSERT_TRUE(m->place_weight(type, n_rows, n_cols, file.data(), at.ptr(), &weight).ok());
      const std::vector<std::byte> got = at.get();
      EXPECT_TRUE(got == expected) << type_traits(type)->name << ", " << n_threads << " threads";
#ifdef ORRERY_EMULATED
      emulated::set_schedule(0);
#endif
    }
  }
}

#ifdef ORRERY_EMULATED
// Each call of the driver that a load makes at its beginning fails in turn. The load is refused then, and no error stays.
TEST(GpuFormats, ARefusedLoadPlacesAsWithoutOne) {
  Machine m(true, product_limits(1, 32));
  const int64_t n_cols = 512, n_rows = 12000;  // 6 MB
  const std::vector<std::byte> file = random_blocks(TensorType::q8_0, static_cast<uint64_t>(n_rows * n_cols), 4, 1.0f);
  const size_t live = emulated::n_live();
  bool refused = true;
  for (int64_t fails = 0; refused; ++fails) {
    int64_t calls = 0;
    emulated::fault = [&] { return calls++ == fails ? cuda::DriverError::out_of_memory : cuda::DriverError::none; };
    std::unique_ptr<Loading> loading = m->begin_loading(file.size(), 2, Priority::normal);
    emulated::fault = nullptr;
    refused = calls > fails;
    EXPECT_EQ(loading == nullptr, refused) << "call " << fails;
    EXPECT_TRUE(refused || fails >= 4) << "two halves and their events are four calls";
    Buffer<std::byte> at(&m, m->weight_bytes(TensorType::q8_0, n_rows, n_cols));
    Weight weight;
    ASSERT_TRUE(m->place_weight(TensorType::q8_0, n_rows, n_cols, file.data(), at.ptr(), &weight).ok()) << "call " << fails;
    std::vector<std::byte> last(cuda::device_row_bytes(TensorType::q8_0, n_cols));
    plain::repack_row(TensorType::q8_0, n_cols, file.data() + file.size() - row_bytes(TensorType::q8_0, n_cols), last.data());
    const std::vector<std::byte> got = at.get();
    EXPECT_TRUE(std::equal(last.begin(), last.end(), got.end() - static_cast<std::ptrdiff_t>(last.size()))) << "call " << fails;
  }
  EXPECT_EQ(emulated::n_live(), live);  // what a load takes goes with it
}
#endif

// On the device a matrix takes at most 2% more bytes than in the file.
TEST(GpuFormats, TakesNoMoreThanTheFile) {
  StepLimits limits;
  limits.max_rows = 1, limits.max_context = 64, limits.n_heads = limits.n_kv_heads = 1, limits.head_dim = 32, limits.max_in = 32;
  Machine m(true, limits);
  for (const TypeTraits& type : kTypeTraits)
    for (const int64_t n_cols : {2048, 4096, 14336}) {
      const double device = static_cast<double>(m->weight_bytes(type.type, 1, n_cols));
      EXPECT_LE(device, 1.02 * static_cast<double>(row_bytes(type.type, static_cast<uint64_t>(n_cols)))) << type.name << ", " << n_cols;
    }
}

}  // namespace
}  // namespace orrery::formats_test
