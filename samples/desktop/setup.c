/* setup.c - the page that opens a model: a file, a document, context, KV budget, and whether it all fits before anything is loaded.
 *
 * orrery_plan() and the counting of a document's tokens run on a thread of GLib's pool, one at a time; a change meanwhile runs once more. */
#include "desktop.h"

typedef struct {
  char *path, *error;
  GBytes* document;
  gint64 tokens;
  orrery_runtime_options runtime;
  orrery_session_options session;
  orrery_plan_result result;
} Plan;

static void plan_free(gpointer plan) {
  Plan* p = plan;
  g_clear_pointer(&p->document, g_bytes_unref);
  g_free(p->path), g_free(p->error), g_free(p);
}

static void plan_run(GTask* task, gpointer source G_GNUC_UNUSED, gpointer plan, GCancellable* cancel G_GNUC_UNUSED) {
  Plan* p = plan;
  orrery_error error;
  orrery_vocab* vocab = NULL;
  orrery_error_init(&error, sizeof error);
  orrery_status status = orrery_plan(p->path, &p->runtime, NULL, &p->session, &p->result, &error);
  if (status == ORRERY_OK && p->document && p->tokens < 0 && (status = orrery_vocab_open(p->path, &vocab, &error)) == ORRERY_OK) {
    size_t n = 0, bytes = 0;
    const char* text = g_bytes_get_data(p->document, &bytes);
    status = orrery_tokenize(vocab, text, bytes, 0, NULL, 0, &n, &error);
    p->tokens = (gint64)n;
  }
  orrery_vocab_free(vocab);
  if (status != ORRERY_OK) p->error = g_strdup_printf("%s (%s)", error.message, orrery_status_name(status));
  g_task_return_boolean(task, TRUE);
}

static void show_plan(App* a, const Plan* p) {
  const orrery_plan_result* r = &p->result;
  const guint64 sizes[] = {r->weights_bytes + r->weights_mapped_bytes, r->full_kv_bytes + r->compressed_kv_bytes + r->digests_bytes + r->staging_bytes,
                           r->workspace_bytes, r->reservoir_bytes, r->device_bytes, r->budget_bytes};
  char* s[G_N_ELEMENTS(sizes)];
  for (gsize i = 0; i < G_N_ELEMENTS(sizes); ++i) s[i] = g_format_size_full(sizes[i], G_FORMAT_SIZE_IEC_UNITS);
  g_autofree char *context = grouped(r->n_context), *largest = grouped(r->largest_context), *tokens = grouped((guint64)MAX(p->tokens, 0));
  g_autofree char* legend = g_strdup_printf("<span color='#3584e4'>■</span> Weights %s%s   <span color='#2ec27e'>■</span> KV on the device %s\n"
      "<span color='#986a44'>■</span> Working memory %s   <span color='#c061cb'>■</span> KV in host memory %s",
      s[0], r->weights_mapped_bytes ? " (mapped)" : "", s[1], s[2], s[3]);
  const gboolean too_long = p->document && p->tokens >= (gint64)r->n_context;
  a->fits = r->fits && !too_long;
  g_autofree char* verdict = !r->fits
      ? g_strdup_printf("Does not fit: it takes %s of device memory, the budget is %s. The longest context that fits has %s tokens.", s[4], s[5], largest)
      : too_long ? g_strdup_printf("The document does not fit: it has %s tokens, the context %s.", tokens, context)
                 : g_strdup_printf("Fits: %s of a memory budget of %s.%s%s%s%s", s[4], s[5], p->document ? " The document has " : "",
                                   p->document ? tokens : "", p->document ? " tokens." : "", r->compressed_kv_bytes > 0 && p->session.kv_budget_share >= 1
                                   ? " Not all KV fits the device: a part of it is kept there, all of it in host memory." : "");
  gtk_label_set_markup(GTK_LABEL(ui(a, "legend")), legend);
  gtk_label_set_text(GTK_LABEL(ui(a, "verdict")), verdict);
  memory_bar_set(ui(a, "bar"), r, gtk_label_get_text(GTK_LABEL(ui(a, "legend"))));
  (a->fits ? gtk_widget_remove_css_class : gtk_widget_add_css_class)(ui(a, "verdict"), "error");
  for (gsize i = 0; i < G_N_ELEMENTS(sizes); ++i) g_free(s[i]);
}

