/* Fields of the header's structs by name and as text, on the tables of layouts.h. Texts that options point to live as long as
 * the program, which suits a test. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layouts.h"

static const field_layout *find_field(const struct_layout *s, const char *name) {
  for (uint32_t i = 0; i < s->n_fields; ++i)
    if (strcmp(s->fields[i].name, name) == 0) return &s->fields[i];
  fprintf(stderr, "%s has no field %s\n", s->name, name);
  exit(2);
}

/* "NAME VALUE" of a policy option or "TOKEN BIAS" of a logit bias, into an element of an array. */
static void set_element(const struct_layout *s, void *element, char *text) {
  char *value = text + strcspn(text, " ");
  if (*value) *value++ = 0;
  if (s == &option_layout) *(orrery_option *)element = (orrery_option){text, value};
  if (s == &logit_bias_layout) *(orrery_logit_bias *)element = (orrery_logit_bias){atoi(text), strtof(value, NULL)};
}

/* Sets a field; of a list, appends to it. */
static void set_field(const struct_layout *s, void *options, const char *name, const char *given) {
  const field_layout *f = find_field(s, name);
  char *to = (char *)options + f->offset, *text = strdup(given);
  switch (f->kind) {
    case FIELD_I32:
    case FIELD_U32: *(uint32_t *)to = (uint32_t)strtoll(text, NULL, 10); break;
    case FIELD_I64: *(int64_t *)to = strtoll(text, NULL, 10); break;
    case FIELD_U64: *(uint64_t *)to = strtoull(text, NULL, 10); break;
    case FIELD_F32: *(float *)to = strtof(text, NULL); break;
    case FIELD_F64: *(double *)to = strtod(text, NULL); break;
    case FIELD_CSTR: *(char **)to = text; break;
    case FIELD_SOURCE: {
      orrery_source *source = malloc(sizeof *source);
      orrery_source_init(source, sizeof *source);
      source->path = text, *(orrery_source **)to = source;
      break;
    }
    case FIELD_STRINGS:
    case FIELD_ARRAY: {
      const size_t size = f->element ? f->element->bytes : sizeof text;
      uint32_t n = 0;
      memcpy(&n, (char *)options + f->count_offset, sizeof n);
      char *items = (char *)realloc(*(void **)to, (n + 1) * size);
      if (f->element) set_element(f->element, items + n * size, text);
      else memcpy(items + n * size, &text, sizeof text);
      *(void **)to = items;
      ++n, memcpy((char *)options + f->count_offset, &n, sizeof n);
    }
  }
}

static uint64_t field_number(const struct_layout *s, const void *from, const char *name) {
  const field_layout *f = find_field(s, name);
  uint64_t value = 0;
  memcpy(&value, (const char *)from + f->offset, f->bytes);
  return value;
}

static void quote(const char *s, size_t bytes) {
  for (putchar('"'); bytes--; ++s) printf(*s < 32 || *s == 127 || *s == '"' || *s == '\\' ? "\\x%02x" : "%c", (unsigned char)*s);
  putchar('"');
}

static void print_field(const struct_layout *s, const void *from, const char *name) {
  const field_layout *f = find_field(s, name);
  const char *at = (const char *)from + f->offset;
  if (f->kind == FIELD_CSTR) quote(*(const char *const *)at, strlen(*(const char *const *)at));
  else if (f->kind == FIELD_BYTES)
    for (uint32_t i = 0; i < f->bytes; ++i) printf("%02x", (uint8_t)at[i]);
  else if (f->kind == FIELD_I32) printf("%d", *(const int32_t *)at);
  else printf("%llu", (unsigned long long)field_number(s, from, name));
}
