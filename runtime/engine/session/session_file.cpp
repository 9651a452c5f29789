#include "runtime/engine/session/session_file.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/checked.h"
#include "runtime/base/hash.h"
#include "runtime/kv/memory/plan.h"
#include "runtime/text/json/json.h"

namespace orrery::engine {

struct SessionFileHeader {
  char magic[8];
  uint8_t fingerprint[16];
  uint8_t rope[16];  // hash of the inverse frequencies and the magnitudes; with kAdapted, of that hash and of AdapterSet::hash()
  uint32_t kv_type;
  uint32_t n_tokens;  // all tokens; they have KV
  uint32_t n_pages;
  uint32_t page_tokens;
  uint64_t page_bytes;
  uint64_t conversation_bytes;  // JSON
  uint64_t n_dropped;
  uint32_t form;     // of the KV: kCentred, kRotated; kHasState: a state (CheckpointedState) stands behind the pages; kAdapted: the KV was
                     // made with adapters
  uint32_t n_means;  // (n_layers * n_kv_heads * head_dim) floats if centred, else 0
};
static_assert(sizeof(SessionFileHeader) == 88, "the layout of the file");

// With kHasResident, behind the header: what the next token needs besides the pages. The state follows the means; before it, with
// kHasLogits, stand the logits and the embedding.
struct SessionFileResident {
  uint32_t version;
  uint32_t flags;           // kHasLogits, kSelectsAgain
  uint8_t kind[16];         // Resident::kind; zeros without a state: generated tokens attend to all KV
  uint64_t n_floats;        // of logits and embedding
  uint64_t resident_bytes;  // of Resident::save
  uint8_t hash[16];         // of all before the pages, without these 16 bytes: pages may be read later
};
static_assert(sizeof(SessionFileResident) == 56, "the layout of the file");

namespace {

constexpr char kMagic[8] = {'O', 'R', 'R', 'S', 'E', 'S', 'S', '1'};
constexpr size_t kChecksumBytes = 16;
constexpr uint64_t kBytesAtOnce = uint64_t{4} << 20;  // of pages: one piece from the device
constexpr uint64_t kBytesRead = uint64_t{1} << 20;    // of pages: one piece of a file, which stays in the processor's cache
constexpr uint64_t kMaxConversationBytes = uint64_t{256} << 20;

constexpr uint32_t kCentred = 1, kRotated = 2, kHasState = 4, kHasResident = 8, kAdapted = 16;  // SessionFileHeader::form
constexpr uint32_t kResidentVersion = 1, kHasLogits = 1, kSelectsAgain = 2;
constexpr uint64_t kResidentMargin = uint64_t{1} << 20;  // of a resident state: its numbers beside the memory of what it holds

// Of logits, embedding and resident state. r: zeros without kHasResident.
uint64_t state_part_bytes(const SessionFileResident& r) { return r.n_floats * sizeof(float) + r.resident_bytes; }
// Bytes between the header and the pages: tokens, phases, conversation, means, and the resident state.
uint64_t head_bytes(const SessionFileHeader& h, const SessionFileResident& r) {
  return ((h.form & kHasResident) ? sizeof r : 0) + uint64_t{h.n_tokens} * (sizeof(int32_t) + 1) + h.conversation_bytes +
         uint64_t{h.n_means} * sizeof(float) + state_part_bytes(r);
}

std::array<uint8_t, 16> rope_hash(const model::RopeTables& ropes, const Adapters& adapters) {
  std::array<uint8_t, 16> out = hash_ropes(ropes);
  if (!adapters) return out;
  Hash128 hash;
  hash.update(out.data(), out.size());
  hash.update(adapters->hash().data(), adapters->hash().size());
  hash.digest(out.data());
  return out;
}

Status damaged(const char* name, uint64_t offset, const char* what) {
  Status s = error(Code::bad_session, "%s: byte %llu: %s", name, static_cast<unsigned long long>(offset), what);
  s.detail().offset = offset;
  return s;
}

}  // namespace

// Saving -------------------------------------------------------------------------------------------------

namespace {

// The parts of a saved session, in file order.
struct Image {
  SessionFileHeader header;
  SessionFileResident resident;
  std::string conversation;
  std::vector<std::byte> state;  // of the resident part
  uint64_t bytes = 0;            // of the whole file
};

Status go_on(const std::atomic<bool>* cancel, const char* doing) {
  return cancel && cancel->load(std::memory_order_relaxed) ? error(Code::cancelled, "%s the session was cancelled", doing) : ok_status();
}

// Clears the last page behind the last token: it may hold another session's tokens.
void clear_unused_slots(const kv::SequencePages& pages, uint32_t n_tokens, std::byte* page) {
  const uint32_t used = (n_tokens - 1) % static_cast<uint32_t>(kPageTokens) + 1;
  for (size_t g = 0; g < pages.n_groups(); ++g) {
    if (pages.group(g).ring()) continue;
    kv::clear_slots(pages.group(g).format(), used, page);
    page += pages.group(g).format().page_bytes();
  }
}

// Of the state behind the pages.
uint64_t state_bytes(const Sequence& sequence, const SessionFileHeader& h) { return (h.form & kHasState) ? sequence.state()->bytes() : 0; }

// state: of the resident part; empty without one.
Result<Image> make_image(const Session& session, std::vector<std::byte> state) {
  const Sequence& sequence = session.sequence();
  const kv::SequencePages& pages = sequence.pages();
  const StoredForm& form = sequence.form();
  Image image;
  SessionFileHeader& h = image.header;
  std::memset(&h, 0, sizeof h);
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  std::memcpy(h.fingerprint, session.model().weights().fingerprint, sizeof h.fingerprint);
  const Adapters adapters = session.n_computed() > 0 ? session.options().adapters : nullptr;
  const std::array<uint8_t, 16> hash = rope_hash(sequence.ropes(), adapters);
  std::memcpy(h.rope, hash.data(), sizeof h.rope);
  h.kv_type = static_cast<uint32_t>(pages.type());
  h.n_tokens = session.n_computed();
  h.n_pages = pages.n_pages(h.n_tokens);
  h.page_tokens = static_cast<uint32_t>(kPageTokens);
  h.page_bytes = pages.page_bytes();
  h.n_dropped = session.conversation().n_dropped;
  if (h.n_tokens > 0) {
    h.form = (form.means ? kCentred : 0) | (form.rotated ? kRotated : 0) | (adapters ? kAdapted : 0);
    h.n_means = form.means ? static_cast<uint32_t>(form.means->size()) : 0;
  }
  if (sequence.state() && h.n_tokens > 0 && sequence.state()->position() == h.n_tokens) h.form |= kHasState;
  ORRERY_ASSIGN(image.conversation, text::dump_json(text::Value::list(session.conversation().messages)));
  h.conversation_bytes = image.conversation.size();
  if (h.conversation_bytes > kMaxConversationBytes)
    return error(Code::unsupported, "the conversation has %zu bytes, a session file holds at most %llu", image.conversation.size(),
                 static_cast<unsigned long long>(kMaxConversationBytes));
  SessionFileResident& r = image.resident;
  std::memset(&r, 0, sizeof r);
  if (!state.empty() || sequence.has_logits()) {
    h.form |= kHasResident;
    r.version = kResidentVersion;
    r.flags = (sequence.has_logits() ? kHasLogits : 0) | (sequence.selects_again() ? kSelectsAgain : 0);
    if (!state.empty()) std::memcpy(r.kind, session.resident()->kind().data(), sizeof r.kind);
    r.n_floats = sequence.has_logits() ? sequence.n_logits() + sequence.n_embedding() : 0;
    r.resident_bytes = state.size();
  }
  image.state = std::move(state);
  image.bytes = sizeof h + head_bytes(h, r) + h.n_pages * h.page_bytes + state_bytes(sequence, h) + kChecksumBytes;
  return image;
}

// The image of a session that is ready to be saved: nothing of it is under way.
Result<Image> ready_image(Session* session, const std::atomic<bool>* cancel, const std::atomic<bool>* cancel_state) {
  Sequence& sequence = session->sequence();
  ORRERY_TRY(sequence.finish_pages(Cancel(cancel)));
  ORRERY_TRY(session->resume());
  sequence.drop_ahead();
  ORRERY_TRY(sequence.complete_state(cancel_state));
  std::vector<std::byte> resident;
  ORRERY_TRY(sequence.save_resident(&resident));
  return make_image(*session, std::move(resident));
}

}  // namespace

Result<uint64_t> SessionFile::size(Session* session, const std::atomic<bool>* cancel, uint64_t* first_page) {
  ORRERY_ASSIGN(const Image image, ready_image(session, cancel, nullptr));
  if (first_page) *first_page = sizeof image.header + head_bytes(image.header, image.resident);
  return image.bytes;
}

Status SessionFile::save(Session* session, const Sink& sink, const std::atomic<bool>* cancel) {
  Sequence& sequence = session->sequence();
  ORRERY_ASSIGN(const Image image, ready_image(session, cancel, cancel));
  if (sequence.has_logits()) ORRERY_TRY(sequence.fetch_logits(Cancel(cancel)));
  Hash128 hash;
  const auto write = [&](const void* data, size_t n) {
    hash.update(data, n);
    return sink({static_cast<const std::byte*>(data), n});
  };
  const size_t n = image.header.n_tokens;
  std::vector<uint8_t> phases(sequence.made().begin(), sequence.made().begin() + n);
  for (uint8_t& phase : phases) phase &= kv::Made::kGenerated;
  const auto write_head = [&](const auto& to) -> Status {
    ORRERY_TRY(to(sequence.tokens().data(), n * sizeof(int32_t)));
    ORRERY_TRY(to(phases.data(), n));
    ORRERY_TRY(to(image.conversation.data(), image.conversation.size()));
    if (image.header.n_means > 0) ORRERY_TRY(to(sequence.form().means->data(), sequence.form().means->size() * sizeof(float)));
    if (image.resident.flags & kHasLogits) {
      ORRERY_TRY(to(sequence.logits().data(), sequence.logits().size() * sizeof(float)));
      ORRERY_TRY(to(sequence.embedding().data(), sequence.embedding().size() * sizeof(float)));
    }
    return to(image.state.data(), image.state.size());
  };
  ORRERY_TRY(write(&image.header, sizeof image.header));
  if (image.header.form & kHasResident) {
    Hash128 of_head;
    const auto sum = [&](const void* data, size_t bytes) {
      of_head.update(data, bytes);
      return ok_status();
    };
    ORRERY_TRY(sum(&image.header, sizeof image.header));
    ORRERY_TRY(sum(&image.resident, offsetof(SessionFileResident, hash)));
    ORRERY_TRY(write_head(sum));
    SessionFileResident resident_part = image.resident;
    of_head.digest(resident_part.hash);
    ORRERY_TRY(write(&resident_part, sizeof resident_part));
  }
  ORRERY_TRY(write_head(write));
  const uint64_t page_bytes = image.header.page_bytes;
  const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(kBytesAtOnce / page_bytes, 1));
  std::vector<std::byte> pages(std::min(at_once, image.header.n_pages) * page_bytes);
  for (uint32_t first = 0; first < image.header.n_pages;) {
    ORRERY_TRY(go_on(cancel, "saving"));
    const uint32_t end = std::min(image.header.n_pages, first + at_once);
    ORRERY_TRY(sequence.download_pages(first, end, pages.data()));
    if (end == image.header.n_pages)
      clear_unused_slots(sequence.pages(), image.header.n_tokens, pages.data() + (end - 1 - first) * page_bytes);
    ORRERY_TRY(write(pages.data(), (end - first) * page_bytes));
    first = end;
  }
  if (image.header.form & kHasState) {
    ORRERY_ASSIGN(const CheckpointedState::Bytes state, sequence.read_state());
    ORRERY_TRY(write(state->data(), state->size()));
  }
  session->stats().device_to_host_bytes += image.header.n_pages * image.header.page_bytes;
  std::byte checksum[kChecksumBytes];
  hash.digest(reinterpret_cast<uint8_t*>(checksum));
  ORRERY_TRY(go_on(cancel, "saving"));
  return sink({checksum, sizeof checksum});
}

