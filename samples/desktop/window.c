/* window.c - the window at work: actions, conversations in the side bar, messages, and what the worker's events change.
 * The window's signals, shortcuts and dialogs stand in window.ui: they name the functions marked G_MODULE_EXPORT. */
#include "desktop.h"

#include <glib/gstdio.h>
#include <string.h>

gpointer ui(const char* id) { return gtk_builder_get_object(app.builder, id); }

void say(const char* id, const char* format, ...) {
  va_list values;
  va_start(values, format);
  g_autofree char* text = g_strdup_vprintf(format, values);
  va_end(values);
  gtk_label_set_text(ui(id), text);
}

static GtkTextBuffer* composed(void) { return gtk_text_view_get_buffer(ui("composer")); }

static void name_for_readers(gpointer widget, const char* name) {
  gtk_accessible_update_property(GTK_ACCESSIBLE(widget), GTK_ACCESSIBLE_PROPERTY_LABEL, name, -1);
}

void app_error(const char* text) {
  const char* before = gtk_label_get_text(ui("banner_text"));
  /* One paragraph: GTK 4.8 measures a label of several wrongly, and says so. */
  if (!strstr(before, text)) say("banner_text", "%s%s%s", before, *before ? " · " : "", text);
  gtk_widget_set_visible(ui("banner"), TRUE); /* without an animation, which has the same fault */
}

G_MODULE_EXPORT void on_dismissed(void) {
  gtk_widget_set_visible(ui("banner"), FALSE);
  say("banner_text", "%s", "");
}

void window_show(void) {
  const gboolean chat = app.folder && g_str_equal(gtk_stack_get_visible_child_name(ui("pages")), "chat");
  const gboolean free = !app.answering && !app.opening, ready = chat && app.current && free, edits = app.edit_from != G_MAXSIZE;
  const gboolean too_long = app.document && app.document_tokens >= (gint64)app.opened_context;
  const struct {
    const char* name;
    gboolean enabled;
  } kActions[] = {{"new", ready},
                  {"fork", ready},
                  {"delete", ready},
                  {"edit", ready},
                  {"edit-last", ready},
                  {"rename", chat && app.current},
                  {"again", ready},
                  {"again-last", ready},
                  {"go-on", ready},
                  {"go-on-last", ready},
                  {"copy", chat},
                  {"side", chat},
                  {"next", chat},
                  {"previous", chat},
                  {"panel", chat},
                  {"send", ready && !too_long},
                  {"stop", !free || edits},
                  {"model", free},
                  {"open", app.fits && free && !app.planning},
                  {"back", app.folder && !chat}};
  for (gsize i = 0; i < G_N_ELEMENTS(kActions); ++i)
    g_simple_action_set_enabled(G_SIMPLE_ACTION(g_action_map_lookup_action(G_ACTION_MAP(app.app), kActions[i].name)), kActions[i].enabled);
  const char* tokens = app.document_tokens >= 0 ? grouped((guint64)app.document_tokens) : "…";
  say("document_name", "%s%s%s%s", app.document ? app.document_name : "None", app.document ? ", " : "", app.document ? tokens : "",
      app.document ? " tokens" : "");
  if (edits) say("chip_text", "This replaces an earlier message, and what follows it.");
  else if (app.document) say("chip_text", "With %s, %s tokens%s", app.document_name, tokens, too_long ? ": longer than the context" : "");
  gtk_widget_set_visible(ui("chip"), app.document || edits);
  gtk_widget_set_visible(ui("stop"), app.answering != NULL);
  gtk_widget_set_visible(ui("loading"), app.opening);
  if (!app.answering) gtk_widget_set_visible(ui("progress"), FALSE);
}

/* ---- Messages ---- */

/* A part of a message, with a name for readers of the screen. */
static gpointer named(GtkBuilder* parts, const char* id, const char* format, guint number) {
  g_autofree char* name = g_strdup_printf(format, number);
  name_for_readers(gtk_builder_get_object(parts, id), name);
  return gtk_builder_get_object(parts, id);
}

/* ---- Calls: cards with a field for the result ---- */

static void on_result(GtkWidget* field);

