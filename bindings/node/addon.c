/* The Node addon: calls any function of functions.h, at once (sync.NAME) or on a thread of libuv's pool (async.NAME, a promise).
 *
 * Arguments are those of the header without counts, out parameters and the error: handles are externals, options are objects
 * whose keys are the fields in camelCase, out structs and buffers are results. Functions in options are called on the thread
 * of JavaScript while the worker waits for what they return; what they throw rejects the call. index.js makes classes of this.
 */
#define NAPI_VERSION 6
#include <node_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "functions.h"

#define MAX_OWNED 256
#define MAX_ADAPTERS 64

typedef struct callback { /* a function of JavaScript that C calls */
  napi_env env;
  napi_ref function, raised; /* raised: what it threw last */
  napi_threadsafe_function queue;
  pthread_t main;
  int logs;
} callback;

typedef struct handle {
  void *p; /* NULL: freed */
  void (*free)(void *);
  int calls, closing;
  callback *hook; /* of a generation: called as long as it is there */
} handle;

typedef struct call {
  const function *f;
  slot a[16], result;
  orrery_error error;
  void *owned[MAX_OWNED];
  int n_owned, n_used, n_callbacks, out, out_kind, is_async;
  size_t n;            /* of the out buffer, in elements */
  void *made, *filled; /* by P_NEW, P_RESULT */
  const struct_layout *filled_layout, *out_layout;
  handle *used[4 + MAX_ADAPTERS];
  callback *callbacks[4];
  napi_ref arguments;
  napi_deferred deferred;
  napi_async_work work;
} call;

typedef struct invocation { /* one call of a callback; to_js makes its arguments */
  callback *to;
  int (*to_js)(napi_env, struct invocation *, napi_value *arguments);
  void *data[2];
  uint64_t n[2];
  int32_t result;
  int done, logs;
  pthread_mutex_t lock;
  pthread_cond_t ready;
} invocation;

typedef struct {
  napi_ref error_class;
} addon_data;

/* ---- Values ---------------------------------------------------------------------------------------------------- */

static void camel(const char *snake, char *out) {
  for (int up = 0; *snake; ++snake) {
    if (*snake == '_') {
      up = 1;
      continue;
    }
    *out++ = up && *snake >= 'a' && *snake <= 'z' ? *snake - 32 : *snake;
    up = 0;
  }
  *out = 0;
}

static napi_value to_js_string(napi_env env, const char *s, size_t n) {
  napi_value v;
  napi_create_string_utf8(env, s, n, &v);
  return v;
}

static napi_value to_buffer(napi_env env, const void *data, size_t n) {
  napi_value v;
  napi_create_buffer_copy(env, n, data, NULL, &v);
  return v;
}

static napi_value to_object(napi_env env, const struct_layout *s, const char *from) {
  napi_value object, value;
  napi_create_object(env, &object);
  for (uint32_t i = 0; i < s->n_fields; ++i) {
    const field_layout *f = &s->fields[i];
    const char *at = from + f->offset;
    uint64_t count = 0;
    if (f->count_bytes) memcpy(&count, from + f->count_offset, f->count_bytes);
    switch (f->kind) {
      case FIELD_I32: napi_create_int32(env, *(const int32_t *)at, &value); break;
      case FIELD_U32: napi_create_uint32(env, *(const uint32_t *)at, &value); break;
      case FIELD_I64: napi_create_int64(env, *(const int64_t *)at, &value); break;
      case FIELD_U64: napi_create_double(env, (double)*(const uint64_t *)at, &value); break;
      case FIELD_F32: napi_create_double(env, *(const float *)at, &value); break;
      case FIELD_F64: napi_create_double(env, *(const double *)at, &value); break;
      case FIELD_CSTR: value = to_js_string(env, *(char *const *)at ? *(char *const *)at : "", NAPI_AUTO_LENGTH); break;
      case FIELD_CHARS: value = to_js_string(env, at, NAPI_AUTO_LENGTH); break;
      case FIELD_TEXT: value = to_buffer(env, *(char *const *)at, count); break;
      case FIELD_BYTES: value = to_buffer(env, at, f->bytes); break;
      case FIELD_ARRAY:
        napi_create_array(env, &value);
        for (uint32_t k = 0; k < count; ++k)
          napi_set_element(env, value, k, to_object(env, f->element, *(char *const *)at + k * f->element->bytes));
        break;
      default: continue;
    }
    char name[64];
    camel(f->name, name);
    napi_set_named_property(env, object, name, value);
  }
  return object;
}

