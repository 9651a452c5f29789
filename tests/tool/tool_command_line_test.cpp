// What the tool says and returns before any model runs: help, versions, misspelt words, strict values, files
// that are not there or not what they should be, and an output that cannot be written.
#include <gtest/gtest.h>

#include "program.h"
#include "tests/support/model_spec.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

using Words = std::vector<std::string>;

const Words kCommands = {"chat",     "run",   "inspect",  "plan",     "bench",   "eval", "profile",
                         "policies", "embed", "tokenize", "template", "grammar", "demo"};

// One line, beginning with "orrery: ".
void expect_error_line(const Finished& finished) {
  EXPECT_EQ(finished.out, "");
  EXPECT_EQ(finished.err.compare(0, 8, "orrery: "), 0) << finished.err;
  EXPECT_EQ(finished.err.find("orrery: ", 1), std::string::npos) << finished.err;
  ASSERT_FALSE(finished.err.empty());
  EXPECT_EQ(finished.err.find('\n'), finished.err.size() - 1) << finished.err;
}

void expect_failure(const Words& words, int code, const std::string& part, const RunOptions& options = {}) {
  const Finished finished = run(words, options);
  EXPECT_EQ(finished.code, code) << finished.err;
  expect_error_line(finished);
  EXPECT_NE(finished.err.find(part), std::string::npos) << finished.err << "lacks: " << part;
}

TEST(Help, EveryCommandHasAPageThatNamesItsOptionsAndExamples) {
  const Finished overview = run({"help"});
  EXPECT_EQ(overview.code, 0);
  for (const std::string& command : kCommands) {
    EXPECT_NE(overview.out.find("\n  " + command + " "), std::string::npos) << command;
    const Finished page = run({"help", command});
    EXPECT_EQ(page.code, 0);
    EXPECT_EQ(page.err, "");
    EXPECT_EQ(page.out.compare(0, 8 + command.size(), "orrery " + command + " "), 0) << page.out;
    EXPECT_NE(page.out.find("\nUsage: orrery " + command), std::string::npos);
    EXPECT_NE(page.out.find("\nExamples:\n  "), std::string::npos);
    EXPECT_NE(page.out.find("  --"), std::string::npos);
    EXPECT_EQ(run({command, "--help"}).out, page.out);
    EXPECT_EQ(run({command, demo_model(), "--no-such-thing", "-h"}).out, page.out);
  }
  EXPECT_EQ(run({"--help"}).out, overview.out);
  EXPECT_NE(run({"help", "exit-codes"}).out.find("130"), std::string::npos);
}

TEST(Help, NothingToDoIsAUsageErrorThatShowsTheCommands) {
  const Finished finished = run({});
  EXPECT_EQ(finished.code, 2);
  EXPECT_EQ(finished.out, run({"help"}).out);
}

