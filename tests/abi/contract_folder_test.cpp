// Folders of saved sessions through orrery.h: entries by name and by the beginning of a prompt, the budget, errors, and handles freed in any
// order.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/abi/handles.h"
#include "tests/abi/tiny_model.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

struct FreeFolder {
  void operator()(orrery_folder* folder) const { orrery_folder_free(folder); }
};
using Folder = std::unique_ptr<orrery_folder, FreeFolder>;

class ContractFolder : public ::testing::Test {
 protected:
  static Folder open(const std::string& path, uint64_t max_bytes = 0) {
    orrery_folder* h = nullptr;
    Error error;
    check(orrery_folder_open(path.c_str(), max_bytes, &h, &error), error, "orrery_folder_open");
    return Folder(h);
  }
  Session session(orrery_folder* folder) const {
    orrery_session_options o = session_options();
    o.n_context = 512, o.reuse_prompts = 0, o.folder = folder;
    return open_session(model, o);
  }
  static nlohmann::json list(const Folder& folder) {
    size_t n = 0;
    Error error;
    check(orrery_folder_list(folder.get(), nullptr, 0, &n, &error), error, "orrery_folder_list");
    std::string text(n, ' ');
    check(orrery_folder_list(folder.get(), text.data(), n, &n, &error), error, "orrery_folder_list");
    return nlohmann::json::parse(text);
  }
  static orrery_stats stats_of(const Session& session) {
    orrery_stats stats = options(&orrery_stats_init);
    EXPECT_EQ(orrery_session_stats(session.get(), &stats, nullptr), ORRERY_OK);
    return stats;
  }

  const TempDir dir;
  const std::string path = dir.write("model.gguf", TinyModel{}.build()), sessions = dir.file("sessions");
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
  const std::vector<int32_t> prompt = [] {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 200; ++i) tokens.push_back(3 + i * 7 % 90);
    return tokens;
  }();
};

TEST_F(ContractFolder, APromptFindsASavedOneAndAnswersTheSame) {
  Folder folder = open(sessions);
  EXPECT_EQ(list(folder), nlohmann::json::array());
  const Session first = session(nullptr);
  const Answer computed = pull(generate_tokens(first, prompt, generate_options(8)).get());
  Error error;
  ASSERT_EQ(orrery_folder_save(folder.get(), first.get(), nullptr, &error), ORRERY_OK) << error.message;
  ASSERT_EQ(orrery_folder_save(folder.get(), first.get(), "by name", &error), ORRERY_OK) << error.message;
  const nlohmann::json entries = list(folder);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0]["name"], "by name") << "the last used first";
  EXPECT_EQ(entries[1]["name"].get<std::string>().size(), 33u);
  EXPECT_EQ(entries[0]["shared_tokens"], 192);
  EXPECT_EQ(entries[0]["tokens"], orrery_session_n_tokens(first.get()));
  EXPECT_GT(entries[0]["used"].get<int64_t>(), 1'600'000'000);

  const Session second = session(folder.get());
  folder.reset();  // the session keeps it
  const Answer found = pull(generate_tokens(second, prompt, generate_options(8)).get());
  EXPECT_EQ(found.tokens, computed.tokens);
  EXPECT_EQ(found.logprobs, computed.logprobs);
  EXPECT_EQ(found.done.reused_tokens, 192u);
  EXPECT_EQ(stats_of(second).folder_tokens, 192u);
  EXPECT_EQ(stats_of(second).reused_tokens, 192u);
  EXPECT_EQ(stats_of(second).restored_tokens, 0u);
  EXPECT_EQ(stats_of(first).folder_tokens, 0u);
}

TEST_F(ContractFolder, AnEntryIsLoadedByName) {
  const Folder folder = open(sessions);
  const Session saved = session(nullptr);
  ask(saved, "hello", 8);
  Error error;
  ASSERT_EQ(orrery_folder_save(folder.get(), saved.get(), "chat 1", &error), ORRERY_OK) << error.message;
  const Session loaded = session(nullptr);
  ASSERT_EQ(orrery_folder_load(folder.get(), loaded.get(), "chat 1", &error), ORRERY_OK) << error.message;
  EXPECT_EQ(orrery_session_n_tokens(loaded.get()), orrery_session_n_tokens(saved.get()));
  EXPECT_EQ(ask(loaded, "and you?", 8).tokens, ask(saved, "and you?", 8).tokens);
  EXPECT_EQ(orrery_folder_load(folder.get(), loaded.get(), "chat 2", &error), ORRERY_IO);
  EXPECT_NE(std::string(error.message).find("chat 2.orrery"), std::string::npos) << error.message;
  EXPECT_EQ(orrery_folder_load(folder.get(), loaded.get(), "../chat 1", &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_STREQ(error.option, "name");
  std::filesystem::resize_file(sessions + "/chat 1.orrery", 1000);
  EXPECT_EQ(orrery_folder_load(folder.get(), loaded.get(), "chat 1", &error), ORRERY_BAD_SESSION);
  EXPECT_NE(std::string(error.message).find("chat 1.orrery"), std::string::npos) << error.message;
  EXPECT_TRUE(list(folder)[0].contains("error"));
  EXPECT_EQ(orrery_folder_remove(folder.get(), "chat 1", &error), ORRERY_OK) << error.message;
  EXPECT_EQ(orrery_folder_remove(folder.get(), "chat 1", &error), ORRERY_IO);
  EXPECT_EQ(list(folder).size(), 0u);
}

TEST_F(ContractFolder, ErrorsChangeNothing) {
  const Folder folder = open(sessions), small = open(sessions, 5000);
  const Session s = session(nullptr);
  pull(generate_tokens(s, prompt, generate_options(2)).get());
  Error error;
  ASSERT_EQ(orrery_folder_save(folder.get(), s.get(), "a", &error), ORRERY_OK) << error.message;
  EXPECT_EQ(orrery_folder_save(small.get(), s.get(), "b", &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_EQ(error.bytes_requested, list(folder)[0]["bytes"]);
  EXPECT_EQ(error.bytes_available, 5000u);
  for (const char* name : {"", "~a", "a/b", "\xFF", "."})
    EXPECT_EQ(orrery_folder_save(folder.get(), s.get(), name, &error), ORRERY_INVALID_ARGUMENT) << name;
  const Generation under_way = generate_tokens(s, prompt, generate_options(2));
  EXPECT_EQ(orrery_folder_save(folder.get(), s.get(), "c", &error), ORRERY_BUSY);
  EXPECT_EQ(orrery_folder_load(folder.get(), s.get(), "a", &error), ORRERY_BUSY);
  EXPECT_EQ(list(folder).size(), 1u);
  char text[4];
  size_t n = 0;
  EXPECT_EQ(orrery_folder_list(folder.get(), text, sizeof text, &n, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_GT(n, sizeof text);
  orrery_folder* h = reinterpret_cast<orrery_folder*>(text);
  EXPECT_EQ(orrery_folder_open((path + "/sessions").c_str(), 0, &h, &error), ORRERY_IO);
  EXPECT_EQ(h, nullptr);
}

}  // namespace
}  // namespace orrery::testing