static void on_plan(GObject* source G_GNUC_UNUSED, GAsyncResult* result, gpointer app) {
  App* a = app;
  const Plan* p = g_task_get_task_data(G_TASK(result));
  GtkRange* context = GTK_RANGE(ui(a, "context"));
  a->planning = FALSE;
  if (a->quitting) return;
  if (p->document == a->document && !p->error) a->document_tokens = p->tokens;
  if (p->error && !a->plan_again) {
    app_error(a, p->error);
    const orrery_plan_result none = {0};
    memory_bar_set(ui(a, "bar"), &none, "Memory");
    gtk_label_set_text(GTK_LABEL(ui(a, "legend")), "");
    gtk_label_set_text(GTK_LABEL(ui(a, "verdict")), "This model cannot be opened.");
    a->fits = a->open_when_planned = FALSE;
  } else if (!p->error && a->fresh) {   /* the context that the model was trained for bounds the slider */
    const double most = MAX(p->result.trained_context, 512), fits = MAX(p->result.largest_context, 512);
    a->fresh = FALSE;
    gtk_range_set_range(context, 256, most);
    if (gtk_range_get_value(context) <= 256) gtk_range_set_value(context, MIN(MIN(most, fits), 8192));
    a->plan_again = TRUE;
  } else if (!p->error) {
    show_plan(a, p);
  }
  const gboolean could = gtk_widget_is_sensitive(ui(a, "open"));
  if (a->plan_again) setup_plan(a);
  else if (a->open_when_planned && a->fits) app_open(a);
  window_show(a);
  if (!could && gtk_widget_is_sensitive(ui(a, "open"))) gtk_widget_grab_focus(ui(a, "open"));
}

static gboolean plan_now(gpointer app) {
  App* a = app;
  Plan* p = g_new0(Plan, 1);
  GTask* task = g_task_new(NULL, NULL, on_plan, a);
  const double share = gtk_range_get_value(GTK_RANGE(ui(a, "share"))) / 100;
  a->replan = 0;
  a->plan_again = FALSE;
  a->planning = TRUE;
  p->path = g_strdup(a->model_path);
  p->document = a->document ? g_bytes_ref(a->document) : NULL;
  p->tokens = a->document_tokens;
  orrery_runtime_options_init(&p->runtime, sizeof p->runtime);
  orrery_session_options_init(&p->session, sizeof p->session);
  orrery_plan_result_init(&p->result, sizeof p->result);
  p->runtime.device_budget_bytes = (guint64)MAX(a->memory_mib, 0) << 20;
  p->session.n_context = a->fresh ? 0 : (guint32)gtk_range_get_value(GTK_RANGE(ui(a, "context")));
  if (share < 1) p->session.kv_budget_share = (float)share;
  g_task_set_task_data(task, p, plan_free);
  g_task_run_in_thread(task, plan_run);
  g_object_unref(task);
  return G_SOURCE_REMOVE;
}

void setup_plan(App* a) {
  g_autofree char* context = grouped((guint64)gtk_range_get_value(GTK_RANGE(ui(a, "context"))));
  g_autofree char *tokens = g_strconcat(context, " tokens", NULL), *share = g_strdup_printf("%.0f %% of full KV", gtk_range_get_value(GTK_RANGE(ui(a, "share"))));
  gtk_label_set_text(GTK_LABEL(ui(a, "context_value")), tokens);
  gtk_label_set_text(GTK_LABEL(ui(a, "share_value")), share);
  const gboolean chat = g_str_equal(gtk_stack_get_visible_child_name(GTK_STACK(ui(a, "pages"))), "chat");
  a->plan_again = !chat || (a->document && a->document_tokens < 0);   /* beside a conversation only a document is counted */
  if (a->plan_again && a->model_path && !a->planning && !a->replan) a->replan = g_timeout_add(40, plan_now, a);
}

