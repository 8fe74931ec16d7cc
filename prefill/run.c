/*
 * Creation and destruction of the prefill worker, the loop of the engine thread, and the callbacks that the worker core
 * calls on the transport thread.
 */
#include "prefill/prefill.h"

#include <stdlib.h>

#include "prefill/path.h"
#include "prefill/peer.h"
#include "prefill/prefill_impl.h"
#include "prefill/steps.h"

/* ---- transport thread ---- */

static void on_router_up(void *arg, uint32_t router, const sl_msg_welcome *w)
{
    (void)arg;
    (void)router;
    (void)w;
}

static void on_router_down(void *arg, uint32_t router, sl_status st, const char *why)
{
    (void)st;
    (void)why;
    sl_ship_router_down(arg, router);
}

static void on_fatal(void *arg, sl_status st, const char *why)
{
    sl_worker_role_fatal(&((sl_prefill *)arg)->role, st, why);
}

static void hand_over(sl_prefill *p, sl_wmsg *m, int kind)
{
    m->mail.kind = kind;
    sl_mailbox_post(p->role.inbox, &m->mail.link);
}

static void on_router_msg(void *arg, sl_wmsg *m)
{
    sl_prefill *p = arg;
    switch (m->msg.type) {
    case SL_MSG_PREFILL:
    case SL_MSG_PREFETCH:
        sl_ship_new(p, m);
        return;
    case SL_MSG_ABORT:
        sl_ship_abort(p, m->router, m->msg.abort.rid, m->msg.abort.attempt);
        break;
    case SL_MSG_FLUSH_CACHE:
        hand_over(p, m, PM_FLUSH_CACHE);
        return;
    default:
        sl_counter_add(p->c.stale, 1);
        break;
    }
    sl_wmsg_free(m);
}

static void on_load(void *arg, sl_msg_load *out)
{
    sl_prefill *p = arg;
    sl_worker_role_read_load(&p->role, out);
    out->copier_age_ms = sl_copier_age_ms(p->copier, sl_now_ns());
}

static void on_accepted(void *arg, sl_wep *ep, const char *address)
{
    (void)arg;
    (void)address;
    sl_wep_close(ep, SL_TP_CLOSE_FORCE); /* cannot happen, because a prefill worker does not listen */
}

static void on_connected(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    sl_peer_connected(arg, ep, st, why);
}

static void on_msg(void *arg, sl_wep *ep, sl_wmsg *m)
{
    sl_peer_msg(arg, ep, m);
}

static void on_failed(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    sl_peer_failed(arg, ep, st, why);
}

static void on_closed(void *arg, sl_wep *ep)
{
    sl_peer_closed(arg, ep);
}

static void on_mail(void *arg, sl_wmail *m)
{
    sl_ship_mail(arg, m);
}

static uint64_t on_tick(void *arg, uint64_t now)
{
    return sl_ship_tick(arg, now);
}

static sl_worker_calls calls_of(sl_prefill *p)
{
    return (sl_worker_calls){.arg = p,
                             .comp = "prefill",
                             .router_up = on_router_up,
                             .router_down = on_router_down,
                             .fatal = on_fatal,
                             .router_msg = on_router_msg,
                             .load = on_load,
                             .ep_accepted = on_accepted,
                             .ep_connected = on_connected,
                             .ep_msg = on_msg,
                             .ep_failed = on_failed,
                             .ep_closed = on_closed,
                             .mail = on_mail,
                             .tick = on_tick};
}

/* ---- engine thread ---- */

static void on_engine_mail(void *arg, sl_wmail *m)
{
    if (m->kind == PM_CHECKED)
        sl_schedule_checked(arg, (sl_check *)m);
    else
        sl_schedule_mail(arg, m);
}

static uint64_t on_engine_tick(void *arg, uint64_t now)
{
    (void)arg;
    (void)now;
    return UINT64_MAX; /* the transport thread watches the deadlines */
}

static bool on_engine_idle(const void *arg)
{
    const sl_prefill *p = arg;
    return !p->n_jobs && !p->prefetches;
}

static sl_status on_engine_step(void *arg, bool *worked, sl_err *err)
{
    sl_schedule_admit(arg);
    sl_status st;
    *worked = sl_steps_compute(arg, &st, err);
    return st;
}

static void on_engine_report(void *arg)
{
    sl_prefill_load_publish(arg);
}

