// Sizes as people write them, against a table, and the words of every refusal: the option, the text, what is allowed.
#include <gtest/gtest.h>

#include <limits>

#include "samples/orrery/numbers.h"
#include "samples/orrery/system/failure.h"

namespace orrery::tool {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint32_t>::max();

template <class Parse>
std::string refusal(const Parse& parse) {
  try {
    parse();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Numbers, BytesAsPeopleWriteThem) {
  const struct {
    const char* text;
    uint64_t bytes;
  } kTable[] = {{"1", 1},
                {"1500000", 1500000},
                {"12B", 12},
                {"4K", 4096},
                {"4k", 4096},
                {"4KB", 4000},
                {"4kb", 4000},
                {"4KiB", 4096},
                {"10MB", 10000000},
                {"10M", 10485760},
                {"10MiB", 10485760},
                {"4GB", 4000000000},
                {"4gb", 4000000000},
                {"4G", 4294967296},
                {"4GiB", 4294967296},
                {"4gib", 4294967296},
                {"1.5GB", 1500000000},
                {"1.5G", 1610612736},
                {"0.5KiB", 512},
                {".5KiB", 512},
                {"2T", 2199023255552},
                {"2TB", 2000000000000},
                {"9007199254740992", 9007199254740992},
                {"9007199254740991", 9007199254740991},
                {"8192TiB", 9007199254740992}};
  for (const auto& row : kTable) EXPECT_EQ(parse_bytes(row.text, "--budget"), row.bytes) << row.text;
}

TEST(Numbers, WhatIsNoSizeIsRefusedByName) {
  for (const char* bad : {"",
                          " ",
                          "GB",
                          "G",
                          "0",
                          "0GB",
                          "0.0001B",
                          "-1",
                          "-1GB",
                          "+1GB",
                          "1e9",
                          "1e9B",
                          "0x10",
                          "4 GB",
                          " 4GB",
                          "4GB ",
                          "4GBs",
                          "4GBB",
                          "4GG",
                          "4PB",
                          "4Gi B",
                          "1.5",
                          "1.5B",
                          "1.2.3GB",
                          "5.GB",
                          ".GB",
                          "1,5GB",
                          "nan",
                          "nanGB",
                          "inf",
                          "infGB",
                          "9007199254740993",
                          "8193TiB",
                          "9999999TiB",
                          "18446744073709551616",
                          "18446744073709551615T",
                          "99999999999999999999999999GB",
                          "1e400GB",
                          "4\xC2\xA0GB",
                          "\xEF\xBC\x94GB"}) {
    const std::string words = refusal([&] { parse_bytes(bad, "--budget"); });
    EXPECT_EQ(words,
              "--budget: '" + std::string(bad) + "' is not a size from 1 byte to 8192TiB, as in 1500000, 512MiB, 4G (= 4GiB) or 1.5GB");
  }
}

TEST(Numbers, Shares) {
  EXPECT_EQ(parse_share("100%", "--kv-budget"), 1);
  EXPECT_EQ(parse_share("12.5%", "--kv-budget"), 0.125);
  for (const char* bad : {"", "%", "0%", "-5%", "101%", "5", "5 %", "1e1%", "nan%", "5%%"})
    EXPECT_EQ(refusal([&] { parse_share(bad, "--kv-budget"); }),
              "--kv-budget: '" + std::string(bad) + "' is not a share from 0.0001% to 100%, as in 30%");
}

TEST(Numbers, TokensAsPeopleWriteThem) {
  const struct {
    const char* text;
    uint64_t tokens;
  } kTable[] = {{"0", 0},        {"1", 1},        {"8192", 8192}, {"32k", 32768},        {"32K", 32768},       {"1.5k", 1536},
                {"1M", 1048576}, {"1m", 1048576}, {"0.5k", 512},  {"4294967295", kMost}, {"4095M", 4293918720}};
  for (const auto& row : kTable) EXPECT_EQ(parse_tokens(row.text, "--context", 0, kMost), row.tokens) << row.text;
  for (const char* bad : {"", "k", "-1", "-1k", "+7", "7 ", " 7", "7x", "1.5", "32kB", "32kb", "32Ki", "4G", "1e3", "4294967296", "4096M",
                          "99999999999999999999k", "nank"}) {
    const std::string words = refusal([&] { parse_tokens(bad, "--context", 0, kMost); });
    EXPECT_EQ(words, "--context: '" + std::string(bad) + "' is not a number of tokens from 0 to 4294967295, as in 8192 or 32k (= 32768)");
  }
  EXPECT_NE(refusal([] { parse_tokens("1", "--gen-tokens", 2, 100); }), "accepted");
  EXPECT_NE(refusal([] { parse_tokens("1k", "--gen-tokens", 2, 1023); }), "accepted");
}

}  // namespace
}  // namespace orrery::tool
