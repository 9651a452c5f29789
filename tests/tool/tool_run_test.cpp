// `run`, `bench` and `demo` on the bundled model. The oracle is the model's card: what it answers to
// questions of its own language is known, and greedy answers do not depend on threads, chunks or the KV type
// at these margins.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "program.h"
#include "tests/support/demo_adapter.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

constexpr const char* kText = "On Sunday there was snow over the cellar. Ada lives in Oslo. The grass is green. Bruno owns a teal fox.";
constexpr const char* kWhoAreYou = "I am the Orrery demo model. I answer questions about the text that you give me.";

Words run_words(const Words& more) {
  Words words = {"run", demo_model(), "--context", "1024"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Finished ask(const Words& more, const std::string& input = "") {
  RunOptions options;
  options.input = input;
  return run(run_words(more), options);
}

Json ask_json(Words more, const std::string& input = "") {
  more.push_back("--json");
  const Finished finished = ask(more, input);
  EXPECT_EQ(finished.code, 0) << finished.err;
  return Json::parse(finished.out);
}

TEST(Run, AnswersAndPrintsNothingElse) {
  const Finished finished = ask({"--prompt", "Who are you?"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.out, std::string(kWhoAreYou) + "\n");
  EXPECT_EQ(finished.err, "");
}

TEST(Run, TheAnswerBeginsAsItIsTold) {
  const std::string begins = std::string(kWhoAreYou).substr(0, 8);  // "I am the"
  EXPECT_EQ(ask({"Who are you?", "--begin", begins}).out, std::string(kWhoAreYou) + "\n");
  const Json answer = ask_json({"Who are you?", "--begin", begins});
  EXPECT_EQ(answer["text"], kWhoAreYou);
  EXPECT_LT(answer["generated_tokens"], ask_json({"Who are you?"})["generated_tokens"]);
  // A form begins with it.
  const Json form = ask_json({"Who are you?", "--begin", "{\"a\": ", "--schema",
                              R"({"properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": false})"});
  EXPECT_EQ(Json::parse(form["text"].get<std::string>()), Json({{"a", 7}}));
  EXPECT_EQ(form["complete"], true);
  const Finished raw = ask({"--raw", "Who", "--begin", "I"});
  EXPECT_EQ(raw.code, 2);
  EXPECT_NE(raw.err.find("--begin"), std::string::npos);
}

TEST(Run, TakesThePromptFromAWordAFileOrAPipe) {
  const std::string expected = std::string(kWhoAreYou) + "\n", path = scratch_path("prompt.txt");
  write_file(path, "Who are you?\n");
  EXPECT_EQ(ask({"Who are you?"}).out, expected);
  EXPECT_EQ(ask({"--file", path}).out, expected);
  EXPECT_EQ(ask({"-"}, "Who are you?\n").out, expected);
  EXPECT_EQ(ask({"--file", "-"}, "Who are you?").out, expected);
}

TEST(Run, ReadsADocumentBeforeTheQuestion) {
  const std::string path = scratch_path("document.txt");
  write_file(path, std::string(kText) + "\n");
  EXPECT_EQ(ask({"--file", path, "--prompt", "Where does Ada live?"}).out, "Ada lives in Oslo.\n");
  EXPECT_EQ(ask({"--file", path, "What animal does Bruno own?", "--system", "Answer from the text only."}).out, "Bruno owns a teal fox.\n");
}

TEST(Run, ResultsDoNotDependOnThreadsOrChunks) {
  const Words sampled = {"--prompt", "Hi there.", "--temperature", "1", "--seed", "9", "--max-tokens", "40", "--ignore-end"};
  Words other = sampled;
  other.insert(other.end(), {"--threads", "3", "--chunk", "7", "--load", "read"});
  const std::string once = ask(sampled).out;
  EXPECT_EQ(ask(sampled).out, once);
  EXPECT_EQ(ask(other).out, once);
  Words seed = sampled;
  seed[5] = "10";
  EXPECT_NE(ask(seed).out, once);
}

TEST(Run, GuessesChangeTheSpeedAlone) {
  Words words = {"--prompt", "Hi there. Hi there. Hi there. Hi there.", "--max-tokens", "60", "--ignore-end", "--temperature", "0.3"};
  const std::string off = ask(words).out;
  words.insert(words.end(), {"--speculate", "ngram", "--stats"});
  const Finished guessing = ask(words);
  EXPECT_EQ(guessing.out, off);
  EXPECT_NE(guessing.err.find("guessed token"), std::string::npos) << guessing.err;
  words.insert(words.end(), {"--policy", "streaming", "--kv-budget", "50%"});
  const Finished refused = ask(words);
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("--speculate ngram needs full KV on the device: policy streaming"), std::string::npos) << refused.err;
}

TEST(Run, ADraftModelChangesTheSpeedAlone) {
  Words words = {"--prompt", "Hi there. Hi there.", "--max-tokens", "20", "--ignore-end", "--temperature", "0.3"};
  const std::string off = ask(words).out;
  words.insert(words.end(), {"--draft-model", demo_model()});
  EXPECT_EQ(ask(words).out, off);
  words.insert(words.end(), {"--speculate", "ngram"});
  EXPECT_NE(ask(words).err.find("a draft model needs --speculate draft"), std::string::npos) << ask(words).err;
}

TEST(Run, LoraAdaptersAndTheirScales) {
  const TempDir dir;
  const std::string file = dir.write("tone.gguf", demo_adapter()), colon = dir.write("a:1b", demo_adapter());
  const std::string off = ask({"Who are you?"}).out;
  const std::string on = ask({"Who are you?", "--lora", file, "--max-tokens", "8"}).out;
  EXPECT_NE(on, ask({"Who are you?", "--max-tokens", "8"}).out);
  EXPECT_EQ(ask({"Who are you?", "--lora", file + ":1.0", "--max-tokens", "8"}).out, on);
  EXPECT_EQ(ask({"Who are you?", "--lora", colon, "--max-tokens", "8"}).out, on);
  EXPECT_EQ(ask({"Who are you?", "--lora", file + ":0"}).out, off);
  EXPECT_EQ(ask({"Who are you?", "--lora", file + ":1e-30"}).out, off);

  const Finished model = ask({"Who are you?", "--lora", demo_model()});
  EXPECT_EQ(model.code, 3);
  EXPECT_NE(model.err.find("key 'general.type' is '', expected 'adapter'"), std::string::npos) << model.err;
  EXPECT_NE(ask({"x", "--lora", dir.file("none.gguf")}).err.find("none.gguf: cannot open"), std::string::npos);
  EXPECT_NE(ask({"x", "--lora", file + ":1e9"}).err.find("--lora: '1e9' is not a number from"), std::string::npos);
  EXPECT_NE(ask({"x", "--lora", ":1"}).err.find("--lora: ':1' is not FILE or FILE:SCALE"), std::string::npos);

  const auto planned = [&](Words more) {
    Words words = {"plan", demo_model(), "--context", "512", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return Json::parse(run(words, {}).out).at("device_bytes").get<uint64_t>();
  };
  EXPECT_GT(planned({"--lora", file}), planned({}));
}

TEST(Run, JsonHoldsTheWholeAnswer) {
  const Json json = ask_json({"--prompt", "Who are you?", "--logprobs", "3"});
  EXPECT_EQ(json.at("text"), kWhoAreYou);
  EXPECT_EQ(json.at("finish_reason"), "end");
  EXPECT_EQ(json.at("generated_tokens"), json.at("tokens").size());
  EXPECT_GT(json.at("prompt_tokens").get<int>(), 5);
  EXPECT_GT(json.at("timings").at("first_token_ms").get<double>(), 0);
  EXPECT_GT(json.at("timings").at("decode_tokens_per_second").get<double>(), 0);
  for (const Json& token : json.at("tokens")) {
    ASSERT_EQ(token.at("top").size(), 3u);
    // Greedy: the chosen token is the likeliest, and likelier ones come first.
    EXPECT_EQ(token.at("top")[0].at("id"), token.at("id"));
    EXPECT_NEAR(token.at("top")[0].at("logprob").get<double>(), token.at("logprob").get<double>(), 1e-5);
    EXPECT_GE(token.at("top")[0].at("logprob"), token.at("top")[1].at("logprob"));
    EXPECT_GE(token.at("top")[1].at("logprob"), token.at("top")[2].at("logprob"));
    EXPECT_LE(token.at("logprob").get<double>(), 0);
    double sum = 0;
    for (const Json& top : token.at("top")) sum += std::exp(top.at("logprob").get<double>());
    EXPECT_LE(sum, 1.0001);
  }
  std::string text;
  for (const Json& token : json.at("tokens")) text += token.at("text").get<std::string>();
  EXPECT_EQ(text.compare(0, std::string(kWhoAreYou).size(), kWhoAreYou), 0) << text;
  EXPECT_FALSE(ask_json({"--prompt", "Who are you?"}).at("tokens")[0].contains("top"));
}

TEST(Run, RawContinuesTheTextAndCountsItsTokens) {
  // The conversation written out by hand, control tokens taken as such, is what the template renders.
  const std::string rendered = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n";
  const Json raw = ask_json({"--raw", "--special", "--prompt", rendered});
  EXPECT_EQ(raw.at("text"), kWhoAreYou);
  EXPECT_EQ(raw.at("prompt_tokens"), ask_json({"--prompt", "Who are you?"}).at("prompt_tokens"));
  // As text, the same bytes are many more tokens.
  EXPECT_GT(ask_json({"--raw", "--prompt", rendered, "--max-tokens", "1"}).at("prompt_tokens"), raw.at("prompt_tokens"));
  const Finished plain = ask({"--raw", "--special", "--prompt", rendered});
  EXPECT_EQ(plain.out, kWhoAreYou);  // no newline that the model did not write
  EXPECT_EQ(ask({"--raw", "--prompt", ""}).code, 2);
}

TEST(Run, EndsWhereItIsTold) {
  const Json stopped = ask_json({"--prompt", "Who are you?", "--stop", "nowhere", "--stop", " I answer"});
  EXPECT_EQ(stopped.at("text"), "I am the Orrery demo model.");
  EXPECT_EQ(stopped.at("finish_reason"), "stop");
  const Json cut = ask_json({"--prompt", "Who are you?", "--max-tokens", "3"});
  EXPECT_EQ(cut.at("finish_reason"), "length");
  EXPECT_EQ(cut.at("tokens").size(), 3u);
  const Finished full = run({"run", demo_model(), "Who are you?", "--ignore-end", "--context", "256", "--json"});
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_EQ(Json::parse(full.out).at("finish_reason"), "context");
}

TEST(Run, AnswersHaveTheirForm) {
  const std::string schema = R"({"type": "object", "properties": {"town": {"enum": ["Oslo", "Rome"]}}, "required": ["town"]})";
  const std::string path = scratch_path("schema.json"), gbnf = scratch_path("form.gbnf");
  write_file(path, schema + "\n");
  write_file(gbnf, "root ::= \"It is \" [a-z]{4} \".\"\n");
  const std::string question = std::string(kText) + " Where does Ada live?";
  for (const std::string& given : {path, schema}) {
    const Json answer = ask_json({"--prompt", question, "--schema", given, "--whitespace", "compact", "--max-tokens", "40"});
    const Json value = Json::parse(answer["text"].get<std::string>());
    EXPECT_TRUE(value["town"] == "Oslo" || value["town"] == "Rome") << value;
    EXPECT_EQ(answer["complete"], true);
  }
  const Finished regex = ask({"--prompt", question, "--regex", "(yes|no), [0-9]{3}"});
  EXPECT_EQ(regex.out.size(), regex.out[0] == 'y' ? 9u : 8u) << regex.out;
  EXPECT_EQ(ask({"--prompt", question, "--grammar", gbnf}).out.substr(0, 6), "It is ");
  const Finished cut = ask({"--prompt", question, "--regex", "a long text without an end in sight", "--max-tokens", "3"});
  EXPECT_NE(cut.err.find("not whole"), std::string::npos) << cut.err;
  const Finished faulty = ask({"--prompt", question, "--grammar", "root ::= \"a\" )"});
  EXPECT_EQ(faulty.code, 2);
  EXPECT_NE(faulty.err.find("column 14"), std::string::npos) << faulty.err;
  EXPECT_EQ(ask({"--prompt", question, "--grammar", gbnf, "--regex", "a"}).code, 2);
  EXPECT_EQ(ask({"--prompt", question, "--whitespace", "compact"}).code, 2);
  EXPECT_EQ(ask({"--prompt", question, "--any-order"}).code, 2);
  const std::string pair =
      R"({"properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"], "additionalProperties": false})";
  EXPECT_TRUE(ask_json({"--prompt", question, "--schema", pair, "--any-order", "--max-tokens", "40"})["complete"]);
  EXPECT_EQ(ask({"--prompt", question, "--schema", R"({"uniqueItems": true})"}).code, 3);
}

TEST(Run, CallsAreLines) {
  const std::string tools = scratch_path("tools.json"), calling = scratch_path("calling.jinja");
  write_file(
      tools,
      R"([{"name": "town_of", "parameters": {"type": "object", "properties": {"who": {"enum": ["Ada", "Bruno"]}}, "required": ["who"]}}])");
  write_file(
      calling,
      "{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- for c in m.tool_calls or [] -%}"
      "{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}"
      "{{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}");
  const std::vector<std::string> given = {"--prompt", "Where does Ada live?", "--template", calling, "--tools", tools};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), given.begin(), given.end());
    return more;
  };
  const Finished lines = ask(with({"--tool-choice", "town_of", "--one-call", "--max-tokens", "80"}));
  ASSERT_EQ(lines.code, 0) << lines.err;
  const Json call = Json::parse(lines.out);
  EXPECT_EQ(call["name"], "town_of");
  EXPECT_TRUE(call["arguments"]["who"] == "Ada" || call["arguments"]["who"] == "Bruno") << lines.out;
  const Json answer = ask_json(with({"--tool-choice", "required", "--one-call", "--max-tokens", "80"}));
  EXPECT_EQ(answer["finish_reason"], "calls");
  EXPECT_EQ(answer["complete"], true);
  EXPECT_EQ(answer["calls"].size(), 1u);
  EXPECT_EQ(ask_json(with({"--tool-choice", "ignored", "--max-tokens", "5"}))["calls"].size(), 0u);
  EXPECT_EQ(ask({"--prompt", "x", "--tool-choice", "auto"}).code, 2);
  EXPECT_EQ(ask({"--prompt", "x", "--max-thinking", "5"}).code, 2);
  const Finished unknown = ask(with({"--tool-choice", "other"}));
  EXPECT_NE(unknown.err.find("'other'"), std::string::npos) << unknown.err;
}

