/* See pinning.h. */
#include "worker/pinning.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"

struct sl_pinning {
    sl_geometry g;
    sl_arena_opts o;
    sl_backend *be;
    pthread_t thread;
    /* of the thread until it is joined */
    sl_arena *arena;
    double seconds;
    sl_status st;
    sl_err err;
};

static sl_status pin(sl_pinning *p, sl_err *err)
{
    SL_TRY(sl_be_use_thread(p->be, err));
    SL_TRY(sl_arena_create(&p->g, &p->o, &p->arena, err));
    sl_status st = sl_be_host_register(p->be, sl_arena_base(p->arena), sl_arena_bytes(p->arena), err);
    if (st != SL_OK) {
        sl_arena_destroy(p->arena);
        p->arena = NULL;
    }
    return st;
}

static void *run(void *arg)
{
    sl_pinning *p = arg;
    uint64_t began = sl_now_ns();
    p->st = pin(p, &p->err);
    p->seconds = (double)(sl_now_ns() - began) / 1e9;
    return NULL;
}

sl_status sl_pinning_start(const sl_geometry *g, const sl_arena_opts *o, sl_backend *be, sl_pinning **out,
                           sl_err *err)
{
    sl_pinning *p = calloc(1, sizeof *p);
    if (p) {
        p->g = *g;
        p->o = *o;
        p->be = be;
    }
    if (!p || pthread_create(&p->thread, NULL, run, p) != 0) {
        free(p);
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot start the thread that pins the host store");
    }
    *out = p;
    return SL_OK;
}

sl_status sl_pinning_take(sl_pinning *p, sl_arena **out, double *seconds, sl_err *err)
{
    pthread_join(p->thread, NULL);
    sl_status st = p->st;
    *out = p->arena;
    *seconds = p->seconds;
    if (st != SL_OK)
        sl_fail(err, st, "%s", p->err.text);
    free(p);
    return st;
}

void sl_pinning_drop(sl_pinning *p)
{
    sl_arena *arena = NULL;
    double seconds;
    if (!p)
        return;
    sl_backend *be = p->be;
    if (sl_pinning_take(p, &arena, &seconds, NULL) == SL_OK)
        sl_be_host_unregister(be, sl_arena_base(arena));
    sl_arena_destroy(arena);
}