static void *own(call *c, void *p) {
  if (c->n_owned < MAX_OWNED) c->owned[c->n_owned++] = p;
  return p;
}

static int fail(napi_env env, const char *message, const char *what) {
  char text[256];
  snprintf(text, sizeof text, message, what);
  napi_throw_type_error(env, NULL, text);
  return 0;
}

/* A copy that lives as long as the call; NULL, with an exception, for a string with a NUL. */
static char *to_c_string(napi_env env, call *c, napi_value value, size_t *bytes) {
  napi_value text;
  napi_valuetype type;
  size_t n = 0;
  napi_typeof(env, value, &type);
  if (type == napi_undefined || type == napi_null || type == napi_symbol || type == napi_function)
    return fail(env, "%s: a string is missing", c->f->name), NULL;
  if (napi_coerce_to_string(env, value, &text) != napi_ok) return NULL;
  napi_get_value_string_utf8(env, text, NULL, 0, &n);
  char *out = own(c, malloc(n + 1));
  napi_get_value_string_utf8(env, text, out, n + 1, &n);
  if (bytes) *bytes = n;
  else if (strlen(out) != n) return fail(env, "a NUL in a string", ""), NULL;
  return out;
}

static int is_nothing(napi_env env, napi_value value) {
  napi_valuetype type;
  napi_typeof(env, value, &type);
  return type == napi_undefined || type == napi_null;
}

static int out_of_range(napi_env env, const char *what, const char *limits) {
  char text[256];
  snprintf(text, sizeof text, "%s is out of range: a whole number from %s", what, limits);
  napi_throw_range_error(env, NULL, text);
  return 0;
}

static int to_number(napi_env env, napi_value value, int64_t *i, double *d) {
  napi_valuetype type;
  bool lossless;
  napi_value number;
  napi_typeof(env, value, &type);
  if (type == napi_bigint) {
    napi_get_value_bigint_uint64(env, value, (uint64_t *)i, &lossless);
    *d = (double)*i;
    return 1;
  }
  if (napi_coerce_to_number(env, value, &number) != napi_ok) return 0;
  napi_get_value_double(env, number, d);
  *i = *d >= 9223372036854775808.0 ? (int64_t)(uint64_t)*d : (int64_t)*d;
  return *d == *d || fail(env, "not a number", "");
}

/* ---- Callbacks -------------------------------------------------------------------------------------------------- */

static void call_js(napi_env env, napi_value js_function, void *context, void *data) {
  (void)js_function, (void)context;
  invocation *v = data;
  napi_value arguments[2], function, receiver, returned, exception;
  v->result = 1;
  if (env != NULL) {
    napi_handle_scope scope;
    napi_open_handle_scope(env, &scope);
    const int n = v->to_js(env, v, arguments);
    napi_get_reference_value(env, v->to->function, &function);
    napi_get_undefined(env, &receiver);
    int64_t number = 0;
    double ignored;
    if (napi_call_function(env, receiver, function, n, arguments, &returned) == napi_ok) {
      if (is_nothing(env, returned) || to_number(env, returned, &number, &ignored)) v->result = number != 0;
      if (v->data[0] != NULL) { /* logits: what the function made of them */
        void *changed;
        napi_get_typedarray_info(env, arguments[0], NULL, NULL, &changed, NULL, NULL);
        memcpy(v->data[0], changed, v->n[0] * sizeof(float));
      }
    }
    bool pending = false;
    napi_is_exception_pending(env, &pending);
    if (pending) {
      napi_get_and_clear_last_exception(env, &exception);
      if (!v->logs && v->to->raised == NULL) napi_create_reference(env, exception, 1, &v->to->raised);
    }
    napi_close_handle_scope(env, scope);
  }
  if (v->logs) {
    free(v->data[1]), free(v);
    return;
  }
  pthread_mutex_lock(&v->lock);
  v->done = 1;
  pthread_cond_signal(&v->ready);
  pthread_mutex_unlock(&v->lock);
}

