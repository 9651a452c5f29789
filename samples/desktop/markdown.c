/* markdown.c - Markdown in a text view, as it arrives: headings, bold, italics, code spans, fenced code, lists, quotes, rules.
 *
 * A line is the unit. A complete line is final. The line that still grows is drawn again with every piece of text. */
#include "desktop.h"

#include <string.h>

typedef struct {
  GtkTextBuffer* buffer;
  GString* line;         /* that still grows */
  GtkTextMark* begins;   /* where it stands in the buffer */
  gboolean fenced;       /* inside fenced code */
  gboolean started;      /* there are lines before */
  int unsettled;         /* frames for which the height is measured again */
} Writer;

enum { BOLD = 1, ITALIC = 2, CODE = 4 };

static void writer_free(gpointer writer) {
  g_string_free(((Writer*)writer)->line, TRUE);
  g_free(writer);
}

static void add(GtkTextBuffer* buffer, const char* text, gsize bytes, const char* block, int style) {
  const char* const tags[] = {block, style & BOLD ? "bold" : NULL, style & ITALIC ? "italic" : NULL, style & CODE ? "code" : NULL};
  GtkTextIter from, to;
  gtk_text_buffer_get_end_iter(buffer, &to);
  const int at = gtk_text_iter_get_offset(&to);
  gtk_text_buffer_insert(buffer, &to, text, (int)bytes);
  gtk_text_buffer_get_iter_at_offset(buffer, &from, at);
  for (gsize i = 0; i < G_N_ELEMENTS(tags); ++i)
    if (tags[i]) gtk_text_buffer_apply_tag_by_name(buffer, tags[i], &from, &to);
}

/* Whether the `n` equal characters at text[at] open emphasis, or close what is `open`. Opening takes a partner in the same line. */
static gboolean is_mark(const char* text, gsize at, gsize n, gboolean open) {
  const char mark[3] = {text[at], n == 2 ? text[at] : 0, 0}, before = at > 0 ? text[at - 1] : ' ', after = text[at + n];
  const gboolean underscore = text[at] == '_';
  if (open) return !g_ascii_isspace(before) && !(underscore && g_ascii_isalnum(after));
  if (after == 0 || g_ascii_isspace(after) || (underscore && g_ascii_isalnum(before))) return FALSE;
  const char* close = strstr(text + at + n + 1, mark);
  return close && !g_ascii_isspace(close[-1]);
}

static void add_inline(GtkTextBuffer* buffer, const char* text, const char* block) {
  int style = 0;
  gsize from = 0, at = 0;
  while (text[at]) {
    gsize skip = 0;   /* bytes of a mark */
    if (text[at] == '\\' && g_ascii_ispunct(text[at + 1])) {
      add(buffer, text + from, at - from, block, style);
      from = at + 1, at += 2;
      continue;
    }
    if (text[at] == '`') {
      const gsize n = strspn(text + at, "`");
      g_autofree char* fence = g_strndup(text + at, n);
      const char* close = strstr(text + at + n, fence);
      if (close) {
        const gsize end = (gsize)(close - text);
        add(buffer, text + from, at - from, block, style);
        add(buffer, text + at + n, end - at - n, block, style | CODE);
        from = at = end + n;
        continue;
      }
    } else if (text[at] == '*' || text[at] == '_') {
      if (text[at + 1] == text[at] && is_mark(text, at, 2, style & BOLD)) skip = 2;
      else if (is_mark(text, at, 1, style & ITALIC)) skip = 1;
    }
    if (skip > 0) {
      add(buffer, text + from, at - from, block, style);
      style ^= skip == 2 ? BOLD : ITALIC;
      from = at + skip;
    }
    at += MAX(skip, 1);
  }
  add(buffer, text + from, at - from, block, style);
}

/* Draws the line at the end of the buffer. `whole`: its line break has come. */
static void draw(Writer* w, gboolean whole) {
  static const char* const kHeadings[] = {"heading1", "heading2", "heading3"};
  static const char* const kLists[] = {"list0", "list1", "list2"};
  GtkTextBuffer* buffer = w->buffer;
  const gsize indent = strspn(w->line->str, " ");
  const char *text = w->line->str + indent, *list = kLists[MIN(indent / 2, 2)];
  const gsize hashes = strspn(text, "#"), digits = strspn(text, "0123456789"), length = strlen(text);
  if (strncmp(text, "```", 3) == 0) {
    w->fenced ^= whole;
    return;
  }
  if (w->started) add(buffer, "\n", 1, NULL, 0);
  w->started |= whole;
  if (w->fenced) {
    add(buffer, *w->line->str ? w->line->str : " ", MAX(w->line->len, 1), "fence", 0);
  } else if (hashes > 0 && hashes <= 6 && text[hashes] == ' ') {
    add_inline(buffer, text + hashes + 1, kHeadings[MIN(hashes, 3) - 1]);
  } else if (length > 1 && strchr("-*+", text[0]) && text[1] == ' ') {
    add(buffer, "•\t", strlen("•\t"), list, 0);
    add_inline(buffer, text + 2, list);
  } else if (digits > 0 && digits < 10 && strchr(".)", text[digits]) && text[digits] && text[digits + 1] == ' ') {
    add(buffer, text, digits + 1, list, 0);
    add(buffer, "\t", 1, list, 0);
    add_inline(buffer, text + digits + 2, list);
  } else if (text[0] == '>') {
    add_inline(buffer, text + 1 + (text[1] == ' '), "quote");
  } else if (whole && length >= 3 && (strspn(text, "-") == length || strspn(text, "*") == length)) {
    add(buffer, "────────", strlen("────────"), "quote", 0);
  } else {
    add_inline(buffer, text, NULL);
  }
}