TEST(Grammar, TriesTexts) {
  const std::string model = demo_model(),
                    schema = R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "nonsense": 1})";
  const Finished described = run({"grammar", model, "--schema", schema});
  EXPECT_EQ(described.code, 0) << described.err;
  EXPECT_NE(described.out.find("states"), std::string::npos) << described.out;
  EXPECT_NE(described.err.find("nonsense"), std::string::npos) << described.err;
  EXPECT_EQ(run({"grammar", model, "{\"n\": 12}", "--schema", schema}).out, "the text fits\n");
  const std::string pair = R"({"required": ["a", "b"], "properties": {"a": {}, "b": {}}})", turned = R"({"b": 1, "a": 2})";
  EXPECT_EQ(run({"grammar", model, turned, "--schema", pair, "--any-order"}).out, "the text fits\n");
  EXPECT_EQ(run({"grammar", model, turned, "--schema", pair}).code, 1);
  const Finished half = run({"grammar", model, "{\"n\": 1", "--schema", schema});
  EXPECT_EQ(half.code, 1);
  EXPECT_EQ(half.out, "the text is the beginning of one that fits\n");
  const Finished wrong = run({"grammar", model, "{\"n\": x}", "--schema", schema});
  EXPECT_EQ(wrong.code, 1);
  EXPECT_EQ(wrong.out, "byte 6 does not fit:\n{\"n\": x}\n      ^\n");
  const Json report = Json::parse(run({"grammar", model, "abb", "--regex", "ab*", "--json"}).out);
  EXPECT_EQ(report["fits"], true);
  EXPECT_EQ(report["matched_bytes"], 3);
  RunOptions options;
  options.input = "2026-11\n";
  EXPECT_EQ(run({"grammar", model, "-", "--trim", "--regex", "[0-9]{4}-[0-9]{2}"}, options).code, 0);
  EXPECT_EQ(run({"grammar", model, "text"}).code, 2);
}

