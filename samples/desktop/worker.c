/* worker.c - the runtime on a thread of its own, so that the window never waits for it.
 *
 * Jobs come in through a queue, and are done in order. Events go out through another, which the main loop empties at most once a frame.
 * Text that nobody has fetched yet grows in place: the window gets one piece per frame, however fast tokens come. */
#define _GNU_SOURCE
#include "desktop.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/resource.h>

static struct {
  GThreadPool* jobs; /* of one thread */
  guint64 memory_bytes;
  const char *tools, *chat_template;
  gint stop;   /* atomic */
  GMutex lock; /* of events, wake, running */
  GQueue events;
  guint wake;              /* the source that hands the events over */
  orrery_session* running; /* what worker_stop() cancels */
  orrery_runtime* runtime; /* from here on: the thread's own */
  orrery_model* model;
  orrery_session_options options;
  GHashTable* sessions; /* id -> orrery_session */
  orrery_error error;
  orrery_stats before; /* of the session, when its answer began */
  gint64 told_us;      /* when figures were last sent */
} w;

static gboolean hand_over(gpointer user G_GNUC_UNUSED) {
  g_mutex_lock(&w.lock);
  GQueue events = w.events;
  g_queue_init(&w.events);
  w.wake = 0;
  g_mutex_unlock(&w.lock);
  for (Event* event; (event = g_queue_pop_head(&events)); g_free(event)) {
    app_event(event);
    g_string_free(event->text, TRUE);
  }
  return G_SOURCE_REMOVE;
}

static void emit(Event event, const char* text, gsize bytes) {
  g_mutex_lock(&w.lock);
  Event* last = g_queue_peek_tail(&w.events);
  const gboolean grows = event.type == EVENT_TEXT || event.type == EVENT_REASONING || event.type == EVENT_ARGUMENTS;
  if (grows && last && last->type == event.type && last->done == event.done) {
    g_string_append_len(last->text, text, (gssize)bytes);
  } else {
    event.text = g_string_new_len(text, (gssize)bytes);
    g_queue_push_tail(&w.events, g_memdup2(&event, sizeof event));
  }
  if (!w.wake) w.wake = g_timeout_add(16, hand_over, NULL);
  g_mutex_unlock(&w.lock);
}

static void fail(EventType type, const char* doing) {
  g_autofree char* text = g_strdup_printf("%s: %s (%s)", doing, w.error.message, orrery_status_name(w.error.status));
  emit((Event){.type = type}, text, strlen(text));
}

static void set_running(orrery_session* session) {
  g_mutex_lock(&w.lock);
  w.running = session;
  g_mutex_unlock(&w.lock);
}

void worker_stop(void) {
  g_atomic_int_set(&w.stop, 1);
  g_mutex_lock(&w.lock);
  if (w.running) orrery_session_cancel(w.running);
  g_mutex_unlock(&w.lock);
}

static int32_t on_loading(void* user G_GNUC_UNUSED, uint64_t done, uint64_t total) {
  if (g_get_monotonic_time() - w.told_us > 50000) {
    w.told_us = g_get_monotonic_time();
    emit((Event){.type = EVENT_LOADING, .done = done, .total = total}, "", 0);
  }
  return g_atomic_int_get(&w.stop);
}

static orrery_source file_of(const Job* job) {
  orrery_source file;
  orrery_source_init(&file, sizeof file);
  file.path = job->path;
  return file;
}

static void set_options(const Job* job, orrery_runtime_options* runtime, orrery_session_options* session) {
  orrery_runtime_options_init(runtime, sizeof *runtime);
  orrery_session_options_init(session, sizeof *session);
  runtime->device_budget_bytes = w.memory_bytes;
  runtime->priority = ORRERY_PRIORITY_LOW; /* the window comes first */
  session->n_context = job->context;
  if (job->share < 1) session->kv_budget_share = job->share; /* the policy is then "auto" */
}

