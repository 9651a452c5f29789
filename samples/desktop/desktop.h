/* desktop.h - what the files of the desktop application share.
 *
 * GTK's main thread owns every widget, conversation and message. The worker thread owns every handle of Orrery: the main thread sends
 * it jobs, and gets events back. No handle crosses over: a conversation and its session share a number, `id`. */
#ifndef ORRERY_DESKTOP_H
#define ORRERY_DESKTOP_H

#include <gtk/gtk.h>
#include <orrery_lab.h>

/* ---- worker.c: the runtime on a thread of its own ---- */
typedef enum { JOB_PLAN, JOB_OPEN, JOB_NEW, JOB_SEND, JOB_CLOSE, JOB_SAVE, JOB_QUIT } JobType;
typedef struct {
  double temperature, top_p, min_p;
  guint32 max_tokens; /* 0: no limit */
  guint64 seed;
} Sampling;
typedef struct {
  JobType type;
  guint id, from;     /* the conversation; NEW: the one that is forked, 0: none */
  gsize keep;         /* NEW, SEND: messages that stand in front; SAVE: 1 with the sessions, 0 the index alone;
                           PLAN: the document's number */
  char* path;         /* PLAN, OPEN: the model; NEW: a saved session, or NULL; CLOSE: its saved session; SAVE: the folder */
  char* text;         /* SEND: the question; NULL: the messages end with results of calls, or with an answer that goes on */
  GVariant* messages; /* NEW, SEND: the first `keep` messages, for a session that lacks them; SAVE: the index */
  GBytes* document;   /* PLAN: a document whose tokens are counted, or NULL */
  guint32 context;    /* PLAN, OPEN: tokens; 0: as the model was trained */
  float share;        /* PLAN, OPEN: KV budget, a share of full KV; 1: all of it */
  gboolean goes_on;   /* SEND: the last message is an answer that goes on */
  gboolean replaces;  /* SEND: the job's messages replace all messages of the session */
  Sampling sampling;  /* SEND */
} Job;
typedef enum {
  EVENT_PLANNED,
  EVENT_LOADING,
  EVENT_OPENED,
  EVENT_FAILED,
  EVENT_PROGRESS,
  EVENT_TEXT,
  EVENT_REASONING,
  EVENT_CALL,
  EVENT_ARGUMENTS,
  EVENT_CALL_END,
  EVENT_STATS,
  EVENT_DONE,
  EVENT_ERROR,
  EVENT_SAVED,
  EVENT_QUIT
} EventType;
typedef struct {
  EventType type;
  guint64 done, total;     /* LOADING: bytes; PROGRESS: prompt tokens; CALL, ARGUMENTS, CALL_END: the call's number, from 0;
                               SAVED: `done` errors; PLANNED: `done` tokens of document `total` */
  GString* text;           /* TEXT, REASONING, ARGUMENTS; CALL: the tool's name; CALL_END: the call's id; ERROR, FAILED: the message;
                               PLANNED: an error, or empty; OPENED: the model in words;
                               STATS: what orrery_session_residency() gives */
  orrery_plan_result plan; /* PLANNED */
  gboolean gpu;            /* PLANNED: the device is a GPU, with memory of its own */
  gsize n_messages;        /* DONE: of the session */
  orrery_event end;        /* DONE: of the answer; type 0: no answer */
  orrery_stats stats;      /* STATS */
  double rates[2];         /* STATS: tokens per second, of the prompt and of the answer; 0: not yet */
  orrery_model_info info;  /* OPENED; without its strings */
} Event;
void worker_start(guint64 memory_bytes, const char* tools, const char* chat_template); /* JSON, Jinja; NULL: none, the model's */
void worker_do(Job job);                                                               /* takes over what the job points to */
void worker_stop(void);                                                                /* the answer or the loading of this moment */
void worker_join(void);                                                                /* after EVENT_QUIT */

