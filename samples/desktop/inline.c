/* inline.c - what stands inside a line of Markdown, as Pango markup: bold, italics, code spans, escaped characters. */
#include "inline.h"

#include <string.h>

/* Emphasis begins and ends at a character, and needs both ends in the line; `_` does so between words alone. Every mark's next end is looked
 * for once, so a line takes time in proportion to its length, for each of at most kMostNested levels. */
enum { kMostNested = 6, kMostTicks = 8 };
typedef struct {
  const char* s;
  gsize end;
  gsize emphasis[4];          /* the next end of **, __, *, _; 0: not looked for */
  gsize code[kMostTicks + 1]; /* [n]: the start of the next run of n backticks; 0: not looked for */
} Ends;

static gboolean word_at(const Ends* e, gsize i) { return i < e->end && (g_ascii_isalnum(e->s[i]) || e->s[i] == '_' || e->s[i] & 0x80); }

/* Returns where emphasis of `kind` ends behind `from`, or e->end where the line has no such end. */
static gsize emphasis_end(Ends* e, int kind, gsize from) {
  const char mark = kind % 2 ? '_' : '*';
  const gsize length = kind < 2 ? 2 : 1;
  if (e->emphasis[kind] > from) return e->emphasis[kind];
  gsize at = from + 1;
  for (; at < e->end; ++at) {
    if (e->s[at] != mark || g_ascii_isspace(e->s[at - 1])) continue;
    if (length == 2 && (at + 1 == e->end || e->s[at + 1] != mark)) continue;
    if (mark == '*' || !word_at(e, at + length)) break;
  }
  return e->emphasis[kind] = at;
}

static gsize code_end(Ends* e, gsize ticks, gsize from) {
  if (e->code[ticks] > from) return e->code[ticks];
  gsize at = from;
  for (gsize run; at < e->end; at += MAX(run, 1)) {
    for (run = 0; at + run < e->end && e->s[at + run] == '`'; ++run) {
    }
    if (run == ticks) break;
  }
  return e->code[ticks] = MIN(at, e->end);
}

static void inline_into(GString* to, const char* s, gsize from, gsize end, int depth) {
  Ends e = {s, end, {0}, {0}};
  for (gsize i = from; i < end;) {
    if (s[i] == '\\' && i + 1 < end && g_ascii_ispunct(s[i + 1])) {
      g_string_append_c(to, s[i + 1]);
      i += 2;
      continue;
    }
    if (s[i] == '`') {
      gsize ticks = 0;
      while (i + ticks < end && s[i + ticks] == '`') ++ticks;
      const gsize at = ticks <= kMostTicks ? code_end(&e, ticks, i + ticks) : end;
      if (at < end && at > i + ticks) {
        g_string_append(to, "<span font_family='monospace' background='#80808029'>");
        g_string_append_len(to, s + i + ticks, (gssize)(at - i - ticks));
        g_string_append(to, "</span>");
        i = at + ticks;
      } else {
        g_string_append_len(to, s + i, (gssize)ticks);
        i += ticks;
      }
      continue;
    }
    gboolean done = FALSE;
    if ((s[i] == '*' || s[i] == '_') && depth < kMostNested && (s[i] == '*' || i == from || !word_at(&e, i - 1))) {
      for (int kind = s[i] == '_'; kind < 4 && !done; kind += 2) {
        const gsize length = kind < 2 ? 2 : 1, inner = i + length;
        if (inner >= end || (length == 2 && s[i + 1] != s[i]) || g_ascii_isspace(s[inner])) continue;
        const gsize at = emphasis_end(&e, kind, inner);
        if (at >= end) continue;
        g_string_append(to, kind < 2 ? "<b>" : "<i>");
        inline_into(to, s, inner, at, depth + 1);
        g_string_append(to, kind < 2 ? "</b>" : "</i>");
        i = at + length, done = TRUE;
      }
    }
    if (!done) g_string_append_c(to, s[i++]);
  }
}

char* inline_markup(const char* escaped) {
  GString* to = g_string_new(NULL);
  inline_into(to, escaped, 0, strlen(escaped), 0);
  return g_string_free(to, FALSE);
}
