// The chat as a person types into it, on a pseudo-terminal: pastes, keys pressed during an answer, limits, settings, thinking,
// colour, the window's size. A pipe gets none of it: no prompt, no colour, no escape code.
#include <gtest/gtest.h>

#include <cstring>

#include "program.h"
#include "screen.h"

namespace orrery::testing {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kWhoAreYou = "I am the Orrery demo model. I answer questions about the text that you give me.";
constexpr const char *kPaste = "\x1b[200~", *kPasteEnd = "\x1b[201~";

Words with(const Words& more) {
  Words words = {"chat", demo_model(), "--context", "2k", "--temperature", "0", "--no-history"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// An answer that goes on until somebody stops it.
Words endless() { return {"chat", demo_model(), "--temperature", "0", "--no-history", "--ignore-end", "--max-tokens", "0"}; }

Finished chat(const std::string& input, const Words& more = {}) {
  RunOptions options;
  options.input = input;
  return run(with(more), options);
}

TEST(Typing, FourPastedLinesAreOneMessage) {
  Terminal terminal(with({}));
  ASSERT_TRUE(terminal.expect("\x1b[?2004h")) << terminal.screen();  // pastes are asked for in brackets
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type(std::string(kPaste) +
                "On Sunday there was snow over the cellar. Ada lives in Oslo.\rThe grass is green. "
                "Bruno owns a teal fox.\r\rWhere does Ada live?" +
                kPasteEnd);
  ASSERT_TRUE(terminal.expect("Where does Ada live?")) << terminal.screen();
  EXPECT_EQ(terminal.screen().find("\r\nAda lives"), std::string::npos);  // nothing is answered before Enter
  terminal.type("\r");
  ASSERT_TRUE(terminal.expect("\r\nAda lives in Oslo.\r\n")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/stats\r");
  ASSERT_TRUE(terminal.expect("2 messages")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
  EXPECT_NE(terminal.screen().rfind("\x1b[?2004l"), std::string::npos);  // and as it was
}

TEST(Typing, AHostilePasteCommandsNothing) {
  Terminal terminal(with({}));
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type(std::string(kPaste) +
                "a\x03"
                "b\x04\r/quit\r\x1b[2Jc\x07\x1a" +
                kPasteEnd);
  ASSERT_TRUE(terminal.expect("^[[2Jc^G^Z")) << terminal.screen();
  EXPECT_EQ(terminal.screen().find("\x1b[2J"), std::string::npos);
  terminal.type("\x03");  // dropped
  ASSERT_TRUE(terminal.expect("(Ctrl-C again or Ctrl-D ends the program)")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Who are you?\r");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("exit\r");
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
}

TEST(Typing, ALongPasteIsOneMessage) {
  Terminal terminal(with({}));
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "Line " + std::to_string(i) + " says little.\r";
  terminal.type(kPaste + text + "the end" + kPasteEnd);
  ASSERT_TRUE(terminal.expect("the end")) << terminal.screen();
  terminal.type("\r");
  ASSERT_TRUE(terminal.expect("orrery: ")) << terminal.screen();  // far more than 2,048 tokens, told in one line
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/stats\r");
  ASSERT_TRUE(terminal.expect("0 messages")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0);
}

TEST(Typing, KeysPressedDuringAnAnswerBeginTheNextMessage) {
  Terminal terminal(endless());
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Who are you?\r");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  const size_t begun = terminal.screen().size();
  terminal.type("/statz\x7f");
  terminal.read_for(0.5);  // the answer goes on all the while
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("(stopped)")) << terminal.screen();
  EXPECT_EQ(terminal.screen().substr(begun, terminal.screen().rfind("(stopped)") - begun).find("/sta"), std::string::npos)
      << terminal.screen();
  ASSERT_TRUE(terminal.expect("/stat")) << terminal.screen();  // shown behind the prompt
  terminal.type("s\r");
  ASSERT_TRUE(terminal.expect("2 messages")) << terminal.screen();
  // A whole line and an end, both ahead.
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/set max-tokens 20\rWho are you?\r/stats\r\x04");
  ASSERT_TRUE(terminal.expect("cut at 20 tokens")) << terminal.screen();
  ASSERT_TRUE(terminal.expect("4 messages")) << terminal.screen();
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
}

TEST(Typing, CtrlCTwiceDuringAnAnswerLeaves) {
  Terminal terminal(endless());
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Who are you?\r");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("(stopped)")) << terminal.screen();
  terminal.type("\x03");
  EXPECT_EQ(terminal.finish(), 130) << terminal.screen();
  EXPECT_NE(terminal.screen().rfind("\x1b[?2004l"), std::string::npos);
}

TEST(Typing, AResizeBreaksTheLinesAgain) {
  Terminal terminal(with({}));
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("one two three four five six seven eight nine ten eleven twelve");
  ASSERT_TRUE(terminal.expect("twelve")) << terminal.screen();
  terminal.quiet();
  Screen screen(100, 24);
  screen.feed(terminal.screen());
  EXPECT_EQ(screen.rows().back(), "> one two three four five six seven eight nine ten eleven twelve");
  const size_t fed = terminal.screen().size();
  screen.resize(40, 24);
  terminal.resize(40, 24);
  terminal.quiet();
  terminal.type("!");
  ASSERT_TRUE(terminal.expect("twelve!")) << terminal.screen();
  terminal.quiet();
  screen.feed(terminal.screen().substr(fed));
  const Words rows = screen.rows();
  ASSERT_GE(rows.size(), 2u);
  EXPECT_EQ(rows[rows.size() - 2], "> one two three four five six seven eigh");
  EXPECT_EQ(rows[rows.size() - 1], "t nine ten eleven twelve!");
  EXPECT_FALSE(screen.unknown());
  size_t prompts = 0;
  for (const std::string& row : rows) prompts += row.compare(0, 2, "> ") == 0;
  EXPECT_EQ(prompts, 1u);  // no remains of the old picture
  terminal.type("\x15\x04");
  EXPECT_EQ(terminal.finish(), 0);
}

TEST(Typing, AMessageOfManyLinesComesBackFromTheHistory) {
  const std::string history = scratch_path("lines");
  const Words words = {"chat", demo_model(), "--temperature", "0", "--history", history};
  {
    Terminal terminal(words);
    ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
    terminal.type("/set\x1b\rWho are you?\x01\x1b[A\x04\x04\x04\x04\x04\r");  // two lines; the first is taken away again
    ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
    ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
    terminal.type("Who are\x1b\ryou?\r");
    ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
    ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
    terminal.type("\x04");
    EXPECT_EQ(terminal.finish(), 0);
  }
  EXPECT_EQ(read_whole(history), "_HiStOrY_V2_\nWho\\040are\\040you?\nWho\\040are\\012you?\n");
  Terminal terminal(words);
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("\x1b[A");
  ASSERT_TRUE(terminal.expect(". you?")) << terminal.screen();
  terminal.type("\r");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/stats\r");
  ASSERT_TRUE(terminal.expect("2 messages")) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0);
}

TEST(Settings, AreListedShownAndSet) {
  const Finished all = chat("/set\n/set temperature\n/set temperature 0.8\n/set top_k=40\n/set stop END\n/set system Be kind.\n/set\n");
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.out, "");
  for (const char* line :
       {"  max-tokens         1024 ", "  temperature        0 ", "  temperature        0.8 ", "  top-k              40 ",
        "  top-p              0.95 ", "  seed               0 ", "  stop               \"END\" ", "  thinking           show ",
        "  system             Be kind. ", "temperature: 0.8\n", "  ignore-end         off "})
    EXPECT_NE(all.err.find(line), std::string::npos) << line << "\n" << all.err;
  const struct {
    const char *line, *words;
  } kRefused[] = {{"/set temperature hot", "temperature: 'hot' is not a number from 0 to 100"},
                  {"/set temperature -1", "temperature: '-1' is not"},
                  {"/set max-tokens 1x", "max-tokens: '1x' is not a number of tokens from 0 to 4294967295"},
                  {"/set thinking loud", "thinking: 'loud' is none of show, dim, fold or hide"},
                  {"/set ignore-end 2", "ignore-end: '2' is none of off or on"},
                  {"/set temprature 1", "did you mean temperature?"},
                  {"/set context 4k", "context is fixed while a conversation lasts: start again with --context"},
                  {"/set xyzzyplugh 4", "there is no setting 'xyzzyplugh' (/set lists the settings)"}};
  for (const auto& row : kRefused) {
    const Finished refused = chat(std::string(row.line) + "\n");
    EXPECT_EQ(refused.code, 2) << row.line;
    EXPECT_NE(refused.err.find(row.words), std::string::npos) << refused.err;
    EXPECT_EQ(refused.err.find('\n'), refused.err.size() - 1) << refused.err;  // one line, one "orrery: "
    EXPECT_EQ(refused.err.find("orrery: ", 1), std::string::npos) << refused.err;
  }
}

TEST(Settings, AnAnswerCutByALimitSaysSo) {
  const Finished cut = chat("/set max-tokens 3\nWho are you?\n");
  EXPECT_EQ(cut.code, 0);
  EXPECT_NE(cut.err.find("the answer was cut at 3 tokens (/continue, or /set max-tokens N; 0: no limit)"), std::string::npos) << cut.err;
  EXPECT_EQ(chat("Who are you?\n").err, "");
}

// The demo model with keys in front of its others: sampling recommendations as llama.cpp writes them.
std::string model_with_sampling() {
  const std::string path = scratch_path("sampling.gguf"), bytes = read_whole(demo_model());
  const auto number = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto text = [&](const std::string& words) { return number(uint64_t{words.size()}) + words; };
  std::string keys = text("general.sampling.temp") + number(uint32_t{6}) + number(0.625f) + text("general.sampling.top_k") +
                     number(uint32_t{5}) + number(int32_t{17}) + text("general.sampling.top_p") + number(uint32_t{6}) + number(7.f);
  const std::string filler = text("general.filler") + number(uint32_t{8});
  size_t blanks = 0;  // the tensors stay aligned to 32 bytes
  while ((keys.size() + filler.size() + 8 + blanks) % 32 != 0) ++blanks;
  keys += filler + text(std::string(blanks, ' '));
  uint64_t n_keys;
  std::memcpy(&n_keys, bytes.data() + 16, 8);
  write_file(path, bytes.substr(0, 16) + number(n_keys + 4) + keys + bytes.substr(24));
  return path;
}

TEST(Settings, ChatSamplesAsTheModelSaysElseAsChatC) {
  RunOptions options;
  options.input = "/set\n";
  const Finished plain = run({"chat", demo_model()}, options);
  for (const char* line :
       {"  max-tokens         1024 ", "  temperature        0.7 ", "  top-k              0 ", "  top-p              0.95 "})
    EXPECT_NE(plain.err.find(line), std::string::npos) << line << "\n" << plain.err;
  const std::string model = model_with_sampling();
  const Finished named = run({"chat", model}, options);
  EXPECT_EQ(named.code, 0) << named.err;
  // top-p 7 is out of range, so it counts as not named.
  for (const char* line :
       {"  max-tokens         1024 ", "  temperature        0.625 ", "  top-k              17 ", "  top-p              0.95 "})
    EXPECT_NE(named.err.find(line), std::string::npos) << line << "\n" << named.err;
  const Finished given = run({"chat", model, "--temperature", "0.5"}, options);
  EXPECT_NE(given.err.find("  temperature        0.5 "), std::string::npos) << given.err;
  EXPECT_NE(given.err.find("  top-k              17 "), std::string::npos) << given.err;
}

TEST(Words, ExitHelpAndQuestionMark) {
  for (const char* word : {"exit", "quit", " exit ", "/exit", "/quit", "/q", "/bye"}) {
    Terminal terminal(with({}));
    ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
    terminal.type(std::string(word) + "\r");
    EXPECT_EQ(terminal.finish(), 0) << word << terminal.screen();
  }
  Terminal terminal(with({}));
  for (const char* word : {"help", "/?", "/h"}) {
    ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
    terminal.type(std::string(word) + "\r");
    ASSERT_TRUE(terminal.expect("/rewind [N]")) << word << terminal.screen();
  }
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("/statz\r");
  ASSERT_TRUE(terminal.expect("unknown command /statz; did you mean /stats? (/help lists the commands)")) << terminal.screen();
  // From a pipe they are questions.
  const Finished piped = chat("help\nWho are you?\n");
  EXPECT_EQ(piped.err.find("/rewind"), std::string::npos);
  EXPECT_NE(piped.out.find(kWhoAreYou), std::string::npos);
}

TEST(Words, ChatWithoutAModelUsesTheBundledOneAndSaysSo) {
  RunOptions options;
  options.input = "Who are you?\n";
  const Finished finished = run({"chat", "--temperature", "0"}, options);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, std::string(kWhoAreYou) + "\n");
  EXPECT_EQ(finished.err.compare(0, 54, "orrery: no model is named: this is the bundled demo mo"), 0) << finished.err;
  EXPECT_EQ(finished.err.find('\n'), finished.err.size() - 1) << finished.err;
}

// A template whose prompt begins the model's thinking, so that the whole answer is thinking.
Words thinking(const std::string& how) {
  const std::string path = scratch_path("thinking.jinja");
  write_file(path, "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}");
  Words words = {"--template", path, "--max-tokens", "12"};
  if (!how.empty()) words.insert(words.end(), {"--thinking", how});
  return words;
}

TEST(Thinking, IsFaintOnATerminalAndUnchangedOnAPipe) {
  const std::string shown = chat("Hello!\n", thinking("")).out;
  EXPECT_EQ(shown.find('\x1b'), std::string::npos);
  ASSERT_GT(shown.size(), 4u);
  EXPECT_EQ(chat("Hello!\n", thinking("show")).out, shown);
  EXPECT_EQ(chat("Hello!\n", thinking("hide")).out, "\n");
  EXPECT_NE(chat("Hello!\n", thinking("fold")).out.find("(thought for "), std::string::npos);
  Words colored = thinking("dim");
  colored.insert(colored.end(), {"--color", "always"});
  EXPECT_EQ(chat("Hello!\n", colored).out.compare(0, 4, "\x1b[2m"), 0);
  EXPECT_EQ(chat("Hello!\n", thinking("dim")).out.find('\x1b'), std::string::npos);

  Terminal terminal(with(thinking("")));
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  terminal.type("Hello!\r");
  ASSERT_TRUE(terminal.expect("cut at 12 tokens")) << terminal.screen();
  ASSERT_TRUE(terminal.expect_prompt()) << terminal.screen();
  Screen screen(100, 24);
  screen.feed(terminal.screen());
  std::string first = shown.substr(shown.find_first_not_of(" \n"));
  first.resize(first.find('\n'));
  EXPECT_NE(screen.faint().find(first), std::string::npos) << screen.faint() << " lacks " << first;
  terminal.type("/set thinking fold\rHello!\r");
  ASSERT_TRUE(terminal.expect("(thought for ")) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0);
}

TEST(Color, IsForTerminalsThatWantIt) {
  const auto seen = [](const Words& more, const Words& environment) {
    Terminal terminal(with(more), "", environment);
    EXPECT_TRUE(terminal.expect("> ")) << terminal.screen();
    terminal.type("Who are you?\n");
    EXPECT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
    EXPECT_TRUE(terminal.expect("> ")) << terminal.screen();
    terminal.type("\x04");
    EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
    return terminal.screen();
  };
  const auto has_color = [](const std::string& screen) {
    return screen.find("\x1b[1m") != std::string::npos || screen.find("\x1b[2m") != std::string::npos;
  };
  EXPECT_TRUE(has_color(seen({}, {})));
  EXPECT_FALSE(has_color(seen({}, {"NO_COLOR=1"})));
  EXPECT_TRUE(has_color(seen({}, {"NO_COLOR="})));
  EXPECT_FALSE(has_color(seen({"--color", "never"}, {})));
  EXPECT_TRUE(has_color(seen({"--color", "always"}, {"NO_COLOR=1"})));
  EXPECT_EQ(seen({}, {"TERM=dumb"}).find('\x1b'), std::string::npos);
  EXPECT_EQ(run({"chat", demo_model(), "--color", "sometimes"}).code, 2);
}

TEST(Typing, ATerminalWithoutEscapeCodesShowsNoKeysInAnAnswerEither) {
  Terminal terminal(endless(), "", {"TERM=dumb"});
  ASSERT_TRUE(terminal.expect("> ")) << terminal.screen();
  terminal.type("Who are you?\n");
  ASSERT_TRUE(terminal.expect(kWhoAreYou)) << terminal.screen();
  terminal.type("/stats\n");
  terminal.read_for(0.5);
  EXPECT_EQ(terminal.screen().find("/stats"), std::string::npos);
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("(stopped)")) << terminal.screen();
  terminal.quiet();
  terminal.type("/stats\n");
  ASSERT_TRUE(terminal.expect("2 messages")) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.finish(), 0) << terminal.screen();
}

TEST(Pipe, GetsNoEscapeCodes) {
  const Finished finished = chat("Who are you?\n/set thinking dim\n/help\nHello!\n");
  EXPECT_EQ(finished.code, 0);
  EXPECT_EQ((finished.out + finished.err).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace orrery::testing
