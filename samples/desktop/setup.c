/* setup.c - the page that opens a model: a file, a document, context, KV budget, and whether it all fits before anything is loaded.
 *
 * The worker plans, and counts a document's tokens: one plan at a time, once after a burst of changes. */
#include "desktop.h"

static orrery_plan_result shown; /* what the bar shows */
static int width = 580;          /* of the page's contents */

static guint64 kv_on_device(const orrery_plan_result* r) {
  return r->full_kv_bytes + r->compressed_kv_bytes + r->digests_bytes + r->staging_bytes;
}

/* The bar is as wide as the budget, or as all parts where they are more. */
static void show_bar(const orrery_plan_result* r) {
  static const char* const kParts[] = {"bar_weights", "bar_kv", "bar_workspace", "bar_host"};
  const guint64 kv = kv_on_device(r);
  const guint64 sizes[] = {r->weights_bytes + r->weights_mapped_bytes, kv, r->workspace_bytes, r->reservoir_bytes};
  const guint64 all = MAX(sizes[0] + sizes[1] + sizes[2] + sizes[3], MAX(r->budget_bytes, 1));
  const double pixels = width - 8, scale = pixels / (double)all;
  shown = *r;
  for (gsize i = 0; i < G_N_ELEMENTS(sizes); ++i) /* a part that is there is seen */
    gtk_widget_set_size_request(ui(kParts[i]), sizes[i] > 0 ? MAX((int)((double)sizes[i] * scale), 2) : 0, -1);
  gtk_widget_set_margin_start(ui("bar_budget"), (int)((double)r->budget_bytes * scale));
  say("legend_weights", "Weights %s%s", sized(sizes[0]), r->weights_mapped_bytes ? " (mapped)" : "");
  say("legend_kv", "KV on the device %s", sized(kv));
  say("legend_workspace", "Working memory %s", sized(r->workspace_bytes));
  say("legend_host", "KV in host memory %s", sized(r->reservoir_bytes));
  g_autofree char* words = g_strdup_printf("Weights %s, KV on the device %s, working memory %s, KV in host memory %s", sized(sizes[0]),
                                           sized(kv), sized(r->workspace_bytes), sized(r->reservoir_bytes));
  gtk_accessible_update_property(ui("bar"), GTK_ACCESSIBLE_PROPERTY_LABEL, words, -1);
}

void setup_width(int pixels) {
  width = CLAMP(pixels - 48, 260, 580);
  gtk_widget_set_size_request(ui("setup_box"), width, -1);
  gtk_widget_set_size_request(ui("bar"), width, 26);
  show_bar(&shown);
}

static void show_plan(const orrery_plan_result* r, gboolean gpu) {
  const gboolean too_long = app.document_tokens >= (gint64)r->n_context;
  const gboolean spilled = r->compressed_kv_bytes > 0 && gtk_range_get_value(ui("share")) >= 100;
  const char* tokens = grouped((guint64)MAX(app.document_tokens, 0));
  g_autofree char* more = r->reservoir_bytes == 0 || gpu ? NULL
                                                         : g_strdup_printf(
                                                               " There is no GPU: both parts of the KV take this machine's memory, %s more "
                                                               "than all KV on the device would. The budget saves time, not memory.",
                                                               sized(kv_on_device(r)));
  app.fits = r->fits && !too_long;
  show_bar(r);
  (app.fits ? gtk_widget_remove_css_class : gtk_widget_add_css_class)(ui("verdict"), "error");
  if (!r->fits)
    say("verdict", "Does not fit: it takes %s of device memory, the budget is %s. The longest context that fits has %s tokens.",
        sized(r->device_bytes), sized(r->budget_bytes), grouped(r->largest_context));
  else if (too_long) say("verdict", "The document does not fit: it has %s tokens, the context %s.", tokens, grouped(r->n_context));
  else
    say("verdict", "Fits: %s of a memory budget of %s.%s%s%s%s%s", sized(r->device_bytes), sized(r->budget_bytes),
        app.document ? " The document has " : "", app.document ? tokens : "", app.document ? " tokens." : "",
        spilled ? " Not all KV fits the device: a part of it is kept there, all of it in host memory." : "", more ? more : "");
}

