/* Inside base/: the parts of the log. log.c formats a line, log_fields.c its fields, log_writer.c writes
 * it to stderr. */
#ifndef SL_BASE_LOG_IMPL_H
#define SL_BASE_LOG_IMPL_H

#include <stdarg.h>

#include "base/log.h"

enum { SL_LOG_LINE_BYTES = 4096, SL_LOG_FIELDS_BYTES = 3072 };

/* Text with a maximum length. A piece is added completely or not at all; after one that did not fit, none is added. */
typedef struct sl_log_text {
    char *buf;
    size_t cap, len;
    bool full;
} sl_log_text;

/* Writes n bytes, or none if they do not fit: what must not be cut. */
void sl_log_put(sl_log_text *t, const char *bytes, size_t n);
/* Writes as many of n characters of one byte as fit. Lines are mostly such runs; one call for each character made up
 * half of the cost of a line. */
void sl_log_put_run(sl_log_text *t, const char *bytes, size_t n);
void sl_log_put_str(sl_log_text *t, const char *s);

/* The length of the UTF-8 sequence at s; 0: it is invalid, incomplete, a C0 or C1 control, DEL or a line separator. */
size_t sl_log_printable(const char *s, size_t n);

/* printf for fields, see sl_log. */
void sl_log_fields(sl_log_text *t, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

/* Makes one complete line with its '\n' (log.c). */
size_t sl_log_line(char out[SL_LOG_LINE_BYTES], sl_log_level level, const char *comp, const char *event,
                   const char *fields);

/* Writes a complete line to stderr, or to the ring of the writer (log_writer.c). */
void sl_log_write(const char *line, size_t n);

#endif