static int32_t invoke_and_wait(invocation *v) {
  pthread_mutex_init(&v->lock, NULL), pthread_cond_init(&v->ready, NULL);
  if (pthread_equal(pthread_self(), v->to->main)) {
    call_js(v->to->env, NULL, NULL, v);
    return v->result;
  }
  if (napi_call_threadsafe_function(v->to->queue, v, napi_tsfn_blocking) != napi_ok) return 1; /* Node is leaving */
  pthread_mutex_lock(&v->lock);
  while (!v->done) pthread_cond_wait(&v->ready, &v->lock);
  pthread_mutex_unlock(&v->lock);
  return v->result;
}

static int log_to_js(napi_env env, invocation *v, napi_value *a) {
  napi_create_int32(env, (int32_t)v->n[1], &a[0]);
  a[1] = to_js_string(env, v->data[1], NAPI_AUTO_LENGTH);
  return 2;
}
static void on_log(void *user, int32_t level, const char *message) { /* is queued: the step does not wait */
  invocation *v = calloc(1, sizeof *v);
  if (v == NULL) return;
  v->to = user, v->to_js = log_to_js, v->logs = 1, v->n[1] = (uint64_t)level, v->data[1] = strdup(message);
  if (napi_call_threadsafe_function(v->to->queue, v, napi_tsfn_nonblocking) != napi_ok) free(v->data[1]), free(v);
}

static int progress_to_js(napi_env env, invocation *v, napi_value *a) {
  napi_create_double(env, (double)v->n[0], &a[0]), napi_create_double(env, (double)v->n[1], &a[1]);
  return 2;
}
static int32_t on_progress(void *user, uint64_t done, uint64_t total) {
  invocation v = {.to = user, .to_js = progress_to_js, .n = {done, total}};
  return invoke_and_wait(&v);
}

static napi_value to_typed_array(napi_env env, napi_typedarray_type type, const void *data, size_t n) {
  napi_value buffer, array;
  void *to;
  napi_create_arraybuffer(env, n * 4, &to, &buffer);
  if (n > 0) memcpy(to, data, n * 4);
  napi_create_typedarray(env, type, n, buffer, 0, &array);
  return array;
}
static int logits_to_js(napi_env env, invocation *v, napi_value *a) {
  a[0] = to_typed_array(env, napi_float32_array, v->data[0], v->n[0]);
  a[1] = to_typed_array(env, napi_int32_array, v->data[1], v->n[1]);
  return 2;
}
static int32_t on_logits(void *user, float *logits, size_t n_vocab, const int32_t *tokens, size_t n_tokens) {
  invocation v = {.to = user, .to_js = logits_to_js, .data = {logits, (void *)tokens}, .n = {n_vocab, n_tokens}};
  return invoke_and_wait(&v);
}

static int event_to_js(napi_env env, invocation *v, napi_value *a) {
  a[0] = to_object(env, &event_layout, v->data[1]);
  return 1;
}
static int32_t on_event(void *user, const orrery_event *event) {
  invocation v = {.to = user, .to_js = event_to_js, .data = {NULL, (void *)event}};
  return invoke_and_wait(&v);
}

static void free_callback(napi_env env, void *data, void *hint) {
  (void)hint;
  callback *b = data;
  if (env != NULL) napi_delete_reference(env, b->function);
  if (env != NULL && b->raised) napi_delete_reference(env, b->raised);
  free(b);
}

static callback *new_callback(napi_env env, call *c, napi_value function, int logs) {
  napi_valuetype type;
  napi_typeof(env, function, &type);
  if (type != napi_function) return fail(env, "not a function", ""), NULL;
  callback *b = calloc(1, sizeof *b);
  b->env = env, b->main = pthread_self(), b->logs = logs;
  napi_create_reference(env, function, 1, &b->function);
  napi_value name = to_js_string(env, "orrery", NAPI_AUTO_LENGTH);
  napi_create_threadsafe_function(env, NULL, NULL, name, 0, 1, b, free_callback, NULL, call_js, &b->queue);
  napi_unref_threadsafe_function(env, b->queue);
  if (!logs) c->callbacks[c->n_callbacks++] = b; /* a log function is called until the process ends */
  return b;
}
static void release(callback *b) { napi_release_threadsafe_function(b->queue, napi_tsfn_release); }

