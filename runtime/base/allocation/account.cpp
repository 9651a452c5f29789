// A block is a header of 16 bytes, then what the caller sees. The header names the account and where the block lies: in a chunk, by its
// class of size, or in a block of its own.
//
// No thread ever waits for another one here, so that a child of fork() finds no lock that is held for ever: the chunks of an account
// belong to the one thread that takes them (`taken_`). Another thread meanwhile allocates blocks of their own, and leaves
// released ones on a list.
#include "runtime/base/allocation/account.h"

#include <atomic>
#include <new>

#include "runtime/base/allocation/blocks.h"

namespace orrery {

namespace {

struct Header {
  Account* account;
  uint64_t size_and_place;  // bytes, the header's included, << 8 | place
};
static_assert(sizeof(Header) == 16);

// Places below kFirstClass: a block of its own, which begins 2^place bytes before what the caller sees.
constexpr uint64_t kFirstClass = 64;
constexpr size_t kClassBytes = 16;
constexpr size_t kLargestInChunk = 1024;
constexpr size_t kClasses = kLargestInChunk / kClassBytes + 1;
constexpr size_t kFirstChunkBytes = 4096, kLargestChunkBytes = 65536;

Header* header_of(void* block) { return static_cast<Header*>(block) - 1; }

struct Freed {  // as large as the smallest block
  Freed* next;
  uint64_t size_class;
};
struct Chunk {
  Chunk* next;
  uint64_t bytes;
};

thread_local Account* current_account = nullptr;
std::atomic<uint64_t> accounts{0};

}  // namespace

class Account {
 public:
  static constexpr uint64_t kReference = uint64_t{1} << 42;  // `held_`: references above (4 million), bytes below (4 TiB)

