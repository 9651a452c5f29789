/* drawing.c - the memory bar and the heat map. What they show is also their accessible name. */
#include "desktop.h"

static const GdkRGBA kParts[] = {{.21f, .52f, .89f, 1}, {.18f, .76f, .49f, 1}, {.6f, .42f, .27f, 1}, {.75f, .38f, .8f, 1}};

static void draw_bar(GtkDrawingArea* area, cairo_t* cr, int width, int height, gpointer plan) {
  const orrery_plan_result* p = plan;
  const double sizes[] = {(double)(p->weights_bytes + p->weights_mapped_bytes),
                          (double)(p->full_kv_bytes + p->compressed_kv_bytes + p->digests_bytes + p->staging_bytes), (double)p->workspace_bytes,
                          (double)p->reservoir_bytes};
  const double budget = (double)p->budget_bytes, all = MAX(sizes[0] + sizes[1] + sizes[2] + sizes[3], budget);
  GdkRGBA text;
  gtk_style_context_get_color(gtk_widget_get_style_context(GTK_WIDGET(area)), &text);
  double x = 0;
  text.alpha = .12f;
  gdk_cairo_set_source_rgba(cr, &text);
  cairo_rectangle(cr, 0, 4, width, height - 8);
  cairo_fill(cr);
  for (gsize i = 0; i < G_N_ELEMENTS(sizes) && all > 0; ++i) {   /* a part that is there is seen */
    const double part = sizes[i] > 0 ? MAX(sizes[i] / all * width, 2) : 0;
    gdk_cairo_set_source_rgba(cr, &kParts[i]);
    cairo_rectangle(cr, x, 4, part, height - 8);
    cairo_fill(cr);
    x += part;
  }
  text.alpha = .8f;   /* the budget */
  gdk_cairo_set_source_rgba(cr, &text);
  if (all > 0) cairo_rectangle(cr, budget / all * (width - 2), 0, 2, height);
  cairo_fill(cr);
}

void memory_bar_set(GtkWidget* bar, const orrery_plan_result* plan, const char* words) {
  gtk_drawing_area_set_draw_func(GTK_DRAWING_AREA(bar), draw_bar, g_memdup2(plan, sizeof *plan), g_free);
  gtk_accessible_update_property(GTK_ACCESSIBLE(bar), GTK_ACCESSIBLE_PROPERTY_LABEL, words, -1);
}

typedef struct {
  guint n_layers, n_heads;
  float share;
} Heat;

static void draw_heat(GtkDrawingArea* area G_GNUC_UNUSED, cairo_t* cr, int width, int height, gpointer heat) {
  const Heat* h = heat;
  const double w = (double)width / h->n_heads, tall = (double)height / h->n_layers, gap = w > 5 && tall > 5 ? 1.5 : 0;
  for (guint layer = 0; layer < h->n_layers; ++layer)
    for (guint head = 0; head < h->n_heads; ++head) {
      cairo_set_source_rgba(cr, .21, .52, .89, .08 + .8 * (double)h->share);
      cairo_rectangle(cr, head * w + gap / 2, layer * tall + gap / 2, w - gap, tall - gap);
      cairo_fill(cr);
    }
}

void heat_map_set(GtkWidget* map, guint n_layers, guint n_heads, float share) {
  const Heat heat = {n_layers, n_heads, share};
  g_autofree char* words = g_strdup_printf("KV on the device, %u layers by %u heads: %.0f %% of the tokens on average", n_layers, n_heads, (double)share * 100);
  gtk_drawing_area_set_draw_func(GTK_DRAWING_AREA(map), draw_heat, g_memdup2(&heat, sizeof heat), g_free);
  gtk_accessible_update_property(GTK_ACCESSIBLE(map), GTK_ACCESSIBLE_PROPERTY_LABEL, words, -1);
}