TEST(Run, ABannedTokenDoesNotAppear) {
  const Json free = ask_json({"--prompt", "Who are you?", "--max-tokens", "1"});
  const int first = free.at("tokens")[0].at("id");
  const Json banned = ask_json({"--prompt", "Who are you?", "--max-tokens", "5", "--bias", std::to_string(first) + "=-inf"});
  for (const Json& token : banned.at("tokens")) EXPECT_NE(token.at("id"), first);
}

TEST(Run, APromptLongerThanTheContextDoesNotFit) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += kText;
  const Finished finished = ask({"-"}, text);
  EXPECT_EQ(finished.code, 4);
  EXPECT_EQ(finished.out, "");
  EXPECT_EQ(finished.err.compare(0, 8, "orrery: "), 0) << finished.err;
  const Finished budget = run({"run", demo_model(), "Hello!", "--context", "16384", "--budget", "1MiB"});
  EXPECT_EQ(budget.code, 4);
  EXPECT_EQ(budget.out, "");
  EXPECT_NE(budget.err.find(" MiB of device memory "), std::string::npos) << budget.err;
}

TEST(Run, CtrlCEndsItWith130AndWhatWasSaid) {
  RunOptions options;
  options.interrupt_after_output = 0.05;
  const Finished finished = run({"run", demo_model(), "Who are you?", "--ignore-end", "--context", "16384"}, options);
  EXPECT_EQ(finished.code, 130);
  EXPECT_EQ(finished.out.compare(0, 10, kWhoAreYou, 10), 0) << finished.out;
  EXPECT_EQ(finished.err, "");
}

