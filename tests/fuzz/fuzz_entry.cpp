// Entries of a folder of sessions, as anybody may have written them. The hashes of footer, index and first page are put right here, since a
// fuzzer would not get past them.
//
// Input: a byte of flags, then an entry's file, of at least a footer's length. Flags: 1: the hashes stay as they are; 2: a reader that wants
// these very pages; 4: one that wants others.
#include <algorithm>
#include <cstring>
#include <fstream>

#include "runtime/engine/folder/entry.h"
#include "tests/fuzz/checks.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace orrery;
using namespace orrery::engine;
using namespace orrery::fuzz;

// The footer, as in runtime/engine/folder/entry.cpp.
constexpr size_t kFirstPage = 48, kIndex = 64, kPages = 116, kStates = 120, kMagic = 128, kFooterHash = 136, kFooter = 152;
constexpr size_t kPageIndex = 4 * kEntryTokens + sizeof(EntryHash), kStateIndex = 24, kMostInput = 1 << 20;

uint32_t number(const std::vector<std::byte>& file, size_t at) {
  uint32_t value;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

void put_right(std::vector<std::byte>* file) {
  const size_t footer = file->size() - kFooter;
  const auto put = [&](size_t at, const EntryHash& hash) { std::memcpy(file->data() + footer + at, hash.data(), hash.size()); };
  std::memcpy(file->data() + footer + kMagic, "ORRFOLD1", 8);
  const uint64_t n_pages = number(*file, footer + kPages),
                 index = n_pages * kPageIndex + number(*file, footer + kStates) * uint64_t{kStateIndex};
  if (index <= footer) {
    const std::byte* const from = file->data() + footer - index;
    put(kIndex, entry_hash(from, index));
    put(kFirstPage, n_pages > 0 ? entry_hash(from, 4 * kEntryTokens) : EntryHash{});
  }
  put(kFooterHash, entry_hash(file->data() + footer, kFooterHash));
}

void check(const Status& status) {
  require(status.ok() || status.code() == Code::bad_session || status.code() == Code::io, "damage has one code");
  require(status.ok() || std::strlen(status.message()) > 0, "an error has a message");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const testing::TempDir* const dir = new testing::TempDir;
  if (size == 0 || size > kMostInput) return 0;
  const uint8_t flags = data[0];
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  if (!(flags & 1) && bytes.size() >= kFooter) put_right(&bytes);
  Result<os::InputFile> opened = os::InputFile::open(dir->write("entry.orrery", bytes));
  require(opened.ok(), "a file that was written is there");
  const os::InputFile& file = *opened;
  Result<Entry> read = read_entry(file);
  if (!read.ok()) {
    check(read.status());
    return 0;
  }
  const Entry& entry = *read;
  require(entry.bytes() == file.size(), "the parts add up to the file");
  require(entry.tokens.size() == size_t{entry.n_pages()} * kEntryTokens && entry.n_pages() <= entry.n_tokens / kEntryTokens,
          "shared pages are whole, and the session's");
  require(entry.common_pages(entry.tokens) == entry.n_pages(), "an entry has its own tokens");
  require(entry.usable_pages(entry.n_pages()) <= entry.n_pages(), "no more pages are used than there are");
  const std::vector<std::byte> trailer = entry_trailer(entry);
  if (!(flags & 1)) require(std::equal(trailer.rbegin(), trailer.rend(), bytes.rbegin()), "what is written again is the same");
  std::vector<std::byte> out(std::max(entry.n_pages() > 0 ? entry.key.page_bytes : 0, entry.states.empty() ? 0 : entry.key.state_bytes));
  for (uint32_t page = 0; page < std::min(entry.n_pages(), 8u); ++page) check(read_page(file, entry, page, out.data()));
  for (size_t state = 0; state < std::min<size_t>(entry.states.size(), 8); ++state) check(read_state(file, entry, state, out.data()));
  if (!(flags & 6)) return 0;
  std::vector<int32_t> tokens = entry.tokens;
  if ((flags & 4) && !tokens.empty()) ++tokens[0];
  const EntryWanted wanted = {entry.key, tokens};
  const Result<Entry> found = read_entry(file, &wanted);
  if (!found.ok()) check(found.status());
  if (!(flags & 1)) require(found.ok() == (!(flags & 4) && entry.n_pages() > 0), "an entry is found by its first page");
  return 0;
}
