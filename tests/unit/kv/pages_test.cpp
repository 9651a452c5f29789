// Arena, page pool and page tables under random load, each against a model of its state. The test finds overlapping regions, pages that two
// sequences share by mistake, writes to another sequence's page, and memory that does not come back.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "runtime/kv/memory/page_table.h"
#include "tests/support/random_blocks.h"
#include "tests/unit/kv/fixture.h"

namespace orrery::kv::pages_test {
namespace {

using orrery::testing::Random;

// 64 tokens of 64 bytes: a page is 4 KiB.
const KvFormat kFormat = {KvType::f32, 1, 1, 8};

TEST(KvArena, RegionsUnderRandomLoadNeverOverlapAndGoIntoTheSmallestGap) {
  const uint64_t bytes = 64 * kArenaAlignment;
  MemoryBackend backend;
  ASSERT_TRUE(backend.reserve_arena(bytes).ok());
  const uint64_t base = backend.arena().address;
  Arena arena(&backend, bytes);
  std::vector<ArenaRegion> regions;
  Random random(1);
  const auto gaps = [&] {  // sizes of the gaps between the regions, recounted from scratch
    std::map<uint64_t, uint64_t> taken;
    for (const ArenaRegion& r : regions) {
      const uint64_t offset = r.data().address - base;
      EXPECT_TRUE(taken.emplace(offset, r.bytes()).second) << "two regions at " << offset;
      EXPECT_EQ(offset % kArenaAlignment, 0u);
      EXPECT_LE(offset + r.bytes(), bytes);
    }
    std::multiset<uint64_t> sizes;
    uint64_t end = 0;
    for (const auto& [offset, n] : taken) {
      EXPECT_GE(offset, end) << "regions overlap";
      if (offset > end) sizes.insert(offset - end);
      end = offset + n;
    }
    if (end < bytes) sizes.insert(bytes - end);
    return sizes;
  };
  int refused = 0;
  for (int step = 0; step < 20000; ++step) {
    const std::multiset<uint64_t> before = gaps();
    if (regions.empty() || random.below(2) == 0) {
      const uint64_t wanted = 1 + random.below(12 * kArenaAlignment);
      const uint64_t rounded = (wanted + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
      auto region = ArenaRegion::take(&arena, wanted, "a test");
      const auto best = before.lower_bound(rounded);
      ASSERT_EQ(region.ok(), best != before.end());
      if (region.ok()) {
        EXPECT_EQ(region->bytes(), rounded);
        std::multiset<uint64_t> expected = before;
        const uint64_t rest = *best - rounded;
        expected.erase(expected.find(*best));
        if (rest > 0) expected.insert(rest);
        regions.push_back(std::move(region).value());
        ASSERT_EQ(gaps(), expected) << "not the smallest gap";
      } else {
        ++refused;
        EXPECT_EQ(region.status().code(), Code::out_of_device_memory);
        EXPECT_EQ(region.status().detail().bytes_requested, rounded);
        EXPECT_EQ(region.status().detail().bytes_available, before.empty() ? 0 : *before.rbegin());
      }
    } else {
      regions.erase(regions.begin() + static_cast<ptrdiff_t>(random.below(regions.size())));
    }
    uint64_t used = 0;
    for (const ArenaRegion& r : regions) used += r.bytes();
    ASSERT_EQ(arena.used(), used);
    const std::multiset<uint64_t> now = gaps();
    ASSERT_EQ(arena.largest_free(), now.empty() ? 0 : *now.rbegin());
  }
  EXPECT_GT(refused, 100);
  regions.clear();
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(arena.largest_free(), bytes);
}

TEST(KvArena, AllOfItAndNotAByteMore) {
  MemoryBackend backend;
  ASSERT_TRUE(backend.reserve_arena(10 * kArenaAlignment).ok());
  Arena arena(&backend, 10 * kArenaAlignment);
  {
    const auto all = ArenaRegion::take(&arena, 10 * kArenaAlignment - 255, "everything");
    ASSERT_TRUE(all.ok());
    EXPECT_EQ(all.value().bytes(), 10 * kArenaAlignment);
    EXPECT_FALSE(ArenaRegion::take(&arena, 1, "one more").ok());
    const auto none = ArenaRegion::take(&arena, 0, "nothing");
    ASSERT_TRUE(none.ok());
    EXPECT_FALSE(none.value().data());
  }
  const auto more = ArenaRegion::take(&arena, 10 * kArenaAlignment + 1, "the model");
  ASSERT_FALSE(more.ok());
  EXPECT_NE(std::string(more.status().message()).find("the model needs 2816 bytes"), std::string::npos) << more.status().message();
  EXPECT_FALSE(ArenaRegion::take(&arena, UINT64_MAX, "too much to round").ok());
  EXPECT_EQ(arena.used(), 0u);
}

// A sequence: its reservation, its table, and what should stand at each of its positions.
struct Sequence {
  PageReservation reservation;
  std::unique_ptr<PageTable> table;
  std::vector<uint64_t> stamps;

  uint32_t room() const { return reservation.pages() * static_cast<uint32_t>(kPageTokens); }
  uint32_t length() const { return static_cast<uint32_t>(stamps.size()); }
};

class Load {
 public:
  Load(uint64_t seed, uint32_t arena_pages) : random_(seed) {
    const uint64_t bytes = arena_pages * kFormat.page_bytes();
    EXPECT_TRUE(backend_.reserve_arena(bytes).ok());
    arena_ = std::make_unique<Arena>(&backend_, bytes);
    pool_ = std::make_shared<PagePool>(arena_.get(), kFormat);
  }

  void step() {
    const uint64_t dice = random_.below(16);
    if (sequences_.empty() || dice == 0) {
      open();
    } else if (dice == 1) {
      fork(any());
    } else if (dice == 2) {
      sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(random_.below(sequences_.size())));
    } else if (dice == 3) {
      Sequence& s = any();
      truncate(&s, static_cast<uint32_t>(random_.below(s.length() + 1)));
    } else {
      grow(&any());
    }
  }

  void check() const {
    std::map<uint64_t, int> owners;       // by page address
    std::map<uint64_t, uint64_t> layers;  // by a layer's address: its page
    uint64_t reserved = 0;
    for (const Sequence& s : sequences_) {
      const KvView view = s.table->view();
      ASSERT_EQ(static_cast<uint32_t>(view.n_pages), (s.length() + 63) / 64);
      ASSERT_LE(s.table->n_pages(), s.reservation.pages());
      reserved += s.reservation.pages();
      for (int32_t i = 0; i < view.n_pages; ++i) {
        ++owners[view.pages[i]];
        const uint64_t first = backend_.arena().address;
        ASSERT_GE(view.pages[i], first);
        ASSERT_LE(view.pages[i] + kFormat.page_span(), first + arena_->bytes());
        ASSERT_EQ((view.pages[i] - first) % kFormat.layer_bytes(), 0u) << "pages overlap";
        for (int32_t layer = 0; layer < kFormat.n_layers; ++layer) {
          const auto owner = layers.emplace(view.pages[i] + kFormat.head_offset(layer, 0), view.pages[i]).first;
          ASSERT_EQ(owner->second, view.pages[i]) << "pages overlap";
        }
      }
      for (uint32_t p = 0; p < s.length(); ++p) ASSERT_EQ(*slot(s, p), s.stamps[p]) << "position " << p;
    }
    for (const Sequence& s : sequences_) {
      uint32_t shared = 0;
      for (int32_t i = 0; i < s.table->view().n_pages; ++i) shared += owners[s.table->view().pages[i]] > 1;
      ASSERT_EQ(s.table->n_shared(), shared);
    }
    ASSERT_LE(owners.size(), reserved) << "more pages in use than were reserved";
    ASSERT_GE(arena_->used(), reserved * kFormat.page_bytes()) << "reserved pages that do not exist";
    ASSERT_EQ(arena_->used(), (reserved + pool_->spare()) * kFormat.page_bytes());
  }

  void close_all_and_check() {
    while (!sequences_.empty()) {
      sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(random_.below(sequences_.size())));
      check();
    }
    EXPECT_EQ(arena_->used(), 0u) << "slabs did not come back";
    EXPECT_EQ(arena_->largest_free(), arena_->bytes());
  }