Status SessionFile::save_to_file(Session* session, const std::string& path, const std::atomic<bool>* cancel) {
  ORRERY_ASSIGN(os::AtomicFile file, os::AtomicFile::create(path));
  ORRERY_TRY(save(
      session, [&](Span<const std::byte> bytes) { return file.write(bytes); }, cancel));
  return file.commit();
}

namespace {

// The hashes of pages that pass by as pieces of a file.
class PassingPages {
 public:
  PassingPages(uint64_t first_page, uint64_t page_bytes, std::vector<EntryHash>* hashes)
      : page_bytes_(page_bytes), skipped_(first_page), hashes_(hashes) {}
  void pass(Span<const std::byte> piece) {
    const size_t skip = std::min<uint64_t>(skipped_, piece.size());
    skipped_ -= skip;
    for (size_t i = skip; i < piece.size() && n_pages_ < hashes_->size();) {
      const size_t n = std::min<uint64_t>(page_bytes_ - n_bytes_, piece.size() - i);
      hash_.update(piece.data() + i, n);
      i += n, n_bytes_ += n;
      if (n_bytes_ < page_bytes_) break;
      hash_.digest((*hashes_)[n_pages_++].data());
      hash_ = Hash128(), n_bytes_ = 0;
    }
  }

 private:
  uint64_t page_bytes_, skipped_;  // bytes before the first page that have not passed
  std::vector<EntryHash>* hashes_;
  Hash128 hash_;
  uint64_t n_bytes_ = 0;  // of the page under way
  size_t n_pages_ = 0;
};

}  // namespace

