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

#include "runtime/engine/session/session.h"

namespace orrery::engine {

namespace {

constexpr uint64_t kPrefixBytesAtOnce = uint64_t{16} << 20;  // copied in one turn
constexpr auto kTokensOfPage = static_cast<uint32_t>(kPageTokens);

}  // namespace

kv::PrefixTree::Key Session::prefix_key() const {
  kv::PrefixTree::Key key;
  key.model = model().id();
  key.formats = sequence_->formats();
  return key;
}

EntryKey Session::folder_key(const Folder& folder) const {
  EntryKey key;
  const BackendInfo info = runtime().backend_info();
  std::copy(std::begin(model().weights().fingerprint), std::end(model().weights().fingerprint), key.fingerprint.begin());
  key.formats = sequence_->formats();
  key.program = folder.program(info.name, info.instruction_set);
  key.page_bytes = page_bytes(model().description(), options().kv_type);
  key.state_bytes = sequence_->state() ? sequence_->state()->bytes() : 0;
  return key;
}

Result<bool> Session::may_find(Span<const int32_t> wanted, uint32_t from, const std::atomic<bool>* cancel) {
  if (sequence_->parked() || wanted.size() < (from / kTokensOfPage + 1) * kTokensOfPage) return false;
  // Sums need the queries of all tokens, which only their computation gives.
  if (resident() && resident()->sums_queries()) return false;
  return sequence_->prepare_pages(from, cancel);
}

Status Session::find_prefix(Span<const int32_t> wanted, const std::atomic<bool>* cancel) {
  kv::PrefixTree& tree = runtime().prefixes();
  const CheckpointedState* const state_kept = sequence_->state();
  const uint32_t from = n_computed();
  if (!options().reuse_prompts || tree.bytes() == 0) return ok_status();
  ORRERY_ASSIGN(const bool may, may_find(wanted, from, cancel));
  if (!may) return ok_status();
  auto pages = tree.find(prefix_key(), wanted, sequence_->made().first(from), sequence_->owner());
  while (state_kept && !pages.empty() && !pages.back().state()) pages.pop_back();
  const auto n_pages = static_cast<uint32_t>(pages.size()), first = from / kTokensOfPage;
  if (n_pages * kTokensOfPage <= from) return ok_status();
  std::vector<uint8_t> made;
  for (uint32_t at = from; at < n_pages * kTokensOfPage; ++at) made.push_back(pages[at / kTokensOfPage].made()[at % kTokensOfPage]);
  CheckpointedState::Bytes state;
  if (state_kept) state = std::make_shared<std::vector<std::byte>>(pages.back().state(), pages.back().state() + state_kept->bytes());
  const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(kPrefixBytesAtOnce / sequence_->pages().page_bytes(), 1));
  Status status = ok_status();
  for (uint32_t page = first; page < n_pages && status.ok();) {
    const uint32_t end = std::min(n_pages, page + at_once);
    status = sequence_->put_pages(
        from, page, end, [&](uint32_t i) { return pages[i].bytes(); }, cancel);
    page = end;
  }
  if (!status.ok()) {
    sequence_->drop_pages(from);
    return status;
  }
  sequence_->take_tokens(from, wanted.subspan(from, made.size()), made, std::move(state));
  stats().restored_tokens += made.size();
  if (!options().compressed()) stats().host_to_device_bytes += (n_pages - first) * sequence_->pages().page_bytes();
  return ok_status();
}

Status Session::find_in_folder(Span<const int32_t> wanted, const std::atomic<bool>* cancel) {
  const uint32_t from = n_computed();
  if (!options().folder) return ok_status();
  const Span<const uint8_t> made = sequence_->made();
  // Behind other tokens the KV of a prompt is not what the folder has.
  if (std::any_of(made.begin(), made.end(), [](uint8_t m) { return m != 0 && m != kv::Made::kFromFolder; })) return ok_status();
  ORRERY_ASSIGN(const bool may, may_find(wanted, from, cancel));
  if (!may) return ok_status();
  for (const Folder::Found& found : options().folder->find(folder_key(*options().folder), wanted, from)) {
    if (found.n_pages * kTokensOfPage <= n_computed()) break;  // the next ones are shorter
    ORRERY_TRY(take_found(found, wanted, cancel));
  }
  return ok_status();
}

