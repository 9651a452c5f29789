// The KV of earlier prompts, kept in the reservoir while nobody else needs the room. A tree of pages: the path to a node spells
// the tokens of its page and of all pages before it, and how each token's KV was made. A session that is asked for the same tokens copies
// their pages and computes the rest.
//
// A model with recurrent layers has a state after each token. A page may keep the state after its last token; a session continues from
// there.
//
// Pages and states are copies, in regions at the high end of the reservoir. They have no share in the plan: when a session's region does
// not fit, the least recently used pages leave first (Arena::make_room_with). All pages together have at most `most_bytes` bytes.
//
// A node belongs to everybody, or to one owner: a session and its forks. Everybody's pages hold KV that depends on their tokens alone.
// Any thread may call any function. Nothing is called back under the tree's lock.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/base/allocation/account.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/backend/kv.h"
#include "runtime/kv/memory/arena.h"

namespace orrery::kv {

// How the KV of a token was made: flags. None: computed here, as a prompt token.
struct Made {
  static constexpr uint8_t kGenerated = 1;   // decode computed it
  static constexpr uint8_t kFromFile = 2;    // read from a file, which anybody may have written
  static constexpr uint8_t kInvented = 4;    // by a benchmark
  static constexpr uint8_t kFromFolder = 8;  // a prompt token out of a folder of sessions that the session was given
};

class PrefixTree {
 private:
  struct Node;

 public:
  static constexpr uint64_t kEverybody = 0;
  // What the KV of tokens depends on, beside them: the model, and a hash of formats and frequencies.
  struct Key {
    uint64_t model = 0;
    std::array<uint8_t, 16> formats = {};
    bool operator<(const Key& other) const { return std::tie(model, formats) < std::tie(other.model, other.formats); }
  };
  // A page of the tree. It stays readable while the Page exists.
  class Page {
   public:
    const std::byte* bytes() const;    // (KvFormat::page_bytes()) as PageTable::upload() takes them
    Span<const uint8_t> made() const;  // (kPageTokens) Made
    // The recurrent state behind the page, as it was given to add_state(). Null: there was none when the page was found.
    const std::byte* state() const { return state_; }

   private:
    friend class PrefixTree;
    explicit Page(std::shared_ptr<const Node> node);
    std::shared_ptr<const Node> node_;
    const std::byte* state_;
  };

  PrefixTree(Arena* reservoir, uint64_t most_bytes) : reservoir_(reservoir), most_bytes_(most_bytes) {}
  ~PrefixTree();

  // The longest path of whole pages of `tokens` that `owner` may use. held: how the first tokens' KV was made, of a session that holds
  // it; the path's first tokens were made in the same way.
  std::vector<Page> find(const Key& key, Span<const int32_t> tokens, Span<const uint8_t> held, uint64_t owner);

  // Keeps the whole pages of `tokens` that the tree lacks, from the first one on, as far as there is room. copy(first, pages): writes the
  // bytes of consecutive pages, from page `first` on, to each of `pages`. The first n_common tokens are everybody's.
  // After an error of copy(), the pages so far stay.
  using Copy = std::function<Status(uint32_t first, Span<std::byte* const> pages)>;
  Status add(const Key& key, Span<const int32_t> tokens, Span<const uint8_t> made, uint64_t owner, uint32_t n_common, uint64_t page_bytes,
             const Copy& copy);

  // Keeps the recurrent state behind `tokens`, whole pages, with the last of them, if the tree has that page, lacks the state, and has
  // room.
  void add_state(const Key& key, Span<const int32_t> tokens, Span<const uint8_t> made, uint64_t owner, Span<const std::byte> state);

  void forget(uint64_t model);  // its pages leave
  bool evict_one();             // the least recently used page leaves; false: the tree is empty
  uint64_t bytes() const;
  uint64_t most_bytes() const { return most_bytes_; }

 private:
  static constexpr auto kTokens = static_cast<size_t>(kPageTokens);
  using Order = std::list<std::shared_ptr<Node>>;  // every node but roots, the least recently used one first; children before parents
  struct Node {
    Node* parent = nullptr;
    bool linked = true;  // false: it has left the tree
    uint64_t model = 0, owner = kEverybody;
    uint64_t stamp = 0;  // of the last use
    std::array<int32_t, kTokens> tokens;
    std::array<uint8_t, kTokens> made;
    ArenaRegion region;
    ArenaRegion state;  // empty: none is kept. Once there, it stays as long as the node
    std::vector<std::shared_ptr<Node>> children;
    Order::iterator place;
  };
  // The functions below are called under the lock.
  static Node* child(const Node& node, const int32_t* tokens, const uint8_t* made, size_t n_made, uint64_t owner);
  // The path as far as the tree has it, at most to the end of `tokens`; its pages, if they are wanted. made: of the first tokens.
  Node* walk(Node* root, Span<const int32_t> tokens, Span<const uint8_t> made, uint64_t owner, std::vector<Page>* pages) const;
  void touch(Node* deepest);
  void unlink(Node* leaf);
  Result<ArenaRegion> make_region(uint64_t bytes, uint64_t stamp);

  const AccountRef account_ = AccountRef::current();
  Arena* reservoir_;
  const uint64_t most_bytes_;
  mutable std::mutex mutex_;
  std::map<Key, Node> roots_;
  Order order_;
  uint64_t bytes_ = 0, stamp_ = 0;
};

}  // namespace orrery::kv
