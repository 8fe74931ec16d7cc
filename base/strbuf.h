/*
 * A string that grows. Appending does not report errors: when memory is exhausted, `bad` is set, and sl_sb_take()
 * returns NULL. It belongs to one thread. Initialise it with zeros, append, then take the text or free it.
 */
#ifndef SL_BASE_STRBUF_H
#define SL_BASE_STRBUF_H

#include "base/status.h"

typedef struct sl_strbuf {
    char *data; /* NUL-terminated once anything was appended */
    size_t len, cap;
    bool bad;
} sl_strbuf;

void sl_sb_append(sl_strbuf *sb, const char *bytes, size_t n);
void sl_sb_str(sl_strbuf *sb, const char *s);
void sl_sb_char(sl_strbuf *sb, char c);
/* Appends UTF-8 as a JSON string, with its quotes. */
void sl_sb_json(sl_strbuf *sb, const char *text, size_t n);
void sl_sb_printf(sl_strbuf *sb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns the text, malloc'ed, NUL-terminated, "" if nothing was appended, and empties sb. NULL: bad. The caller frees
 * it. */
char *sl_sb_take(sl_strbuf *sb);
void sl_sb_free(sl_strbuf *sb);

#endif
