/*
 * Status names and error texts. Texts are formatted into a fixed buffer, so that reporting an error needs no memory.
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sl_status_name(sl_status st)
{
    switch (st) {
    case SL_OK:
        return "ok";
    case SL_INPROGRESS:
        return "in_progress";
    case SL_AGAIN:
        return "again";
    case SL_ERR_INVALID:
        return "invalid";
    case SL_ERR_NOT_FOUND:
        return "not_found";
    case SL_ERR_TOO_LARGE:
        return "too_large";
    case SL_ERR_CANCELLED:
        return "cancelled";
    case SL_ERR_DEADLINE:
        return "deadline";
    case SL_ERR_EXHAUSTED:
        return "exhausted";
    case SL_ERR_UNSUPPORTED:
        return "unsupported";
    case SL_ERR_CORRUPT:
        return "corrupt";
    case SL_ERR_STALE:
        return "stale";
    case SL_ERR_DENIED:
        return "denied";
    case SL_ERR_DATA_LOSS:
        return "data_loss";
    case SL_ERR_PEER:
        return "peer";
    case SL_ERR_REFUSED:
        return "refused";
    case SL_ERR_TIMEOUT:
        return "timeout";
    case SL_ERR_DEVICE:
        return "device";
    case SL_ERR_DEVICE_MEMORY:
        return "device_memory";
    case SL_ERR_NO_MEMORY:
        return "no_memory";
    case SL_ERR_IO:
        return "io";
    case SL_ERR_INTERNAL:
        return "internal";
    }
    return "unknown";
}

sl_status sl_fail(sl_err *err, sl_status st, const char *fmt, ...)
{
    if (!err)
        return st;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    return st;
}

sl_status sl_fail_in(sl_err *err, sl_status st, const char *fmt, ...)
{
    if (!err)
        return st;
    char old[sizeof err->text];
    memcpy(old, err->text, sizeof old);
    old[sizeof old - 1] = '\0';
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->text && old[0]) {
        size_t room = sizeof err->text - (size_t)n;
        /* A text that is too long is cut at its end, because the outermost context matters most. */
        size_t len = strlen(old);
        if (room > 3) {
            memcpy(err->text + n, ": ", 2);
            size_t take = len < room - 3 ? len : room - 3;
            memcpy(err->text + n + 2, old, take);
            err->text[(size_t)n + 2 + take] = '\0';
        }
    }
    return st;
}

sl_status sl_fail_unknown(sl_err *err, const char *what, const char *name, const char *const *names)
{
    char known[384] = "";
    for (size_t n = 0; *names && n + 1 < sizeof known; names++) {
        int w = snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", *names);
        n += w > 0 ? (size_t)w : 0;
    }
    return sl_fail(err, SL_ERR_NOT_FOUND, "%s \"%s\" does not exist; there are: %s", what, name ? name : "",
                   known);
}
