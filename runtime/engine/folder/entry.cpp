#include "runtime/engine/folder/entry.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/hash.h"

namespace orrery::engine {

namespace {

constexpr char kEntryMagic[8] = {'O', 'R', 'R', 'F', 'O', 'L', 'D', '1'};

struct EntryFooter {
  EntryHash fingerprint, formats, program;
  EntryHash first_page;  // hash of the first shared page's tokens; zeros: the entry has no shared page
  EntryHash index;       // hash of the index
  uint64_t session_bytes;
  uint64_t pages_at;
  uint64_t page_bytes;
  uint64_t state_bytes;
  uint32_t n_tokens;
  uint32_t n_pages;  // shared
  uint32_t n_states;
  uint32_t reserved;  // zero
  char magic[8];
  EntryHash hash;  // of the footer without it
};
static_assert(sizeof(EntryFooter) == 152, "the layout of the file");

struct IndexedState {
  uint32_t n_tokens, reserved;
  EntryHash hash;
};
static_assert(sizeof(IndexedState) == 24, "the layout of the file");

constexpr uint64_t kPageIndexBytes = sizeof(int32_t) * kEntryTokens + sizeof(EntryHash);
uint64_t index_bytes(uint64_t n_pages, uint64_t n_states) { return n_pages * kPageIndexBytes + n_states * sizeof(IndexedState); }

Status bad_entry(const os::InputFile& file, uint64_t offset, const char* what) {
  Status s = error(Code::bad_session, "%s: byte %llu: %s", file.path().c_str(), static_cast<unsigned long long>(offset), what);
  s.detail().offset = offset;
  return s;
}

template <class T>
void append(const std::vector<T>& values, std::vector<std::byte>* out) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  out->insert(out->end(), bytes, bytes + values.size() * sizeof(T));
}

// The first page's tokens are its hash's.
EntryHash first_hash(Span<const int32_t> tokens) {
  return tokens.size() < kEntryTokens ? EntryHash{} : entry_hash(tokens.data(), kEntryTokens * sizeof(int32_t));
}

}  // namespace

EntryHash entry_hash(const void* data, size_t bytes) {
  Hash128 hash;
  hash.update(data, bytes);
  EntryHash out;
  hash.digest(out.data());
  return out;
}

uint64_t Entry::bytes() const {
  return session_bytes + states.size() * key.state_bytes + index_bytes(pages.size(), states.size()) + sizeof(EntryFooter);
}

uint32_t Entry::common_pages(Span<const int32_t> other) const {
  const size_t n = std::min(tokens.size(), other.size());
  return static_cast<uint32_t>(std::mismatch(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n), other.begin()).first -
                               tokens.begin()) /
         kEntryTokens;
}

uint32_t Entry::usable_pages(uint32_t n) const {
  if (key.state_bytes == 0) return n;
  uint32_t best = 0;
  for (const State& state : states)
    if (state.n_tokens / kEntryTokens <= n) best = std::max(best, state.n_tokens / kEntryTokens);
  return best;
}

std::vector<std::byte> entry_trailer(const Entry& entry) {
  std::vector<std::byte> out;
  append(entry.tokens, &out);
  append(entry.pages, &out);
  for (const Entry::State& state : entry.states) append(std::vector<IndexedState>{{state.n_tokens, 0, state.hash}}, &out);
  EntryFooter footer = {};
  footer.fingerprint = entry.key.fingerprint, footer.formats = entry.key.formats, footer.program = entry.key.program;
  footer.first_page = first_hash(entry.tokens);
  footer.index = entry_hash(out.data(), out.size());
  footer.session_bytes = entry.session_bytes, footer.pages_at = entry.first_page;
  footer.page_bytes = entry.key.page_bytes, footer.state_bytes = entry.key.state_bytes;
  footer.n_tokens = entry.n_tokens, footer.n_pages = entry.n_pages(), footer.n_states = static_cast<uint32_t>(entry.states.size());
  std::memcpy(footer.magic, kEntryMagic, sizeof kEntryMagic);
  footer.hash = entry_hash(&footer, offsetof(EntryFooter, hash));
  append(std::vector<EntryFooter>{footer}, &out);
  return out;
}