  int refused = 0, forks = 0;
  int copies() const { return backend_.n_copies; }

 private:
  Sequence& any() { return sequences_[random_.below(sequences_.size())]; }
  static uint64_t* slot(const Sequence& s, uint32_t p) {
    const uint64_t at = s.table->view().pages[p / 64] + (p % 64) * kFormat.token_bytes();
    return reinterpret_cast<uint64_t*>(at);
  }
  bool reserve(uint32_t n, Sequence* s) {
    const uint64_t used = arena_->used();
    auto reservation = PageReservation::make(pool_, n);
    if (!reservation.ok()) {
      ++refused;
      EXPECT_EQ(reservation.status().code(), Code::out_of_device_memory);
      EXPECT_EQ(arena_->used(), used);
      return false;
    }
    s->reservation = std::move(reservation).value();
    s->table = std::make_unique<PageTable>(pool_, n);
    return true;
  }
  void open() {
    Sequence s;
    if (reserve(1 + static_cast<uint32_t>(random_.below(6)), &s)) sequences_.push_back(std::move(s));
  }
  void fork(const Sequence& parent) {
    Sequence s;
    if (!reserve(parent.reservation.pages(), &s)) return;
    s.table->share(*parent.table);
    s.stamps = parent.stamps;
    ++forks;
    sequences_.push_back(std::move(s));
  }
  void truncate(Sequence* s, uint32_t n) {
    s->table->truncate(n);
    s->stamps.resize(n);
  }
  void grow(Sequence* s) {
    const uint32_t from = s->length(), room = s->room() - from;
    if (room == 0) return truncate(s, static_cast<uint32_t>(random_.below(from)));
    const uint32_t to = from + 1 + static_cast<uint32_t>(random_.below(std::min(room, 100u)));
    EXPECT_TRUE(s->table->make_writable(&backend_, from, to).ok());
    for (uint32_t p = from; p < to; ++p) {
      s->stamps.push_back(++stamp_);
      *slot(*s, p) = stamp_;
    }
  }

