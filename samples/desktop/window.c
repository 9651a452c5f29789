/* window.c - the window at work: actions, conversations in the side bar, messages, and what the worker's events change. */
#include "desktop.h"

#include <glib/gstdio.h>
#include <string.h>

GtkWidget* ui(App* a, const char* id) { return GTK_WIDGET(gtk_builder_get_object(a->ui, id)); }

static void set_text(App* a, const char* id, const char* text) { gtk_label_set_text(GTK_LABEL(ui(a, id)), text); }

static GtkTextBuffer* composed(App* a) { return gtk_text_view_get_buffer(GTK_TEXT_VIEW(ui(a, "composer"))); }

void app_error(App* a, const char* text) {
  GtkInfoBar* banner = GTK_INFO_BAR(ui(a, "banner"));
  const char* before = gtk_label_get_text(GTK_LABEL(ui(a, "banner_text")));
  g_autofree char* all = strstr(before, text) ? g_strdup(before) : g_strconcat(before, *before ? "\n" : "", text, NULL);
  set_text(a, "banner_text", all);
  gtk_info_bar_set_revealed(banner, TRUE);
}

void window_show(App* a) {
  const gboolean chat = a->folder && g_str_equal(gtk_stack_get_visible_child_name(GTK_STACK(ui(a, "pages"))), "chat");
  const gboolean ready = chat && a->current && !a->answering && !a->opening, too_long = a->document_tokens >= (gint64)a->opened_context;
  const struct { const char* name; gboolean enabled; } kActions[] = {
      {"new", ready}, {"fork", ready}, {"close", ready}, {"edit", ready}, {"rename", chat && a->current}, {"next", chat}, {"previous", chat}, {"panel", chat},
      {"send", ready && !(a->document && too_long)}, {"stop", a->answering || a->opening || a->edit_from != G_MAXSIZE},
      {"model", !a->answering && !a->opening}, {"open", a->fits && !a->opening && !a->planning}, {"back", a->folder && !chat}};
  for (gsize i = 0; i < G_N_ELEMENTS(kActions); ++i)
    g_simple_action_set_enabled(G_SIMPLE_ACTION(g_action_map_lookup_action(G_ACTION_MAP(a->app), kActions[i].name)), kActions[i].enabled);
  g_autofree char* tokens = a->document_tokens >= 0 ? grouped((guint64)a->document_tokens) : g_strdup("…");
  g_autofree char* document = a->document ? g_strdup_printf("%s, %s tokens", a->document_name, tokens) : g_strdup("None");
  g_autofree char* chip = a->edit_from != G_MAXSIZE ? g_strdup("This replaces an earlier message, and what follows it.")
                          : a->document && too_long ? g_strdup_printf("%s: longer than the context of %u", document, a->opened_context)
                                                    : g_strdup_printf("With %s", document);
  set_text(a, "document_name", document);
  set_text(a, "chip_text", chip);
  gtk_widget_set_visible(ui(a, "chip"), a->document || a->edit_from != G_MAXSIZE);
  gtk_widget_set_visible(ui(a, "back"), a->folder && !chat);
  gtk_widget_set_visible(ui(a, "new"), chat);
  gtk_widget_set_visible(ui(a, "panel_button"), chat);
  gtk_widget_set_visible(ui(a, "stop"), a->answering != NULL);
  gtk_widget_set_visible(ui(a, "send"), !a->answering);
  gtk_widget_set_visible(ui(a, "loading"), a->opening);
  if (!a->answering) gtk_widget_set_visible(ui(a, "progress"), FALSE);
}

/* ---- Messages ---- */

static GtkWidget* line(const char* text, const char* style) {
  return g_object_new(GTK_TYPE_LABEL, "label", text, "xalign", 0.0f, "wrap", TRUE, "wrap-mode", PANGO_WRAP_WORD_CHAR, "selectable", TRUE,
                      "css-classes", (const char*[]){style, NULL}, NULL);
}

