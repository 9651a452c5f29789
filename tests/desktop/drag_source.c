/* drag_source.c - a small window that gives a file to whoever takes it: the other side of drag and drop. Its argument is the path. */
#include <gtk/gtk.h>

static GdkContentProvider* on_prepare(GtkDragSource* source, double x, double y, gpointer path) {
  (void)source, (void)x, (void)y;
  GFile* file = g_file_new_for_commandline_arg(path);
  GSList* files = g_slist_append(NULL, file);
  GdkContentProvider* content = gdk_content_provider_new_typed(GDK_TYPE_FILE_LIST, files);
  g_slist_free_full(files, g_object_unref);
  return content;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  gtk_init();
  GtkWidget* window = gtk_window_new();
  GtkDragSource* source = gtk_drag_source_new();
  g_signal_connect(source, "prepare", G_CALLBACK(on_prepare), argv[1]);
  gtk_window_set_child(GTK_WINDOW(window), gtk_label_new("drag me"));
  gtk_widget_add_controller(window, GTK_EVENT_CONTROLLER(source));
  gtk_window_set_decorated(GTK_WINDOW(window), FALSE);
  gtk_window_set_default_size(GTK_WINDOW(window), 100, 60);
  gtk_window_present(GTK_WINDOW(window));
  for (;;) g_main_context_iteration(NULL, TRUE);
}
