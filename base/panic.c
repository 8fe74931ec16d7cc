/*
 * The end of a process whose invariant is broken (sl_panic() of status.h): it stands above the log, whose lines it writes out first.
 */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"

enum { PANIC_WAIT_MS = 200 };

void sl_panic(const char *file, int line, const char *expr, const char *fmt, ...)
{
    char buf[512], text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    const char *why = buf + strspn(buf, " "); /* SL_CHECK puts a space before the format */
    int n = snprintf(text, sizeof text, "panic: %s:%d: %s does not hold%s%s\n", file, line, expr,
                     why[0] ? ": " : "", why);
    fflush(stdout);
    /* The lines before a panic explain it. The wait is bounded, so that a reader of stderr that does not read cannot
     * keep the process alive. */
    sl_log_flush(PANIC_WAIT_MS);
    struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&err, 1, PANIC_WAIT_MS) > 0) {
        /* One write, so that lines of other processes cannot come between its parts. */
        ssize_t rc = write(STDERR_FILENO, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
        (void)rc;
    }
    abort();
}