TEST(Version, NamesVersionAndAbi) {
  const Finished finished = run({"--version"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.out.compare(0, 7, "orrery "), 0);
  EXPECT_NE(finished.out.find("(ABI 2)"), std::string::npos) << finished.out;
}

TEST(Misspelt, TheNearestWordIsSuggested) {
  expect_failure({"tokenise", "x"}, 2, "did you mean 'tokenize'?");
  expect_failure({"pln", "x"}, 2, "did you mean 'plan'?");
  expect_failure({"help", "becnh"}, 2, "did you mean 'bench'?");
  expect_failure({"run", "x", "--temprature", "1"}, 2, "did you mean --temperature?");
  expect_failure({"chat", "x", "--no-histroy"}, 2, "did you mean --no-history?");
  expect_failure({"plan", "x", "--kvtype=f16"}, 2, "did you mean --kv-type?");
  // Words of other programs.
  expect_failure({"run", "x", "--ctx-size", "1"}, 2, "did you mean --context?");
  expect_failure({"run", "x", "--n-predict=1"}, 2, "did you mean --max-tokens?");
  expect_failure({"plan", "x", "--cache-type-k", "f16"}, 2, "did you mean --kv-type?");
  const Finished foreign = run({"inspect", "x", "--n-predict", "1"});  // which has no such option
  EXPECT_EQ(foreign.code, 2);
  EXPECT_EQ(foreign.err.find("did you mean"), std::string::npos) << foreign.err;
  expect_failure({"inspect", "--shape", "nope"}, 2, "there is no such shape; expected NAME or NAME:TYPE");
  const Finished far = run({"xyzzyplugh"});
  EXPECT_EQ(far.code, 2);
  EXPECT_EQ(far.err.find("did you mean"), std::string::npos) << far.err;
}

TEST(Values, AreStrict) {
  const std::string model = demo_model();
  for (const char* bad : {"", "x", "7x", " 7", "7 ", "-1", "+7", "0x10", "1e3", "4294967296", "99999999999999999999999"}) {
    expect_failure({"run", model, "--prompt", "x", "--max-tokens", bad}, 2, "--max-tokens: '" + std::string(bad) + "'");
  }
  for (const char* bad : {"", "hot", "-0.1", "101", "nan", "inf", "0.5.5", "0,5"}) {
    expect_failure({"run", model, "--prompt", "x", std::string("--temperature=") + bad}, 2, "--temperature: '");
  }
  for (const char* bad : {"", "GiB", "2GX", "2 GiB", "-1MiB", "0", "1e9", "2gibs", "9999999TiB", "nanMiB"}) {
    expect_failure({"plan", model, std::string("--budget=") + bad}, 2, "--budget: '");
  }
  for (const char* bad : {"",
                          "12",
                          "GB/s",
                          "-1GB/s",
                          "0GB/s",
                          "12GB",
                          "12gbs",
                          "1e9B/s,",
                          "12GB/s,",
                          "12GB/s,10",
                          "12GB/s,-1us",
                          "12GB/s,us",
                          "12GB/s,1.5us",
                          "12GB/s,10us,",
                          "12GB/s,99999999999us",
                          "0.5B/s",
                          "9999999GB/s",
                          "infGB/s",
                          "nanB/s",
                          "12 GB/s",
                          "1,2GB/s"}) {
    expect_failure({"plan", model, std::string("--link=") + bad}, 2, "--link: ");
  }
  // A size is read the same way wherever it stands (tool_numbers_test.cpp has the table).
  for (const char* good : {"2GB", "2G", "2gib", "1.5GB"}) EXPECT_EQ(run({"plan", model, "--budget", good}).code, 0) << good;
  EXPECT_EQ(run({"plan", model, "--context", "2k", "--budget", "1G", "--json"}).out,
            run({"plan", model, "--context", "2048", "--budget", "1G", "--json"}).out);
  EXPECT_EQ(run({"plan", model, "--kv-budget", "0.5M", "--policy", "streaming", "--context", "2k", "--budget", "1G", "--json"}).out,
            run({"plan", model, "--kv-budget", "524288", "--policy", "streaming", "--context", "2048", "--budget", "1G", "--json"}).out);
  for (const char* bad : {"2GB", "k", "-2k", "5000M"}) expect_failure({"plan", model, std::string("--context=") + bad}, 2, "--context: '");
  for (const char* good : {"12GB/s", "12gb/s", "12G/s", "12GB/s,10us", "0.5MiB/s,0us", "1B/s"})
    EXPECT_EQ(run({"plan", model, "--link", good}).code, 0) << good;
  expect_failure({"plan", model, "--kv-type", "q5_0"}, 2, "--kv-type: 'q5_0' is none of f16, f32, q8_0, q4_0 or k8v4");
  for (const char* option : {"--kv-type", "--device-kv-type"})
    for (const char* other : {"k:q4_0,v:q8_0", "k:f16,v:q8_0", "k:q8_0,v:q4_0,v:q4_0", "k:q8_0,v:", "k:k8v4,v:k8v4"})
      expect_failure({"plan", model, option, other}, 2,
                     std::string(option) + ": '" + other + "': the types of K and V that may differ are k:q8_0,v:q4_0");
  for (const char* bad : {"k:q8_0", "v:q4_0", "k:q8_0;v:q4_0", "q8_0,v:q4_0", "K8V4", "k:,v:", "k:q5_0,v:q5_0"})
    expect_failure({"plan", model, std::string("--kv-type=") + bad}, 2, "is none of f16, f32, q8_0, q4_0 or k8v4");
  expect_failure({"plan", model, "--kv-type", "k:" + std::string(100000, 'x') + ",v:q4_0"}, 2, "the types of K and V that may differ");
  expect_failure({"plan", model, "--reservoir", "locked"}, 2, "pageable or pinned");
  expect_failure({"plan", model, "--device-kv-type", "q5_0"}, 2, "f16, f32, q8_0, q4_0 or k8v4");
  expect_failure({"plan", model, "--policy", "streaming", "--kv-type", "k8v4", "--device-kv-type", "q8_0"}, 2, "Q8_0 is finer than K8V4");
  expect_failure({"plan", model, "--policy", "streaming", "--kv-type", "q4_0", "--device-kv-type", "k:q8_0,v:q4_0"}, 2,
                 "K8V4 is finer than Q4_0");
  expect_failure({"profile", model, model, "--kv-type", "k:q4_0,v:q8_0"}, 2, "the types of K and V that may differ");
  expect_failure({"plan", model, "--policy", "streaming", "--device-kv-type", "f32"}, 2, "F32 is finer than F16");
  expect_failure({"plan", model, "--device-kv-type", "q8_0"}, 2, "policy full keeps its only copy");
  expect_failure({"eval", model, "--kv-type", "q8_0", "--device-kv-type", "f16"}, 2, "F16 is finer than Q8_0");
  expect_failure({"plan", model, "--context"}, 2, "--context needs a value");
  expect_failure({"plan", model, "--context", "--json"}, 2, "--context needs a value");
  expect_failure({"plan", model, "--json=yes"}, 2, "--json takes no value");
  expect_failure({"plan", model, "--context", "5", "--context", "6"}, 2, "given twice");
  expect_failure({"run", model, "--prompt", "x", "--top-p", "1.5"}, 2, "from 0 to 1");
  expect_failure({"run", model, "--prompt", "x", "--stop", ""}, 2, "--stop");
  expect_failure({"run", model, "--prompt", "x", "--bias", "5"}, 2, "ID=VALUE");
  expect_failure({"run", model, "--prompt", "x", "--var", "=3"}, 2, "NAME=VALUE");
}

// The library speaks of members of its structs; the tool speaks of its options.
TEST(Values, TheLibrarysRefusalsNameOptions) {
  const std::string model = demo_model();
  expect_failure({"plan", model, "--context", "999999999"}, 2, "--context is 999999999, expected at most ");
  expect_failure({"run", model, "hi", "--budget", "1MB"}, 4, "a larger --budget gives more");
  expect_failure({"run", model, "hi", "--budget", "1MB"}, 4,
                 "MiB of device memory (KV 1.00 MiB, workspace 7.");  // more or less by the instruction set
  expect_failure({"run", model, "hi", "--budget", "1MB"}, 4, " MiB), 976.50 KiB are free");
  const std::string path = scratch_path("n_context.gguf");
  expect_failure({"plan", path}, 1, path + ": cannot open");  // a file keeps its name
  expect_failure({"profile", "--import", model, "--full-share", "20%"}, 2, "--full-share has no effect with --import");
  expect_failure({"profile", "--import", model, "--steps", "3"}, 2, "--steps has no effect with --import");
  expect_failure({"profile", "--import-gates", model, "--kv-type", "f32"}, 2, "--kv-type has no effect with --import-gates");
  const std::string broken = scratch_path("broken.json");
  write_file(broken, "{7");
  expect_failure({"profile", "--import", broken}, 2, broken + ": head profile: ");
  expect_failure({"plan", model, "--policy", "nope"}, 2, "--policy: there is no KV policy 'nope'; the policies are: adakv, ");
  expect_failure({"plan", model, "--policy", "h3o"}, 2, "--policy: there is no KV policy 'h3o' (did you mean 'h2o'?); the policies are: ");
  // An option that the message does not name stands before it, and one that it names does not.
  expect_failure({"plan", model, "--policy", "streaming", "--policy-option", "abacus=1"}, 2,
                 "--policy-option: policy streaming has no option");
  expect_failure({"plan", model, "--policy", "streaming", "--kv-budget", "100B"}, 2, "--kv-budget: policy streaming");
  expect_failure({"plan", model, "--chunk", "2000000"}, 2, "orrery: --chunk is 2000000, expected at most");
  expect_failure({"run", model, "hi", "--template-name", "abacus"}, 2,
                 "--template-name: the model's file has no chat template named 'abacus'");
}

TEST(Help, PagesFitEightyColumnsAndNameTheirDefaults) {
  for (const std::string& command : kCommands) {
    const std::string page = run({"help", command}).out;
    size_t begin = 0, options = 0;
    bool examples = false;
    while (begin < page.size()) {
      const size_t end = page.find('\n', begin);
      const std::string line = page.substr(begin, end - begin);
      begin = end + 1;
      examples = examples || line == "Examples:";
      options += line.compare(0, 4, "  --") == 0;
      if (!examples) {  // an example is a command to copy
        EXPECT_LE(line.size(), 80u) << command << ": " << line;
      }
      EXPECT_TRUE(line.empty() || line.back() != ' ') << command << ": " << line;
    }
    EXPECT_GT(options, 0u) << command;
    EXPECT_TRUE(examples) << command;
    EXPECT_NE(page.rfind("Exit codes: see `orrery help exit-codes`.\n"), std::string::npos) << command;
  }
}

TEST(Words, TooFewTooManyAndContradictions) {
  const std::string model = demo_model();
  expect_failure({"inspect"}, 2, "too few words");
  expect_failure({"inspect", model, model}, 2, "too many words");
  expect_failure({"run", model}, 2, "no prompt");
  expect_failure({"run", model, "a", "--prompt", "b"}, 2, "once");
  expect_failure({"run", model, "--raw", "--prompt", "b", "--system", "s"}, 2, "--system");
  expect_failure({"run", model, "--prompt", "b", "--logprobs", "3"}, 2, "--json");
  expect_failure({"template", model}, 2, "--messages");
  expect_failure({"tokenize", model, "text", "--file", "x"}, 2, "not both");
  expect_failure({"bench", model, "--context", "100", "--prompt-tokens", "90", "--gen-tokens", "20"}, 2, "--context 100");
}

TEST(Models, MissingDamagedAndWrongFiles) {
  const std::string missing = scratch_path("missing.gguf"), text = scratch_path("text.gguf"), cut = scratch_path("cut.gguf"),
                    empty = scratch_path("empty.gguf");
  write_file(text, "This is a letter and not a model.\n");
  write_file(cut, read_whole(demo_model()).substr(0, 100000));
  write_file(empty, "");
  for (const Words& words : {Words{"inspect"}, Words{"plan"}, Words{"bench"}, Words{"run", "Hello"}, Words{"tokenize", "Hello"}}) {
    const auto with = [&](const std::string& path) {
      Words all = {words[0], path};
      all.insert(all.end(), words.begin() + 1, words.end());
      return all;
    };
    expect_failure(with(missing), 1, missing);
    expect_failure(with(text), 3, text);
    expect_failure(with(cut), 3, cut);
    expect_failure(with(empty), 3, empty);
    expect_failure(with(scratch_path("")), 1, scratch_path(""));
  }
}

TEST(Files, InputsThatCannotBeUsedAreNamed) {
  const std::string model = demo_model(), missing = scratch_path("missing.txt");
  for (const char* command : {"chat", "plan", "inspect"}) {
    expect_failure({command, "https://example.org/model.gguf"}, 1, "download the GGUF file first");
    expect_failure({command, "model.safetensors"}, 1, "is no GGUF file");
  }
  // A byte order mark is no part of a text.
  const std::string plain_text = scratch_path("plain.txt"), marked = scratch_path("marked.txt");
  write_file(plain_text, "one two\n"), write_file(marked, "\xEF\xBB\xBFone two\n");
  EXPECT_EQ(run({"run", model, "--file", marked}).out, run({"run", model, "--file", plain_text}).out);
  EXPECT_EQ(run({"run", model, "--raw", "--max-tokens", "4", "--json", "--file", marked}).out.find("\xEF\xBB\xBF"), std::string::npos);
  expect_failure({"run", "https://example.org/model.gguf", "hello"}, 1, "download the GGUF file first");
  expect_failure({"run", model, "--file", missing}, 1, missing);
  expect_failure({"tokenize", model, "--file", missing}, 1, missing);
  expect_failure({"tokenize", model, "--file", scratch_path("")}, 1, "Is a directory");
  expect_failure({"template", model, "--messages", missing}, 1, missing);
  const std::string nul = scratch_path("zero.txt");
  write_file(nul, std::string("abc\0def", 7));
  expect_failure({"run", model, "--file", nul}, 1, "byte 3 is NUL");
  const std::string json = scratch_path("bad.json");
  write_file(json, "[{\"role\": ");
  expect_failure({"template", model, "--messages", json}, 1, "is not JSON");
  write_file(json, "7");
  expect_failure({"template", model, "--messages", json}, 1, "neither an array");
  write_file(json, "{\"message\": []}");
  expect_failure({"template", model, "--messages", json}, 1, "\"messages\"");
  write_file(json, std::string(100000, '['));
  expect_failure({"template", model, "--messages", json}, 1, "nested deeper");
  write_file(json, "{\"name\": \"tool\"}");
  expect_failure({"run", model, "--prompt", "x", "--tools", json}, 1, "not a JSON array");
}

TEST(Output, ThatCannotBeWrittenIsAFailure) {
  RunOptions options;
  options.stdout_path = "/dev/full";
  const Finished full = run({"inspect", demo_model(), "--json"}, options);
  EXPECT_EQ(full.code, 1);
  EXPECT_NE(full.err.find("cannot write to standard output"), std::string::npos) << full.err;

  RunOptions closed;
  closed.close_stdout = true;
  const Finished finished = run({"tokenize", demo_model(), "Hello"}, closed);
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("cannot write to standard output"), std::string::npos) << finished.err;

  // With no descriptor 0 the model file must not become standard input.
  RunOptions no_input;
  no_input.close_stdin = true;
  EXPECT_EQ(run({"tokenize", demo_model()}, no_input).out, "\n");
}