void setup_model(App* a, const char* path, guint32 context, double share) {
  g_autofree char* name = g_filename_display_basename(path);
  gtk_label_set_text(GTK_LABEL(ui(a, "model_name")), name);
  gtk_range_set_range(GTK_RANGE(ui(a, "context")), 256, MAX(context, 512));
  gtk_range_set_value(GTK_RANGE(ui(a, "context")), context);
  if (share > 0) gtk_range_set_value(GTK_RANGE(ui(a, "share")), share * 100);
  g_free(a->model_path);
  a->model_path = g_strdup(path);
  a->document_tokens = -1;   /* counted by another model */
  a->fresh = TRUE;
  a->fits = FALSE;
  gtk_stack_set_visible_child_name(GTK_STACK(ui(a, "pages")), "setup");
  setup_plan(a);
  window_show(a);
}

static void on_document(GObject* file, GAsyncResult* result, gpointer app) {
  App* a = app;
  g_autoptr(GError) error = NULL;
  g_autofree char *base = g_file_get_basename(G_FILE(file)), *name = g_filename_display_name(base), *text = NULL, *words = NULL;
  const char* bad = NULL;
  gsize bytes = 0;
  if (!g_file_load_contents_finish(G_FILE(file), result, &text, &bytes, NULL, &error)) {
    words = g_strdup_printf("The document was not read: %s", error->message);
  } else if (bytes > 64 << 20) {
    words = g_strdup_printf("%s is longer than 64 MiB.", name);
  } else if (!g_utf8_validate_len(text, bytes, &bad)) {   /* which NUL is not, either */
    words = g_strdup_printf("%s is not a text: its byte %" G_GSIZE_FORMAT " is no UTF-8.", name, (gsize)(bad - text));
  } else {
    while (bytes > 0 && text[bytes - 1] == '\n') --bytes;
    setup_document(a, NULL);
    a->document = g_bytes_new(text, bytes);
    a->document_name = g_steal_pointer(&name);
    setup_plan(a);
    window_show(a);
  }
  if (words) app_error(a, words);
}

void setup_document(App* a, GFile* file) {
  if (file) {
    g_file_load_contents_async(file, NULL, on_document, a);
    return;
  }
  g_clear_pointer(&a->document, g_bytes_unref);
  g_clear_pointer(&a->document_name, g_free);
  a->document_tokens = -1;
  setup_plan(a);
  window_show(a);
}

static void on_chosen(GtkNativeDialog* dialog, int response, gpointer app) {
  g_autoptr(GFile) file = response == GTK_RESPONSE_ACCEPT ? gtk_file_chooser_get_file(GTK_FILE_CHOOSER(dialog)) : NULL;
  if (file) app_take(app, file);
  g_object_unref(dialog);
}

void setup_choose(App* a, gboolean model) {
  GtkFileChooserNative* dialog = gtk_file_chooser_native_new(model ? "Open a model" : "Attach a document", GTK_WINDOW(a->window),
                                                             GTK_FILE_CHOOSER_ACTION_OPEN, "_Open", "_Cancel");
  if (model) {
    g_autoptr(GtkFileFilter) filter = gtk_file_filter_new();
    gtk_file_filter_set_name(filter, "Models (GGUF)");
    gtk_file_filter_add_suffix(filter, "gguf");
    gtk_file_chooser_add_filter(GTK_FILE_CHOOSER(dialog), filter);
  }
  g_signal_connect(dialog, "response", G_CALLBACK(on_chosen), a);
  gtk_native_dialog_show(GTK_NATIVE_DIALOG(dialog));
}
