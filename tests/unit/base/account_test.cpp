// Accounts and the blocks charged to them: counts, alignment, threads, and what is given back when.
#include "runtime/base/allocation/account.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace orrery::account_test {
namespace {

constexpr size_t kDefault = 16;

TEST(Account, CountsWhatIsAllocatedAndThePeak) {
  const AccountRef account = AccountRef::open();
  ASSERT_TRUE(account);
  EXPECT_EQ(account.usage().bytes, 0u);
  void *small, *large;
  {
    const AccountScope scope(account);
    small = allocate(100, kDefault);
    large = allocate(1000000, kDefault);
  }
  void* const other = allocate(100, kDefault);  // outside: nobody's
  const uint64_t both = account.usage().bytes;
  EXPECT_GE(both, 1000100u);
  EXPECT_LE(both, 1000100u + 64);
  release(large);
  EXPECT_GE(account.usage().bytes, 100u);
  EXPECT_LE(account.usage().bytes, 164u);
  release(small);
  release(other);
  EXPECT_EQ(account.usage().bytes, 0u);
  EXPECT_EQ(account.usage().peak_bytes, both);
}

TEST(Account, ScopesNest) {
  const AccountRef outer = AccountRef::open(), inner = AccountRef::open();
  const AccountScope a(outer);
  {
    const AccountScope b(inner);
    release(allocate(10, kDefault));
    EXPECT_GT(inner.usage().peak_bytes, 0u);
    const AccountScope nobody{AccountRef()};
    release(allocate(1000, kDefault));
    EXPECT_FALSE(AccountRef::current());
  }
  EXPECT_LT(inner.usage().peak_bytes, 100u);
  EXPECT_EQ(outer.usage().peak_bytes, 0u);
  release(allocate(10, kDefault));
  EXPECT_GT(outer.usage().peak_bytes, 0u);
}

// Every size around the largest that lies in a chunk, and every alignment; blocks of one account and of none.
TEST(Account, BlocksAreAlignedAndApart) {
  const AccountRef account = AccountRef::open();
  for (const bool charged : {true, false}) {
    const AccountScope scope(charged ? account : AccountRef());
    std::vector<std::pair<unsigned char*, size_t>> blocks;
    for (const size_t alignment : {size_t{1}, size_t{8}, size_t{16}, size_t{32}, size_t{64}, size_t{4096}}) {
      for (const size_t n :
           {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{1007}, size_t{1008}, size_t{1009}, size_t{5000}}) {
        auto* const block = static_cast<unsigned char*>(allocate(n, alignment));
        ASSERT_NE(block, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % std::max(alignment, kDefault), 0u);
        if (n > 0) std::memset(block, static_cast<int>(blocks.size()), n);
        blocks.emplace_back(block, n);
      }
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto [block, n] = blocks[i];
      for (size_t k = 0; k < n; ++k) ASSERT_EQ(block[k], static_cast<unsigned char>(i)) << n;
      release(block);
    }
  }
  EXPECT_EQ(account.usage().bytes, 0u);
}

TEST(Account, WhatCannotBeIsRefused) {
  const AccountRef account = AccountRef::open();
  const AccountScope scope(account);
  for (const size_t n : {SIZE_MAX, SIZE_MAX - 16, SIZE_MAX / 2, SIZE_MAX / 2 - 15}) EXPECT_EQ(allocate(n, kDefault), nullptr) << n;
  EXPECT_EQ(account.usage().peak_bytes, 0u);
  release(nullptr);
}

// A handle may be freed before what was allocated for it: the account ends with the last block.
TEST(Account, EndsWithItsLastBlock) {
  const uint64_t before = n_accounts();
  std::vector<void*> blocks;
  blocks.reserve(3);
  {
    const AccountRef account = AccountRef::open();
    const AccountScope scope(account);
    for (const size_t n : {size_t{10}, size_t{900}, size_t{100000}}) blocks.push_back(allocate(n, kDefault));
    EXPECT_EQ(n_accounts(), before + 1);
  }
  for (void* block : blocks) {
    EXPECT_EQ(n_accounts(), before + 1);
    release(block);
  }
  EXPECT_EQ(n_accounts(), before);
}

TEST(Account, ReleasedBlocksAreUsedAgain) {
  const AccountRef account = AccountRef::open();
  const AccountScope scope(account);
  void* const first = allocate(48, kDefault);
  release(first);
  void* const again = allocate(40, kDefault);  // of the same class
  EXPECT_EQ(again, first);
  release(again);
}

// A million small blocks: eight threads allocate for three accounts, and release what others have allocated. Each block holds its own
// number from end to end. The threads that allocated have ended when the last blocks are released.
TEST(Account, AMillionBlocksAcrossThreads) {
  constexpr int kThreads = 8, kBlocks = 125000, kShared = 4096;
  const uint64_t before = n_accounts();
  std::vector<AccountRef> accounts;
  for (int i = 0; i < 3; ++i) accounts.push_back(AccountRef::open());
  std::vector<std::atomic<uint32_t*>> shared(kShared);
  std::atomic<int64_t> wrong{0};
  const auto give = [&](uint32_t* block) {  // (words, the same value in each of them)
    if (block == nullptr) return;
    for (uint32_t i = 2; i < block[0]; ++i)
      if (block[i] != block[1]) ++wrong;
    release(block);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t) + 1);
      for (int i = 0; i < kBlocks; ++i) {
        const AccountScope scope(accounts[random() % accounts.size()]);
        const auto words = static_cast<uint32_t>(2 + random() % (i % 64 == 0 ? 2000 : 60));
        auto* const block = static_cast<uint32_t*>(allocate(words * sizeof(uint32_t), kDefault));
        if (block == nullptr) {
          ++wrong;
          continue;
        }
        block[0] = words;
        std::fill_n(block + 1, words - 1, static_cast<uint32_t>(t * kBlocks + i));
        give(shared[random() % kShared].exchange(block));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t held = 0;
  for (const AccountRef& account : accounts) held += account.usage().bytes;
  EXPECT_GT(held, uint64_t{kShared} * 16);
  accounts.pop_back();  // closed, with blocks in use
  for (auto& block : shared) give(block.exchange(nullptr));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(n_accounts(), before + 2);
  for (const AccountRef& account : accounts) EXPECT_EQ(account.usage().bytes, 0u);
  accounts.clear();
  EXPECT_EQ(n_accounts(), before);
}

}  // namespace
}  // namespace orrery::account_test
