/* frames.c - how long frames take while the model works, for --frame-report.
 *
 * A frame's time is that from one tick of the window's GdkFrameClock to the next: it holds everything that kept the main thread from
 * drawing, other programs included. Its processor time is what the main thread itself used. */
#include "desktop.h"

#include <time.h>

static GArray* times[N_PHASES][2];   /* microseconds: [0] between ticks, [1] of the main thread's processor time */
static gint64 last[2];
static Phase phase_now;

static gint64 processor_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * G_GINT64_CONSTANT(1000000) + t.tv_nsec / 1000;
}

static void on_update(void) {
  const gint64 now[2] = {g_get_monotonic_time(), processor_us()};
  for (int i = 0; i < 2; ++i) {
    const gint64 us = now[i] - last[i];
    if (!times[phase_now][i]) times[phase_now][i] = g_array_new(FALSE, FALSE, sizeof us);
    if (phase_now != PHASE_IDLE && last[0]) g_array_append_val(times[phase_now][i], us);
    last[i] = now[i];
  }
}

void frames_watch(GtkWidget* window) { g_signal_connect(gtk_widget_get_frame_clock(window), "update", G_CALLBACK(on_update), NULL); }

void frames_phase(Phase phase) {
  if (phase_now == PHASE_IDLE) last[0] = 0;   /* no frames come while nothing moves */
  phase_now = phase;
}

static int by_size(gconstpointer a, gconstpointer b) {
  const gint64 x = *(const gint64*)a, y = *(const gint64*)b;
  return (x > y) - (x < y);
}

void frames_report(const char* path) {
  static const char* const kNames[] = {"idle", "prefill", "answer"};
  g_autoptr(GString) text = g_string_new("phase frames median_ms p99_ms max_ms over_50ms median_cpu_ms p99_cpu_ms max_cpu_ms\n");
  for (int phase = PHASE_PREFILL; phase < N_PHASES && path; ++phase) {
    if (!times[phase][0] || times[phase][0]->len == 0) continue;
    for (int i = 0; i < 2; ++i) {
      GArray* sorted = g_array_copy(times[phase][i]);
      guint over = 0;
      g_array_sort(sorted, by_size);
      const gint64* us = (const gint64*)(void*)sorted->data;
      for (guint j = 0; j < sorted->len; ++j) over += us[j] > 50000;
      if (i == 0) g_string_append_printf(text, "%s %u", kNames[phase], sorted->len);
      g_string_append_printf(text, " %.1f %.1f %.1f", (double)us[sorted->len / 2] / 1e3, (double)us[sorted->len * 99 / 100] / 1e3, (double)us[sorted->len - 1] / 1e3);
      if (i == 0) g_string_append_printf(text, " %u", over);
      g_array_unref(sorted);
    }
    g_string_append_c(text, '\n');
  }
  if (g_strcmp0(path, "-") == 0) g_print("%s", text->str);
  else if (path && !g_file_set_contents(path, text->str, -1, NULL)) g_printerr("cannot write %s\n", path);
}
