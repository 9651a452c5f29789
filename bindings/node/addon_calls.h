/* The second half of addon.c: from arguments to a call, and from its results to values. */
#pragma once

static int is_free(const function *f) { return strcmp(f->name + strlen(f->name) - 5, "_free") == 0; }

static void free_now(handle *h) {
  if (h->p) h->free(h->p);
  h->p = NULL;
  if (h->hook) release(h->hook);
  h->hook = NULL;
}

static void finalize_handle(napi_env env, void *data, void *hint) {
  (void)env, (void)hint;
  free_now(data);
  free(data);
}

static napi_value new_handle(napi_env env, void *p, const function *f, callback *hook) {
  handle *h = calloc(1, sizeof *h);
  napi_value value;
  h->p = p, h->free = f->free, h->hook = hook;
  napi_create_external(env, h, finalize_handle, NULL, &value);
  return value;
}

/* An array of strings as pointers, and their bytes behind them, in one piece of memory. */
static int to_texts(napi_env env, call *c, napi_value value, slot *a) {
  uint32_t count = 0;
  bool is_array = false;
  napi_is_array(env, value, &is_array);
  if (!is_array) return fail(env, "%s: not an array of strings", c->f->name);
  napi_get_array_length(env, value, &count);
  size_t total = (count + 1) * sizeof(char *), n = 0;
  for (int pass = 0; pass < 2; ++pass) { /* sizes, then bytes */
    char **texts = pass ? own(c, malloc(total)) : NULL, *at = (char *)texts + (count + 1) * sizeof(char *);
    if (pass) a->p = texts, a[1].i = count;
    for (uint32_t i = 0; i < count; ++i) {
      napi_value item;
      napi_get_element(env, value, i, &item);
      if (napi_get_value_string_utf8(env, item, NULL, 0, &n) != napi_ok) return fail(env, "%s: not an array of strings", c->f->name);
      total += pass ? 0 : n + 1;
      if (!pass) continue;
      napi_get_value_string_utf8(env, item, at, n + 1, &n);
      if (strlen(at) != n) return fail(env, "a NUL in a string", "");
      texts[i] = at, at += n + 1;
    }
  }
  return 1;
}

/* An array of [handle, scale] as the list of a session's adapters. */
static int to_uses(napi_env env, call *c, napi_value value, slot *a) {
  uint32_t count = 0;
  bool is_array = false;
  napi_is_array(env, value, &is_array);
  if (!is_array) return fail(env, "%s: not an array of adapters", c->f->name);
  napi_get_array_length(env, value, &count);
  if (count > MAX_ADAPTERS) return fail(env, "%s: too many adapters", c->f->name);
  orrery_adapter_use *uses = own(c, calloc(count + 1, sizeof *uses));
  for (uint32_t i = 0; i < count; ++i) {
    napi_value pair, item;
    handle *h = NULL;
    int64_t whole;
    double scale;
    napi_get_element(env, value, i, &pair);
    if (napi_get_element(env, pair, 0, &item) != napi_ok || napi_get_value_external(env, item, (void **)&h) != napi_ok)
      return fail(env, "%s: not an adapter", c->f->name);
    if (h->p == NULL) return fail(env, "%s: the handle is closed", c->f->name);
    if (napi_get_element(env, pair, 1, &item) != napi_ok || !to_number(env, item, &whole, &scale)) return 0;
    uses[i].adapter = h->p, uses[i].scale = (float)scale;
    c->used[c->n_used++] = h;
  }
  a->p = uses, a[1].i = count;
  return 1;
}

