/* main.c - the desktop application on orrery.h: options, light and dark, and the order in which all of it ends.
 *
 *     orrery-desktop [--memory MIB] [--tools FILE] [--template FILE] [MODEL.gguf] [DOCUMENT]
 */
#include "desktop.h"

#include <glib-unix.h>
#include <signal.h>
#include <string.h>

App app = {.edit_from = G_MAXSIZE, .document_tokens = -1, .next_id = 1, .stick = TRUE};

char* app_data(const char* folder, const char* name) {
  g_autofree char* path = g_build_filename(g_get_user_data_dir(), "orrery-desktop", folder, NULL);
  g_mkdir_with_parents(path, 0700);
  return g_build_filename(path, name, NULL);
}

static const char* for_a_while(char* text) {
  static char* texts[16];
  static guint next;
  char** place = &texts[next++ % G_N_ELEMENTS(texts)];
  g_free(*place);
  return *place = text;
}

const char* sized(guint64 bytes) { return for_a_while(g_format_size_full(bytes, G_FORMAT_SIZE_IEC_UNITS)); }

const char* grouped(guint64 n) {
  GString* text = g_string_new(NULL);
  g_string_printf(text, "%" G_GUINT64_FORMAT, n);
  for (gssize at = (gssize)text->len - 3; at > 0; at -= 3) g_string_insert_c(text, at, ',');
  return for_a_while(g_string_free(text, FALSE));
}

/* ---- Light and dark, as the desktop prefers ---- */

/* The desktop's preference, in the words of its portal: (<<uint32 1>>,) as a reply, (..., 'color-scheme', <uint32 1>) as a signal. */
static void follow(GVariant* value) {
  g_autoptr(GVariant) style = g_action_group_get_action_state(G_ACTION_GROUP(app.app), "style");
  g_autofree char* text = g_variant_print(value, TRUE);
  app.system_dark = strstr(text, "<uint32 1>") != NULL;
  app_style(g_variant_get_string(style, NULL));
}

static void on_setting(GDBusConnection* bus G_GNUC_UNUSED, const char* sender G_GNUC_UNUSED, const char* path G_GNUC_UNUSED,
                       const char* interface G_GNUC_UNUSED, const char* signal G_GNUC_UNUSED, GVariant* value, gpointer key) {
  g_autofree char* text = g_variant_print(value, FALSE);
  if (strstr(text, key)) follow(value);
}

static void on_first_setting(GObject* bus, GAsyncResult* result, gpointer user G_GNUC_UNUSED) {
  g_autoptr(GVariant) reply = g_dbus_connection_call_finish(G_DBUS_CONNECTION(bus), result, NULL); /* no portal: GTK's own setting */
  if (reply) follow(reply);
}

static void watch_system_style(void) {
  static char kKey[] = "color-scheme";
  static const char kGroup[] = "org.freedesktop.appearance", kPortal[] = "org.freedesktop.portal.Desktop",
                    kPath[] = "/org/freedesktop/portal/desktop", kSettings[] = "org.freedesktop.portal.Settings";
  GDBusConnection* bus = g_application_get_dbus_connection(G_APPLICATION(app.app));
  g_object_get(gtk_settings_get_default(), "gtk-application-prefer-dark-theme", &app.system_dark, NULL);
  if (!bus) return;
  g_dbus_connection_signal_subscribe(bus, kPortal, kSettings, "SettingChanged", kPath, kGroup, G_DBUS_SIGNAL_FLAGS_NONE, on_setting, kKey,
                                     NULL);
  g_dbus_connection_call(bus, kPortal, kPath, kSettings, "Read", g_variant_new("(ss)", kGroup, kKey), NULL, G_DBUS_CALL_FLAGS_NONE, -1,
                         NULL, on_first_setting, NULL);
}

/* ---- Beginning and end ---- */

static void on_open(GApplication* application G_GNUC_UNUSED, GFile** files, int n) {
  const gboolean first = !app.builder;
  if (first) {
    worker_start((guint64)MAX(app.memory_mib, 0) << 20, app.tools, app.chat_template);
    window_new();
  }
  for (int i = 0; i < n; ++i) app_take(files[i]);
  if (first) {
    watch_system_style();
    app_load_settings();
  }
  if (orrery_abi_version() != ORRERY_ABI_VERSION) app_error("liborrery is of another ABI than this program.");
  gtk_window_present(ui("window"));
}

static void on_activate(GApplication* application) { on_open(application, NULL, 0); }

static gboolean on_signal(gpointer user G_GNUC_UNUSED) {
  if (app.builder) gtk_window_close(ui("window"));
  return G_SOURCE_CONTINUE;
}

static gboolean on_file(const char* option, const char* path, gpointer user G_GNUC_UNUSED, GError** error) {
  char** to = strstr(option, "tools") ? &app.tools : &app.chat_template;
  g_free(*to);
  *to = NULL;
  return g_file_get_contents(path, to, NULL, error);
}

int main(int argc, char** argv) {
  const GOptionEntry options[] = {
      {"memory", 0, 0, G_OPTION_ARG_INT, &app.memory_mib, "The memory budget (default: the runtime's own)", "MIB"},
      {"tools", 0, 0, G_OPTION_ARG_CALLBACK, on_file, "Tools that the model may call: a JSON array. The window asks for their results",
       "FILE"},
      {"template", 0, 0, G_OPTION_ARG_CALLBACK, on_file, "A chat template instead of the model's", "FILE"},
      {NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL}};
  app.app = gtk_application_new("org.orrery.Desktop", G_APPLICATION_HANDLES_OPEN);
  app.conversations = g_ptr_array_new_with_free_func(conversation_free);
  app.streamed = g_string_new(NULL);
  app.made = made_new();
  g_application_add_main_option_entries(G_APPLICATION(app.app), options);
  g_signal_connect(app.app, "activate", G_CALLBACK(on_activate), NULL);
  g_signal_connect(app.app, "open", G_CALLBACK(on_open), NULL);
  g_unix_signal_add(SIGTERM, on_signal, NULL);
  g_unix_signal_add(SIGINT, on_signal, NULL);
  const int result = g_application_run(G_APPLICATION(app.app), argc, argv);
  if (app.builder) worker_join(); /* its thread has ended, and freed every handle */
  return result;
}
