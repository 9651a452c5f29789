// A folder of sessions on a disk: prompts take the KV of saved prompts from there, with the bits of computed KV; the least recently used
// entries leave; what is damaged, foreign or forged is no use to a prompt, and loading it says what is wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "runtime/base/hash.h"
#include "runtime/engine/folder/folder.h"
#include "runtime/engine/session/session_file.h"
#include "runtime/os/folder/folder.h"
#include "tests/support/asked_prompts.h"
#include "tests/support/policy_sessions.h"
#include "tests/support/session_bytes.h"

namespace orrery::folder_test {
namespace {

using namespace testing;
using engine::Folder;
using engine::Session;
using engine::SessionFile;
namespace fs = std::filesystem;

constexpr uint32_t kContext = 640;

std::shared_ptr<Folder> open_folder(const std::string& path, uint64_t max_bytes = 0, const char* program = "0.1") {
  return unwrap(Folder::open(path, max_bytes, program));
}

engine::SessionOptions options_of(std::shared_ptr<Folder> folder, const std::string& policy = "full", KvType kv = KvType::f16) {
  const PolicyMode mode = {policy.c_str(), policy.c_str(), {}, false};
  engine::SessionOptions o = with_mode(mode, policy == "full" ? 1 : 0.4, kContext, kv);
  o.folder = std::move(folder);
  return o;
}
std::unique_ptr<Session> open(const std::shared_ptr<engine::LanguageModel>& model, const engine::SessionOptions& options) {
  return unwrap(Session::open(model, options));
}
SessionBytes bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(in)), {});
  const auto* first = reinterpret_cast<const std::byte*>(all.data());
  return {first, first + all.size()};
}
void write(const std::string& path, const SessionBytes& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}
// Names of the files, without the suffix.
std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    out.insert(entry.path().extension() == ".orrery" ? name.substr(0, name.size() - 7) : name);
  }
  return out;
}

// A folder with one entry, `document`, of a prompt of 300 tokens and three answered ones.
struct Filled {
  explicit Filled(const std::shared_ptr<engine::LanguageModel>& model, const std::string& policy = "full", KvType kv = KvType::f16)
      : folder(open_folder(dir.file("sessions"))) {
    const auto session = open(model, options_of(nullptr, policy, kv));
    ask(session.get(), document);
    unwrap(SessionFile::save_to_folder(session.get(), *folder, "document"));
  }
  const TempDir dir;
  const std::shared_ptr<Folder> folder;
  const std::vector<int32_t> document = tokens_of(300, 1), prompt = tokens_of(330, 2, {document.begin(), document.begin() + 280});
  std::string entry() const { return folder->path_of("document"); }
};

class Folders : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Policies, Folders, ::testing::Values("full", "auto", "quest", "h2o"),
                         [](const auto& each) { return std::string(each.param); });

// Another runtime, as after a restart.
TEST_P(Folders, APromptFindsItsPrefixAndAnswersAsIfItWereComputed) {
  const bool sums = GetParam() == std::string("h2o");
  for (const KvType kv : {KvType::f16, KvType::k8v4}) {
    const Filled filled(open_demo(), GetParam(), kv);
    const auto model = open_demo();
    const Asked expected = ask(open(model, options_of(nullptr, GetParam(), kv)).get(), filled.prompt);
    const auto session = open(model, options_of(filled.folder, GetParam(), kv));
    const Asked found = ask(session.get(), filled.prompt);
    expect_same(found, expected);
    EXPECT_EQ(found.from_folder, sums ? 0u : 256u) << "the whole pages that both have";
    EXPECT_EQ(found.reused, found.from_folder);
    EXPECT_EQ(found.computed, 330 - found.from_folder);
    EXPECT_EQ(session->stats().restored_tokens, 0u);
    // The session has them now.
    const Asked again = ask(session.get(), tokens_of(400, 3, filled.prompt));
    EXPECT_EQ(again.from_folder, 0u);
    EXPECT_EQ(again.reused, 330u);
  }
}