  Random random_;
  MemoryBackend backend_;
  std::unique_ptr<Arena> arena_;
  std::shared_ptr<PagePool> pool_;
  std::vector<Sequence> sequences_;
  uint64_t stamp_ = 0;
};

TEST(KvPages, RandomSequencesKeepTheirOwnTokensAndGiveEverythingBack) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Load load(seed, 24);
    for (int i = 0; i < 400; ++i) {
      load.step();
      load.check();
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(load.refused, 0);
    EXPECT_GT(load.forks, 0);
    EXPECT_GT(load.copies(), 0);
    load.close_all_and_check();
  }
}

// A ring under random growth, cuts, forks and new starts. Every token in reach of a window has its own stamp, and the ring never holds more
// pages than it may.
TEST(KvPages, ARingHoldsEveryWindow) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    MemoryBackend backend;
    const uint32_t window = 1 + static_cast<uint32_t>(random.below(200)), chunk = 1 + static_cast<uint32_t>(random.below(100));
    const uint32_t most = (window + chunk + 63) / 64 + 1 + static_cast<uint32_t>(random.below(3));
    ASSERT_TRUE(backend.reserve_arena(64 * kFormat.page_bytes()).ok());
    Arena arena(&backend, 64 * kFormat.page_bytes());
    const auto pool = std::make_shared<PagePool>(&arena, kFormat);
    auto reserved = PageReservation::make(pool, 2 * most);
    ASSERT_TRUE(reserved.ok());
    PageTable ring(pool, 100, window, most), fork(pool, 100, window, most);
    std::map<uint32_t, uint64_t> stamps, of_fork;  // by position
    uint64_t stamp = 0;
    int cuts_in_reach = 0, cuts_out_of_reach = 0;
    const auto slot = [&](const PageTable& table, uint32_t p) {
      return reinterpret_cast<uint64_t*>(table.view().pages[p / 64] + p % 64 * kFormat.token_bytes());
    };
    const auto grow = [&](PageTable* table, std::map<uint32_t, uint64_t>* of, uint32_t from, uint32_t n) {
      ASSERT_TRUE(table->make_writable(&backend, from, from + n).ok());
      for (uint32_t p = from; p < from + n; ++p) *slot(*table, p) = (*of)[p] = ++stamp;
    };
    const auto check = [&](const PageTable& table, const std::map<uint32_t, uint64_t>& of, uint32_t end) {
      ASSERT_LE(table.n_held(), most);
      ASSERT_EQ(table.n_pages(), (end + 63) / 64);
      ASSERT_TRUE(table.holds_window(end));
      for (uint32_t p = end - std::min(end, window - 1); p < end; ++p) ASSERT_EQ(*slot(table, p), of.at(p)) << p << " of " << end;
      ASSERT_LE((end + 63) / 64 - table.first_in_reach(end), window_pages(window));
    };
    uint32_t end = 0;
    for (int i = 0; i < 300; ++i) {
      const uint64_t dice = random.below(12);
      if (dice == 0 && end > 0) {
        const auto to = static_cast<uint32_t>(random.below(end));
        ring.truncate(to);
        if (ring.holds_window(to)) {
          end = to, ++cuts_in_reach;
        } else {  // starts anew, as from a checkpoint, which has whole pages
          ++cuts_out_of_reach;
          end = to;
          ASSERT_TRUE(ring.take_window(&backend, end).ok());
          for (uint32_t p = ring.first_in_reach(end) * 64; p < end; ++p) *slot(ring, p) = stamps[p] = ++stamp;
        }
      } else if (dice == 1) {
        fork.share(ring);
        of_fork = stamps;
        const uint32_t n = 1 + static_cast<uint32_t>(random.below(chunk));
        grow(&fork, &of_fork, end, n);
        check(fork, of_fork, end + n);
      } else if (end + chunk < 5000) {
        const uint32_t n = 1 + static_cast<uint32_t>(random.below(chunk));
        grow(&ring, &stamps, end, n);
        end += n;
      }
      check(ring, stamps, end);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(cuts_in_reach + cuts_out_of_reach, 5);
    fork.truncate(0), ring.truncate(0);
    EXPECT_EQ(ring.n_held(), 0u);
  }
}

