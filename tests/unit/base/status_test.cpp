// Errors are carried out with their numbers; checked arithmetic says when it would wrap.
#include "runtime/base/status.h"

#include <gtest/gtest.h>

#include "runtime/base/checked.h"

namespace orrery::status_test {
namespace {

Result<int> half(int n) {
  if (n % 2) return error(Code::invalid_argument, "%d is odd", n);
  return n / 2;
}
Status quarter(int n, int* out) {
  ORRERY_ASSIGN(const int h, half(n));
  ORRERY_ASSIGN(*out, half(h));
  return ok_status();
}

TEST(Status, CarriesTheFirstErrorOut) {
  int q = 0;
  EXPECT_TRUE(quarter(12, &q).ok());
  EXPECT_EQ(q, 3);
  const Status s = quarter(6, &q);
  EXPECT_EQ(s.code(), Code::invalid_argument);
  EXPECT_STREQ(s.message(), "3 is odd");
}

TEST(Status, MemoryErrorsKeepTheNumbers) {
  const Status s = memory_error(Code::out_of_device_memory, 10, 3, "needs %d", 10);
  EXPECT_EQ(s.detail().bytes_requested, 10u);
  EXPECT_EQ(s.detail().bytes_available, 3u);
}

TEST(Checked, SaysWhenItWraps) {
  uint64_t n = 0;
  EXPECT_FALSE(checked_mul(1ull << 40, 1ull << 40, &n));
  EXPECT_FALSE(checked_add(~0ull, 1, &n));
  EXPECT_FALSE(checked_align(~0ull - 3, 32, &n));
  ASSERT_TRUE(checked_align(33, 32, &n));
  EXPECT_EQ(n, 64u);
}

}  // namespace
}  // namespace orrery::status_test