// A prompt that a session holds a part of takes the pages behind it, the page that it ends in too.
TEST(EngineFolder, APromptGoesOnBehindTokensThatTheSessionHolds) {
  const Filled filled(open_demo());
  const auto model = open_demo();
  const auto session = open(model, options_of(filled.folder));
  const std::vector<int32_t> begun(filled.document.begin(), filled.document.begin() + 100);
  EXPECT_EQ(ask(session.get(), begun).from_folder, 64u);
  unwrap(session->rewind(100));
  const Asked found = ask(session.get(), filled.prompt);
  EXPECT_EQ(found.from_folder, 156u);
  expect_same(found, ask(open(model, options_of(nullptr)).get(), filled.prompt));
  // Behind a generated token, KV is the session's own.
  const auto other = open(model, options_of(filled.folder));
  const Asked a = ask(other.get(), begun, 40);
  std::vector<int32_t> longer = tokens_of(300, 7, [&] {
    std::vector<int32_t> all = begun;
    all.insert(all.end(), a.tokens.begin(), a.tokens.end());
    return all;
  }());
  const auto twin = open(model, options_of(nullptr));
  ask(twin.get(), longer);
  unwrap(SessionFile::save_to_folder(twin.get(), *filled.folder, "twin"));
  EXPECT_EQ(ask(other.get(), longer).from_folder, 0u);
}

// Recurrent layers and rings: up to a state.
class FolderStates : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, FolderStates, ::testing::Values("qwen35", "lfm2", "gemma3"),
                         [](const auto& each) { return std::string(each.param, 4); });

TEST_P(FolderStates, AStateIsFoundWithItsPages) {
  const auto model = open_spec(GetParam());
  const Filled filled(model);
  const Asked expected = ask(open(model, options_of(nullptr)).get(), filled.prompt);
  const auto session = open(model, options_of(filled.folder));
  const Asked found = ask(session.get(), filled.prompt);
  expect_same(found, expected);
  EXPECT_EQ(found.from_folder, 256u) << "to the checkpoint at least 16 tokens before the end of the first prompt";
  EXPECT_EQ(session->stats().recomputed_tokens, 0u);
  const std::vector<int32_t> parted = tokens_of(300, 4, {filled.document.begin(), filled.document.begin() + 200});
  const Asked without = ask(open(model, options_of(filled.folder)).get(), parted);
  EXPECT_EQ(without.from_folder, 0u) << "no state is at or before the end of its pages";
  expect_same(without, ask(open(model, options_of(nullptr)).get(), parted));
  // A damaged state: all is computed.
  SessionBytes bytes = bytes_of(filled.entry());
  const engine::Entry entry = unwrap(engine::read_entry(unwrap(os::InputFile::open(filled.entry()))));
  ASSERT_EQ(entry.states.size(), 1u);
  bytes[entry.state_at(0) + entry.key.state_bytes / 2] ^= std::byte{16};
  write(filled.entry(), bytes);
  const Asked computed = ask(open(model, options_of(filled.folder)).get(), filled.prompt);
  EXPECT_EQ(computed.from_folder, 0u);
  expect_same(computed, expected);
  // A damaged page before a whole state: the state is no use without it.
  bytes[entry.state_at(0) + entry.key.state_bytes / 2] ^= std::byte{16};
  bytes[entry.page_at(2) + 1] ^= std::byte{16};
  write(filled.entry(), bytes);
  const Asked without_page = ask(open(model, options_of(filled.folder)).get(), filled.prompt);
  EXPECT_EQ(without_page.from_folder, 0u);
  expect_same(without_page, expected);
}

// Damage --------------------------------------------------------------------------------------------------