static void add_message(App* a, guint i) {
  const Message* m = a->current->messages->pdata[i];
  const gboolean user = g_str_equal(m->role, "user");
  guint number = 0;   /* of questions so far */
  for (guint j = 0; j <= i; ++j) number += g_str_equal(((Message*)a->current->messages->pdata[j])->role, "user");
  GtkWidget* row = g_object_new(GTK_TYPE_BOX, "orientation", GTK_ORIENTATION_VERTICAL, "spacing", 4, "accessible-role", GTK_ACCESSIBLE_ROLE_LIST_ITEM,
                                "halign", user ? GTK_ALIGN_END : GTK_ALIGN_FILL, "margin-start", user ? 60 : 0, NULL);
  GtkWidget* body = user ? line(m->text + m->hidden, "bubble") : markdown_new(m->text);
  g_autofree char* name = g_strdup_printf("%s %u", user ? "Question" : "Answer", number);
  gtk_accessible_update_property(GTK_ACCESSIBLE(row), GTK_ACCESSIBLE_PROPERTY_LABEL, name, -1);
  if (!user) gtk_accessible_update_property(GTK_ACCESSIBLE(body), GTK_ACCESSIBLE_PROPERTY_LABEL, name, -1);   /* a label's name is its text */
  gtk_box_append(GTK_BOX(row), g_object_new(GTK_TYPE_LABEL, "label", user ? "You" : "Assistant", "xalign", user ? 1.0f : 0.0f,
                                            "css-classes", (const char*[]){"role", NULL}, NULL));
  if (m->document) gtk_box_append(GTK_BOX(row), g_object_new(GTK_TYPE_LABEL, "label", m->document, "xalign", 1.0f, "css-classes", (const char*[]){"meta", NULL}, NULL));
  gtk_box_append(GTK_BOX(row), body);
  if (user) {
    GtkWidget* edit = g_object_new(GTK_TYPE_BUTTON, "label", "Edit", "has-frame", FALSE, "halign", GTK_ALIGN_END, "action-name", "app.edit",
                                   "action-target", g_variant_new_uint32(i), "tooltip-text", "Edit and send again (Ctrl+E edits the last question)",
                                   "css-classes", (const char*[]){"flat", "edit", NULL}, NULL);
    g_autofree char* words = g_strdup_printf("Edit question %u", number);
    gtk_accessible_update_property(GTK_ACCESSIBLE(edit), GTK_ACCESSIBLE_PROPERTY_LABEL, words, -1);
    gtk_box_append(GTK_BOX(row), edit);
  } else {
    GtkWidget* meta = line(m->meta ? m->meta : "", "meta");
    gtk_box_append(GTK_BOX(row), meta);
    if (a->answering == a->current && i + 1 == a->current->messages->len) a->answer = body, a->answer_meta = meta;
  }
  gtk_box_append(GTK_BOX(ui(a, "messages")), row);
}

static void show_messages(App* a) {
  GtkWidget *box = ui(a, "messages"), *child;
  while ((child = gtk_widget_get_first_child(box))) gtk_box_remove(GTK_BOX(box), child);
  a->answer = a->answer_meta = NULL;
  a->stick = TRUE;
  for (guint i = 0; a->current && i < a->current->messages->len; ++i) add_message(a, i);
  if (a->current && a->current->messages->len == 0)
    gtk_box_append(GTK_BOX(box), line("A new conversation. Ask something, or drop a document on the window to talk about it.", "dim"));
}

static void on_range(GtkAdjustment* range, GParamSpec* what, gpointer app) {
  App* a = app;
  const double end = gtk_adjustment_get_upper(range) - gtk_adjustment_get_page_size(range);
  if (g_str_equal(what->name, "value")) a->stick = gtk_adjustment_get_value(range) >= end - 4;
  else if (a->stick) gtk_adjustment_set_value(range, end);
}

/* ---- Conversations ---- */

static void leave_edit(App* a) {
  if (a->edit_from != G_MAXSIZE) gtk_text_buffer_set_text(composed(a), "", 0);
  a->edit_from = G_MAXSIZE;
  window_show(a);
}

static void on_row(App* a, GtkListBoxRow* row) {
  Conversation* c = row ? g_object_get_data(G_OBJECT(row), "conversation") : NULL;
  if (!c || c == a->current) return;
  a->current = c;
  leave_edit(a);
  show_messages(a);
}

static void set_title(Conversation* c, const char* title) {
  char* copy = g_strdup(title);   /* which may be the old one */
  g_free(c->title);
  c->title = copy;
  gtk_label_set_text(GTK_LABEL(gtk_stack_get_child_by_name(GTK_STACK(c->name), "label")), copy);
  gtk_accessible_update_property(GTK_ACCESSIBLE(c->row), GTK_ACCESSIBLE_PROPERTY_LABEL, copy, -1);
}

