// The commands that need no weights: tokenize against the vocabulary's own tokenizer in Python
// (demo_vectors.json, by make_demo_vectors.py), template against ChatML written out by hand, inspect and plan
// against the demo model's known shape.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "program.h"
#include "tests/support/shared.h"

namespace orrery::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

const Json& vectors() {
  static const Json all = Json::parse(read_whole(source_path("tests/tool/demo_vectors.json")));
  return all;
}

std::string joined(const Json& ids) {
  std::string line;
  for (const Json& id : ids) line += (line.empty() ? "" : " ") + std::to_string(id.get<int>());
  return line + "\n";
}

std::string output(const Words& words, const std::string& input = "") {
  RunOptions options;
  options.input = input;
  const Finished finished = run(words, options);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  return finished.out;
}

TEST(Tokenize, GivesTheTokenizersOwnIds) {
  const std::string path = scratch_path("text.txt");
  for (const Json& entry : vectors().at("plain")) {
    const std::string text = entry.at("text"), expected = joined(entry.at("ids"));
    EXPECT_EQ(output({"tokenize", demo_model(), "-"}, text), expected) << text;
    write_file(path, text);
    EXPECT_EQ(output({"tokenize", demo_model(), "--file", path}), expected) << text;
  }
}

TEST(Tokenize, SpecialTokensAreTextUnlessAsked) {
  for (const Json& entry : vectors().at("special")) {
    const std::string text = entry.at("text");
    EXPECT_EQ(output({"tokenize", demo_model(), "--special", "--", text}), joined(entry.at("ids"))) << text;
    EXPECT_NE(output({"tokenize", demo_model(), "--", text}), joined(entry.at("ids"))) << text;
  }
}

TEST(Tokenize, TakesTheTextFromAnyOfThreePlaces) {
  const std::string expected = output({"tokenize", demo_model(), "Hello!"});
  EXPECT_EQ(output({"tokenize", demo_model()}, "Hello!"), expected);
  EXPECT_EQ(output({"tokenize", demo_model(), "-"}, "Hello!"), expected);
  EXPECT_EQ(output({"tokenize", demo_model(), "--file", "-"}, "Hello!"), expected);
  EXPECT_NE(output({"tokenize", demo_model()}, "Hello!\n"), expected);  // the newline is part of the text
  EXPECT_EQ(output({"tokenize", demo_model(), ""}), "\n");
}

TEST(Tokenize, BosPiecesAndJson) {
  const std::string plain = output({"tokenize", demo_model(), "Hello!"}), bos = output({"tokenize", demo_model(), "Hello!", "--bos"});
  ASSERT_GT(bos.size(), plain.size());
  EXPECT_EQ(bos.substr(bos.size() - plain.size()), plain);
  const Json json = Json::parse(output({"tokenize", demo_model(), "--json", "--pieces"}, "Who are you?\n"));
  EXPECT_EQ(joined(json.at("tokens")), output({"tokenize", demo_model()}, "Who are you?\n"));
  EXPECT_EQ(json.at("n_tokens"), json.at("tokens").size());
  std::string text;
  for (const Json& piece : json.at("pieces")) text += piece.get<std::string>();
  EXPECT_EQ(text, "Who are you?\n");
  EXPECT_EQ(output({"tokenize", demo_model(), "--pieces", "\n"}).find("'\\n'") == std::string::npos, false);
}

TEST(Tokenize, BytesThatAreNoTextArePartOfIt) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const Json json = Json::parse(output({"tokenize", demo_model(), "--json"}, bytes));
  EXPECT_GT(json.at("n_tokens").get<int>(), 100);
}

TEST(Template, RendersChatMlExactly) {
  const std::string path = scratch_path("messages.json");
  const std::string array = R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \"you\" \u00e9\n"}])";
  const std::string expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi \"you\" \xC3\xA9\n<|im_end|>\n";
  write_file(path, array);
  EXPECT_EQ(output({"template", demo_model(), "--messages", path}), expected + "<|im_start|>assistant\n");
  EXPECT_EQ(output({"template", demo_model(), "--messages", path, "--no-generation-prompt"}), expected);
  EXPECT_EQ(output({"template", demo_model(), "--messages", "-"}, "{\"messages\": " + array + "}"), expected + "<|im_start|>assistant\n");
}

