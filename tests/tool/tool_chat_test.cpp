// Conversations: from a pipe, where each line is a turn, and on a pseudo-terminal, where a person types,
// presses Ctrl-C and takes things back. chat.c, which people copy from, is driven the same way.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include <filesystem>

#include "program.h"
#include "tests/support/demo_adapter.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kText = "On Sunday there was snow over the cellar. Ada lives in Oslo. The grass is green. Bruno owns a teal fox.";
constexpr const char* kWhoAreYou = "I am the Orrery demo model. I answer questions about the text that you give me.";
constexpr const char* kHello = "Hello! Give me some text, and ask me about it.";

Words chat_words(const Words& more) {
  Words words = {"chat", demo_model(), "--context", "2048", "--temperature", "0"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Finished chat(const std::string& input, const Words& more = {}) {
  RunOptions options;
  options.input = input;
  return run(chat_words(more), options);
}

TEST(ChatPipe, EachLineIsATurnAndOutputIsClean) {
  const Finished finished = chat("Hello!\n\nWho are you?\nThank you.");
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ(finished.out, std::string(kHello) + "\n" + kWhoAreYou + "\nYou are welcome.\n");
  EXPECT_EQ(finished.err, "");
}

TEST(ChatPipe, LaterTurnsKnowTheDocument) {
  const std::string path = scratch_path("document.txt");
  write_file(path, std::string(kText) + "\n");
  const std::string questions = "Where does Ada live?\nWhat animal does Bruno own?\nWhere does Zoran live?\n";
  const std::string answers = "Ada lives in Oslo.\nBruno owns a teal fox.\nThe text does not say.\n";
  EXPECT_EQ(chat(questions, {"--file", path}).out, answers);
  EXPECT_EQ(chat("/file " + path + "\n" + questions).out, answers);
  // Pasted in: a block, and a line that goes on.
  EXPECT_EQ(chat("\"\"\"\n" + std::string(kText) + "\n\nWhere does Ada live?\n\"\"\"\n").out, "Ada lives in Oslo.\n");
  EXPECT_EQ(chat(std::string(kText) + "\\\n\\\nWhere does Ada live?\n").out, "Ada lives in Oslo.\n");
}

TEST(ChatPipe, UndoGivesTheDocumentBackAndRetryAnswersAgain) {
  const std::string path = scratch_path("document.txt");
  write_file(path, kText);
  const Finished finished = chat(
      "Where does Ada live?\n/undo\nWhat animal does Bruno own?\n/retry\n/rewind 3\n/undo\nWhere does Ada "
      "live?\n/reset\nHello!\n",
      {"--file", path});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out,
            "Ada lives in Oslo.\nBruno owns a teal fox.\nBruno owns a teal fox.\nAda lives in Oslo.\n" + std::string(kHello) + "\n");
  EXPECT_NE(finished.err.find("there is no question yet"), std::string::npos) << finished.err;
}

TEST(ChatPipe, AnAnswerGoesOn) {
  const std::string path = scratch_path("document.txt");
  write_file(path, kText);
  const Finished cut =
      chat("Where does Ada live?\n/continue\n/continue Bruno o\nWhat animal does Bruno own?\n", {"--file", path, "--max-tokens", "3"});
  EXPECT_EQ(cut.code, 0) << cut.err;
  EXPECT_NE(cut.err.find("(/continue, or /set max-tokens N; 0: no limit)"), std::string::npos) << cut.err;
  std::string lines = cut.out;
  const size_t first = lines.find('\n'), second = lines.find('\n', first + 1), third = lines.find('\n', second + 1);
  const std::string one = lines.substr(0, first), two = lines.substr(first + 1, second - first - 1);
  EXPECT_FALSE(one.empty() || two.empty());
  EXPECT_EQ(std::string("Ada lives in Oslo.").find(one + two), 0u) << lines;
  EXPECT_EQ(lines.substr(second + 1, third - second - 1).find("Bruno o"), 0u) << lines;
  const Finished none = chat("/continue\n");
  EXPECT_NE(none.err.find("there is no question yet"), std::string::npos) << none.err;
}

TEST(ChatPipe, SaveAndLoadRoundTrip) {
  const std::string document = scratch_path("document.txt"), saved = scratch_path("chat.session");
  write_file(document, kText);
  const Finished first = chat("Where does Ada live?\n/save " + saved + "\nWhat animal does Bruno own?\n", {"--file", document});
  EXPECT_EQ(first.code, 0) << first.err;
  const Finished second = chat("/load " + saved + "\nWhat animal does Bruno own?\n/stats\n");
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, "Bruno owns a teal fox.\n");
  EXPECT_NE(second.err.find("loaded 2 messages"), std::string::npos) << second.err;
  EXPECT_EQ(second.err.find(" at 0/s"), std::string::npos) << second.err;  // no rate where nothing was computed
  // One message is not "1 messages", and a new session has no speed yet.
  const Finished one = chat("/stats\n/system Be kind.\n/save " + saved + "1\n/load " + saved + "1\n");
  EXPECT_NE(one.err.find("loaded 1 message, "), std::string::npos) << one.err;
  EXPECT_NE(one.err.find("0 tokens computed, 0 reused"), std::string::npos) << one.err;
  // The library's failure and the tool's own failure have one form.
  const std::string absent = saved + "-absent";
  for (const char* command : {"/load ", "/file "}) {
    const Finished failed = chat(command + absent + "\n");
    EXPECT_NE(failed.err.find(absent + ": cannot open: No such file or directory\n"), std::string::npos) << failed.err;
  }
  // A device is written through, with the same bytes.
  const Finished device = chat("Hello!\n/save /dev/null\n/save /dev/stdout\n", {"--file", document});
  EXPECT_EQ(device.code, 0) << device.err;
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_NE(device.out.find("ORRSESS1"), std::string::npos);
  // A damaged file is refused, and from a pipe that is the end.
  std::string bytes = read_whole(saved);
  ASSERT_GT(bytes.size(), 100u);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(saved, bytes);
  const Finished damaged = chat("/load " + saved + "\nHello!\n");
  EXPECT_EQ(damaged.code, 1) << damaged.err;
  EXPECT_EQ(damaged.out, "");
  EXPECT_EQ(damaged.err.find("loaded "), std::string::npos) << damaged.err;
}