/* `result`: the call's result, or NULL before the user has given it; `asks`: the user is asked for this call's result now. */
static void add_card(GtkBox* calls, guint n, const Call* call, const char* result, gboolean asks) {
  g_autoptr(GtkBuilder) parts = gtk_builder_new_from_resource("/org/orrery/desktop/call.ui");
  gtk_box_append(calls, named(parts, "card", "Call %u", n + 1));
  gtk_label_set_text(GTK_LABEL(gtk_builder_get_object(parts, "name")), call->name);
  gtk_label_set_text(GTK_LABEL(gtk_builder_get_object(parts, "arguments")), call->arguments->str);
  g_object_set_data(gtk_builder_get_object(parts, "card"), "arguments", gtk_builder_get_object(parts, "arguments"));
  gtk_label_set_text(GTK_LABEL(gtk_builder_get_object(parts, "result")), result);
  gtk_widget_set_visible(GTK_WIDGET(gtk_builder_get_object(parts, "result")), result != NULL);
  gtk_widget_set_visible(GTK_WIDGET(gtk_builder_get_object(parts, "asks")), asks);
  GtkWidget* field = named(parts, "given", "Result of call %u", n + 1);
  g_signal_connect(field, "activate", G_CALLBACK(on_result), NULL);
  g_signal_connect_swapped(named(parts, "give", "Give result of call %u", n + 1), "clicked", G_CALLBACK(on_result), field);
}

static void show_thought(const char* text) {
  gtk_label_set_text(app.thought_text, text);
  gtk_widget_set_visible(app.thought, *text != 0);
}

/* A button's action with its target, in this order: GTK warns of a name that has no target yet. */
static void targets(gpointer button, const char* action, guint i) {
  g_autofree char* name = g_strconcat("app.", action, NULL);
  gtk_actionable_set_action_target(button, "u", i);
  gtk_actionable_set_action_name(button, name);
}

static void add_message(guint number, gboolean user, Message m, guint i) {
  g_autoptr(GtkBuilder) parts = gtk_builder_new_from_resource(user ? "/org/orrery/desktop/question.ui" : "/org/orrery/desktop/answer.ui");
  gtk_box_append(ui("messages"), named(parts, "row", user ? "Question %u" : "Answer %u", number));
  gtk_label_set_text(GTK_LABEL(gtk_builder_get_object(parts, "meta")), user ? m.document : m.meta);
  if (user) {
    gtk_label_set_text(GTK_LABEL(gtk_builder_get_object(parts, "text")), m.text + m.hidden);
    gtk_widget_set_visible(GTK_WIDGET(gtk_builder_get_object(parts, "meta")), m.document != NULL);
    targets(named(parts, "edit", "Edit question %u", number), "edit", i);
  } else {
    app.answer = named(parts, "text", "Answer %u", number);
    app.thought = named(parts, "thought", "Reasoning %u", number);
    app.thought_text = gtk_builder_get_object(parts, "thought_text");
    app.calls = gtk_builder_get_object(parts, "calls");
    app.meta = gtk_builder_get_object(parts, "meta");
    targets(named(parts, "copy", "Copy answer %u", number), "copy", i);
    app.go_on = named(parts, "go_on", "Let answer %u go on", number);
    targets(app.go_on, "go-on", i);
    targets(named(parts, "again", "Answer %u again", number), "again", i);
    markdown_append(app.answer, m.text);
  }
}

/* What answer i has beside its text; the messages after it are results of its calls, in order. */
static void add_made(const Made* made, guint i) {
  const Conversation* c = app.current;
  guint results = 0;
  while (i + 1 + results < c->messages->len && g_str_equal(conversation_message(c, i + 1 + results).role, "tool")) ++results;
  const gboolean last = i + 1 + results == c->messages->len && app.answering != c;
  show_thought(made->thought->str);
  gtk_widget_set_visible(app.go_on, made->calls->len == 0);
  for (guint n = 0; n < made->calls->len; ++n)
    add_card(app.calls, n, made->calls->pdata[n], n < results ? conversation_message(c, i + 1 + n).text : NULL, last && n == results);
}

/* The messages from `first` on, and the answer under way. */
static void add_messages(guint first) {
  const Conversation* c = app.current;
  guint number = 0; /* of questions so far */
  for (guint i = 0; i < c->messages->len; ++i) {
    const Message m = conversation_message(c, i);
    if (conversation_asks(c, i)) ++number;
    if (i < first || g_str_equal(m.role, "tool")) continue;
    if (g_str_equal(m.role, "system")) {
      g_autofree char* words = g_strdup_printf("System prompt: %s", m.text);
      GtkWidget* label = g_object_new(GTK_TYPE_LABEL, "label", words, "xalign", 0.0, "wrap", TRUE, "selectable", TRUE, NULL);
      gtk_widget_add_css_class(label, "meta");
      gtk_box_append(ui("messages"), label);
      continue;
    }
    add_message(number, conversation_asks(c, i), m, i);
    if (conversation_asks(c, i)) continue;
    Made made = made_new();
    made_parse(&made, m.document);
    add_made(&made, i);
    made_free(&made);
  }
  if (app.answering == c) {
    add_message(number, FALSE, (Message){.text = app.streamed->str}, c->messages->len);
    add_made(&app.made, c->messages->len);
  } else {
    app.answer = NULL;
  }
  app.stick = TRUE;
}

