#include "runtime/kv/memory/prefix_tree.h"

#include <algorithm>

namespace orrery::kv {

namespace {
constexpr const char* kName = "earlier prompts";
constexpr uint64_t kBytesAtOnce = uint64_t{64} << 20;  // of one copy()
}  // namespace

const std::byte* PrefixTree::Page::bytes() const { return reinterpret_cast<const std::byte*>(node_->region.data().address); }
PrefixTree::Page::Page(std::shared_ptr<const Node> node)
    : node_(std::move(node)), state_(node_->state.bytes() ? reinterpret_cast<const std::byte*>(node_->state.data().address) : nullptr) {}
Span<const uint8_t> PrefixTree::Page::made() const { return {node_->made.data(), node_->made.size()}; }

PrefixTree::~PrefixTree() {
  while (evict_one()) {
  }
}

// n_made: of how many of the page's tokens `made` is given; the others may be made in any way.
PrefixTree::Node* PrefixTree::child(const Node& node, const int32_t* tokens, const uint8_t* made, size_t n_made, uint64_t owner) {
  const auto fits = [&](const std::shared_ptr<Node>& c) {
    return std::equal(c->tokens.begin(), c->tokens.end(), tokens) && std::equal(made, made + n_made, c->made.begin());
  };
  Node* everybodys = nullptr;
  for (const std::shared_ptr<Node>& c : node.children) {
    if (c->owner != kEverybody && c->owner != owner) continue;
    if (!fits(c)) continue;
    if (c->owner == owner) return c.get();
    everybodys = c.get();
  }
  return everybodys;
}

PrefixTree::Node* PrefixTree::walk(Node* root, Span<const int32_t> tokens, Span<const uint8_t> made, uint64_t owner,
                                   std::vector<Page>* pages) const {
  Node* node = root;
  for (size_t at = 0; at + kTokens <= tokens.size(); at += kTokens) {
    const size_t known = std::min(at, made.size());
    Node* next = child(*node, tokens.data() + at, made.data() + known, std::min(kTokens, made.size() - known), owner);
    if (!next) break;
    node = next;
    if (pages) pages->push_back(Page(*node->place));
  }
  return node;
}

// The path to `deepest` becomes the most recently used one.
void PrefixTree::touch(Node* deepest) {
  for (Node* node = deepest; node->parent; node = node->parent) {
    node->stamp = stamp_;
    order_.splice(order_.end(), order_, node->place);
  }
}

void PrefixTree::unlink(Node* leaf) {
  const std::shared_ptr<Node> keep = *leaf->place;
  bytes_ -= leaf->region.bytes() + leaf->state.bytes();
  leaf->linked = false;
  order_.erase(leaf->place);
  std::vector<std::shared_ptr<Node>>& siblings = leaf->parent->children;
  siblings.erase(std::find(siblings.begin(), siblings.end(), keep));
}

bool PrefixTree::evict_one() {
  std::shared_ptr<Node> last;  // its region goes back without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  if (order_.empty()) return false;
  last = order_.front();
  unlink(last.get());
  return true;
}

uint64_t PrefixTree::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

void PrefixTree::forget(uint64_t model) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = order_.begin(); it != order_.end();) {  // children come before their parents
    Node* node = (it++)->get();
    if (node->model == model) unlink(node);
  }
  for (auto it = roots_.lower_bound(Key{model, {}}); it != roots_.end() && it->first.model == model;) it = roots_.erase(it);
}

std::vector<PrefixTree::Page> PrefixTree::find(const Key& key, Span<const int32_t> tokens, Span<const uint8_t> held, uint64_t owner) {
  std::vector<Page> pages;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto root = roots_.find(key);
  if (root == roots_.end()) return pages;
  Node* node = walk(&root->second, tokens, held, owner, &pages);
  ++stamp_;
  touch(node);
  return pages;
}

void PrefixTree::add_state(const Key& key, Span<const int32_t> tokens, Span<const uint8_t> made, uint64_t owner,
                           Span<const std::byte> state) {
  const AccountScope scope(account_);
  const auto lacks = [&]() -> Node* {
    const auto root = roots_.find(key);
    if (root == roots_.end()) return nullptr;
    std::vector<Page> pages;
    Node* node = walk(&root->second, tokens, made, owner, &pages);
    return pages.size() == tokens.size() / kTokens && node->parent && !node->state.bytes() ? node : nullptr;
  };
  ArenaRegion region;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Node* node = lacks();
    if (!node) return;
    ++stamp_;
    touch(node);
    auto taken = make_region(state.size(), stamp_);
    if (!taken.ok()) return;
    region = std::move(taken).value();
  }
  std::copy_n(state.data(), state.size(), reinterpret_cast<std::byte*>(region.data().address));
  const std::lock_guard<std::mutex> lock(mutex_);
  Node* node = lacks();  // again: the tree may have changed
  if (!node || bytes_ + region.bytes() > most_bytes_) return;
  bytes_ += region.bytes();
  node->state = std::move(region);
}