// An adapter takes the place of the last one, and the conversation stays.
TEST(ChatPipe, LoraIsSwappedBetweenTurns) {
  const TempDir dir;
  const std::string file = dir.write("tone.gguf", demo_adapter());
  const Finished on = chat("/lora " + file + "\nWho are you?\n", {"--max-tokens", "8"});
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_NE(on.err.find("answers have the adapter " + file), std::string::npos) << on.err;
  EXPECT_EQ(on.out, chat("Who are you?\n", {"--lora", file, "--max-tokens", "8"}).out);
  EXPECT_NE(on.out.find(kWhoAreYou), 0u);
  const Finished off = chat("/lora " + file + "\nWho are you?\n/undo\n/lora -\nWho are you?\n", {"--lora", file, "--max-tokens", "40"});
  EXPECT_EQ(off.code, 0) << off.err;
  EXPECT_EQ(off.out.rfind(std::string(kWhoAreYou) + "\n"), off.out.size() - std::string(kWhoAreYou).size() - 1) << off.out;
  EXPECT_EQ(chat("/lora " + file + ":0\nWho are you?\n").out, std::string(kWhoAreYou) + "\n");
  EXPECT_NE(chat("/lora " + file + "x\n").err.find("tone.ggufx: cannot open"), std::string::npos);
  EXPECT_NE(chat("/lora :1\n").err.find("/lora: ':1' is not FILE or FILE:SCALE"), std::string::npos);
}