/* One parameter of the header from the next argument; 0: an exception is pending. */
static int to_slots(napi_env env, call *c, const parameter *p, int at, napi_value value) {
  slot *a = &c->a[at];
  size_t bytes = 0;
  int64_t whole;
  void *data;
  callback *b;
  handle *h = NULL;
  napi_typedarray_type type;
  napi_valuetype given;
  bool is_buffer = false;
  switch (p->kind) {
    case P_HANDLE:
      if (napi_get_value_external(env, value, (void **)&h) != napi_ok) return fail(env, "%s: not a handle", c->f->name);
      if (h->p == NULL && c->f->result != R_VOID) return fail(env, "%s: the handle is closed", c->f->name);
      a->p = h->p, c->used[c->n_used++] = h;
      return 1;
    case P_OPTIONS:
      a->p = own(c, calloc(1, p->layout->bytes));
      p->layout->init(a->p);
      return is_nothing(env, value) || to_struct(env, c, p->layout, value, a->p);
    case P_I32: return to_integer(env, value, 4, 1, c->f->name, &a->i);
    case P_U32: return to_integer(env, value, 4, 0, c->f->name, &a->i);
    case P_I64: return to_integer(env, value, 8, 1, c->f->name, &a->i);
    case P_U64: return to_integer(env, value, 8, 0, c->f->name, &a->i);
    case P_F64: return to_number(env, value, &whole, &a->d);
    case P_STRINGS: return to_texts(env, c, value, a);
    case P_USES: return to_uses(env, c, value, a);
    case P_STRING:
      if (napi_typeof(env, value, &given) == napi_ok && given == napi_null) return a->p = NULL, 1; /* where the library takes NULL */
      return (a->p = to_c_string(env, c, value, NULL)) != NULL;
    case P_CALLBACK:
      if ((b = new_callback(env, c, value, 0)) == NULL) return 0;
      a->p = (void *)on_event, a[1].p = b;
      return 1;
    case P_BYTES:
      napi_is_buffer(env, value, &is_buffer);
      if (is_buffer) napi_get_buffer_info(env, value, &a->p, &bytes);
      else if ((a->p = to_c_string(env, c, value, &bytes)) == NULL) return 0;
      a[1].i = (int64_t)bytes;
      return 1;
    case P_ARRAY: /* a typed array, used in place */
      if (is_nothing(env, value)) return 1;
      if (napi_get_typedarray_info(env, value, &type, &bytes, &data, NULL, NULL) != napi_ok)
        return fail(env, "%s: not a typed array", c->f->name);
      a->p = data;
      if (p->slots == 2) a[1].i = (int64_t)bytes;
      return 1;
  }
  return 1;
}

/* What no argument gives: out parameters and the error. */
static int is_out(call *c, const parameter *p, int at) {
  switch (p->kind) {
    case P_ERROR: c->a[at].p = &c->error; return 1;
    case P_NEW: c->a[at].p = &c->made; return 1;
    case P_OUT_BYTES:
    case P_OUT_I32:
    case P_OUT_U32:
    case P_OUT_F32:
    case P_OUT_STRUCTS: c->out = at + 1, c->out_kind = p->kind, c->out_layout = p->layout, c->a[at + 2].p = &c->n; return 1;
    case P_RESULT:
      c->filled = c->a[at].p = own(c, calloc(1, p->layout->bytes)), c->filled_layout = p->layout;
      p->layout->init(c->filled);
      return 1;
    default: return 0;
  }
}

static size_t out_bytes(const call *c) { /* of one element */
  return c->out_kind == P_OUT_STRUCTS ? c->out_layout->bytes : c->out_kind == P_OUT_BYTES ? 1 : 4;
}

/* Does the work, on any thread. */
static void run(call *c) {
  orrery_error_init(&c->error, sizeof c->error);
  c->f->invoke(c->a, &c->result);
  while (c->out && c->result.i == ORRERY_OK) { /* it said the size */
    const size_t capacity = c->n;
    slot *a = &c->a[c->out - 1];
    free(a[0].p);
    a[0].p = malloc(capacity * out_bytes(c) + 1), a[1].i = (int64_t)capacity;
    if (c->out_kind == P_OUT_STRUCTS && capacity > 0) c->out_layout->init(a[0].p);
    c->f->invoke(c->a, &c->result);
    if (c->result.i != ORRERY_INVALID_ARGUMENT || c->n <= capacity) break;
    c->result.i = ORRERY_OK; /* longer meanwhile */
  }
}

