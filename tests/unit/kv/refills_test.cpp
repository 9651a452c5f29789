// Refreshes of the resident KV: from the named step on, the slots hold the requested tokens, byte for byte as HeadStore::fill() writes
// them, whatever the link, its faults and the ring's size. A refresh that fails ends in a status. The model of a store is a table of
// positions.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/kv/transfers/refills.h"
#include "tests/support/replaced_operators.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/kv/fixture.h"

namespace orrery::kv::refills_test {
namespace {

using orrery::testing::Random;
using Fault = IoThread::Fault;
using Kind = IoThread::Fault::Kind;
using std::chrono::steady_clock;

constexpr uint32_t kSlots = 30;                        // of each head
constexpr uint32_t kPages = 5, kTokens = kPages * 64;  // in the reservoir
constexpr double kHang = 20;                           // seconds that nothing here takes unless it hangs

double seconds_since(steady_clock::time_point begin) { return std::chrono::duration<double>(steady_clock::now() - begin).count(); }

// A session's KV without the session: a reservoir of random bytes, a store with every slot taken, and the table of
// positions that it should hold.
class Bench {
 public:
  explicit Bench(KvType type = KvType::q8_0, IoThread::Options options = {}, int32_t n_layers = 2)
      : format_{type, n_layers, 3, 32}, n_heads_(static_cast<uint32_t>(n_layers) * 3) {
    const uint64_t bytes = uint64_t{2} << 20;
    EXPECT_TRUE(backend_.reserve_arena(bytes).ok());
    device_ = std::make_unique<Arena>(&backend_, bytes);
    auto host = os::Region::allocate(bytes);
    EXPECT_TRUE(host.ok());
    Random random(99);
    for (uint64_t i = 0; i < bytes; ++i) host->data()[i] = static_cast<std::byte>(random.below(256));
    reservoir_ = std::make_unique<Arena>(std::move(host).value());
    pool_ = std::make_shared<PagePool>(reservoir_.get(), format_);
    auto pages = PageReservation::make(pool_, kPages);
    EXPECT_TRUE(pages.ok());
    pages_ = std::move(pages).value();
    table_ = std::make_unique<PageTable>(pool_, kPages);
    EXPECT_TRUE(table_->make_writable(&backend_, 0, kTokens).ok());
    auto io = IoThread::make(&backend_, std::move(options));
    EXPECT_TRUE(io.ok());
    io_ = std::move(io).value();
    store = make_store();
    expected_store_ = make_store();
    for (uint32_t head = 0; head < n_heads_; ++head) {
      for (uint32_t s = 0; s < kSlots; ++s) expected.push_back(random_position(&random));
      store->fill(&backend_, *table_, head, of(head));
    }
  }

  std::unique_ptr<Refills> make_refills(uint64_t staging_tokens, uint64_t max_tokens = 1000) {
    auto refills = Refills::make(io_.get(), &backend_, device_.get(), format_, max_tokens, staging_tokens);
    EXPECT_TRUE(refills.ok());
    return refills.ok() ? std::move(refills).value() : nullptr;
  }

  // Of a reservoir that is the device's memory.
  std::unique_ptr<Refills> make_direct(uint64_t max_tokens = 1000, bool ahead = false) {
    auto refills = Refills::make(nullptr, &backend_, device_.get(), format_, max_tokens, 0, nullptr, ahead);
    EXPECT_TRUE(refills.ok());
    return refills.ok() ? std::move(refills).value() : nullptr;
  }

  // n replacements at different slots of a head, sometimes neighbours in the reservoir.
  std::vector<Replacement> draw(Random* random, size_t n) const {
    std::vector<Replacement> what;
    std::vector<uint32_t> slots(kSlots);
    for (uint32_t s = 0; s < kSlots; ++s) slots[s] = s;
    uint32_t position = random_position(random);
    for (size_t i = 0; i < n; ++i) {
      const size_t pick = random->below(slots.size());
      position = random->below(2) ? (position + 1) % kTokens : random_position(random);
      what.push_back({slots[pick], position});
      slots.erase(slots.begin() + static_cast<ptrdiff_t>(pick));
    }
    return what;
  }
  void expect(uint32_t head, const std::vector<Replacement>& what) {
    for (const Replacement& r : what)
      for (uint32_t i = 0; i < r.count; ++i) expected[head * kSlots + r.slot + i] = r.position + i;
  }