TEST(EngineFolder, ADamagedByteIsNeverTrusted) {
  const auto model = open_demo();
  const Filled filled(model);
  const Asked expected = ask(open(model, options_of(nullptr)).get(), filled.prompt);
  const SessionBytes whole = bytes_of(filled.entry());
  const engine::Entry entry = unwrap(engine::read_entry(unwrap(os::InputFile::open(filled.entry()))));
  ASSERT_EQ(entry.bytes(), whole.size());
  ASSERT_EQ(entry.n_pages(), 4u);
  const uint64_t page = entry.key.page_bytes, index = entry.session_bytes, footer = whole.size() - 152;
  struct Case {
    uint64_t at;
    uint64_t found;  // tokens
    bool loads;
  };
  std::vector<Case> cases = {
      {3, 256, false},                     // the session's magic, which a prompt does not read
      {100, 256, false},                   // its tokens
      {entry.first_page - 5, 256, false},  // logits
      {entry.first_page, 0, false},        // the first page
      {entry.page_at(1) - 1, 0, false},    // its last byte
      {entry.page_at(1), 64, false},       // the second one
      {entry.page_at(3) + page / 2, 192, false},
      {entry.page_at(4), 256, false},         // the page behind the shared ones
      {entry.session_bytes - 3, 256, false},  // the session's checksum
      {index, 0, false},                      // tokens
      {index + 4 * 64 * 4, 0, false},         // hashes of pages
  };
  for (uint64_t at = footer; at < whole.size(); ++at) cases.push_back({at, 0, false});
  for (const Case& each : cases) {
    SCOPED_TRACE(each.at);
    SessionBytes bytes = whole;
    bytes[each.at] ^= std::byte{1};
    write(filled.entry(), bytes);
    const auto session = open(model, options_of(filled.folder));
    if (each.at <= footer + 4 || each.at + 4 >= whole.size()) {
      const Asked found = ask(session.get(), filled.prompt);
      expect_same(found, expected);
      EXPECT_EQ(found.from_folder, each.found);
      EXPECT_EQ(found.computed, 330 - each.found);
    } else {
      EXPECT_TRUE(filled.folder->find(entry.key, filled.prompt, 0).empty());
    }
    const Status loaded = SessionFile::load_from_folder(session.get(), *filled.folder, "document");
    EXPECT_EQ(loaded.code(), Code::bad_session) << loaded.message();
    EXPECT_NE(std::string(loaded.message()).find("document.orrery"), std::string::npos) << loaded.message();
  }
  for (const size_t n : std::initializer_list<size_t>{0, 1, 87, 151, 152, entry.first_page, whole.size() / 2, entry.session_bytes,
                                                      index + 40, whole.size() - 1}) {
    SCOPED_TRACE(n);
    write(filled.entry(), {whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n)});
    const auto session = open(model, options_of(filled.folder));
    EXPECT_TRUE(filled.folder->find(entry.key, filled.prompt, 0).empty());
    EXPECT_EQ(SessionFile::load_from_folder(session.get(), *filled.folder, "document").code(), Code::bad_session);
    EXPECT_NE(unwrap(filled.folder->list()).find("\"error\""), std::string::npos);
  }
  // Whole again: what was refused was the damage.
  write(filled.entry(), whole);
  EXPECT_EQ(ask(open(model, options_of(filled.folder)).get(), filled.prompt).from_folder, 256u);
  unwrap(SessionFile::load_from_folder(open(model, options_of(filled.folder)).get(), *filled.folder, "document"));
}

// Where the best entry is damaged, the next one goes on.
TEST(EngineFolder, ADamagedEntryIsMadeUpForByAnother) {
  const auto model = open_demo();
  const Filled filled(model);
  const auto session = open(model, options_of(nullptr));
  ask(session.get(), {filled.document.begin(), filled.document.begin() + 200});
  unwrap(SessionFile::save_to_folder(session.get(), *filled.folder, "shorter"));
  SessionBytes bytes = bytes_of(filled.entry());
  const engine::Entry entry = unwrap(engine::read_entry(unwrap(os::InputFile::open(filled.entry()))));
  bytes[entry.page_at(1) + 7] ^= std::byte{1};
  write(filled.entry(), bytes);
  const Asked found = ask(open(model, options_of(filled.folder)).get(), filled.prompt);
  EXPECT_EQ(found.from_folder, 192u);
  expect_same(found, ask(open(model, options_of(nullptr)).get(), filled.prompt));
}