static napi_value make_error(napi_env env, const orrery_error *e) {
  addon_data *data;
  napi_value type, error, argument = to_object(env, &error_layout, (const char *)e);
  napi_get_instance_data(env, (void **)&data);
  napi_get_reference_value(env, data->error_class, &type);
  napi_new_instance(env, type, 1, &argument, &error);
  return error;
}

static napi_value to_objects(napi_env env, const struct_layout *layout, const char *structs, size_t n) {
  napi_value array;
  napi_create_array_with_length(env, n, &array);
  for (size_t i = 0; i < n; ++i) napi_set_element(env, array, (uint32_t)i, to_object(env, layout, structs + i * layout->bytes));
  return array;
}

/* On the thread of JavaScript, behind run(): the result; or *error. Frees what the call held. */
static napi_value finish(napi_env env, call *c, napi_value *error) {
  napi_value value = NULL;
  callback *hook = NULL;
  *error = NULL;
  for (int i = 0; i < c->n_used; ++i) {
    handle *h = c->used[i];
    if (h->hook && h->hook->raised) c->callbacks[c->n_callbacks++] = h->hook;
  }
  if (c->f->result == R_STATUS && c->result.i != ORRERY_OK) *error = make_error(env, &c->error);
  for (int i = 0; i < c->n_callbacks; ++i) {
    callback *b = c->callbacks[i];
    if (b->raised) {
      napi_get_reference_value(env, b->raised, error);
      napi_delete_reference(env, b->raised), b->raised = NULL;
    }
    int kept = 0;
    for (int k = 0; k < c->n_used; ++k) kept |= c->used[k]->hook == b;
    if (kept) continue;
    if (c->made && strstr(c->f->name, "orrery_generate") != NULL) hook = b; /* called as long as the generation lives */
    else release(b);
  }
  if (c->made) value = new_handle(env, c->made, c->f, hook);
  if (c->f->result == R_HANDLE && c->result.p) value = new_handle(env, c->result.p, c->f, NULL);
  if (c->f->result == R_STRING) value = to_js_string(env, c->result.p, NAPI_AUTO_LENGTH);
  if (c->f->result == R_INTEGER) napi_create_int64(env, c->result.i, &value);
  if (*error == NULL && c->out && c->out_kind == P_OUT_I32) value = to_typed_array(env, napi_int32_array, c->a[c->out - 1].p, c->n);
  if (*error == NULL && c->out && c->out_kind == P_OUT_U32) value = to_typed_array(env, napi_uint32_array, c->a[c->out - 1].p, c->n);
  if (*error == NULL && c->out && c->out_kind == P_OUT_F32) value = to_typed_array(env, napi_float32_array, c->a[c->out - 1].p, c->n);
  if (*error == NULL && c->out && c->out_kind == P_OUT_BYTES) value = to_buffer(env, c->a[c->out - 1].p, c->n);
  if (*error == NULL && c->out && c->out_kind == P_OUT_STRUCTS) value = to_objects(env, c->out_layout, c->a[c->out - 1].p, c->n);
  if (*error == NULL && c->filled) value = to_object(env, c->filled_layout, c->filled);
  for (int i = 0; i < c->n_used; ++i) {
    handle *h = c->used[i];
    if (--h->calls == 0 && h->closing) free_now(h);
  }
  if (c->out) free(c->a[c->out - 1].p);
  while (c->n_owned > 0) free(c->owned[--c->n_owned]);
  if (c->arguments) napi_delete_reference(env, c->arguments);
  if (value == NULL) napi_get_undefined(env, &value);
  return value;
}

static void execute(napi_env env, void *data) { (void)env, run(data); }

static void complete(napi_env env, napi_status status, void *data) {
  (void)status;
  call *c = data;
  napi_value error, value = finish(env, c, &error);
  if (error) napi_reject_deferred(env, c->deferred, error);
  else napi_resolve_deferred(env, c->deferred, value);
  napi_delete_async_work(env, c->work);
  free(c);
}

