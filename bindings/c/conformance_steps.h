/* The steps that conformance.c carries out, by verb. */
#pragma once

static char *read_file(const char *path, size_t *bytes) { /* stays: a model may be mapped there */
  FILE *file = fopen(path, "rb");
  fseek(file, 0, SEEK_END);
  char *to = malloc(*bytes = ftell(file));
  rewind(file);
  *bytes = fread(to, 1, *bytes, file);
  return fclose(file), to;
}

/* The source that a verb means, by its ending; `i`: its first word of the step. OFFSET BYTES PATH of a part, else PATH. */
typedef struct opened {
  orrery_source source;
  FILE *file;
  char *bytes;
} opened;

static opened open_source(const char *verb, int i) {
  opened o = {.file = NULL};
  orrery_source_init(&o.source, sizeof o.source);
  if (strstr(verb, "_fd") || strstr(verb, "_part")) {
    const int part = strstr(verb, "_part") != NULL;
    o.source.kind = ORRERY_SOURCE_FD;
    if (part) o.source.fd_offset = strtoull(w[i], NULL, 10), o.source.fd_bytes = strtoull(w[i + 1], NULL, 10);
    o.file = fopen(rest(part ? i + 2 : i), "rb");
    if (o.file) o.source.fd = fileno(o.file);
  } else if (strstr(verb, "_memory")) {
    size_t bytes = 0;
    o.source.kind = ORRERY_SOURCE_MEMORY;
    o.source.memory = o.bytes = read_file(rest(i), &bytes);
    o.source.memory_bytes = bytes;
  } else {
    o.source.path = rest(i);
  }
  return o;
}

static void close_source(opened *o) {
  if (o->file) fclose(o->file);
  free(o->bytes);
}

static int make(const char *verb, void *from) { /* whether it is a verb that makes something; from: argument 2 */
  void *p = NULL;
  size_t lengths[4], n_texts = 0;
  n = 0;
  if (IS("runtime")) {
    OPTIONS(runtime, o);
    orrery_runtime_create(&o, (orrery_runtime **)&p, &err);
  } else if (IS("vocab_of")) p = orrery_model_vocab(from);
  else if (IS("vocab") || IS("vocab_fd") || IS("vocab_memory")) {
    opened o = open_source(verb, 2);
    orrery_vocab_open(&o.source, (orrery_vocab **)&p, &err);
    close_source(&o);
  } else if (IS("model") || IS("model_fd") || IS("model_part") || IS("model_memory")) {
    OPTIONS(model, o);
    opened file = open_source(verb, 3);
    orrery_model_open(from, &file.source, &o, (orrery_model **)&p, &err);
    if (p) file.bytes = NULL; /* the model is mapped there */
    close_source(&file);
  } else if (IS("adapter")) {
    opened file = open_source(verb, 3);
    orrery_adapter_open(from, &file.source, (orrery_adapter **)&p, &err);
    close_source(&file);
  } else if (IS("folder")) {
    orrery_folder_open(rest(3), strtoull(w[2], NULL, 10), (orrery_folder **)&p, &err);
  } else if (IS("session")) {
    OPTIONS(session, o);
    orrery_session_open(from, &o, (orrery_session **)&p, &err);
  } else if (IS("fork")) {
    orrery_session_fork(from, (orrery_session **)&p, &err);
  } else if (IS("generate")) {
    OPTIONS(generate, o);
    orrery_generate(from, &o, (orrery_generation **)&p, &err);
  } else if (IS("continue")) {
    OPTIONS(generate, o);
    int32_t *tokens = numbers(3, &n);
    orrery_generate_tokens(from, tokens, n, &o, (orrery_generation **)&p, &err);
  } else if (IS("plan") || IS("plan_fd") || IS("plan_memory")) {
    OPTIONS(runtime, r);
    OPTIONS(model, m);
    OPTIONS(session, s);
    orrery_plan_result *plan = malloc(sizeof *plan);
    plan_result_layout.init(plan);
    opened o = open_source(verb, 2);
    if (orrery_plan(&o.source, &r, &m, &s, plan, &err) == 0) p = plan;
    close_source(&o);
  } else if (IS("matcher")) {
    OPTIONS(generate, o);
    orrery_matcher_create(from, &o, (orrery_matcher **)&p, &err);
  } else if (IS("save_buffer")) {
    if (GIVES(char, orrery_session_save_buffer, from)) p = memcpy(malloc(n), buf, n);
  } else if (IS("calibrate")) {
    OPTIONS(calibrate, o);
    int32_t *tokens = malloc(65536), *end = tokens;
    for (char *text = strtok(rest(4), "|"); text; text = strtok(NULL, "|"), end += n)
      orrery_tokenize(at(w[3])->p, text, strlen(text), 0, end, 4096, &n, &err), lengths[n_texts++] = n;
    orrery_calibrate(from, tokens, lengths, n_texts, &o, (orrery_calibration **)&p, &err);
  } else {
    return 0;
  }
  thing *t = at(w[1]);
  snprintf(t->name, sizeof t->name, "%s", w[1]);
  if (strncmp(verb, "model", 5) == 0) verb = "model";
  if (strncmp(verb, "plan", 4) == 0) verb = "plan";
  if (strncmp(verb, "vocab", 5) == 0) verb = "vocab";
  if (IS("matcher")) verb = "x";
  t->verb = IS("continue") ? "generate" : IS("fork") ? "session" : strdup(verb), t->p = p, t->n = n;
  return 1;
}

