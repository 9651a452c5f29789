/* Marks inside a line of Markdown: what they become, that every result is valid markup, and that no line takes long. */
#include "inline.h"

#include <pango/pango.h>
#include <string.h>

static int failed;

static void expect(const char* line, const char* wanted) {
  g_autofree char *escaped = g_markup_escape_text(line, -1), *got = inline_markup(escaped);
  if (strcmp(got, wanted) == 0) return;
  g_printerr("%s\n  is %s\n  not %s\n", line, got, wanted);
  ++failed;
}

static void expect_valid(const char* line) {
  g_autofree char *escaped = g_markup_escape_text(line, -1), *got = inline_markup(escaped), *text = NULL;
  g_autoptr(GError) error = NULL;
  if (pango_parse_markup(got, -1, 0, NULL, &text, NULL, &error)) return;
  g_printerr("%.200s: %s\n", line, error->message);
  ++failed;
}

#define CODE(text) "<span font_family='monospace' background='#80808029'>" text "</span>"

int main(void) {
  expect("plain, a & b < c", "plain, a &amp; b &lt; c");
  expect("**bold** and *it* __b__ _i_", "<b>bold</b> and <i>it</i> <b>b</b> <i>i</i>");
  expect("`code *x*` ``a`b`` ` `", CODE("code *x*") " " CODE("a`b") " " CODE(" "));
  expect("snake_case_name and _a_b_", "snake_case_name and <i>a_b</i>");
  expect("**a *b* c**", "<b>a <i>b</i> c</b>");
  expect("a * b * c, 2*3", "a * b * c, 2*3");
  expect("\\*no\\* `\\`", "*no* " CODE("\\"));
  expect("*a, `b, __d", "*a, `b, __d");
  expect("*\xC3\xA9t\xC3\xA9*", "<i>\xC3\xA9t\xC3\xA9</i>");
  expect("", "");

  static const char* const kPieces[] = {"*", "**", "_", "__", "`", "``", "\\", "a", " ", "<", "&", "\xC3\xA9", "*a", "a_ "};
  guint32 state = 21;
  for (int i = 0; i < 20000; ++i) {
    g_autoptr(GString) line = g_string_new(NULL);
    for (int k = 0; k < 12; ++k) {
      state = state * 1664525u + 1013904223u;
      g_string_append(line, kPieces[(state >> 16) % G_N_ELEMENTS(kPieces)]);
    }
    expect_valid(line->str);
  }
  for (gsize piece = 0; piece < G_N_ELEMENTS(kPieces); ++piece) {
    g_autoptr(GString) line = g_string_new(NULL);
    while (line->len < 1000000) g_string_append(line, kPieces[piece]);
    const gint64 start = g_get_monotonic_time();
    g_autofree char* got = inline_markup(line->str);
    if (!got) ++failed;
    const double seconds = (double)(g_get_monotonic_time() - start) / 1e6;
    if (seconds > 5) g_printerr("%s: %.1f s\n", kPieces[piece], seconds), ++failed;
  }
  return failed > 0;
}
