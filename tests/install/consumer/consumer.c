/* An application in C99 that knows only what is installed: consumer MODEL QUESTION prints the answer. */
#include <orrery.h>
#include <stdio.h>

static int failed(const char* doing, const orrery_error* error) {
  fprintf(stderr, "%s: %s (%s)\n", doing, error->message, orrery_status_name(error->status));
  return 1;
}

int main(int argc, char** argv) {
  orrery_runtime* runtime = NULL;
  orrery_model* model = NULL;
  orrery_session* session = NULL;
  orrery_generation* generation = NULL;
  orrery_error error;
  orrery_event event;
  orrery_session_options options;
  orrery_source file;
  if (argc != 3 || orrery_abi_version() != ORRERY_ABI_VERSION) return 2;

  orrery_error_init(&error, sizeof error);
  orrery_event_init(&event, sizeof event);
  orrery_session_options_init(&options, sizeof options);
  options.n_context = 512;
  if (orrery_runtime_create(NULL, &runtime, &error) != ORRERY_OK) return failed("runtime", &error);
  orrery_source_init(&file, sizeof file);
  file.path = argv[1];
  if (orrery_model_open(runtime, &file, NULL, &model, &error) != ORRERY_OK) return failed("model", &error);
  if (orrery_session_open(model, &options, &session, &error) != ORRERY_OK) return failed("session", &error);
  if (orrery_session_add_message(session, "user", argv[2], &error) != ORRERY_OK) return failed("message", &error);
  if (orrery_generate(session, NULL, &generation, &error) != ORRERY_OK) return failed("generate", &error);
  do {
    if (orrery_next(generation, &event, &error) != ORRERY_OK) return failed("next", &error);
    if (event.type == ORRERY_EVENT_TEXT) fwrite(event.text, 1, (size_t)event.text_bytes, stdout);
  } while (event.type != ORRERY_EVENT_DONE);
  putchar('\n');

  orrery_runtime_free(runtime); /* the order does not matter */
  orrery_model_free(model);
  orrery_session_free(session);
  orrery_generation_free(generation);
  return 0;
}
