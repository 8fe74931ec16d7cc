/* See progress.h. Prints nothing in the first two seconds, so that short commands show no progress. */
#include "local/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/log.h"

#define QUIET_NS 2000000000ull

void sl_local_progress_begin(sl_local_progress *p, const char *what)
{
    *p = (sl_local_progress){.what = what, .start_ns = sl_now_ns()};
}

void sl_local_progress_update(sl_local_progress *p, uint64_t done, uint64_t total, const char *unit)
{
    uint64_t now = sl_now_ns();
    bool tty = isatty(STDERR_FILENO);
    uint64_t every = tty ? 300000000ull : 10000000000ull;
    if (now - p->start_ns < QUIET_NS || (p->shown && now - p->last_ns < every))
        return;
    double s = (double)(now - p->start_ns) / 1e9, part = total ? (double)done / (double)total : 0;
    double left = part > 0 ? s / part - s : 0;
    fprintf(stderr, "%s%s: %.0f%% (%llu of %llu %s, %.0f s, about %.0f s left)%s", tty ? "\r" : "", p->what,
            part * 100, (unsigned long long)done, (unsigned long long)total, unit, s, left,
            tty ? "\033[K" : "\n");
    fflush(stderr);
    p->shown = true;
    p->last_ns = now;
}

void sl_local_progress_end(sl_local_progress *p)
{
    if (p->shown && isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K");
    p->shown = false;
}