static const struct {
  const char *type;
  void (*function)(void);
} trampolines[] = {{"orrery_log_fn", (void (*)(void))on_log},
                   {"orrery_progress_fn", (void (*)(void))on_progress},
                   {"orrery_logits_fn", (void (*)(void))on_logits},
                   {"orrery_event_fn", (void (*)(void))on_event}};

/* ---- Options ---------------------------------------------------------------------------------------------------- */

static int to_struct(napi_env env, call *c, const struct_layout *s, napi_value object, char *to);

static int to_integer(napi_env env, napi_value value, int bytes, int is_signed, const char *what, int64_t *i);

/* {name: value}: each of them an element whose first field is the name, the second the value. */
static int to_elements(napi_env env, call *c, const field_layout *f, napi_value object, char *to) {
  napi_value keys, pair[2];
  uint32_t n;
  napi_get_property_names(env, object, &keys);
  napi_get_array_length(env, keys, &n);
  char *items = own(c, calloc(n + 1, f->element->bytes));
  for (uint32_t i = 0; i < n; ++i) {
    napi_get_element(env, keys, i, &pair[0]);
    napi_get_property(env, object, pair[0], &pair[1]);
    for (int k = 0; k < 2; ++k) {
      const field_layout *field = &f->element->fields[k];
      char *at = items + i * f->element->bytes + field->offset;
      int64_t number;
      double d;
      if (field->kind == FIELD_CSTR) {
        if ((*(char **)at = to_c_string(env, c, pair[k], NULL)) == NULL) return 0;
      } else {
        if (field->kind == FIELD_F32) {
          if (!to_number(env, pair[k], &number, &d)) return 0;
          *(float *)at = (float)d;
        } else {
          if (!to_integer(env, pair[k], 4, 1, f->name, &number)) return 0;
          *(int32_t *)at = (int32_t)number;
        }
      }
    }
  }
  *(void **)(to + f->offset) = items;
  memcpy(to + f->count_offset, &(uint64_t){n}, f->count_bytes);
  return 1;
}

static int to_strings(napi_env env, call *c, const field_layout *f, napi_value array, char *to) {
  uint32_t n;
  napi_value item;
  if (napi_get_array_length(env, array, &n) != napi_ok) return fail(env, "%s is not an array", f->name);
  char **items = own(c, calloc(n + 1, sizeof *items));
  for (uint32_t i = 0; i < n; ++i) {
    napi_get_element(env, array, i, &item);
    if ((items[i] = to_c_string(env, c, item, NULL)) == NULL) return 0;
  }
  *(void **)(to + f->offset) = items;
  memcpy(to + f->count_offset, &(uint64_t){n}, f->count_bytes);
  return 1;
}

/* The bytes of a Buffer, in place: the call keeps the object that has it. */
static int to_data(napi_env env, const field_layout *f, napi_value value, char *to) {
  bool is_buffer = false;
  void *data = NULL;
  size_t bytes = 0;
  napi_is_buffer(env, value, &is_buffer);
  if (!is_buffer) return fail(env, "%s is not a Buffer", f->name);
  napi_get_buffer_info(env, value, &data, &bytes);
  *(void **)(to + f->offset) = data;
  memcpy(to + f->count_offset, &(uint64_t){bytes}, f->count_bytes);
  return 1;
}

/* A whole number of an integer type of the header; `what` names the option or the function in an error. */
static int to_integer(napi_env env, napi_value value, int bytes, int is_signed, const char *what, int64_t *i) {
  napi_valuetype type;
  napi_value number;
  bool lossless = true;
  double d;
  napi_typeof(env, value, &type);
  const char *limits = bytes == 8  ? (is_signed ? "-2^63 to 2^63 - 1" : "0 to 2^64 - 1")
                       : is_signed ? "-2147483648 to 2147483647"
                                   : "0 to 4294967295";
  const double above = bytes == 8 ? (is_signed ? 9223372036854775808.0 : 18446744073709551616.0) : is_signed ? 2147483648.0 : 4294967296.0;
  const double least = is_signed ? -above : 0;
  if (type == napi_bigint) {
    if (is_signed) napi_get_value_bigint_int64(env, value, i, &lossless), d = (double)*i;
    else napi_get_value_bigint_uint64(env, value, (uint64_t *)i, &lossless), d = (double)(uint64_t)*i;
    if (!lossless || (bytes < 8 && (d < least || d >= above))) return out_of_range(env, what, limits);
    return 1;
  }
  if (type != napi_number && type != napi_boolean && type != napi_string) return fail(env, "%s is not a number", what);
  if (napi_coerce_to_number(env, value, &number) != napi_ok) return 0;
  napi_get_value_double(env, number, &d);
  if (d != d) return fail(env, "%s is not a number", what);
  if (d < least || d >= above || d != __builtin_trunc(d)) return out_of_range(env, what, limits);
  *i = d >= 9223372036854775808.0 ? (int64_t)(uint64_t)d : (int64_t)d;
  return 1;
}

