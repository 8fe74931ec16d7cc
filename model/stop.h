/*
 * Finds stop strings in streamed text. Text that can no longer be part of a stop string is emitted, the rest is held
 * back. The match that ends first in the stream is taken, and the longest of several that end at the same byte, so the
 * result does not depend on where the text is cut.
 *
 * It works on bytes, but emitted text never ends inside a UTF-8 character unless the input does. Cost: O(text x
 * strings) in the worst case, O(text) in practice. Ownership: the strings are copied. Threads: one owner.
 */
#ifndef SL_MODEL_STOP_H
#define SL_MODEL_STOP_H

#include "base/status.h"

enum { SL_STOP_MAX = 16, SL_STOP_LEN_MAX = 1024 };

typedef struct sl_stop sl_stop;

/* strings: n (0..SL_STOP_MAX) strings of 1 to SL_STOP_LEN_MAX bytes. include: the match itself is emitted as well. err
 * names the string that is wrong. */
sl_status sl_stop_create(const char *const *strings, size_t n, bool include, sl_stop **out, sl_err *err);
void sl_stop_destroy(sl_stop *s);

/*
 * Feeds text; *emit points to the *n_emit bytes that may be sent now (owned by s, valid until the next call). Returns
 * the index of the stop string that was found, or -1, or SL_STOP_OOM (-2) when memory is exhausted. After a match all
 * further text is ignored.
 */
#define SL_STOP_OOM (-2)
int sl_stop_feed(sl_stop *s, const char *text, size_t len, const char **emit, size_t *n_emit);
/* End of the stream: *emit is what was held back (nothing after a match). */
void sl_stop_finish(sl_stop *s, const char **emit, size_t *n_emit);
/* The number of bytes that are held back. */
size_t sl_stop_held(const sl_stop *s);

#endif