TEST(Template, TakesATemplateVariablesAndToolsOfTheCallers) {
  const std::string path = scratch_path("my.jinja"), tools = scratch_path("tools.json");
  write_file(path,
             "{{ messages | length }}|{{ colour }}|{{ n + 1 }}|{{ enable_thinking }}|{{ tools[0].name }}|{{ "
             "add_generation_prompt }}");
  write_file(tools, R"([{"name": "clock"}])");
  const Words words = {"template",    demo_model(), "--messages", "-",          "--template", path, "--var",
                       "colour=teal", "--var",      "n=41",       "--no-think", "--tools",    tools};
  EXPECT_EQ(output(words, R"([{"role": "user", "content": "x"}])"), "1|teal|42|False|clock|True");
  const Words from_object = {"template", demo_model(), "--messages", "-", "--template", path, "--var", "colour=\"a b\"", "--var", "n=0"};
  EXPECT_EQ(output(from_object, R"({"messages": [], "tools": [{"name": "lamp"}]})"), "0|a b|1||lamp|True");
}

TEST(Template, ABrokenTemplateSaysWhere) {
  const std::string path = scratch_path("broken.jinja");
  write_file(path, "fine\n{% for %}");
  RunOptions options;
  options.input = "[]";
  const Finished finished = run({"template", demo_model(), "--messages", "-", "--template", path}, options);
  EXPECT_EQ(finished.code, 3) << finished.err;
  EXPECT_EQ(finished.out, "");
  EXPECT_NE(finished.err.find("2"), std::string::npos) << finished.err;
}

TEST(Template, SaysHowCallsAreWritten) {
  const std::string path = scratch_path("calls.jinja");
  const std::string before =
      "{%- for m in messages -%}{{- '<' + m.role + '>' -}}{%- if m.reasoning_content -%}"
      "{{- '<think>' + m.reasoning_content + '</think>' -}}{%- endif -%}{{- m.content -}}"
      "{%- for c in m.tool_calls or [] -%}";
  const std::string after =
      "{%- endfor -%}{{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant><think>' -}}{%- endif -%}";
  const auto format = [&](const std::string& call, bool as_json) {
    write_file(path, before + call + after);
    Words words = {"template", demo_model(), "--format", "--template", path};
    if (as_json) words.push_back("--json");
    return output(words);
  };
  const std::string json =
      "{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}";
  const std::string page = format(json, false);
  for (const char* part :
       {"between \"<think>\" and \"</think>\"; the prompt begins it", "proved", "\"<call>{\\\"name\\\": \\\"\"", "a JSON object",
        "\n<call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2, \"snow\": false}}</call><call>"})
    EXPECT_NE(page.find(part), std::string::npos) << part << " is not in\n" << page;
  Json report = Json::parse(format(json, true));
  EXPECT_EQ(report.at("proved"), true);
  EXPECT_EQ(report.at("reasoning").at("prompt"), "open");
  EXPECT_EQ(report.at("calls").at("several"), true);
  EXPECT_EQ(report.at("why_none"), nullptr);
  // Keys and values that stand apart; lists as Python's, and lists that nobody can read back.
  const std::string tagged =
      "{{- '<f=' + c.function.name + '>' -}}{%- for k, v in c.function.arguments.items() -%}{{- '<p=' + k + '>' -}}{{- v -}}{{- '</p>' -}}"
      "{%- endfor -%}{{- '</f>' -}}";
  EXPECT_NE(format(tagged, false).find("True, False, None"), std::string::npos) << format(tagged, false);
  EXPECT_NE(format(tagged, false).find("lists         as Python writes them"), std::string::npos) << format(tagged, false);
  const std::string joined =
      std::string(tagged).replace(tagged.find("{{- v -}}"), 9, "{{- v | join(';') if v is sequence and v is not string else v -}}");
  EXPECT_NE(format(joined, false).find("lists         cannot be written"), std::string::npos) << format(joined, false);
  // None, and why.
  report = Json::parse(output({"template", demo_model(), "--format", "--json"}));
  EXPECT_EQ(report.at("calls"), nullptr);
  EXPECT_EQ(report.at("why_none"), "the chat template prints no calls of tools");
  EXPECT_NE(output({"template", demo_model(), "--format"}).find("none: the chat template prints no calls of tools"), std::string::npos);
  EXPECT_EQ(run({"template", demo_model(), "--format", "--messages", path}).code, 2);
  EXPECT_EQ(run({"template", demo_model(), "--json", "--messages", path}).code, 2);
}

