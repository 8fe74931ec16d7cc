/*
 * What the parts of this room share: the worker's store and cascade, and the ways to the other threads. The room makes it and
 * owns it; its parts borrow it.
 */
#ifndef SL_DECODE_PAGES_ENV_H
#define SL_DECODE_PAGES_ENV_H

#include "decode/mail/mail.h"
#include "decode/pages/types.h"
#include "worker/checker.h"
#include "worker/runner.h"

typedef struct sl_pages_env {
    /* constant */
    const sl_pages_opts *o;
    sl_store *store;
    sl_arena *arena;
    const sl_geometry *geo;
    const sl_runner *runner;
    sl_checker *checker;
    const bool *draining; /* the worker finishes its requests and takes no new ones */
    /* NULL: the threads have not begun, or have ended; then nothing is told to anybody */
    sl_worker *worker;
    sl_cascade *cascade; /* NULL: there is no storage tier */
    uint64_t stale;      /* messages that were dropped */
} sl_pages_env;

/* The kinds of sl_cascade_waiter. */
enum { SL_WAITER_REQUEST, SL_WAITER_PREFETCH };

/* Counts and logs a message that is dropped because what it is about does not exist. */
void sl_pages_stale(sl_pages_env *e, const char *what, uint64_t id);

/* ---- places: 0 is host memory, 1 + t is tier t ---- */

enum { SL_PLACES_ALL = -1 };
int sl_pages_places_n(const sl_pages_env *e);
const char *sl_pages_places_name(const sl_pages_env *e, int place);
bool sl_pages_places_can_list(const sl_pages_env *e, int place);
/* Whether the tier belongs to this worker alone and can list its pages. */
bool sl_pages_places_local(const sl_pages_env *e, int tier);

#endif