Status SessionFile::save_to_folder(Session* session, const Folder& folder, const std::string& name, const std::atomic<bool>* cancel) {
  Entry entry;
  ORRERY_ASSIGN(entry.session_bytes, size(session, cancel, &entry.first_page));
  entry.key = session->folder_key(folder);
  entry.n_tokens = session->n_computed();
  const Sequence& sequence = session->sequence();
  const Span<const uint8_t> made = sequence.made();
  const auto own =
      std::find_if(made.begin(), made.begin() + entry.n_tokens, [](uint8_t m) { return m != 0 && m != kv::Made::kFromFolder; });
  const size_t n_pages = static_cast<size_t>(own - made.begin()) / kEntryTokens;
  entry.tokens.assign(sequence.tokens().begin(), sequence.tokens().begin() + n_pages * kEntryTokens);
  entry.pages.resize(n_pages);
  std::vector<CheckpointedState::Bytes> states;
  if (sequence.state())
    for (const CheckpointedState::Checkpoint& c : sequence.state()->checkpoints())
      if (c.n_tokens > 0 && c.n_tokens % kEntryTokens == 0 && c.n_tokens <= entry.tokens.size()) {
        entry.states.push_back({c.n_tokens, entry_hash(c.bytes->data(), c.bytes->size())});
        states.push_back(c.bytes);
      }
  const std::string entry_name = name.empty() ? Folder::unnamed(entry.key, sequence.tokens().first(entry.n_tokens)) : name;
  const auto write = [&](const Sink& sink) -> Status {
    PassingPages pages(entry.first_page, entry.key.page_bytes, &entry.pages);
    const Sink passes = [&](Span<const std::byte> piece) {
      pages.pass(piece);
      return sink(piece);
    };
    ORRERY_TRY(save(session, passes, cancel));
    for (const CheckpointedState::Bytes& state : states) ORRERY_TRY(sink(*state));
    return sink(entry_trailer(entry));
  };
  ORRERY_TRY(folder.save(entry_name, entry.bytes(), write));
  if (name.empty()) folder.replace_shorter(entry_name, entry);
  return ok_status();
}