static void show_messages(void) {
  for (GtkWidget* child; (child = gtk_widget_get_first_child(ui("messages")));) gtk_box_remove(ui("messages"), child);
  gtk_widget_set_visible(ui("empty"), app.current->messages->len == 0);
  add_messages(0);
}

G_MODULE_EXPORT void on_range(GtkAdjustment* range, GParamSpec* what) {
  const double end = gtk_adjustment_get_upper(range) - gtk_adjustment_get_page_size(range);
  if (g_str_equal(what->name, "value")) app.stick = gtk_adjustment_get_value(range) >= end - 4;
  else if (app.stick) gtk_adjustment_set_value(range, end);
}

/* ---- Conversations ---- */

static void leave_edit(void) {
  if (app.edit_from != G_MAXSIZE) gtk_text_buffer_set_text(composed(), "", 0);
  app.edit_from = G_MAXSIZE;
}

G_MODULE_EXPORT void on_row(GtkListBox* list G_GNUC_UNUSED, GtkListBoxRow* row) {
  Conversation* c = row ? g_object_get_data(G_OBJECT(row), "conversation") : NULL;
  if (!c || c == app.current) return;
  app.current = c;
  leave_edit();
  show_messages();
  window_show();
}

G_MODULE_EXPORT void on_title(GtkEditable* name, GtkWidget* row) { name_for_readers(row, gtk_editable_get_text(name)); }

G_MODULE_EXPORT void on_name_entered(void) { gtk_widget_grab_focus(ui("composer")); }

G_MODULE_EXPORT void on_renamed(GtkEditable* name) {
  if (!*gtk_editable_get_text(name)) gtk_editable_set_text(name, "Conversation");
  gtk_widget_hide(GTK_WIDGET(name));
}

static void select_conversation(Conversation* c) { gtk_list_box_select_row(ui("list"), GTK_LIST_BOX_ROW(c->row)); }

static void add_conversation(Conversation* c, guint from, char* path) {
  app.next_id = MAX(app.next_id, c->id + 1);
  gtk_list_box_append(ui("list"), c->row);
  worker_do((Job){.type = JOB_NEW,
                  .id = c->id,
                  .from = from,
                  .keep = c->messages->len,
                  .path = path,
                  .messages = conversation_messages(c, c->messages->len)});
}

/* A conversation that shares another's session up to `keep` messages. */
static void start_conversation(const char* title, const Conversation* from, guint keep) {
  Conversation* c = conversation_new(app.next_id, title);
  for (guint i = 0; i < keep; ++i) conversation_add(c, conversation_message(from, i));
  g_ptr_array_add(app.conversations, c);
  add_conversation(c, from ? from->id : 0, NULL);
  select_conversation(c);
  gtk_widget_grab_focus(ui("composer"));
}

static void save(gboolean sessions) {
  worker_do((Job){.type = JOB_SAVE,
                  .keep = (gsize)sessions,
                  .path = g_strdup(app.folder),
                  .messages = conversations_index(app.conversations, app.current ? app.current->id : 0)});
}

G_MODULE_EXPORT void on_delete(GtkWidget* dialog, int response) {
  Conversation* c = app.current;
  guint at = 0;
  if (dialog) gtk_widget_hide(dialog);
  if (response != GTK_RESPONSE_ACCEPT || !c || app.answering || !g_ptr_array_find(app.conversations, c, &at)) return;
  worker_do((Job){.type = JOB_CLOSE, .id = c->id, .path = g_strdup_printf("%s/%u.session", app.folder, c->id)});
  app.current = NULL;
  gtk_list_box_remove(ui("list"), c->row);
  g_ptr_array_remove_index(app.conversations, at);
  if (app.conversations->len == 0) start_conversation("New conversation", NULL, 0);
  select_conversation(app.conversations->pdata[MIN(at, app.conversations->len - 1)]);
  save(FALSE);
}

/* ---- Asking ---- */

/* Puts a question after the first `keep` messages, and has it answered. `hidden`: bytes of a document in front of the question. */
static void ask(Conversation* c, guint keep, const char* text, const char* document, guint64 hidden, guint64 n_again) {
  g_autofree char *kept = g_strdup(text), *name = g_strdup(document),
                  *system = app_system_prompt(); /* they may be of a message that goes */
  Sampling sampling = app_sampling();
  const gboolean begins = keep == 0 && *system;
  g_ptr_array_set_size(c->messages, (int)keep);
  if (begins) conversation_add(c, (Message){.role = "system", .text = system}), keep = 1;
  app.n_again = n_again;
  sampling.seed += n_again;
  worker_do((Job){.type = JOB_SEND,
                  .id = c->id,
                  .keep = keep,
                  .replaces = begins,
                  .sampling = sampling,
                  .text = g_strdup(kept),
                  .messages = conversation_messages(c, keep)});
  conversation_add(c, (Message){.role = "user", .text = kept, .document = name, .hidden = hidden});
  app.edit_from = G_MAXSIZE;
  app.answering = c;
  g_string_truncate(app.streamed, 0);
  made_clear(&app.made);
}

