// Typing a message: bytes to keys, keys to a message, a message to a picture. The picture is checked on a small terminal
// (screen.h): at the window's edge, with wide characters, taller than the window, and after a resize.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "samples/orrery/terminal/characters.h"
#include "samples/orrery/terminal/history.h"
#include "samples/orrery/terminal/keys.h"
#include "samples/orrery/terminal/line_editor.h"
#include "screen.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

using tool::Frame;
using tool::FramePainter;
using tool::Key;
using tool::KeyDecoder;
using tool::LineEditor;
using Words = std::vector<std::string>;

// One letter for each key, and the text of text and paste.
std::string shown(const std::vector<Key>& keys) {
  std::string all;
  for (const Key& key : keys) {
    if (key.kind == Key::text) {
      all += key.content;
    } else if (key.kind == Key::paste) {
      all += "{" + key.content + "}";
    } else {
      static constexpr std::pair<Key::Kind, const char*> kNames[] = {{Key::enter, "E"},
                                                                     {Key::newline, "N"},
                                                                     {Key::tab, "T"},
                                                                     {Key::backspace, "B"},
                                                                     {Key::erase, "X"},
                                                                     {Key::end_or_erase, "D"},
                                                                     {Key::left, "l"},
                                                                     {Key::right, "r"},
                                                                     {Key::up, "u"},
                                                                     {Key::down, "d"},
                                                                     {Key::word_left, "L"},
                                                                     {Key::word_right, "R"},
                                                                     {Key::line_start, "h"},
                                                                     {Key::line_end, "e"},
                                                                     {Key::history_back, "p"},
                                                                     {Key::history_forward, "n"},
                                                                     {Key::erase_word, "w"},
                                                                     {Key::erase_next_word, "v"},
                                                                     {Key::erase_to_start, "s"},
                                                                     {Key::erase_to_end, "k"},
                                                                     {Key::clear_screen, "c"},
                                                                     {Key::interrupt, "C"},
                                                                     {Key::suspend, "Z"},
                                                                     {Key::unknown, "?"}};
      for (const auto& [kind, name] : kNames) {
        if (kind == key.kind) all += std::string("<") + name + ">";
      }
    }
  }
  return all;
}

std::string decoded(const Words& pieces) {
  KeyDecoder decoder;
  std::vector<Key> keys;
  for (const std::string& piece : pieces) decoder.feed(piece, &keys);
  // A paste may come in pieces; the pieces stand side by side.
  std::string all = shown(keys);
  for (size_t at; (at = all.find("}{")) != std::string::npos;) all.erase(at, 2);
  return all;
}