// Loading ------------------------------------------------------------------------------------------------

namespace {

// Checks the header of a file of `bytes` bytes: model, formats, and whether the parts add up to `bytes`.
Status check_header(const Sequence& sequence, const SessionFileHeader& h, const SessionFileResident& r, uint64_t most_resident_bytes,
                    uint64_t bytes, const char* name) {
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return damaged(name, 0, "this is not a session file");

  // Does it belong to this model and its formats?
  const Adapters& adapters = sequence.options().adapters;
  const bool adapted = (h.form & kAdapted) != 0;
  const std::array<uint8_t, 16> rope = rope_hash(sequence.ropes(), adapted ? adapters : nullptr);
  const model::Description& d = sequence.model().description();
  const KvType kv_type = sequence.options().kv_type;
  if (std::memcmp(h.fingerprint, sequence.model().weights().fingerprint, sizeof h.fingerprint) != 0)
    return damaged(name, offsetof(SessionFileHeader, fingerprint), "the session was saved with another model");
  if ((h.form & ~(kCentred | kRotated | kHasState | kHasResident | kAdapted)) != 0 ||
      ((h.form & kHasResident) && (r.version != kResidentVersion || (r.flags & ~(kHasLogits | kSelectsAgain)) != 0)))
    return damaged(name, offsetof(SessionFileHeader, form), "was written by a newer version");
  if (adapted && !adapters)
    return damaged(name, offsetof(SessionFileHeader, form), "the session was saved with adapters, and this session has none");
  if (!adapted && adapters && h.n_tokens > 0)
    return damaged(name, offsetof(SessionFileHeader, form), "the session was saved without adapters, and this session has some");
  if (std::memcmp(h.rope, rope.data(), sizeof h.rope) != 0)
    return damaged(name, offsetof(SessionFileHeader, rope),
                   adapted ? "the session was saved with other adapters, other scales of them, another rotary scaling or context size"
                           : "the session was saved with another rotary scaling or context size");
  if ((h.form & kHasState) && !sequence.state())
    return damaged(name, offsetof(SessionFileHeader, form), "holds a recurrent state or windows, which the model has not");
  if (h.n_means != ((h.form & kCentred) ? d.key_values() : 0))
    return damaged(name, offsetof(SessionFileHeader, n_means), "the number of mean keys is not what the model has");
  if (h.kv_type != static_cast<uint32_t>(kv_type) || h.page_bytes != page_bytes(d, kv_type) ||
      h.page_tokens != static_cast<uint32_t>(kPageTokens))
    return damaged(name, offsetof(SessionFileHeader, kv_type), "the session was saved with another type of KV cache");
  if (h.n_tokens > sequence.n_context())
    return memory_error(Code::context_full, h.n_tokens, sequence.n_context(), "%s: holds %u tokens, the session's context is %u", name,
                        h.n_tokens, sequence.n_context());

  if (r.n_floats != ((r.flags & kHasLogits) ? sequence.n_logits() + sequence.n_embedding() : 0))
    return damaged(name, sizeof h + offsetof(SessionFileResident, n_floats), "the number of logits is not what the model has");
  // A state of other options is passed over. It holds no more than some copies of the KV, and the last queries.
  const uint64_t most =
      most_resident_bytes > 0 ? most_resident_bytes : 4 * kv::pages_for(h.n_tokens) * h.page_bytes + 256 * kResidentMargin;
  if (r.resident_bytes > most || ((h.form & kHasResident) && (h.n_tokens == 0 || r.resident_bytes + r.n_floats == 0)))
    return damaged(name, sizeof h + offsetof(SessionFileResident, resident_bytes), "the resident state is longer than any that is saved");

  // Is it whole? n_tokens and page_bytes have been checked; the conversation's length has not.
  SessionFileHeader without_conversation = h;
  without_conversation.conversation_bytes = 0;
  const uint64_t fixed =
      sizeof h + head_bytes(without_conversation, r) + kv::pages_for(h.n_tokens) * h.page_bytes + state_bytes(sequence, h) + kChecksumBytes;
  if (h.n_pages != kv::pages_for(h.n_tokens))
    return damaged(name, offsetof(SessionFileHeader, n_pages), "the number of pages is not what its tokens take");
  if (bytes < fixed || h.conversation_bytes != bytes - fixed) return damaged(name, bytes, "is shorter or longer than its header says");
  if (h.conversation_bytes > kMaxConversationBytes)
    return damaged(name, offsetof(SessionFileHeader, conversation_bytes), "the conversation is longer than any that is saved");
  return ok_status();
}

// Whether `hash` is the checksum at the end of a file of `file_bytes` bytes.
Status check_sum(const Hash128& hash, const std::byte* checksum, uint64_t file_bytes, const char* name) {
  uint8_t digest[kChecksumBytes];
  hash.digest(digest);
  if (std::memcmp(digest, checksum, kChecksumBytes) == 0) return ok_status();
  return damaged(name, file_bytes - kChecksumBytes, "the checksum is wrong: the file is damaged");
}

}  // namespace

