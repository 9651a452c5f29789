// What a session takes from the prefix tree (kv/memory/prefix_tree.h), and what it keeps there.
//
// A generation begins with find_prefix(): the session has cut its tokens to the common prefix with the prompt, and the pages that follow
// are copied from the tree. It ends with keep_prefix(). KV of prompt tokens that were computed here, behind such tokens alone, depends on
// the tokens alone, bit for bit, and belongs to all sessions. All KV behind another token (generated, out of a file, invented) belongs to
// the session and its forks: for these, going back to an earlier branch has the KV that a fork of that time would have. Every page of the
// tree says how its tokens' KV was made, so a session that takes it back keeps it as what it is.
//
// A folder of sessions (folder/folder.h) is a tier below. find_in_folder() takes verified pages of prompt tokens from there. Their bits are what
// the same program computed, if nobody has forged them; so they belong to the session and its forks, as a file's do.
//
// A model with recurrent layers goes on only where its state is known: its pages are kept and taken up to a checkpoint, whose state lies
// with the last of them.
#include <algorithm>

#include "runtime/base/hash.h"
#include "runtime/engine/session/session.h"

namespace orrery::engine {

namespace {

constexpr uint64_t kPrefixBytesAtOnce = uint64_t{16} << 20;  // copied in one turn
constexpr auto kTokensOfPage = static_cast<uint32_t>(kPageTokens);

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

EntryKey Session::folder_key(const Folder& folder) const {
  EntryKey key;
  const BackendInfo info = model_->runtime().backend_info();
  std::copy(std::begin(model_->weights().fingerprint), std::end(model_->weights().fingerprint), key.fingerprint.begin());
  key.formats = prefix_key().formats;
  key.program = folder.program(info.name, info.instruction_set);
  key.page_bytes = page_bytes(model_->description(), options_.kv_type);
  key.state_bytes = state_ ? state_->bytes() : 0;
  return key;
}

Result<bool> Session::may_find(Span<const int32_t> wanted, uint32_t from, const std::atomic<bool>* cancel) {
  if (parked() || wanted.size() < (from / kTokensOfPage + 1) * kTokensOfPage) return false;
  // Sums need the queries of all tokens, which only their computation gives.
  if (resident_ && resident_->sums_queries()) return false;
  ORRERY_TRY(finish_pages(cancel));
  if (n_computed() != from) return false;
  if (from == 0) {
    ORRERY_ASSIGN(const Turn turn, model_->runtime().take_turn(cancel));
    ORRERY_TRY(model_->waiting_rows(turn).make_room(&turn.backend(), 0));  // the mean keys may be measured
    ORRERY_TRY(turn.backend().set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
    ORRERY_TRY(choose_form(turn, cancel));
  }
  return true;
}

Status Session::put_pages(const Turn& turn, uint32_t from, uint32_t page, uint32_t end,
                          const std::function<const std::byte*(uint32_t page)>& bytes_of) {
  Backend& backend = turn.backend();
  if (const uint32_t first = from / kTokensOfPage; resident_ && page == first) {
    const Resident::Use use(resident_.get(), turn);
    resident_->before_write(first * kTokensOfPage), resident_->truncate(first * kTokensOfPage);
  }
  ORRERY_TRY(pages_->make_whole_groups_writable(&backend, page * kTokensOfPage, end * kTokensOfPage));
  for (; page < end; ++page) pages_->upload(&backend, page, page + 1, bytes_of(page));
  return backend.synchronize();
}

Status Session::find_prefix(Span<const int32_t> wanted, const std::atomic<bool>* cancel) {
  kv::PrefixTree& tree = model_->runtime().prefixes();
  const uint32_t from = n_computed();
  if (!options_.reuse_prompts || tree.bytes() == 0) return ok_status();
  ORRERY_ASSIGN(const bool may, may_find(wanted, from, cancel));
  if (!may) return ok_status();
  auto pages = tree.find(prefix_key(), wanted, {made_.data(), from}, owner_);
  while (state_ && !pages.empty() && !pages.back().state()) pages.pop_back();
  const auto n_pages = static_cast<uint32_t>(pages.size()), first = from / kTokensOfPage;
  if (n_pages * kTokensOfPage <= from) return ok_status();
  CheckpointedState::Bytes state;
  if (state_) state = std::make_shared<std::vector<std::byte>>(pages.back().state(), pages.back().state() + state_->bytes());
  const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(kPrefixBytesAtOnce / pages_->page_bytes(), 1));
  Status status = ok_status();
  for (uint32_t page = first; page < n_pages && status.ok();) {
    const uint32_t end = std::min(n_pages, page + at_once);
    auto turn = model_->runtime().take_turn(cancel);
    status = turn.ok() ? put_pages(*turn, from, page, end, [&](uint32_t i) { return pages[i].bytes(); }) : turn.take_status();
    page = end;
  }
  if (!status.ok()) {
    pages_->truncate(from);
    return status;
  }
  truncate(from);
  for (uint32_t page = first; page < n_pages; ++page)
    for (uint32_t at = page * kTokensOfPage; at < (page + 1) * kTokensOfPage; ++at)
      if (at >= from) tokens_.push_back(wanted[at]), made_.push_back(pages[page].made()[at % kTokensOfPage]);
  n_computed_ = n_pages * kTokensOfPage;
  if (state_) state_->add_checkpoint(n_computed(), std::move(state));
  stats_.restored_tokens += n_computed() - from;
  if (!options_.compressed()) stats_.host_to_device_bytes += (n_pages - first) * pages_->page_bytes();
  return ok_status();
}

Status Session::find_in_folder(Span<const int32_t> wanted, const std::atomic<bool>* cancel) {
  const uint32_t from = n_computed();
  if (!options_.folder) return ok_status();
  // Behind other tokens the KV of a prompt is not what the folder has.
  if (std::any_of(made_.begin(), made_.end(), [](uint8_t made) { return made != 0 && made != kv::Made::kFromFolder; })) return ok_status();
  ORRERY_ASSIGN(const bool may, may_find(wanted, from, cancel));
  if (!may) return ok_status();
  for (const Folder::Found& found : options_.folder->find(folder_key(*options_.folder), wanted, from)) {
    if (found.n_pages * kTokensOfPage <= n_computed()) break;  // the next ones are shorter
    ORRERY_TRY(take_found(found, wanted, cancel));
  }
  return ok_status();
}

Status Session::take_found(const Folder::Found& found, Span<const int32_t> wanted, const std::atomic<bool>* cancel) {
  const Folder& folder = *options_.folder;
  const Entry& entry = found.entry;
  const uint32_t from = n_computed(), first = from / kTokensOfPage;
  uint32_t n_pages = found.n_pages;
  // What cannot be read, or is not what its hash says, is computed.
  const auto pass_over = [&](const Status& why) {
    model_->runtime().log(LogLevel::warning, "the prompt is computed instead of taken from the folder: %s", why.message());
    return ok_status();
  };
  auto file = folder.open_entry(found.name);
  if (!file.ok()) return pass_over(file.status());
  std::shared_ptr<std::vector<std::byte>> state;
  if (state_) {
    const auto at = std::find_if(entry.states.begin(), entry.states.end(),
                                 [n_pages](const Entry::State& each) { return each.n_tokens == n_pages * kTokensOfPage; });
    state = std::make_shared<std::vector<std::byte>>(entry.key.state_bytes);
    Status read = read_state(*file, entry, static_cast<size_t>(at - entry.states.begin()), state->data());
    if (!read.ok()) return pass_over(read);
  }
  const uint64_t page_bytes = entry.key.page_bytes;
  const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(kPrefixBytesAtOnce / page_bytes, 1));
  ORRERY_ASSIGN(const os::Region room, os::Region::allocate(std::min(at_once, n_pages - first) * page_bytes));
  Status status = ok_status(), bad = ok_status();
  for (uint32_t page = first; page < n_pages && status.ok();) {
    uint32_t end = page;
    for (const uint32_t most = std::min(n_pages, page + at_once); end < most && bad.ok(); ++end) {
      bad = cancel && cancel->load(std::memory_order_relaxed) ? error(Code::cancelled, "reading a prompt's KV was cancelled")
                                                              : read_page(*file, entry, end, room.data() + (end - page) * page_bytes);
      if (!bad.ok()) break;
    }
    if (bad.code() == Code::cancelled) {
      status = std::move(bad);
      break;
    }
    if (!bad.ok()) n_pages = state_ ? 0 : end;
    if (end > page && end <= n_pages) {
      // Of a page whose first tokens were computed here, all bytes are the folder's from now on.
      if (page == first) std::fill(made_.begin() + first * kTokensOfPage, made_.end(), kv::Made::kFromFolder);
      auto turn = model_->runtime().take_turn(cancel);
      const auto bytes_of = [&, page](uint32_t i) { return room.data() + (i - page) * page_bytes; };
      status = turn.ok() ? put_pages(*turn, from, page, end, bytes_of) : turn.take_status();
    }
    page = end;
  }
  if (!bad.ok()) (void)pass_over(bad);
  if (!status.ok() || n_pages * kTokensOfPage <= from) {
    pages_->truncate(from);
    return status;
  }
  truncate(from);
  tokens_.insert(tokens_.end(), wanted.begin() + from, wanted.begin() + n_pages * kTokensOfPage);
  made_.resize(n_pages * kTokensOfPage, kv::Made::kFromFolder);
  n_computed_ = n_pages * kTokensOfPage;
  if (state_) state_->add_checkpoint(n_computed(), std::move(state));
  stats_.folder_tokens += n_computed() - from;
  if (!options_.compressed()) stats_.host_to_device_bytes += (n_pages - first) * page_bytes;
  folder.touch(found.name);
  return ok_status();
}

void Session::keep_prefix() noexcept {
  const auto is_kept = [](const CheckpointedState::Checkpoint& c) { return c.n_tokens % kTokensOfPage == 0; };
  uint32_t n = n_computed() / kTokensOfPage * kTokensOfPage;
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