  // The store holds the expected positions, and their bytes.
  void check() { check(0, n_heads_); }
  void check(uint32_t first_head, uint32_t end) {
    for (uint32_t head = first_head; head < end; ++head) {
      expected_store_->fill(&backend_, *table_, head, of(head));
      ASSERT_EQ(store->length(head), kSlots);
      const Span<const uint32_t> positions = store->positions(head);
      const uint64_t token = format_.token_bytes();
      for (uint32_t s = 0; s < kSlots; ++s) {
        ASSERT_EQ(positions[s], expected[head * kSlots + s]) << "head " << head << ", slot " << s;
        const auto at = [&](const HeadStore& of_store) {
          return MemoryBackend::at({of_store.view_with_append(head, 0).tiles[s / 64] + s % 64 * token});
        };
        ASSERT_EQ(std::memcmp(at(*store), at(*expected_store_), token), 0) << "head " << head << ", slot " << s;
      }
    }
  }

  const PageTable& table() const { return *table_; }
  PageTable* table_to_change() { return table_.get(); }
  const KvFormat& format() const { return format_; }
  uint32_t n_heads() const { return n_heads_; }
  IoThread* io() { return io_.get(); }
  MemoryBackend* backend() { return &backend_; }
  const Arena& device() const { return *device_; }
  Arena* arena() { return device_.get(); }

 private:
  static uint32_t random_position(Random* random) { return static_cast<uint32_t>(random->below(kTokens)); }
  Span<const uint32_t> of(uint32_t head) const { return {expected.data() + head * kSlots, kSlots}; }
  std::unique_ptr<HeadStore> make_store() {
    auto made = HeadStore::make(device_.get(), format_, uint64_t{n_heads_} * kSlots);
    EXPECT_TRUE(made.ok());
    made->get()->lay_out(std::vector<uint32_t>(n_heads_, kSlots));
    return std::move(made).value();
  }

  KvFormat format_;
  uint32_t n_heads_;
  MemoryBackend backend_;
  std::unique_ptr<Arena> device_, reservoir_;
  std::shared_ptr<PagePool> pool_;
  PageReservation pages_;
  std::unique_ptr<PageTable> table_;
  std::unique_ptr<IoThread> io_;
  std::unique_ptr<HeadStore> expected_store_;

 public:
  std::vector<uint32_t> expected;  // (n_heads, kSlots) positions
  std::unique_ptr<HeadStore> store;
};

TEST(KvRefills, EveryKvTypeThroughAnyRing) {
  for (const KvType type : testing::kKvTypes) {
    for (const uint64_t ring : {2u, 3u, 5u, 16u, 29u, 500u}) {
      SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(type) << ", ring of " << ring);
      Bench bench(type);
      const auto refills = bench.make_refills(ring);
      Random random(ring);
      uint64_t n_tokens = 0;
      std::vector<std::vector<Replacement>> asked;
      for (uint32_t head = 0; head < bench.n_heads(); ++head) {
        asked.push_back(bench.draw(&random, 5 * head));  // none, some, as many as many rings
        n_tokens += asked.back().size();
        ASSERT_TRUE(refills->add(bench.backend(), bench.table(), head, asked.back(), 3).ok());
      }
      for (uint64_t step = 0; step < 3; ++step) {
        ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), step).ok());
        bench.check();  // the old content
        ASSERT_EQ(refills->pending().size(), bench.n_heads() - 1);
      }
      for (uint32_t head = 0; head < bench.n_heads(); ++head) bench.expect(head, asked[head]);
      ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 3).ok());
      bench.check();
      if (HasFatalFailure()) return;
      EXPECT_TRUE(refills->pending().empty());
      const Refills::Stats stats = refills->stats();
      EXPECT_EQ(stats.tokens, n_tokens);
      EXPECT_EQ(stats.bytes, n_tokens * bench.format().token_bytes());
      // Chunks of at most half the ring.
      uint64_t n_requests = 0;
      for (const auto& what : asked) n_requests += (what.size() + ring / 2 - 1) / (ring / 2);
      EXPECT_EQ(stats.requests, n_requests);
    }
  }
}

