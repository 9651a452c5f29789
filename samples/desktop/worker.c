/* worker.c - the runtime on a thread of its own, so that the window never waits for it.
 *
 * Jobs come in through a queue, and are done in order. Events go out through another. Text that nobody has fetched yet grows in place:
 * the window gets one piece per frame, however fast tokens come. Other events wake the main loop, because a hidden window has no frames. */
#define _GNU_SOURCE
#include "desktop.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/resource.h>

struct Worker {
  GThread* thread;
  GAsyncQueue* jobs;
  void (*on_event)(const Event* event, gpointer user);
  gpointer user;
  guint64 memory_bytes;
  gint stop;                 /* atomic */
  GMutex lock;               /* of events, wake, running */
  GQueue events;
  guint wake;
  orrery_session* running;   /* what worker_stop() cancels */
  orrery_runtime* runtime;   /* from here on: the thread's own */
  orrery_model* model;
  orrery_model_info info;
  orrery_session_options options;
  GHashTable* sessions;      /* id -> orrery_session */
  gint64 told_us;            /* when figures were last sent */
};

void worker_drain(Worker* w) {
  g_mutex_lock(&w->lock);
  GQueue events = w->events;
  g_queue_init(&w->events);
  if (w->wake) g_source_remove(w->wake);
  w->wake = 0;
  g_mutex_unlock(&w->lock);
  for (Event* event; (event = g_queue_pop_head(&events)); g_free(event)) {
    w->on_event(event, w->user);
    if (event->text) g_string_free(event->text, TRUE);
  }
}

static gboolean on_wake(gpointer worker) {
  Worker* w = worker;
  g_mutex_lock(&w->lock);
  w->wake = 0;
  g_mutex_unlock(&w->lock);
  worker_drain(w);
  return G_SOURCE_REMOVE;
}

static void emit(Worker* w, Event event, const char* text, gssize bytes) {
  g_mutex_lock(&w->lock);
  Event* last = g_queue_peek_tail(&w->events);
  if (event.type == EVENT_TEXT && last && last->type == EVENT_TEXT && last->id == event.id) {
    g_string_append_len(last->text, text, bytes);
  } else {
    event.text = text ? g_string_new_len(text, bytes) : NULL;
    g_queue_push_tail(&w->events, g_memdup2(&event, sizeof event));
    if (event.type != EVENT_TEXT && event.type != EVENT_PROGRESS && event.type != EVENT_STATS && !w->wake) w->wake = g_idle_add(on_wake, w);
  }
  g_mutex_unlock(&w->lock);
}

static void fail(Worker* w, EventType type, const char* doing, const orrery_error* error) {
  g_autofree char* text = g_strdup_printf("%s: %s (%s)", doing, error->message, orrery_status_name(error->status));
  emit(w, (Event){.type = type}, text, -1);
}

static void set_running(Worker* w, orrery_session* session) {
  g_mutex_lock(&w->lock);
  w->running = session;
  g_mutex_unlock(&w->lock);
}

void worker_stop(Worker* w) {
  g_atomic_int_set(&w->stop, 1);
  g_mutex_lock(&w->lock);
  if (w->running) orrery_session_cancel(w->running);
  g_mutex_unlock(&w->lock);
}

static int32_t on_loading(void* worker, uint64_t done, uint64_t total) {
  Worker* w = worker;
  if (g_get_monotonic_time() - w->told_us > 50000) {
    w->told_us = g_get_monotonic_time();
    emit(w, (Event){.type = EVENT_LOADING, .done = done, .total = total}, "", 0);
  }
  return g_atomic_int_get(&w->stop);
}

static void open_model(Worker* w, const Job* job) {
  orrery_error error;
  orrery_model_options options;
  orrery_error_init(&error, sizeof error);
  orrery_model_options_init(&options, sizeof options);
  orrery_session_options_init(&w->options, sizeof w->options);
  orrery_model_info_init(&w->info, sizeof w->info);
  g_hash_table_remove_all(w->sessions);
  orrery_model_free(w->model);
  w->model = NULL;
  options.progress = on_loading;
  options.progress_user = w;
  w->options.n_context = job->context;
  if (job->share < 1) w->options.kv_budget_share = job->share;   /* the policy is then "auto" */
  orrery_status status = ORRERY_OK;
  if (!w->runtime) {
    orrery_runtime_options runtime;
    orrery_runtime_options_init(&runtime, sizeof runtime);
    runtime.device_budget_bytes = w->memory_bytes;
    runtime.priority = ORRERY_PRIORITY_LOW;   /* the window comes first */
    status = orrery_runtime_create(&runtime, &w->runtime, &error);
  }
  if (status == ORRERY_OK) status = orrery_model_open(w->runtime, job->path, &options, &w->model, &error);
  if (status == ORRERY_OK) status = orrery_model_get_info(w->model, &w->info, &error);
  if (status != ORRERY_OK) {
    fail(w, EVENT_FAILED, "The model did not open", &error);
    return;
  }
  g_autofree char* text = g_strdup_printf("%s, %.1f M parameters, %s", w->info.name[0] ? w->info.name : w->info.architecture,
                                          (double)w->info.n_parameters / 1e6, w->info.quantization);
  emit(w, (Event){.type = EVENT_OPENED, .info = w->info}, text, -1);
}