static void plan(const Job* job) {
  orrery_runtime_options runtime;
  orrery_session_options session;
  orrery_vocab* vocab = NULL;
  Event event = {.type = EVENT_PLANNED, .total = job->document ? job->keep : 0};
  set_options(job, &runtime, &session);
  for (size_t i = 0; i < orrery_devices() && !event.gpu; ++i) {
    orrery_device_info device;
    orrery_device_info_init(&device, sizeof device);
    event.gpu = orrery_device_get_info(i, &device, NULL) == ORRERY_OK && !*device.refused;
  }
  orrery_plan_result_init(&event.plan, sizeof event.plan);
  const orrery_source file = file_of(job);
  orrery_status status = orrery_plan(&file, &runtime, NULL, &session, &event.plan, &w.error);
  if (status == ORRERY_OK && job->document && (status = orrery_vocab_open(&file, &vocab, &w.error)) == ORRERY_OK) {
    size_t n = 0, bytes = 0;
    const char* text = g_bytes_get_data(job->document, &bytes);
    status = orrery_tokenize(vocab, text, bytes, 0, NULL, 0, &n, &w.error);
    event.done = n;
  }
  orrery_vocab_free(vocab);
  g_autofree char* text = g_strdup_printf("%s (%s)", w.error.message, orrery_status_name(status));
  emit(event, text, status == ORRERY_OK ? 0 : strlen(text));
}

static void open_model(const Job* job) {
  orrery_runtime_options runtime;
  orrery_model_options options;
  Event event = {.type = EVENT_OPENED};
  set_options(job, &runtime, &w.options);
  orrery_model_options_init(&options, sizeof options);
  orrery_model_info_init(&event.info, sizeof event.info);
  g_hash_table_remove_all(w.sessions);
  orrery_model_free(w.model);
  w.model = NULL;
  setpriority(PRIO_PROCESS, 0, 10); /* on Linux: of this thread alone, which computes beside the runtime's own */
  options.progress = on_loading;
  const orrery_source file = file_of(job);
  orrery_status status = w.runtime ? ORRERY_OK : orrery_runtime_create(&runtime, &w.runtime, &w.error);
  if (status == ORRERY_OK) status = orrery_model_open(w.runtime, &file, &options, &w.model, &w.error);
  if (status == ORRERY_OK) status = orrery_model_get_info(w.model, &event.info, &w.error);
  if (status != ORRERY_OK) {
    fail(EVENT_FAILED, "The model did not open");
    return;
  }
  orrery_runtime_info running;
  orrery_runtime_info_init(&running, sizeof running);
  orrery_runtime_get_info(w.runtime, &running, NULL);
  const gboolean why = running.gpu_use == ORRERY_GPU_DRIVER_TOO_OLD || running.gpu_use == ORRERY_GPU_REFUSED; /* there is a GPU */
  g_autofree char* text = g_strdup_printf("%s, %.1f M parameters, %s%s%s", event.info.name[0] ? event.info.name : event.info.architecture,
                                          (double)event.info.n_parameters / 1e6, event.info.quantization, why ? ", on the processor: " : "",
                                          why ? running.gpu_reason : "");
  emit(event, text, strlen(text));
}

/* A saved session that cannot be loaded costs its KV alone: the messages stand in the index. The file is kept for inspection. */
static void load(const Job* job, orrery_session* session) {
  set_running(session);
  const orrery_status status = orrery_session_load(session, job->path, &w.error);
  set_running(NULL);
  if (status == ORRERY_OK || status == ORRERY_CANCELLED || (status == ORRERY_IO && w.error.native_code == ENOENT)) return;
  g_autofree char *aside = g_strconcat(job->path, ".damaged", NULL), *shown = g_filename_display_name(aside);
  g_autofree char* text = g_strdup_printf("The saved KV of a conversation was not loaded; its messages are complete. The file %s %s",
                                          g_rename(job->path, aside) == 0 ? "is kept as" : "could not be kept as", shown);
  fail(EVENT_ERROR, text);
}

static orrery_status set_template(orrery_session* session) {
  orrery_template_options options;
  orrery_template_options_init(&options, sizeof options);
  options.tools_json = w.tools;
  options.template_source = w.chat_template;
  return orrery_session_set_template(session, &options, &w.error);
}

/* The conversation's session with the first `keep` messages of the job, or NULL after an error. The session's KV stays: an answer reuses
   whatever its prompt has in common with it. */