static void rename_conversation(Conversation* c) {
  GtkWidget* entry = gtk_stack_get_child_by_name(GTK_STACK(c->name), "entry");
  gtk_editable_set_text(GTK_EDITABLE(entry), c->title);
  gtk_stack_set_visible_child(GTK_STACK(c->name), entry);
  gtk_widget_grab_focus(entry);
}

static void on_renamed(App* a, GtkEditable* entry) {
  if (*gtk_editable_get_text(entry)) set_title(a->current, gtk_editable_get_text(entry));
  gtk_widget_grab_focus(ui(a, "composer"));
}

static void leave_rename(GtkStack* name) { gtk_stack_set_visible_child_name(name, "label"); }

/* A row is a name, and an entry in its place while it is renamed. */
static void add_row(App* a, Conversation* c) {
  GtkWidget *label = gtk_label_new(NULL), *entry = gtk_entry_new();
  GtkEventController* focus = gtk_event_controller_focus_new();
  c->row = gtk_list_box_row_new();
  c->name = gtk_stack_new();
  a->next_id = MAX(a->next_id, c->id + 1);
  g_object_set(label, "xalign", 0.0f, "ellipsize", PANGO_ELLIPSIZE_END, NULL);
  gtk_editable_set_width_chars(GTK_EDITABLE(entry), 5);
  gtk_accessible_update_property(GTK_ACCESSIBLE(entry), GTK_ACCESSIBLE_PROPERTY_LABEL, "Name of the conversation", -1);
  gtk_stack_add_named(GTK_STACK(c->name), label, "label");
  gtk_stack_add_named(GTK_STACK(c->name), entry, "entry");
  gtk_widget_add_controller(entry, focus);
  g_signal_connect_swapped(focus, "leave", G_CALLBACK(leave_rename), c->name);
  g_signal_connect_swapped(entry, "activate", G_CALLBACK(on_renamed), a);
  gtk_list_box_row_set_child(GTK_LIST_BOX_ROW(c->row), c->name);
  g_object_set_data(G_OBJECT(c->row), "conversation", c);
  set_title(c, c->title);
  gtk_list_box_append(GTK_LIST_BOX(ui(a, "list")), c->row);
}

/* A conversation that shares another's session up to `keep` messages. */
static void start_conversation(App* a, const char* title, const Conversation* from, guint keep) {
  Conversation* c = conversation_new(a->next_id, title);
  for (guint i = 0; i < keep; ++i) {
    const Message* m = from->messages->pdata[i];
    Message* copy = conversation_add(c, m->role, m->text);
    copy->meta = g_strdup(m->meta), copy->document = g_strdup(m->document), copy->hidden = m->hidden;
  }
  g_ptr_array_add(a->conversations, c);
  worker_do(a->worker, (Job){.type = JOB_NEW, .id = c->id, .from = from ? from->id : 0, .keep = keep, .messages = conversation_strings(c, keep)});
  add_row(a, c);
  gtk_list_box_select_row(GTK_LIST_BOX(ui(a, "list")), GTK_LIST_BOX_ROW(c->row));
  gtk_widget_grab_focus(ui(a, "composer"));
}

static void save(App* a, gboolean sessions) {
  worker_do(a->worker, (Job){.type = JOB_SAVE, .keep = (gsize)sessions, .path = g_strdup(a->folder),
                             .index = conversations_index(a->conversations, a->current ? a->current->id : 0)});
}

static void close_conversation(App* a, int response) {
  Conversation* c = a->current;
  guint at = 0;
  if (response != GTK_RESPONSE_ACCEPT || !c || a->answering || !g_ptr_array_find(a->conversations, c, &at)) return;
  worker_do(a->worker, (Job){.type = JOB_CLOSE, .id = c->id, .path = g_strdup_printf("%s/%u.session", a->folder, c->id)});
  a->current = NULL;
  gtk_list_box_remove(GTK_LIST_BOX(ui(a, "list")), c->row);
  g_ptr_array_remove_index(a->conversations, at);
  if (a->conversations->len == 0) start_conversation(a, "New conversation", NULL, 0);
  const Conversation* next = a->conversations->pdata[MIN(at, a->conversations->len - 1)];
  gtk_list_box_select_row(GTK_LIST_BOX(ui(a, "list")), GTK_LIST_BOX_ROW(next->row));
  save(a, FALSE);
}

