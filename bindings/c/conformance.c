/* Conformance, C: carries out the steps of a script, prints what they give. ../conformance/README.md has the verbs. */
#include <math.h>
#include <pthread.h>

#include "by_name.h"

typedef struct {
  char name[24];
  const char *verb;
  void *p;
  size_t n;
} thing; /* verb: that made it; p NULL: freed */
typedef struct {
  const char *field, *what;
  int32_t *ids;
  size_t n_ids, n_calls;
} action; /* what a callback does */
typedef struct {
  char name[48], text[1024];
} setting;
static thing things[64];
static action actions[3] = {{.field = "log"}, {.field = "progress"}, {.field = "logits_hook"}};
static setting pending[16]; /* options of the next call */
static size_t n_pending, n_seen, n;
static int raised;
static char raw[16384], words[16384], unescaped[16384], *w[600], *buf;
static orrery_error err;

#define IS(name) (strcmp(verb, name) == 0)
#define OPTIONS(T, o)     \
  orrery_##T##_options o; \
  take(#T, &T##_options_layout, &o)
#define GIVES(T, f, ...)                                                                          \
  (f(__VA_ARGS__, NULL, 0, &n, &err) == 0 && (buf = realloc(buf, (n + 1) * sizeof(T))) != NULL && \
   f(__VA_ARGS__, (T *)buf, n, &n, &err) == 0)

static const char *yes(int value) { return value ? "yes" : "no"; }
static thing *at(const char *name) {
  thing *t = things;
  while (name && t->name[0] && strcmp(t->name, name) != 0) ++t;
  return t;
}
static char *rest(int i) { /* from argument i on, as text */
  char *to = unescaped;
  for (const char *p = w[i] ? raw + (w[i] - words) : ""; *p; ++p) *to++ = *p == '\\' && p[1] == 'n' ? (++p, '\n') : *p;
  return *to = 0, unescaped;
}
static int32_t *numbers(int i, size_t *count) {
  int32_t *ids = malloc(2048);
  for (*count = 0; w[i]; ++i) ids[(*count)++] = atoi(w[i]);
  return ids;
}
static action *action_of(const char *field) { return &actions[field[1] == 'r' ? 1 : field[3] == 'i' ? 2 : 0]; }
static int act(action *a) { return ++a->n_calls, raised |= strcmp(a->what, "raise") == 0, raised || strcmp(a->what, "stop") == 0; }
static void on_log(void *a, int32_t level, const char *message) { (void)level, (void)message, act(a); }
static int32_t on_progress(void *a, uint64_t done, uint64_t total) { return (void)done, (void)total, act(a); }
static int32_t on_logits(void *user, float *logits, size_t n_vocab, const int32_t *tokens, size_t n_tokens) {
  action *a = user;
  if (strcmp(a->what, "force") == 0) logits[a->ids[a->n_calls % a->n_ids]] = 1e9f;
  return (void)n_vocab, (void)tokens, (void)n_tokens, act(a);
}
static void take(const char *name, const struct_layout *s, void *options) { /* the pending settings "NAME.FIELD" */
  const size_t prefix = strlen(name);
  size_t kept = 0;
  s->init(options);
  for (size_t i = 0; i < n_pending; ++i) {
    const char *field = pending[i].name + prefix + 1;
    if (strncmp(pending[i].name, name, prefix) != 0) {
      pending[kept++] = pending[i];
      continue;
    }
    set_field(s, options, field, pending[i].text);
    if (find_field(s, field)->kind == FIELD_OPENED)
      memcpy((char *)options + find_field(s, field)->offset, &at(pending[i].text)->p, sizeof(void *));
    if (find_field(s, field)->kind != FIELD_FN) continue;
    action *a = action_of(field);
    void *to = (char *)options + find_field(s, field)->offset;
    memcpy((char *)options + find_field(s, field)->user_offset, &a, sizeof a);
    if (a == actions) *(orrery_log_fn *)to = on_log;
    if (a == actions + 1) *(orrery_progress_fn *)to = on_progress;
    if (a == actions + 2) *(orrery_logits_fn *)to = on_logits;
  }
  n_pending = kept;
}
static int show(const orrery_event *e) { /* whether it is the last */
  if (e->type == ORRERY_EVENT_PROGRESS) printf("progress %d %d", (int)e->done, (int)e->total);
  if (e->type == ORRERY_EVENT_TEXT) printf("text "), quote(e->text, e->text_bytes);
  if (e->type == ORRERY_EVENT_TOKEN) printf("token %d ", e->token), quote(e->text, e->text_bytes);
  if (e->n_top) printf(" near %d", (int)floor(.5 - e->logprob));
  for (uint32_t i = 0; i < e->n_top; ++i) printf(" %d", e->top[i].token);
  if (e->type == ORRERY_EVENT_REASONING) printf("reasoning "), quote(e->text, e->text_bytes);
  if (e->type == ORRERY_EVENT_CALL) printf("call %u %s", e->call, e->name);
  if (e->type == ORRERY_EVENT_ARGUMENTS) printf("arguments %u %s ", e->call, e->name), quote(e->text, e->text_bytes);
  if (e->type == ORRERY_EVENT_CALL_END) printf("call_end %u %s %s", e->call, e->name, e->call_id);
  if (e->type == ORRERY_EVENT_DONE)
    printf("done %u %u %d %d %d%s", e->finish_reason, e->stop_index, (int)e->prompt_tokens, (int)e->reused_tokens, (int)e->generated_tokens,
           e->complete ? " complete" : "");
  return puts(""), e->type == ORRERY_EVENT_DONE;
}
static int32_t counted(void *limit, const orrery_event *e) { return show(e), ++n_seen == *(size_t *)limit; }
static void drain(orrery_generation *g, size_t limit) {
  orrery_event e;
  for (orrery_event_init(&e, sizeof e); limit-- && !orrery_next(g, &e, &err) && !raised && !show(&e);) {
  }
}
static void answer(orrery_generation *g) {
  orrery_event e;
  orrery_event_init(&e, sizeof e);
  size_t which = 1;
  for (n = 0; !orrery_next_any(&g, 1, &which, &e, &err) && e.type != ORRERY_EVENT_DONE;)
    if (e.type == ORRERY_EVENT_TEXT) buf = realloc(buf, n + e.text_bytes), memcpy(buf + n, e.text, e.text_bytes), n += e.text_bytes;
  if (!err.status) quote(buf, n), printf(" %u\n", e.finish_reason);
}
/* The loop of the other languages' run_tools, with one function. */
static void functions(orrery_session *s, int turns) {
  OPTIONS(generate, o);
  OPTIONS(template, t);
  char tools[2048], results[8][256];
  snprintf(tools, sizeof tools, "[{\"type\": \"function\", \"function\": {\"name\": \"%s\", \"parameters\": %s}}]", w[3], rest(4));
  t.tools_json = tools;
  orrery_session_set_template(s, &t, &err);
  for (int turn = 1, n_calls = 1; n_calls && !err.status; ++turn) {
    o.tools = turn == turns ? ORRERY_TOOLS_NONE : turn > 1 ? ORRERY_TOOLS_AUTO : o.tools;
    orrery_generation *g = NULL;
    orrery_event e;
    orrery_event_init(&e, sizeof e);
    n = 0, n_calls = 0;
    for (orrery_generate(s, &o, &g, &err); !err.status && !orrery_next(g, &e, &err) && e.type != ORRERY_EVENT_DONE;) {
      if (e.type == ORRERY_EVENT_TEXT) buf = realloc(buf, n + e.text_bytes), memcpy(buf + n, e.text, e.text_bytes), n += e.text_bytes;
      if (e.type == ORRERY_EVENT_CALL_END && n_calls < 8)
        snprintf(results[n_calls++], sizeof results[0],
                 "{\"role\": \"tool\", \"tool_call_id\": \"%s\", \"name\": \"%s\", \"content\": \"seen by %s\"}", e.call_id, e.name,
                 e.name);
    }
    orrery_generation_free(g);
    for (int i = 0; i < n_calls && !err.status; ++i) printf("function %s\n", w[3]), orrery_session_add_message_json(s, results[i], &err);
  }
  if (!err.status) quote(buf, n), puts("");
}
static void *cancel_session(void *s) { return orrery_session_cancel(s), NULL; }
static void *cancel(void *g) { return orrery_cancel(g), NULL; }
static int largest(const float *row, size_t size) {
  size_t best = 0;
  for (size_t i = 1; i < size; ++i) best = row[i] > row[best] ? i : best;
  return (int)best;
}
static void evaluate(orrery_session *s, int rows) {
  size_t count;
  int32_t *ids = numbers(3, &count);
  float *logits = malloc(count * 2048 * sizeof(float));
  if (orrery_session_evaluate(s, ids, count, rows ? logits : NULL, &err) || !rows) return;
  printf("largest");
  for (size_t i = 0; i < count; ++i) printf(" %d", largest(logits + i * 2048, 2048));
  puts("");
}
static void info(const thing *t, int compare) {
  uint64_t to[128], a, b;
  const char k = t->verb[0];
  const struct_layout *s = k == 'r'   ? &runtime_info_layout
                           : k == 'v' ? &vocab_info_layout
                           : k == 'm' ? &model_info_layout
                           : k == 'p' ? &plan_result_layout
                                      : &stats_layout;
  s->init(to);
  if (k == 'r') orrery_runtime_get_info(t->p, (orrery_runtime_info *)to, &err);
  if (k == 'v') orrery_vocab_get_info(t->p, (orrery_vocab_info *)to, &err);
  if (k == 'm') orrery_model_get_info(t->p, (orrery_model_info *)to, &err);
  if (s == &stats_layout) orrery_session_stats(t->p, (orrery_stats *)to, &err);
  if (k == 'p') memcpy(to, t->p, s->bytes);
  for (int i = 2; w[i] && !compare; ++i) print_field(s, to, w[i]), fputs(w[i + 1] ? " " : "\n", stdout);
  if (!compare) return;
  a = field_number(s, to, w[2]), b = *w[3] <= '9' ? strtoull(w[3], NULL, 10) : field_number(s, to, w[3]);
  puts(a < b ? "<" : a > b ? ">" : "=");
}
#include "conformance_steps.h"

int main(int argc, char **argv) {
  FILE *script = argc == 2 ? fopen(argv[1], "rb") : NULL;
  if (!script || orrery_abi_version() != ORRERY_ABI_VERSION) return 2;
  orrery_error_init(&err, sizeof err);
  while (fgets(raw, sizeof raw, script)) {
    raw[strcspn(raw, "\n")] = 0;
    if (raw[0] == '#' || raw[0] == 0) continue;
    printf("> %s\n", raw);
    int n_words = 0;
    for (char *p = strcpy(words, raw); p; ++n_words) {
      w[n_words] = p;
      if ((p = strchr(p, ' ')) != NULL) *p++ = 0;
    }
    w[n_words] = NULL, raised = 0, orrery_error_init(&err, sizeof err);
    if (!make(w[0], n_words > 2 ? at(w[2])->p : NULL)) step(w[0], n_words > 1 ? at(w[1])->p : NULL, n_words > 2 ? atoi(w[2]) : 0);
    if (raised) puts("raised");
    else if (err.status)
      printf("error %s %u %u %d %d %s %s %s\n", orrery_status_name(err.status) + 7, err.line, err.column, (int)err.offset,
             (int)err.native_code, yes(err.bytes_requested > 0), yes(err.message[0] != 0), err.option[0] ? err.option : "-");
  }
  return fclose(script);
}