// With --load-behind the next answer is the same, and it finds what is damaged among the pages.
TEST(ChatPipe, LoadsBehind) {
  const std::string document = scratch_path("behind.txt"), saved = scratch_path("behind.session");
  write_file(document, kText);
  EXPECT_EQ(chat("Where does Ada live?\n/save " + saved + "\n", {"--file", document}).code, 0);
  const Finished behind = chat("/load " + saved + "\nWhat animal does Bruno own?\n", {"--load-behind"});
  EXPECT_EQ(behind.code, 0) << behind.err;
  EXPECT_EQ(behind.out, "Bruno owns a teal fox.\n");
  std::string bytes = read_whole(saved);
  bytes[bytes.size() - 1000] = static_cast<char>(bytes[bytes.size() - 1000] ^ 1);  // of the last page
  write_file(saved, bytes);
  const Finished damaged = chat("/load " + saved + "\nWhat animal does Bruno own?\n", {"--load-behind"});
  EXPECT_EQ(damaged.code, 1) << damaged.err;
  EXPECT_EQ(damaged.out, "");
  EXPECT_NE(damaged.err.find("loaded 2 messages"), std::string::npos) << damaged.err;
  EXPECT_NE(damaged.err.find(saved + ": byte "), std::string::npos) << damaged.err;
}

// The next conversation about the same document reads its KV cache, and its answer is the same.
TEST(ChatPipe, AFolderKeepsWhatConversationsBeginWith) {
  const std::string document = scratch_path("folder.txt"), folder = scratch_path("folder.d");
  std::string text = kText;
  for (int i = 0; i < 8; ++i) text += " Nobody in the mill noticed the orange owl.";
  write_file(document, text);
  const std::string question = "What animal does Bruno own?\n";
  const Finished computed = chat(question + "/stats\n", {"--file", document});
  EXPECT_EQ(computed.err.find("from the folder"), std::string::npos) << computed.err;
  const Finished first = chat("Where does Ada live?\n/stats\n", {"--file", document, "--folder", folder});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.err.find("from the folder"), std::string::npos) << first.err;
  const auto entries = [&] {
    size_t n = 0, bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) n += 1, bytes += entry.file_size();
    return std::make_pair(n, bytes);
  };
  EXPECT_EQ(entries().first, 1u);
  const size_t one = entries().second;
  const Finished second = chat(question + "/stats\n", {"--file", document, "--folder", folder});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, computed.out);
  EXPECT_NE(second.err.find(" of them from the folder"), std::string::npos) << second.err;
  // The budget, and its errors.
  EXPECT_EQ(chat("Hello!\n", {"--folder", folder, "--folder-bytes", std::to_string(one)}).code, 0);
  EXPECT_LE(entries().second, one);
  const Finished small = chat("Hello!\n", {"--folder", folder, "--folder-bytes", "1000"});
  EXPECT_EQ(small.code, 2) << small.err;
  EXPECT_NE(small.err.find("the folder may have 1000"), std::string::npos) << small.err;
  EXPECT_NE(chat("", {"--folder-bytes", "1000"}).err.find("--folder-bytes: needs --folder"), std::string::npos);
  EXPECT_NE(chat("", {"--folder", document}).err.find(document + ": cannot open the folder"), std::string::npos);
}

TEST(ChatPipe, SystemMessagesAndSlashes) {
  const Finished finished = chat(
      "/system\n/system You are a helpful assistant.\n/system\nWho are you?\n/system "
      "-\n/system\n/help\n//\n/quit\nHello!\n",
      {"--system", "Answer from the text only.", "--max-tokens", "40"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.compare(0, std::string(kWhoAreYou).size() + 1, std::string(kWhoAreYou) + "\n"), 0) << finished.out;
  EXPECT_EQ(finished.out.find(kHello), std::string::npos);  // after /quit nothing is read
  const size_t before = finished.err.find("Answer from the text only."), after = finished.err.find("You are a helpful assistant.");
  EXPECT_LT(before, after) << finished.err;
  EXPECT_NE(finished.err.find("no system message\n"), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("/rewind [N]"), std::string::npos);
  const Finished unknown = chat("/sav x\nHello!\n");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("did you mean /save?"), std::string::npos) << unknown.err;
  EXPECT_EQ(unknown.out, "");
  // Words of other programs are taken; words that are near none are not guessed at.
  for (const char* word : {"/regen", "/regenerate", "/retry"})
    EXPECT_NE(chat(std::string(word) + "\n").err.find("there is no question yet"), std::string::npos) << word;
  EXPECT_NE(chat("/clear\n").err.find("removed all messages"), std::string::npos);
  EXPECT_EQ(chat("/xyzzyq\n").err.find("did you mean"), std::string::npos);
  EXPECT_EQ(chat("/rewind none\n").code, 2);
  EXPECT_EQ(chat("/save\n").code, 2);
}

