// The library's own allocations, by handle. Every operator new of the library ends in allocate(), which charges the block to the account
// that the calling thread works for: the runtime's, the model's or the session's (AccountScope). release() credits that account again,
// on whichever thread it is called.
//
// An account's small blocks lie in chunks of its own. They are given back whole when the account has been closed and its last block
// released: no other handle's blocks keep a chunk alive. runtime/base/allocation/README.md says why it is done this way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace orrery {

class Account;

struct AccountUsage {
  uint64_t bytes = 0;       // of blocks that are allocated now, headers included
  uint64_t peak_bytes = 0;  // the most that there have been
};

// Keeps an account open. Copies share it. An empty one charges nobody.
class AccountRef {
 public:
  AccountRef() = default;
  // A new account; empty where the system gives no memory.
  static AccountRef open() noexcept;
  // The account that this thread works for.
  static AccountRef current() noexcept;
  AccountRef(const AccountRef& other) noexcept;
  AccountRef(AccountRef&& other) noexcept : account_(std::exchange(other.account_, nullptr)) {}
  AccountRef& operator=(AccountRef other) noexcept {
    std::swap(account_, other.account_);
    return *this;
  }
  ~AccountRef();

  explicit operator bool() const { return account_ != nullptr; }
  AccountUsage usage() const noexcept;

 private:
  friend class AccountScope;
  explicit AccountRef(Account* account) : account_(account) {}
  Account* account_ = nullptr;
};

// While it lives, this thread's allocations are charged to `account`; empty: to nobody.
class AccountScope {
 public:
  explicit AccountScope(AccountRef account) noexcept;
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  AccountRef account_;
  Account* outer_;
};

// What operator new and operator delete call (operators.cpp). Null: the system gives no memory.
void* allocate(size_t bytes, size_t alignment) noexcept;
void release(void* block) noexcept;

// Accounts that hold memory, of this process: open ones, and closed ones with blocks that are still in use.
uint64_t n_accounts() noexcept;

}  // namespace orrery
