/* calls.c - what the case of the calls preloads: the answer to a user's message calls a tool, as the bundled model would not by itself. Its
 * reasoning is short. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <orrery.h>
#include <string.h>

orrery_status orrery_generate(orrery_session* session, const orrery_generate_options* options, orrery_generation** generation,
                              orrery_error* error) {
  orrery_status (*generate)(orrery_session*, const orrery_generate_options*, orrery_generation**, orrery_error*);
  orrery_generate_options changed = *options;
  char last[65536] = "";
  size_t n = 0;
  *(void**)&generate = dlsym(RTLD_NEXT, "orrery_generate");
  orrery_session_message(session, orrery_session_n_messages(session) - 1, last, sizeof last - 1, &n, NULL);
  if (changed.tools && strstr(last, "\"role\": \"user\"")) changed.tools = ORRERY_TOOLS_REQUIRED;
  else if (changed.tools) changed.tools = ORRERY_TOOLS_NONE;
  if (changed.tools) changed.max_reasoning_tokens = 8, changed.max_tokens = 200, changed.one_call = 1;
  return generate(session, &changed, generation, error);
}
