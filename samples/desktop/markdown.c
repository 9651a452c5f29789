/* markdown.c - Markdown in a text view, as it arrives: headings, bold, italics, code spans, fenced code, lists, quotes, rules.
 *
 * A line is the unit. A complete line is final. The line that still grows is drawn again with every piece of text. A line's block is a
 * tag of answer.ui; what stands inside a line becomes Pango markup. */
#include "desktop.h"
#include "inline.h"

#include <string.h>

typedef struct {
  GtkTextBuffer* buffer;
  GString* line;       /* that still grows */
  GtkTextMark* begins; /* where it stands in the buffer */
  gboolean fenced;     /* inside fenced code */
  gboolean started;    /* there are lines before */
  int unsettled;       /* frames for which the height is measured again */
} Writer;

/* Adds a line at the end. `plain` stands before the text, and nothing in it is a mark. */
static void add(GtkTextBuffer* buffer, const char* block, const char* plain, const char* text, gboolean marks) {
  GtkTextIter from, to;
  g_autofree char *escaped = g_markup_escape_text(text, -1), *markup = marks ? inline_markup(escaped) : g_strdup(escaped);
  gtk_text_buffer_get_end_iter(buffer, &to);
  const int at = gtk_text_iter_get_offset(&to);
  gtk_text_buffer_insert(buffer, &to, plain, -1);
  gtk_text_buffer_insert_markup(buffer, &to, markup, -1);
  gtk_text_buffer_get_iter_at_offset(buffer, &from, at);
  if (block) gtk_text_buffer_apply_tag_by_name(buffer, block, &from, &to);
}

/* Draws the line at the end of the buffer. `whole`: its line break has come. */
static void draw(Writer* w, gboolean whole) {
  static const char* const kHeadings[] = {"heading1", "heading2", "heading3"};
  static const char* const kLists[] = {"list0", "list1", "list2"};
  const gsize indent = strspn(w->line->str, " ");
  const char *text = w->line->str + indent, *list = kLists[MIN(indent / 2, 2)];
  const gsize hashes = strspn(text, "#"), digits = strspn(text, "0123456789"), length = strlen(text);
  if (strncmp(text, "```", 3) == 0) {
    w->fenced ^= whole;
    return;
  }
  if (w->started) add(w->buffer, NULL, "\n", "", FALSE);
  w->started |= whole;
  if (w->fenced) {
    add(w->buffer, "fence", "", *w->line->str ? w->line->str : " ", FALSE);
  } else if (hashes > 0 && hashes <= 6 && text[hashes] == ' ') {
    add(w->buffer, kHeadings[MIN(hashes, 3) - 1], "", text + hashes + 1, TRUE);
  } else if (length > 1 && strchr("-*+", text[0]) && text[1] == ' ') {
    add(w->buffer, list, "•\t", text + 2, TRUE);
  } else if (digits > 0 && digits < 10 && text[digits] && strchr(".)", text[digits]) && text[digits + 1] == ' ') {
    g_autofree char* number = g_strdup_printf("%.*s\t", (int)digits + 1, text);
    add(w->buffer, list, number, text + digits + 2, TRUE);
  } else if (text[0] == '>') {
    add(w->buffer, "quote", "", text + 1 + (text[1] == ' '), TRUE);
  } else if (whole && length >= 3 && (strspn(text, "-") == length || strspn(text, "*") == length)) {
    add(w->buffer, "quote", "────────", "", FALSE);
  } else {
    add(w->buffer, NULL, "", text, TRUE);
  }
}

static gboolean settle(GtkWidget* view, GdkFrameClock* clock G_GNUC_UNUSED, gpointer writer) {
  Writer* w = writer;
  GtkTextIter end;
  GdkRectangle at;
  gtk_text_buffer_get_end_iter(w->buffer, &end);
  gtk_text_view_get_iter_location(GTK_TEXT_VIEW(view), &end, &at); /* lays out all lines */
  gtk_widget_queue_resize(view);
  return --w->unsettled > 0;
}

/* GTK's text view measures its height with the width of the frame before: for some frames after a change it is measured again. */
static void unsettle(GtkWidget* view) {
  Writer* w = g_object_get_data(G_OBJECT(view), "writer");
  if (w->unsettled == 0) gtk_widget_add_tick_callback(view, settle, w, NULL);
  w->unsettled = 4;
}

static void writer_free(gpointer writer) {
  g_string_free(((Writer*)writer)->line, TRUE);
  g_free(writer);
}

static Writer* writer_of(GtkTextView* view) {
  Writer* w = g_object_get_data(G_OBJECT(view), "writer");
  GtkTextIter start;
  if (w) return w;
  w = g_new0(Writer, 1);
  w->buffer = gtk_text_view_get_buffer(view);
  gtk_text_buffer_get_start_iter(w->buffer, &start);
  w->line = g_string_new(NULL);
  w->begins = gtk_text_buffer_create_mark(w->buffer, NULL, &start, TRUE);
  g_object_set_data_full(G_OBJECT(view), "writer", w, writer_free);
  PangoTabArray* tabs = pango_tab_array_new_with_positions(1, TRUE, PANGO_TAB_LEFT, 22);
  gtk_text_view_set_tabs(view, tabs);
  pango_tab_array_free(tabs);
  GtkAdjustment* width = gtk_scrollable_get_hadjustment(GTK_SCROLLABLE(view));
  g_signal_connect_object(width, "notify::page-size", G_CALLBACK(unsettle), view, G_CONNECT_SWAPPED);
  return w;
}

void markdown_append(GtkTextView* view, const char* text) {
  Writer* w = writer_of(view);
  for (GtkTextIter from, to;;) {
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
  unsettle(GTK_WIDGET(view));
}