// Numbers of a footer whose hash is right, because somebody has made it so.
TEST(EngineFolder, HostileFootersAreRefused) {
  const auto model = open_demo();
  const Filled filled(model);
  const SessionBytes whole = bytes_of(filled.entry());
  const engine::Entry entry = unwrap(engine::read_entry(unwrap(os::InputFile::open(filled.entry()))));
  const size_t footer = whole.size() - 152;
  const auto with = [&](size_t offset, uint64_t value, size_t n) {
    SessionBytes bytes = whole;
    std::memcpy(bytes.data() + footer + offset, &value, n);
    const engine::EntryHash hash = engine::entry_hash(bytes.data() + footer, 136);
    std::memcpy(bytes.data() + footer + 136, hash.data(), hash.size());
    write(filled.entry(), bytes);
    return engine::read_entry(unwrap(os::InputFile::open(filled.entry()))).take_status();
  };
  EXPECT_TRUE(with(80, entry.session_bytes, 8).ok()) << "the offsets of this test";
  for (const uint64_t value :
       {uint64_t{0}, uint64_t{1}, entry.session_bytes - 1, entry.session_bytes + 1, UINT64_MAX, UINT64_MAX / 2 + 1}) {
    EXPECT_EQ(with(80, value, 8).code(), Code::bad_session) << "session_bytes " << value;
    if (value > entry.session_bytes) {
      EXPECT_EQ(with(88, value, 8).code(), Code::bad_session) << "first page " << value;
    }
    if (value == 0 || value > entry.session_bytes) {
      EXPECT_EQ(with(96, value, 8).code(), Code::bad_session) << "page_bytes " << value;
    }
  }
  for (const uint64_t value : {uint64_t{0}, uint64_t{3}, uint64_t{5}, uint64_t{UINT32_MAX}}) {
    EXPECT_EQ(with(116, value, 4).code(), Code::bad_session) << "n_pages " << value;
    if (value > 0) {
      EXPECT_EQ(with(120, value, 4).code(), Code::bad_session) << "n_states " << value;
    }
  }
  EXPECT_EQ(with(112, 255, 4).code(), Code::bad_session) << "fewer tokens than its pages have";
}

TEST(EngineFolder, EntriesOfOthersAreNoUse) {
  const auto model = open_demo();
  const Filled filled(model);
  const auto nothing = [&](const std::shared_ptr<engine::LanguageModel>& other, const engine::SessionOptions& options) {
    const Asked found = ask(open(other, options).get(), filled.prompt);
    EXPECT_EQ(found.from_folder, 0u);
    engine::SessionOptions without = options;
    without.folder = nullptr;
    expect_same(found, ask(open(other, without).get(), filled.prompt));
  };
  nothing(model, options_of(filled.folder, "full", KvType::f32));
  nothing(model, options_of(filled.folder, "full", KvType::q8_0));
  engine::SessionOptions rotated = options_of(filled.folder, "snapkv");  // pages of the same bytes hold rotated values
  rotated.device_kv_type = KvType::q4_0;
  ASSERT_TRUE(rotated.rotated(model->description()));
  nothing(model, rotated);
  nothing(open_spec("llama-plain"), options_of(filled.folder));
  nothing(model, options_of(open_folder(filled.folder->path(), 0, "0.2")));
  if (test_cpu_path() != std::string("plain")) nothing(open_demo(runtime_options(2, "plain")), options_of(filled.folder));
  EXPECT_EQ(ask(open(model, options_of(filled.folder)).get(), tokens_of(300, 9)).from_folder, 0u) << "other tokens";
  std::vector<int32_t> second_page = filled.prompt;
  second_page[70] ^= 1;
  EXPECT_EQ(ask(open(model, options_of(filled.folder)).get(), second_page).from_folder, 64u);
  EXPECT_EQ(ask(open(model, options_of(filled.folder)).get(), filled.prompt).from_folder, 256u);
}

