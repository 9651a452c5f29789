// Sessions as bytes: header, tokens, phases, conversation, KV pages, and a checksum over all of it.  Bound to the
// model's fingerprint, the KV type and the rotary frequencies (longrope's depend on the context size).  Little-endian.
//
// Loading checks everything before it touches the live session, which therefore stays as it was on any error. A file of more
// than kWholeBytes is read twice, piece by piece: first it is checked, then its pages go to the session. Only where the
// second reading fails, or finds another file than the first, the session has lost its tokens; its conversation stays.
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

  // Bytes that save() writes now.
  static Result<uint64_t> size(Session* session);
  // `cancel`: Code::cancelled when it is set, between two pieces. Null: nobody cancels.
  static Status save(Session* session, const Sink& sink, const std::atomic<bool>* cancel = nullptr);
  // `name` is for messages.
  // `cancel` is looked at while the file is checked: once the session changes, it changes whole.
  static Status load(Session* session, Span<const std::byte> bytes, const char* name, const std::atomic<bool>* cancel = nullptr);

  static Status save_to_file(Session* session, const std::string& path, const std::atomic<bool>* cancel = nullptr);
  // Memory that a file of at most this size takes while it is loaded; a longer one takes a piece of kBytesAtOnce, its
  // tokens and its conversation.
  static constexpr uint64_t kWholeBytes = uint64_t{64} << 20;
  static Status load_from_file(Session* session, const std::string& path, uint64_t whole_bytes = kWholeBytes,
                               const std::atomic<bool>* cancel = nullptr);

 private:
  struct Contents;
  struct PageReader;
  static Status replace(Session* session, Contents* contents, const PageReader& pages);
};

}  // namespace orrery::engine