// The content of a file before its pages.
struct SessionFile::Contents {
  SessionFileHeader header;
  SessionFileResident resident = {};  // zeros: the file has none
  Span<const std::byte> head;         // of head_bytes(): bytes of the file
  Span<const int32_t> tokens;
  const uint8_t* phases = nullptr;
  std::vector<int32_t> token_room;
  std::vector<text::Value> messages;
  StoredForm form;
  CheckpointedState::Bytes state;  // of all tokens; null: the file has none

  std::unique_ptr<policy::Policy> policy;  // in the file's state; null: the session chooses its resident KV again

  bool checked = false;  // by parse()
  Span<const std::byte> state_part() const { return head.last(state_part_bytes(resident)); }
  Span<const std::byte> resident_state() const { return head.last(resident.resident_bytes); }
  bool fits(const Sequence& sequence) const {
    return (header.form & kHasResident) && resident.resident_bytes > 0 && sequence.resident() &&
           std::memcmp(resident.kind, sequence.resident()->kind().data(), sizeof resident.kind) == 0;
  }
  // Reads the header's part of a file of `bytes` bytes by `read`, and checks it.
  Status open(const Session& session, uint64_t bytes, const char* name, const std::function<Status(uint64_t at, Span<std::byte>)>& read);
  Status check_resident(Sequence* sequence, const char* name);
  // Whether the logits are those of the session's own attention.
  bool has_own_logits(bool takes_state, bool attends_to_all) const;
  Status check_hash(const char* name) const;
  void read_form();
  // Are the values in range?
  Status parse(const Sequence& sequence, const char* name);
};

Status SessionFile::Contents::open(const Session& session, uint64_t bytes, const char* name,
                                   const std::function<Status(uint64_t at, Span<std::byte>)>& read) {
  const auto ends = [&] { return damaged(name, bytes, "ends inside the header"); };
  if (bytes < sizeof header + kChecksumBytes) return ends();
  ORRERY_TRY(read(0, {reinterpret_cast<std::byte*>(&header), sizeof header}));
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && (header.form & kHasResident)) {
    if (bytes < sizeof header + sizeof resident + kChecksumBytes) return ends();
    ORRERY_TRY(read(sizeof header, {reinterpret_cast<std::byte*>(&resident), sizeof resident}));
  }
  // Of the session's own kind, a state has no more than the session's memory.
  const uint64_t most = session.regions().device_bytes() + session.regions().host_bytes() + kResidentMargin;
  return check_header(session.sequence(), header, resident, fits(session.sequence()) ? most : 0, bytes, name);
}

bool SessionFile::Contents::has_own_logits(bool takes_state, bool attends_to_all) const {
  static constexpr uint8_t kNone[sizeof resident.kind] = {};
  if (!(resident.flags & kHasLogits)) return false;
  return takes_state || (attends_to_all && std::memcmp(resident.kind, kNone, sizeof kNone) == 0);
}

