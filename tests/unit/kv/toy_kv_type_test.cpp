// The recipe of runtime/backend/README.md, "To add a KV type", followed for a toy: K in Q4_0 and V in Q8_0. Its row is right, and a row with a
// fact that contradicts another is refused. What the library's own rows say agrees with gguf's formats.
#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <vector>

#include "runtime/backend/kv.h"
#include "tests/support/kv_tokens.h"

namespace orrery::toy_kv_type_test {
namespace {

constexpr auto kToy = static_cast<KvType>(kKvTypeCount);
constexpr KvTypeRow kToyRow{kToy, "K4V8", KvType::q4_0, KvType::q8_0, TensorType::q4_0, 32, 26, false};

std::vector<KvTypeRow> with(const KvTypeRow& row) {
  std::vector<KvTypeRow> rows(std::begin(kKvTypeRows), std::end(kKvTypeRows));
  rows.push_back(row);
  return rows;
}
bool right(const KvTypeRow& row) {
  const std::vector<KvTypeRow> rows = with(row);
  return are_kv_rows(rows.data(), rows.size());
}

TEST(ToyKvType, ARowIsAllThatTheTableNeeds) {
  EXPECT_TRUE(right(kToyRow));
  EXPECT_EQ(kToyRow.bits(), 6.5);
}

TEST(ToyKvType, EachContradictionIsRefused) {
  const auto wrong = [](auto change) {
    KvTypeRow row = kToyRow;
    change(&row);
    return !right(row);
  };
  EXPECT_TRUE(wrong([](KvTypeRow* r) { r->type = KvType::q4_0; })) << "another type's number";
  EXPECT_TRUE(wrong([](KvTypeRow* r) { r->key = KvType::k8v4; })) << "K of a mixed type";
  EXPECT_TRUE(wrong([](KvTypeRow* r) { r->value = KvType::k8v4; })) << "V of a mixed type";
  EXPECT_TRUE(wrong([](KvTypeRow* r) { r->value = KvType::f16; })) << "V without K's blocks";
  EXPECT_TRUE(wrong([](KvTypeRow* r) { r->stored = TensorType::q8_0; })) << "K lies as another type";
  EXPECT_TRUE(wrong([](KvTypeRow* r) { r->block_values = 64; }));
  EXPECT_TRUE(wrong([](KvTypeRow* r) { r->block_bytes = 34; }));
  EXPECT_TRUE(wrong([](KvTypeRow* r) { r->key = static_cast<KvType>(kKvTypeCount + 1); })) << "no row";
}

// By gguf's conversions: a token of each type comes back from as many bytes as its row says, and by no fewer.
TEST(KvTypes, RowsAgreeWithTheFormats) {
  for (const KvTypeRow& row : kKvTypeRows) {
    SCOPED_TRACE(row.name);
    constexpr uint64_t kDim = 64;
    const uint64_t bytes = key_bytes(row.type, kDim) + value_bytes(row.type, kDim);
    EXPECT_EQ(static_cast<double>(bytes) * 8, row.bits() * 2 * kDim);
    EXPECT_EQ(in_blocks(row.type), row.block_values == 32);
    EXPECT_EQ(testing::stores(row.type, 40), !in_blocks(row.type));
    std::vector<float> values(2 * kDim);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 15) - 7.0f;
    std::vector<std::byte> token(bytes + 1, std::byte{0x5A});
    testing::write_tokens(row.type, values.data(), kDim, 1, token.data());
    EXPECT_EQ(token.back(), std::byte{0x5A});
    const std::vector<float> back = testing::read_tokens(row.type, token.data(), kDim);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(back[i], values[i], row.bits() < 8 ? .9f : .04f) << i;
  }
  EXPECT_FALSE(kv_type_row(KvType::q8_0).rotated);
  EXPECT_TRUE(kv_type_row(KvType::q4_0).rotated);
  EXPECT_TRUE(mixed(KvType::k8v4));
}

}  // namespace
}  // namespace orrery::toy_kv_type_test
