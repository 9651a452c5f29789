// A head store with a coarser KV type than its reservoir: on every way to a slot, a token's bytes are those that the formats' definitions
// make of the reservoir's bytes at its position. The oracle reads the pages by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/kv/transfers/refills.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/kv/fixture.h"

namespace orrery::kv::head_store_test {
namespace {

using orrery::testing::Random;

constexpr uint32_t kPages = 4, kTokens = kPages * 64, kHeads = 6;
constexpr uint32_t kCapacity[kHeads] = {70, 1, 64, 129, 0, 33};

// A reservoir of normal values in one type, a store in another.
class Stores {
 public:
  Stores(KvType type, KvType device_type) : format_{type, 2, 3, 32}, device_format_{device_type, 2, 3, 32} {
    const uint64_t bytes = uint64_t{1} << 20;
    EXPECT_TRUE(backend.reserve_arena(bytes).ok());
    device = std::make_unique<Arena>(&backend, bytes);
    auto host = os::Region::allocate(bytes);
    EXPECT_TRUE(host.ok());
    reservoir_ = std::make_unique<Arena>(std::move(host).value());
    pool_ = std::make_shared<PagePool>(reservoir_.get(), format_);
    auto pages = PageReservation::make(pool_, kPages);
    EXPECT_TRUE(pages.ok());
    pages_ = std::move(pages).value();
    table = std::make_unique<PageTable>(pool_, kPages);
    EXPECT_TRUE(table->make_writable(&backend, 0, kTokens).ok());
    Random random(3);
    std::vector<float> values(format_.token_values());
    for (uint32_t head = 0; head < kHeads; ++head)
      for (uint32_t p = 0; p < kTokens; ++p) {
        for (float& x : values) x = random.normal();
        testing::write_tokens(type, values.data(), 32, 1, token(head, p));
      }
    store = make_store();
  }

  std::unique_ptr<HeadStore> make_store() {
    uint64_t n_slots = 0;
    for (const uint32_t n : kCapacity) n_slots += n;
    const uint64_t used = device->used();
    auto made = HeadStore::make(device.get(), device_format_, n_slots);
    EXPECT_TRUE(made.ok());
    EXPECT_EQ(device->used() - used, HeadStore::region_bytes(device_format_, n_slots));
    made->get()->lay_out({kCapacity, kHeads});
    return std::move(made).value();
  }

  std::byte* token(uint32_t head, uint32_t position) const {
    return MemoryBackend::at({table->view().pages[position / 64]}) + format_.head_offset(head) + position % 64 * format_.token_bytes();
  }
  std::vector<std::byte> expected(uint32_t head, uint32_t position) const {
    return testing::converted_tokens(token(head, position), format_.type, device_format_.type, 32);
  }
  void check(const HeadStore& of, const std::vector<std::vector<uint32_t>>& positions) const {
    for (uint32_t head = 0; head < kHeads; ++head) {
      const Span<const uint32_t> held = of.positions(head);
      ASSERT_EQ(std::vector<uint32_t>(held.begin(), held.end()), positions[head]) << "head " << head;
      for (uint32_t s = 0; s < of.length(head); ++s) {
        const std::byte* at = MemoryBackend::at({of.tiles(head)[s / 64] + s % 64 * device_format_.token_bytes()});
        const std::vector<std::byte> want = expected(head, held[s]);
        ASSERT_EQ(std::memcmp(at, want.data(), want.size()), 0) << "head " << head << ", slot " << s;
      }
    }
  }
  const KvFormat& format() const { return format_; }

 private:
  KvFormat format_, device_format_;

 public:  // each outlives what stands below it
  MemoryBackend backend;
  std::unique_ptr<Arena> device;

 private:
  std::unique_ptr<Arena> reservoir_;
  std::shared_ptr<PagePool> pool_;
  PageReservation pages_;

