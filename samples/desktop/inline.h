/* inline.h - what stands inside a line of Markdown, as Pango markup. */
#ifndef INLINE_H
#define INLINE_H

#include <glib.h>

/* A line of Markdown that g_markup_escape_text() has escaped, as Pango markup: valid for any text, in time proportional to its length. */
char* inline_markup(const char* escaped);

#endif