TEST(Inspect, TellsTheDemoModelsShape) {
  const std::string table = output({"inspect", demo_model()});
  for (const char* part :
       {"4,598,080 bytes", "Orrery demo", "llama", "4 layers", "256 wide", "16 heads", "8 KV heads", "32 per head", "704 feed-forward",
        "16,384 tokens", "500,000", "gpt2 (qwen2), 2,048 tokens", "default (", "Q8_0", "F32", "38"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << " is not in\n" << table;
  }
  EXPECT_EQ(table.find("token_embd.weight"), std::string::npos);
  const std::string tensors = output({"inspect", demo_model(), "--tensors"});
  EXPECT_NE(tensors.find("token_embd.weight"), std::string::npos);
  EXPECT_NE(tensors.find("2048 x 256"), std::string::npos) << tensors;
  const std::string metadata = output({"inspect", demo_model(), "--metadata"});
  EXPECT_NE(metadata.find("llama.rope.freq_base"), std::string::npos);
}

TEST(Inspect, JsonHoldsEveryTensor) {
  const Json json = Json::parse(output({"inspect", demo_model(), "--json"}));
  EXPECT_EQ(json.at("tensors").size(), 38u);
  uint64_t elements = 0;
  for (const Json& tensor : json.at("tensors")) {
    uint64_t product = 1;
    for (const Json& dim : tensor.at("shape")) product *= dim.get<uint64_t>();
    elements += product;
  }
  // vocabulary, four layers of attention and feed-forward, nine norms
  EXPECT_EQ(elements, 2048u * 256 + 4 * (256u * 512 * 2 + 256 * 256 * 2 + 3 * 256 * 704) + 9 * 256);
}

TEST(Inspect, AFileThatCannotRunIsStillDescribed) {
  const std::string path = scratch_path("nan.gguf"), key = "llama.attention.layer_norm_rms_epsilon";
  std::string bytes = read_whole(demo_model());
  const size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at + key.size() + 4, 4, std::string("\0\0\xC0\x7F", 4));  // behind the value's type: NaN
  write_file(path, bytes);
  EXPECT_EQ(Json::parse(output({"inspect", path, "--json"})).at("metadata").at(key), "nan");
  const std::string table = output({"inspect", path});
  EXPECT_NE(table.find("cannot run"), std::string::npos) << table;
  EXPECT_NE(table.find("16,384 tokens"), std::string::npos) << table;
}