Status SessionFile::Contents::check_hash(const char* name) const {
  if (!(header.form & kHasResident)) return ok_status();
  Hash128 hash;
  hash.update(&header, sizeof header);
  hash.update(&resident, offsetof(SessionFileResident, hash));
  hash.update(head.data() + sizeof resident, head.size() - sizeof resident);
  uint8_t digest[sizeof resident.hash];
  hash.digest(digest);
  if (std::memcmp(digest, resident.hash, sizeof digest) == 0) return ok_status();
  return damaged(name, sizeof header + offsetof(SessionFileResident, hash),
                 "the hash of what stands before the pages is wrong: the file is damaged");
}

// The session is not parked. It does not change.
Status SessionFile::Contents::check_resident(Sequence* sequence, const char* name) {
  if (!fits(*sequence)) return ok_status();
  auto found = sequence->resident()->check(resident_state(), header.n_tokens);
  if (!found.ok()) {
    Status s = found.take_status();
    if (s.code() == Code::bad_session) s.detail().message = std::string(name) + ": " + s.detail().message;
    return s;
  }
  policy = std::move(*found);
  return ok_status();
}

void SessionFile::Contents::read_form() {
  form.rotated = (header.form & kRotated) != 0;
  if (header.n_means == 0) return;
  KeyMeans means(header.n_means);
  std::memcpy(means.data(), state_part().data() - means.size() * sizeof(float), means.size() * sizeof(float));
  form.means = std::make_shared<const KeyMeans>(std::move(means));
}

Status SessionFile::Contents::parse(const Sequence& sequence, const char* name) {
  ORRERY_TRY(check_hash(name));
  const size_t n = header.n_tokens;
  const std::byte* at = head.data() + ((header.form & kHasResident) ? sizeof resident : 0);
  token_room.resize(n);
  if (n > 0) std::memcpy(token_room.data(), at, n * sizeof(int32_t));
  tokens = token_room;
  for (const int32_t t : tokens)
    if (t < 0 || t >= sequence.model().description().n_vocab) return damaged(name, sizeof header, "a token is outside the vocabulary");
  phases = reinterpret_cast<const uint8_t*>(at + n * sizeof(int32_t));
  if (std::any_of(phases, phases + n, [](uint8_t phase) { return phase > 1; }))
    return damaged(name, sizeof header, "a token's phase is unknown");
  auto parsed = text::parse_json({reinterpret_cast<const char*>(phases + n), header.conversation_bytes});
  if (!parsed.ok()) return damaged(name, sizeof header, parsed.status().message());
  const text::Value conversation = std::move(parsed).value();
  if (!conversation.is_list()) return damaged(name, sizeof header, "the conversation is not a list");
  for (const text::Value& message : conversation.as_items())
    if (!message.is_map()) return damaged(name, sizeof header, "a message is not an object");
  messages = conversation.as_items();
  checked = true;
  return ok_status();
}

// Reads the pages of a file, at most at_once pages at a time, and calls use(first, end, bytes) for each piece.
struct SessionFile::PageReader {
  using Use = std::function<Status(uint32_t first, uint32_t end, const std::byte* bytes)>;
  std::function<Status(const Use&)> read;
  // If given, the pages may be read later, as read() reads them: by a function that lives as long as the feed.
  std::function<std::function<Status(const Use&, const std::atomic<bool>* stop)>()> later = {};
};

