/* form.c - an answer of a given form: `form MODEL "TEXT"` reads who lives where out of a text, as JSON that fits a schema.
 *
 *     cc -std=c99 form.c -lorrery -o form && ./form model.gguf "Bruno lives in Salem. Where does Bruno live?"
 *
 * The schema limits what the model may say, token by token; the prompt says what is wanted. DONE's `complete` says whether the text is
 * whole: with max_tokens set it is closed in time, unless the limit is below the least text that fits.
 */
#include <orrery.h>
#include <stdio.h>

static const char kSchema[] =
    "{\"type\": \"object\","
    " \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 30}, \"town\": {\"type\": \"string\", \"maxLength\": 30}},"
    " \"required\": [\"name\", \"town\"], \"additionalProperties\": false}";

int main(int argc, char **argv) {
  orrery_runtime *runtime = NULL;
  orrery_model *model = NULL;
  orrery_session *session = NULL;
  orrery_generation *answer = NULL;
  orrery_generate_options options;
  orrery_source file;
  orrery_error error;
  orrery_event event;
  int whole = 0;
  if (argc != 3) return fprintf(stderr, "usage: form MODEL.gguf TEXT\n"), 2;
  orrery_error_init(&error, sizeof error);
  orrery_source_init(&file, sizeof file);
  file.path = argv[1];
  orrery_event_init(&event, sizeof event);
  orrery_generate_options_init(&options, sizeof options);
  options.grammar = kSchema;
  options.grammar_kind = ORRERY_GRAMMAR_JSON_SCHEMA;
  options.grammar_whitespace = ORRERY_WHITESPACE_SPACED;
  options.max_tokens = 100;
  if (!orrery_runtime_create(NULL, &runtime, &error) && !orrery_model_open(runtime, &file, NULL, &model, &error) &&
      !orrery_session_open(model, NULL, &session, &error) && !orrery_session_add_message(session, "user", argv[2], &error) &&
      !orrery_generate(session, &options, &answer, &error)) {
    while (orrery_next(answer, &event, &error) == ORRERY_OK && event.type != ORRERY_EVENT_DONE)
      if (event.type == ORRERY_EVENT_TEXT) fwrite(event.text, 1, event.text_bytes, stdout);
    whole = error.status == ORRERY_OK && event.complete;
    puts("");
  }
  if (error.status != ORRERY_OK) fprintf(stderr, "form: %s\n", error.message);
  orrery_generation_free(answer);
  orrery_session_free(session);
  orrery_model_free(model);
  orrery_runtime_free(runtime);
  return whole ? 0 : 1;
}