static void release(thing *t) {
  if (t->verb[0] == 'r') orrery_runtime_free(t->p);
  if (t->verb[0] == 'v') orrery_vocab_free(t->p);
  if (t->verb[0] == 'm') orrery_model_free(t->p);
  if (t->verb[0] == 's') orrery_session_free(t->p);
  if (t->verb[0] == 'f') orrery_folder_free(t->p);
  if (t->verb[0] == 'a') orrery_adapter_free(t->p);
  if (t->verb[0] == 'c') orrery_calibration_free(t->p);
  if (t->verb[0] == 'g') orrery_generation_free(t->p);
  if (t->verb[0] == 'x') orrery_matcher_free(t->p);
  t->p = NULL;
}

/* JSON in buf, without spaces behind ',' and ':', which other languages write in their own way. */
static void compact(void) {
  char *to = buf, last = 0;
  for (size_t k = 0; k < n; last = buf[k++])
    if (buf[k] != ' ' || (last != ',' && last != ':')) *to++ = buf[k];
  n = (size_t)(to - buf);
}

static void found(int gives, const char *needle) {
  if (gives) buf[n] = 0, puts(yes(strstr(buf, needle) != NULL));
}

static int devices_are_described(void) {
  orrery_device_info info;
  int good = 1;
  orrery_device_info_init(&info, sizeof info);
  for (size_t k = 0; k < orrery_devices(); ++k) good &= !orrery_device_get_info(k, &info, &err) && (info.name[0] || info.refused[0]);
  return good;
}

static void regions(const orrery_plan_result *plan) {
  OPTIONS(runtime, r);
  OPTIONS(model, m);
  OPTIONS(session, s);
  orrery_plan_region all[64];
  uint64_t bytes = 0;
  orrery_plan_region_init(all, sizeof *all);
  opened o = open_source("", 2);
  if (orrery_plan_regions(&o.source, &r, &m, &s, all, 64, &n, &err)) return;
  for (size_t k = 0; k < n; ++k) bytes += all[k].device_bytes, quote(all[k].name, strlen(all[k].name)), putchar(' ');
  puts(yes(bytes == plan->device_bytes));
}

static size_t split(char *given, const char **texts, size_t most) {
  size_t count = 0;
  for (char *text = strtok(given, "|"); text && count < most; text = strtok(NULL, "|")) texts[count++] = text;
  return count;
}