// Takes room for a page of the path that has this stamp. Pages of other paths leave if it does not fit.
Result<ArenaRegion> PrefixTree::make_region(uint64_t bytes, uint64_t stamp) {
  for (;;) {
    Status status = error(Code::out_of_host_memory, "kept prompts have reached their limit");
    if (bytes_ + bytes <= most_bytes_) {
      auto region = ArenaRegion::take_spare(reservoir_, bytes, kName);
      if (region.ok()) return region;
      status = region.take_status();
    }
    if (order_.empty() || order_.front()->stamp == stamp) return status;
    unlink(order_.front().get());
  }
}

Status PrefixTree::add(const Key& key, Span<const int32_t> tokens, Span<const uint8_t> made, uint64_t owner, uint32_t n_common,
                       uint64_t page_bytes, const Copy& copy) {
  const AccountScope scope(account_);
  const size_t n_pages = tokens.size() / kTokens;
  const auto at_once = static_cast<size_t>(std::max<uint64_t>(kBytesAtOnce / page_bytes, 1));
  // Bytes of pages that are being copied: they count until they are linked or given up.
  struct Coming {
    ~Coming() { end(); }
    void end() {
      const std::lock_guard<std::mutex> lock(tree->mutex_);
      tree->bytes_ -= std::exchange(bytes, 0);
    }
    PrefixTree* tree;
    uint64_t bytes;
  };
  for (size_t done = 0; done < n_pages;) {
    std::vector<std::shared_ptr<Node>> fresh;
    std::vector<std::byte*> to;
    fresh.reserve(std::min(at_once, n_pages)), to.reserve(std::min(at_once, n_pages));
    Coming coming = {this, 0};
    size_t first = 0;
    uint64_t stamp = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      Node* node = &roots_[key];
      for (; first < n_pages; ++first) {
        Node* next = child(*node, tokens.data() + first * kTokens, made.data() + first * kTokens, kTokens, owner);
        if (!next) break;
        node = next;
      }
      stamp = ++stamp_;
      touch(node);
      for (size_t i = first; i < n_pages && fresh.size() < at_once; ++i) {
        auto region = make_region(page_bytes, stamp);
        if (!region.ok()) break;
        auto page = std::make_shared<Node>();
        page->region = std::move(region).value();
        bytes_ += page->region.bytes(), coming.bytes += page->region.bytes();
        page->model = key.model;
        page->owner = (i + 1) * kTokens <= n_common ? kEverybody : owner;
        std::copy_n(tokens.begin() + i * kTokens, kTokens, page->tokens.begin());
        std::copy_n(made.begin() + i * kTokens, kTokens, page->made.begin());
        to.push_back(reinterpret_cast<std::byte*>(page->region.data().address));
        fresh.push_back(std::move(page));
      }
    }
    if (fresh.empty()) return ok_status();
    ORRERY_TRY(copy(static_cast<uint32_t>(first), {to.data(), to.size()}));
    coming.end();
    const std::lock_guard<std::mutex> lock(mutex_);
    // The path again: other threads may have evicted its end, or added the same pages.
    const auto root = roots_.find(key);
    if (root == roots_.end()) return ok_status();
    Node* node = &root->second;
    for (size_t i = 0; i < first + fresh.size(); ++i) {
      Node* next = child(*node, tokens.data() + i * kTokens, made.data() + i * kTokens, kTokens, owner);
      if (!next && i < first) return ok_status();
      if (!next) {
        std::shared_ptr<Node>& page = fresh[i - first];
        if (bytes_ + page->region.bytes() > most_bytes_) return ok_status();
        page->parent = node;
        page->stamp = stamp;
        if (node->children.size() == node->children.capacity()) node->children.reserve(2 * node->children.size() + 1);
        page->place = order_.insert(node->parent ? node->place : order_.end(), page);
        node->children.push_back(page);
        bytes_ += page->region.bytes();
        next = page.get();
      }
      node = next;
    }
    done = first + fresh.size();
  }
  return ok_status();
}

}  // namespace orrery::kv