// Refreshes of many heads, visible in any order, with a step's application skipped now and then, taken back and
// dropped, over links and faults of every kind that ends: always the same store.
TEST(KvRefills, TheSameStoreWhateverTheTiming) {
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    IoThread::Options options;
    if (seed % 3 == 1) options.link = {2'000'000 + random.below(100'000'000), static_cast<uint32_t>(random.below(60))};
    if (seed % 3 == 2) {
      auto faults = std::make_shared<Random>(seed);
      options.fault = [faults](const IoRequest&) { return Fault{Kind::late, faults->below(4) ? 0 : faults->below(1000), Status()}; };
    }
    if (seed % 4 == 0) options.queue_requests = 1 + static_cast<uint32_t>(random.below(3));
    Bench bench(KvType::q4_0, options);
    const auto refills = bench.make_refills(2 + random.below(seed % 2 ? 8 : 200));
    struct Asked {
      uint32_t head;
      uint64_t visible_at;
      std::vector<Replacement> what;
    };
    std::vector<Asked> asked;
    for (uint64_t step = 0; step < 60; ++step) {
      for (uint32_t head = 0; head < bench.n_heads(); ++head) {
        const bool pending = std::any_of(asked.begin(), asked.end(), [&](const Asked& a) { return a.head == head; });
        if (pending || random.below(3)) continue;
        asked.push_back({head, step + random.below(6), bench.draw(&random, 1 + random.below(kSlots))});
        ASSERT_TRUE(refills->add(bench.backend(), bench.table(), head, asked.back().what, asked.back().visible_at).ok());
      }
      if (random.below(10) == 0) refills->recall();
      if (random.below(20) == 0) {
        refills->drop();
        asked.clear();
      }
      if (random.below(4) == 0) continue;
      if (random.below(2) == 0) {  // a step's layers, each for its own
        ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), step, 0).ok());
        const auto done = [&](const Asked& a) {  // what was due before it, of the other layer, may be there as well
          const Span<const Refills::Pending> left = refills->pending();
          return std::none_of(left.begin(), left.end(), [&](const Refills::Pending& p) { return p.head == a.head; });
        };
        for (const Asked& a : asked) ASSERT_TRUE(a.visible_at > step ? !done(a) : a.head >= 3 || done(a));
        for (const Asked& a : asked)
          if (done(a)) bench.expect(a.head, a.what);
        asked.erase(std::remove_if(asked.begin(), asked.end(), done), asked.end());
        bench.check();
        if (random.below(3) == 0) {  // one that is wanted at once, with later layers' on their way
          const uint32_t head = static_cast<uint32_t>(random.below(3));
          if (std::none_of(asked.begin(), asked.end(), [&](const Asked& a) { return a.head == head; })) {
            asked.push_back({head, step, bench.draw(&random, 1 + random.below(kSlots))});
            ASSERT_TRUE(refills->add(bench.backend(), bench.table(), head, asked.back().what, step).ok());
          }
        }
      }
      ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), step).ok());
      EXPECT_FALSE(refills->late(step));
      for (const Asked& a : asked)
        if (a.visible_at <= step) bench.expect(a.head, a.what);
      asked.erase(std::remove_if(asked.begin(), asked.end(), [&](const Asked& a) { return a.visible_at <= step; }), asked.end());
      bench.check();
      if (HasFatalFailure()) return;
      // What is pending can be read, in the order of its steps.
      ASSERT_EQ(refills->pending().size(), asked.size());
      uint64_t last = 0;
      for (const Refills::Pending& p : refills->pending()) {
        EXPECT_GE(p.visible_at, last);
        last = p.visible_at;
        const auto a = std::find_if(asked.begin(), asked.end(), [&](const Asked& x) { return x.head == p.head; });
        ASSERT_NE(a, asked.end());
        EXPECT_EQ(p.visible_at, a->visible_at);
        const Span<const Replacement> what = refills->what(p);
        EXPECT_EQ(std::vector<Replacement>(what.begin(), what.end()), a->what);
      }
    }
  }
}

TEST(KvRefills, WhatIsLateStallsAndWhatHasTimeIsHidden) {
  IoThread::Options options;
  options.link = {0, 400'000};
  Bench bench(KvType::f16, options);
  const auto refills = bench.make_refills(100);
  Random random(1);
  auto what = bench.draw(&random, 10);
  auto begin = steady_clock::now();
  ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 0, what, 1).ok());
  ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 1).ok());  // at once: nearly all of it is waited for
  EXPECT_GE(seconds_since(begin), .4);
  bench.expect(0, what);
  bench.check();
  const Refills::Stats exposed = refills->stats();
  EXPECT_GE(exposed.transfer_us, 400'000u);
  EXPECT_GT(exposed.stall_us, 0u);
  EXPECT_LE(static_cast<double>(exposed.stall_us), 1e6 * seconds_since(begin));
  what = bench.draw(&random, 10);
  ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 0, what, 5).ok());
  std::this_thread::sleep_for(std::chrono::seconds(1));  // steps that take long
  ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 5).ok());
  bench.expect(0, what);
  bench.check();
  EXPECT_EQ(refills->stats().transfer_us, 2 * exposed.transfer_us);
  EXPECT_LT(refills->stats().stall_us, exposed.stall_us + 200'000);
}