static void ask_to_close(App* a) {
  GtkWidget* dialog = gtk_message_dialog_new(GTK_WINDOW(a->window), GTK_DIALOG_MODAL | GTK_DIALOG_DESTROY_WITH_PARENT, GTK_MESSAGE_QUESTION, GTK_BUTTONS_NONE,
                                             "Delete “%s” and its messages?", a->current->title);
  gtk_dialog_add_buttons(GTK_DIALOG(dialog), "_Keep", GTK_RESPONSE_CANCEL, "_Delete", GTK_RESPONSE_ACCEPT, NULL);
  g_signal_connect_swapped(dialog, "response", G_CALLBACK(gtk_window_destroy), dialog);
  g_signal_connect_data(dialog, "response", G_CALLBACK(close_conversation), a, NULL, G_CONNECT_SWAPPED);
  gtk_window_present(GTK_WINDOW(dialog));
}

/* ---- Asking ---- */

static gboolean on_tick(GtkWidget* window G_GNUC_UNUSED, GdkFrameClock* clock G_GNUC_UNUSED, gpointer app) {
  App* a = app;
  worker_drain(a->worker);
  return a->answering || a->opening ? G_SOURCE_CONTINUE : G_SOURCE_REMOVE;
}

static void send(App* a) {
  Conversation* c = a->current;
  GtkTextIter from, to;
  gtk_text_buffer_get_bounds(composed(a), &from, &to);
  g_autofree char* typed = g_strstrip(gtk_text_buffer_get_text(composed(a), &from, &to, FALSE));
  const gboolean edits = a->edit_from != G_MAXSIZE;
  const guint keep = edits ? (guint)a->edit_from : c->messages->len;
  const Message* old = edits ? c->messages->pdata[keep] : NULL;
  gsize bytes = 0;
  const char* document = a->document ? g_bytes_get_data(a->document, &bytes) : NULL;
  if (!*typed) return;
  g_autofree char* before = document ? g_strdup_printf("%.*s\n\n", (int)bytes, document) : old ? g_strndup(old->text, old->hidden) : g_strdup("");
  g_autofree char* text = g_strconcat(before, typed, NULL);
  g_autofree char* name = g_strdup(document ? a->document_name : old ? old->document : NULL);
  g_ptr_array_set_size(c->messages, (int)keep);
  Message* m = conversation_add(c, "user", text);
  m->hidden = strlen(before);
  m->document = g_steal_pointer(&name);
  worker_do(a->worker, (Job){.type = JOB_SEND, .id = c->id, .keep = keep, .text = g_steal_pointer(&text), .messages = conversation_strings(c, keep)});
  conversation_add(c, "assistant", "");
  if (g_str_equal(c->title, "New conversation")) {
    g_autofree char* title = g_utf8_substring(typed, 0, MIN(g_utf8_strlen(typed, -1), 40));
    set_title(c, g_strdelimit(title, "\n", ' '));
  }
  gtk_text_buffer_set_text(composed(a), "", 0);
  a->edit_from = G_MAXSIZE;
  a->answering = c;
  frames_phase(PHASE_PREFILL);
  gtk_widget_add_tick_callback(a->window, on_tick, a, NULL);
  if (document) setup_document(a, NULL);
  if (edits || keep == 0) show_messages(a);
  else add_message(a, keep), add_message(a, keep + 1), a->stick = TRUE;
  window_show(a);
}

static void edit(App* a, guint i) {
  const Message* m = a->current->messages->pdata[i];
  a->edit_from = i;
  gtk_text_buffer_set_text(composed(a), m->text + m->hidden, -1);
  gtk_widget_grab_focus(ui(a, "composer"));
  window_show(a);
}

void app_open(App* a) {
  a->open_when_planned = FALSE;
  a->opening = TRUE;
  if (a->folder) save(a, TRUE);   /* of the model before */
  g_clear_pointer(&a->folder, g_free);
  g_free(a->opened_path);
  a->opened_path = g_strdup(a->model_path);
  a->opened_context = (guint32)gtk_range_get_value(GTK_RANGE(ui(a, "context")));
  worker_do(a->worker, (Job){.type = JOB_OPEN, .path = g_strdup(a->model_path), .context = a->opened_context,
                             .share = (float)gtk_range_get_value(GTK_RANGE(ui(a, "share"))) / 100});
  gtk_widget_add_tick_callback(a->window, on_tick, a, NULL);
  window_show(a);
}