TEST(Output, AClosedPipeEndsQuietly) {
  RunOptions options;
  options.leave_early = true;
  for (const Words& words : {Words{"inspect", demo_model(), "--json", "--tensors"}, Words{"help", "chat"},
                             Words{"run", demo_model(), "Hello!", "--ignore-end", "--max-tokens", "5000"}}) {
    const Finished finished = run(words, options);
    EXPECT_EQ(finished.code, 1);
    EXPECT_EQ(finished.err, "");
  }
}

// What packages install for man(1) and for shells names every command with every option of its page.
TEST(Pages, ManPagesAndCompletionsNameEveryOption) {
  const Finished overview = run({"man"});
  EXPECT_EQ(overview.code, 0);
  EXPECT_EQ(overview.out.compare(0, 13, ".TH ORRERY 1 "), 0) << overview.out;
  std::vector<std::string> scripts;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Finished script = run({"completions", shell});
    EXPECT_EQ(script.code, 0) << shell;
    scripts.push_back(script.out);
  }
  for (const std::string& command : kCommands) {
    EXPECT_NE(overview.out.find(".B orrery " + command + "\n"), std::string::npos) << command;
    const Finished page = run({"man", command});
    EXPECT_EQ(page.code, 0);
    const std::string help = run({"help", command}).out;
    for (size_t at = help.find("\n  --"); at != std::string::npos; at = help.find("\n  --", at + 1)) {
      const std::string name = help.substr(at + 5, help.find_first_of(" \n", at + 5) - at - 5);
      std::string roff = ".B \\-\\-";
      for (const char c : name) roff += c == '-' ? std::string("\\-") : std::string(1, c);
      EXPECT_NE(page.out.find(roff), std::string::npos) << command << " --" << name;
      EXPECT_NE(scripts[0].find("--" + name), std::string::npos) << command << " --" << name;
      EXPECT_NE(scripts[1].find("--" + name + "["), std::string::npos) << command << " --" << name;
      EXPECT_NE(scripts[2].find(command + "' -l " + name), std::string::npos) << command << " --" << name;
    }
  }
  expect_failure({"completions", "tcsh"}, 2, "expected bash, zsh or fish");
  expect_failure({"completions"}, 2, "one shell");
  expect_failure({"man", "chta"}, 2, "did you mean 'chat'?");
  expect_failure({"man", "chat", "run"}, 2, "one command at most");
}

