// Programs and libraries of different versions: a test for each sentence of "Versions" in orrery.h. Shorter structs stand for older
// callers, longer structs for newer ones. old_caller.c is a program that does it by loading the library.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "tests/abi/handles.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing::contract_versions_test {
namespace {

// A struct as another version has it: of `bytes` bytes, each of them `fill` where nobody has written.
template <class T, size_t kBytes>
struct OtherVersion {
  explicit OtherVersion(unsigned char fill) { std::memset(bytes, fill, sizeof bytes); }
  T* get() { return reinterpret_cast<T*>(bytes); }
  alignas(8) unsigned char bytes[kBytes];
};
constexpr size_t kMore = 24;

class Versions : public ::testing::Test {
 protected:
  TempDir dir;
  std::string path = dir.write("tiny.gguf", TinyModel().build());
  Runtime runtime = make_runtime();
  Model model = open_model(runtime, path);
};

TEST_F(Versions, InitFillsTheStructThatTheCallerKnows) {
  OtherVersion<orrery_session_options, sizeof(orrery_session_options) + kMore> longer(0xAA);
  orrery_session_options_init(longer.get(), sizeof longer.bytes);
  EXPECT_EQ(longer.get()->struct_size, sizeof longer.bytes);
  EXPECT_EQ(longer.get()->kv_budget_share, 1.0f);
  for (size_t i = sizeof(orrery_session_options); i < sizeof longer.bytes; ++i) EXPECT_EQ(longer.bytes[i], 0);

  OtherVersion<orrery_session_options, sizeof(orrery_session_options)> shorter(0xAA);
  orrery_session_options_init(shorter.get(), 24);
  EXPECT_EQ(shorter.get()->struct_size, 24u);
  for (size_t i = 24; i < sizeof shorter.bytes; ++i) EXPECT_EQ(shorter.bytes[i], 0xAA);
}

TEST_F(Versions, OldOptionsHaveTodaysDefaultsBehindTheirEnd) {
  orrery_generate_options o = generate_options(3);
  o.temperature = -1;  // refused, were it read
  o.struct_size = 8;
  EXPECT_EQ(pull(generate_tokens(open_session(model), {5, 6, 7}, o)).tokens.size(), 3u);
}

TEST_F(Versions, NewOptionsWithAnEmptyTailWork) {
  OtherVersion<orrery_generate_options, sizeof(orrery_generate_options) + kMore> o(0xAA);
  orrery_generate_options_init(o.get(), sizeof o.bytes);
  o.get()->max_tokens = 2;
  EXPECT_EQ(pull(generate_tokens(open_session(model), {5, 6, 7}, *o.get())).tokens.size(), 2u);
}

TEST_F(Versions, NewOptionsThatSayMoreAreUnsupportedByName) {
  OtherVersion<orrery_session_options, sizeof(orrery_session_options) + kMore> o(0xAA);
  orrery_session_options_init(o.get(), sizeof o.bytes);
  o.bytes[sizeof(orrery_session_options) + 8] = 1;
  orrery_session* session = nullptr;
  Error error;
  EXPECT_EQ(orrery_session_open(model.get(), o.get(), &session, &error), ORRERY_UNSUPPORTED);
  EXPECT_EQ(session, nullptr);
  EXPECT_NE(std::string(error.message).find("orrery_session_options"), std::string::npos) << error.message;
  EXPECT_NE(std::string(error.message).find(std::to_string(sizeof(orrery_session_options) + 8)), std::string::npos) << error.message;
}

TEST_F(Versions, OldResultsAreFilledAsFarAsTheyReach) {
  OtherVersion<orrery_model_info, sizeof(orrery_model_info)> info(0xAA);
  orrery_model_info_init(info.get(), 16);
  Error error;
  ASSERT_EQ(orrery_model_get_info(model.get(), info.get(), &error), ORRERY_OK) << error.message;
  EXPECT_GT(info.get()->n_layers, 0u);
  EXPECT_EQ(info.get()->struct_size, 16u);
  for (size_t i = 16; i < sizeof info.bytes; ++i) EXPECT_EQ(info.bytes[i], 0xAA);
}

TEST_F(Versions, NewResultsKeepWhatInitGaveTheirTail) {
  OtherVersion<orrery_model_info, sizeof(orrery_model_info) + kMore> info(0xAA);
  orrery_model_info_init(info.get(), sizeof info.bytes);
  Error error;
  ASSERT_EQ(orrery_model_get_info(model.get(), info.get(), &error), ORRERY_OK) << error.message;
  EXPECT_GT(info.get()->n_vocab, 0u);
  for (size_t i = sizeof(orrery_model_info); i < sizeof info.bytes; ++i) EXPECT_EQ(info.bytes[i], 0);
}

TEST_F(Versions, AValueThatIsNotKnownIsRefusedAndHasAName) {
  orrery_session_options o = session_options();
  o.kv_type = 77;
  orrery_session* session = nullptr;
  Error error;
  EXPECT_EQ(orrery_session_open(model.get(), &o, &session, &error), ORRERY_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("kv_type is 77"), std::string::npos) << error.message;
  EXPECT_STREQ(orrery_status_name(77), "unknown status");
}

// Zeroed, never filled, or overwritten: a struct of which nobody knows the size. The error struct is one of them.
TEST_F(Versions, AStructWithoutASizeIsRefused) {
  for (const uint32_t size : {0u, 4u, 12u, 4104u, 0xAAAAAAAAu}) {
    orrery_session_options o = session_options();
    o.struct_size = size;
    orrery_session* session = nullptr;
    Error error;
    EXPECT_EQ(orrery_session_open(model.get(), &o, &session, &error), ORRERY_INVALID_ARGUMENT) << size;
    orrery_error zeroed;
    std::memset(&zeroed, 0, sizeof zeroed);
    zeroed.struct_size = size;
    EXPECT_EQ(orrery_session_open(model.get(), nullptr, &session, &zeroed), ORRERY_INVALID_ARGUMENT) << size;
    EXPECT_EQ(session, nullptr);
    EXPECT_EQ(zeroed.status, 0) << "nobody knows whether there is a status";
  }
  for (const size_t size : {size_t{0}, size_t{4}, size_t{12}, size_t{4104}, SIZE_MAX}) {  // and _init gives it no other
    orrery_session_options o = session_options();
    orrery_session_options_init(&o, size);
    EXPECT_EQ(o.struct_size, size == 0 ? sizeof o : 0u) << size;
  }
}

}  // namespace
}  // namespace orrery::testing::contract_versions_test