// An arena of so many pages, and a pool in it.
class KvPool : public ::testing::Test {
 protected:
  void make_pool(uint64_t n_pages) {
    const uint64_t bytes = n_pages * kFormat.page_bytes();
    ASSERT_TRUE(backend.reserve_arena(bytes).ok());
    arena = std::make_unique<Arena>(&backend, bytes);
    pool = std::make_shared<PagePool>(arena.get(), kFormat);
  }
  MemoryBackend backend;
  std::unique_ptr<Arena> arena;
  std::shared_ptr<PagePool> pool;
};

TEST_F(KvPool, AForkCopiesOnlyThePageThatIsWritten) {
  make_pool(64);
  auto a = PageReservation::make(pool, 4), b = PageReservation::make(pool, 4);
  ASSERT_TRUE(a.ok() && b.ok());
  PageTable parent(pool, 4), child(pool, 4);
  EXPECT_TRUE(parent.make_writable(&backend, 0, 150).ok());  // two whole pages and 22 tokens
  child.share(parent);
  EXPECT_EQ(child.n_shared(), 3u);
  EXPECT_TRUE(child.make_writable(&backend, 150, 151).ok());
  EXPECT_EQ(backend.n_copies, kFormat.n_layers);
  EXPECT_EQ(child.n_shared(), 2u);
  EXPECT_EQ(parent.n_shared(), 2u);
  EXPECT_TRUE(parent.make_writable(&backend, 150, 200).ok());  // its third page is its own again
  EXPECT_EQ(backend.n_copies, kFormat.n_layers);
  child.truncate(64);
  EXPECT_EQ(parent.n_shared(), 1u);
}

