/*
 * A line on stderr about work that has taken more than two seconds: rewritten on a terminal, else one line per 10 s.
 * The caller owns the struct; one thread.
 */
#ifndef SL_LOCAL_PROGRESS_H
#define SL_LOCAL_PROGRESS_H

#include "base/status.h"

typedef struct sl_progress {
    const char *what;
    uint64_t start_ns, last_ns;
    bool shown;
} sl_progress;

void sl_progress_begin(sl_progress *p, const char *what);
void sl_progress_update(sl_progress *p, uint64_t done, uint64_t total, const char *unit);
void sl_progress_end(sl_progress *p);

#endif