static void send_message(void) {
  Conversation* c = app.current;
  g_autofree char* typed = NULL;
  g_object_get(composed(), "text", &typed, NULL);
  if (!*g_strstrip(typed)) return;
  const gboolean edits = app.edit_from != G_MAXSIZE;
  const guint keep = edits ? (guint)app.edit_from : c->messages->len;
  const Message old = edits ? conversation_message(c, keep) : (Message){.text = ""};
  gsize bytes = 0;
  const char* document = app.document ? g_bytes_get_data(app.document, &bytes) : NULL;
  g_autofree char* before = document ? g_strdup_printf("%.*s\n\n", (int)bytes, document) : g_strndup(old.text, old.hidden);
  g_autofree char* text = g_strconcat(before, typed, NULL);
  ask(c, keep, text, document ? app.document_name : old.document, strlen(before), 0);
  if (g_str_equal(conversation_title(c), "New conversation")) {
    g_autofree char* title = g_utf8_substring(typed, 0, MIN(g_utf8_strlen(typed, -1), 40));
    gtk_editable_set_text(GTK_EDITABLE(c->name), g_strdelimit(title, "\n", ' '));
  }
  gtk_text_buffer_set_text(composed(), "", 0);
  if (document) setup_document(NULL);
  if (edits || keep == 0) show_messages();
  else add_messages(keep);
}

/* Answers the question before message i again, with the next seed. What follows the question goes. */
static void answer_again(guint i) {
  Conversation* c = app.current;
  for (i = MIN(i, c->messages->len); i-- > 0;) {
    if (!conversation_asks(c, i)) continue;
    const Message m = conversation_message(c, i);
    leave_edit();
    ask(c, i, m.text, m.document, m.hidden, app.n_again + 1);
    show_messages();
    return;
  }
}

/* Lets answer i go on where it ended. What follows it goes. The answer so far is as if it had just been streamed. */
static void go_on(guint i) {
  Conversation* c = app.current;
  for (i = MIN(i + 1, c->messages->len); i-- > 0;) {
    const Message m = conversation_message(c, i);
    if (!g_str_equal(m.role, "assistant")) continue;
    made_clear(&app.made);
    made_parse(&app.made, m.document);
    if (app.made.calls->len) return;
    leave_edit();
    worker_do((Job){.type = JOB_SEND,
                    .id = c->id,
                    .keep = i + 1,
                    .goes_on = TRUE,
                    .sampling = app_sampling(),
                    .messages = conversation_messages(c, i + 1)});
    g_string_assign(app.streamed, m.text);
    app.answering = c;
    g_ptr_array_set_size(c->messages, (int)i);
    show_messages();
    return;
  }
}

static void copy(guint i) {
  if (i >= app.current->messages->len) return; /* of an answer under way */
  gdk_clipboard_set_text(gtk_widget_get_clipboard(ui("window")), conversation_message(app.current, i).text);
}

/* The results of an answer's calls are messages, in order. After the last one the model goes on. */
static void on_result(GtkWidget* field) {
  Conversation* c = app.current;
  guint given = 0;
  if (app.answering || app.opening || !c) return;
  while (given < c->messages->len && g_str_equal(conversation_message(c, c->messages->len - 1 - given).role, "tool")) ++given;
  if (given == c->messages->len) return;
  Made made = made_new();
  made_parse(&made, conversation_message(c, c->messages->len - 1 - given).document);
  if (given < made.calls->len) {
    const Call* call = made.calls->pdata[given];
    conversation_add(c, (Message){.role = "tool", .text = gtk_editable_get_text(GTK_EDITABLE(field)), .document = call->id});
    if (given + 1 == made.calls->len) {
      const guint keep = c->messages->len;
      worker_do((Job){.type = JOB_SEND, .id = c->id, .keep = keep, .sampling = app_sampling(), .messages = conversation_messages(c, keep)});
      app.answering = c;
      g_string_truncate(app.streamed, 0);
      made_clear(&app.made);
    }
    show_messages();
  }
  made_free(&made);
  window_show();
}

static void edit(guint i) {
  const Message m = conversation_message(app.current, i);
  app.edit_from = i;
  gtk_text_buffer_set_text(composed(), m.text + m.hidden, -1);
  gtk_widget_grab_focus(ui("composer"));
}