TEST(ChatPipe, AFullContextIsToldOrOldTurnsLeave) {
  std::string many;
  for (int i = 0; i < 40; ++i) many += "Hello!\n";
  const Finished full = run({"chat", demo_model(), "--context", "256", "--temperature", "0"}, [&] {
    RunOptions options;
    options.input = many;
    return options;
  }());
  EXPECT_TRUE(full.code == 4 || full.err.find("the context is full") != std::string::npos) << full.code << full.err;
  const Finished drop = run({"chat", demo_model(), "--context", "256", "--overflow", "drop-oldest", "--temperature", "0"}, [&] {
    RunOptions options;
    options.input = many;
    return options;
  }());
  EXPECT_EQ(drop.code, 0) << drop.err;
  std::string expected;
  for (int i = 0; i < 40; ++i) expected += std::string(kHello) + "\n";
  EXPECT_EQ(drop.out, expected);
}

TEST(ChatPipe, InputThatIsNoTextIsRefused) {
  const Finished finished = chat(std::string("Hel\0lo\n", 7));
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("NUL"), std::string::npos) << finished.err;
}

TEST(ChatPipe, CtrlCEndsAScript) {
  RunOptions options;
  options.input = "Who are you?\nHello!\n";
  options.interrupt_after_output = 0.05;
  const Finished finished = run({"chat", demo_model(), "--ignore-end", "--max-tokens", "0", "--temperature", "0"}, options);
  EXPECT_EQ(finished.code, 130) << finished.err;
  EXPECT_EQ(finished.out.compare(0, 10, kWhoAreYou, 10), 0);
}