Result<Entry> read_entry(const os::InputFile& file, const EntryWanted* wanted) {
  EntryFooter f;
  const uint64_t size = file.size();
  if (size < sizeof f) return bad_entry(file, size, "this is no entry of a folder of sessions");
  const uint64_t footer_at = size - sizeof f;
  ORRERY_TRY(file.read_at(footer_at, {reinterpret_cast<std::byte*>(&f), sizeof f}));
  if (std::memcmp(f.magic, kEntryMagic, sizeof kEntryMagic) != 0)
    return bad_entry(file, footer_at + offsetof(EntryFooter, magic), "this is no entry of a folder of sessions, or one of another version");
  if (entry_hash(&f, offsetof(EntryFooter, hash)) != f.hash || f.reserved != 0)
    return bad_entry(file, footer_at, "the hash of the footer is wrong: the file is damaged");
  // The parts add up to the file. Each is compared with what the file has left, so no sum overflows.
  uint64_t left = footer_at;
  const uint64_t index = index_bytes(f.n_pages, f.n_states);
  const bool fits = index <= left && f.session_bytes <= left - index &&
                    (f.n_states == 0 || (f.state_bytes > 0 && f.state_bytes <= (left - index) / f.n_states)) &&
                    f.session_bytes + f.n_states * f.state_bytes + index == left && f.pages_at <= f.session_bytes &&
                    (f.n_pages == 0 || (f.page_bytes > 0 && f.page_bytes <= (f.session_bytes - f.pages_at) / f.n_pages)) &&
                    f.n_pages <= f.n_tokens / kEntryTokens;
  if (!fits) return bad_entry(file, footer_at, "is shorter or longer than its footer says");
  Entry entry;
  entry.key = {f.fingerprint, f.formats, f.program, f.page_bytes, f.state_bytes};
  entry.n_tokens = f.n_tokens, entry.session_bytes = f.session_bytes, entry.first_page = f.pages_at;
  if (wanted && (!(entry.key == wanted->key) || f.n_pages == 0 || f.first_page != first_hash(wanted->tokens)))
    return bad_entry(file, footer_at, "is another model's, of other formats, or of other tokens");

  std::vector<std::byte> bytes(index);
  const uint64_t index_at = footer_at - index;
  ORRERY_TRY(file.read_at(index_at, {bytes.data(), bytes.size()}));
  if (entry_hash(bytes.data(), bytes.size()) != f.index)
    return bad_entry(file, index_at, "the hash of the index is wrong: the file is damaged");
  const std::byte* at = bytes.data();
  const auto take = [&](void* to, size_t n) {
    if (n > 0) std::memcpy(to, at, n);
    at += n;
  };
  entry.tokens.resize(size_t{f.n_pages} * kEntryTokens), entry.pages.resize(f.n_pages);
  take(entry.tokens.data(), entry.tokens.size() * sizeof(int32_t));
  take(entry.pages.data(), entry.pages.size() * sizeof(EntryHash));
  for (uint32_t i = 0; i < f.n_states; ++i) {
    IndexedState state;
    take(&state, sizeof state);
    const uint32_t before = entry.states.empty() ? 0 : entry.states.back().n_tokens;
    if (state.reserved != 0 || state.n_tokens <= before || state.n_tokens % kEntryTokens != 0 || state.n_tokens / kEntryTokens > f.n_pages)
      return bad_entry(file, index_at, "a state is at no end of a page");
    entry.states.push_back({state.n_tokens, state.hash});
  }
  return entry;
}

Status read_page(const os::InputFile& file, const Entry& entry, uint32_t page, std::byte* out) {
  ORRERY_TRY(file.read_at(entry.page_at(page), {out, entry.key.page_bytes}));
  if (entry_hash(out, entry.key.page_bytes) == entry.pages[page]) return ok_status();
  return bad_entry(file, entry.page_at(page), "the hash of a page is wrong: the file is damaged");
}

Status read_state(const os::InputFile& file, const Entry& entry, size_t state, std::byte* out) {
  ORRERY_TRY(file.read_at(entry.state_at(state), {out, entry.key.state_bytes}));
  if (entry_hash(out, entry.key.state_bytes) == entry.states[state].hash) return ok_status();
  return bad_entry(file, entry.state_at(state), "the hash of a state is wrong: the file is damaged");
}

}  // namespace orrery::engine