TEST(Models, PlanNamesRecurrentStates) {
  const TempDir dir;
  for (const char* spec : {"qwen35", "lfm2", "nemotron-h"}) {
    const std::string file = dir.write("model.gguf", named_model_gguf(spec));
    const Finished plan = run({"plan", file, "--context", "256", "--budget", "1G"});
    EXPECT_EQ(plan.code, 0) << plan.err;
    EXPECT_NE(plan.out.find("recurrent states"), std::string::npos) << plan.out;
    EXPECT_EQ(plan.out.find("compressed"), std::string::npos) << plan.out;
    const Finished inspected = run({"inspect", file});
    EXPECT_EQ(inspected.code, 0);
    const char* kv_heads = spec == std::string("qwen35") ? " 2 KV heads" : " 0 or 2 KV heads";
    EXPECT_NE(inspected.out.find(kv_heads), std::string::npos) << inspected.out;
  }
}

// A published model without its file: 12 full layers of 8 heads of 64 at 32,768 tokens, and 12 layers with a window of 128, in rings of
// 1,024.
TEST(Models, AShapeStandsForAFile) {
  const Finished plan = run({"plan", "--shape", "gpt-oss-20b", "--context", "32k", "--policy", "full", "--budget", "16GiB"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("KV cache, full heads                    805,306,368"), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("windows, recurrent states                25,165,824"), std::string::npos) << plan.out;
  EXPECT_NE(run({"plan", "--shape", "qwen3-8b:Q8_0", "--context", "8k", "--json"}).out.find("\"trained_context\": 40960"),
            std::string::npos);
  const Finished inspected = run({"inspect", "--shape", "gpt-oss-20b"});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("gpt-oss-20b"), std::string::npos) << inspected.out;
  EXPECT_NE(inspected.out.find("\nmemory "), std::string::npos) << inspected.out;
  expect_failure({"plan", "--shape", "qwen3-9b"}, 2, "did you mean qwen3-8b?");
  expect_failure({"plan", "--shape", "qwen3-8b:Q9"}, 2, "types: Q4_K_M");
  expect_failure({"plan", "--shape", "qwen3-8b", "model.gguf"}, 2, "no file beside it");
  expect_failure({"inspect"}, 2, "or --shape with the name of a published model");
}

