// What a session takes from the prefix tree (kv/memory/prefix_tree.h), and what it keeps there.
//
// A generation begins with find_prefix(): the session has cut its tokens to the common prefix with the prompt, and the pages that follow
// are copied from the tree. It ends with keep_prefix(). KV of prompt tokens that were computed here, behind such tokens alone, depends on
// the tokens alone, bit for bit, and belongs to all sessions. All KV behind another token (generated, out of a file, invented) belongs to
// the session and its forks: for these, going back to an earlier branch has the KV that a fork of that time would have. Every page of the
// tree says how its tokens' KV was made, so a session that takes it back keeps it as what it is.
//
// A model with recurrent layers goes on only where its state is known: its pages are kept and taken up to a checkpoint, whose state lies
// with the last of them.
#include <algorithm>

#include "runtime/base/hash.h"
#include "runtime/engine/session/session.h"

namespace orrery::engine {

namespace {

constexpr uint64_t kPrefixBytesAtOnce = uint64_t{16} << 20;  // copied in one turn

}  // namespace

kv::PrefixTree::Key Session::prefix_key() const {
  kv::PrefixTree::Key key;
  key.model = model_->id();
  Hash128 hash;
  const std::array<uint8_t, 16> rope = hash_ropes(ropes_);
  hash.update(rope.data(), rope.size());
  const uint32_t form[] = {static_cast<uint32_t>(options_.kv_type), form_.rotated};
  hash.update(form, sizeof form);
  if (form_.means) hash.update(form_.means->data(), form_.means->size() * sizeof(float));
  if (options_.adapters) hash.update(options_.adapters->hash().data(), options_.adapters->hash().size());
  hash.digest(key.formats.data());
  return key;
}

Status Session::find_prefix(Span<const int32_t> wanted, const std::atomic<bool>* cancel) {
  kv::PrefixTree& tree = model_->runtime().prefixes();
  constexpr auto kTokens = static_cast<uint32_t>(kPageTokens);
  const uint32_t from = n_computed();
  // Sums need the queries of all tokens, which only their computation gives.
  if (!options_.reuse_prompts || parked() || tree.bytes() == 0 || wanted.size() < (from / kTokens + 1) * kTokens) return ok_status();
  if (resident_ && resident_->sums_queries()) return ok_status();
  ORRERY_TRY(finish_pages(cancel));
  if (n_computed() != from) return ok_status();
  if (from == 0) {
    ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(cancel));
    ORRERY_TRY(model_->waiting_rows(turn).make_room(&turn.backend(), 0));  // the mean keys may be measured
    ORRERY_TRY(turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
    ORRERY_TRY(choose_form(turn, cancel));
  }
  auto pages = tree.find(prefix_key(), wanted, {made_.data(), from}, owner_);
  while (state_ && !pages.empty() && !pages.back().state()) pages.pop_back();
  const auto n_pages = static_cast<uint32_t>(pages.size()), first = from / kTokens;
  if (n_pages * kTokens <= from) return ok_status();
  CheckpointedState::Bytes state;
  if (state_) state = std::make_shared<std::vector<std::byte>>(pages.back().state(), pages.back().state() + state_->bytes());
  const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(kPrefixBytesAtOnce / pages_->page_bytes(), 1));
  Status status = ok_status();
  for (uint32_t page = first; page < n_pages && status.ok();) {
    const uint32_t end = std::min(n_pages, page + at_once);
    auto turn = model_->runtime().take_turn(cancel);
    if (!turn.ok()) {
      status = turn.take_status();
      break;
    }
    Backend& backend = turn->backend();
    if (resident_ && page == first) {
      const Resident::Use use(resident_.get(), *turn);
      resident_->before_write(first * kTokens), resident_->truncate(first * kTokens);
    }
    status = pages_->make_whole_groups_writable(&backend, page * kTokens, end * kTokens);
    if (!status.ok()) break;
    for (; page < end; ++page) pages_->upload(&backend, page, page + 1, pages[page].bytes());
    status = backend.synchronize();
  }
  if (!status.ok()) {
    pages_->truncate(from);
    return status;
  }
  truncate(from);
  for (uint32_t page = first; page < n_pages; ++page)
    for (uint32_t at = page * kTokens; at < (page + 1) * kTokens; ++at)
      if (at >= from) tokens_.push_back(wanted[at]), made_.push_back(pages[page].made()[at % kTokens]);
  n_computed_ = n_pages * kTokens;
  if (state_) state_->add_checkpoint(n_computed(), std::move(state));
  stats_.restored_tokens += n_computed() - from;
  if (!options_.compressed()) stats_.host_to_device_bytes += (n_pages - first) * pages_->page_bytes();
  return ok_status();
}

void Session::keep_prefix() noexcept {
  constexpr auto kTokens = static_cast<uint32_t>(kPageTokens);
  const auto is_kept = [](const CheckpointedState::Checkpoint& c) { return c.n_tokens % kTokens == 0; };
  uint32_t n = n_computed() / kTokens * kTokens;
  if (state_) {
    const auto& all = state_->checkpoints();
    const auto last = std::find_if(all.rbegin(), all.rend(), is_kept);
    n = last == all.rend() ? 0 : last->n_tokens;
  }
  if (!options_.reuse_prompts || parked() || n == 0) return;
  if (feed_) {  // a truncation that waits keeps its error for the next call
    late_ = finish_pages();
    if (n_computed() < n) return;
  }
  const auto first_own = std::find_if(made_.begin(), made_.begin() + n, [](uint8_t made) { return made != 0; });
  const auto n_common = static_cast<uint32_t>(first_own - made_.begin());
  const uint64_t page_bytes = pages_->page_bytes();
  const auto copy = [&](uint32_t first, Span<std::byte* const> pages) {
    const Turn turn = model_->runtime().take_turn();
    for (uint32_t i = 0; i < pages.size(); ++i) pages_->download(&turn.backend(), first + i, first + i + 1, pages[i]);
    stats_.device_to_host_bytes += pages.size() * page_bytes;
    return turn.backend().synchronize();
  };
  try {
    // What has no room, or fails, is computed again when it is needed.
    kv::PrefixTree& tree = model_->runtime().prefixes();
    const kv::PrefixTree::Key key = prefix_key();
    (void)tree.add(key, {tokens_.data(), n}, {made_.data(), n}, owner_, n_common, page_bytes, copy);
    if (!state_) return;
    for (const CheckpointedState::Checkpoint& c : state_->checkpoints())
      if (is_kept(c))
        tree.add_state(key, {tokens_.data(), c.n_tokens}, {made_.data(), c.n_tokens}, owner_, {c.bytes->data(), c.bytes->size()});
  } catch (...) {
  }
}

}  // namespace orrery::engine