TEST(ChatTerminal, PromptsAnswersAndLeavesOnCtrlD) {
  Terminal terminal(chat_words({"--no-history"}));
  ASSERT_TRUE(terminal.expect("/help lists commands")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Who are you?\n");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Thank me\x7f\x7fyou.\n");  // edited: rubbed out and typed again
  ASSERT_TRUE(terminal.expect("You are welcome.")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/stats\n");
  ASSERT_TRUE(terminal.expect("4 messages")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/hepl\n");
  ASSERT_TRUE(terminal.expect("did you mean /help?")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
}

TEST(ChatTerminal, CtrlCStopsTheAnswerAndKeepsTheConversation) {
  Terminal terminal({"chat", demo_model(), "--no-history", "--ignore-end", "--max-tokens", "0", "--temperature", "0"});
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Who are you?\n");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();  // and on it goes
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("(stopped)")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/stats\n");
  ASSERT_TRUE(terminal.expect("2 messages")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/undo\n");
  ASSERT_TRUE(terminal.expect("removed 1 turn")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Hello!\n");
  ASSERT_TRUE(terminal.expect(kHello)) << terminal.screen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("(stopped)")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  // At the prompt: once drops the line, twice leaves.
  terminal.type("half a qu");
  ASSERT_TRUE(terminal.expect("half a qu")) << terminal.screen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("(Ctrl-C again or Ctrl-D ends the program)")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(), 130) << terminal.screen();
}

TEST(ChatTerminal, CtrlCDuringTheReadingTakesTheQuestionBack) {
  const std::string path = scratch_path("long.txt");
  std::string text;
  while (text.size() < 60000) text += read_whole(demo_file("demo-document.txt")) + " ";
  write_file(path, text);
  Terminal terminal({"chat", demo_model(), "--no-history", "--file", path, "--cpu-path", "plain", "--threads", "1"});
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Where does Bruno live?\n");
  ASSERT_TRUE(terminal.expect("reading [")) << terminal.screen();  // the progress bar
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("(stopped)")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/stats\n");
  ASSERT_TRUE(terminal.expect("0 messages")) << terminal.screen();
  ASSERT_TRUE(terminal.expect("stopped while reading, after ")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  EXPECT_EQ(terminal.screen().find("first token after 0.00 s"), std::string::npos) << terminal.screen();
  terminal.type("/quit\n");
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
}

// A template whose rendering takes until its limit of steps, some tenths of a second.
std::string slow_template() {
  const std::string path = scratch_path("slow.jinja");
  write_file(path, "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{{ messages[0].content }}");
  return path;
}

TEST(ChatTerminal, CtrlCStopsARenderingAndTakesTheQuestionBack) {
  Terminal terminal(chat_words({"--no-history", "--template", slow_template()}));
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  // The keys may come before the rendering begins (then they drop the line), or, on a busy machine, behind it (then the
  // limit is told). Without cancelling it is always told.
  bool stopped = false;
  for (int attempt = 0; attempt < 20 && !stopped; ++attempt) {
    const size_t before = terminal.screen().size();
    terminal.type("Who are you?\n");
    ASSERT_TRUE(terminal.expect("Who are you?")) << terminal.screen();  // its line stands behind a "> " that is no new prompt
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * (attempt % 5 + 1)));
    terminal.type("\x03");
    ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
    stopped = terminal.screen().find("(stopped)", before) != std::string::npos;
  }
  EXPECT_TRUE(stopped) << terminal.screen();
  terminal.type("/stats\n");
  ASSERT_TRUE(terminal.expect("0 messages")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0);
}

TEST(ChatTerminal, CtrlCStopsReadingAPipe) {
  const std::string path = scratch_path("silent");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  Terminal terminal(chat_words({"--no-history"}));
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/file " + path + "\n");
  ASSERT_TRUE(terminal.expect(path)) << terminal.screen();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("(stopped)")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Hello!\n");
  ASSERT_TRUE(terminal.expect(kHello)) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0);
}

TEST(ChatTerminal, TypedLinesAreRememberedAcrossRuns) {
  const std::string history = scratch_path("state/deep/history");
  {
    Terminal terminal(chat_words({"--history", history}));
    ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
    terminal.type("Who are you?\n");
    ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
    ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
    terminal.type("\x04");
    EXPECT_EQ(terminal.finish(), 0);
  }
  Terminal terminal(chat_words({"--history", history}));
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x10\n");  // Ctrl-P: the line before
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0);
  EXPECT_EQ(read_whole(scratch_path("home") + "/.local/state/orrery/history"), "");
}

TEST(ChatTerminal, AFailedTurnIsToldAndTheConversationGoesOn) {
  const std::string path = scratch_path("long.txt");
  write_file(path, read_whole(demo_file("demo-document.txt")));
  Terminal terminal(chat_words({"--no-history"}));
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/file " + path + "\n");
  ASSERT_TRUE(terminal.expect("tokens before the next question")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Where does Bruno live?\n");  // 5,000 tokens do not go into 2,048
  ASSERT_TRUE(terminal.expect("orrery: ")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/reset\n");
  ASSERT_TRUE(terminal.expect("removed all messages")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Who are you?\n");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0);
}

TEST(ChatTerminal, WordsOfAFileCannotDriveTheTerminal) {
  // The demo model under a name that would turn the terminal red.
  const std::string path = scratch_path("escape.gguf");
  std::string bytes = read_whole(demo_model());
  const size_t name = bytes.find("Orrery demo");
  ASSERT_NE(name, std::string::npos);
  bytes.replace(name, 11, "Orre\x1b[31mry");
  write_file(path, bytes);
  EXPECT_NE(run({"inspect", path}).out.find("Orre\x1b[31mry"),
            std::string::npos);  // a pipe gets what is there
  Terminal inspected({"inspect", path});
  EXPECT_EQ(inspected.finish(), 0);
  EXPECT_EQ(inspected.screen().find('\x1b'), std::string::npos);
  EXPECT_NE(inspected.screen().find("Orre\xEF\xBF\xBD[31mry"), std::string::npos) << inspected.screen();
  Terminal greeting({"chat", path, "--no-history"});
  ASSERT_TRUE(greeting.expect("Orre\xEF\xBF\xBD[31mry, context")) << greeting.screen();
}

TEST(FormSample, PrintsJsonThatFits) {
  const std::string program = program_path("ORRERY_FORM_SAMPLE", ORRERY_FORM_SAMPLE);
  const Finished finished = run_program(program, {demo_model(), "Bruno lives in Salem. Orla is a printer. Where does Bruno live?"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.substr(0, 10), "{\"name\": \"") << finished.out;
  EXPECT_EQ(run_program(program, {}).code, 2);
  EXPECT_EQ(run_program(program, {scratch_path("missing.gguf"), "text"}).code, 1);
}

// A template that prints calls; the demo model has learnt none, but the grammar holds it to the format.
std::string calling_template() {
  const std::string path = scratch_path("calling.jinja");
  write_file(
      path,
      "{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- for c in m.tool_calls or [] -%}"
      "{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}"
      "{{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}");
  return path;
}

TEST(ToolsSample, TheModelCallsFunctionsOfTheProgram) {
  const std::string program = program_path("ORRERY_TOOLS_SAMPLE", ORRERY_TOOLS_SAMPLE);
  const Finished finished = run_program(program, {demo_model(), "What is 17 times 23?", calling_template()});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.substr(0, 1), "[") << finished.out;
  EXPECT_NE(finished.out.find(" = "), std::string::npos) << finished.out;
  EXPECT_EQ(run_program(program, {}).code, 2);
  EXPECT_EQ(run_program(program, {scratch_path("missing.gguf"), "text"}).code, 1);
}

TEST(Chat, CallsWaitForTheirResults) {
  const std::string tools = scratch_path("tools.json");
  write_file(
      tools,
      R"([{"name": "town_of", "parameters": {"type": "object", "properties": {"who": {"enum": ["Ada", "Bruno"]}}, "required": ["who"]}}])");
  RunOptions options;
  options.input = "Where does Ada live?\nOslo\n/tools -\nAnd now?\n";
  const Finished finished = run({"chat", demo_model(), "--temperature", "0", "--template", calling_template(), "--tools", tools,
                                 "--tool-choice", "town_of", "--one-call", "--max-tokens", "60"},
                                options);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.err.find("call town_of({\"who\": \""), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("type its result"), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("the model has no tools"), std::string::npos) << finished.err;
}

TEST(ChatSample, AnswersStopsAndReportsErrors) {
  const std::string program = program_path("ORRERY_CHAT_SAMPLE", ORRERY_CHAT_SAMPLE);
  RunOptions options;
  options.input = "Who are you?\n";
  const Finished finished = run_program(program, {demo_model()}, options);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, std::string(kWhoAreYou) + "\n");
  const Finished missing = run_program(program, {scratch_path("missing.gguf")});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("ORRERY_IO"), std::string::npos) << missing.err;
  EXPECT_EQ(run_program(program, {}).code, 2);

  Terminal terminal({demo_model()}, program);
  ASSERT_TRUE(terminal.expect("> ")) << terminal.screen();
  terminal.type("Who are you?\n");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  ASSERT_TRUE(terminal.expect("> ")) << terminal.screen();
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(), 128 + 2) << terminal.screen();
}

}  // namespace
}  // namespace orrery::testing