// KV of a small Llama in F16: 2 layers of 4 heads of 16, or 512 bytes a token.
// --card: three divisions of a card's memory, between experts of a mixture or layers of a dense model and what lies beside them.
TEST(Models, PlanPredictsACard) {
  const std::vector<std::string> plan = {"plan", "--shape", "qwen3.6-35b-a3b", "--context", "32k", "--card"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plan.begin(), plan.end());
    return run(more);
  };
  const Finished small = with({"rtx-3060-12g"}), large = with({"rtx-5090-32g"});
  EXPECT_EQ(small.code, 0) << small.err;
  for (const char* line :
       {"the fewest             512 ", "as many as fit ", "all                 10,240 ", "does not fit", "One more GiB would bring "})
    EXPECT_NE(small.out.find(line), std::string::npos) << line << "\n" << small.out;
  EXPECT_EQ(large.code, 0);
  EXPECT_EQ(large.out.find("as many as fit"), std::string::npos) << "all of them do";
  EXPECT_EQ(with({"rtx-3060-12g", "--budget", "2GiB"}).code, 4);
  EXPECT_NE(with({"rtx-3060-12g", "--json"}).out.find("\"division\": \"as many as fit\""), std::string::npos);
  EXPECT_NE(run({"plan", "--shape", "qwen3-8b", "--context", "8k", "--card", "rtx-4090-24g"}).out.find("\nall                     36 "),
            std::string::npos);
  const Finished dense = run({"plan", "--shape", "qwen3.8-27b", "--context", "8k", "--card", "rtx-3060-12g"});
  EXPECT_EQ(dense.code, 0) << dense.err;
  for (const char* line : {"layers there", "as many as fit ", "all                     64 ", "does not fit", "One more GiB would bring "})
    EXPECT_NE(dense.out.find(line), std::string::npos) << line << "\n" << dense.out;
  const TempDir dir;
  EXPECT_EQ(with({"rtx-3060-12g", "--card-picture", dir.file("p.png")}).code, 0);
  EXPECT_EQ(read_whole(dir.file("p.png")).substr(1, 3), "PNG");
  expect_failure({"plan", "--shape", "qwen3-8b", "--card", "gtx-9"}, 2, "--card: no card is called 'gtx-9'; expected one of rtx-2080-8g, ");
  expect_failure({"plan", "--shape", "qwen3-8b", "--card-picture", "p.png"}, 2, "--card-picture needs --card");
}

