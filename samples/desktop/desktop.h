/* desktop.h - what the files of the desktop application share.
 *
 * GTK's main thread owns every widget, conversation and message. The worker thread owns every handle of Orrery: the main thread sends
 * it jobs, and gets events back. No handle crosses over: a conversation and its session share a number, `id`. */
#ifndef ORRERY_DESKTOP_H
#define ORRERY_DESKTOP_H

#include <gtk/gtk.h>
#include <orrery.h>

/* ---- worker.c: the runtime on a thread of its own ---- */
typedef enum { JOB_OPEN, JOB_NEW, JOB_SEND, JOB_CLOSE, JOB_SAVE, JOB_QUIT } JobType;
typedef struct {
  JobType type;
  guint id, from;       /* the conversation; NEW: the one that is forked, 0: none */
  gsize keep;           /* NEW, SEND: messages that stand in front; SAVE: 1 with the sessions, 0 the index alone */
  char* path;           /* OPEN: the model; NEW: a saved session, or NULL; CLOSE: its saved session; SAVE: the folder */
  char* text;           /* SEND: the question */
  GVariant* index;      /* SAVE: of all conversations */
  GPtrArray* messages;  /* NEW, SEND: role, text, role, text ... of the first `keep` messages, for a session that lacks them */
  guint32 context;      /* OPEN: tokens */
  float share;          /* OPEN: KV budget, a share of full KV; 1: all of it */
} Job;
typedef enum { EVENT_LOADING, EVENT_OPENED, EVENT_FAILED, EVENT_PROGRESS, EVENT_TEXT, EVENT_STATS, EVENT_DONE, EVENT_ERROR, EVENT_SAVED, EVENT_QUIT } EventType;
typedef struct {
  EventType type;
  guint id;
  guint64 done, total;      /* LOADING: bytes; PROGRESS: prompt tokens; SAVED: `done` errors */
  GString* text;            /* TEXT; ERROR: the message; OPENED: the model in words; DONE: the figures of the answer */
  gsize n_messages;         /* DONE: of the session */
  orrery_stats stats;       /* STATS */
  double rate;              /* STATS: tokens per second, of the prompt (total > 0) or of the answer */
  float resident;           /* STATS: share of the KV that is on the device */
  orrery_model_info info;   /* OPENED; without its strings */
} Event;
typedef struct Worker Worker;
Worker* worker_new(guint64 memory_bytes, void (*on_event)(const Event* event, gpointer user), gpointer user);
void worker_do(Worker* worker, Job job);   /* takes over what the job points to */
void worker_stop(Worker* worker);          /* the answer or the loading of this moment */
void worker_drain(Worker* worker);         /* hands over all events; once per frame while an answer streams */
void worker_free(Worker* worker);          /* after EVENT_QUIT */

/* ---- conversation.c: messages, and how they are kept ---- */
typedef struct {
  char *role, *text, *meta, *document;   /* meta: a dim line below; document: the name of the one in front of the text; or NULL */
  gsize hidden;                          /* the document's bytes */
} Message;
typedef struct {
  guint id;
  char* title;
  GPtrArray* messages;     /* Message */
  GtkWidget *row, *name;   /* in the side bar */
} Conversation;
Conversation* conversation_new(guint id, const char* title);
void conversation_free(gpointer conversation);
Message* conversation_add(Conversation* c, const char* role, const char* text);
GPtrArray* conversation_strings(const Conversation* c, gsize n);   /* for Job.messages */
GVariant* conversations_index(GPtrArray* all, guint current);
char* index_to_text(GVariant* index);   /* with a checksum; on any thread */
gboolean conversations_from_text(const char* text, GPtrArray* all, guint* current);   /* FALSE: the text is damaged */

/* ---- markdown.c, drawing.c, frames.c ---- */
GtkWidget* markdown_new(const char* text);
void markdown_append(GtkWidget* view, const char* text);
void memory_bar_set(GtkWidget* bar, const orrery_plan_result* plan, const char* words);
void heat_map_set(GtkWidget* map, guint n_layers, guint n_heads, float share);
typedef enum { PHASE_IDLE, PHASE_PREFILL, PHASE_ANSWER, N_PHASES } Phase;
void frames_watch(GtkWidget* window);   /* measures every frame of a phase other than IDLE */
void frames_phase(Phase phase);
void frames_report(const char* path);   /* "-": to standard output; NULL: nowhere */

/* ---- main.c, window.c, setup.c ---- */
typedef struct {
  GtkApplication* app;
  GtkBuilder* ui;                      /* window.ui */
  GtkWidget* window;
  Worker* worker;
  int memory_mib;                      /* --memory; 0: the runtime's default */
  char* frame_report;                  /* --frame-report */
  /* setup.c */
  char *model_path, *document_name;    /* the path is bytes, the name UTF-8 */
  GBytes* document;                    /* goes in front of the next question */
  gint64 document_tokens;              /* -1: not counted yet */
  guint replan;                        /* the source of the debounce */
  gboolean planning, plan_again, fresh, fits, open_when_planned;
  /* window.c */
  GPtrArray* conversations;
  Conversation *current, *answering;
  GtkWidget *answer, *answer_meta;     /* views of the answer under way, if it is on the screen */
  char *folder, *opened_path;          /* folder: of the open model's conversations; NULL: no model is open */
  guint32 opened_context;
  guint next_id, n_layers, n_heads;
  double rates[2];                     /* tokens per second, of the last prompt and answer */
  gsize edit_from;                     /* the composer's text replaces this message; G_MAXSIZE: none */
  gboolean stick;                      /* the messages stay at their end */
  gboolean opening, quitting, leave, narrow;
  /* main.c */
  char* style;                         /* "system", "light", "dark" */
  gboolean system_dark;
} App;
GtkWidget* ui(App* app, const char* id);
void setup_model(App* app, const char* path, guint32 context, double share);   /* 0: the default */
void setup_document(App* app, GFile* file);                                    /* NULL: none */
void setup_choose(App* app, gboolean model);
void setup_plan(App* app);                                                     /* soon, on a thread */
void window_new(App* app);
void window_show(App* app);              /* says what can be done at this moment, and which document is attached */
void app_take(App* app, GFile* file);    /* a model or a document */
void app_open(App* app);
void app_action(App* app, const char* name, GVariant* value);
void app_style(App* app);
void app_settings(App* app, gboolean save);
void app_event(const Event* event, gpointer app);
void app_error(App* app, const char* text);
char* app_data(const char* folder, const char* name);   /* a path in the user's data folder, which is made */
char* grouped(guint64 n);                /* 1,234,567 */
#endif
