/* chat.c - a whole chat program on orrery.h: copy it to start your own.
 *
 *     cc -std=c99 chat.c -lorrery -o chat && ./chat model.gguf
 *
 * Each line of standard input is a question. The answer is printed as it is generated. Ctrl-C stops an answer
 * and keeps the conversation. At the prompt, Ctrl-C or the end of the input ends the program. A question longer
 * than the buffer is refused.
 */
#include <orrery.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* A signal handler may call very few functions. orrery_cancel() is one of them: it sets a flag, and orrery_next()
   reads the flag while it works. The next event is then DONE. */
static orrery_generation* volatile current = NULL;

static void on_interrupt(int signal_number) {
  signal(signal_number, SIG_DFL); /* a second Ctrl-C ends the program */
  if (current) orrery_cancel(current);
}

/* Every call that fails fills in an orrery_error. Its message names the fault, the place, and the expected value. */
static int report(const char* doing, const orrery_error* error) {
  fprintf(stderr, "%s: %s (%s)\n", doing, error->message, orrery_status_name(error->status));
  return 1;
}

/* Generates one answer and prints it. Returns 0 if the conversation can continue. */
static int answer(orrery_session* session) {
  orrery_generation* generation = NULL;
  orrery_generate_options options;
  orrery_event event;
  orrery_error error;
  orrery_status status;

  orrery_error_init(&error, sizeof error);
  orrery_generate_options_init(&options, sizeof options);
  options.temperature = 0.7f;
  options.top_p = 0.95f;
  options.max_tokens = 1024;
  if (orrery_generate(session, &options, &generation, &error) != ORRERY_OK) return report("cannot answer", &error);

  orrery_event_init(&event, sizeof event);
  current = generation;
  signal(SIGINT, on_interrupt); /* only while an answer can be stopped */
  for (;;) {
    status = orrery_next(generation, &event, &error);
    if (status != ORRERY_OK) break;
    if (event.type == ORRERY_EVENT_TEXT) {
      fwrite(event.text, 1, (size_t)event.text_bytes, stdout);
      fflush(stdout);
    }
    if (event.type == ORRERY_EVENT_DONE) break;
  }
  signal(SIGINT, SIG_DFL);
  current = NULL;
  putchar('\n');
  if (status == ORRERY_OK && event.finish_reason == ORRERY_FINISH_CONTEXT) fputs("(the context is full)\n", stderr);
  orrery_generation_free(generation);
  return status == ORRERY_OK ? 0 : report("the answer broke off", &error);
}

/* Reads questions until the input ends. */
static int converse(orrery_session* session) {
  char line[8192];
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  for (;;) {
    fputs("> ", stderr);
    if (!fgets(line, sizeof line, stdin)) return ferror(stdin) ? 1 : 0;
    if (!strchr(line, '\n') && !feof(stdin)) {
      int c;
      while ((c = getchar()) != '\n' && c != EOF) continue;
      fputs("that line is too long\n", stderr);
      continue;
    }
    line[strcspn(line, "\n")] = '\0';
    if (line[0] == '\0') continue;
    if (orrery_session_add_message(session, "user", line, &error) != ORRERY_OK) return report("cannot ask", &error);
    if (answer(session) != 0) return 1;
  }
}

int main(int argc, char** argv) {
  orrery_runtime* runtime = NULL;
  orrery_model* model = NULL;
  orrery_session* session = NULL;
  orrery_session_options options;
  orrery_source file;
  orrery_error error;
  int result;

  if (argc != 2) {
    fprintf(stderr, "usage: %s MODEL.gguf\n", argc > 0 ? argv[0] : "chat");
    return 2;
  }
  if (orrery_abi_version() != ORRERY_ABI_VERSION) {
    fprintf(stderr, "liborrery %s has ABI %u, this program wants %u\n", orrery_version(), (unsigned)orrery_abi_version(),
            (unsigned)ORRERY_ABI_VERSION);
    return 1;
  }

  /* Options begin with their _init function; NULL instead of options means the defaults. Out handles are NULL
     after a failure, and NULL can be freed, so one way out serves every error. */
  orrery_error_init(&error, sizeof error);
  orrery_source_init(&file, sizeof file);
  file.path = argv[1];
  orrery_session_options_init(&options, sizeof options);
  options.overflow = ORRERY_OVERFLOW_DROP_OLDEST; /* a long conversation drops its oldest turns instead of stopping */
  if (orrery_runtime_create(NULL, &runtime, &error) != ORRERY_OK) {
    result = report("cannot start", &error);
  } else if (orrery_model_open(runtime, &file, NULL, &model, &error) != ORRERY_OK) {
    result = report("cannot open the model", &error);
  } else if (orrery_session_open(model, &options, &session, &error) != ORRERY_OK) {
    result = report("cannot open a session", &error);
  } else {
    result = converse(session);
  }
  orrery_session_free(session); /* in any order */
  orrery_model_free(model);
  orrery_runtime_free(runtime);
  return result;
}
