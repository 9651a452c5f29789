// Every string of the ABI. Strings that come out are whole UTF-8, whatever a file holds. Strings that go in and are not UTF-8 are refused
// by name. Paths, texts to tokenize and the bytes of tokens are the exceptions.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_utf8_test {
namespace {

// A plain check, of its own: shortest forms, no surrogates, at most U+10FFFF.
bool whole_utf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto at = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const unsigned lead = at(i);
    const size_t n = lead < 0x80 ? 1 : lead < 0xC0 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF8 ? 4 : 0;
    if (n == 0) return false;
    unsigned value = n == 1 ? lead : lead & (0x7Fu >> n);
    for (size_t k = 1; k < n; ++k) {
      if ((at(i + k) & 0xC0) != 0x80) return false;
      value = value << 6 | (at(i + k) & 0x3F);
    }
    constexpr unsigned kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < kLeast[n] || (value >= 0xD800 && value < 0xE000) || value > 0x10FFFF) return false;
    i += n;
  }
  return true;
}

TEST(Utf8, TheCheckItselfTellsThemApart) {
  for (const char* good : {"", "a", "\xC3\xA9", "\xE6\xBC\xA2", "\xF0\x9F\x98\x80", "\xEF\xBF\xBD"}) EXPECT_TRUE(whole_utf8(good));
  for (const char* bad : {"\xFF", "\x80", "\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "a\xE6\xBC", "\xF8\x88\x80\x80\x80"})
    EXPECT_FALSE(whole_utf8(bad));
}

constexpr const char* kBad = "bad\xFF\xC3";  // neither byte begins a character here

#ifdef _WIN32  // whose names are texts
constexpr const char *kName = "model.gguf", *kShown = "model.gguf";
#else
constexpr const char *kName = "model\xFF.gguf", *kShown = "model?.gguf";
#endif

class Utf8Files : public ::testing::Test {
 protected:
  TempDir dir;
  std::vector<std::string> logged;
  Runtime runtime;
  Model model;
  Session session;

  static std::string file_with(std::vector<std::byte> bytes, const std::string& from, const std::string& to) {
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const size_t at = text.find(from);
    if (at == std::string::npos || from.size() != to.size()) throw std::runtime_error("not in the file: " + from);
    return text.replace(at, from.size(), to);
  }
  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = dir.file(name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  void SetUp() override {
    orrery_runtime_options o = runtime_options();
    o.n_threads = 1;
    o.device_budget_bytes = uint64_t{256} << 20;
    o.log_level = ORRERY_LOG_DEBUG;
    o.log_user = &logged;
    o.log = [](void* user, int32_t, const char* message) { static_cast<std::vector<std::string>*>(user)->push_back(message); };
    orrery_runtime* h = nullptr;
    ASSERT_EQ(orrery_runtime_create(&o, &h, nullptr), ORRERY_OK);
    runtime.reset(h);
    // A name that is no text, in a file whose name is none either.
    model = open_model(runtime, write(kName, file_with(TinyModel().build(), "tiny \xC3\xA9", "tin\xFF \xC3 ")));
    session = open_session(model);
  }
};

TEST_F(Utf8Files, WhatComesOutIsWhole) {
  orrery_model_info info = options(&orrery_model_info_init);
  ASSERT_EQ(orrery_model_get_info(model.get(), &info, nullptr), ORRERY_OK);
  EXPECT_STREQ(info.name, "tin\xEF\xBF\xBD \xEF\xBF\xBD ");
  EXPECT_TRUE(whole_utf8(info.architecture));
  EXPECT_TRUE(whole_utf8(info.quantization));

  ASSERT_FALSE(logged.empty());
  bool of_the_file = false;
  for (const std::string& line : logged) {
    EXPECT_TRUE(whole_utf8(line)) << line;
    of_the_file = of_the_file || line.find(kShown) != std::string::npos;
  }
  EXPECT_TRUE(of_the_file);

  size_t n = 0;
  const std::string path = dir.file(kName);
  ASSERT_EQ(orrery_inspect(path_source(path), nullptr, 0, &n, nullptr), ORRERY_OK);
  std::string json(n, '\0');
  ASSERT_EQ(orrery_inspect(path_source(path), json.data(), n, &n, nullptr), ORRERY_OK);
  EXPECT_TRUE(whole_utf8(json));
  EXPECT_NE(json.find("tin\xEF\xBF\xBD"), std::string::npos);

  const Vocab vocab(orrery_model_vocab(model.get()));
  const char* messages = R"([{"role": "user", "content": "hi"}])";
  ASSERT_EQ(orrery_render_chat(vocab.get(), messages, nullptr, nullptr, 0, &n, nullptr), ORRERY_OK);
  std::string rendered(n, '\0');
  ASSERT_EQ(orrery_render_chat(vocab.get(), messages, nullptr, rendered.data(), n, &n, nullptr), ORRERY_OK);
  EXPECT_EQ(rendered, "[user]hi[a]");

  // An answer in bytes that make no characters: events and the conversation hold text all the same.
  say(session, "hello");
  Script script{byte_tokens("x\xFFy\xE6\xBC")};
  const Answer a = pull(generate(session, scripted(&script)));
  for (const std::string& text : a.texts) EXPECT_TRUE(whole_utf8(text));
  for (size_t i = 0; i < orrery_session_n_messages(session.get()); ++i) EXPECT_TRUE(whole_utf8(message_of(session, i)));

  ASSERT_EQ(orrery_policies(nullptr, 0, &n, nullptr), ORRERY_OK);
  std::string policies(n, '\0');
  ASSERT_EQ(orrery_policies(policies.data(), n, &n, nullptr), ORRERY_OK);
  EXPECT_TRUE(whole_utf8(policies));
  for (const char* text : {orrery_version(), orrery_build_info(), orrery_status_name(0)}) EXPECT_TRUE(whole_utf8(text));
}

TEST_F(Utf8Files, MessagesOfErrorsAreWhole) {
  Error error;
  orrery_model* h = nullptr;
  // A path, and bytes of a file: an architecture that nobody knows.
  EXPECT_NE(orrery_model_open(runtime.get(), path_source(dir.file("mis\xFFsing")), nullptr, &h, &error), ORRERY_OK);
  EXPECT_TRUE(whole_utf8(error.message)) << error.message;
  EXPECT_NE(std::string(error.message).find("mis?sing"), std::string::npos) << error.message;
  const std::string odd = write("odd.gguf", file_with(TinyModel().build(), "llama", "ll\xFFm\xC3"));
  EXPECT_NE(orrery_model_open(runtime.get(), path_source(odd), nullptr, &h, &error), ORRERY_OK);
  EXPECT_TRUE(whole_utf8(error.message)) << error.message;
  EXPECT_NE(error.message[0], '\0');
  // A file's template that is not UTF-8 is refused when it is used, and so is a name that no template has.
  TinyModel spec;
  spec.more_template = "{{ raise_exception('no \xFF here') }}";
  const Model odd_template = open_model(runtime, dir.write("template.gguf", spec.build()));
  orrery_template_options t = options(&orrery_template_options_init);
  t.template_name = "more";
  const Session s = open_session(odd_template);
  EXPECT_EQ(orrery_session_set_template(s.get(), &t, &error), ORRERY_UNSUPPORTED_TEMPLATE);
  EXPECT_TRUE(whole_utf8(error.message)) << error.message;
  t.template_name = "caf\xC3\xA9";
  EXPECT_EQ(orrery_session_set_template(s.get(), &t, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("caf\xC3\xA9"), std::string::npos) << error.message;
}

TEST_F(Utf8Files, WhatGoesInIsRefusedByName) {
  Error error;
  const auto refused = [&](orrery_status status, const char* name) {
    EXPECT_EQ(status, ORRERY_INVALID_ARGUMENT) << name;
    EXPECT_NE(std::string(error.message).find(name), std::string::npos) << error.message << ", expected " << name;
    EXPECT_TRUE(whole_utf8(error.message)) << error.message;
  };
  orrery_runtime_options r = runtime_options();
  orrery_runtime* rt = nullptr;
  r.backend = kBad;
  refused(orrery_runtime_create(&r, &rt, &error), "backend");
  r = runtime_options();
  r.cpu_path = kBad;
  refused(orrery_runtime_create(&r, &rt, &error), "cpu_path");

  refused(orrery_session_add_message(session.get(), kBad, "x", &error), "role");
  refused(orrery_session_add_message(session.get(), "user", kBad, &error), "content");
  const std::string json = std::string(R"({"role": "user", "content": ")") + kBad + "\"}";
  refused(orrery_session_add_message_json(session.get(), json.c_str(), &error), "UTF-8");
  EXPECT_EQ(orrery_session_n_messages(session.get()), 0u);

  orrery_session* s = nullptr;
  orrery_session_options so = session_options();
  so.n_context = 256;
  so.policy = kBad;
  refused(orrery_session_open(model.get(), &so, &s, &error), "policy");
  so.policy = "streaming";
  const orrery_option names[] = {{"sinks", "4"}, {kBad, "4"}}, values[] = {{"sinks", kBad}};
  so.policy_options = names;
  so.n_policy_options = 2;
  refused(orrery_session_open(model.get(), &so, &s, &error), "the name of policy option 1");
  so.policy_options = values;
  so.n_policy_options = 1;
  refused(orrery_session_open(model.get(), &so, &s, &error), "the value of policy option 0");
  so = session_options();
  so.n_context = 256;
  so.head_profile = "{\"bad\xFF\": 1}";
  refused(orrery_session_open(model.get(), &so, &s, &error), "UTF-8");

  const Vocab vocab(orrery_model_vocab(model.get()));
  size_t n = 0;
  const auto render = [&](const orrery_template_options& t) { return orrery_render_chat(vocab.get(), "[]", &t, nullptr, 0, &n, &error); };
  orrery_template_options t = options(&orrery_template_options_init);
  t.template_source = kBad;
  refused(render(t), "template_source");
  refused(orrery_session_set_template(session.get(), &t, &error), "template_source");
  t = options(&orrery_template_options_init);
  t.template_name = kBad;
  refused(render(t), "template_name");
  t = options(&orrery_template_options_init);
  t.tools_json = "[\"\xFF\"]";
  refused(render(t), "UTF-8");
  t = options(&orrery_template_options_init);
  t.variables_json = "{\"a\": \"\xFF\"}";
  refused(render(t), "UTF-8");
  refused(orrery_render_chat(vocab.get(), "[\"\xFF\"]", nullptr, nullptr, 0, &n, &error), "UTF-8");
  refused(orrery_head_profile_import("{\"\xFF\": 1}", nullptr, 0, &n, &error), "UTF-8");

  // Which stop string, and where in it.
  say(session, "hello");
  const char* stops[] = {"fine", "\xC3\xA9", "caf\xC3"};
  orrery_generate_options o = generate_options(2);
  o.stop = stops;
  o.n_stop = 3;
  orrery_generation* g = nullptr;
  refused(orrery_generate(session.get(), &o, &g, &error), "stop string 2");
  EXPECT_EQ(error.offset, 3u);
  EXPECT_EQ(g, nullptr);
  const int32_t token = 70;
  refused(orrery_generate_tokens(session.get(), &token, 1, &o, &g, &error), "stop string 2");
  o.n_stop = 2;
  EXPECT_EQ(pull(generate(session, o)).tokens.size(), 2u);

  orrery_calibrate_options c = options(&orrery_calibrate_options_init);
  c.note = kBad;
  const std::vector<int32_t> tokens(32, 70);
  const size_t length = tokens.size();
  orrery_calibration* calibration = nullptr;
  refused(orrery_calibrate(model.get(), tokens.data(), &length, 1, &c, &calibration, &error), "note");
}

// The exceptions: bytes in, the same bytes out.
TEST_F(Utf8Files, TextToTokenizeAndTokensAreBytes) {
  const Vocab vocab(orrery_model_vocab(model.get()));
  const std::string bytes = kBad;
  std::vector<int32_t> tokens(64);
  size_t n = 0;
  ASSERT_EQ(orrery_tokenize(vocab.get(), bytes.data(), bytes.size(), 0, tokens.data(), tokens.size(), &n, nullptr), ORRERY_OK);
  std::string back(64, '\0');
  size_t n_bytes = 0;
  ASSERT_EQ(orrery_detokenize(vocab.get(), tokens.data(), n, 0, back.data(), back.size(), &n_bytes, nullptr), ORRERY_OK);
  EXPECT_EQ(back.substr(0, n_bytes), bytes);
}

}  // namespace
}  // namespace orrery::testing::contract_utf8_test