// Two layers of three heads; a head's tokens take 100 ms, and the second layer's never end while `hanging`. What a layer is to have is
// there without the other's, whichever was asked for first; the other's come meanwhile.
TEST(KvRefills, ALayerWaitsForItsOwnAlone) {
  for (const bool hanging : {false, true}) {
    IoThread::Options options;
    options.link = {0, 100'000};
    std::atomic<bool> hangs{hanging};
    options.fault = [&](const IoRequest& request) { return Fault{hangs && request.head >= 3 ? Kind::never : Kind::none, 0, Status()}; };
    Bench bench(KvType::f16, options);
    const auto refills = bench.make_refills(1000);
    Random random(2);
    std::vector<std::vector<Replacement>> what;
    for (uint32_t head = 0; head < 6; ++head) what.push_back(bench.draw(&random, 10));
    EXPECT_FALSE(refills->late(1));
    for (const uint32_t head : {4u, 1u, 0u, 5u, 3u, 2u})
      ASSERT_TRUE(refills->add(bench.backend(), bench.table(), head, what[head], 1).ok());
    EXPECT_TRUE(refills->late(1));
    EXPECT_FALSE(refills->late(0));
    ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 1, 0).ok());
    for (uint32_t head = 0; head < 3; ++head) bench.expect(head, what[head]);
    bench.check();
    const uint64_t first_us = refills->stats().stall_us;
    EXPECT_EQ(refills->stats().requests, 3u);
    EXPECT_EQ(refills->pending().size(), 3u);
    EXPECT_TRUE(refills->late(1));
    hangs = false;
    refills->recall();  // the one that hangs, too
    ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 0).ok());
    const auto begin = steady_clock::now();
    while (refills->late(1) && seconds_since(begin) < kHang)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // a layer is computed
    ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 1, 1).ok());
    for (uint32_t head = 3; head < 6; ++head) bench.expect(head, what[head]);
    bench.check();
    EXPECT_EQ(refills->stats().transfer_us, 600'000u);
    EXPECT_LT(refills->stats().stall_us, first_us + 50'000) << "what had come was waited for";
    EXPECT_GE(first_us, 200'000u);
  }
}

TEST(KvRefills, AFailedTransferIsReportedAndTheRestForgotten) {
  for (const Kind kind : {Kind::fail, Kind::never}) {
    SCOPED_TRACE(static_cast<int>(kind));
    IoThread::Options options;
    options.wait_limit_us = 1'000'000;
    const auto bad = std::make_shared<std::atomic<bool>>(true);
    options.fault = [kind, bad](const IoRequest& r) {
      if (r.head != 2 || !*bad) return Fault{};
      return Fault{kind, 0, kind == Kind::fail ? error(Code::device_lost, "the link broke") : Status()};
    };
    Bench bench(KvType::q8_0, options);
    const auto refills = bench.make_refills(4);
    Random random(5);
    std::vector<std::vector<Replacement>> asked;
    for (uint32_t head = 0; head < 4; ++head) asked.push_back(bench.draw(&random, 7));
    for (uint32_t head = 0; head < 4; ++head)
      ASSERT_TRUE(refills->add(bench.backend(), bench.table(), head, asked[head], head < 2 ? 1 : 2).ok());
    ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 1).ok());
    for (uint32_t head = 0; head < 2; ++head) bench.expect(head, asked[head]);
    bench.check();
    const auto begin = steady_clock::now();
    const Status status = refills->apply(bench.backend(), bench.store.get(), 2);
    EXPECT_LT(seconds_since(begin), kHang);
    EXPECT_EQ(status.code(), kind == Kind::fail ? Code::device_lost : Code::io);
    if (kind == Kind::never) {
      EXPECT_NE(std::string(status.message()).find("head 2"), std::string::npos) << status.message();
    }
    EXPECT_TRUE(refills->pending().empty());
    bench.check();  // heads 2 and 3 as they were
    *bad = false;
    ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 2, asked[2], 3).ok());
    ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 3, asked[3], 3).ok());
    ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 3).ok());
    for (uint32_t head = 2; head < 4; ++head) bench.expect(head, asked[head]);
    bench.check();
  }
}