// The plan's table tells weights in the reservoir from KV there, and what the device holds by the number that is wanted.
TEST(Models, PlanNamesExpertsInHostMemory) {
  const std::vector<std::string> plan = {"plan",     "--shape", "gpt-oss-20b", "--context", "8k",
                                         "--budget", "64GiB",   "--link",      "25GB/s",    "--experts-on-device"};
  const auto with = [&](const char* n) {
    std::vector<std::string> words = plan;
    words.push_back(n);
    return run(words);
  };
  const Finished some = with("400");
  EXPECT_NE(some.out.find("\n  weights in the reservoir "), std::string::npos) << some.out << some.err;
  EXPECT_NE(some.out.find("\n  experts "), std::string::npos) << some.out;
  EXPECT_EQ(with("768").out.find("weights in the reservoir"), std::string::npos) << "all of them";
  expect_failure({"plan", "--shape", "gpt-oss-20b", "--link", "25GB/s", "--experts-on-device", "63"}, 2,
                 "--experts-on-device is 63: of 768 experts at least 64 are on the device, twice those of a layer");
  expect_failure({"plan", "--shape", "qwen3-8b", "--experts-on-device", "8"}, 2, "--experts-on-device is 8, but the model has no experts");
  const Finished by_host = run({"plan", "--shape", "gpt-oss-20b", "--context", "8k", "--budget", "64GiB", "--link", "25GB/s",
                                "--experts-on-device", "63", "--host-computes", "always"});
  EXPECT_NE(by_host.out.find("\n  work memory of the processor "), std::string::npos) << by_host.out << by_host.err;
  EXPECT_EQ(by_host.out.find("\n  KV reservoir"), std::string::npos) << by_host.out;
  expect_failure({"plan", "--shape", "qwen3-8b", "--columns-on-device", "50"}, 2,
                 "--columns-on-device is 50, but --host-computes is not 1");
  const Finished divided = run({"plan", "--shape", "qwen3-8b", "--context", "8k", "--budget", "64GiB", "--link", "25GB/s",
                                "--host-computes", "always", "--columns-on-device", "50"});
  EXPECT_NE(divided.out.find("\n  columns "), std::string::npos) << divided.out << divided.err;
}