void app_open(void) {
  app.open_when_planned = FALSE;
  app.opening = TRUE;
  if (app.folder) save(TRUE); /* of the model before */
  g_clear_pointer(&app.folder, g_free);
  g_free(app.opened_path);
  app.opened_path = g_strdup(app.model_path);
  app.opened_context = (guint32)gtk_range_get_value(ui("context"));
  worker_do((Job){.type = JOB_OPEN,
                  .path = g_strdup(app.model_path),
                  .context = app.opened_context,
                  .share = (float)gtk_range_get_value(ui("share")) / 100});
}

void app_take(GFile* file) {
  g_autofree char* path = g_file_get_path(file);
  if (path && g_str_has_suffix(path, ".gguf")) setup_model(path, 0, 0);
  else setup_document(file);
}

/* ---- What the worker says ---- */

static void opened(const Event* e) {
  g_autoptr(GString) fingerprint = g_string_new(NULL);
  guint current = 0;
  g_autofree char* text = NULL;
  for (gsize i = 0; i < sizeof e->info.fingerprint; ++i) g_string_append_printf(fingerprint, "%02x", e->info.fingerprint[i]);
  g_autofree char* index = app_data(fingerprint->str, "conversations");
  app.opening = FALSE;
  app.folder = g_path_get_dirname(index);
  app.n_layers = 0;
  app.n_heads = e->info.n_kv_heads;
  app.current = NULL;
  g_clear_pointer(&app.held, g_free);
  for (guint i = 0; i < app.conversations->len; ++i) gtk_list_box_remove(ui("list"), ((Conversation*)app.conversations->pdata[i])->row);
  g_ptr_array_set_size(app.conversations, 0);
  if (g_file_get_contents(index, &text, NULL, NULL) && !conversations_from_text(text, app.conversations, &current)) {
    g_autofree char* aside = g_strdup_printf("%s.damaged-%" G_GINT64_FORMAT, index, g_get_real_time());
    const char* kept = g_rename(index, aside) == 0 ? "is kept as" : "could not be kept as";
    g_autofree char* words = g_strdup_printf("The saved conversations are damaged. The file %s %s.", kept, aside);
    app_error(words);
  }
  gtk_stack_set_visible_child_name(ui("pages"), "chat");
  say("subtitle", "%s", e->text->str);
  for (guint i = 0; i < app.conversations->len; ++i) {
    Conversation* c = app.conversations->pdata[i];
    add_conversation(c, 0, g_strdup_printf("%s/%u.session", app.folder, c->id));
    if (c->id == current || i == 0) select_conversation(c);
  }
  if (app.conversations->len == 0) start_conversation("New conversation", NULL, 0);
  app_save_settings();
  gtk_widget_grab_focus(ui("composer"));
}

static void draw_heat(GtkDrawingArea* area G_GNUC_UNUSED, cairo_t* cr, int width, int height, gpointer user G_GNUC_UNUSED) {
  const double w = (double)width / app.n_heads, tall = (double)height / app.n_layers, gap = w > 5 && tall > 5 ? 1.5 : 0;
  for (guint i = 0; app.held && i < app.n_layers * app.n_heads; ++i) {
    cairo_set_source_rgba(cr, .21, .52, .89, .08 + .8 * app.held[i] / MAX(app.n_held, 1));
    cairo_rectangle(cr, i % app.n_heads * w + gap / 2, i / app.n_heads * tall + gap / 2, w - gap, tall - gap);
    cairo_fill(cr);
  }
}

/* A cell for each KV head, and its percentage for readers of the screen. */
static void show_heat(const Event* e) {
  const guint n = (guint)(e->text->len / sizeof *app.held);
  g_autoptr(GString) cells = g_string_new(NULL);
  double sum = 0;
  if (n == 0 || n % app.n_heads != 0) return;
  app.n_layers = n / app.n_heads; /* the layers whose residency the library tells */
  g_free(app.held);
  app.held = g_memdup2(e->text->str, e->text->len);
  app.n_held = e->stats.n_tokens;
  for (guint i = 0; i < n; ++i) {
    const double share = 100.0 * app.held[i] / MAX(app.n_held, 1);
    if (i % app.n_heads == 0) g_string_append_printf(cells, "%sLayer %u:", i ? "; " : "", i / app.n_heads + 1);
    g_string_append_printf(cells, " %.0f", share);
    sum += share;
  }
  say("heat_text", "%u layers (down) by %u KV heads (across). %.0f %% of the tokens on the device, averaged over the heads.", app.n_layers,
      app.n_heads, sum / n);
  g_autofree char* words =
      g_strdup_printf("KV on the device, %u layers by %u heads: %.0f %% of the tokens on average", app.n_layers, app.n_heads, sum / n);
  gtk_drawing_area_set_draw_func(ui("heat"), draw_heat, NULL, NULL);
  gtk_accessible_update_property(ui("heat"), GTK_ACCESSIBLE_PROPERTY_LABEL, words, GTK_ACCESSIBLE_PROPERTY_DESCRIPTION, cells->str, -1);
}

