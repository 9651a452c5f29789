/* main.c - the desktop application on orrery.h: options, settings, light and dark, and the order in which all of it ends.
 *
 *     orrery-desktop [--memory MIB] [--frame-report FILE] [MODEL.gguf] [DOCUMENT]
 */
#include "desktop.h"

#include <glib-unix.h>
#include <signal.h>

#define SETTINGS "settings"

char* app_data(const char* folder, const char* name) {
  g_autofree char* path = g_build_filename(g_get_user_data_dir(), "orrery-desktop", folder, NULL);
  g_mkdir_with_parents(path, 0700);
  return g_build_filename(path, name, NULL);
}

char* grouped(guint64 n) {
  GString* text = g_string_new(NULL);
  g_string_printf(text, "%" G_GUINT64_FORMAT, n);
  for (gssize at = (gssize)text->len - 3; at > 0; at -= 3) g_string_insert_c(text, at, ',');
  return g_string_free(text, FALSE);
}

/* ---- Light and dark ---- */

static void on_system_style(App* a, GVariant* value) {
  g_autoptr(GVariant) inner = g_variant_ref(value);
  while (g_variant_is_of_type(inner, G_VARIANT_TYPE_VARIANT)) {
    GVariant* next = g_variant_get_variant(inner);
    g_variant_unref(inner);
    inner = next;
  }
  if (g_variant_is_of_type(inner, G_VARIANT_TYPE_UINT32)) a->system_dark = g_variant_get_uint32(inner) == 1;
  app_style(a);
}

static void on_setting(GDBusConnection* bus G_GNUC_UNUSED, const char* sender G_GNUC_UNUSED, const char* path G_GNUC_UNUSED,
                       const char* interface G_GNUC_UNUSED, const char* signal G_GNUC_UNUSED, GVariant* value, gpointer app) {
  const char *group = NULL, *key = NULL;
  g_autoptr(GVariant) setting = NULL;
  if (!g_variant_is_of_type(value, G_VARIANT_TYPE("(ssv)"))) return;
  g_variant_get(value, "(&s&sv)", &group, &key, &setting);
  if (g_str_equal(group, "org.freedesktop.appearance") && g_str_equal(key, "color-scheme")) on_system_style(app, setting);
}

static void on_first_setting(GObject* bus, GAsyncResult* result, gpointer app) {
  g_autoptr(GVariant) reply = g_dbus_connection_call_finish(G_DBUS_CONNECTION(bus), result, NULL);   /* no portal: GTK's own setting */
  g_autoptr(GVariant) value = reply ? g_variant_get_child_value(reply, 0) : NULL;
  if (value) on_system_style(app, value);
}

static void watch_system_style(App* a) {
  static const char kPortal[] = "org.freedesktop.portal.Desktop", kPath[] = "/org/freedesktop/portal/desktop", kSettings[] = "org.freedesktop.portal.Settings";
  GDBusConnection* bus = g_application_get_dbus_connection(G_APPLICATION(a->app));
  g_object_get(gtk_settings_get_default(), "gtk-application-prefer-dark-theme", &a->system_dark, NULL);
  if (!bus) return;
  g_dbus_connection_signal_subscribe(bus, kPortal, kSettings, "SettingChanged", kPath, NULL, G_DBUS_SIGNAL_FLAGS_NONE, on_setting, a, NULL);
  g_dbus_connection_call(bus, kPortal, kPath, kSettings, "Read", g_variant_new("(ss)", "org.freedesktop.appearance", "color-scheme"), NULL,
                         G_DBUS_CALL_FLAGS_NONE, -1, NULL, on_first_setting, a);
}

void app_style(App* a) {
  const gboolean dark = g_str_equal(a->style, "dark") || (g_str_equal(a->style, "system") && a->system_dark);
  g_object_set(gtk_settings_get_default(), "gtk-application-prefer-dark-theme", dark, NULL);
  g_simple_action_set_state(G_SIMPLE_ACTION(g_action_map_lookup_action(G_ACTION_MAP(a->app), "style")), g_variant_new_string(a->style));
}

/* ---- Settings: the style, and the model that was open ---- */