TEST(Models, InspectSaysWhatAFileNeeds) {
  const TempDir dir;
  const Finished inspected = run({"inspect", dir.write("model.gguf", named_model_gguf("llama-plain"))});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  const size_t at = inspected.out.find("\nmemory                 KV in F16     together    8 GiB   12 GiB   16 GiB   24 GiB\n");
  ASSERT_NE(at, std::string::npos) << inspected.out;
  EXPECT_NE(inspected.out.find("      all      all      all      all\n", at), std::string::npos) << inspected.out;
  EXPECT_NE(inspected.out.find("\n  512 tokens ", at), std::string::npos) << inspected.out;
}

TEST(Models, InspectNamesExpertsWindowsAndWhatIsNotComputed) {
  const TempDir dir;
  const auto inspected = [&](const char* spec) { return run({"inspect", dir.write("model.gguf", named_model_gguf(spec))}).out; };
  EXPECT_NE(inspected("gpt-oss").find("experts         8, of which a token takes 3, 48 feed-forward\n"), std::string::npos)
      << inspected("gpt-oss");
  EXPECT_NE(inspected("gpt-oss").find("windows         12 tokens\n"), std::string::npos);
  EXPECT_NE(inspected("qwen35").find("guesses         1 further layer, for --speculate mtp\n"), std::string::npos) << inspected("qwen35");
  const std::string gemma4 = inspected("gemma4-alike");  // a table of 168 x 128 numbers
  EXPECT_NE(gemma4.find("\nshared KV       3 layers read that of others\n"), std::string::npos) << gemma4;
  EXPECT_NE(gemma4.find("\nper layer       24 more numbers of a token, from a table that stays in host memory, 84.00 KiB\n"),
            std::string::npos)
      << gemma4;
  const std::string glm = inspected("glm47");
  EXPECT_NE(glm.find("\nlatent KV       48 numbers of a token in each layer, of which the first 32 are values\n"), std::string::npos)
      << glm;
  EXPECT_NE(glm.find("no policy divides latent KV"), std::string::npos) << glm;
  EXPECT_NE(glm.find("\nnot computed    1 layer, which guesses tokens\n"), std::string::npos) << glm;
  for (const char* row : {"\nexperts ", "\nwindows ", "\nnot computed ", "\nguesses ", "\nshared KV ", "\nper layer ", "\nlatent KV "})
    EXPECT_EQ(inspected("qwen3").find(row), std::string::npos) << row;
}

}  // namespace
}  // namespace orrery::testing
