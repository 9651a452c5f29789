// Sessions as bytes: header, tokens, phases, conversation, KV pages, and a checksum over all of them. The file is bound to the model's
// fingerprint, the KV type and the RoPE frequencies (longrope's depend on the context size). Little-endian.
//
// A file also has the last logits, and under a policy the state of the resident part (Resident::save). A session of the same options takes
// them, and goes on as the saved one, to the bit. A session of other options, or one that stores its KV in another form, passes over them
// and chooses its resident KV again. A file without them is read as before; a version that does not know them refuses a file that has them.
//
// After an error of loading, the session is unchanged. A session without tokens loads a file's pages while it checks them, once, and
// drops them after an error. A session with tokens checks the whole file first. It reads a file of more than kWholeBytes twice, piece by
// piece. If the second reading fails or finds another file, the session has lost its tokens and keeps its conversation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/session/session.h"

namespace orrery::engine {

class SessionFile {
 public:
  using Sink = std::function<Status(Span<const std::byte>)>;
  // Of loading. behind: a session without tokens reads what the next token needs first, which has a hash of its own. Its pages follow, read by
  // a thread of its own; whatever needs them waits (Sequence::finish_pages). An error found then is the next call's: the session has lost its
  // tokens.
  enum class Pages : uint8_t { at_once, behind };

  // The number of bytes that save() would write now. cancel: of waiting for pages that are still read. first_page: receives where the pages
  // begin; may be null.
  static Result<uint64_t> size(Session* session, const std::atomic<bool>* cancel = nullptr, uint64_t* first_page = nullptr);
  // cancel: if it is set between two pieces, the status is cancelled. May be null.
  static Status save(Session* session, const Sink& sink, const std::atomic<bool>* cancel = nullptr);
  // name: for messages. cancel: ends the check; a session that has begun to change is loaded whole.
  static Status load(Session* session, Span<const std::byte> bytes, const char* name, const std::atomic<bool>* cancel = nullptr);

  // Saves to an entry of a folder, with what other prompts need to find it. name: empty, or one that Folder::check_name() has found right.
  static Status save_to_folder(Session* session, const Folder& folder, const std::string& name, const std::atomic<bool>* cancel = nullptr);
  // Its prompt tokens stay what the folder shares. Others are a file's.
  static Status load_from_folder(Session* session, const Folder& folder, const std::string& name, const std::atomic<bool>* cancel = nullptr,
                                 Pages when = Pages::at_once);

  static Status save_to_file(Session* session, const std::string& path, const std::atomic<bool>* cancel = nullptr);
  // A session with tokens takes memory for a whole file of at most kWholeBytes. Otherwise loading takes memory for one piece, the
  // tokens and the conversation.
  static constexpr uint64_t kWholeBytes = uint64_t{64} << 20;
  static Status load_from_file(Session* session, const std::string& path, uint64_t whole_bytes = kWholeBytes,
                               const std::atomic<bool>* cancel = nullptr, Pages when = Pages::at_once);

 private:
  static Status load_file(Session* session, os::InputFile file, uint64_t whole_bytes, const std::atomic<bool>* cancel, Pages when);
  struct Contents;
  struct PageReader;
  struct Rest;
  static Status replace(Session* session, Contents* contents, const PageReader& pages, const char* name, const std::atomic<bool>* cancel);
};

}  // namespace orrery::engine
