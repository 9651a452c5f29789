// The prefix tree: which pages a prompt finds, whose they are, and which leave first when the reservoir is full.
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/kv/memory/prefix_tree.h"

namespace orrery::kv::prefix_tree_test {
namespace {

constexpr uint64_t kPage = 1024;
constexpr auto kTokens = static_cast<uint32_t>(kPageTokens);
const PrefixTree::Key kKey = {1, {}};

struct Tree {
  explicit Tree(uint64_t most_pages = 100, uint64_t n_pages = 8)
      : reservoir(std::move(os::Region::allocate(n_pages * kPage)).value()), tree(&reservoir, most_pages * kPage) {
    reservoir.make_room_with([this] { return tree.evict_one(); });
  }
  // n pages of tokens that begin with these numbers, one for each page.
  static std::vector<int32_t> tokens(std::initializer_list<int32_t> pages) {
    std::vector<int32_t> all;
    for (const int32_t page : pages)
      for (uint32_t i = 0; i < kTokens; ++i) all.push_back(page * 100 + static_cast<int32_t>(i));
    return all;
  }
  // Adds these pages, the first n_common of them everybody's; page i's bytes are the page's number. Returns how many were copied.
  size_t add(std::initializer_list<int32_t> pages, uint64_t owner = 7, uint32_t n_common = 100, const std::vector<uint8_t>& phases = {}) {
    const std::vector<int32_t> all = tokens(pages);
    std::vector<uint8_t> generated = phases;
    generated.resize(all.size());
    size_t n = 0;
    const Status status = tree.add(key, {all.data(), all.size()}, {generated.data(), generated.size()}, owner, n_common * kTokens, kPage,
                                   [&](uint32_t first, Span<std::byte* const> to) {
                                     for (uint32_t i = 0; i < to.size(); ++i) std::memset(to[i], *(pages.begin() + first + i), kPage);
                                     n += to.size();
                                     return fails ? error(Code::internal, "no") : ok_status();
                                   });
    EXPECT_EQ(status.ok(), !fails || n == 0);
    return n;
  }
  // The number of pages that a prompt of these pages finds; their bytes are right.
  size_t find(std::initializer_list<int32_t> pages, uint64_t owner = 9, const std::vector<uint8_t>& held = {}) {
    const std::vector<int32_t> all = tokens(pages);
    const auto found = tree.find(key, {all.data(), all.size()}, {held.data(), held.size()}, owner);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(static_cast<int32_t>(found[i].bytes()[0]), *(pages.begin() + i));
      EXPECT_EQ(static_cast<int32_t>(found[i].bytes()[kPage - 1]), *(pages.begin() + i));
    }
    return found.size();
  }
  Arena reservoir;
  PrefixTree tree;
  PrefixTree::Key key = kKey;
  bool fails = false;
};

TEST(KvPrefixTree, FindsTheLongestPathOfWholePages) {
  Tree t;
  EXPECT_EQ(t.find({1}), 0u);
  EXPECT_EQ(t.add({1, 2, 3}), 3u);
  EXPECT_EQ(t.add({1, 2, 4}), 1u) << "two pages are there";
  EXPECT_EQ(t.add({1, 2, 4}), 0u);
  EXPECT_EQ(t.tree.bytes(), 4 * kPage);
  EXPECT_EQ(t.reservoir.used(), 4 * kPage);
  EXPECT_EQ(t.find({1, 2, 3, 5}), 3u);
  EXPECT_EQ(t.find({1, 2, 4}), 3u);
  EXPECT_EQ(t.find({1, 5, 3}), 1u);
  EXPECT_EQ(t.find({2, 3}), 0u) << "a page counts behind its own prefix alone";
  const std::vector<int32_t> part = Tree::tokens({1, 2});
  EXPECT_EQ(t.tree.find(kKey, {part.data(), part.size() - 1}, {}, 9).size(), 1u);
  t.key.formats[3] = 1;
  EXPECT_EQ(t.find({1, 2, 3}), 0u) << "of other formats";
  t.key = {2, {}};
  EXPECT_EQ(t.find({1, 2, 3}), 0u) << "of another model";
}

TEST(KvPrefixTree, APageBelongsToEverybodyOrToItsOwner) {
  Tree t;
  std::vector<uint8_t> generated(3 * kTokens);
  generated[kTokens + 5] = 1;
  EXPECT_EQ(t.add({1, 2, 3}, 7, 1, generated), 3u);
  EXPECT_EQ(t.find({1, 2, 3}, 9), 1u);
  EXPECT_EQ(t.find({1, 2, 3}, 7), 3u);
  // A session that holds the second page by prefill, another one by decode: the phases of held tokens count.
  EXPECT_EQ(t.find({1, 2, 3}, 7, std::vector<uint8_t>(2 * kTokens)), 1u);
  EXPECT_EQ(t.find({1, 2, 3}, 7, {generated.begin(), generated.begin() + 2 * kTokens}), 3u);
  EXPECT_EQ(t.find({1, 2, 3}, 7, {generated.begin(), generated.begin() + kTokens + 3}), 3u) << "the others may have any";
  EXPECT_EQ(t.add({1, 2, 3}, 9, 3), 2u) << "prefilled";
  EXPECT_EQ(t.find({1, 2, 3}, 9), 3u);
  const std::vector<int32_t> tokens = Tree::tokens({1, 2});
  EXPECT_EQ(t.tree.find(kKey, {tokens.data(), tokens.size()}, {}, 7)[1].made()[5], 1) << "one's own page comes first";
  EXPECT_EQ(t.tree.find(kKey, {tokens.data(), tokens.size()}, {}, 9)[1].made()[5], 0);
}

TEST(KvPrefixTree, TheLeastRecentlyUsedPageLeavesFirst) {
  Tree t(4);
  t.add({1, 2});
  t.add({3, 4});
  EXPECT_EQ(t.find({1, 2}), 2u);  // used again
  EXPECT_EQ(t.add({5}), 1u);
  EXPECT_EQ(t.find({3, 4}), 1u) << "the end of the oldest path has left";
  EXPECT_EQ(t.find({1, 2}), 2u);
  EXPECT_EQ(t.tree.bytes(), 4 * kPage);
  EXPECT_EQ(t.add({6, 7, 8, 9, 10, 11}), 4u) << "the beginning of a longer prompt stays";
  EXPECT_EQ(t.find({6, 7, 8, 9, 10}), 4u);
  EXPECT_EQ(t.find({1}), 0u);
  EXPECT_EQ(t.reservoir.used(), 4 * kPage);
  while (t.tree.evict_one()) {
  }
  EXPECT_EQ(t.reservoir.used(), 0u);
}

TEST(KvPrefixTree, PagesMakeRoomForRegions) {
  Tree t;
  EXPECT_EQ(t.add({1, 2, 3, 4, 5, 6, 7, 8}), 8u);
  {
    const auto region = ArenaRegion::take(&t.reservoir, 3 * kPage, "session");
    ASSERT_TRUE(region.ok()) << "three pages leave";
    EXPECT_EQ(t.find({1, 2, 3, 4, 5, 6, 7, 8}), 5u);
    EXPECT_EQ(t.add({9}), 1u) << "another page leaves for this one";
    EXPECT_EQ(t.reservoir.used(), 8 * kPage);
    const auto more = ArenaRegion::take(&t.reservoir, 5 * kPage, "session");
    EXPECT_TRUE(more.ok());
    EXPECT_EQ(t.tree.bytes(), 0u);
    EXPECT_EQ(t.add({1}), 0u) << "no page takes room from a region";
    const auto none = ArenaRegion::take(&t.reservoir, kPage, "session");
    EXPECT_EQ(none.status().code(), Code::out_of_host_memory);
  }
  EXPECT_EQ(t.add({1}), 1u);
}

TEST(KvPrefixTree, AFoundPageStaysReadable) {
  Tree t;
  t.add({1});
  const std::vector<int32_t> tokens = Tree::tokens({1});
  {
    const auto found = t.tree.find(kKey, {tokens.data(), tokens.size()}, {}, 9);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_TRUE(t.tree.evict_one());
    EXPECT_EQ(t.find({1}), 0u);
    EXPECT_EQ(t.reservoir.used(), kPage);
    EXPECT_EQ(static_cast<int>(found[0].bytes()[9]), 1);
  }
  EXPECT_EQ(t.reservoir.used(), 0u);
}

TEST(KvPrefixTree, AStateLiesWithItsPageAndLeavesWithIt) {
  Tree t(5);
  const std::vector<uint8_t> prompts(kTokens * 3), generated(kTokens * 3, Made::kGenerated);
  const std::vector<std::byte> state(kPage, std::byte{9});
  const auto add_state = [&](std::initializer_list<int32_t> pages, uint64_t owner, const std::vector<uint8_t>& made) {
    const std::vector<int32_t> all = Tree::tokens(pages);
    t.tree.add_state(t.key, {all.data(), all.size()}, {made.data(), all.size()}, owner, {state.data(), state.size()});
  };
  const auto found = [&](std::initializer_list<int32_t> pages, uint64_t owner = 9) {
    const std::vector<int32_t> all = Tree::tokens(pages);
    return t.tree.find(t.key, {all.data(), all.size()}, {}, owner);
  };
  add_state({1}, 7, prompts);
  EXPECT_EQ(t.tree.bytes(), 0u) << "without its page a state is not kept";
  t.add({1, 2}, 7, 1);  // the second page is the owner's
  add_state({1, 2, 3}, 7, prompts);
  EXPECT_EQ(t.tree.bytes(), 2 * kPage) << "nor behind tokens that the tree lacks";
  add_state({1}, 7, generated);
  EXPECT_EQ(t.tree.bytes(), 2 * kPage) << "nor behind tokens that were made otherwise";
  add_state({1}, 7, prompts), add_state({1}, 8, prompts);
  EXPECT_EQ(t.tree.bytes(), 3 * kPage) << "once";
  add_state({1, 2}, 8, prompts);
  EXPECT_EQ(t.tree.bytes(), 3 * kPage) << "the page is another's";
  add_state({1, 2}, 7, prompts);
  EXPECT_EQ(t.tree.bytes(), 4 * kPage);
  const auto of_another = found({1, 2}), own = found({1, 2}, 7);
  ASSERT_EQ(of_another.size(), 1u);
  ASSERT_EQ(own.size(), 2u);
  for (const auto& page : own) {
    ASSERT_TRUE(page.state());
    EXPECT_EQ(page.state()[0], std::byte{9});
    EXPECT_EQ(page.state()[kPage - 1], std::byte{9});
  }
  // Room for one more page: the least recently used one leaves for the second, with its state.
  t.add({4, 5}, 7);
  EXPECT_EQ(t.tree.bytes(), 4 * kPage);
  EXPECT_EQ(found({1, 2}, 7).size(), 1u);
  EXPECT_EQ(own[1].state()[kPage - 1], std::byte{9}) << "it stays readable";
  EXPECT_EQ(t.find({4, 5}), 2u);
  // A state that has no room is not kept; its own path never leaves for it.
  Tree small(2);
  small.add({1, 2});
  const std::vector<int32_t> all = Tree::tokens({1, 2});
  small.tree.add_state(small.key, {all.data(), all.size()}, {prompts.data(), all.size()}, 7, {state.data(), state.size()});
  EXPECT_EQ(small.find({1, 2}), 2u);
  EXPECT_EQ(small.tree.bytes(), 2 * kPage);
}

TEST(KvPrefixTree, AFailedCopyLeavesNothing) {
  Tree t(3);
  t.fails = true;
  EXPECT_EQ(t.add({1, 2}), 2u);
  EXPECT_EQ(t.tree.bytes(), 0u);
  EXPECT_EQ(t.reservoir.used(), 0u);
  t.fails = false;
  EXPECT_EQ(t.find({1, 2}), 0u);
  EXPECT_EQ(t.add({1, 2, 3, 4}), 3u);
  t.key = {2, {}};
  EXPECT_EQ(t.add({5}), 1u);
  t.tree.forget(1);
  EXPECT_EQ(t.tree.bytes(), kPage);
  EXPECT_EQ(t.find({5}), 1u);
}

}  // namespace
}  // namespace orrery::kv::prefix_tree_test