  void refer() noexcept { held_.fetch_add(kReference, std::memory_order_relaxed); }
  void charge(uint64_t bytes) noexcept {
    const uint64_t now = (held_.fetch_add(bytes, std::memory_order_relaxed) + bytes) % kReference;
    uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  // Of a reference, or of bytes. The last one ends the account.
  void give(uint64_t amount) noexcept {
    if (held_.fetch_sub(amount, std::memory_order_acq_rel) == amount) end();
  }
  AccountUsage usage() const noexcept {
    return {held_.load(std::memory_order_relaxed) % kReference, peak_.load(std::memory_order_relaxed)};
  }

  // A block in a chunk; null where another thread has the chunks, or the system gives none.
  void* take_from_chunk(size_t size_class) noexcept {
    if (!take_chunks()) return nullptr;
    void* block = free_[size_class];
    if (block == nullptr) {
      sort_returned();
      block = free_[size_class];
    }
    if (block) free_[size_class] = static_cast<Freed*>(block)->next;
    else block = carve(size_class * kClassBytes);
    taken_.store(false, std::memory_order_release);
    return block;
  }
  void return_to_chunk(void* start, size_t size_class) noexcept {
    Freed* freed = static_cast<Freed*>(start);
    if (take_chunks()) {
      freed->next = free_[size_class];
      free_[size_class] = freed;
      taken_.store(false, std::memory_order_release);
      return;
    }
    freed->size_class = size_class;
    freed->next = returned_.load(std::memory_order_relaxed);
    while (!returned_.compare_exchange_weak(freed->next, freed, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

 private:
  bool take_chunks() noexcept { return !taken_.load(std::memory_order_relaxed) && !taken_.exchange(true, std::memory_order_acquire); }
  void sort_returned() noexcept {
    for (Freed* freed = returned_.exchange(nullptr, std::memory_order_acquire); freed;) {
      Freed* const next = freed->next;
      freed->next = free_[freed->size_class];
      free_[freed->size_class] = freed;
      freed = next;
    }
  }
  void* carve(size_t bytes) noexcept {
    if (left_ < bytes) {  // what is left of the last chunk is less than one block, and stays unused
      void* const memory = host_block_take(next_chunk_bytes_, 16);
      if (memory == nullptr) return nullptr;
      chunks_ = new (memory) Chunk{chunks_, next_chunk_bytes_};
      at_ = static_cast<char*>(memory) + sizeof(Chunk);
      left_ = next_chunk_bytes_ - sizeof(Chunk);
      if (next_chunk_bytes_ < kLargestChunkBytes) next_chunk_bytes_ *= 2;
    }
    void* const block = at_;
    at_ += bytes;
    left_ -= bytes;
    return block;
  }
  // Nobody can reach the account any more: no reference, no block.
  void end() noexcept {
    while (chunks_) {
      Chunk* const next = chunks_->next;
      host_block_give(chunks_);
      chunks_ = next;
    }
    this->~Account();
    host_block_give(this);
    host_blocks_trim();  // what is freed here is not soon needed again
    accounts.fetch_sub(1, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> held_{kReference};
  std::atomic<uint64_t> peak_{0};
  std::atomic<bool> taken_{false};
  std::atomic<Freed*> returned_{nullptr};  // released while another thread had the chunks
  // Of the thread that has taken the chunks:
  Freed* free_[kClasses] = {};  // by size, in units of kClassBytes
  char* at_ = nullptr;          // the rest of the newest chunk
  size_t left_ = 0;
  size_t next_chunk_bytes_ = kFirstChunkBytes;
  Chunk* chunks_ = nullptr;
};

AccountRef AccountRef::open() noexcept {
  void* const memory = host_block_take(sizeof(Account), 16);
  if (memory == nullptr) return {};
  accounts.fetch_add(1, std::memory_order_relaxed);
  return AccountRef(new (memory) Account);
}

AccountRef AccountRef::current() noexcept {
  if (current_account) current_account->refer();
  return AccountRef(current_account);
}

AccountRef::AccountRef(const AccountRef& other) noexcept : account_(other.account_) {
  if (account_) account_->refer();
}

AccountRef::~AccountRef() {
  if (account_) account_->give(Account::kReference);
}

AccountUsage AccountRef::usage() const noexcept { return account_ ? account_->usage() : AccountUsage{}; }

AccountScope::AccountScope(AccountRef account) noexcept : account_(std::move(account)), outer_(current_account) {
  current_account = account_.account_;
}

AccountScope::~AccountScope() { current_account = outer_; }

void* allocate(size_t bytes, size_t alignment) noexcept {
  Account* const account = current_account;
  const size_t before = alignment < sizeof(Header) ? sizeof(Header) : alignment;  // where the caller's bytes begin
  if (bytes > PTRDIFF_MAX - before) return nullptr;
  uint64_t size = before + bytes;
  uint64_t place = 4;
  char* start = nullptr;
  if (account && before == sizeof(Header) && size <= kLargestInChunk) {
    const size_t size_class = (size + kClassBytes - 1) / kClassBytes;
    start = static_cast<char*>(account->take_from_chunk(size_class));
    if (start) {
      place = kFirstClass + size_class;
      size = size_class * kClassBytes;
    }
  }
  if (start == nullptr) {
    start = static_cast<char*>(host_block_take(size, before));
    if (start == nullptr) return nullptr;
    while ((size_t{1} << place) < before) ++place;
  }
  if (account) account->charge(size);
  void* const block = start + before;
  *header_of(block) = {account, size << 8 | place};
  return block;
}

void release(void* block) noexcept {
  if (block == nullptr) return;
  const Header header = *header_of(block);
  const uint64_t size = header.size_and_place >> 8, place = header.size_and_place & 255;
  if (place < kFirstClass) host_block_give(static_cast<char*>(block) - (size_t{1} << place));
  else header.account->return_to_chunk(header_of(block), place - kFirstClass);
  if (header.account) header.account->give(size);
}

uint64_t n_accounts() noexcept { return accounts.load(std::memory_order_relaxed); }

}  // namespace orrery