static void show_stats(const Event* e) {
  static const char kShown[] = "%.0f tokens/s\n%.1f tokens/s\n%s of %s\n\n%s\n%s\n%s\n%s\n\n%s\n%s\n%.0f ms";
  static const char kRead[] =
      "Prompt %.0f tokens per second, answer %.1f. Context: %s of %s tokens. KV on the device %s of %s, shared "
      "with forks %s, in host memory %s. Fetched for answers %s, moved in all %s, waited %.0f ms.";
  const orrery_stats* s = &e->stats;
#define FIGURES                                                                                                                     \
  e->rates[0], e->rates[1], grouped(s->n_tokens), grouped(s->n_context), sized(s->device_kv_used_bytes), sized(s->device_kv_bytes), \
      sized(s->shared_kv_bytes), sized(s->reservoir_bytes), sized(s->refill_bytes), sized(s->host_to_device_bytes),                 \
      (double)s->stall_us / 1e3
  g_autofree char* words = g_strdup_printf(kRead, FIGURES);
  say("figures", kShown, FIGURES);
#undef FIGURES
  name_for_readers(ui("figures"), words);
  show_heat(e);
}

/* A call that was cut is none. */
static void cut_calls(void) {
  while (app.made.calls->len && !*((Call*)app.made.calls->pdata[app.made.calls->len - 1])->id)
    g_ptr_array_set_size(app.made.calls, (int)app.made.calls->len - 1);
}

/* A part of a call of the answer under way. */
static void called(const Event* e) {
  if (e->type == EVENT_CALL) {
    made_call(&app.made, e->text->str);
    if (app.answer) add_card(app.calls, app.made.calls->len - 1, app.made.calls->pdata[app.made.calls->len - 1], NULL, FALSE);
  }
  if (e->done >= app.made.calls->len) return;
  Call* call = app.made.calls->pdata[e->done];
  if (e->type == EVENT_CALL_END) g_free(call->id), call->id = g_strdup(e->text->str);
  if (e->type != EVENT_ARGUMENTS) return;
  g_string_append(call->arguments, e->text->str);
  GtkWidget* card = app.answer ? gtk_widget_get_last_child(app.calls) : NULL;
  if (card) gtk_label_set_text(g_object_get_data(G_OBJECT(card), "arguments"), call->arguments->str);
}

static void done(const Event* e) {
  static const char* const kEnds[] = {"", "", "", ", length limit", ", the context is full", ", stopped", ", calls wait for their results"};
  Conversation* c = app.answering;
  const orrery_event* end = &e->end;
  g_autofree char* meta = end->type == 0
                              ? g_strdup("no answer")
                              : g_strdup_printf("%s tokens, prompt of %s (%s reused), first token after %.2f s%s",
                                                grouped(end->generated_tokens), grouped(end->prompt_tokens), grouped(end->reused_tokens),
                                                (double)end->first_token_us / 1e6, kEnds[MIN(end->finish_reason, G_N_ELEMENTS(kEnds) - 1)]);
  if (end->finish_reason != ORRERY_FINISH_CALLS) cut_calls();
  g_autofree char* made = made_print(&app.made);
  conversation_add(c, (Message){.role = "assistant", .text = app.streamed->str, .meta = meta, .document = made});
  const gboolean whole = e->n_messages >= c->messages->len;
  if (!whole) g_ptr_array_set_size(c->messages, (int)e->n_messages); /* nothing came before it was stopped */
  if (app.answer) gtk_label_set_text(app.meta, meta);
  app.answering = NULL;
  app.answer = NULL;
  if ((!whole || app.made.calls->len) && c == app.current) show_messages();
  save(FALSE);
}

static void progress(const char* id, const Event* e, const char* format) {
  g_autofree char* words = g_strdup_printf(format, grouped(e->done), grouped(e->total));
  gtk_widget_set_visible(ui(id), e->done < e->total);
  gtk_progress_bar_set_fraction(ui(id), e->total ? (double)e->done / (double)e->total : 0);
  gtk_progress_bar_set_text(ui(id), words);
}