static void embed(orrery_model *m) {
  OPTIONS(embed, o);
  const char *texts[8];
  uint32_t n_tokens[8];
  const size_t n_texts = split(rest(2), texts, 8);
  if (orrery_embed(m, texts, n_texts, &o, NULL, 0, &n, NULL, &err)) return;
  float *vectors = malloc(n * sizeof *vectors), products[8] = {0};
  if (orrery_embed(m, texts, n_texts, &o, vectors, n, &n, n_tokens, &err)) return free(vectors);
  const size_t size = o.n_dimensions ? o.n_dimensions : 256, rows = n / size;
  printf("%zu %zu", rows, size);
  for (size_t k = 0; k < n_texts; ++k) printf(" %u", n_tokens[k]);
  for (size_t k = 1; k < rows && k < 8; ++k)
    for (size_t d = 0; d < size; ++d) products[k - 1] += vectors[d] * vectors[k * size + d];
  printf(" nearest %d\n", 1 + largest(products, (int)(rows < 8 ? rows : 8) - 1));
  free(vectors);
}

static void rank(orrery_model *m) {
  OPTIONS(embed, o);
  const char *texts[8];
  float scores[8];
  const size_t n_texts = split(rest(2), texts, 8);
  if (!orrery_rank(m, texts[0], texts + 1, n_texts - 1, &o, scores, n_texts - 1, NULL, &err))
    printf("best %d\n", largest(scores, (int)n_texts - 1));
}

static void matcher(const char *verb, orrery_matcher *m, int i) {
  size_t count = 0;
  uint32_t complete;
  if (IS("allowed") && GIVES(uint32_t, orrery_matcher_mask, m)) {
    for (size_t k = 0; k < n; ++k)
      for (uint32_t bits = ((uint32_t *)buf)[k]; bits; bits &= bits - 1) ++count;
    printf("%zu\n", count);
  }
  if (IS("accept")) {
    int32_t *tokens = numbers(2, &n);
    if (!orrery_matcher_accept(m, tokens, n, &count, &err)) printf("%zu\n", count);
  }
  if (IS("rewind_matcher")) orrery_matcher_rewind(m, i, &err);
  if (IS("forced") && GIVES(int32_t, orrery_matcher_forced, m)) {
    printf("%zu", n);
    for (size_t k = 0; k < n; ++k) printf(" %d", ((int32_t *)buf)[k]);
    puts("");
  }
  if (IS("match") && !orrery_matcher_match(m, rest(2), strlen(rest(2)), &count, &complete, &err)) printf("%zu %s\n", count, yes(complete));
  if (IS("describe")) found(GIVES(char, orrery_matcher_describe, m), rest(2));
}