sl_status sl_prefill_run(sl_prefill *p, const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err)
{
    sl_worker_engine e = {.arg = p,
                          .mail = on_engine_mail,
                          .tick = on_engine_tick,
                          .idle = on_engine_idle,
                          .step = on_engine_step,
                          .report = on_engine_report,
                          .wake_fd = -1};
    return sl_worker_role_run(&p->role, p->worker, &e, stop, drain_timeout_ms, err);
}

/* ---- creation and destruction ---- */

static sl_status open_parts(sl_prefill *p, sl_err *err)
{
    SL_TRY(sl_worker_role_init(&p->role, SL_ROLE_PREFILL, &p->o.role, p->o.max_requests, PM_CHECKED, NULL,
                               NULL, err));
    SL_TRY(sl_checker_start(&p->role.checker, err));
    SL_TRY(sl_schedule_open(p, err));
    SL_TRY(sl_steps_create(&p->steps, p->geo->n_layers, err));
    SL_TRY(sl_paths_prepare(p, err));
    sl_prefill_metrics_find(&p->c, p->o.role.worker.metrics);
    sl_prefill_load_publish(p);
    sl_worker_opts w = sl_worker_role_core_opts(&p->role, &p->o.role, false);
    w.device_memory = p->dev_memory;
    w.n_device_memory = p->n_dev_memory;
    sl_worker_calls calls = calls_of(p);
    return sl_worker_start(&w, &calls, &p->worker, err);
}

sl_status sl_prefill_create(const sl_prefill_opts *opts, sl_prefill **out, sl_err *err)
{
    if (opts->chunk_tokens < 1 || opts->chunk_tokens > opts->role.runner->max_step_tokens)
        return sl_fail(err, SL_ERR_INVALID, "prefill.chunk_tokens %d is not in 1..%d", opts->chunk_tokens,
                       opts->role.runner->max_step_tokens);
    sl_prefill *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    p->o = *opts;
    p->geo = sl_arena_geometry(opts->role.arena);
    sl_status st = open_parts(p, err);
    if (st != SL_OK) {
        sl_prefill_destroy(p);
        return st;
    }
    *out = p;
    return SL_OK;
}

/* Frees the jobs that had not ended, after the transport thread has ended. */
static void drop_jobs(sl_prefill *p)
{
    while (p->ships) {
        sl_prefill_job *j = p->ships;
        sl_prefill_close_seq(p, j);
        sl_prefill_states_release(j);
        sl_lease_release(j->engine.lease, true);
        sl_constraint_close(j->engine.constraint);
        sl_sampling_free(&j->engine.sampling);
        sl_ship_free(p, j);
    }
}

static void drop_check(sl_check *k)
{
    if (k->tag == CHECK_CHUNK)
        free(k->owner);
    sl_check_free(k);
}

static void drop_mail(sl_prefill *p)
{
    for (sl_wmail *m; (m = sl_worker_role_take(&p->role));) {
        if (m->kind == PM_STEP_BACK)
            sl_schedule_mail(p, m);
        else if (m->kind == PM_CHECKED)
            drop_check((sl_check *)m);
        else if (m->kind == PM_CHUNK)
            free(m);
        else if (m->kind == PM_FLUSH_CACHE)
            sl_wmsg_free((sl_wmsg *)m);
    }
}

void sl_prefill_destroy(sl_prefill *p)
{
    if (!p)
        return;
    sl_copier_stop(p->copier); /* while the transport thread can still receive the mails that come back */
    sl_worker_stop(p->worker);
    sl_checker_stop(&p->role.checker);
    drop_mail(p);
    drop_jobs(p);
    sl_paths_close(p);
    sl_peer_free_all(p);
    sl_steps_destroy(p->steps);
    sl_worker_role_close(&p->role);
    sl_schedule_close(p);
    free(p);
}

sl_status sl_prefill_counts_get(const sl_prefill *p, sl_prefill_counts *out, sl_err *err)
{
    sl_store_stats st;
    sl_store_stats_get(p->role.store, &st);
    *out = (sl_prefill_counts){.requests = p->n_jobs,
                               .pages_total = st.total,
                               .pages_free = st.free,
                               .pages_cached = st.cached,
                               .tokens_computed = atomic_load(&p->role.load.tokens_done),
                               .tokens_reused = p->reused,
                               .tokens_pulled = p->pulled,
                               .damaged = p->damaged};
    return sl_store_check(p->role.store, err);
}