// Of four pages a layer is one stretch; what a reservation leaves of them, the next one gets.
TEST_F(KvPool, LayersOfPagesTogetherAreOneStretch) {
  make_pool(8);
  auto a = PageReservation::make(pool, 6);
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(arena->used(), 8 * kFormat.page_bytes());
  EXPECT_EQ(pool->spare(), 2u);
  auto b = PageReservation::make(pool, 2);
  ASSERT_TRUE(b.ok());
  PageTable table(pool, 8);
  EXPECT_TRUE(table.make_writable(&backend, 0, 8 * 64).ok());
  const KvView view = table.view();
  EXPECT_EQ(kFormat.head_offset(1, 0), 4 * kFormat.layer_bytes());
  for (uint64_t i = 0; i < 8; ++i)
    EXPECT_EQ(view.pages[i], backend.arena().address + i / 4 * 4 * kFormat.page_bytes() + i % 4 * kFormat.layer_bytes());
  // A page's content is packed, layer behind layer.
  std::vector<std::byte> content(kFormat.page_bytes()), back(content.size());
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 7 + i / 251);
  table.upload(&backend, 5, 6, content.data());
  for (int32_t layer = 0; layer < kFormat.n_layers; ++layer)
    EXPECT_EQ(std::memcmp(MemoryBackend::at({view.pages[5] + kFormat.head_offset(layer, 0)}),
                          content.data() + static_cast<uint64_t>(layer) * kFormat.layer_bytes(), kFormat.layer_bytes()),
              0);
  table.download(&backend, 5, 6, back.data());
  EXPECT_EQ(content, back);
  // Several, one behind the other.
  std::vector<std::byte> three;
  for (int i = 0; i < 3; ++i)
    three.insert(three.end(), content.begin() + i, content.end()), three.insert(three.end(), content.begin(), content.begin() + i);
  table.upload(&backend, 2, 5, three.data());
  back.resize(2 * content.size());
  table.download(&backend, 3, 5, back.data());
  EXPECT_EQ(std::memcmp(back.data(), three.data() + content.size(), back.size()), 0);
}

// More layers of pages than cross the link together.
TEST(KvPages, ManyLayersOfPagesMove) {
  const KvFormat format = {KvType::f16, 129, 1, 16};
  const uint64_t page = format.page_bytes();
  MemoryBackend backend;
  ASSERT_TRUE(backend.reserve_arena(9 * page).ok());
  Arena arena(&backend, 9 * page);
  const auto pool = std::make_shared<PagePool>(&arena, format);
  auto pages = PageReservation::make(pool, 8);
  ASSERT_TRUE(pages.ok());
  PageTable table(pool, 8);
  EXPECT_TRUE(table.make_writable(&backend, 0, 8 * 64).ok());
  std::vector<std::byte> content(7 * page), back(content.size());
  Random random(6);
  for (std::byte& b : content) b = static_cast<std::byte>(random.below(256));
  table.upload(&backend, 1, 8, content.data());
  table.download(&backend, 1, 8, back.data());
  EXPECT_TRUE(content == back);
  for (uint64_t i = 0; i < 7; ++i)
    for (const int32_t layer : {0, 126, 127, 128})
      EXPECT_EQ(std::memcmp(MemoryBackend::at({table.view().pages[1 + i] + format.head_offset(layer, 0)}),
                            content.data() + i * page + static_cast<uint64_t>(layer) * format.layer_bytes(), format.layer_bytes()),
                0);
}

TEST_F(KvPool, SparePagesServeTheNextReservation) {
  make_pool(8);
  auto parent = PageReservation::make(pool, 4);
  ASSERT_TRUE(parent.ok());
  auto first = std::make_unique<PageTable>(pool, 4);
  EXPECT_TRUE(first->make_writable(&backend, 0, 10).ok());
  auto child = PageReservation::make(pool, 4);
  ASSERT_TRUE(child.ok());
  {
    PageTable second(pool, 4);
    second.share(*first);
    EXPECT_TRUE(second.make_writable(&backend, 64, 70).ok());
    first.reset();
    *parent = PageReservation();  // the parent goes; one page of its slab is the child's now, so the slab stays
    EXPECT_EQ(arena->used(), 8 * kFormat.page_bytes());
    EXPECT_EQ(pool->spare(), 4u);
    auto next = PageReservation::make(pool, 4);  // though the arena is full
    ASSERT_TRUE(next.ok());
    EXPECT_EQ(pool->spare(), 0u);
    EXPECT_FALSE(PageReservation::make(pool, 1).ok());
  }
  *child = PageReservation();
  EXPECT_EQ(arena->used(), 0u);
}

}  // namespace
}  // namespace orrery::kv::pages_test
