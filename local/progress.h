/*
 * Shows on stderr the progress of work that takes longer than two seconds: a line that is rewritten on a terminal, else
 * a new line every 10 s. The caller owns the struct; one thread.
 */
#ifndef SL_LOCAL_PROGRESS_H
#define SL_LOCAL_PROGRESS_H

#include "base/status.h"

typedef struct sl_local_progress {
    const char *what;
    uint64_t start_ns, last_ns;
    bool shown;
} sl_local_progress;

void sl_local_progress_begin(sl_local_progress *p, const char *what);
void sl_local_progress_update(sl_local_progress *p, uint64_t done, uint64_t total, const char *unit);
void sl_local_progress_end(sl_local_progress *p);

#endif