TEST(Bench, MeasuresWhatItWasAskedFor) {
  const Finished finished = run({"bench", demo_model(), "--prompt-tokens", "32,100", "--gen-tokens", "8", "--repeat", "3", "--json"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json json = Json::parse(finished.out);
  ASSERT_EQ(json.at("results").size(), 2u);
  EXPECT_EQ(json.at("results")[0].at("prompt_tokens"), 32);
  EXPECT_EQ(json.at("results")[1].at("prompt_tokens"), 100);
  // The output matrix is the embedding: all the file's tensors are read for every token.
  uint64_t bytes = 0;
  const Json file = Json::parse(run({"inspect", demo_model(), "--json"}).out);
  for (const Json& tensor : file.at("tensors")) bytes += tensor.at("bytes").get<uint64_t>();
  EXPECT_EQ(json.at("weights_bytes_per_token"), bytes);
  for (const Json& row : json.at("results")) {
    for (const char* what : {"prefill_tokens_per_second", "decode_tokens_per_second", "first_token_ms"}) {
      EXPECT_GT(row.at(what).at("min").get<double>(), 0) << what;
      EXPECT_LE(row.at(what).at("min"), row.at(what).at("median"));
      EXPECT_LE(row.at(what).at("median"), row.at(what).at("max"));
    }
    EXPECT_NEAR(row.at("weights_gb_per_second").get<double>(),
                row.at("decode_tokens_per_second").at("median").get<double>() * static_cast<double>(bytes) / 1e9, 1e-6);
  }
  // The limits that the speeds are put beside; only the paths that have a peak measure products.
  const Json& limits = json.at("limits");
  const double read = limits.at("read_gb_per_second");
  EXPECT_GT(read, 0);
  const bool has_peak = json.at("cpu_path").get<std::string>().find("avx") == 0 || json.at("cpu_path") == "amx";
  double ops = 0, last = 0;  // for each token of a prompt; for its last
  for (const Json& tensor : file.at("tensors")) {
    if (tensor.at("shape").size() < 2) continue;
    ASSERT_EQ(tensor.at("type"), "Q8_0");
    const double products = 2 * tensor.at("shape")[0].get<double>() * tensor.at("shape")[1].get<double>();
    (tensor.at("name") == "token_embd.weight" ? last : ops) += products;
  }
  const Json& metadata = file.at("metadata");
  for (const Json& row : json.at("results")) {
    // KV in pages of 64 tokens: keys and values of two bytes, of every layer and KV head.
    const uint64_t n = row.at("prompt_tokens").get<uint64_t>() + 8;
    const uint64_t of_token = 2 * 2 * metadata.at("llama.block_count").get<uint64_t>() *
                              metadata.at("llama.attention.head_count_kv").get<uint64_t>() *
                              metadata.at("llama.attention.key_length").get<uint64_t>();
    EXPECT_EQ(row.at("kv_bytes"), (n + 63) / 64 * 64 * of_token);
    const double decode = row.at("decode_tokens_per_second").at("median");
    const double per_token = static_cast<double>(bytes + row.at("kv_bytes").get<uint64_t>());
    // A limit that is beaten is none: then there is no share.
    const auto expect_share = [](const Json& share, double expected) {
      if (expected > 1) EXPECT_TRUE(share.is_null()) << share << ", " << expected;
      else EXPECT_NEAR(share.get<double>(), expected, 1e-6);
    };
    EXPECT_TRUE(row.at("decode_share_of_read").is_null() || row.at("decode_share_of_read").get<double>() > 0);
    if (row == json.at("results").back())  // by then all limits had been measured
      expect_share(row.at("decode_share_of_read"), decode * per_token / 1e9 / read);
    if (!has_peak) {
      EXPECT_TRUE(row.at("prefill_share_of_peak").is_null());
      continue;
    }
    EXPECT_TRUE(row.at("prefill_share_of_peak").is_null() || row.at("prefill_share_of_peak").get<double>() > 0);
    if (row != json.at("results").back()) continue;
    const double prefill = row.at("prefill_tokens_per_second").at("median");
    expect_share(row.at("prefill_share_of_peak"), prefill * (ops + last / row.at("prompt_tokens").get<double>()) / 1e9 /
                                                      limits.at("quantized_gop_per_second").get<double>());
  }
  const Finished table = run({"bench", demo_model(), "--prompt-tokens", "16", "--gen-tokens", "4", "--repeat", "1"});
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("GB/s"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("Measured between the runs"), std::string::npos) << table.out;
}

// A step's bytes by operation are the file's tensors, once each; what the threads do and wait fills the step.
TEST(Bench, TraceSaysWhereAStepGoes) {
  const Finished finished = run({"bench", demo_model(), "--backend", "cpu", "--threads", "2", "--prompt-tokens", "32", "--gen-tokens", "9",
                                 "--repeat", "2", "--trace", "--trace-svg", "/dev/stdout", "--json"});
  ASSERT_EQ(finished.code, 2) << "a picture and JSON in one stream are refused";
  const std::string picture = ::testing::TempDir() + "trace-" + std::to_string(::getpid()) + ".svg";
  const Finished measured = run({"bench", demo_model(), "--backend", "cpu", "--threads", "2", "--prompt-tokens", "32", "--gen-tokens", "9",
                                 "--repeat", "2", "--trace-svg", picture, "--json"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  const Json trace = Json::parse(measured.out).at("results")[0].at("trace");
  EXPECT_EQ(trace.at("steps"), 16);  // two runs; a prompt gives the first of nine tokens
  uint64_t matrices = 0;
  const Json file = Json::parse(run({"inspect", demo_model(), "--json"}).out);
  for (const Json& tensor : file.at("tensors"))
    if (tensor.at("shape").size() >= 2) matrices += tensor.at("bytes").get<uint64_t>();
  double product_bytes = 0, sum_us = 0;
  bool has_vocabulary = false, has_attention = false;
  for (const Json& row : trace.at("rows")) {
    const std::string name = row.at("name");
    if (name.find("(Q8_0 ") != std::string::npos) product_bytes += row.at("bytes").get<double>();
    has_vocabulary = has_vocabulary || name.find("vocabulary (Q8_0 ") == 0;
    has_attention = has_attention || (name == "attention" && row.at("bytes").get<double>() > 0);
    ASSERT_EQ(row.at("threads_us").size(), 2u) << name;
    for (const Json& us : row.at("threads_us")) EXPECT_GE(us.get<double>(), 0) << name;
    sum_us += row.at("us").get<double>();
  }
  EXPECT_EQ(product_bytes, static_cast<double>(matrices));
  EXPECT_TRUE(has_vocabulary);
  EXPECT_TRUE(has_attention);
  EXPECT_NEAR(sum_us, trace.at("step_us").get<double>(), .02 * sum_us);
  const std::string svg = read_whole(picture);
  std::remove(picture.c_str());
  EXPECT_EQ(svg.compare(0, 5, "<svg "), 0);
  EXPECT_NE(svg.find(">thread 1</text>"), std::string::npos);
  EXPECT_NE(svg.find("waiting for other threads"), std::string::npos);
}

TEST(Demo, EveryAnswerIsRight) {
  const Finished finished = run({"demo"});
  EXPECT_EQ(finished.code, 0) << finished.out << finished.err;
  const Json questions = Json::parse(read_whole(demo_file("demo-questions.json"))).at("questions");
  ASSERT_GE(questions.size(), 6u);
  for (const Json& entry : questions) {
    const std::string answer = entry.at("answer");
    EXPECT_NE(finished.out.find("Question  " + entry.at("question").get<std::string>() + "\nAnswer    " + answer + "\nExpected  " + answer +
                                "   right\n"),
              std::string::npos)
        << answer;
  }
  const std::string n = std::to_string(questions.size());
  EXPECT_NE(finished.out.find(n + " of " + n + " right"), std::string::npos);
}

TEST(Demo, AWrongAnswerFails) {
  const std::string document = scratch_path("demo.txt"), questions = scratch_path("questions.json");
  write_file(document, kText);
  write_file(questions,
             R"({"questions": [{"question": "Where does Ada live?", "answer": "Ada lives in Oslo."},
                                          {"question": "Where does Ada live?", "answer": "Ada lives in Rome."}]})");
  const Finished finished = run({"demo", "--document", document, "--questions", questions});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.out.find("1 of 2 right"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("Expected  Ada lives in Rome.   WRONG"), std::string::npos) << finished.out;
}

}  // namespace
}  // namespace orrery::testing