 public:
  std::unique_ptr<PageTable> table;
  std::unique_ptr<HeadStore> store;
};

// Behind a new layout the slots that the caller vouches for stay, if their head lies where it lay and they hold what they are to hold.
TEST(KvHeadStore, WhatIsHeldIsNotFilledAgain) {
  Stores s(KvType::f16, KvType::q8_0);
  std::vector<std::vector<uint32_t>> positions(kHeads);
  for (uint32_t head = 0; head < kHeads; ++head) {
    for (uint32_t p = 0; p + 1 < kCapacity[head]; ++p) positions[head].push_back(p % kTokens);
    EXPECT_EQ(s.store->fill(&s.backend, *s.table, head, positions[head], 100), positions[head].size());  // nothing was there
  }
  const auto fill_again = [&](uint32_t head, size_t n_held) { return s.store->fill(&s.backend, *s.table, head, positions[head], n_held); };
  s.store->lay_out({kCapacity, kHeads});
  for (uint32_t head = 0; head < kHeads; ++head) {
    const size_t n = positions[head].size(), n_held = head % 2 ? n : n / 2;
    EXPECT_EQ(s.store->length(head), 0u);
    EXPECT_EQ(fill_again(head, n_held), n - n_held);
  }
  s.check(*s.store, positions);
  if (HasFatalFailure()) return;
  s.store->lay_out({kCapacity, kHeads});
  for (uint32_t head = 0; head < kHeads; ++head) {  // others from the middle on
    const size_t n = positions[head].size(), middle = n / 2;
    for (size_t i = middle; i < n; ++i) positions[head][i] = (positions[head][i] + 7) % kTokens;
    EXPECT_EQ(fill_again(head, n), n - middle);
  }
  s.check(*s.store, positions);
  if (HasFatalFailure()) return;
  std::vector<uint32_t> moved(kCapacity, kCapacity + kHeads);
  --moved[0];
  positions[0].pop_back();
  s.store->lay_out(moved);
  for (uint32_t head = 0; head < kHeads; ++head) EXPECT_EQ(fill_again(head, 1000), positions[head].size());
  s.check(*s.store, positions);
}

// A store in place takes no device memory. Its slots are positions, which views, forks and steps follow.
TEST(KvHeadStore, InPlaceSlotsArePositions) {
  Stores s(KvType::f16, KvType::f16);
  const uint64_t used = s.device->used();
  auto made = HeadStore::make(s.device.get(), s.format(), 400, true);
  ASSERT_TRUE(made.ok());
  HeadStore& store = **made;
  EXPECT_EQ(s.device->used(), used);
  EXPECT_EQ(HeadStore::layout(s.format(), 400, true).device_bytes, 0u);
  EXPECT_LT(HeadStore::layout(s.format(), 400, true).host_bytes, HeadStore::layout(s.format(), 400).host_bytes);
  store.lay_out({kCapacity, kHeads});
  const uint32_t head = 3;
  const std::vector<uint32_t> first = {9, 200, 3, 77};
  EXPECT_EQ(store.fill(&s.backend, *s.table, head, first), 0u) << "nothing is copied";
  const auto positions = [&](const HeadStore& of) { return std::vector<uint32_t>(of.positions(head).begin(), of.positions(head).end()); };
  EXPECT_EQ(positions(store), first);
  HeadView view = store.view_with_append(head, 4);
  EXPECT_EQ(view.n_keys, 5);
  EXPECT_EQ(view.own_slot, 4);
  EXPECT_EQ(view.positions, store.positions(head).begin());
  EXPECT_EQ(view.tiles, nullptr);
  EXPECT_EQ(view.append_at, 0u);
  store.commit(head, 4, 201);
  view = store.view_with_append(head, 1);  // the step's token takes the place of another
  EXPECT_EQ(view.n_keys, 5);
  EXPECT_EQ(view.own_slot, 1);
  EXPECT_EQ(positions(store)[1], 200u) << "until commit()";
  store.commit(head, 1, 202);
  EXPECT_EQ(positions(store), (std::vector<uint32_t>{9, 202, 3, 77, 201}));
  const std::vector<uint32_t> found = {50, 60, 150};
  store.hold(head, 2, found, 3, 203);
  EXPECT_EQ(positions(store), (std::vector<uint32_t>{0, 1, 50, 60, 150, 200, 201, 202}));
  store.hold(head, 2, Span<const uint32_t>(found).first(1), 2, 204);
  EXPECT_EQ(positions(store), (std::vector<uint32_t>{0, 1, 50, 202, 203}));
  auto copy = HeadStore::make(s.device.get(), s.format(), 400, true);
  ASSERT_TRUE(copy.ok());
  (*copy)->copy_from(&s.backend, store);
  EXPECT_EQ(positions(**copy), positions(store));
  EXPECT_EQ(store.used_bytes(), 0u);
  (*copy)->hold(head, 0, found, 0, 0);
  EXPECT_EQ(positions(store).size(), 5u) << "a fork has positions of its own";
}

TEST(KvHeadStore, FilledRefilledAppendedAndCopiedTokensDeriveFromTheReservoir) {
  for (const KvType type : testing::kKvTypes) {
    for (const KvType device_type : testing::kKvTypes) {
      if (finer(device_type, type)) continue;
      SCOPED_TRACE(std::string(kv_type_name(type)) + ", on the device " + kv_type_name(device_type));
      Stores s(type, device_type);
      Random random(5);
      const auto position = [&] { return static_cast<uint32_t>(random.below(kTokens)); };

      // Filled: runs of neighbours, over the ends of pages, and single ones; the last slot stays free.
      std::vector<std::vector<uint32_t>> positions(kHeads);
      for (uint32_t head = 0; head < kHeads; ++head) {
        for (uint32_t i = 0; i + 1 < kCapacity[head]; ++i)
          positions[head].push_back(i > 0 && random.below(8) ? (positions[head][i - 1] + 1) % kTokens : position());
        s.store->fill(&s.backend, *s.table, head, positions[head]);
      }
      s.check(*s.store, positions);
      if (HasFatalFailure()) return;

      // Fetched later, through a ring that holds five tokens as they lie in the reservoir.
      auto io = IoThread::make(&s.backend, {});
      ASSERT_TRUE(io.ok());
      const uint64_t used = s.device->used();
      auto refills = Refills::make(io->get(), &s.backend, s.device.get(), s.format(), 1000, 5);
      ASSERT_TRUE(refills.ok());
      EXPECT_EQ(s.device->used() - used, Refills::staging_bytes(s.format(), 5));
      uint64_t n_fetched = 0;
      for (uint32_t head = 0; head < kHeads; ++head) {
        std::vector<Replacement> what;
        for (uint32_t slot = 0; slot < positions[head].size(); slot += 1 + static_cast<uint32_t>(random.below(4)))
          what.push_back({slot, position()});
        ASSERT_TRUE((*refills)->add(&s.backend, *s.table, head, what, 1).ok());
        for (const Replacement& r : what) positions[head][r.slot] = r.position;
        n_fetched += what.size();
      }
      ASSERT_TRUE((*refills)->apply(&s.backend, s.store.get(), 1).ok());
      EXPECT_EQ((*refills)->stats().bytes, n_fetched * s.format().token_bytes());
      s.check(*s.store, positions);
      if (HasFatalFailure()) return;

      // Appended: the slot that the view names is the next one, or one in use.
      for (uint32_t head = 0; head < kHeads; ++head) {
        if (kCapacity[head] == 0) continue;
        for (const uint32_t slot : {kCapacity[head] - 1, 0u}) {
          const uint32_t p = position();
          const std::vector<std::byte> bytes = s.expected(head, p);
          const HeadView view = s.store->view_with_append(head, slot);
          std::memcpy(MemoryBackend::at({view.append_at}), bytes.data(), bytes.size());
          EXPECT_EQ(static_cast<uint32_t>(view.n_keys), kCapacity[head]);
          s.store->commit(head, slot, p);
          positions[head].resize(kCapacity[head]);
          positions[head][slot] = p;
        }
      }
      s.check(*s.store, positions);
      if (HasFatalFailure()) return;

      const auto copy = s.make_store();
      copy->copy_from(&s.backend, *s.store);
      s.check(*copy, positions);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace orrery::kv::head_store_test