void setup_planned(const Event* e) {
  const gboolean failed = e->text->len > 0, could = gtk_widget_is_sensitive(ui("open"));
  app.planning = FALSE;
  if (app.document && e->total == app.n_documents && !failed) app.document_tokens = (gint64)e->done;
  if (failed && !app.plan_again) {
    app_error(e->text->str);
    show_bar(&(orrery_plan_result){0});
    say("verdict", "This model cannot be opened.");
    app.fits = app.open_when_planned = FALSE;
  } else if (!failed && app.fresh) { /* the context that the model was trained for bounds the slider */
    const double most = MAX(e->plan.trained_context, 512), fits = MAX(e->plan.largest_context, 512);
    app.fresh = FALSE;
    gtk_range_set_range(ui("context"), 256, most);
    if (gtk_range_get_value(ui("context")) <= 256) gtk_range_set_value(ui("context"), MIN(MIN(most, fits), 8192));
    app.plan_again = TRUE;
  } else if (!failed) {
    show_plan(&e->plan, e->gpu);
  }
  if (app.plan_again) setup_plan();
  else if (app.open_when_planned && app.fits) app_open();
  window_show();
  if (!could && gtk_widget_is_sensitive(ui("open"))) gtk_widget_grab_focus(ui("open"));
}

static gboolean plan_now(gpointer user G_GNUC_UNUSED) {
  app.replan = 0;
  app.plan_again = FALSE;
  app.planning = TRUE;
  worker_do((Job){.type = JOB_PLAN,
                  .keep = app.n_documents,
                  .path = g_strdup(app.model_path),
                  .context = app.fresh ? 0 : (guint32)gtk_range_get_value(ui("context")),
                  .share = (float)gtk_range_get_value(ui("share")) / 100,
                  .document = app.document && app.document_tokens < 0 ? g_bytes_ref(app.document) : NULL});
  return G_SOURCE_REMOVE;
}

G_MODULE_EXPORT void setup_plan(void) {
  const gboolean chat = g_str_equal(gtk_stack_get_visible_child_name(ui("pages")), "chat");
  say("context_value", "%s tokens", grouped((guint64)gtk_range_get_value(ui("context"))));
  say("share_value", "%.0f %% of full KV", gtk_range_get_value(ui("share")));
  app.plan_again = !chat || (app.document && app.document_tokens < 0); /* beside a conversation only a document is counted */
  if (app.plan_again && app.model_path && !app.planning && !app.replan) app.replan = g_timeout_add(40, plan_now, NULL);
}

void setup_model(const char* path, guint32 context, double share) {
  g_autofree char* name = g_filename_display_basename(path);
  say("model_name", "%s", name);
  gtk_range_set_range(ui("context"), 256, MAX(context, 512));
  gtk_range_set_value(ui("context"), context);
  if (share > 0) gtk_range_set_value(ui("share"), share);
  char* copy = g_strdup(path); /* which may be the old one */
  g_free(app.model_path);
  app.model_path = copy;
  app.document_tokens = -1; /* counted by another model */
  ++app.n_documents;
  app.fresh = TRUE;
  app.fits = FALSE;
  gtk_stack_set_visible_child_name(ui("pages"), "setup");
  setup_plan();
  window_show();
}

static void on_document(GObject* file, GAsyncResult* result, gpointer user G_GNUC_UNUSED) {
  g_autoptr(GError) error = NULL;
  g_autofree char *base = g_file_get_basename(G_FILE(file)), *name = g_filename_display_name(base), *text = NULL, *words = NULL;
  const char* bad = NULL;
  gsize bytes = 0;
  if (!g_file_load_contents_finish(G_FILE(file), result, &text, &bytes, NULL, &error)) {
    words = g_strdup_printf("The document was not read: %s", error->message);
  } else if (bytes > 64 << 20) {
    words = g_strdup_printf("%s is longer than 64 MiB.", name);
  } else if (!g_utf8_validate_len(text, bytes, &bad)) { /* which NUL is not, either */
    words = g_strdup_printf("%s is not a text: its byte %" G_GSIZE_FORMAT " is no UTF-8.", name, (gsize)(bad - text));
  } else {
    while (bytes > 0 && text[bytes - 1] == '\n') --bytes;
    const gsize mark = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0; /* a byte order mark is no part of the text */
    setup_document(NULL);
    app.document = g_bytes_new(text + mark, bytes - mark);
    ++app.n_documents;
    app.document_name = g_steal_pointer(&name);
    setup_plan();
    window_show();
  }
  if (words) app_error(words);
}

void setup_document(GFile* file) {
  if (file) {
    g_file_load_contents_async(file, NULL, on_document, NULL);
    return;
  }
  g_clear_pointer(&app.document, g_bytes_unref);
  g_clear_pointer(&app.document_name, g_free);
  app.document_tokens = -1;
  setup_plan();
  window_show();
}

G_MODULE_EXPORT void on_chosen(GtkFileChooser* dialog, int response) {
  g_autoptr(GFile) file = response == GTK_RESPONSE_ACCEPT ? gtk_file_chooser_get_file(dialog) : NULL;
  g_autofree char* path = file && dialog == ui("model") ? g_file_get_path(file) : NULL;
  if (path) setup_model(path, 0, 0);
  else if (file) setup_document(file);
}