void app_take(App* a, GFile* file) {
  g_autofree char *path = g_file_get_path(file), *name = g_file_get_basename(file);
  char magic[4] = "";
  FILE* stream = path ? g_fopen(path, "rb") : NULL;
  const gboolean model = (stream && fread(magic, 1, 4, stream) == 4 && memcmp(magic, "GGUF", 4) == 0) || g_str_has_suffix(name, ".gguf");
  if (stream) fclose(stream);
  if (model && path) setup_model(a, path, 0, 0);
  else setup_document(a, file);
}

/* ---- What the worker says ---- */

static void opened(App* a, const Event* e) {
  char fingerprint[2 * sizeof e->info.fingerprint + 1];
  guint current = 0;
  GtkWidget* row;
  g_autofree char* text = NULL;
  for (gsize i = 0; i < sizeof e->info.fingerprint; ++i) g_snprintf(fingerprint + 2 * i, 3, "%02x", e->info.fingerprint[i]);
  g_autofree char* index = app_data(fingerprint, "conversations");
  a->opening = FALSE;
  a->folder = g_path_get_dirname(index);
  a->n_layers = e->info.n_layers;
  a->n_heads = e->info.n_kv_heads;
  a->current = NULL;
  while ((row = gtk_widget_get_first_child(ui(a, "list")))) gtk_list_box_remove(GTK_LIST_BOX(ui(a, "list")), row);
  g_ptr_array_set_size(a->conversations, 0);
  if (g_file_get_contents(index, &text, NULL, NULL) && !conversations_from_text(text, a->conversations, &current)) {
    g_autofree char* aside = g_strdup_printf("%s.damaged-%" G_GINT64_FORMAT, index, g_get_real_time());
    const gboolean kept = g_rename(index, aside) == 0;
    g_autofree char* words = g_strdup_printf("The saved conversations are damaged. The file %s %s.", kept ? "is kept as" : "could not be kept as", aside);
    app_error(a, words);
  }
  gtk_stack_set_visible_child_name(GTK_STACK(ui(a, "pages")), "chat");
  set_text(a, "subtitle", e->text->str);
  gtk_widget_show(ui(a, "subtitle"));
  for (guint i = 0; i < a->conversations->len; ++i) {
    Conversation* c = a->conversations->pdata[i];
    worker_do(a->worker, (Job){.type = JOB_NEW, .id = c->id, .keep = c->messages->len, .path = g_strdup_printf("%s/%u.session", a->folder, c->id),
                               .messages = conversation_strings(c, c->messages->len)});
    add_row(a, c);
    if (c->id == current || i == 0) gtk_list_box_select_row(GTK_LIST_BOX(ui(a, "list")), GTK_LIST_BOX_ROW(c->row));
  }
  if (a->conversations->len == 0) start_conversation(a, "New conversation", NULL, 0);
  app_settings(a, TRUE);
  gtk_widget_grab_focus(ui(a, "composer"));
}

static void show_stats(App* a, const Event* e) {
  const orrery_stats* s = &e->stats;
  const guint64 sizes[] = {s->device_kv_used_bytes, s->device_kv_bytes, s->shared_kv_bytes, s->reservoir_bytes, s->refill_bytes, s->host_to_device_bytes};
  char* z[G_N_ELEMENTS(sizes)];
  for (gsize i = 0; i < G_N_ELEMENTS(sizes); ++i) z[i] = g_format_size_full(sizes[i], G_FORMAT_SIZE_IEC_UNITS);
  g_autofree char *held = grouped(s->n_tokens), *context = grouped(s->n_context);
  a->rates[e->total == 0] = e->rate > 0 ? e->rate : a->rates[e->total == 0];
  g_autofree char* shown = g_strdup_printf("%.0f tokens/s\n%.1f tokens/s\n%s of %s\n\n%s\n%s\n%s\n%s\n\n%s\n%s\n%.0f ms", a->rates[0], a->rates[1], held, context,
                                           z[0], z[1], z[2], z[3], z[4], z[5], (double)s->stall_us / 1e3);
  g_autofree char* words = g_strdup_printf("Prompt %.0f tokens per second, answer %.1f. Context: %s of %s tokens. KV on the device %s of %s, shared with forks %s, "
                                           "in host memory %s. Fetched for answers %s, moved in all %s, waited %.0f ms.", a->rates[0], a->rates[1], held, context,
                                           z[0], z[1], z[2], z[3], z[4], z[5], (double)s->stall_us / 1e3);
  g_autofree char* heat = g_strdup_printf("%u layers (down) by %u KV heads (across). %.0f %% of the tokens on the device, averaged over the heads.", a->n_layers,
                                          a->n_heads, (double)e->resident * 100);
  set_text(a, "figures", shown);
  gtk_accessible_update_property(GTK_ACCESSIBLE(ui(a, "figures")), GTK_ACCESSIBLE_PROPERTY_LABEL, words, -1);
  set_text(a, "heat_text", heat);
  heat_map_set(ui(a, "heat"), a->n_layers, a->n_heads, e->resident);
  for (gsize i = 0; i < G_N_ELEMENTS(sizes); ++i) g_free(z[i]);
}

