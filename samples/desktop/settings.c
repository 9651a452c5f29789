/* settings.c - how answers are sampled, the system prompt, light and dark, and the file that keeps them beside the open model. */
#include "desktop.h"

#include <string.h>

#define OLD_SETTINGS_TYPE "(sayud)"     /* style, the open model's path, its context and KV budget */
#define SETTINGS_TYPE "(sayud(dddut)s)" /* and sampling, the system prompt */

static GSimpleAction* style_action(void) { return G_SIMPLE_ACTION(g_action_map_lookup_action(G_ACTION_MAP(app.app), "style")); }

void app_style(const char* style) {
  const gboolean dark = g_str_equal(style, "dark") || (g_str_equal(style, "system") && app.system_dark);
  g_object_set(gtk_settings_get_default(), "gtk-application-prefer-dark-theme", dark, NULL);
  g_simple_action_set_state(style_action(), g_variant_new_string(style));
}

Sampling app_sampling(void) {
  return (Sampling){.temperature = gtk_spin_button_get_value(ui("temperature")),
                    .top_p = gtk_spin_button_get_value(ui("top_p")),
                    .min_p = gtk_spin_button_get_value(ui("min_p")),
                    .max_tokens = (guint32)gtk_spin_button_get_value(ui("max_tokens")),
                    .seed = (guint64)gtk_spin_button_get_value(ui("seed"))};
}

char* app_system_prompt(void) {
  char* text = NULL;
  g_object_get(gtk_text_view_get_buffer(ui("system")), "text", &text, NULL);
  return g_strstrip(text);
}

void app_save_settings(void) {
  g_autoptr(GVariant) style = g_action_get_state(G_ACTION(style_action()));
  const char* model = app.opened_path ? app.opened_path : "";
  const double share = gtk_range_get_value(ui("share"));
  const Sampling s = app_sampling();
  g_autofree char* system = app_system_prompt();
  g_autoptr(GVariant) settings = g_variant_ref_sink(g_variant_new("(@s^ayud(dddut)s)", style, model, app.opened_context, share,
                                                                  s.temperature, s.top_p, s.min_p, s.max_tokens, s.seed, system));
  g_autofree char *path = app_data(NULL, "settings"), *text = g_variant_print(settings, FALSE);
  g_autoptr(GError) error = NULL;
  if (!g_file_set_contents(path, text, -1, &error)) app_error(error->message);
}

G_MODULE_EXPORT gboolean on_settings_closed(void) {
  app_save_settings();
  return FALSE;
}

/* The model that is installed beside the program, or built with it; NULL: none. */
static char* bundled_model(void) {
  g_autofree char *program = g_file_read_link("/proc/self/exe", NULL), *folder = program ? g_path_get_dirname(program) : NULL;
  static const char* const kPlaces[] = {"../share/orrery/demo-q8_0.gguf", "../../share/orrery/demo-q8_0.gguf"};
  for (gsize i = 0; folder && i < G_N_ELEMENTS(kPlaces); ++i) {
    g_autofree char *path = g_build_filename(folder, kPlaces[i], NULL), *plain = g_canonicalize_filename(path, NULL);
    if (g_file_test(plain, G_FILE_TEST_IS_REGULAR)) return g_steal_pointer(&plain);
  }
  return NULL;
}

/* Opens the last model, unless another one was named. At the first start the demo model is chosen, and waits for the user. */
void app_load_settings(void) {
  g_autofree char *path = app_data(NULL, "settings"), *text = NULL;
  const char *style = "system", *model = "", *system = "";
  guint32 context = 0;
  double share = 0;
  Sampling s = app_sampling();
  const gboolean there = g_file_get_contents(path, &text, NULL, NULL);
  g_autoptr(GVariant) settings = there ? g_variant_parse(G_VARIANT_TYPE(SETTINGS_TYPE), text, NULL, NULL, NULL) : NULL;
  g_autoptr(GVariant) old = there && !settings ? g_variant_parse(G_VARIANT_TYPE(OLD_SETTINGS_TYPE), text, NULL, NULL, NULL) : NULL;
  if (settings)
    g_variant_get(settings, "(&s^&ayud(dddut)&s)", &style, &model, &context, &share, &s.temperature, &s.top_p, &s.min_p, &s.max_tokens,
                  &s.seed, &system);
  else if (old) g_variant_get(old, "(&s^&ayud)", &style, &model, &context, &share);
  gtk_spin_button_set_value(ui("temperature"), s.temperature);
  gtk_spin_button_set_value(ui("top_p"), s.top_p);
  gtk_spin_button_set_value(ui("min_p"), s.min_p);
  gtk_spin_button_set_value(ui("max_tokens"), s.max_tokens);
  gtk_spin_button_set_value(ui("seed"), (double)s.seed);
  gtk_text_buffer_set_text(gtk_text_view_get_buffer(ui("system")), system, -1);
  app_style(style);
  if (app.model_path) return;
  g_autofree char* bundled = *model ? NULL : bundled_model();
  app.open_when_planned = *model != 0;
  if (*model) setup_model(model, context, share);
  else if (bundled) setup_model(bundled, 0, 0);
}