TEST(KvRefills, DroppedAtAnyMomentNothingIsUnderWay) {
  IoThread::Options options;
  options.queue_requests = 3;
  options.fault = [](const IoRequest& r) { return Fault{r.head == 4 ? Kind::never : Kind::late, 50, Status()}; };
  Bench bench(KvType::f16, options);
  const uint64_t used = bench.device().used();
  Random random(6);
  const auto begin = steady_clock::now();
  for (int round = 0; round < 100; ++round) {
    const auto refills = bench.make_refills(2 + random.below(60));
    for (uint32_t head = 0; head < bench.n_heads(); ++head)
      ASSERT_TRUE(refills->add(bench.backend(), bench.table(), head, bench.draw(&random, 9), head < 3 ? 1 : 2).ok());
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(300)));
    if (round % 2) refills->drop();
    if (round % 4 == 3) {
      EXPECT_TRUE(refills->pending().empty());
      ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 100).ok());
    }
  }
  EXPECT_LT(seconds_since(begin), kHang);
  bench.check();
  EXPECT_EQ(bench.device().used(), used) << "staging memory did not come back";
}

TEST(KvRefills, OneSessionsHangingTransferEndsTheOthersCleanly) {
  IoThread::Options options;
  options.queue_requests = 1;
  options.wait_limit_us = 500'000;
  options.fault = [](const IoRequest& r) { return Fault{r.head == 5 ? Kind::never : Kind::none, 0, Status()}; };
  Bench bench(KvType::f16, options);
  const auto a = bench.make_refills(8), b = bench.make_refills(8), c = bench.make_refills(8);
  Random random(7);
  const auto what = bench.draw(&random, 3);
  ASSERT_TRUE(a->add(bench.backend(), bench.table(), 5, what, 1).ok());
  ASSERT_TRUE(bench.io()->wait_for_room().status.ok());
  ASSERT_TRUE(b->add(bench.backend(), bench.table(), 1, what, 1).ok());  // takes the queue
  ASSERT_TRUE(c->add(bench.backend(), bench.table(), 1, what, 1).ok());  // finds no room
  EXPECT_EQ(c->apply(bench.backend(), bench.store.get(), 1).code(), Code::io);
  EXPECT_EQ(b->apply(bench.backend(), bench.store.get(), 1).code(), Code::io);
  bench.check();
  a->drop();
  ASSERT_TRUE(c->add(bench.backend(), bench.table(), 1, what, 2).ok());
  ASSERT_TRUE(c->apply(bench.backend(), bench.store.get(), 2).ok());
  bench.expect(1, what);
  bench.check();
}

// A page that is replaced while a transfer reads it (a fork's page, before it is written): the transfer is recalled before and reads the
// new page after.
TEST(KvRefills, RecalledTransfersReadThePagesAsTheyAreThen) {
  IoThread::Options options;
  options.link = {0, 2000};
  Bench bench(KvType::f16, options);
  const auto refills = bench.make_refills(64);
  Random random(8);
  const auto what = bench.draw(&random, 20);
  ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 1, what, 4).ok());
  refills->recall();
  // The last page becomes another one, with other bytes.
  const std::vector<std::byte> other(bench.format().page_bytes(), std::byte{0x55});
  bench.table().upload(bench.backend(), kPages - 1, kPages, other.data());
  bench.table_to_change()->truncate(kTokens - 64);
  EXPECT_TRUE(bench.table_to_change()->make_writable(bench.backend(), kTokens - 64, kTokens).ok());
  for (uint32_t head = 0; head < bench.n_heads(); ++head)  // the oracle reads it, too
    bench.store->fill(bench.backend(), bench.table(), head, {bench.expected.data() + head * kSlots, static_cast<size_t>(kSlots)});
  for (uint64_t step = 0; step < 4; ++step) {
    ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), step).ok());
    bench.check();
  }
  bench.expect(1, what);
  ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 4).ok());
  bench.check();
}