// KV of a file is anybody's invention: it stays the session's that loaded it.
TEST(EngineFolder, ForeignAndGeneratedTokensAreNotShared) {
  const auto model = open_demo();
  const TempDir dir;
  const auto folder = open_folder(dir.file("sessions"));
  const std::vector<int32_t> head = tokens_of(200, 2), longer = tokens_of(330, 5, head);
  const auto forger = open(model, options_of(nullptr));
  unwrap(forger->sequence().assume_prompt(head, [](uint32_t page, Span<std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 2 == 0 ? page * 7 + i : 0x34);
  }));
  unwrap(SessionFile::save_to_folder(forger.get(), *folder, "invented"));
  unwrap(SessionFile::save_to_file(forger.get(), dir.file("forged")));
  const auto session = open(model, options_of(folder));
  unwrap(SessionFile::load_from_file(session.get(), dir.file("forged")));
  ask(session.get(), longer);
  unwrap(SessionFile::save_to_folder(session.get(), *folder, "forged"));
  unwrap(SessionFile::load_from_folder(session.get(), *folder, "forged"));
  unwrap(SessionFile::save_to_folder(session.get(), *folder, "forged again"));
  EXPECT_EQ(ask(open(model, options_of(folder)).get(), longer).from_folder, 0u);
  // Of an answer, what was generated is not shared, also after it was loaded and saved again.
  const auto honest = open(model, options_of(folder));
  const Asked a = ask(honest.get(), longer, 150);
  std::vector<int32_t> whole = longer;
  whole.insert(whole.end(), a.tokens.begin(), a.tokens.end());
  unwrap(SessionFile::save_to_folder(honest.get(), *folder, "honest"));
  const auto loaded = open(model, options_of(folder));
  unwrap(SessionFile::load_from_folder(loaded.get(), *folder, "honest"));
  unwrap(folder->remove("honest"));
  unwrap(SessionFile::save_to_folder(loaded.get(), *folder, "honest again"));
  const Asked found = ask(open(model, options_of(folder)).get(), whole);
  EXPECT_EQ(found.from_folder, 320u);
  expect_same(found, ask(open(model, options_of(nullptr)).get(), whole));
}

// A session without the folder gets nothing out of it by way of the kept prompts.
TEST(EngineFolder, KvOfTheFolderStaysWithSessionsThatHaveIt) {
  const Filled filled(open_demo());
  const auto model = open_demo();
  engine::SessionOptions with = options_of(filled.folder), without = options_of(nullptr);
  with.reuse_prompts = without.reuse_prompts = true;
  EXPECT_EQ(ask(open(model, with).get(), filled.prompt).from_folder, 256u);
  const auto other = open(model, without);
  EXPECT_EQ(ask(other.get(), filled.prompt).computed, 330u);
  EXPECT_EQ(ask(open(model, with).get(), filled.prompt).from_folder, 0u) << "kept prompts come first";
}

// The budget ----------------------------------------------------------------------------------------------

struct Many {
  Many() {
    for (uint64_t i = 0; i < 3; ++i) prompts.push_back(tokens_of(150, 20 + i));
    session = open(model, options_of(nullptr));
    ask(session.get(), prompts[0]);
    const auto measured = open_folder(dir.file("measured"));
    unwrap(SessionFile::save_to_folder(session.get(), *measured, "a"));
    one = fs::file_size(measured->path_of("a"));
  }
  void save(const Folder& folder, size_t prompt, const std::string& name) {
    ask(session.get(), prompts[prompt]);
    unwrap(SessionFile::save_to_folder(session.get(), folder, name));
  }
  const TempDir dir;
  const std::shared_ptr<engine::LanguageModel> model = open_demo();
  std::vector<std::vector<int32_t>> prompts;
  std::unique_ptr<Session> session;
  uint64_t one = 0;  // bytes of an entry
};