void app_event(const Event* e) {
  switch (e->type) {
    case EVENT_PLANNED:
      if (!app.quitting) setup_planned(e);
      return;
    case EVENT_LOADING: progress("loading", e, "%s of %s bytes"); break;
    case EVENT_OPENED:
      if (!app.quitting) opened(e);
      break;
    case EVENT_PROGRESS:
      if (app.answering == app.current) progress("progress", e, "Reading the prompt: %s of %s tokens");
      break;
    case EVENT_STATS: show_stats(e); return;
    case EVENT_DONE: done(e); break;
    case EVENT_TEXT:
      g_string_append(app.streamed, e->text->str);
      if (app.answer) markdown_append(app.answer, e->text->str);
      return;
    case EVENT_REASONING:
      g_string_append(app.made.thought, e->text->str);
      if (app.answer) show_thought(app.made.thought->str);
      return;
    case EVENT_CALL:
    case EVENT_ARGUMENTS:
    case EVENT_CALL_END: called(e); return;
    case EVENT_FAILED:
      app.opening = FALSE;
      app_error(e->text->str);
      break;
    case EVENT_ERROR: app_error(e->text->str); break;
    case EVENT_SAVED:
      if (!app.quitting || e->total == 0) break;
      if (e->done == 0) worker_do((Job){.type = JOB_QUIT});
      else app_error("Close the window once more to leave without saving."), app.leave = TRUE, app.quitting = FALSE;
      break;
    case EVENT_QUIT:
      app.quitting = app.leave = TRUE;
      gtk_window_destroy(ui("window"));
      return;
  }
  window_show();
}

/* ---- The window ---- */

G_MODULE_EXPORT gboolean on_close_request(void) {
  if (app.quitting) return !app.leave; /* the worker's last event destroys the window */
  app.quitting = TRUE;
  worker_stop();
  say("title", "Saving…");
  if (app.folder && !app.leave) save(TRUE);
  else worker_do((Job){.type = JOB_QUIT});
  return TRUE;
}

G_MODULE_EXPORT gboolean on_key(GtkEventController* keys, guint key, guint code G_GNUC_UNUSED, GdkModifierType state) {
  if ((key != GDK_KEY_Return && key != GDK_KEY_KP_Enter) || state & GDK_SHIFT_MASK) return FALSE;
  if (!gtk_text_view_im_context_filter_keypress(ui("composer"), gtk_event_controller_get_current_event(keys)))
    g_action_group_activate_action(G_ACTION_GROUP(app.app), "send", NULL);
  return TRUE;
}

G_MODULE_EXPORT gboolean on_drop(GtkDropTarget* target G_GNUC_UNUSED, const GValue* value) {
  for (const GSList* files = g_value_get_boxed(value); files; files = files->next) app_take(files->data);
  return TRUE;
}

G_MODULE_EXPORT void on_text(GtkTextBuffer* buffer) { gtk_widget_set_visible(ui("hint"), gtk_text_buffer_get_char_count(buffer) == 0); }

static void on_action(GSimpleAction* action, GVariant* value, gpointer user G_GNUC_UNUSED) {
  const char* name = g_action_get_name(G_ACTION(action));
  Conversation* c = app.current;
  if (g_str_equal(name, "new")) start_conversation("New conversation", c, 0);
  else if (g_str_equal(name, "fork")) {
    g_autofree char* title = g_strconcat("Fork of ", conversation_title(c), NULL);
    start_conversation(title, c, c->messages->len);
  } else if (g_str_equal(name, "rename")) {
    gtk_widget_show(c->name);
    gtk_widget_grab_focus(c->name);
  } else if (g_str_equal(name, "delete") && c->messages->len == 0) on_delete(NULL, GTK_RESPONSE_ACCEPT);
  else if (g_str_equal(name, "delete")) {
    g_autofree char* question = g_strdup_printf("Delete “%s” and its messages?", conversation_title(c));
    g_object_set(ui("ask"), "text", question, NULL);
    gtk_window_present(ui("ask"));
  } else if (g_str_equal(name, "model") || g_str_equal(name, "document")) gtk_native_dialog_show(ui(name));
  else if (g_str_equal(name, "open")) app_open();
  else if (g_str_equal(name, "back")) {
    setup_model(app.opened_path, app.opened_context, 0);
    gtk_stack_set_visible_child_name(ui("pages"), "chat");
  } else if (g_str_equal(name, "drop")) setup_document(NULL), leave_edit();
  else if (g_str_equal(name, "send")) send_message();
  else if (g_str_equal(name, "stop")) app.answering || app.opening ? worker_stop() : leave_edit();
  else if (g_str_equal(name, "edit")) edit(g_variant_get_uint32(value));
  else if (g_str_equal(name, "again")) answer_again(g_variant_get_uint32(value));
  else if (g_str_equal(name, "again-last")) answer_again(c->messages->len);
  else if (g_str_equal(name, "go-on")) go_on(g_variant_get_uint32(value));
  else if (g_str_equal(name, "go-on-last")) go_on(c->messages->len);
  else if (g_str_equal(name, "copy")) copy(g_variant_get_uint32(value));
  else if (g_str_equal(name, "settings")) gtk_window_present(ui("settings"));
  else if (g_str_equal(name, "edit-last")) {
    for (guint i = c->messages->len; i-- > 0;)
      if (conversation_asks(c, i)) {
        edit(i);
        break;
      }
  } else if (g_str_equal(name, "next") || g_str_equal(name, "previous")) {
    const int at = gtk_list_box_row_get_index(gtk_list_box_get_selected_row(ui("list")));
    GtkListBoxRow* row = gtk_list_box_get_row_at_index(ui("list"), at + (g_str_equal(name, "next") ? 1 : -1));
    if (row) gtk_list_box_select_row(ui("list"), row);
  } else if (g_str_equal(name, "shortcuts")) gtk_window_present(ui("help"));
  else if (g_str_equal(name, "quit")) gtk_window_close(ui("window"));
  window_show();
}