// Without a thread nothing is under way: what is due comes from the pages as they are then, single tokens and runs of them, also
// more than go at once; what is not due does not.
TEST(KvRefills, WithoutAThreadWhatIsDueComesFromThePages) {
  for (const KvType type : testing::kKvTypes) {
    Bench bench(type);
    const auto refills = bench.make_direct();
    Random random(31);
    uint64_t n_tokens = 0, n_refreshes = 0;
    const auto ask = [&](uint32_t head, size_t n, uint64_t step) {
      const auto what = bench.draw(&random, n);
      EXPECT_TRUE(refills->add(bench.backend(), bench.table(), head, what, step).ok());
      n_tokens += n, n_refreshes += n > 0;
      return what;
    };
    const auto later = ask(0, 12, 50);
    for (uint64_t step = 1; step < 50; ++step) {
      for (uint32_t head = 1; head < bench.n_heads(); ++head) bench.expect(head, ask(head, random.below(kSlots + 1), step));
      if (step % 7 == 0) refills->recall();
      ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), step).ok());
      bench.check();
      if (HasFatalFailure()) return;
      ASSERT_EQ(refills->pending().size(), 1u);
    }
    // The first page becomes another one, with other bytes.
    const std::vector<std::byte> other(bench.format().page_bytes(), std::byte{0x55});
    bench.table().upload(bench.backend(), 0, 1, other.data());
    for (uint32_t head = 0; head < bench.n_heads(); ++head)
      bench.store->fill(bench.backend(), bench.table(), head, {bench.expected.data() + head * kSlots, static_cast<size_t>(kSlots)});
    bench.expect(0, later);
    ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 50).ok());
    bench.check();
    EXPECT_EQ(refills->stats().tokens, n_tokens);
    EXPECT_EQ(refills->stats().bytes, n_tokens * bench.format().token_bytes());
    EXPECT_EQ(refills->stats().requests, n_refreshes);
    EXPECT_EQ(refills->stats().stall_us, refills->stats().transfer_us);
    // A slot that there is not: all is forgotten, and nothing has changed.
    ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 1, std::vector<Replacement>{{3, 7}}, 51).ok());
    ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 2, std::vector<Replacement>{{kSlots, 7}}, 51).ok());
    EXPECT_EQ(refills->apply(bench.backend(), bench.store.get(), 51).code(), Code::invalid_argument);
    EXPECT_TRUE(refills->pending().empty());
    bench.check();
    ask(3, 5, 60);
    refills->drop();
    ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 60).ok());
    bench.check();
  }
}

// begin() moves ahead. A layer's apply() joins the moves of its layer, once, and the layer finds its tokens. Tokens that are asked for when
// their layer is due are moved at once, behind those of before.
TEST(KvRefills, MovesAheadAreJoinedByTheirLayers) {
  constexpr uint32_t kLayers = 4;
  Bench bench(KvType::q8_0, {}, kLayers);
  const auto refills = bench.make_direct(1000, true);
  Random random(17);
  const auto joins = [&](const auto& call) {
    const int before = bench.backend()->n_joins;
    EXPECT_TRUE(call().ok());
    return bench.backend()->n_joins - before;
  };
  const auto ask = [&](uint32_t head, uint64_t step) {
    const auto what = bench.draw(&random, 1 + random.below(kSlots));
    EXPECT_TRUE(refills->add(bench.backend(), bench.table(), head, what, step).ok());
    bench.expect(head, what);
  };
  for (uint64_t step = 1; step <= 20; ++step) {
    const uint32_t first = static_cast<uint32_t>(random.below(kLayers)), skipped = static_cast<uint32_t>(random.below(kLayers));
    const auto has_moves = [&](uint32_t layer) { return layer >= first && layer != skipped; };
    for (uint32_t head = bench.n_heads(); head-- > first * 3;)  // the last layer's refreshes are there first
      if (head / 3 != skipped) ask(head, step);
    EXPECT_EQ(joins([&] { return refills->begin(bench.backend(), bench.store.get(), step); }), 0);
    ASSERT_TRUE(refills->pending().empty());
    EXPECT_EQ(refills->moving(), has_moves(kLayers - 1) || has_moves(kLayers - 2) || has_moves(first));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto apply = [&] { return refills->apply(bench.backend(), bench.store.get(), step, layer); };
      EXPECT_EQ(joins(apply), has_moves(layer) ? 1 : 0);
      bench.check(3 * layer, 3 * layer + 3);
      if (random.below(3) == 0) ask(3 * layer + 1, step);
      EXPECT_EQ(joins(apply), 0);
      bench.check(3 * layer, 3 * layer + 3);
      if (HasFatalFailure()) return;
    }
    EXPECT_FALSE(refills->moving());
  }
}

// Parts of pages are fetched whole, however the ring cuts a refresh.
TEST(KvRefills, RunsOfTokensTakeTheirSlotsTogether) {
  for (const KvType type : {KvType::f16, KvType::q4_0, KvType::k8v4})
    for (const uint64_t staging : {uint64_t{24}, uint64_t{31}, uint64_t{90}}) {
      Bench bench(type);
      const auto refills = bench.make_refills(staging);
      Random random(staging);
      uint64_t n_tokens = 0;
      for (uint64_t step = 1; step <= 30; ++step) {
        for (uint32_t head = 0; head < bench.n_heads(); ++head) {
          std::vector<Replacement> what;
          for (uint32_t slot = static_cast<uint32_t>(random.below(4)); slot < kSlots;) {
            const uint32_t count = 1 + static_cast<uint32_t>(random.below(std::min<uint64_t>(12, kSlots - slot)));
            const uint32_t page = static_cast<uint32_t>(random.below(kPages)) * kPageTokens;
            what.push_back({slot, page + static_cast<uint32_t>(random.below(kPageTokens - count + 1)), count});
            n_tokens += count;
            slot += count + static_cast<uint32_t>(random.below(3));
          }
          ASSERT_TRUE(refills->add(bench.backend(), bench.table(), head, what, step).ok());
          bench.expect(head, what);
        }
        ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), step).ok());
        bench.check();
        if (HasFatalFailure()) return;
      }
      EXPECT_EQ(refills->stats().tokens, n_tokens);
    }
}