static void done(App* a, const Event* e) {
  GPtrArray* messages = a->answering->messages;
  Message* m = messages->pdata[messages->len - 1];
  const gboolean whole = e->n_messages == messages->len, shown = a->answering == a->current;
  m->meta = g_strdup(e->text->str);
  if (a->answer_meta) gtk_label_set_text(GTK_LABEL(a->answer_meta), m->meta);
  if (!whole && e->n_messages < messages->len) g_ptr_array_set_size(messages, (int)e->n_messages);   /* nothing came before it was stopped */
  a->answering = NULL;
  a->answer = a->answer_meta = NULL;
  frames_phase(PHASE_IDLE);
  frames_report(a->frame_report);
  if (!whole && shown) show_messages(a);
  save(a, FALSE);
}

static void progress(App* a, const char* id, const Event* e, const char* format) {
  GtkProgressBar* bar = GTK_PROGRESS_BAR(ui(a, id));
  g_autofree char *so_far = grouped(e->done), *all = grouped(e->total), *words = g_strdup_printf(format, so_far, all);
  gtk_widget_set_visible(GTK_WIDGET(bar), e->done < e->total);
  gtk_progress_bar_set_fraction(bar, e->total ? (double)e->done / (double)e->total : 0);
  gtk_progress_bar_set_text(bar, words);
}

void app_event(const Event* e, gpointer app) {
  App* a = app;
  if (e->type == EVENT_QUIT) {
    a->quitting = a->leave = TRUE;
    gtk_window_destroy(GTK_WINDOW(a->window));
    return;
  }
  switch (e->type) {
    case EVENT_LOADING: progress(a, "loading", e, "%s of %s bytes"); break;
    case EVENT_OPENED: if (!a->quitting) opened(a, e); break;
    case EVENT_PROGRESS: if (a->answering == a->current) progress(a, "progress", e, "Reading the prompt: %s of %s tokens"); break;
    case EVENT_STATS: show_stats(a, e); break;
    case EVENT_DONE: done(a, e); break;
    case EVENT_TEXT: {
      Message* m = a->answering->messages->pdata[a->answering->messages->len - 1];
      char* text = g_strconcat(m->text, e->text->str, NULL);
      g_free(m->text);
      m->text = text;
      frames_phase(PHASE_ANSWER);
      if (a->answer) markdown_append(a->answer, e->text->str);
      break;
    }
    case EVENT_FAILED: a->opening = FALSE; app_error(a, e->text->str); break;
    case EVENT_ERROR: app_error(a, e->text->str); break;
    case EVENT_SAVED:
      if (!a->quitting || e->total == 0) break;
      if (e->done == 0) worker_do(a->worker, (Job){.type = JOB_QUIT});
      else app_error(a, "Close the window once more to leave without saving."), a->leave = TRUE, a->quitting = FALSE;
      break;
    case EVENT_QUIT: break;
  }
  window_show(a);
}

/* ---- The window ---- */

static gboolean on_close(App* a) {
  if (a->quitting) return !a->leave;   /* the worker's last event destroys the window */
  a->quitting = TRUE;
  worker_stop(a->worker);
  set_text(a, "title", "Saving…");
  if (a->folder && !a->leave) save(a, TRUE);
  else worker_do(a->worker, (Job){.type = JOB_QUIT});
  return TRUE;
}