static orrery_session* session_of(const Job* job) {
  orrery_session *session = g_hash_table_lookup(w.sessions, GUINT_TO_POINTER(job->id)), *opened = NULL;
  orrery_session* from = g_hash_table_lookup(w.sessions, GUINT_TO_POINTER(job->from));
  orrery_status status = ORRERY_OK;
  if (!session) {
    status = from ? orrery_session_fork(from, &opened, &w.error) : orrery_session_open(w.model, &w.options, &opened, &w.error);
    session = opened;
    if (status == ORRERY_OK) status = set_template(session);
    if (status == ORRERY_OK && job->path) load(job, session);
  }
  const gboolean lacks = orrery_session_n_messages(session) < job->keep || job->replaces || (opened && job->path);
  if (status == ORRERY_OK) status = orrery_session_rewind_messages(session, lacks ? 0 : job->keep, &w.error);
  for (gsize i = 0; status == ORRERY_OK && lacks && i < g_variant_n_children(job->messages); ++i) {
    const char *role = NULL, *text = NULL, *document = NULL;
    g_variant_get_child(job->messages, i, "(&s&sm&sm&st)", &role, &text, NULL, &document, NULL);
    g_autofree char* json = message_json(role, text, document);
    status = json ? orrery_session_add_message_json(session, json, &w.error) : orrery_session_add_message(session, role, text, &w.error);
  }
  if (opened && status == ORRERY_OK) g_hash_table_insert(w.sessions, GUINT_TO_POINTER(job->id), opened);
  if (status == ORRERY_OK) return session;
  orrery_session_free(opened);
  fail(EVENT_ERROR, "The conversation is not ready");
  return NULL;
}

/* The session's figures and residency. Rates are those of the answer under way. */
static void tell(const orrery_session* session) {
  Event event = {.type = EVENT_STATS};
  orrery_stats* s = &event.stats;
  size_t n = 0;
  w.told_us = g_get_monotonic_time();
  orrery_stats_init(s, sizeof *s);
  if (orrery_session_stats(session, s, NULL) != ORRERY_OK || orrery_session_residency(session, NULL, 0, &n, NULL) != ORRERY_OK) return;
  event.rates[0] = (double)(s->prompt_tokens - w.before.prompt_tokens) * 1e6 / (double)MAX(s->prefill_us - w.before.prefill_us, 1);
  event.rates[1] = (double)(s->generated_tokens - w.before.generated_tokens) * 1e6 / (double)MAX(s->decode_us - w.before.decode_us, 1);
  g_autofree guint32* held = g_new(guint32, n);
  if (orrery_session_residency(session, held, n, &n, NULL) == ORRERY_OK) emit(event, (const char*)held, n * sizeof *held);
}

/* What the window shows of an event: text, reasoning, calls. */
static void show(const orrery_event* ev) {
  static const struct {
    uint32_t from;
    EventType to;
  } kShown[] = {{ORRERY_EVENT_TEXT, EVENT_TEXT},
                {ORRERY_EVENT_REASONING, EVENT_REASONING},
                {ORRERY_EVENT_CALL, EVENT_CALL},
                {ORRERY_EVENT_ARGUMENTS, EVENT_ARGUMENTS},
                {ORRERY_EVENT_CALL_END, EVENT_CALL_END}};
  for (gsize i = 0; i < G_N_ELEMENTS(kShown); ++i) {
    if (ev->type != kShown[i].from) continue;
    const char* word = ev->type == ORRERY_EVENT_CALL ? ev->name : ev->type == ORRERY_EVENT_CALL_END ? ev->call_id : NULL;
    emit((Event){.type = kShown[i].to, .done = ev->call}, word ? word : ev->text, word ? strlen(word) : ev->text_bytes);
  }
}

