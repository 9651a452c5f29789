/* frames.c - what the case of the frames preloads: from the first gtk_window_present() on, it draws that window without a break, and
 * writes a line for each tick of its GdkFrameClock to $ORRERY_FRAMES: the time (CLOCK_MONOTONIC) and the processor time that the main
 * thread has used, in milliseconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gtk/gtk.h>
#include <time.h>

static double milliseconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static gboolean on_frame(GtkWidget* window, GdkFrameClock* clock, gpointer file) {
  (void)window, (void)clock;
  fprintf(file, "%.3f %.3f\n", milliseconds(CLOCK_MONOTONIC), milliseconds(CLOCK_THREAD_CPUTIME_ID));
  return G_SOURCE_CONTINUE;
}

void gtk_window_present(GtkWindow* window) {
  static FILE* file;
  void (*present)(GtkWindow*);
  *(void**)&present = dlsym(RTLD_NEXT, "gtk_window_present");
  if (!file && (file = fopen(g_getenv("ORRERY_FRAMES"), "w"))) {
    setvbuf(file, NULL, _IOLBF, 0);
    gtk_widget_add_tick_callback(GTK_WIDGET(window), on_frame, file, NULL);
  }
  present(window);
}