/* A saved session that cannot be loaded costs its KV alone: the messages stand in the index. The file is kept for inspection. */
static void load(Worker* w, const Job* job, orrery_session* session) {
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  set_running(w, session);
  orrery_status status = orrery_session_load(session, job->path, &error);
  set_running(w, NULL);
  if (status == ORRERY_OK || status == ORRERY_CANCELLED || (status == ORRERY_IO && error.native_code == ENOENT)) return;
  g_autofree char *aside = g_strconcat(job->path, ".damaged", NULL), *shown = g_filename_display_name(aside);
  g_autofree char* text = g_strdup_printf("The saved KV of a conversation was not loaded; its messages are complete. The file %s %s",
                                          g_rename(job->path, aside) == 0 ? "is kept as" : "could not be kept as", shown);
  fail(w, EVENT_ERROR, text, &error);
}

/* The conversation's session with the first `keep` messages of the job, or NULL after an error. The session's KV stays: an answer reuses
   whatever its prompt has in common with it. */
static orrery_session* session_of(Worker* w, const Job* job) {
  orrery_session *session = g_hash_table_lookup(w->sessions, GUINT_TO_POINTER(job->id)), *opened = NULL;
  orrery_session* from = g_hash_table_lookup(w->sessions, GUINT_TO_POINTER(job->from));
  orrery_status status = ORRERY_OK;
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  if (!session) {
    status = from ? orrery_session_fork(from, &opened, &error) : orrery_session_open(w->model, &w->options, &opened, &error);
    session = opened;
    if (status == ORRERY_OK && job->path) load(w, job, session);
  }
  const gboolean lacks = orrery_session_n_messages(session) < job->keep || (opened && job->path);
  if (status == ORRERY_OK) status = orrery_session_rewind_messages(session, lacks ? 0 : job->keep, &error);
  for (guint i = 0; status == ORRERY_OK && lacks && i + 1 < job->messages->len; i += 2)
    status = orrery_session_add_message(session, job->messages->pdata[i], job->messages->pdata[i + 1], &error);
  if (opened && status == ORRERY_OK) g_hash_table_insert(w->sessions, GUINT_TO_POINTER(job->id), opened);
  if (status == ORRERY_OK) return session;
  orrery_session_free(opened);
  fail(w, EVENT_ERROR, "The conversation is not ready", &error);
  return NULL;
}

static double per_second(guint64 n, gint64 us) { return us > 0 ? (double)n * 1e6 / (double)us : 0; }

/* The session's figures, with the tokens per second of the prompt or, `prompt` FALSE, of the answer. */
static void tell(Worker* w, guint id, const orrery_session* session, gboolean prompt, double rate) {
  static const double kBytes[] = {2, 4, 34.0 / 32, 18.0 / 32};   /* of a number, by ORRERY_KV_ */
  Event event = {.type = EVENT_STATS, .id = id, .total = (guint64)prompt, .resident = 1, .rate = rate};
  orrery_stats_init(&event.stats, sizeof event.stats);
  w->told_us = g_get_monotonic_time();
  if (orrery_session_stats(session, &event.stats, NULL) != ORRERY_OK) return;
  const double token_bytes = 2.0 * w->info.n_layers * w->info.n_kv_heads * w->info.head_dim *
                             kBytes[MIN(event.stats.device_kv_type, G_N_ELEMENTS(kBytes) - 1)];
  if (event.stats.n_tokens > 0) event.resident = (float)MIN((double)event.stats.device_kv_used_bytes / (token_bytes * event.stats.n_tokens), 1);
  emit(w, event, NULL, 0);
}