static int to_field(napi_env env, call *c, const field_layout *f, napi_value value, char *to) {
  char *at = to + f->offset;
  int64_t i;
  double d;
  callback *b;
  switch (f->kind) {
    case FIELD_CSTR: return (*(char **)at = to_c_string(env, c, value, NULL)) != NULL;
    case FIELD_SOURCE: { /* a path */
      orrery_source *source = own(c, calloc(1, sizeof *source));
      orrery_source_init(source, sizeof *source);
      return *(orrery_source **)at = source, (source->path = to_c_string(env, c, value, NULL)) != NULL;
    }
    case FIELD_OPENED: { /* a Model or a Folder; the call keeps its handle */
      const int is_folder = strcmp(f->name, "folder") == 0;
      handle *h = NULL;
      napi_value external;
      napi_valuetype type = napi_undefined;
      if (napi_typeof(env, value, &type) != napi_ok || type != napi_object ||
          napi_get_named_property(env, value, "handle", &external) != napi_ok ||
          napi_get_value_external(env, external, (void **)&h) != napi_ok || h->free != (is_folder ? free_orrery_folder : free_orrery_model))
        return fail(env, is_folder ? "%s: not a Folder" : "%s: not a Model", f->name);
      if (h->p == NULL) return fail(env, "%s: the handle is closed", f->name);
      c->used[c->n_used++] = h;
      return *(void **)at = h->p, 1;
    }
    case FIELD_STRINGS: return to_strings(env, c, f, value, to);
    case FIELD_ARRAY: return to_elements(env, c, f, value, to);
    case FIELD_DATA: return to_data(env, f, value, to);
    case FIELD_FN:
      if ((b = new_callback(env, c, value, strcmp(f->callback, "orrery_log_fn") == 0)) == NULL) return 0;
      for (size_t k = 0; k < sizeof trampolines / sizeof *trampolines; ++k)
        if (strcmp(trampolines[k].type, f->callback) == 0) memcpy(at, &trampolines[k].function, sizeof(void *));
      memcpy(to + f->user_offset, &b, sizeof b);
      return 1;
    default: break;
  }
  char name[64];
  camel(f->name, name);
  if (f->kind != FIELD_F32 && f->kind != FIELD_F64) {
    if (!to_integer(env, value, (int)f->bytes, f->kind == FIELD_I32 || f->kind == FIELD_I64, name, &i)) return 0;
    memcpy(at, &i, f->bytes);
    return 1;
  }
  if (!to_number(env, value, &i, &d)) return 0;
  if (f->kind == FIELD_F32) *(float *)at = (float)d;
  else *(double *)at = d;
  return 1;
}

static int to_struct(napi_env env, call *c, const struct_layout *s, napi_value object, char *to) {
  napi_value keys, key, value;
  uint32_t n;
  char given[64], known[64];
  if (napi_get_property_names(env, object, &keys) != napi_ok) return fail(env, "%s is not an object", s->name);
  napi_get_array_length(env, keys, &n);
  for (uint32_t i = 0; i < n; ++i) {
    napi_get_element(env, keys, i, &key);
    napi_get_value_string_utf8(env, key, given, sizeof given, NULL);
    napi_get_property(env, object, key, &value);
    uint32_t k = 0;
    for (; k < s->n_fields; ++k) {
      camel(s->fields[k].name, known);
      if (strcmp(known, given) == 0) break;
    }
    if (k == s->n_fields) return fail(env, "there is no option %s", given);
    if (!is_nothing(env, value) && !to_field(env, c, &s->fields[k], value, to)) return 0;
  }
  return 1;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

#include "addon_calls.h"