void app_settings(App* a, gboolean save) {
  g_autoptr(GKeyFile) file = g_key_file_new();
  g_autofree char* path = app_data(NULL, "settings.ini");
  g_autoptr(GError) error = NULL;
  g_key_file_load_from_file(file, path, G_KEY_FILE_NONE, NULL);
  if (save) {
    g_autofree char* uri = a->opened_path ? g_filename_to_uri(a->opened_path, NULL, NULL) : NULL;
    if (uri) {
      g_key_file_set_string(file, SETTINGS, "model", uri);
      g_key_file_set_integer(file, SETTINGS, "context", (int)gtk_range_get_value(GTK_RANGE(ui(a, "context"))));
      g_key_file_set_double(file, SETTINGS, "share", gtk_range_get_value(GTK_RANGE(ui(a, "share"))) / 100);
    }
    g_key_file_set_string(file, SETTINGS, "style", a->style);
    if (!g_key_file_save_to_file(file, path, &error)) app_error(a, error->message);
    return;
  }
  g_autofree char* uri = g_key_file_get_string(file, SETTINGS, "model", NULL);
  g_autofree char* model = uri ? g_filename_from_uri(uri, NULL, NULL) : NULL;
  g_free(a->style);
  a->style = g_key_file_get_string(file, SETTINGS, "style", NULL);
  if (!a->style) a->style = g_strdup("system");
  if (!model || a->model_path) return;
  a->open_when_planned = TRUE;
  setup_model(a, model, (guint32)g_key_file_get_integer(file, SETTINGS, "context", NULL), g_key_file_get_double(file, SETTINGS, "share", NULL));
}

/* ---- Beginning and end ---- */

static void on_open(App* a, GFile** files, int n) {
  if (!a->window) {
    a->worker = worker_new((guint64)MAX(a->memory_mib, 0) << 20, app_event, a);
    window_new(a);
    for (int i = 0; i < n; ++i) app_take(a, files[i]);
    app_settings(a, FALSE);   /* opens the last model, if no other was named */
    watch_system_style(a);
    app_style(a);
    if (orrery_abi_version() != ORRERY_ABI_VERSION) app_error(a, "liborrery is of another ABI than this program.");
  } else {
    for (int i = 0; i < n; ++i) app_take(a, files[i]);
  }
  gtk_window_present(GTK_WINDOW(a->window));
}

static void on_activate(App* a) { on_open(a, NULL, 0); }

static gboolean on_signal(gpointer app) {
  App* a = app;
  if (a->window) app_action(a, "quit", NULL);
  return G_SOURCE_CONTINUE;
}

int main(int argc, char** argv) {
  App a = {.edit_from = G_MAXSIZE, .document_tokens = -1, .next_id = 1, .stick = TRUE};
  const GOptionEntry options[] = {
      {"memory", 0, 0, G_OPTION_ARG_INT, &a.memory_mib, "The memory budget (default: the runtime's own)", "MIB"},
      {"frame-report", 0, 0, G_OPTION_ARG_FILENAME, &a.frame_report, "Write how long frames took while the model worked; - is standard output", "FILE"},
      {NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL}};
  a.app = gtk_application_new("org.orrery.Desktop", G_APPLICATION_HANDLES_OPEN);
  a.conversations = g_ptr_array_new_with_free_func(conversation_free);
  g_application_add_main_option_entries(G_APPLICATION(a.app), options);
  g_signal_connect_swapped(a.app, "activate", G_CALLBACK(on_activate), &a);
  g_signal_connect_swapped(a.app, "open", G_CALLBACK(on_open), &a);
  g_unix_signal_add(SIGTERM, on_signal, &a);
  g_unix_signal_add(SIGINT, on_signal, &a);
  const int result = g_application_run(G_APPLICATION(a.app), argc, argv);
  if (a.worker) worker_free(a.worker);   /* its thread has ended, and freed every handle */
  frames_report(a.frame_report);
  g_clear_object(&a.ui);
  g_clear_pointer(&a.document, g_bytes_unref);
  g_ptr_array_unref(a.conversations);
  g_free(a.model_path), g_free(a.document_name), g_free(a.folder), g_free(a.opened_path), g_free(a.frame_report), g_free(a.style);
  g_object_unref(a.app);
  return result;
}