// A page that has been written moves to where another was, and makes room behind itself.
TEST(KvRefills, AHeadsLastTokensMove) {
  Bench bench;
  const auto was = bench.expected;
  std::vector<std::byte> bytes(4 * bench.format().token_bytes());
  const auto at = [&](uint32_t slot) { return MemoryBackend::at({bench.store->tiles(1)[0] + slot * bench.format().token_bytes()}); };
  std::memcpy(bytes.data(), at(kSlots - 4), bytes.size());
  bench.store->move_last(bench.backend(), 1, 4, 7);
  ASSERT_EQ(bench.store->length(1), kSlots - 4);
  const Span<const uint32_t> positions = bench.store->positions(1);
  for (uint32_t s = 0; s < kSlots - 4; ++s) EXPECT_EQ(positions[s], was[kSlots + (s >= 7 && s < 11 ? s - 7 + kSlots - 4 : s)]) << s;
  EXPECT_EQ(std::memcmp(at(7), bytes.data(), bytes.size()), 0);
  EXPECT_EQ(bench.store->view_with_append(1, kSlots - 4).append_at, bench.store->tiles(1)[0] + (kSlots - 4) * bench.format().token_bytes());
}

TEST(KvRefills, WrongRequestsAreRefusedAndChangeNothing) {
  Bench bench;
  EXPECT_EQ(Refills::make(bench.io(), bench.backend(), nullptr, bench.format(), 10, 1).status().code(), Code::invalid_argument);
  const auto refills = bench.make_refills(10, 12);
  const auto refused = [&](uint32_t head, const std::vector<Replacement>& what, const char* part) {
    const Status status = refills->add(bench.backend(), bench.table(), head, what, 1);
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status.message();
  };
  Random random(9);
  const auto eight = bench.draw(&random, 8);
  refused(bench.n_heads(), eight, "head 6 of 6");
  refused(0, {{0, kTokens}}, "position 320 of 320");
  refused(0, {{0, 62, 3}}, "3 tokens from position 62 on: they are of one page");
  refused(0, {{0, 5, 0}}, "0 tokens from position 5 on");
  refused(0, {{0, 5, 6}}, "at most 5");
  refused(0, bench.draw(&random, 13), "at most 12");
  ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 0, eight, 1).ok());
  refused(0, eight, "head 0, whose last one is not visible yet");
  refused(1, bench.draw(&random, 5), "8 of at most 12");
  ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 1, bench.draw(&random, 4), 9).ok());
  ASSERT_TRUE(refills->apply(bench.backend(), bench.store.get(), 1).ok());
  bench.expect(0, eight);
  bench.check();
  // Known to be wrong with the store only.
  ASSERT_TRUE(refills->add(bench.backend(), bench.table(), 0, std::vector<Replacement>{{kSlots, 0}}, 2).ok());
  const Status status = refills->apply(bench.backend(), bench.store.get(), 2);
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(std::string(status.message()).find("slot 30 of 30"), std::string::npos) << status.message();
  EXPECT_TRUE(refills->pending().empty());
  bench.check();
}

TEST(KvRefills, TheRingTakesItsBytesOfTheArena) {
  Bench bench(KvType::q8_0);  // a token of a head: two vectors of 34 bytes
  EXPECT_EQ(Refills::staging_bytes(bench.format(), 7), 512u);
  const uint64_t used = bench.device().used();
  auto refills = bench.make_refills(7);
  EXPECT_EQ(bench.device().used(), used + 512);
  refills.reset();
  EXPECT_EQ(bench.device().used(), used);
  const KvFormat mixed{KvType::k8v4, 2, 3, 64};  // K of 68 bytes, V of 36
  EXPECT_EQ(Refills::staging_bytes(mixed, 64), 64u * 104);
  EXPECT_EQ(Refills::staging_bytes(mixed, 64, true), 64u * 36);
}