static gboolean settle(GtkWidget* view, GdkFrameClock* clock G_GNUC_UNUSED, gpointer writer) {
  Writer* w = writer;
  GtkTextIter end;
  GdkRectangle at;
  gtk_text_buffer_get_end_iter(w->buffer, &end);
  gtk_text_view_get_iter_location(GTK_TEXT_VIEW(view), &end, &at);   /* lays out all lines */
  gtk_widget_queue_resize(view);
  return --w->unsettled > 0;
}

/* GTK's text view measures its height with the width of the frame before: for some frames after a change it is measured again. */
static void unsettle(GtkWidget* view) {
  Writer* w = g_object_get_data(G_OBJECT(view), "writer");
  if (w->unsettled == 0) gtk_widget_add_tick_callback(view, settle, w, NULL);
  w->unsettled = 4;
}

void markdown_append(GtkWidget* view, const char* text) {
  Writer* w = g_object_get_data(G_OBJECT(view), "writer");
  for (GtkTextIter from, to; w;) {
    const gsize bytes = strcspn(text, "\n");
    g_string_append_len(w->line, text, (gssize)bytes);
    gtk_text_buffer_get_iter_at_mark(w->buffer, &from, w->begins);
    gtk_text_buffer_get_end_iter(w->buffer, &to);
    gtk_text_buffer_delete(w->buffer, &from, &to);
    if (text[bytes] || w->line->len > 0) draw(w, text[bytes] != 0);
    if (!text[bytes]) break;
    gtk_text_buffer_get_end_iter(w->buffer, &to);
    gtk_text_buffer_move_mark(w->buffer, w->begins, &to);
    g_string_truncate(w->line, 0);
    text += bytes + 1;
  }
  unsettle(view);
}

GtkWidget* markdown_new(const char* text) {
  GtkWidget* view = g_object_new(GTK_TYPE_TEXT_VIEW, "editable", FALSE, "cursor-visible", FALSE, "wrap-mode", GTK_WRAP_WORD_CHAR, "accepts-tab", FALSE,
                                 "pixels-below-lines", 2, NULL);
  GtkTextBuffer* buffer = gtk_text_view_get_buffer(GTK_TEXT_VIEW(view));
  Writer* w = g_new0(Writer, 1);
  GtkTextIter start;
  const GdkRGBA shade = {.5f, .5f, .5f, .16f};
  static const double kScales[] = {1.4, 1.2, 1.05};
  for (int i = 0; i < 3; ++i) {
    const char heading[] = {'h', 'e', 'a', 'd', 'i', 'n', 'g', (char)('1' + i), 0}, list[] = {'l', 'i', 's', 't', (char)('0' + i), 0};
    PangoTabArray* tabs = pango_tab_array_new_with_positions(1, TRUE, PANGO_TAB_LEFT, 22);
    gtk_text_buffer_create_tag(buffer, heading, "scale", kScales[i], "weight", PANGO_WEIGHT_BOLD, "pixels-above-lines", 8 - 2 * i, NULL);
    gtk_text_buffer_create_tag(buffer, list, "left-margin", 6 + 22 * i, "indent", -22, "tabs", tabs, NULL);
    pango_tab_array_free(tabs);
  }
  gtk_text_buffer_create_tag(buffer, "quote", "left-margin", 18, "style", PANGO_STYLE_ITALIC, NULL);
  gtk_text_buffer_create_tag(buffer, "fence", "family", "monospace", "paragraph-background-rgba", &shade, "left-margin", 10, "wrap-mode", GTK_WRAP_CHAR, NULL);
  gtk_text_buffer_create_tag(buffer, "bold", "weight", PANGO_WEIGHT_BOLD, NULL);
  gtk_text_buffer_create_tag(buffer, "italic", "style", PANGO_STYLE_ITALIC, NULL);
  gtk_text_buffer_create_tag(buffer, "code", "family", "monospace", "background-rgba", &shade, NULL);
  gtk_text_buffer_get_start_iter(buffer, &start);
  *w = (Writer){.buffer = buffer, .line = g_string_new(NULL), .begins = gtk_text_buffer_create_mark(buffer, NULL, &start, TRUE)};
  g_object_set_data_full(G_OBJECT(view), "writer", w, writer_free);
  g_signal_connect_object(gtk_scrollable_get_hadjustment(GTK_SCROLLABLE(view)), "notify::page-size", G_CALLBACK(unsettle), view, G_CONNECT_SWAPPED);
  markdown_append(view, text);
  return view;
}