Status Session::take_found(const Folder::Found& found, Span<const int32_t> wanted, const std::atomic<bool>* cancel) {
  const Folder& folder = *options().folder;
  const Entry& entry = found.entry;
  const uint32_t from = n_computed(), first = from / kTokensOfPage;
  uint32_t n_pages = found.n_pages;
  // What cannot be read, or is not what its hash says, is computed.
  const auto pass_over = [&](const Status& why) {
    runtime().log(LogLevel::warning, "the prompt is computed instead of taken from the folder: %s", why.message());
    return ok_status();
  };
  auto file = folder.open_entry(found.name);
  if (!file.ok()) return pass_over(file.status());
  std::shared_ptr<std::vector<std::byte>> state;
  if (sequence_->state()) {
    const auto at = std::find_if(entry.states.begin(), entry.states.end(),
                                 [n_pages](const Entry::State& each) { return each.n_tokens == n_pages * kTokensOfPage; });
    state = std::make_shared<std::vector<std::byte>>(entry.key.state_bytes);
    Status read = read_state(*file, entry, static_cast<size_t>(at - entry.states.begin()), state->data());
    if (!read.ok()) return pass_over(read);
  }
  const uint64_t page_bytes = entry.key.page_bytes;
  const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(kPrefixBytesAtOnce / page_bytes, 1));
  ORRERY_ASSIGN(const os::Region room, os::Region::allocate(std::min(at_once, n_pages - first) * page_bytes));
  std::vector<uint8_t> made(n_pages * kTokensOfPage - from, kv::Made::kFromFolder);
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
    if (!bad.ok()) n_pages = sequence_->state() ? 0 : end;
    if (end > page && end <= n_pages) {
      // Of a page whose first tokens were computed here, all bytes are the folder's from now on.
      if (page == first) sequence_->set_made(first * kTokensOfPage, static_cast<uint32_t>(tokens().size()), kv::Made::kFromFolder);
      const auto bytes_of = [&, page](uint32_t i) { return room.data() + (i - page) * page_bytes; };
      status = sequence_->put_pages(from, page, end, bytes_of, cancel);
    }
    page = end;
  }
  if (!bad.ok()) (void)pass_over(bad);
  if (!status.ok() || n_pages * kTokensOfPage <= from) {
    sequence_->drop_pages(from);
    return status;
  }
  made.resize(n_pages * kTokensOfPage - from);
  sequence_->take_tokens(from, wanted.subspan(from, made.size()), made, std::move(state));
  stats().folder_tokens += made.size();
  if (!options().compressed()) stats().host_to_device_bytes += (n_pages - first) * page_bytes;
  folder.touch(found.name);
  return ok_status();
}

void Session::keep_prefix() noexcept {
  const auto is_kept = [](const CheckpointedState::Checkpoint& c) { return c.n_tokens % kTokensOfPage == 0; };
  uint32_t n = n_computed() / kTokensOfPage * kTokensOfPage;
  const CheckpointedState* const state = sequence_->state();
  if (state) {
    const auto& all = state->checkpoints();
    const auto last = std::find_if(all.rbegin(), all.rend(), is_kept);
    n = last == all.rend() ? 0 : last->n_tokens;
  }
  if (!options().reuse_prompts || sequence_->parked() || n == 0) return;
  if (sequence_->stage() == Sequence::Stage::arriving) {
    sequence_->finish_pages_later();
    if (n_computed() < n) return;
  }
  const Span<const int32_t> tokens = sequence_->tokens();
  const Span<const uint8_t> made = sequence_->made();
  const auto first_own = std::find_if(made.begin(), made.begin() + n, [](uint8_t m) { return m != 0; });
  const auto n_common = static_cast<uint32_t>(first_own - made.begin());
  const auto copy = [&](uint32_t first, Span<std::byte* const> pages) {
    stats().device_to_host_bytes += pages.size() * sequence_->pages().page_bytes();
    return sequence_->download_pages(first, pages);
  };
  try {
    // What has no room, or fails, is computed again when it is needed.
    kv::PrefixTree& tree = runtime().prefixes();
    const kv::PrefixTree::Key key = prefix_key();
    (void)tree.add(key, tokens.first(n), made.first(n), sequence_->owner(), n_common, sequence_->pages().page_bytes(), copy);
    if (!state) return;
    for (const CheckpointedState::Checkpoint& c : state->checkpoints())
      if (is_kept(c))
        tree.add_state(key, tokens.first(c.n_tokens), made.first(c.n_tokens), sequence_->owner(), {c.bytes->data(), c.bytes->size()});
  } catch (...) {
  }
}

}  // namespace orrery::engine