// From here on a session with tokens fails only by the device and by the second reading of a file. Contents that are not parsed are parsed
// behind the pages, when the checksum is known to be right. The conversation changes last.
Status SessionFile::replace(Session* session, Contents* contents, const PageReader& pages, const char* name,
                            const std::atomic<bool>* cancel) {
  const SessionFileHeader& h = contents->header;
  Sequence& sequence = session->sequence();
  // Pages of an earlier file, which the session keeps if this one is refused. Their damage is no error of this call.
  const Status earlier = sequence.finish_pages(Cancel(cancel));
  if (earlier.code() == Code::cancelled) return Status(earlier.detail());
  ORRERY_TRY(session->resume());
  const bool had_tokens = !sequence.tokens().empty();
  contents->read_form();
  if (contents->checked) ORRERY_TRY(contents->check_resident(&sequence, name));
  sequence.truncate(0);
  Status status = ok_status();
  bool keeps_form = true;
  std::vector<std::byte> changed;
  if (h.n_tokens > 0) {
    Result<bool> keeps = sequence.begin_load(contents->form, h.n_tokens);
    if (keeps.ok()) keeps_form = *keeps;
    else status = keeps.take_status();
  }
  const PageReader::Use upload = [&](uint32_t first, uint32_t end, const std::byte* bytes) {
    const uint64_t at_once = keeps_form ? end - first : std::max<uint64_t>(kBytesAtOnce / h.page_bytes, 1);
    for (uint64_t page = first, n = 0; page < end; page += n, bytes += n * h.page_bytes) {
      n = std::min(at_once, end - page);
      if (!keeps_form) {
        changed.assign(bytes, bytes + n * h.page_bytes);
        for (uint64_t i = 0; i < n; ++i) change_form(sequence.pages(), contents->form, sequence.form(), changed.data() + i * h.page_bytes);
      }
      ORRERY_TRY(sequence.upload_pages(static_cast<uint32_t>(page), static_cast<uint32_t>(page + n), keeps_form ? bytes : changed.data()));
    }
    return ok_status();
  };
  const bool behind = status.ok() && pages.later && keeps_form && h.n_pages > 0;
  if (status.ok() && !behind) status = pages.read(upload);
  if (status.ok() && !contents->checked) {
    status = contents->parse(sequence, name);
    if (status.ok()) status = contents->check_resident(&sequence, name);
  }
  std::vector<uint8_t> made;
  if (status.ok()) made.assign(contents->phases, contents->phases + h.n_tokens);
  for (uint8_t& each : made) each |= kv::Made::kFromFile;
  const bool goes_on = keeps_form && contents->policy,
             own_logits = keeps_form && contents->has_own_logits(goes_on, !sequence.decodes_resident());
  if (status.ok() && goes_on) status = sequence.take_resident(contents->resident_state(), h.n_tokens, std::move(contents->policy));
  if (!status.ok()) {
    sequence.drop_pages(0);
    if (had_tokens) status.detail().message += "; the session has lost its tokens, and keeps its conversation";
    return status;
  }
  if (contents->state && sequence.pages().windows_bytes() > 0 && !keeps_form) {
    auto state = std::make_shared<std::vector<std::byte>>(*contents->state);
    change_form_of_windows(sequence.pages(), contents->form, sequence.form(), state->data() + sequence.state()->float_bytes());
    contents->state = std::move(state);
  }
  sequence.take_tokens(0, contents->tokens, made, std::move(contents->state));
  sequence.set_selects_again(goes_on ? (contents->resident.flags & kSelectsAgain) != 0 : sequence.resident() && h.n_tokens > 0);
  if (own_logits) sequence.set_logits(contents->state_part().data());
  session->conversation().messages = std::move(contents->messages);
  session->conversation().n_dropped = h.n_dropped;
  session->stats().host_to_device_bytes += h.n_pages * h.page_bytes;
  if (!behind) return ok_status();
  return sequence.read_behind([&sequence, read = pages.later()](const std::atomic<bool>* stop) {
    const auto use = [&sequence, stop](uint32_t first, uint32_t end, const std::byte* bytes) {
      return sequence.upload_pages(first, end, bytes, Cancel(stop));
    };
    return read(use, stop);
  });
}

Status SessionFile::load(Session* session, Span<const std::byte> bytes, const char* name, const std::atomic<bool>* cancel) {
  Contents contents;
  SessionFileHeader& h = contents.header;
  ORRERY_TRY(contents.open(*session, bytes.size(), name, [&](uint64_t at, Span<std::byte> to) {
    std::memcpy(to.data(), bytes.data() + at, to.size());
    return ok_status();
  }));
  const size_t summed = bytes.size() - kChecksumBytes;
  Hash128 hash;
  for (size_t at = 0; at < summed;) {
    ORRERY_TRY(go_on(cancel, "loading"));
    const size_t n = std::min<size_t>(kBytesAtOnce, summed - at);
    hash.update(bytes.data() + at, n);
    at += n;
  }
  ORRERY_TRY(check_sum(hash, bytes.data() + summed, bytes.size(), name));
  contents.head = bytes.subspan(sizeof h, head_bytes(h, contents.resident));
  ORRERY_TRY(contents.parse(session->sequence(), name));
  ORRERY_TRY(go_on(cancel, "loading"));
  const std::byte* const pages = contents.head.data() + contents.head.size();
  if (const uint64_t n = state_bytes(session->sequence(), h); n > 0) {
    const std::byte* const state = pages + h.n_pages * h.page_bytes;
    contents.state = std::make_shared<std::vector<std::byte>>(state, state + n);
  }
  return replace(session, &contents, {[&](const PageReader::Use& use) { return use(0, h.n_pages, pages); }}, name, cancel);
}

// A file behind its header and its head: the pages, the state, the checksum.
struct SessionFile::Rest {
  os::InputFile file;
  std::string name;
  Hash128 begun;  // of header and head
  uint64_t first_page = 0, page_bytes = 0, state_bytes = 0;
  uint32_t n_pages = 0;
  os::Region piece;

