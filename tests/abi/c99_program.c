/* A conversation of two turns, in C99, on the public header alone: as a C program would write it.  Says nothing when all is well.
 *
 *     c99_program MODEL.gguf
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "orrery.h"

static int n_failed = 0;

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++n_failed;                                                     \
    }                                                                 \
  } while (0)

#define REQUIRE_OK(call)                                                                                  \
  do {                                                                                                    \
    const orrery_status status_ = (call);                                                                 \
    if (status_ != ORRERY_OK) {                                                                           \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, orrery_status_name(status_), error.message); \
      exit(1);                                                                                            \
    }                                                                                                     \
  } while (0)

/* Asks, and gives the answer's text in text[0..capacity), ended. */
static orrery_event ask(orrery_session *session, const char *question, char *text, size_t capacity) {
  orrery_error error;
  orrery_generate_options options;
  orrery_generation *generation = NULL;
  orrery_event event;
  size_t used = 0;
  orrery_error_init(&error, sizeof error);
  orrery_generate_options_init(&options, sizeof options);
  options.max_tokens = 40;
  orrery_event_init(&event, sizeof event);
  REQUIRE_OK(orrery_session_add_message(session, "user", question, &error));
  REQUIRE_OK(orrery_generate(session, &options, &generation, &error));
  for (;;) {
    REQUIRE_OK(orrery_next(generation, &event, &error));
    if (event.type == ORRERY_EVENT_DONE) break;
    if (event.type != ORRERY_EVENT_TEXT) continue;
    EXPECT(used + event.text_bytes < capacity);
    memcpy(text + used, event.text, (size_t)event.text_bytes);
    used += (size_t)event.text_bytes;
  }
  text[used] = '\0';
  orrery_generation_free(generation);
  return event;
}

int main(int argc, char **argv) {
  orrery_runtime *runtime = NULL;
  orrery_model *model = NULL;
  orrery_session *session = NULL;
  orrery_runtime_options runtime_options;
  orrery_session_options session_options;
  orrery_error error;
  orrery_source file;
  orrery_event done;
  char first[1024], second[1024], message[2048];
  size_t n = 0;

  if (argc != 2) return 2;
  EXPECT(orrery_abi_version() == ORRERY_ABI_VERSION);
  orrery_error_init(&error, sizeof error);
  orrery_runtime_options_init(&runtime_options, sizeof runtime_options);
  runtime_options.n_threads = 2;
  REQUIRE_OK(orrery_runtime_create(&runtime_options, &runtime, &error));
  orrery_source_init(&file, sizeof file);
  EXPECT(file.kind == ORRERY_SOURCE_PATH && file.fd == -1);
  file.path = argv[1];
  REQUIRE_OK(orrery_model_open(runtime, &file, NULL, &model, &error));
  orrery_session_options_init(&session_options, sizeof session_options);
  session_options.n_context = 512;
  REQUIRE_OK(orrery_session_open(model, &session_options, &session, &error));

  done = ask(session, "Magnus owns a gray wolf. The special magic number for basalt is 208. What is the special magic number for basalt?",
             first, sizeof first);
  EXPECT(strstr(first, "208") != NULL);
  EXPECT(done.finish_reason == ORRERY_FINISH_END);
  EXPECT(done.reused_tokens == 0);
  done = ask(session, "What animal does Magnus own?", second, sizeof second);
  EXPECT(strstr(second, "wolf") != NULL);
  EXPECT(done.reused_tokens > done.prompt_tokens / 2);
  EXPECT(done.reused_tokens < done.prompt_tokens);

  EXPECT(orrery_session_n_messages(session) == 4);
  REQUIRE_OK(orrery_session_message(session, 1, message, sizeof message, &n, &error));
  EXPECT(n > strlen(first) && memcmp(message, "{\"role\": \"assistant\"", 20) == 0);
  EXPECT(orrery_session_rewind(session, 100000, &error) == ORRERY_INVALID_ARGUMENT);
  EXPECT(error.status == ORRERY_INVALID_ARGUMENT && error.message[0] != '\0');

  orrery_runtime_free(runtime);
  orrery_model_free(model);
  EXPECT(orrery_session_n_tokens(session) > 0);
  orrery_session_free(session);
  return n_failed != 0;
}
