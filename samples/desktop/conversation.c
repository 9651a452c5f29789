/* conversation.c - conversations, their messages, and the index that keeps them.
 *
 * The index is a GVariant as text, behind a line with its checksum. It is the truth about messages. A saved session only spares the model
 * reading them again. */
#include "desktop.h"

#include <string.h>

#define INDEX_TYPE "(ua(usa(ssmsmst)))"   /* current; id, title, messages: role, text, meta, document, hidden */

static void message_free(gpointer message) {
  Message* m = message;
  g_free(m->role), g_free(m->text), g_free(m->meta), g_free(m->document), g_free(m);
}

Conversation* conversation_new(guint id, const char* title) {
  Conversation* c = g_new0(Conversation, 1);
  c->id = id;
  c->title = g_strdup(title);
  c->messages = g_ptr_array_new_with_free_func(message_free);
  return c;
}

void conversation_free(gpointer conversation) {
  Conversation* c = conversation;
  g_ptr_array_unref(c->messages);
  g_free(c->title), g_free(c);
}

Message* conversation_add(Conversation* c, const char* role, const char* text) {
  Message* m = g_new0(Message, 1);
  m->role = g_strdup(role);
  m->text = g_strdup(text);
  g_ptr_array_add(c->messages, m);
  return m;
}

GPtrArray* conversation_strings(const Conversation* c, gsize n) {
  GPtrArray* strings = g_ptr_array_new_with_free_func(g_free);
  for (guint i = 0; i < MIN(n, c->messages->len); ++i) {
    const Message* m = c->messages->pdata[i];
    g_ptr_array_add(strings, g_strdup(m->role));
    g_ptr_array_add(strings, g_strdup(m->text));
  }
  return strings;
}

GVariant* conversations_index(GPtrArray* all, guint current) {
  GVariantBuilder index;
  g_variant_builder_init(&index, G_VARIANT_TYPE(INDEX_TYPE));
  g_variant_builder_add(&index, "u", current);
  g_variant_builder_open(&index, G_VARIANT_TYPE("a(usa(ssmsmst))"));
  for (guint i = 0; i < all->len; ++i) {
    const Conversation* c = all->pdata[i];
    g_variant_builder_open(&index, G_VARIANT_TYPE("(usa(ssmsmst))"));
    g_variant_builder_add(&index, "u", c->id);
    g_variant_builder_add(&index, "s", c->title);
    g_variant_builder_open(&index, G_VARIANT_TYPE("a(ssmsmst)"));
    for (guint j = 0; j < c->messages->len; ++j) {
      const Message* m = c->messages->pdata[j];
      g_variant_builder_add(&index, "(ssmsmst)", m->role, m->text, m->meta, m->document, (guint64)m->hidden);
    }
    g_variant_builder_close(&index);
    g_variant_builder_close(&index);
  }
  g_variant_builder_close(&index);
  return g_variant_ref_sink(g_variant_builder_end(&index));
}

char* index_to_text(GVariant* index) {
  g_autofree char *data = g_variant_print(index, FALSE), *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, data, -1);
  return g_strconcat(sum, "\n", data, NULL);
}

gboolean conversations_from_text(const char* text, GPtrArray* all, guint* current) {
  const char* data = strchr(text, '\n');
  g_autofree char* sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, data ? ++data : "", -1);
  g_autoptr(GVariant) value = data && g_str_has_prefix(text, sum) ? g_variant_parse(G_VARIANT_TYPE(INDEX_TYPE), data, NULL, NULL, NULL) : NULL;
  g_autoptr(GVariantIter) conversations = NULL;
  GVariantIter* messages = NULL;
  guint id = 0;
  const char *title = NULL, *role = NULL, *words = NULL, *meta = NULL, *document = NULL;
  guint64 hidden = 0;
  if (!value) return FALSE;
  g_variant_get(value, "(ua(usa(ssmsmst)))", current, &conversations);
  while (g_variant_iter_loop(conversations, "(u&sa(ssmsmst))", &id, &title, &messages)) {
    Conversation* c = conversation_new(id, title);
    while (g_variant_iter_loop(messages, "(&s&sm&sm&st)", &role, &words, &meta, &document, &hidden)) {
      Message* m = conversation_add(c, role, words);
      m->meta = g_strdup(meta);
      m->document = g_strdup(document);
      m->hidden = MIN(hidden, strlen(words));
    }
    g_ptr_array_add(all, c);
  }
  return TRUE;
}