/* ---- conversation.c: messages, and how they are kept ---- */
typedef struct {
  guint id;
  GPtrArray* messages;   /* GVariant; of an answer under way, the question is the last one */
  GtkWidget *row, *name; /* in the side bar. The name's text is the title */
} Conversation;
typedef struct {
  const char *role, *text, *meta, *document; /* meta: a dim line below; document: the name of the one in front of the text; or NULL.
                                                  Of an answer with calls or reasoning: made_print(). Of a call's result: its id */
  guint64 hidden;                            /* the document's bytes */
} Message;
typedef struct {
  char *name, *id;
  GString* arguments;
} Call;
typedef struct {
  GString* thought;
  GPtrArray* calls;
} Made; /* what an answer has beside its text */
Made made_new(void);
void made_clear(Made* made); /* to nothing */
void made_free(Made* made);
void made_call(Made* made, const char* name);
char* made_print(const Made* made);                                           /* NULL: nothing */
void made_parse(Made* made, const char* text);                                /* NULL: nothing */
char* message_json(const char* role, const char* text, const char* document); /* NULL: role and text say all of it */
Conversation* conversation_new(guint id, const char* title);
void conversation_free(gpointer conversation);
const char* conversation_title(const Conversation* c);
void conversation_add(Conversation* c, Message m);
Message conversation_message(const Conversation* c, guint i);    /* its strings live as long as the message */
gboolean conversation_asks(const Conversation* c, guint i);      /* message i is the user's */
GVariant* conversation_messages(const Conversation* c, guint n); /* the first n, for Job.messages */
GVariant* conversations_index(GPtrArray* all, guint current);
char* index_to_text(GVariant* index);                                               /* with a checksum; on any thread */
gboolean conversations_from_text(const char* text, GPtrArray* all, guint* current); /* FALSE: the text is damaged */

void markdown_append(GtkTextView* view, const char* text); /* markdown.c */

/* ---- main.c, settings.c, window.c, setup.c. A process has one window, and `app` is its state ---- */
typedef struct {
  GtkApplication* app;
  GtkBuilder* builder;         /* of window.ui */
  int memory_mib;              /* --memory; 0: the runtime's default */
  char *tools, *chat_template; /* --tools, --template: what the files hold; or NULL */
  gboolean system_dark;
  /* setup.c */
  char *model_path, *document_name; /* the path is bytes, the name UTF-8 */
  GBytes* document;                 /* goes in front of the next question */
  gint64 document_tokens;           /* -1: not counted yet */
  guint n_documents, replan;        /* so far, a document for another model counts again; the source of the debounce */
  gboolean planning, plan_again, fresh, fits, open_when_planned;
  /* window.c */
  GPtrArray* conversations;
  Conversation *current, *answering;
  GString* streamed;                                          /* of the answer under way */
  Made made;                                                  /* of the same */
  gpointer answer, thought, thought_text, calls, meta, go_on; /* its parts, if it is on the screen; else answer is NULL */
  guint32* held;                                              /* (n_layers, n_heads) tokens on the device, of n_held */
  guint n_layers, n_heads, n_held;
  char *folder, *opened_path; /* folder: of the open model's conversations; NULL: no model is open */
  guint32 opened_context;
  guint next_id;
  gsize edit_from;       /* the composer's text replaces this message; G_MAXSIZE: none */
  gboolean stick;        /* the messages stay at their end */
  guint64 n_again;       /* how often the last question was answered again */
  gboolean narrow, tiny; /* the window has no room for the panel, and none for the side bar */
  gboolean opening, quitting, leave;
} App;
extern App app;
gpointer ui(const char* id);                                           /* an object of window.ui */
void say(const char* id, const char* format, ...) G_GNUC_PRINTF(2, 3); /* a label's text */
void setup_model(const char* path, guint32 context, double share);     /* 0: the default */
void setup_document(GFile* file);                                      /* NULL: none */
void setup_plan(void);                                                 /* soon, on the worker */
void setup_planned(const Event* event);
void setup_width(int pixels); /* the page's */
void window_new(void);
void window_show(void);     /* says what can be done at this moment, and which document is attached */
void app_take(GFile* file); /* a model, whose name ends in .gguf, or a document */
void app_open(void);
void app_style(const char* style); /* "system", "light", "dark" */
void app_load_settings(void);
void app_save_settings(void);
Sampling app_sampling(void);
char* app_system_prompt(void); /* "": none */
void app_event(const Event* event);
void app_error(const char* text);
char* app_data(const char* folder, const char* name); /* a path in the user's data folder, which is made */
const char* grouped(guint64 n);                       /* 1,234,567; it and sized() give texts that live until 16 more are asked for */
const char* sized(guint64 bytes);                     /* 24.0 MiB */
#endif