  // Reads it once, and checks that the checksum belongs to it. state: where the state goes. stop: ends it; may be null.
  Status read(const PageReader::Use& use, CheckpointedState::Bytes* state, const std::atomic<bool>* stop) const {
    Hash128 hash = begun;
    const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(kBytesRead / page_bytes, 1));
    for (uint32_t first = 0; first < n_pages;) {
      ORRERY_TRY(go_on(stop, "loading"));
      const uint32_t end = first + std::min(at_once, n_pages - first);
      const uint64_t bytes = (end - first) * page_bytes;
      ORRERY_TRY(file.read_at(first_page + first * page_bytes, {piece.data(), bytes}));
      hash.update(piece.data(), bytes);
      ORRERY_TRY(use(first, end, piece.data()));
      first = end;
    }
    if (state_bytes > 0) {
      auto bytes = std::make_shared<std::vector<std::byte>>(state_bytes);
      ORRERY_TRY(file.read_at(first_page + n_pages * page_bytes, {bytes->data(), state_bytes}));
      hash.update(bytes->data(), state_bytes);
      *state = std::move(bytes);
    }
    std::byte checksum[kChecksumBytes];
    ORRERY_TRY(file.read_at(file.size() - kChecksumBytes, {checksum, kChecksumBytes}));
    return check_sum(hash, checksum, file.size(), name.c_str());
  }
};

Status SessionFile::load_from_file(Session* session, const std::string& path, uint64_t whole_bytes, const std::atomic<bool>* cancel,
                                   Pages when) {
  ORRERY_ASSIGN(os::InputFile file, os::InputFile::open(path));
  return load_file(session, std::move(file), whole_bytes, cancel, when);
}

Status SessionFile::load_from_folder(Session* session, const Folder& folder, const std::string& name, const std::atomic<bool>* cancel,
                                     Pages when) {
  ORRERY_ASSIGN(os::InputFile file, folder.open_entry(name));
  ORRERY_ASSIGN(const Entry entry, read_entry(file));
  ORRERY_TRY(file.narrow(0, entry.session_bytes));
  ORRERY_TRY(load_file(session, std::move(file), kWholeBytes, cancel, when));
  folder.touch(name);
  const size_t n = entry.tokens.size();
  if (n > session->tokens().size() || !(session->folder_key(folder) == entry.key) ||
      !std::equal(entry.tokens.begin(), entry.tokens.end(), session->tokens().begin()))
    return ok_status();
  session->sequence().set_made(0, static_cast<uint32_t>(n), kv::Made::kFromFolder);
  return ok_status();
}

// Reads the header first: a file of any length may be refused by it.
Status SessionFile::load_file(Session* session, os::InputFile opened, uint64_t whole_bytes, const std::atomic<bool>* cancel, Pages when) {
  const auto rest = std::make_shared<Rest>();
  rest->file = std::move(opened);
  const os::InputFile& file = rest->file;
  rest->name = file.path();
  const char* const name = rest->name.c_str();
  Contents contents;
  SessionFileHeader& h = contents.header;
  ORRERY_TRY(contents.open(*session, file.size(), name, [&](uint64_t at, Span<std::byte> to) { return file.read_at(at, to); }));
  const bool has_tokens = !session->tokens().empty();
  if (has_tokens && file.size() <= whole_bytes) {
    ORRERY_ASSIGN(const os::Region copy, os::Region::allocate(file.size()));
    ORRERY_TRY(file.read_at(0, {copy.data(), file.size()}));
    return load(session, {copy.data(), file.size()}, name, cancel);
  }

  const uint64_t n_head = head_bytes(h, contents.resident);
  ORRERY_ASSIGN(const os::Region head, os::Region::allocate(n_head));
  ORRERY_TRY(file.read_at(sizeof h, {head.data(), n_head}));
  contents.head = {head.data(), n_head};
  rest->begun.update(&h, sizeof h);
  rest->begun.update(head.data(), n_head);
  rest->first_page = sizeof h + n_head, rest->page_bytes = h.page_bytes, rest->n_pages = h.n_pages;
  rest->state_bytes = state_bytes(session->sequence(), h);
  const auto at_once = static_cast<uint32_t>(std::max<uint64_t>(kBytesRead / h.page_bytes, 1));
  ORRERY_ASSIGN(rest->piece, os::Region::allocate(std::min(at_once, h.n_pages) * h.page_bytes));

  PageReader reader;
  reader.read = [&](const PageReader::Use& use) { return rest->read(use, &contents.state, has_tokens ? nullptr : cancel); };
  if (has_tokens) {
    ORRERY_TRY(reader.read([&](uint32_t, uint32_t, const std::byte*) { return go_on(cancel, "loading"); }));
    ORRERY_TRY(contents.parse(session->sequence(), name));
  }
  // What stands before the pages has a hash of its own. Refills over a link begin at once, and read the pages.
  const bool may_wait = !session->options().compressed() || session->model().runtime().moves_directly();
  if (when == Pages::behind && !has_tokens && (h.form & kHasResident) && rest->state_bytes == 0 && may_wait) {
    ORRERY_TRY(contents.parse(session->sequence(), name));
    reader.later = [rest] {
      return [rest](const PageReader::Use& use, const std::atomic<bool>* stop) { return rest->read(use, nullptr, stop); };
    };
  }
  return replace(session, &contents, reader, name, cancel);
}

}  // namespace orrery::engine