static gboolean on_key(GtkEventControllerKey* keys, guint key, guint code G_GNUC_UNUSED, GdkModifierType state, gpointer app) {
  App* a = app;
  GdkEvent* event = gtk_event_controller_get_current_event(GTK_EVENT_CONTROLLER(keys));
  if ((key != GDK_KEY_Return && key != GDK_KEY_KP_Enter) || state & GDK_SHIFT_MASK) return FALSE;
  if (!gtk_text_view_im_context_filter_keypress(GTK_TEXT_VIEW(ui(a, "composer")), event)) g_action_group_activate_action(G_ACTION_GROUP(a->app), "send", NULL);
  return TRUE;
}

static gboolean on_drop(App* a, const GValue* value) {
  const GSList* files = g_value_get_boxed(value);
  for (; files; files = files->next) app_take(a, files->data);
  return TRUE;
}

static void on_text(App* a) { gtk_widget_set_visible(ui(a, "hint"), gtk_text_buffer_get_char_count(composed(a)) == 0); }

static void on_dismissed(App* a) {
  set_text(a, "banner_text", "");
  gtk_info_bar_set_revealed(GTK_INFO_BAR(ui(a, "banner")), FALSE);
}

static void on_width(App* a) {
  int width = 0;
  g_object_get(a->window, "default-width", &width, NULL);
  if ((width < 900) == a->narrow) return;
  a->narrow = width < 900;
  g_action_group_change_action_state(G_ACTION_GROUP(a->app), "panel", g_variant_new_boolean(!a->narrow));
}

void app_action(App* a, const char* name, GVariant* value) {
  GtkListBox* list = GTK_LIST_BOX(ui(a, "list"));
  const int step = g_str_equal(name, "next") ? 1 : -1;
  if (g_str_equal(name, "new")) start_conversation(a, "New conversation", a->current, 0);
  else if (g_str_equal(name, "fork")) {
    g_autofree char* title = g_strconcat("Fork of ", a->current->title, NULL);
    start_conversation(a, title, a->current, a->current->messages->len);
  } else if (g_str_equal(name, "rename")) rename_conversation(a->current);
  else if (g_str_equal(name, "close")) a->current->messages->len ? ask_to_close(a) : close_conversation(a, GTK_RESPONSE_ACCEPT);
  else if (g_str_equal(name, "model") || g_str_equal(name, "document")) setup_choose(a, g_str_equal(name, "model"));
  else if (g_str_equal(name, "open")) app_open(a);
  else if (g_str_equal(name, "back")) {
    setup_model(a, a->opened_path, a->opened_context, 0);
    gtk_stack_set_visible_child_name(GTK_STACK(ui(a, "pages")), "chat");
    window_show(a);
  }
  else if (g_str_equal(name, "drop")) setup_document(a, NULL), leave_edit(a);
  else if (g_str_equal(name, "send")) send(a);
  else if (g_str_equal(name, "stop")) a->answering || a->opening ? worker_stop(a->worker) : leave_edit(a);
  else if (g_str_equal(name, "edit")) edit(a, g_variant_get_uint32(value));
  else if (g_str_equal(name, "edit-last")) {
    guint i = a->current && !a->answering ? a->current->messages->len : 0;
    while (i > 0 && !g_str_equal(((Message*)a->current->messages->pdata[i - 1])->role, "user")) --i;
    if (i > 0) edit(a, i - 1);
  } else if (g_str_equal(name, "next") || g_str_equal(name, "previous")) {
    GtkListBoxRow* row = gtk_list_box_get_row_at_index(list, gtk_list_box_row_get_index(gtk_list_box_get_selected_row(list)) + step);
    if (row) gtk_list_box_select_row(list, row);
  } else if (g_str_equal(name, "shortcuts")) gtk_window_present(GTK_WINDOW(ui(a, "help")));
  else if (g_str_equal(name, "quit")) gtk_window_close(GTK_WINDOW(a->window));
}

static void on_action(GSimpleAction* action, GVariant* value, gpointer app) { app_action(app, g_action_get_name(G_ACTION(action)), value); }