static void answer(const Job* job) {
  orrery_session* session = session_of(job);
  orrery_generation* generation = NULL;
  orrery_event ev;
  orrery_generate_options options;
  Event done = {.type = EVENT_DONE, .n_messages = job->keep};
  orrery_event_init(&ev, sizeof ev);
  orrery_stats_init(&w.before, sizeof w.before);
  if (session) orrery_session_stats(session, &w.before, NULL);
  orrery_generate_options_init(&options, sizeof options);
  options.tools = w.tools ? ORRERY_TOOLS_AUTO : ORRERY_TOOLS_IGNORED;
  options.split_reasoning = 1;
  options.temperature = (float)job->sampling.temperature;
  options.top_p = (float)job->sampling.top_p;
  options.min_p = (float)job->sampling.min_p;
  options.max_tokens = job->sampling.max_tokens;
  options.continue_last = job->goes_on ? 1 : 0;
  options.seed = job->sampling.seed;
  set_running(session);
  orrery_status status = session ? ORRERY_OK : ORRERY_CANCELLED;
  if (session && job->text) status = orrery_session_add_message(session, "user", job->text, &w.error);
  if (status == ORRERY_OK) status = orrery_generate(session, &options, &generation, &w.error);
  while (status == ORRERY_OK && ev.type != ORRERY_EVENT_DONE) {
    if (g_atomic_int_get(&w.stop)) orrery_cancel(generation);
    if ((status = orrery_next(generation, &ev, &w.error)) != ORRERY_OK) break;
    show(&ev);
    if (ev.type == ORRERY_EVENT_PROGRESS) emit((Event){.type = EVENT_PROGRESS, .done = ev.done, .total = ev.total}, "", 0);
    if (g_get_monotonic_time() - w.told_us > 200000) tell(session);
  }
  if (status == ORRERY_OK) {
    done.end = ev;
    tell(session);
  } else if (session) {
    fail(EVENT_ERROR, "There is no whole answer");
  }
  set_running(NULL);
  orrery_generation_free(generation);
  if (session) done.n_messages = orrery_session_n_messages(session);
  emit(done, "", 0);
}

/* Every file is replaced whole or not at all. The index is last, and names no session: one that is missing costs its KV alone. */
static void save(const Job* job) {
  Event event = {.type = EVENT_SAVED, .total = job->keep};
  GHashTableIter all;
  gpointer id, session;
  g_autoptr(GError) failure = NULL;
  g_hash_table_iter_init(&all, w.sessions);
  while (job->keep && g_hash_table_iter_next(&all, &id, &session)) {
    g_autofree char* path = g_strdup_printf("%s/%u.session", job->path, GPOINTER_TO_UINT(id));
    if (orrery_session_save(session, path, &w.error) == ORRERY_OK) continue;
    fail(EVENT_ERROR, "A conversation's KV was not saved");
    ++event.done;
  }
  g_autofree char *path = g_build_filename(job->path, "conversations", NULL), *text = index_to_text(job->messages);
  if (!g_file_set_contents_full(path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0600, &failure)) {
    g_snprintf(w.error.message, sizeof w.error.message, "%s", failure->message);
    w.error.status = ORRERY_IO;
    fail(EVENT_ERROR, "The conversations were not saved");
    ++event.done;
  }
  emit(event, "", 0);
}

static void run(gpointer data, gpointer user G_GNUC_UNUSED) {
  g_autofree Job* job = data;
  switch (job->type) {
    case JOB_PLAN: plan(job); break;
    case JOB_OPEN: open_model(job); break;
    case JOB_NEW: session_of(job); break;
    case JOB_SEND: answer(job); break;
    case JOB_SAVE: save(job); break;
    case JOB_CLOSE:
      g_hash_table_remove(w.sessions, GUINT_TO_POINTER(job->id));
      g_unlink(job->path);
      break;
    case JOB_QUIT:
      g_hash_table_unref(w.sessions); /* sessions, then their model, then its runtime */
      orrery_model_free(w.model);
      orrery_runtime_free(w.runtime);
      emit((Event){.type = EVENT_QUIT}, "", 0);
  }
  g_clear_pointer(&job->messages, g_variant_unref);
  g_clear_pointer(&job->document, g_bytes_unref);
  g_free(job->path), g_free(job->text);
}

void worker_do(Job job) {
  if (job.type == JOB_OPEN || job.type == JOB_SEND) g_atomic_int_set(&w.stop, 0);
  g_thread_pool_push(w.jobs, g_memdup2(&job, sizeof job), NULL);
}

void worker_start(guint64 memory_bytes, const char* tools, const char* chat_template) {
  w.memory_bytes = memory_bytes;
  w.tools = tools;
  w.chat_template = chat_template;
  w.sessions = g_hash_table_new_full(NULL, NULL, NULL, (GDestroyNotify)orrery_session_free);
  orrery_error_init(&w.error, sizeof w.error);
  w.jobs = g_thread_pool_new(run, NULL, 1, TRUE, NULL);
}

void worker_join(void) { g_thread_pool_free(w.jobs, FALSE, TRUE); }