TEST(KvRefills, NothingIsAllocatedOnceItStands) {
  IoThread::Options options;
  options.link = {50'000'000, 5};
  Bench bench(KvType::q4_0, options, 20);
  const auto refills = bench.make_refills(40, uint64_t{bench.n_heads()} * kSlots);
  Random random(10);
  std::vector<std::vector<Replacement>> asked;
  for (uint32_t head = 0; head < bench.n_heads(); ++head) asked.push_back(bench.draw(&random, kSlots));
  const int64_t before = testing::n_allocations;
  bool ok = true;
  for (uint64_t round = 0; round < 3; ++round) {
    for (uint32_t head = 0; head < bench.n_heads(); ++head)
      ok = ok && refills->add(bench.backend(), bench.table(), head, asked[head], round * 10 + 9 - head % 5).ok();
    for (uint64_t step = 0; step < 10; ++step) ok = ok && refills->apply(bench.backend(), bench.store.get(), round * 10 + step).ok();
  }
  EXPECT_EQ(testing::n_allocations, before);
  EXPECT_TRUE(ok);
  for (uint32_t head = 0; head < bench.n_heads(); ++head) bench.expect(head, asked[head]);
  bench.check();
}

// Keys that are rebuilt: those of a layer's heads in one call, while the ring holds what they take; with V that no later chunk has written
// over.
TEST(KvRefills, HeadsOfALayerAreRebuiltTogether) {
  for (const auto& [staging, type] : {std::pair<uint64_t, KvType>{0, KvType::q8_0},
                                      {500, KvType::q8_0},
                                      {12, KvType::q8_0},  // 0: of the reservoir itself
                                      {0, KvType::k8v4},
                                      {500, KvType::k8v4},
                                      {12, KvType::k8v4}}) {
    SCOPED_TRACE(std::string(kv_type_name(type)) + ", ring of " + std::to_string(staging));
    Bench bench(type);
    const KvFormat& format = bench.format();
    auto made = LowRank::make(bench.arena(), {4, {0, 1}}, format, {}, kTokens);
    ASSERT_TRUE(made.ok());
    LowRank& low_rank = **made;
    low_rank.extend(bench.backend(), bench.table(), kTokens);
    auto refills = Refills::make(staging ? bench.io() : nullptr, bench.backend(), bench.arena(), format, 1000, staging, &low_rank);
    ASSERT_TRUE(refills.ok());
    Random random(4);
    std::vector<std::vector<Replacement>> what;
    size_t n = 0;
    for (uint32_t head = 0; head < bench.n_heads(); ++head) {
      what.push_back(bench.draw(&random, 9 + head));
      if (head == 4) what.back() = {{3, 70, 5}, {20, 251, 4}};  // neighbours
      for (const Replacement& r : what.back()) n += r.count;
      ASSERT_TRUE((*refills)->add(bench.backend(), bench.table(), head, what.back(), 3).ok());
    }
    ASSERT_TRUE((*refills)->apply(bench.backend(), bench.store.get(), 3).ok());
    if (staging == 12) {
      EXPECT_GT(bench.backend()->rebuilt.size(), 4u);
    } else {
      ASSERT_EQ(bench.backend()->rebuilt.size(), 2u) << "a call a layer";
      for (const std::vector<RebuiltRun>& runs : bench.backend()->rebuilt) EXPECT_EQ(runs.back().kv_head, 2);
    }
    size_t n_rebuilt = 0;
    for (const std::vector<RebuiltRun>& runs : bench.backend()->rebuilt)
      for (const RebuiltRun& run : runs) n_rebuilt += static_cast<size_t>(run.count);
    EXPECT_EQ(n_rebuilt, n);
    for (uint32_t head = 0; head < bench.n_heads(); ++head)
      for (uint32_t i = 0; i < what[head].size() * 5; ++i) {
        const Replacement& r = what[head][i / 5];
        if (i % 5 >= r.count) continue;
        const uint64_t slot =
            bench.store->view_with_append(head, 0).tiles[(r.slot + i % 5) / 64] + (r.slot + i % 5) % 64 * format.token_bytes();
        const uint64_t token = bench.table().tokens_of(head).address(r.position + i % 5);
        EXPECT_EQ(std::memcmp(MemoryBackend::at({slot + format.key_bytes()}), MemoryBackend::at({token + format.key_bytes()}),
                              format.value_bytes()),
                  0)
            << "head " << head << ", slot " << r.slot + i % 5;
      }
  }
}

}  // namespace
}  // namespace orrery::kv::refills_test