TEST(EngineFolder, TheLeastRecentlyUsedEntryLeaves) {
  Many many;
  const std::string path = many.dir.file("sessions");
  const auto folder = open_folder(path, 2 * many.one + many.one / 2);
  write(path + "/other.txt", SessionBytes(4 * many.one));
  many.save(*folder, 0, "a");
  many.save(*folder, 1, "b");
  EXPECT_EQ(names_in(path), (std::set<std::string>{"a", "b", "other.txt"}));
  many.save(*folder, 2, "c");
  EXPECT_EQ(names_in(path), (std::set<std::string>{"b", "c", "other.txt"})) << "a was the oldest";
  EXPECT_EQ(ask(open(many.model, options_of(folder)).get(), many.prompts[1]).from_folder, 128u);  // a use
  many.save(*folder, 0, "a");
  EXPECT_EQ(names_in(path), (std::set<std::string>{"a", "b", "other.txt"})) << "c was used before b";
  unwrap(SessionFile::load_from_folder(open(many.model, options_of(folder)).get(), *folder, "b"));
  many.save(*folder, 2, "c");
  EXPECT_EQ(names_in(path), (std::set<std::string>{"b", "c", "other.txt"}));
  many.save(*folder, 1, "c");  // in its own place
  EXPECT_EQ(names_in(path), (std::set<std::string>{"b", "c", "other.txt"}));
  const std::string list = unwrap(folder->list());
  EXPECT_LT(list.find("\"name\": \"c\""), list.find("\"name\": \"b\"")) << list;
  EXPECT_NE(list.find("\"shared_tokens\": 128"), std::string::npos) << list;
  // A smaller budget, at the next save.
  const auto smaller = open_folder(path, many.one + 100);
  many.save(*smaller, 0, "a");
  EXPECT_EQ(names_in(path), (std::set<std::string>{"a", "other.txt"}));
  // An entry that does not fit at all: nothing leaves.
  const auto smallest = open_folder(path, many.one - 1);
  const Status refused = SessionFile::save_to_folder(many.session.get(), *smallest, "d");
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_EQ(refused.detail().bytes_requested, many.one);
  EXPECT_EQ(refused.detail().bytes_available, many.one - 1);
  EXPECT_EQ(names_in(path), (std::set<std::string>{"a", "other.txt"}));
}

TEST(EngineFolder, RoomIsMadeBeforeAnEntryIsWritten) {
  Many many;
  const std::string path = many.dir.file("sessions");
  const auto folder = open_folder(path, 2 * many.one);
  many.save(*folder, 0, "a");
  many.save(*folder, 1, "b");
  // What a killed writer left, and what only looks like it. A directory is no entry.
  const std::string left = path + "/.orrery-00112233445566778899aabbccddeeff-3", other = path + "/.orrery-notes";
  for (const std::string& name : {left, other}) write(name, SessionBytes(10));
  fs::create_directory(path + "/c.orrery");
  const SessionBytes content(many.one);
  unwrap(folder->save("d", content.size(), [&](const Folder::Sink& sink) {
    EXPECT_FALSE(fs::exists(folder->path_of("a")));
    EXPECT_TRUE(fs::exists(folder->path_of("b")));
    EXPECT_FALSE(fs::exists(left));
    EXPECT_TRUE(fs::exists(other));
    return sink(content);
  }));
  EXPECT_EQ(names_in(path), (std::set<std::string>{"b", "c", "d", ".orrery-notes"}));
  EXPECT_EQ(folder->save("c", 10, [&](const Folder::Sink& sink) { return sink({content.data(), 10}); }).code(), Code::io);
  // Another process saves meanwhile: what stays behind both fits.
  unwrap(folder->save("e", content.size(), [&](const Folder::Sink& sink) {
    write(folder->path_of("meanwhile"), content);
    return sink(content);
  }));
  EXPECT_EQ(names_in(path), (std::set<std::string>{"c", "e", "meanwhile", ".orrery-notes"}));
}

TEST(EngineFolder, UnnamedEntriesOfOneConversationAreOne) {
  Many many;
  const auto folder = open_folder(many.dir.file("sessions"));
  std::vector<int32_t> prompt = many.prompts[0];
  many.save(*folder, 1, "");
  std::set<std::string> before = names_in(folder->path());
  for (int turn = 0; turn < 3; ++turn) {
    ask(many.session.get(), prompt);
    unwrap(SessionFile::save_to_folder(many.session.get(), *folder, ""));
    EXPECT_EQ(names_in(folder->path()).size(), 2u) << "the longer one has all that the shorter one shared";
    prompt = tokens_of(prompt.size() + 70, 50, prompt);
  }
  many.save(*folder, 0, "named");
  many.save(*folder, 0, "");
  EXPECT_EQ(names_in(folder->path()).size(), 4u) << "a shorter one does not take the place of a longer one";
  for (const std::string& name : before) {
    EXPECT_EQ(name[0], '~');
    unwrap(folder->remove(name));
  }
}