static void answer(Worker* w, const Job* job) {
  static const char* const kEnds[] = {"", "", "", ", length limit", ", the context is full", ", stopped"};
  orrery_session* session = session_of(w, job);
  orrery_generation* generation = NULL;
  orrery_error error;
  orrery_event ev;
  gint64 began_us = 0;
  guint64 n_tokens = 0;
  g_autofree char* figures = g_strdup("no answer");
  orrery_error_init(&error, sizeof error);
  orrery_event_init(&ev, sizeof ev);
  set_running(w, session);
  orrery_status status = session ? orrery_session_add_message(session, "user", job->text, &error) : ORRERY_CANCELLED;
  if (status == ORRERY_OK) status = orrery_generate(session, NULL, &generation, &error);
  while (status == ORRERY_OK && ev.type != ORRERY_EVENT_DONE) {
    if (g_atomic_int_get(&w->stop)) orrery_cancel(generation);
    if ((status = orrery_next(generation, &ev, &error)) != ORRERY_OK) break;
    if (ev.type == ORRERY_EVENT_TEXT) emit(w, (Event){.type = EVENT_TEXT, .id = job->id}, ev.text, (gssize)ev.text_bytes);
    if (ev.type == ORRERY_EVENT_PROGRESS) emit(w, (Event){.type = EVENT_PROGRESS, .id = job->id, .done = ev.done, .total = ev.total}, NULL, 0);
    if ((ev.type == ORRERY_EVENT_PROGRESS && ev.done == 0) || (ev.type == ORRERY_EVENT_TOKEN && n_tokens == 0)) began_us = g_get_monotonic_time();
    n_tokens += ev.type == ORRERY_EVENT_TOKEN;
    const gint64 now = g_get_monotonic_time();
    if (now - w->told_us > 200000) tell(w, job->id, session, n_tokens == 0, per_second(n_tokens ? n_tokens - 1 : ev.done, now - began_us));
  }
  if (status == ORRERY_OK) {
    g_autofree char *prompt = grouped(ev.prompt_tokens), *reused = grouped(ev.reused_tokens);
    g_free(figures);
    figures = g_strdup_printf("%" G_GUINT64_FORMAT " tokens, prompt of %s (%s reused), first token after %.2f s%s", ev.generated_tokens, prompt, reused,
                              (double)ev.first_token_us / 1e6, kEnds[ev.finish_reason < G_N_ELEMENTS(kEnds) ? ev.finish_reason : 0]);
    tell(w, job->id, session, TRUE, per_second(ev.prompt_tokens - ev.reused_tokens, (gint64)ev.prefill_us));
    tell(w, job->id, session, FALSE, per_second(ev.generated_tokens, (gint64)ev.decode_us));
  } else if (session) {
    fail(w, EVENT_ERROR, "There is no whole answer", &error);
  }
  set_running(w, NULL);
  orrery_generation_free(generation);
  emit(w, (Event){.type = EVENT_DONE, .id = job->id, .n_messages = session ? orrery_session_n_messages(session) : job->keep}, figures, -1);
}

/* Every file is replaced whole or not at all. The index is last, and names no session: one that is missing costs its KV alone. */
static void save(Worker* w, const Job* job) {
  Event event = {.type = EVENT_SAVED, .total = job->keep};
  GHashTableIter all;
  gpointer id, session;
  g_autoptr(GError) failure = NULL;
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  g_hash_table_iter_init(&all, w->sessions);
  while (job->keep && g_hash_table_iter_next(&all, &id, &session)) {
    g_autofree char* path = g_strdup_printf("%s/%u.session", job->path, GPOINTER_TO_UINT(id));
    if (orrery_session_save(session, path, &error) == ORRERY_OK) continue;
    fail(w, EVENT_ERROR, "A conversation's KV was not saved", &error);
    ++event.done;
  }
  g_autofree char *path = g_build_filename(job->path, "conversations", NULL), *text = index_to_text(job->index);
  if (!g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600, &failure)) {
    g_snprintf(error.message, sizeof error.message, "%s", failure->message);
    error.status = ORRERY_IO;
    fail(w, EVENT_ERROR, "The conversations were not saved", &error);
    ++event.done;
  }
  emit(w, event, NULL, 0);
}

static gpointer run(gpointer worker) {
  Worker* w = worker;
  setpriority(PRIO_PROCESS, 0, 5);   /* on Linux: of this thread alone */
  for (gboolean more = TRUE; more;) {
    Job* job = g_async_queue_pop(w->jobs);
    switch (job->type) {
      case JOB_OPEN: open_model(w, job); break;
      case JOB_NEW: session_of(w, job); break;
      case JOB_SEND: answer(w, job); break;
      case JOB_SAVE: save(w, job); break;
      case JOB_CLOSE:
        g_hash_table_remove(w->sessions, GUINT_TO_POINTER(job->id));
        g_unlink(job->path);
        break;
      case JOB_QUIT: more = FALSE; break;
    }
    g_clear_pointer(&job->messages, g_ptr_array_unref);
    g_clear_pointer(&job->index, g_variant_unref);
    g_free(job->path), g_free(job->text), g_free(job);
  }
  g_hash_table_unref(w->sessions);   /* sessions, then their model, then its runtime */
  orrery_model_free(w->model);
  orrery_runtime_free(w->runtime);
  emit(w, (Event){.type = EVENT_QUIT}, NULL, 0);
  return NULL;
}

void worker_do(Worker* w, Job job) {
  if (job.type == JOB_OPEN || job.type == JOB_SEND) g_atomic_int_set(&w->stop, 0);
  g_async_queue_push(w->jobs, g_memdup2(&job, sizeof job));
}

Worker* worker_new(guint64 memory_bytes, void (*on_event)(const Event* event, gpointer user), gpointer user) {
  Worker* w = g_new0(Worker, 1);
  w->jobs = g_async_queue_new();
  w->on_event = on_event;
  w->user = user;
  w->memory_bytes = memory_bytes;
  w->sessions = g_hash_table_new_full(NULL, NULL, NULL, (GDestroyNotify)orrery_session_free);
  g_mutex_init(&w->lock);
  g_queue_init(&w->events);
  w->thread = g_thread_new("orrery", run, w);
  return w;
}

void worker_free(Worker* w) {
  g_thread_join(w->thread);
  worker_drain(w);
  g_async_queue_unref(w->jobs);
  g_mutex_clear(&w->lock);
  g_free(w);
}
