/* A program compiled long ago: it knows shorter structs than today's (old_caller_v0.h), and must find that the library
 * which is installed now neither refuses nor overruns them, in _init functions either. It binds by symbol, as languages do that
 * see no macros.
 *
 *     old_caller LIBRARY MODEL.gguf
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "old_caller_v0.h"

static int n_failed = 0;

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++n_failed;                                                     \
    }                                                                 \
  } while (0)

static void *library;

/* dlsym() gives a data pointer; C has no cast from it to a function. */
static void find(const char *name, void *function) {
  void *found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "the library has no %s\n", name);
    exit(1);
  }
  memcpy(function, &found, sizeof found);
}

/* An _init function fills a struct of the size that its caller knows, and no byte more. */
static void expect_init(const char *name, size_t today) {
  void (*init)(void *, size_t);
  unsigned char given[2048];
  uint32_t struct_size;
  size_t bytes, i;
  find(name, &init);
  for (bytes = 8; bytes <= today + 64; bytes += 8) {
    memset(given, 0xAA, sizeof given);
    init(given, bytes);
    memcpy(&struct_size, given, sizeof struct_size);
    if (struct_size != bytes) {
      fprintf(stderr, "%s says %u bytes to a caller that has %u\n", name, (unsigned)struct_size, (unsigned)bytes);
      ++n_failed;
    }
    for (i = today; i < bytes; ++i) EXPECT(given[i] == 0); /* a newer caller's fields */
    for (i = bytes; i < sizeof given; ++i) EXPECT(given[i] == 0xAA);
  }
}

int main(int argc, char **argv) {
  uint32_t (*abi_version)(void);
  int32_t (*runtime_create)(const v0_runtime_options *, v0_runtime **, v0_error *);
  void (*runtime_free)(v0_runtime *);
  int32_t (*model_open)(v0_runtime *, const v0_source *, const v0_model_options *, v0_model **, v0_error *);
  void (*model_free)(v0_model *);
  int32_t (*session_open)(v0_model *, const v0_session_options *, v0_session **, v0_error *);
  void (*session_free)(v0_session *);
  int32_t (*add_message)(v0_session *, const char *, const char *, v0_error *);
  int32_t (*session_stats)(const v0_session *, v0_stats *, v0_error *);
  int32_t (*generate)(v0_session *, const v0_generate_options *, v0_generation **, v0_error *);
  int32_t (*next)(v0_generation *, v0_event *, v0_error *);
  void (*generation_free)(v0_generation *);
  /* Each struct between guards: nothing may be written outside it. */
  struct {
    uint64_t before;
    v0_error error;
    uint64_t between_1;
    v0_event event;
    uint64_t between_2;
    v0_stats stats;
    uint64_t after;
  } out;
  const uint64_t guard = 0x5AA55AA55AA55AA5u;
  const v0_runtime_options runtime_options = {sizeof runtime_options, 1, "cpu"};
  const v0_source absent = {sizeof absent, 0, "/no/such/file/with/a/long/name"};
  v0_source file = {sizeof file, 0, NULL};
  const v0_model_options model_options = {sizeof model_options, 1};
  const v0_session_options session_options = {sizeof session_options, 300};
  const v0_generate_options generate_options = {sizeof generate_options, 5, 0.0f, 1.0f};
  v0_runtime *runtime = NULL;
  v0_model *model = NULL;
  v0_session *session = NULL;
  v0_generation *generation = NULL;
  int texts = 0, tokens = 0;

  if (argc != 3) return 2;
  file.path = argv[2];
  library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  find("orrery_abi_version", &abi_version);
  find("orrery_runtime_create", &runtime_create);
  find("orrery_runtime_free", &runtime_free);
  find("orrery_model_open", &model_open);
  find("orrery_model_free", &model_free);
  find("orrery_session_open", &session_open);
  find("orrery_session_free", &session_free);
  find("orrery_session_add_message", &add_message);
  find("orrery_session_stats", &session_stats);
  find("orrery_generate", &generate);
  find("orrery_next", &next);
  find("orrery_generation_free", &generation_free);
  EXPECT(abi_version() == 2);

  expect_init("orrery_error_init", 1072);
  expect_init("orrery_device_info_init", 400);
  expect_init("orrery_runtime_options_init", 88);
  expect_init("orrery_runtime_info_init", 40);
  expect_init("orrery_source_init", 56);
  expect_init("orrery_vocab_info_init", 40);
  expect_init("orrery_template_options_init", 40);
  expect_init("orrery_plan_result_init", 112);
  expect_init("orrery_plan_region_init", 48);
  expect_init("orrery_model_options_init", 80);
  expect_init("orrery_model_info_init", 96);
  expect_init("orrery_session_options_init", 120);
  expect_init("orrery_calibrate_options_init", 80);
  expect_init("orrery_stats_init", 216);
  expect_init("orrery_generate_options_init", 104);
  expect_init("orrery_event_init", 120);

  memset(&out, 0, sizeof out);
  out.before = out.between_1 = out.between_2 = out.after = guard;
  out.error.struct_size = sizeof out.error;
  out.event.struct_size = sizeof out.event;
  out.stats.struct_size = sizeof out.stats;

  EXPECT(runtime_create(&runtime_options, &runtime, &out.error) == 0);
  EXPECT(model_open(runtime, &absent, &model_options, &model, &out.error) == 14);
  EXPECT(out.error.status == 14 && out.error.native_code == 2);
  EXPECT(strlen(out.error.message) == sizeof out.error.message - 1);
  EXPECT(model == NULL);
  EXPECT(model_open(runtime, &file, &model_options, &model, &out.error) == 0);
  EXPECT(session_open(model, &session_options, &session, &out.error) == 0);
  EXPECT(add_message(session, "user", "hello", &out.error) == 0);
  EXPECT(generate(session, &generate_options, &generation, &out.error) == 0);
  if (n_failed) return 1;
  do {
    if (next(generation, &out.event, &out.error) != 0) {
      fprintf(stderr, "orrery_next: %s\n", out.error.message);
      return 1;
    }
    texts += out.event.type == 3;
    tokens += out.event.type == 2;
  } while (out.event.type != 4);
  EXPECT(tokens >= 1 && tokens <= 5 && texts >= 1);
  EXPECT(session_stats(session, &out.stats, &out.error) == 0);
  EXPECT(out.stats.n_context == 300 && out.stats.n_tokens > 0);
  generation_free(generation);
  session_free(session);
  model_free(model);
  runtime_free(runtime);

  EXPECT(out.before == guard && out.between_1 == guard && out.between_2 == guard && out.after == guard);
  EXPECT(out.error.struct_size == sizeof out.error && out.event.struct_size == sizeof out.event);
  EXPECT(dlclose(library) == 0);
  return n_failed != 0;
}
