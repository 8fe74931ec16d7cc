/*
 * Status codes and error context, used by every room.
 *
 * A function that can fail returns sl_status: 0 is success, positive means "not yet" (nothing is lost),
 * negative is a failure. Failures are grouped by what is lost at most: the request, the peer, the device, the
 * process. Output parameters are written only on success. Functions whose failure a user must understand
 * also take an `sl_err *err` (may be NULL) and describe the cause there with sl_fail(): file, key or field,
 * and the reason. The function that detects an error logs or describes it; its callers only pass it on.
 *
 * Threads: everything here is re-entrant. Ownership: sl_err is a plain value with nothing to free.
 */
#ifndef SL_BASE_STATUS_H
#define SL_BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    SL_OK = 0,
    SL_INPROGRESS = 1, /* started; a completion will follow */
    SL_AGAIN = 2,      /* no room now (back-pressure); nothing was done, the caller tries again later */

    /* one request is lost */
    SL_ERR_INVALID = -1,     /* malformed or out-of-bounds input */
    SL_ERR_NOT_FOUND = -2,   /* the named thing does not exist */
    SL_ERR_TOO_LARGE = -3,   /* exceeds a documented limit */
    SL_ERR_CANCELLED = -4,   /* aborted by its owner */
    SL_ERR_DEADLINE = -5,    /* its deadline passed */
    SL_ERR_EXHAUSTED = -6,   /* pages, slots or queue are full */
    SL_ERR_UNSUPPORTED = -7, /* valid, but this build, model or machine cannot do it */
    SL_ERR_CORRUPT = -8,     /* data arrived damaged or is inconsistent */
    SL_ERR_STALE = -9,       /* wrong generation, epoch or ticket */
    SL_ERR_DENIED = -10,     /* authentication failed */
    SL_ERR_DATA_LOSS = -11,  /* what was delivered before is not what a clean computation yields */

    /* one peer is lost */
    SL_ERR_PEER = -20,    /* connection to a peer failed or was closed */
    SL_ERR_REFUSED = -21, /* the peer refused the handshake */
    SL_ERR_TIMEOUT = -22, /* the peer did not answer in time */

    /* the device is lost or full */
    SL_ERR_DEVICE = -40,
    SL_ERR_DEVICE_MEMORY = -41,

    /* the process cannot go on */
    SL_ERR_NO_MEMORY = -60,
    SL_ERR_IO = -61,
    SL_ERR_INTERNAL = -62,
} sl_status;

/* The cause of a failure, for people. Initialise it with zeros; an empty text means that there is no detail. */
typedef struct sl_err {
    char text[512];
} sl_err;

/* Stable lower-case name of a status ("invalid", "peer"…); never NULL. */
const char *sl_status_name(sl_status st);

/* Writes the formatted cause to err (if not NULL) and returns st: `return sl_fail(err, SL_ERR_INVALID, "…")`. */
sl_status sl_fail(sl_err *err, sl_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the text in err and returns st. For callers that know the file or the key. */
sl_status sl_fail_in(sl_err *err, sl_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/*
 * The error for a name in the configuration that its registry does not have: SL_ERR_NOT_FOUND, `what "name" does not
 * exist; there are: a, b, c`. names ends with NULL; name may be NULL.
 */
sl_status sl_fail_unknown(sl_err *err, const char *what, const char *name, const char *const *names);

/*
 * How every room handles a status. A function that owns nothing yet passes a failure on with SL_TRY, which also passes
 * on "not yet". A function that owns something at that point uses `goto`, with labels that are named for what they
 * undo. Avoid chains of `if (st == SL_OK) st = ...`: they hide which call failed and what is owned.
 */
#define SL_TRY(call)                                                                                         \
    do {                                                                                                     \
        sl_status sl_try_ = (call);                                                                          \
        if (sl_try_ != SL_OK)                                                                                \
            return sl_try_;                                                                                  \
    } while (0)

/* Broken invariant: prints expression, place and a message, then aborts. Never for bad input. */
_Noreturn void sl_panic(const char *file, int line, const char *expr, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
#define SL_CHECK(expr, ...)                                                                                  \
    do {                                                                                                     \
        if (!(expr))                                                                                         \
            sl_panic(__FILE__, __LINE__, #expr, " " __VA_ARGS__);                                            \
    } while (0)

#define SL_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