static void on_state(GSimpleAction* action, GVariant* value, gpointer app) {
  App* a = app;
  if (g_variant_is_of_type(value, G_VARIANT_TYPE_BOOLEAN)) {
    g_simple_action_set_state(action, value);
    gtk_revealer_set_reveal_child(GTK_REVEALER(ui(a, "panel")), g_variant_get_boolean(value));
    return;
  }
  g_free(a->style);
  a->style = g_variant_dup_string(value, NULL);
  app_style(a);
  app_settings(a, TRUE);
}

void window_new(App* a) {
  static const char* const kNames[] = {"new", "fork", "rename", "close", "model", "document", "open", "back", "drop", "send", "stop", "edit", "edit-last",
                                       "next", "previous", "shortcuts", "quit", "panel", "style"};
  static const char* const kKeys[] = {"<Ctrl>n", "<Ctrl>k", "F2", "<Ctrl>w", "<Ctrl>o", "<Ctrl>d", NULL, NULL, "<Ctrl><Shift>d", NULL, "Escape", NULL, "<Ctrl>e",
                                      "<Ctrl>Page_Down", "<Ctrl>Page_Up", "<Ctrl>question", "<Ctrl>q", "F9", NULL};
  a->ui = gtk_builder_new_from_resource("/org/orrery/desktop/window.ui");
  a->window = ui(a, "window");
  gtk_window_set_application(GTK_WINDOW(a->window), a->app);
  for (gsize i = 0; i < G_N_ELEMENTS(kNames); ++i) {
    GActionEntry entry = {.name = kNames[i], .activate = on_action, .parameter_type = g_str_equal(kNames[i], "edit") ? "u" : NULL};
    const char* const keys[] = {kKeys[i], NULL};
    g_autofree char* detailed = g_strconcat("app.", kNames[i], NULL);
    if (g_str_equal(kNames[i], "panel")) entry = (GActionEntry){.name = "panel", .state = "true", .change_state = on_state};
    if (g_str_equal(kNames[i], "style")) entry = (GActionEntry){.name = "style", .parameter_type = "s", .state = "'system'", .change_state = on_state};
    g_action_map_add_action_entries(G_ACTION_MAP(a->app), &entry, 1, a);
    if (kKeys[i]) gtk_application_set_accels_for_action(a->app, detailed, keys);
  }
  GtkCssProvider* css = gtk_css_provider_new();
  gtk_css_provider_load_from_resource(css, "/org/orrery/desktop/style.css");
  gtk_style_context_add_provider_for_display(gtk_widget_get_display(a->window), GTK_STYLE_PROVIDER(css), GTK_STYLE_PROVIDER_PRIORITY_APPLICATION);
  g_object_unref(css);
  GtkAdjustment* range = gtk_scrolled_window_get_vadjustment(GTK_SCROLLED_WINDOW(ui(a, "scroll")));
  GtkDropTarget* drop = gtk_drop_target_new(GDK_TYPE_FILE_LIST, GDK_ACTION_COPY);
  GtkEventController* keys = gtk_event_controller_key_new();
  gtk_event_controller_set_propagation_phase(keys, GTK_PHASE_CAPTURE);
  gtk_widget_add_controller(ui(a, "composer"), keys);
  gtk_widget_add_controller(a->window, GTK_EVENT_CONTROLLER(drop));
  g_signal_connect(keys, "key-pressed", G_CALLBACK(on_key), a);
  g_signal_connect_swapped(drop, "drop", G_CALLBACK(on_drop), a);
  g_signal_connect(range, "notify", G_CALLBACK(on_range), a);
  g_signal_connect_swapped(composed(a), "changed", G_CALLBACK(on_text), a);
  g_signal_connect_swapped(a->window, "close-request", G_CALLBACK(on_close), a);
  g_signal_connect_swapped(a->window, "notify::default-width", G_CALLBACK(on_width), a);
  g_signal_connect_swapped(a->window, "realize", G_CALLBACK(frames_watch), a->window);
  g_signal_connect_swapped(ui(a, "list"), "row-selected", G_CALLBACK(on_row), a);
  g_signal_connect_swapped(ui(a, "context"), "value-changed", G_CALLBACK(setup_plan), a);
  g_signal_connect_swapped(ui(a, "share"), "value-changed", G_CALLBACK(setup_plan), a);
  g_signal_connect_swapped(ui(a, "banner"), "response", G_CALLBACK(on_dismissed), a);
  window_show(a);
}