TEST(Plan, AddsUpAndFollowsTheContext) {
  const auto plan = [](const Words& more, int code) {
    Words words = {"plan", demo_model(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Finished finished = run(words);
    EXPECT_EQ(finished.code, code) << finished.err;
    return Json::parse(finished.out);
  };
  const Json small = plan({"--context", "2048", "--budget", "256MiB"}, 0), large = plan({"--context", "4096", "--budget", "256MiB"}, 0);
  for (const Json& p : {small, large}) {
    uint64_t sum = 0;
    for (const char* part :
         {"weights_bytes", "full_kv_bytes", "compressed_kv_bytes", "digests_bytes", "staging_bytes", "workspace_bytes"}) {
      sum += p.at(part).get<uint64_t>();
    }
    EXPECT_EQ(p.at("device_bytes"), sum);
    EXPECT_EQ(p.at("budget_bytes"), 256u << 20);
    EXPECT_EQ(p.at("fits"), true);
  }
  // K and V of 8 heads of 32 in 4 layers, 2 bytes each
  const uint64_t per_token = 2u * 8 * 32 * 4 * 2;
  EXPECT_GE(small.at("full_kv_bytes").get<uint64_t>(), 2048 * per_token);
  EXPECT_EQ(large.at("full_kv_bytes").get<uint64_t>() - small.at("full_kv_bytes").get<uint64_t>(), 2048 * per_token);
  EXPECT_GT(small.at("full_kv_bytes"), plan({"--context", "2048", "--kv-type", "q4_0"}, 0).at("full_kv_bytes"));
  // The numbers it gives are the edge: one budget fits, a byte less does not, but for a policy.
  const uint64_t needed = large.at("device_bytes");
  EXPECT_EQ(plan({"--context", "4096", "--budget", std::to_string(needed)}, 0).at("fits"), true);
  const Json short_by_one = plan({"--context", "4096", "--budget", std::to_string(needed - 1), "--policy", "full"}, 4);
  EXPECT_EQ(short_by_one.at("fits"), false);
  const Json by_itself = plan({"--context", "4096", "--budget", std::to_string(needed - 1)}, 0);
  EXPECT_EQ(by_itself.at("full_kv_bytes"), 0u);
  EXPECT_GT(by_itself.at("compressed_kv_bytes").get<uint64_t>(), 0u);
  EXPECT_LT(short_by_one.at("largest_context").get<uint64_t>(), 4096u);
  EXPECT_GE(large.at("largest_context").get<uint64_t>(), 4096u);
}

TEST(Plan, APolicyKeepsItsShareOnTheDevice) {
  const auto plan = [](const std::string& budget) {
    return Json::parse(output({"plan", demo_model(), "--json", "--context", "4096", "--policy", "streaming", "--kv-budget", budget}));
  };
  const uint64_t token = 2u * 32 * 2, heads = 4 * 8;  // K and V of one head in f16; layers x KV heads
  const Json quarter = plan("25%"), bytes = plan("1MiB");
  EXPECT_EQ(quarter.at("compressed_kv_bytes"), 1024 * heads * token);
  EXPECT_EQ(quarter.at("full_kv_bytes"), 0);
  EXPECT_EQ(quarter.at("reservoir_bytes"), 4096 * heads * token);
  EXPECT_EQ(bytes.at("compressed_kv_bytes"), 1u << 20);
  for (const char* bad : {"0%", "101%", "x%", "-5%", "12XB"})
    EXPECT_EQ(run({"plan", demo_model(), "--policy", "streaming", std::string("--kv-budget=") + bad}).code, 2) << bad;
  const Finished unknown = run({"plan", demo_model(), "--policy", "steaming"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("did you mean 'streaming'"), std::string::npos) << unknown.err;
}

TEST(Plan, SaysWhetherTheReservoirIsPinned) {
  const Words words = {"plan", demo_model(), "--context", "1024", "--policy", "synckv", "--kv-budget", "50%"};
  const auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return output(all);
  };
  EXPECT_NE(with({}).find("KV reservoir, pageable"), std::string::npos);
  EXPECT_NE(with({"--reservoir", "pinned"}).find("KV reservoir, pinned"), std::string::npos);
  const Json pageable = Json::parse(with({"--json", "--reservoir", "pageable"})),
             pinned = Json::parse(with({"--json", "--reservoir", "pinned"}));
  EXPECT_EQ(pageable.at("reservoir_mode"), "pageable");
  EXPECT_EQ(pinned.at("reservoir_mode"), "pinned");
  EXPECT_EQ(pinned.at("reservoir_bytes"), pageable.at("reservoir_bytes"));
}

// KV bytes hold a policy's full heads up to some context: without --context it is that one.
TEST(Plan, KvBytesBoundTheContext) {
  const Words words = {"plan", demo_model(), "--json", "--policy", "synckv", "--kv-budget", "1MiB"};
  const Json largest = Json::parse(output(words));
  const uint64_t n = largest.at("n_context");
  EXPECT_EQ(largest.at("largest_context"), n);
  EXPECT_LE(largest.at("full_kv_bytes").get<uint64_t>() + largest.at("compressed_kv_bytes").get<uint64_t>(), 1u << 20);
  Words more = words;
  more.insert(more.end(), {"--context", std::to_string(n + 1)});
  const Finished refused = run(more);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("at a context of " + std::to_string(n + 1) + "; it must be at least "), std::string::npos) << refused.err;
}

TEST(Plan, TheDeviceMayHoldACoarserTypeThanTheReservoir) {
  const auto plan = [](const Words& more, const char* policy = "streaming") {
    // Budgets by themselves follow the memory that is free at the moment.
    Words words = {"plan", demo_model(), "--json", "--budget", "1GiB", "--context", "4096", "--policy", policy, "--kv-budget", "25%"};
    words.insert(words.end(), more.begin(), more.end());
    Json made = Json::parse(output(words));
    made.erase("reservoir_budget_bytes");
    return made;
  };
  const uint64_t heads = 4 * 8;  // layers x KV heads of 32: blocks of 34 bytes for Q8_0, 18 for Q4_0
  const Json same = plan({}), q8 = plan({"--device-kv-type", "q8_0"}), q4 = plan({"--kv-type", "q8_0", "--device-kv-type", "q4_0"});
  EXPECT_EQ(same.at("device_kv_type"), "f16");
  EXPECT_EQ(q8.at("kv_type"), "f16");
  EXPECT_EQ(q8.at("device_kv_type"), "q8_0");
  const auto whole_units = [](uint64_t bytes) { return (bytes + 255) / 256 * 256; };      // of the arena
  EXPECT_EQ(q8.at("compressed_kv_bytes"), whole_units(1024 * 64 / 34 * heads * 2 * 34));  // tokens, in no more bytes than 1,024 of F16
  EXPECT_EQ(q8.at("reservoir_bytes"), same.at("reservoir_bytes"));
  EXPECT_EQ(q4.at("compressed_kv_bytes"), whole_units(1024 * 34 / 18 * heads * 2 * 18));
  EXPECT_EQ(q4.at("reservoir_bytes"), 4096 * heads * 2 * 34);
  // Both spellings, of either option: K in 34 bytes and V in 18.
  const Json both = plan({"--kv-type", "k8v4", "--device-kv-type", "k8v4"}),
             named = plan({"--kv-type", "k:q8_0,v:q4_0", "--device-kv-type", "k:q8_0,v:q4_0"});
  EXPECT_EQ(both, named);
  EXPECT_EQ(both.at("kv_type"), "k8v4");
  EXPECT_EQ(both.at("device_kv_type"), "k8v4");
  EXPECT_EQ(both.at("compressed_kv_bytes"), whole_units(1024 * heads * 52));
  EXPECT_EQ(both.at("reservoir_bytes"), 4096 * heads * 52);
  EXPECT_EQ(plan({"--kv-type", "k:f16,v:f16"}), same);
  EXPECT_EQ(plan({"--device-kv-type", "k:q8_0,v:q8_0"}), q8);
  EXPECT_EQ(plan({"--device-kv-type", "k8v4"}).at("compressed_kv_bytes"), whole_units(1024 * 128 / 52 * heads * 52));
  for (const char* command : {"plan", "run", "chat", "eval", "profile"})
    EXPECT_NE(output({"help", command}).find("k8v4 (also k:q8_0,v:q4_0)"), std::string::npos) << command;
  const Json by_itself = plan({}, "auto"), halves = plan({"--device-kv-type", "f16"}, "auto");
  EXPECT_EQ(by_itself.at("device_kv_type"), "q8_0");
  EXPECT_EQ(halves.at("device_kv_type"), "f16");
  EXPECT_NE(output({"plan", demo_model(), "--context", "1024", "--kv-budget", "20%"}).find("KV cache in f16, on the device in q8_0"),
            std::string::npos);
  const std::string table = output({"plan", demo_model(), "--context", "1024", "--policy", "streaming", "--device-kv-type", "q4_0"});
  EXPECT_NE(table.find("KV cache in f16, on the device in q4_0"), std::string::npos) << table;
  EXPECT_NE(output({"plan", demo_model(), "--context", "1024", "--kv-type", "k:q8_0,v:q4_0"}).find("KV cache in k8v4"), std::string::npos);
}

TEST(Plan, TheTableSaysWhetherItFits) {
  const std::string fits = output({"plan", demo_model(), "--context", "1024", "--budget", "1GiB"});
  EXPECT_NE(fits.find("A session of 1,024 tokens, KV cache in f16"), std::string::npos) << fits;
  EXPECT_NE(fits.find("It fits."), std::string::npos) << fits;
  EXPECT_NE(fits.find("1,073,741,824"), std::string::npos) << fits;
  const Finished finished = run({"plan", demo_model(), "--context", "16384", "--budget", "1MiB"});
  EXPECT_EQ(finished.code, 4);
  EXPECT_NE(finished.out.find("It does not fit"), std::string::npos) << finished.out;
}

}  // namespace
}  // namespace orrery::testing
