// Loading sessions: bytes that anybody may have written, on a live session.  The checksum and what binds a
// file to its model are put right here, since a fuzzer would not get past them; everything behind them is the
// input's.
//
// Input: a byte of flags, the header behind its fixed part (48 bytes, as in runtime/engine/session/session_file.cpp),
// and the rest of the file but for KV pages and checksum.  Flags: 1: the conversation's length is made to
// fit; 2: KV pages are added, of the number that the header says (4: of noise).
//
// Whatever is refused must leave the session as it was.  What is loaded must be saved as the same bytes, and
// be fit to work with.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/base/hash.h"
#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace orrery::testing;
using Bytes = std::vector<unsigned char>;

constexpr size_t kFixed = 40, kHeader = 88, kChecksum = 16;  // magic, fingerprint, rope; all of the header
constexpr size_t kTokens = 44, kPages = 48, kPageBytes = 56, kConversation = 64;
constexpr uint64_t kMaxPages = 1 << 18;

[[noreturn]] void fault() { std::abort(); }

// A live session, and what it is while nothing was loaded.
struct World {
  TempDir dir;
  Runtime runtime = make_runtime();
  Model model;
  Session session;
  Bytes before;

  World() {
    TinyModel spec;
    spec.n_layers = 1;
    model = open_model(runtime, dir.write("tiny.gguf", spec.build()));
    session = open_session(model, 128);
    ask(session, "hi", 2);
    before = save(session);
  }
};

template <class T>
T field(const Bytes& file, size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

Bytes session_file(const Bytes& like, const uint8_t* data, size_t size) {
  constexpr size_t kMostInput = size_t{1} << 30;  // libFuzzer's inputs are far smaller; GCC cannot know
  if (size == 0 || size > kMostInput) return {};
  const uint8_t flags = data[0];
  Bytes file(kFixed + size - 1);
  std::memcpy(file.data(), like.data(), kFixed);
  std::memcpy(file.data() + kFixed, data + 1, size - 1);
  const size_t n_rest = file.size() - kHeader;
  const uint64_t n_pages = field<uint32_t>(file, kPages), page_bytes = field<uint64_t>(file, kPageBytes);
  if ((flags & 2) && page_bytes <= kMaxPages && n_pages * page_bytes <= kMaxPages) {
    const size_t n = static_cast<size_t>(n_pages * page_bytes);
    for (size_t i = 0; i < n; ++i) file.push_back(flags & 4 ? static_cast<unsigned char>(i * 97 + i / 255) : 0);
  }
  if (flags & 1) {
    const uint64_t in_front = uint64_t{field<uint32_t>(file, kTokens)} * 5;
    const uint64_t rest = n_rest >= in_front ? n_rest - in_front : 0;
    std::memcpy(file.data() + kConversation, &rest, sizeof rest);
  }
  orrery::Hash128 hash;
  hash.update(file.data(), file.size());
  uint8_t checksum[kChecksum];
  hash.digest(checksum);
  file.insert(file.end(), checksum, checksum + kChecksum);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 + kHeader - kFixed) return 0;
  static World world;
  const Bytes file = session_file(world.before, data, size);
  Error error;
  const orrery_status status = orrery_session_load_buffer(world.session.get(), file.data(), file.size(), &error);
  if (status != ORRERY_OK) {
    if (status != ORRERY_BAD_SESSION && status != ORRERY_CONTEXT_FULL) fault();
    if (error.message[0] == '\0' || save(world.session) != world.before) fault();
    return 0;
  }
  // What is in it is bounded, and comes out again; a second round changes nothing.
  const size_t n = orrery_session_n_tokens(world.session.get());
  if (n > 128) fault();
  const Bytes saved = save(world.session);
  if (orrery_session_load_buffer(world.session.get(), saved.data(), saved.size(), &error) != ORRERY_OK) fault();
  if (save(world.session) != saved) fault();
  for (size_t i = 0; i < orrery_session_n_messages(world.session.get()); ++i) message_of(world.session, i);
  // Work: its conversation may be nonsense to a template, its KV no numbers; but nothing else may go wrong.
  orrery_generation* h = nullptr;
  const orrery_generate_options o = generate_options(2);
  const orrery_status begun = orrery_generate(world.session.get(), &o, &h, &error);
  const Generation generation(h);
  if (begun == ORRERY_INTERNAL || begun == ORRERY_BUSY) fault();
  for (orrery_event e = options(&orrery_event_init); h && e.type != ORRERY_EVENT_DONE;) {
    const orrery_status s = orrery_next(h, &e, &error);
    if (s == ORRERY_INTERNAL || s == ORRERY_BUSY) fault();
    if (s != ORRERY_OK) break;  // of the conversation, or the KV
  }
  if (orrery_session_load_buffer(world.session.get(), world.before.data(), world.before.size(), &error) != ORRERY_OK) fault();
  return 0;
}