/* Verbs that make nothing. p: what argument 1 names; i: argument 2 as a number. */
static void step(const char *verb, void *p, int i) {
  size_t count;
  if (IS("abi")) printf("%u %s %s\n", orrery_abi_version(), orrery_version(), yes(orrery_build_info()[0] != 0));
  if (IS("status")) puts(orrery_status_name(atoi(w[1])));
  if (IS("name")) puts(constant_name(w[1], i));
  if (IS("threads")) orrery_runtime_set_threads(p, i, atoi(w[3]), &err);
  if (IS("embed")) embed(p);
  if (IS("rank")) rank(p);
  if (IS("regions")) regions(p);
  if (IS("devices")) puts(yes(devices_are_described()));
  if (IS("calls")) puts(yes(action_of(w[1])->n_calls > 0));
  if (IS("free")) release(at(w[1]));
  if (IS("info") || IS("compare")) info(at(w[1]), IS("compare"));
  if (IS("flags")) printf("%u\n", orrery_token_flags(p, i));
  matcher(verb, p, i);
  if (IS("say")) orrery_session_add_message(p, w[2], rest(3), &err);
  if (IS("say_json")) orrery_session_add_message_json(p, rest(2), &err);
  if (IS("rewind_messages")) orrery_session_rewind_messages(p, i, &err);
  if (IS("rewind")) orrery_session_rewind(p, i, &err);
  if (IS("adapters")) {
    orrery_adapter_use uses[8];
    for (n = 0; n < 8 && w[2 * n + 2]; ++n)
      uses[n] = (orrery_adapter_use){.adapter = at(w[2 * n + 2])->p, .scale = strtof(w[2 * n + 3], NULL)};
    orrery_session_set_adapters(p, uses, n, &err);
  }
  if (IS("folder_save")) orrery_folder_save(p, at(w[2])->p, strcmp(rest(3), "-") ? rest(3) : NULL, &err);
  if (IS("folder_load")) orrery_folder_load(p, at(w[2])->p, rest(3), &err);
  if (IS("folder_remove")) orrery_folder_remove(p, rest(2), &err);
  if (IS("folder_list") && GIVES(char, orrery_folder_list, p)) {
    size_t entries = 0;
    compact();
    for (size_t k = 0; k < n; ++k) entries += buf[k] == '{';
    printf("%zu ", entries), found(1, rest(2));
  }
  if (IS("save")) orrery_session_save(p, rest(2), &err);
  if (IS("load")) orrery_session_load(p, rest(2), &err);
  if (IS("load_buffer")) orrery_session_load_buffer(p, at(w[2])->p, at(w[2])->n, &err);
  if (IS("damage")) ((char *)p)[at(w[1])->n - 1] ^= 1;
  if (IS("evaluate")) evaluate(p, i);
  if (IS("next")) drain(p, i);
  if (IS("drain")) drain(p, -1);
  if (IS("inspect")) {
    orrery_source file;
    orrery_source_init(&file, sizeof file);
    file.path = w[1];
    found(GIVES(char, orrery_inspect, &file), rest(2));
  }
  if (IS("layer")) {
    orrery_layer_info layer;
    orrery_layer_info_init(&layer, sizeof layer);
    if (!orrery_model_layer_info(p, i, &layer, &err))
      for (int k = 3; w[k]; ++k) print_field(&layer_info_layout, &layer, w[k]), fputs(w[k + 1] ? " " : "\n", stdout);
  }
  if (IS("experts")) {
    orrery_experts_info experts;
    orrery_experts_info_init(&experts, sizeof experts);
    if (!orrery_model_experts(p, &experts, &err))
      for (int k = 2; w[k]; ++k) print_field(&experts_info_layout, &experts, w[k]), fputs(w[k + 1] ? " " : "\n", stdout);
  }
  if (IS("streaming")) {
    orrery_streaming_info streaming;
    orrery_streaming_info_init(&streaming, sizeof streaming);
    if (!orrery_model_streaming(p, &streaming, &err))
      for (int k = 2; w[k]; ++k) print_field(&streaming_info_layout, &streaming, w[k]), fputs(w[k + 1] ? " " : "\n", stdout);
  }
  if (IS("kv_bytes")) printf("%llu\n", (unsigned long long)orrery_kv_type_bytes(atoi(w[1]), atoi(w[2]), atoi(w[3])));
  if (IS("policies")) {
    orrery_policies(NULL, 0, &n, &err);
    found(orrery_policies(buf = realloc(buf, n + 1), n, &n, &err) == 0, rest(1));
  }
  if (IS("steps")) found(GIVES(char, orrery_calibration_steps, p), rest(2));
  if (IS("profile") && GIVES(char, orrery_calibration_profile, p)) {
    char *profile = calloc(n + 1, 1);
    memcpy(profile, buf, n);
    found(GIVES(char, orrery_head_profile_import, profile), rest(2));
  }
  if (IS("gates")) found(GIVES(char, orrery_head_profile_import_gates, rest(3), atof(w[1])), w[2]);
  if (IS("set") || IS("callback")) {
    setting *s = &pending[n_pending++];
    snprintf(s->name, sizeof s->name, "%s", w[1]), snprintf(s->text, sizeof s->text, "%s", rest(2));
  }
  if (IS("callback")) {
    action *a = action_of(strchr(w[1], '.') + 1);
    a->what = strdup(w[2]), a->ids = numbers(3, &a->n_ids), a->n_calls = 0;
  }
  if (IS("tokenize") && GIVES(int32_t, orrery_tokenize, p, rest(3), strlen(rest(3)), i)) {
    for (size_t k = 0; k < n; ++k) printf(k ? " %d" : "%d", ((int32_t *)buf)[k]);
    puts("");
  }
  if (IS("tokens") && GIVES(int32_t, orrery_session_tokens, p)) {
    printf("%zu", orrery_session_n_tokens(p));
    for (size_t k = 0; k < n && k < 8; ++k) printf(" %d", ((int32_t *)buf)[k]);
    puts("");
  }
  if (IS("roles")) {
    orrery_head_roles roles;
    orrery_head_roles_init(&roles, sizeof roles);
    if (!orrery_session_head_roles(p, &roles, &err))
      for (int k = 2; w[k]; ++k) print_field(&head_roles_layout, &roles, w[k]), fputs(w[k + 1] ? " " : "\n", stdout);
  }
  if (IS("residency") && GIVES(uint32_t, orrery_session_residency, p)) {
    const uint32_t *held = (uint32_t *)buf;
    uint32_t least = held[0], most = held[0];
    for (size_t k = 1; k < n; ++k) least = held[k] < least ? held[k] : least, most = held[k] > most ? held[k] : most;
    printf("%zu %u %u\n", n, least, most);
  }
  if (IS("detokenize")) {
    int32_t *ids = numbers(3, &count);
    if (GIVES(char, orrery_detokenize, p, ids, count, i)) quote(buf, n), puts("");
  }
  if (IS("render")) {
    OPTIONS(template, o);
    if (GIVES(char, orrery_render_chat, p, rest(2), &o)) quote(buf, n), puts("");
  }
  if (IS("format")) {
    OPTIONS(template, o);
    const int gives = GIVES(char, orrery_chat_format, p, &o);
    if (gives) compact();
    found(gives, rest(2));
  }
  if (IS("template")) {
    OPTIONS(template, o);
    orrery_session_set_template(p, &o, &err);
  }
  if (IS("messages")) {
    for (size_t k = 0; k < orrery_session_n_messages(p); ++k)
      if (GIVES(char, orrery_session_message, p, k)) fputs(k ? " " : "", stdout), quote(buf, n);
    puts("");
  }
  if (IS("message") && GIVES(char, orrery_session_message, p, i)) quote(buf, n), puts("");
  if (IS("numbers")) {
    float logits[2048], embedding[256];
    if (!orrery_session_logits(p, logits, 2048, &err) && !orrery_session_embedding(p, embedding, 256, &err))
      printf("2048 %d 256\n", largest(logits, 2048));
  }
  if (IS("run")) {
    n_seen = 0, count = i;
    orrery_run(p, counted, &count, &err);
  }
  if (IS("cancel") && p) {
    pthread_t thread;
    pthread_create(&thread, NULL, cancel, p), pthread_join(thread, NULL);
  }
  if (IS("cancel_session") && p) {
    pthread_t thread;
    pthread_create(&thread, NULL, cancel_session, p), pthread_join(thread, NULL);
  }
  if (IS("functions")) functions(p, i);
  if (IS("answer") || IS("break")) {
    OPTIONS(generate, o);
    orrery_generation *g;
    if (orrery_generate(p, &o, &g, &err) == 0) IS("break") ? drain(g, i) : answer(g);
    orrery_generation_free(g);
  }
}