TEST(Keys, AreKnownWhereverTheirBytesAreCut) {
  const struct {
    std::string bytes, expected;
  } kTable[] = {{"abc\r", "abc<E>"},
                {"a\nb", "a<E>b"},
                {"\x1b[A\x1b[B\x1b[C\x1b[D\x1bOA\x1bOD", "<u><d><r><l><u><l>"},
                {"\x1b[1;5C\x1b[1;5D\x1b[1;3C\x1b\x62\x1b\x66\x1b\x64\x1b\x7f", "<R><L><R><L><R><v><w>"},
                {"\x1b[H\x1b[F\x1b[1~\x1b[4~\x1b[3~\x1b[7~\x1b[8~\x1bOH\x1bOF", "<h><e><h><e><X><h><e><h><e>"},
                {"\x01\x05\x02\x06\x10\x0e\x17\x15\x0b\x0c\x04\x03\x1a\x09\x7f\x08", "<h><e><l><r><p><n><w><s><k><c><D><C><Z><T><B><B>"},
                {"\x1b\r\x1b\n", "<N><N>"},
                {"\x1b[200~a\nb\rc\r\nd\x1b[201~\r", "{a\nb\nc\nd}<E>"},
                {"\x1b[200~\x1b[201~x", "x"},
                {std::string("\x1b[200~a\0b\x03\x04\x1b[A\x1b[31m\x7f\x1b[201~", 26),
                 "{a\xEF\xBF\xBD"
                 "b\x03\x04\x1b[A\x1b[31m\x7f}"},
                {"\x1b[200~a\x1b[200~b\x1b[201~c", "{a\x1b[200~b}c"},
                {"\x1b[200~\x1b[20\x1b[201\x1b[201~", "{\x1b[20\x1b[201}"},
                {"\x1b[200~\xC3\xA4\xFF\xE2\x82\x1b[201~", "{\xC3\xA4\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD}"},
                {"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"},
                {"\xFFx\xC3(\xED\xA0\x80", "\xEF\xBF\xBDx\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
                {"\x1b[99;99X\x1b[>1u\x1bz\x1d", "<?><?><?><?>"},
                {"\x1b\x03", "<?><C>"},
                {"\x1b[1\x03", "<?><C>"},
                {std::string("\x1b[") + std::string(200, '1') + "m", "<?>" + std::string(137, '1') + "m"}};
  for (const auto& row : kTable) {
    for (size_t cut = 0; cut <= row.bytes.size(); ++cut)
      EXPECT_EQ(decoded({row.bytes.substr(0, cut), row.bytes.substr(cut)}), row.expected) << "cut at " << cut;
    Words letters;
    for (const char c : row.bytes) letters.emplace_back(1, c);
    EXPECT_EQ(decoded(letters), row.expected);
  }
}

TEST(Keys, ALoneEscapeAndAPasteWithoutEndDoNotHoldTheKeyboard) {
  KeyDecoder decoder;
  std::vector<Key> keys;
  decoder.feed("\x1b", &keys);
  EXPECT_TRUE(decoder.waiting());
  decoder.rest(&keys);
  decoder.feed("[A", &keys);
  EXPECT_EQ(shown(keys), "<?>[A");
  EXPECT_FALSE(decoder.waiting());
  keys.clear();
  decoder.feed("\x1b[200~ab\xE2\x82", &keys);
  EXPECT_EQ(shown(keys), "");
  decoder.rest(&keys);
  EXPECT_EQ(shown(keys), "{ab}");    // shown, though not at its end
  decoder.feed("\xAC\x03z", &keys);  // pasted, as it comes with more
  decoder.rest(&keys);
  EXPECT_EQ(shown(keys), "{ab}{\xE2\x82\xAC\x03z}");
  decoder.feed("\x03", &keys);
  decoder.feed("x\r", &keys);
  EXPECT_EQ(shown(keys), "{ab}{\xE2\x82\xAC\x03z}<C>x<E>");
}

TEST(Keys, AHugePasteIsCutAndEnds) {
  KeyDecoder decoder;
  std::vector<Key> keys;
  decoder.feed("\x1b[200~", &keys);
  const std::string block(1 << 20, 'x');
  for (int i = 0; i < 12; ++i) decoder.feed(block, &keys);
  decoder.feed("\x1b[201~y", &keys);
  size_t pasted = 0;
  for (const Key& key : keys) pasted += key.kind == Key::paste ? key.content.size() : 0;
  EXPECT_EQ(pasted, KeyDecoder::kLargestPaste);
  EXPECT_EQ(keys.back().content, "y");
}

// Presses what the bytes mean; the last key's outcome.
LineEditor::Did press(LineEditor& editor, const std::string& bytes) {
  KeyDecoder decoder;
  std::vector<Key> keys;
  decoder.feed(bytes, &keys);
  LineEditor::Did did = LineEditor::Did::edited;
  for (const Key& key : keys) did = editor.press(key);
  return did;
}

std::string typed(const std::string& bytes, LineEditor::Did expected = LineEditor::Did::submitted) {
  LineEditor editor({"/save", "/set", "/stats", "/help"});
  editor.set_history({"first", "second\nof two"});
  editor.begin();
  EXPECT_EQ(press(editor, bytes), expected) << bytes;
  return editor.message();
}

TEST(Editor, Edits) {
  EXPECT_EQ(typed("hello\r"), "hello");
  EXPECT_EQ(typed("helo\x1b[Dl\r"), "hello");
  EXPECT_EQ(typed("ello\x01h\x05!\r"), "hello!");
  EXPECT_EQ(typed("one two three\x17\x17six\r"), "one six");
  EXPECT_EQ(typed("one two\x1b"
                  "b\x0b"
                  "2\r"),
            "one 2");
  EXPECT_EQ(typed("one two\x15zero\r"), "zero");
  EXPECT_EQ(typed("abc\x01\x1b[3~\x04\r"), "c");
  EXPECT_EQ(typed("", LineEditor::Did::edited), "");
  EXPECT_EQ(typed("\x04", LineEditor::Did::ended), "");
  EXPECT_EQ(typed("x\x04", LineEditor::Did::edited), "x");
  EXPECT_EQ(typed("\x7f\x1b[D\x1b[C\x1b[3~\x17\r"), "");
  // Whole characters: a two-byte letter, a letter with a combining accent, a family joined of three.
  EXPECT_EQ(typed("\xC3\xA4\x7fx\r"), "x");
  EXPECT_EQ(typed("ae\xCC\x81\x7fx\r"), "ax");
  EXPECT_EQ(typed("a\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7\x7fx\r"), "ax");
  EXPECT_EQ(typed("e\xCC\x81z\x1b[D\x1b[D\x1b[3~\r"), "z");
}

TEST(Editor, AMessageOfManyLines) {
  EXPECT_EQ(typed("a\x1b\rb\r"), "a\nb");
  EXPECT_EQ(typed("a\\\rb\r"), "a\nb");
  EXPECT_EQ(typed("a\\\\\r"), "a\\\\");
  EXPECT_EQ(typed("\"\"\"\ra\r\rb\r\"\"\"\r"), "a\n\nb");
  EXPECT_EQ(typed("\"\"\"a\"\"\"\r"), "a");
  EXPECT_EQ(typed("\"\"\"\ra\r", LineEditor::Did::edited), "a");
  // Up and down go through its lines first.
  EXPECT_EQ(typed("abc\x1b\rdef\x1b[AX\x1b[BY\r"), "abcX\ndefY");
}

TEST(Editor, APasteIsLiteral) {
  EXPECT_EQ(typed("\x1b[200~one\ntwo\nthree\nfour\n\x1b[201~\r"), "one\ntwo\nthree\nfour");
  EXPECT_EQ(typed("look: \x1b[200~a\\\n\"\"\"b\n\x1b[201~ ok\r"), "look: a\\\n\"\"\"b ok");
  EXPECT_EQ(typed("\x1b[200~\"\"\"doc\x1b[201~\r"), "\"\"\"doc");
  EXPECT_EQ(typed("\x1b[200~path\\\x1b[201~\r"), "path\\");
  EXPECT_EQ(typed("\"\"\"\r\x1b[200~a\nb\x1b[201~\r\"\"\"\r"), "a\nb");
  EXPECT_EQ(typed("\"\"\"\x1b[200~a\nb\x1b[201~\"\"\"\r"), "a\nb");
  EXPECT_EQ(typed("\x1b[200~a\x03\x04\x1b[A\x1b[201~\r"), "a\x03\x04\x1b[A");  // control characters are text
}

TEST(Editor, History) {
  EXPECT_EQ(typed("\x1b[A\r"), "second\nof two");
  EXPECT_EQ(typed("\x10\x10\r"), "first");
  EXPECT_EQ(typed("\x1b[A\x1b[A\x1b[A\r"), "first");  // the second Up goes to its first line
  EXPECT_EQ(typed("draft\x10\x10\x0e\x0e\r"), "draft");
  EXPECT_EQ(typed("draft\x10\x10\x10\x10\x0e\x0e\x0e\x0e!\r"), "draft!");
}

TEST(Editor, TabCompletesCommands) {
  EXPECT_EQ(typed("/h\t\r"), "/help ");
  EXPECT_EQ(typed("/s\tt\t\r"), "/stats ");  // three begin with /s
  EXPECT_EQ(typed("/sa\tfile\r"), "/save file");
  EXPECT_EQ(typed("a\tb\r"), "a\tb");
  EXPECT_EQ(typed("\tb\r"), "\tb");
}

// A message on a terminal, drawn again after every key, as the tool does.
struct Typing {
  LineEditor editor;
  FramePainter painter;
  Screen screen;
  size_t columns, lines;
  Typing(size_t c, size_t l) : screen(c, l), columns(c), lines(l) {
    editor.begin();
    paint(false);
  }
  void paint(bool moved) { screen.feed(painter.paint(editor.frame("> ", ". ", columns), 2, lines, "\x1b[1m", "\x1b[0m", moved)); }
  void type(const std::string& bytes) {
    KeyDecoder decoder;
    std::vector<Key> keys;
    decoder.feed(bytes, &keys);
    for (const Key& key : keys) {
      editor.press(key);
      paint(false);
    }
  }
  void resize(size_t c, size_t l) {
    columns = c, lines = l;
    screen.resize(c, l);
    paint(true);
  }
  // The same message on a terminal of this size from the beginning.
  Words fresh() const {
    Screen other(columns, lines);
    FramePainter fresh;
    other.feed(fresh.paint(editor.frame("> ", ". ", columns), 2, lines, "", "", false));
    return other.rows();
  }
};

TEST(Picture, AtTheWindowsEdge) {
  Typing t(10, 8);
  t.type("12345678");  // the row is full; the cursor waits on the next
  EXPECT_EQ(t.screen.rows(), (Words{"> 12345678"}));
  EXPECT_EQ(t.screen.row(), 1u);
  EXPECT_EQ(t.screen.column(), 0u);
  t.type("9");
  EXPECT_EQ(t.screen.rows(), (Words{"> 12345678", "9"}));
  t.type("\x7f\x7f");
  EXPECT_EQ(t.screen.rows(), (Words{"> 1234567"}));
  EXPECT_EQ(t.screen.row(), 0u);
  t.type(
      "\x01"
      "0");
  EXPECT_EQ(t.screen.rows(), (Words{"> 01234567"}));
  EXPECT_EQ(t.screen.column(), 3u);
  t.type("\x05\x1b\rab");
  EXPECT_EQ(t.screen.rows(), (Words{"> 01234567", ". ab"}));
  EXPECT_FALSE(t.screen.unknown());
}

TEST(Picture, WideAndCombiningCharacters) {
  Typing t(7, 8);
  t.type("\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E");  // 2 + 2 + 2 + 2 columns: the third does not fit into 7
  EXPECT_EQ(t.screen.rows(), (Words{"> \xE6\x97\xA5\xE6\x9C\xAC", "\xE8\xAA\x9E"}));
  EXPECT_EQ(t.screen.row(), 1u);
  EXPECT_EQ(t.screen.column(), 2u);
  t.type("\x1b[D");
  EXPECT_EQ(t.screen.row(), 1u);
  EXPECT_EQ(t.screen.column(), 0u);
  t.type("\x1b[D\x7f");
  EXPECT_EQ(t.screen.rows(), (Words{"> \xE6\x9C\xAC\xE8\xAA\x9E"}));
  EXPECT_EQ(t.screen.column(), 2u);
  t.type(
      "\x15\x0b"
      "e\xCC\x81x");
  EXPECT_EQ(t.screen.rows(), (Words{"> e\xCC\x81x"}));
  EXPECT_EQ(t.screen.column(), 4u);
}

TEST(Picture, ControlCharactersAreShownHarmlessly) {
  Typing t(40, 8);
  t.type(
      "\x1b[200~a\x1b[2J\x07\x9b"
      "31m\x7f\xC2\x9B\tz\x1b[201~");
  EXPECT_EQ(t.screen.rows(), (Words{"> a^[[2J^G\xEF\xBF\xBD"
                                    "31m^?\xEF\xBF\xBD   z"}));
  EXPECT_FALSE(t.screen.unknown());
}

TEST(Picture, TallerThanTheWindow) {
  Typing t(10, 4);
  t.screen.feed("");
  for (int i = 1; i <= 9; ++i) t.type(std::to_string(i) + (i < 9 ? "\x1b\r" : ""));
  EXPECT_EQ(t.screen.rows(), (Words{". 6", ". 7", ". 8", ". 9"}));
  EXPECT_EQ(t.screen.row(), 3u);
  for (int i = 0; i < 8; ++i) t.type("\x1b[A");
  EXPECT_EQ(t.screen.rows(), (Words{"> 1", ". 2", ". 3", ". 4"}));
  EXPECT_EQ(t.screen.row(), 0u);
  t.type("\x1b[B\x1b[B\x1b[B\x1b[B");
  EXPECT_EQ(t.screen.rows(), (Words{". 2", ". 3", ". 4", ". 5"}));
}

TEST(Picture, SurvivesAResize) {
  for (const char* text :
       {"a line that is longer than a narrow window", "short", "two\x1b\rlines of text, the second a long one",
        "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC", "12345678"}) {
    Typing t(20, 12);
    t.type(text);
    for (const auto& [columns, lines] : std::vector<std::pair<size_t, size_t>>{{10, 12}, {11, 12}, {30, 12}, {7, 12}, {20, 12}, {9, 10}}) {
      t.resize(columns, lines);
      EXPECT_EQ(t.screen.rows(), t.fresh()) << text << " at " << columns;
      t.type("x");
      EXPECT_EQ(t.screen.rows(), t.fresh()) << text << " at " << columns;
      t.type("\x7f");
    }
    t.type("\x01");  // and with the cursor at its beginning
    for (const size_t columns : {8u, 25u, 12u}) {
      t.resize(columns, 12);
      EXPECT_EQ(t.screen.rows(), t.fresh()) << text << " at " << columns;
    }
  }
}

// Random keys, pastes and sizes: the picture is always that of a fresh terminal, every row fits, the cursor stands where the text
// says, and the message is UTF-8.
TEST(Picture, OfRandomTypingIsThatOfAFreshTerminal) {
  const Words pieces = {"a",
                        "b ",
                        "word ",
                        "\xC3\xA4",
                        "\xE6\x97\xA5",
                        "\xF0\x9F\x98\x80",
                        "e\xCC\x81",
                        "\xE2\x80\x8D",
                        "\xCC\x81",
                        "\t",
                        "\x1b\r",
                        "\x1b[A",
                        "\x1b[B",
                        "\x1b[C",
                        "\x1b[D",
                        "\x1b[D",
                        "\x7f",
                        "\x1b[3~",
                        "\x01",
                        "\x05",
                        "\x17",
                        "\x0b",
                        "\x15",
                        "\x1b"
                        "b",
                        "\x1b"
                        "f",
                        "\x10",
                        "\x0e",
                        "\xFF",
                        "\x1b[200~p\x07q\r\x1b[31m\xE6\x9C\xAC\x1b[201~",
                        "\\"};
  uint64_t state = 7;
  const auto random = [&](size_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<size_t>(state >> 33) % n;
  };
  for (int round = 0; round < 60; ++round) {
    Typing t(4 + random(20), 200);
    t.editor.set_history({"older", "old \xE6\x97\xA5\nof two lines"});
    t.editor.begin();
    std::string keys;
    for (int i = 0; i < 60; ++i) {
      const std::string& piece = pieces[random(pieces.size())];
      keys += piece;
      t.type(piece);
      if (random(15) == 0) t.resize(4 + random(20), 200);
      const Frame frame = t.editor.frame("> ", ". ", t.columns);
      ASSERT_EQ(t.screen.rows(), t.fresh()) << t.columns << " columns, typed " << ::testing::PrintToString(keys);
      ASSERT_EQ(t.screen.row(), frame.row) << ::testing::PrintToString(keys);
      ASSERT_EQ(t.screen.column(), frame.column) << ::testing::PrintToString(keys);
      ASSERT_LT(frame.column, t.columns);
      ASSERT_EQ(tool::well_formed(t.editor.message()), t.editor.message());
    }
    ASSERT_FALSE(t.screen.unknown());
  }
}

std::string file_of(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

TEST(History, IsKeptInTheFormThatLibeditReads) {
  const TempDir folder;
  const std::string path = folder.file("deep/er/history");
  {
    tool::History history(path);
    EXPECT_TRUE(history.messages().empty());
    history.add("two\nlines \\ \xC3\xA4");
    history.add("two\nlines \\ \xC3\xA4");  // the same again is kept once
    history.add("");
    history.add("next");
  }
  EXPECT_EQ(file_of(path), "_HiStOrY_V2_\ntwo\\012lines\\040\\134\\040\\303\\244\nnext\n");
  {
    tool::History one(path), other(path);  // two conversations at once
    EXPECT_EQ(one.messages(), (Words{"two\nlines \\ \xC3\xA4", "next"}));
    one.add("of one");
    other.add("of other");
  }
  EXPECT_EQ(tool::History(path).messages().size(), 4u);
  // Bytes that nobody wrote as a message.
  std::ofstream(path, std::ios::binary) << "\\377\\000x\n\n\\33\\9\\\n\\033[31m\xFF\n";
  const tool::History strange(path);
  EXPECT_EQ(strange.messages(), (Words{"\\33\\9\\", "\x1b[31m\xEF\xBF\xBD"}));
  // A long file is shortened to its last thousand.
  std::string many = "_HiStOrY_V2_\n";
  for (int i = 0; i < 2500; ++i) many += "m" + std::to_string(i) + "\n";
  std::ofstream(path, std::ios::binary) << many;
  const tool::History shortened(path);
  ASSERT_EQ(shortened.messages().size(), 1000u);
  EXPECT_EQ(shortened.messages().front(), "m1500");
  EXPECT_LT(file_of(path).size(), many.size() / 2);
}

}  // namespace
}  // namespace orrery::testing
