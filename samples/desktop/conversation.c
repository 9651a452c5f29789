/* conversation.c - conversations, their messages, and the index that keeps them.
 *
 * A message is a GVariant, and so is the index: written as text behind a line with its checksum. The index is the truth about messages.
 * A saved session only spares the model reading them again. */
#include "desktop.h"

#include <string.h>

#define MESSAGE_TYPE "(ssmsmst)"               /* role, text, meta, document, hidden */
#define INDEX_TYPE "(ua(usa" MESSAGE_TYPE "))" /* current; id, title, messages */

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

/* ---- What an answer has beside its text ---- */

#define MADE_TYPE "(sa(sss))" /* reasoning; of each call name, id, arguments */

static void call_free(gpointer call) {
  Call* c = call;
  g_free(c->name), g_free(c->id), g_string_free(c->arguments, TRUE), g_free(c);
}

Made made_new(void) { return (Made){g_string_new(NULL), g_ptr_array_new_with_free_func(call_free)}; }

void made_clear(Made* made) {
  g_string_truncate(made->thought, 0);
  g_ptr_array_set_size(made->calls, 0);
}

void made_free(Made* made) {
  g_string_free(made->thought, TRUE);
  g_ptr_array_unref(made->calls);
}

void made_call(Made* made, const char* name) {
  Call* call = g_new0(Call, 1);
  call->name = g_strdup(name), call->id = g_strdup(""), call->arguments = g_string_new(NULL);
  g_ptr_array_add(made->calls, call);
}

char* made_print(const Made* made) {
  GVariantBuilder calls;
  if (!made->thought->len && !made->calls->len) return NULL;
  g_variant_builder_init(&calls, G_VARIANT_TYPE("a(sss)"));
  for (guint i = 0; i < made->calls->len; ++i) {
    const Call* c = made->calls->pdata[i];
    g_variant_builder_add(&calls, "(sss)", c->name, c->id, c->arguments->str);
  }
  g_autoptr(GVariant) all = g_variant_ref_sink(g_variant_new(MADE_TYPE, made->thought->str, &calls));
  return g_variant_print(all, FALSE);
}

void made_parse(Made* made, const char* text) {
  const char *thought = NULL, *name = NULL, *id = NULL, *arguments = NULL;
  g_autoptr(GVariant) all = text ? g_variant_parse(G_VARIANT_TYPE(MADE_TYPE), text, NULL, NULL, NULL) : NULL;
  g_autoptr(GVariantIter) calls = NULL;
  made_clear(made);
  if (!all) return;
  g_variant_get(all, "(&sa(sss))", &thought, &calls);
  g_string_assign(made->thought, thought);
  while (g_variant_iter_loop(calls, "(&s&s&s)", &name, &id, &arguments)) {
    made_call(made, name);
    Call* c = made->calls->pdata[made->calls->len - 1];
    g_free(c->id), c->id = g_strdup(id);
    g_string_assign(c->arguments, arguments);
  }
}

static void quote(GString* json, const char* key, const char* text) {
  g_string_append_printf(json, "%s\"%s\": \"", json->str[json->len - 1] == '{' ? "" : ", ", key);
  for (const char* c = text; *c; ++c) {
    if (*c == '"' || *c == '\\') g_string_append_c(json, '\\');
    if ((guchar)*c < ' ') g_string_append_printf(json, "\\u%04x", (guint)*c);
    else g_string_append_c(json, *c);
  }
  g_string_append_c(json, '"');
}

char* message_json(const char* role, const char* text, const char* document) {
  if (!document || g_str_equal(role, "user")) return NULL;
  GString* json = g_string_new("{");
  quote(json, "role", role);
  quote(json, "content", text);
  if (g_str_equal(role, "tool")) {
    quote(json, "tool_call_id", document);
  } else {
    Made made = made_new();
    made_parse(&made, document);
    if (made.thought->len) quote(json, "reasoning_content", made.thought->str);
    for (guint i = 0; i < made.calls->len; ++i) {
      const Call* c = made.calls->pdata[i];
      g_string_append(json, i ? ", {" : ", \"tool_calls\": [{");
      quote(json, "id", c->id);
      quote(json, "type", "function");
      g_string_append(json, ", \"function\": {");
      quote(json, "name", c->name);
      g_string_append_printf(json, ", \"arguments\": %s}}", c->arguments->str);
    }
    if (made.calls->len) g_string_append_c(json, ']');
    made_free(&made);
  }
  return g_string_free(g_string_append_c(json, '}'), FALSE);
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
    gboolean taken = id == 0 || id == G_MAXUINT; /* two of one number would share a session; the next number is one more */
    for (guint i = 0; i < all->len; ++i) taken |= ((Conversation*)all->pdata[i])->id == id;
    if (taken) continue;
    Conversation* c = conversation_new(id, title);
    for (gsize i = 0; i < g_variant_n_children(messages); ++i) g_ptr_array_add(c->messages, g_variant_get_child_value(messages, i));
    g_ptr_array_add(all, c);
  }
  return TRUE;
}
