/* tools.c - a model that calls functions of this program: `tools MODEL "QUESTION"`.
 *
 *     cc -std=c99 tools.c -lorrery -o tools && ./tools model.gguf "What is 17 times 23?"
 *
 * The tools go into the prompt by the model's own chat template, and each call that the model writes fits its tool's schema. The program runs
 * the calls, adds their results as messages, and asks for the next answer, until an answer calls nothing. A third argument is a chat template
 * instead of the file's.
 */
#include <orrery.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kTools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"multiply\", \"description\": \"Multiplies two integers.\", \"parameters\":"
    "  {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": -9999, \"maximum\": 9999},"
    "   \"b\": {\"type\": \"integer\", \"minimum\": -9999, \"maximum\": 9999}}, \"required\": [\"a\", \"b\"]}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"letters\", \"description\": \"Counts the letters of a word.\", \"parameters\":"
    "  {\"type\": \"object\", \"properties\": {\"word\": {\"type\": \"string\", \"pattern\": \"^[a-z]{1,20}$\"}}, \"required\": "
    "[\"word\"]}}}]";

/* The local functions. Arguments are JSON that fits the schema, so reading them cannot fail. */
static void run_call(const char *name, const char *arguments, char *result, size_t size) {
  long a = 0, b = 0;
  char word[32] = "";
  if (strcmp(name, "multiply") == 0) {
    sscanf(arguments, " { \"a\" : %ld , \"b\" : %ld", &a, &b);
    snprintf(result, size, "%ld", a * b);
  } else {
    sscanf(arguments, " { \"word\" : \"%31[a-z]", word);
    snprintf(result, size, "%lu", (unsigned long)strlen(word));
  }
}

static char *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  char *text = calloc(1, 1 << 16);
  if (!file || !text || fread(text, 1, (1 << 16) - 1, file) == 0) return fprintf(stderr, "tools: cannot read %s\n", path), exit(1), NULL;
  fclose(file);
  return text;
}

/* One answer: prints its text and its calls, and writes their results as messages. Returns the number of calls, or -1. */
static int answer(orrery_session *session, const orrery_generate_options *options, orrery_error *error) {
  static char results[8][256];
  orrery_generation *generation = NULL;
  orrery_event event;
  int n_calls = 0, i;
  orrery_event_init(&event, sizeof event);
  if (orrery_generate(session, options, &generation, error)) return -1;
  while (orrery_next(generation, &event, error) == ORRERY_OK && event.type != ORRERY_EVENT_DONE) {
    if (event.type == ORRERY_EVENT_TEXT) fwrite(event.text, 1, event.text_bytes, stdout);
    if (event.type == ORRERY_EVENT_CALL_END && n_calls < 8) {
      char arguments[512], result[64];
      snprintf(arguments, sizeof arguments, "%.*s", (int)event.text_bytes, event.text);
      run_call(event.name, arguments, result, sizeof result);
      printf("[%s %s = %s]\n", event.name, arguments, result);
      snprintf(results[n_calls++], sizeof results[0],
               "{\"role\": \"tool\", \"tool_call_id\": \"%s\", \"name\": \"%s\", \"content\": \"%s\"}", event.call_id, event.name, result);
    }
  }
  orrery_generation_free(generation); /* the answer is a message now; its calls' results follow it */
  for (i = 0; i < n_calls && error->status == ORRERY_OK; ++i) orrery_session_add_message_json(session, results[i], error);
  return error->status == ORRERY_OK ? n_calls : -1;
}

int main(int argc, char **argv) {
  orrery_runtime *runtime = NULL;
  orrery_model *model = NULL;
  orrery_session *session = NULL;
  orrery_template_options chat;
  orrery_generate_options options;
  orrery_source file;
  orrery_error error;
  int turn, n_calls = -1;
  if (argc < 3 || argc > 4) return fprintf(stderr, "usage: tools MODEL.gguf QUESTION [TEMPLATE.jinja]\n"), 2;
  orrery_error_init(&error, sizeof error);
  orrery_source_init(&file, sizeof file);
  file.path = argv[1];
  orrery_template_options_init(&chat, sizeof chat);
  chat.tools_json = kTools;
  if (argc == 4) chat.template_source = read_file(argv[3]);
  orrery_generate_options_init(&options, sizeof options);
  options.max_tokens = 400;
  options.tools = ORRERY_TOOLS_REQUIRED; /* the first answer calls; later ones are free to */
  if (!orrery_runtime_create(NULL, &runtime, &error) && !orrery_model_open(runtime, &file, NULL, &model, &error) &&
      !orrery_session_open(model, NULL, &session, &error) && !orrery_session_set_template(session, &chat, &error) &&
      !orrery_session_add_message(session, "user", argv[2], &error)) {
    for (turn = 0; turn < 4 && (n_calls = answer(session, &options, &error)) > 0; ++turn)
      options.tools = turn < 2 ? ORRERY_TOOLS_AUTO : ORRERY_TOOLS_NONE;
    puts("");
  }
  if (error.status != ORRERY_OK) fprintf(stderr, "tools: %s\n", error.message);
  orrery_session_free(session);
  orrery_model_free(model);
  orrery_runtime_free(runtime);
  return error.status == ORRERY_OK && n_calls == 0 ? 0 : 1;
}
