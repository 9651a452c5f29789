/* What a caller compiled against an earlier header believes: frozen, never to follow orrery.h.  Each struct is one that a first
 * release could have had, a prefix of today's. Functions are found by name at run time.
 */
#ifndef ORRERY_TESTS_OLD_CALLER_V0_H
#define ORRERY_TESTS_OLD_CALLER_V0_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint32_t struct_size;
  int32_t status;
  int64_t native_code;
  uint64_t bytes_requested, bytes_available;
  uint64_t offset;
  uint32_t line, column;
  char message[24];
} v0_error;

typedef struct {
  uint32_t struct_size;
  int32_t n_threads;
  const char *backend;
} v0_runtime_options;

typedef struct {
  uint32_t struct_size;
  uint32_t kind;
  const char *path;
} v0_source;

typedef struct {
  uint32_t struct_size;
  uint32_t load;
} v0_model_options;

typedef struct {
  uint32_t struct_size;
  uint32_t n_context;
} v0_session_options;

typedef struct {
  uint32_t struct_size;
  uint32_t max_tokens;
  float temperature, top_p;
} v0_generate_options;

typedef struct {
  uint32_t struct_size;
  uint32_t type;
  uint64_t done, total;
  const char *text;
  uint64_t text_bytes;
} v0_event;

typedef struct {
  uint32_t struct_size;
  uint32_t n_context, n_tokens;
  uint32_t parked;
} v0_stats;

typedef struct v0_runtime v0_runtime;
typedef struct v0_model v0_model;
typedef struct v0_session v0_session;
typedef struct v0_generation v0_generation;

#endif