TEST(EngineFolder, NamesAreChecked) {
  Many many;
  const auto folder = open_folder(many.dir.file("sessions"));
  for (const std::string& name :
       {std::string("a/b"), std::string(".."), std::string("../x"), std::string(".hidden"), std::string("a\\b"), std::string("~x"),
        std::string(" x"), std::string("a\nb"), std::string("C:x"), std::string("\xff"), std::string(201, 'n'), std::string("a\0b", 3)}) {
    const Status refused = Folder::check_name(name, true);
    EXPECT_EQ(refused.code(), Code::invalid_argument) << name;
    if (name[0] != '~') {
      EXPECT_EQ(folder->remove(name).code(), Code::invalid_argument) << name;
    }
  }
  for (const std::string& name :
       {std::string("a"), std::string("Größe 2.orrery"), std::string(200, 'n'), std::string("a..b"), std::string("-")}) {
    unwrap(Folder::check_name(name, true));
    unwrap(SessionFile::save_to_folder(many.session.get(), *folder, name));
    unwrap(folder->remove(name));
  }
  EXPECT_EQ(folder->remove("nothing").code(), Code::io);
  EXPECT_EQ(SessionFile::load_from_folder(many.session.get(), *folder, "nothing").code(), Code::io);
  EXPECT_EQ(names_in(folder->path()).size(), 0u);
}

// Failures ------------------------------------------------------------------------------------------------

TEST(EngineFolder, AFolderThatIsGoneOrNoneIsAnErrorOfSavingAlone) {
  Many many;
  const std::string path = many.dir.file("sessions");
  const auto folder = open_folder(path);
  EXPECT_EQ(Folder::open(many.dir.file("no/folder"), 0, "0.1").take_status().code(), Code::io);
  many.dir.write("file", {});
  EXPECT_EQ(Folder::open(many.dir.file("file"), 0, "0.1").take_status().code(), Code::io);
  fs::remove(path);
  EXPECT_EQ(SessionFile::save_to_folder(many.session.get(), *folder, "a").code(), Code::io);
  EXPECT_EQ(folder->list().take_status().code(), Code::io);
  EXPECT_EQ(ask(open(many.model, options_of(folder)).get(), many.prompts[0]).computed, 150u);
}

TEST(EngineFolder, CancelledCallsLeaveNothingBehind) {
  Many many;
  const auto folder = open_folder(many.dir.file("sessions"), 2 * many.one);
  std::atomic<bool> cancel{true};
  EXPECT_EQ(SessionFile::save_to_folder(many.session.get(), *folder, "a", &cancel).code(), Code::cancelled);
  EXPECT_EQ(names_in(folder->path()).size(), 0u);
  many.save(*folder, 0, "a");
  const auto session = open(many.model, options_of(folder));
  EXPECT_EQ(session->find_in_folder(many.prompts[0], &cancel).code(), Code::cancelled);
  EXPECT_EQ(session->n_computed(), 0u);
  EXPECT_EQ(ask(session.get(), many.prompts[0]).from_folder, 128u);
}

// Whoever saves and whoever asks, on runtimes of their own: answers stay what they are, and the bytes fit when all is done.
TEST(EngineFolder, SeveralShareAFolder) {
  Many many;
  const std::string path = many.dir.file("sessions");
  const uint64_t most = 2 * many.one + many.one / 2;
  std::vector<Asked> expected;
  for (const auto& prompt : many.prompts) expected.push_back(ask(open(many.model, options_of(nullptr)).get(), prompt));
  std::atomic<int> wrong{0}, found{0};
  const auto work = [&](uint64_t seed) {
    const auto model = open_demo(runtime_options(1));
    const auto folder = open_folder(path, most);
    Random random(seed);
    for (int round = 0; round < 12; ++round) {
      const size_t which = random.below(3);
      const auto session = open(model, options_of(folder));
      const Asked a = ask(session.get(), many.prompts[which]);
      found += a.from_folder > 0;
      wrong += a.tokens != expected[which].tokens || !same_bits(a.logits, expected[which].logits);
      wrong += !SessionFile::save_to_folder(session.get(), *folder, std::string(1, static_cast<char>('a' + which))).ok();
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(found, 0);
  many.save(*open_folder(path, most), 0, "a");
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path)) bytes += entry.file_size();
  EXPECT_LE(bytes, most);
  EXPECT_LE(names_in(path).size(), 2u) << "no temporaries";
}

}  // namespace
}  // namespace orrery::folder_test