static void on_panel(GSimpleAction* action, GVariant* value, gpointer user G_GNUC_UNUSED) {
  g_simple_action_set_state(action, value);
  gtk_revealer_set_reveal_child(ui("panel"), g_variant_get_boolean(value));
}

static void on_side(GSimpleAction* action, GVariant* value, gpointer user G_GNUC_UNUSED) {
  g_simple_action_set_state(action, value);
  gtk_widget_set_visible(ui("side"), g_variant_get_boolean(value));
}

/* A part that has lost its room hides, and comes back with it. In a narrow window the user may show it all the same. */
static void fold(const char* action, gboolean* folded, gboolean room) {
  if (*folded != room) return;
  *folded = !room;
  g_action_group_change_action_state(G_ACTION_GROUP(app.app), action, g_variant_new_boolean(room));
}

static gboolean fit(gpointer user G_GNUC_UNUSED) {
  const double width = gtk_adjustment_get_page_size(ui("width_range"));
  if (width < 1) return G_SOURCE_REMOVE;
  fold("panel", &app.narrow, width >= 800);
  fold("side", &app.tiny, width >= 560);
  setup_width((int)width);
  return G_SOURCE_REMOVE;
}

/* Nothing may change its size while sizes are given out. */
G_MODULE_EXPORT void on_width(void) { g_idle_add(fit, NULL); }

static void on_style(GSimpleAction* action G_GNUC_UNUSED, GVariant* value, gpointer user G_GNUC_UNUSED) {
  app_style(g_variant_get_string(value, NULL));
  app_save_settings();
}

void window_new(void) {
  static const char* const kNames[] = {"new",  "fork",     "rename",   "delete",    "model",     "document",   "open",
                                       "back", "drop",     "send",     "stop",      "edit-last", "again-last", "go-on-last",
                                       "next", "previous", "settings", "shortcuts", "quit"};
  static const GActionEntry kOthers[] = {{.name = "edit", .activate = on_action, .parameter_type = "u"},
                                         {.name = "again", .activate = on_action, .parameter_type = "u"},
                                         {.name = "go-on", .activate = on_action, .parameter_type = "u"},
                                         {.name = "copy", .activate = on_action, .parameter_type = "u"},
                                         {.name = "side", .state = "true", .change_state = on_side},
                                         {.name = "panel", .state = "true", .change_state = on_panel},
                                         {.name = "style", .parameter_type = "s", .state = "'system'", .change_state = on_style}};
  for (gsize i = 0; i < G_N_ELEMENTS(kNames); ++i) {
    const GActionEntry entry = {.name = kNames[i], .activate = on_action};
    g_action_map_add_action_entries(G_ACTION_MAP(app.app), &entry, 1, NULL);
  }
  g_action_map_add_action_entries(G_ACTION_MAP(app.app), kOthers, G_N_ELEMENTS(kOthers), NULL);
  g_type_ensure(GDK_TYPE_FILE_LIST); /* window.ui names it */
  app.builder = gtk_builder_new();
  for (const char* const* file = (const char* const[]){"window.ui", "settings.ui", NULL}; *file; ++file) {
    g_autofree char* path = g_strconcat("/org/orrery/desktop/", *file, NULL);
    if (!gtk_builder_add_from_resource(app.builder, path, NULL)) g_error("%s is not right", *file);
  }
  gtk_window_set_application(ui("window"), app.app);
  g_autoptr(GtkCssProvider) css = gtk_css_provider_new();
  gtk_css_provider_load_from_resource(css, "/org/orrery/desktop/style.css");
  gtk_style_context_add_provider_for_display(gdk_display_get_default(), GTK_STYLE_PROVIDER(css), GTK_STYLE_PROVIDER_PRIORITY_APPLICATION);
  window_show();
}