/* The one entry point: its data names the function, the lowest bit of the index whether it is a promise. */
static napi_value enter(napi_env env, napi_callback_info info) {
  napi_value arguments[8], value = NULL, error = NULL;
  size_t n = 8, next = 0;
  void *data;
  napi_get_cb_info(env, info, &n, arguments, NULL, &data);
  call *c = calloc(1, sizeof *c);
  c->f = &functions[(uintptr_t)data >> 1], c->is_async = (uintptr_t)data & 1;
  int ok = 1;
  for (int i = 0, at = 0; ok && i < c->f->n_parameters; at += c->f->parameters[i++].slots)
    if (!is_out(c, &c->f->parameters[i], at)) ok = to_slots(env, c, &c->f->parameters[i], at, arguments[next < 8 ? next++ : 7]);
  if (!ok) {
    for (int i = 0; i < c->n_callbacks; ++i) release(c->callbacks[i]);
    while (c->n_owned > 0) free(c->owned[--c->n_owned]);
    free(c);
    return NULL;
  }
  if (is_free(c->f)) { /* waits for calls that use the handle */
    handle *h = c->used[0];
    h->closing = 1;
    if (h->calls == 0) free_now(h);
    free(c);
    return NULL;
  }
  for (int i = 0; i < c->n_used; ++i) ++c->used[i]->calls;
  if (!c->is_async) {
    run(c);
    value = finish(env, c, &error);
    free(c);
    if (error) napi_throw(env, error);
    return value;
  }
  napi_value kept, promise, name = to_js_string(env, c->f->name, NAPI_AUTO_LENGTH);
  napi_create_array_with_length(env, n, &kept); /* handles and arrays live as long as the call */
  for (size_t i = 0; i < n && i < 8; ++i) napi_set_element(env, kept, (uint32_t)i, arguments[i]);
  napi_create_reference(env, kept, 1, &c->arguments);
  napi_create_promise(env, &c->deferred, &promise);
  napi_create_async_work(env, NULL, name, execute, complete, c, &c->work);
  napi_queue_async_work(env, c->work);
  return promise;
}

static napi_value set_error_class(napi_env env, napi_callback_info info) {
  napi_value type;
  size_t n = 1;
  addon_data *data;
  napi_get_cb_info(env, info, &n, &type, NULL, NULL);
  napi_get_instance_data(env, (void **)&data);
  napi_create_reference(env, type, 1, &data->error_class);
  return NULL;
}

static napi_value init(napi_env env, napi_value exports) {
  napi_value group[2], entry;
  napi_create_object(env, &group[0]), napi_create_object(env, &group[1]);
  for (uintptr_t i = 0; i < 2 * sizeof functions / sizeof *functions; ++i) {
    napi_create_function(env, functions[i >> 1].name, NAPI_AUTO_LENGTH, enter, (void *)i, &entry);
    napi_set_named_property(env, group[i & 1], functions[i >> 1].name, entry);
  }
  napi_set_named_property(env, exports, "sync", group[0]);
  napi_set_named_property(env, exports, "async", group[1]);
  napi_create_function(env, "setErrorClass", NAPI_AUTO_LENGTH, set_error_class, NULL, &entry);
  napi_set_named_property(env, exports, "setErrorClass", entry);
  for (size_t i = 0; i < sizeof all_layouts / sizeof *all_layouts; ++i) { /* the library's structs are the header's */
    char filled[2048];
    if (all_layouts[i]->init == NULL) continue;
    all_layouts[i]->init(filled);
    if (*(uint32_t *)filled != all_layouts[i]->bytes) napi_throw_error(env, NULL, "the library has structs of another size");
  }
  napi_set_instance_data(env, calloc(1, sizeof(addon_data)), NULL, NULL);
  return exports;
}
NAPI_MODULE(orrery, init)
