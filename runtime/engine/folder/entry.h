// An entry of a folder of sessions: a file that begins with a saved session (session/session_file.h). Behind it stand the states at ends of
// pages, the index and the footer. The index has the tokens of the shared pages, and a hash of each page and of each state, so that a prompt
// reads and verifies what it takes and nothing else. Footer and index have hashes of their own.
//
// Shared pages are whole pages at the beginning of the session, whose KV depends on their tokens alone: all of the tokens were computed as
// prompt tokens, here or by a session that shared them. Little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/backend/kv.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/os/os.h"

namespace orrery::engine {

inline constexpr auto kEntryTokens = static_cast<uint32_t>(kPageTokens);  // of a page
using EntryHash = std::array<uint8_t, 16>;
EntryHash entry_hash(const void* data, size_t bytes);

// What the KV of tokens depends on, beside them. Pages of another key are no use.
struct EntryKey {
  EntryHash fingerprint = {};  // of the model
  EntryHash formats = {};      // kv::PrefixTree::Key::formats
  EntryHash program = {};      // of version, backend and instruction set: what decides a computation's last bits
  uint64_t page_bytes = 0;
  uint64_t state_bytes = 0;  // of a state; 0: the model keeps KV of all tokens alone
  bool operator==(const EntryKey& other) const {
    return fingerprint == other.fingerprint && formats == other.formats && program == other.program && page_bytes == other.page_bytes &&
           state_bytes == other.state_bytes;
  }
};

struct Entry {
  EntryKey key;
  uint32_t n_tokens = 0;         // of the session
  uint64_t session_bytes = 0;    // of the session file
  uint64_t first_page = 0;       // where its pages begin
  std::vector<int32_t> tokens;   // of the shared pages
  std::vector<EntryHash> pages;  // hashes of the shared pages
  struct State {
    uint32_t n_tokens = 0;  // whole shared pages
    EntryHash hash = {};
  };
  std::vector<State> states;  // ascending

  uint32_t n_pages() const { return static_cast<uint32_t>(pages.size()); }
  uint64_t page_at(uint32_t page) const { return first_page + page * key.page_bytes; }
  uint64_t state_at(size_t state) const { return session_bytes + state * key.state_bytes; }
  uint64_t bytes() const;  // of the file
  // Number of first pages that have these tokens.
  uint32_t common_pages(Span<const int32_t> tokens) const;
  // Number of first pages, at most `pages`, that a session may take: all of them, or up to a state.
  uint32_t usable_pages(uint32_t pages) const;
};

std::vector<std::byte> entry_trailer(const Entry& entry);  // index and footer

// Reads and checks index and footer. bad_session: the file is no entry, or damaged. If `wanted` is given, an entry of another key, or one
// whose first page has other tokens, is bad_session, too, and its index is not read.
struct EntryWanted {
  EntryKey key;
  Span<const int32_t> tokens;
};
Result<Entry> read_entry(const os::InputFile& file, const EntryWanted* wanted = nullptr);

// Error: bad_session or io if the bytes of a shared page, or of a state, are not what the index says.
Status read_page(const os::InputFile& file, const Entry& entry, uint32_t page, std::byte* out);
Status read_state(const os::InputFile& file, const Entry& entry, size_t state, std::byte* out);

}  // namespace orrery::engine
