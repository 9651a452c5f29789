/* conversation.c - conversations, their messages, and the index that keeps them.
 *
 * A message is a GVariant, and so is the index: written as text behind a line with its checksum. The index is the truth about messages.
 * A saved session only spares the model reading them again. */
#include "desktop.h"

#include <string.h>

#define MESSAGE_TYPE "(ssmsmst)"                     /* role, text, meta, document, hidden */
#define INDEX_TYPE "(ua(usa" MESSAGE_TYPE "))"       /* current; id, title, messages */

Conversation* conversation_new(guint id, const char* title) {
  Conversation* c = g_new0(Conversation, 1);
  g_autoptr(GtkBuilder) row = gtk_builder_new_from_resource("/org/orrery/desktop/conversation.ui");
  c->id = id;
  c->messages = g_ptr_array_new_with_free_func((GDestroyNotify)g_variant_unref);
  c->row = g_object_ref(GTK_WIDGET(gtk_builder_get_object(row, "row")));
  c->name = GTK_WIDGET(gtk_builder_get_object(row, "name"));
  g_object_set_data(G_OBJECT(c->row), "conversation", c);
  gtk_editable_set_text(GTK_EDITABLE(c->name), title);
  return c;
}

void conversation_free(gpointer conversation) {
  Conversation* c = conversation;
  g_object_unref(c->row);
  g_ptr_array_unref(c->messages);
  g_free(c);
}

const char* conversation_title(const Conversation* c) { return gtk_editable_get_text(GTK_EDITABLE(c->name)); }

void conversation_add(Conversation* c, Message m) {
  g_ptr_array_add(c->messages, g_variant_ref_sink(g_variant_new(MESSAGE_TYPE, m.role, m.text, m.meta, m.document, m.hidden)));
}

Message conversation_message(const Conversation* c, guint i) {
  Message m;
  g_variant_get(c->messages->pdata[i], "(&s&sm&sm&st)", &m.role, &m.text, &m.meta, &m.document, &m.hidden);
  m.hidden = MIN(m.hidden, strlen(m.text));
  return m;
}

gboolean conversation_asks(const Conversation* c, guint i) { return g_str_equal(conversation_message(c, i).role, "user"); }

GVariant* conversation_messages(const Conversation* c, guint n) {
  return g_variant_ref_sink(g_variant_new_array(G_VARIANT_TYPE(MESSAGE_TYPE), (GVariant* const*)c->messages->pdata, n));
}

GVariant* conversations_index(GPtrArray* all, guint current) {
  GVariantBuilder list;
  g_variant_builder_init(&list, G_VARIANT_TYPE("a(usa" MESSAGE_TYPE ")"));
  for (guint i = 0; i < all->len; ++i) {
    const Conversation* c = all->pdata[i];
    g_autoptr(GVariant) messages = conversation_messages(c, c->messages->len);
    g_variant_builder_add(&list, "(us@a" MESSAGE_TYPE ")", c->id, conversation_title(c), messages);
  }
  return g_variant_ref_sink(g_variant_new(INDEX_TYPE, current, &list));
}

char* index_to_text(GVariant* index) {
  g_autofree char *data = g_variant_print(index, FALSE), *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, data, -1);
  return g_strconcat(sum, "\n", data, NULL);
}

gboolean conversations_from_text(const char* text, GPtrArray* all, guint* current) {
  const char *data = strchr(text, '\n'), *title = NULL;
  g_autofree char* sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, data ? ++data : "", -1);
  const gboolean whole = data && g_str_has_prefix(text, sum);
  g_autoptr(GVariant) index = whole ? g_variant_parse(G_VARIANT_TYPE(INDEX_TYPE), data, NULL, NULL, NULL) : NULL;
  g_autoptr(GVariantIter) list = NULL;
  GVariant* messages = NULL;
  guint id = 0;
  if (!index) return FALSE;
  g_variant_get(index, INDEX_TYPE, current, &list);
  while (g_variant_iter_loop(list, "(u&s@a" MESSAGE_TYPE ")", &id, &title, &messages)) {
    gboolean taken = id == 0 || id == G_MAXUINT;   /* two of one number would share a session; the next number is one more */
    for (guint i = 0; i < all->len; ++i) taken |= ((Conversation*)all->pdata[i])->id == id;
    if (taken) continue;
    Conversation* c = conversation_new(id, title);
    for (gsize i = 0; i < g_variant_n_children(messages); ++i) g_ptr_array_add(c->messages, g_variant_get_child_value(messages, i));
    g_ptr_array_add(all, c);
  }
  return TRUE;
}
