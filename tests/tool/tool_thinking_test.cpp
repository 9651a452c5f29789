// Thinking and answer told apart, with the text cut at every place, and shown in each of the four ways.
#include <gtest/gtest.h>

#include "samples/orrery/system/files.h"
#include "samples/orrery/terminal/output.h"
#include "samples/orrery/thinking.h"
#include "tests/support/temp_dir.h"

namespace orrery::tool {
namespace {

using Piece = ThinkingSplitter::Piece;

// "answer|", "(thoughts)", "<" and ">" for the markers.
std::string split(const std::vector<std::string>& texts, bool inside) {
  ThinkingSplitter splitter(inside);
  std::string answer, thoughts;
  std::string markers;
  const auto take = [&](const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      if (piece.kind == Piece::answer) answer += piece.text;
      if (piece.kind == Piece::thinking) thoughts += piece.text;
      if (piece.kind == Piece::opened) markers += "<";
      if (piece.kind == Piece::closed) markers += ">";
    }
  };
  for (const std::string& text : texts) take(splitter.feed(text));
  take(splitter.end());
  return markers + "(" + thoughts + ")" + answer;
}

TEST(Thinking, IsToldApartWhereverTheTextIsCut) {
  const struct {
    const char *text, *expected;
    bool inside;
  } kTable[] = {{"plain", "()plain", false},
                {"", "()", false},
                {"  \n ", "()  \n ", false},
                {"<think>ab</think>cd", "<>(ab)cd", false},
                {"\n<think>\nab < c </thin k></think>\n\ncd", "<>(\nab < c </thin k>)\n\ncd", false},
                {"[THINK]ab[/THINK]cd", "<>(ab)cd", false},
                {"<think>ab</thinking>c</think>d", "<>(ab</thinking>c)d", false},
                {"<thinking>ab</think>c</thinking>d", "<>(ab</think>c)d", false},
                {"<think>never closed", "<(never closed)", false},
                {"<think>closed in part</thi", "<(closed in part</thi)", false},
                {"<thi", "()<thi", false},
                {"<thin>x", "()<thin>x", false},
                {"about <think>tags</think>", "()about <think>tags</think>", false},     // only at the beginning
                {"<think>a</think>b<think>c</think>", "<>(a)b<think>c</think>", false},  // and only once
                {"ab</think>cd", "()ab</think>cd", false},
                {"ab</think>cd", ">(ab)cd", true},  // the prompt opened it
                {"ab[/THINK]cd", ">(ab)cd", true},
                {"ab", "(ab)", true}};
  for (const auto& row : kTable) {
    const std::string text = row.text;
    for (size_t cut = 0; cut <= text.size(); ++cut)
      EXPECT_EQ(split({text.substr(0, cut), text.substr(cut)}, row.inside), row.expected) << text << " cut at " << cut;
    std::vector<std::string> letters;
    for (const char c : text) letters.emplace_back(1, c);
    EXPECT_EQ(split(letters, row.inside), row.expected) << text;
  }
}

TEST(Thinking, APromptMayOpenIt) {
  EXPECT_TRUE(opens_thinking("<|im_start|>assistant\n<think>\n"));
  EXPECT_TRUE(opens_thinking("[THINK]"));
  EXPECT_FALSE(opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(opens_thinking("<|im_start|>assistant\n"));
  EXPECT_FALSE(opens_thinking(""));
}

// What an Output on a file receives.
std::string written(Thinking thinking, bool color, bool live, const std::string& text, bool inside = false) {
  const testing::TempDir folder;
  const int fd = open_file(folder.file("written"), Access::append);
  EXPECT_GE(fd, 0);
  {
    Output out(fd);
    AnswerWriter writer(out, thinking, Style{color}, inside, live);
    for (const char c : text) writer.text(std::string_view(&c, 1));
    writer.end();
  }
  close_file(fd);
  std::string all = read_file(folder.file("written"));
  // However long it took.
  const size_t from = all.find("(thought for "), to = all.find(" s, ");
  if (from != std::string::npos && to != std::string::npos) all.replace(from, to - from, "(thought for T");
  return all;
}

TEST(Thinking, IsShownAsWished) {
  const std::string text = "<think>\nTwo and two.\nEasy.\n</think>\n\nFour.", empty = "<think>\n\n</think>\n\nFour.";
  EXPECT_EQ(written(Thinking::show, true, true, text), text);
  EXPECT_EQ(written(Thinking::dim, true, true, text), "\x1b[2mTwo and two.\nEasy.\x1b[0m\n\nFour.");
  EXPECT_EQ(written(Thinking::dim, false, false, text), "Two and two.\nEasy.\n\nFour.");
  EXPECT_EQ(written(Thinking::hide, true, true, text), "Four.");
  EXPECT_EQ(written(Thinking::fold, false, false, text), "(thought for T s, 4 words)\nFour.");
  EXPECT_EQ(written(Thinking::fold, true, true, text),
            "\r\x1b[2m(thinking, 0 words)\x1b[0m\x1b[K\r\x1b[2m(thought for T s, 4 words)\x1b[0m\x1b[K\nFour.");
  for (const Thinking thinking : {Thinking::dim, Thinking::fold, Thinking::hide}) {
    EXPECT_EQ(written(thinking, false, false, empty), "Four.");          // a model that was asked not to think
    EXPECT_EQ(written(thinking, false, false, "\n Four."), "\n Four.");  // no thinking: every byte
  }
  EXPECT_EQ(written(Thinking::hide, true, true, "never closed", true), "");
  EXPECT_EQ(written(Thinking::dim, true, true, "never closed", true), "\x1b[2mnever closed\x1b[0m\n\n");  // and the colour ends
}

}  // namespace
}  // namespace orrery::tool
