/*
 * A decode worker: creation, the callbacks of the worker core on the transport thread and of the role on the engine
 * thread, destruction.
 */
#include "decode/decode.h"

#include <stdlib.h>

#include "decode/decode_impl.h"

/* ---- transport thread ---- */

static void note(sl_decode *d, int kind, uint32_t router)
{
    sl_note *n = calloc(1, sizeof *n);
    SL_CHECK(n, "out of memory");
    n->mail.kind = kind;
    n->router = router;
    sl_mailbox_post(d->role.inbox, &n->mail.link);
}

static void on_router_up(void *arg, uint32_t router, const sl_msg_welcome *w)
{
    (void)w;
    note(arg, DM_ROUTER_UP, router);
}

static void on_router_down(void *arg, uint32_t router, sl_status st, const char *why)
{
    (void)st;
    (void)why;
    note(arg, DM_ROUTER_DOWN, router);
    sl_link_router_down(((sl_decode *)arg)->link, router);
}

static void on_fatal(void *arg, sl_status st, const char *why)
{
    sl_worker_role_fatal(&((sl_decode *)arg)->role, st, why);
}

static void on_router_msg(void *arg, sl_wmsg *m)
{
    sl_decode *d = arg;
    m->mail.kind = DM_MSG;
    sl_mailbox_post(d->role.inbox, &m->mail.link);
}

static void on_load(void *arg, sl_msg_load *out)
{
    sl_worker_role_read_load(&((sl_decode *)arg)->role, out);
}

static void on_accepted(void *arg, sl_wep *ep, const char *address)
{
    sl_link_accepted(((sl_decode *)arg)->link, ep, address);
}

static void on_connected(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    sl_link_connected(((sl_decode *)arg)->link, ep, st, why);
}

static void on_msg(void *arg, sl_wep *ep, sl_wmsg *m)
{
    sl_link_msg(((sl_decode *)arg)->link, ep, m);
}

static void on_failed(void *arg, sl_wep *ep, sl_status st, const char *why)
{
    sl_link_failed(((sl_decode *)arg)->link, ep, st, why);
}

static void on_closed(void *arg, sl_wep *ep)
{
    sl_link_closed(((sl_decode *)arg)->link, ep);
}

static void on_mail(void *arg, sl_wmail *m)
{
    sl_link_mail(((sl_decode *)arg)->link, m);
}

static uint64_t on_tick(void *arg, uint64_t now)
{
    return sl_link_tick(((sl_decode *)arg)->link, now);
}

static sl_role role_of(const sl_decode *d)
{
    return d->o.prompts.chunk_tokens ? SL_ROLE_BOTH : SL_ROLE_DECODE;
}

static sl_worker_calls calls_of(sl_decode *d)
{
    return (sl_worker_calls){.arg = d,
                             .comp = sl_role_name(role_of(d)),
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

/* What the pages have to say to the requests. Returns whether there was anything. */
static bool take_events(sl_decode *d)
{
    sl_pages_event ev;
    bool any = false;
    while (sl_pages_next(d->pages, &ev)) {
        any = true;
        sl_run_pages_event(d->run, &ev);
    }
    return any;
}

static void handle_mail(sl_decode *d, sl_wmail *m)
{
    if (sl_pages_mail(d->pages, m))
        return;
    switch (m->kind) {
    case DM_MSG:
        if (!sl_pages_msg(d->pages, (sl_wmsg *)m))
            sl_run_msg(d->run, (sl_wmsg *)m);
        return;
    case DM_CHECKED:
        if (!sl_pages_checked(d->pages, (sl_check *)m))
            sl_run_checked(d->run, (sl_check *)m);
        return;
    case DM_CONNECTED:
        sl_run_connected(d->run, ((sl_fence *)m)->writer);
        break;
    case DM_FENCED:
        sl_run_fenced(d->run, ((sl_fence *)m)->writer);
        break;
    case DM_ROUTER_UP:
        sl_run_router_up(d->run, ((sl_note *)m)->router);
        sl_pages_router_up(d->pages, ((sl_note *)m)->router);
        break;
    case DM_ROUTER_DOWN:
        sl_pages_router_down(d->pages, ((sl_note *)m)->router);
        sl_run_router_down(d->run, ((sl_note *)m)->router);
        break;
    default:
        SL_CHECK(false, "mail %d", m->kind);
    }
    free(m);
}

static void on_engine_mail(void *arg, sl_wmail *m)
{
    sl_decode *d = arg;
    handle_mail(d, m);
    take_events(d);
    sl_run_turn(d->run);
}

static uint64_t on_engine_tick(void *arg, uint64_t now)
{
    sl_decode *d = arg;
    uint64_t pages;
    do {
        pages = sl_pages_tick(d->pages, now);
    } while (take_events(d)); /* a request that continues may begin something that is due earlier */
    uint64_t run = sl_run_tick(d->run, now);
    sl_run_turn(d->run);
    return pages < run ? pages : run;
}

static bool on_engine_idle(const void *arg)
{
    const sl_decode *d = arg;
    return sl_run_idle(d->run) && sl_pages_idle(d->pages);
}

static sl_status on_engine_step(void *arg, bool *worked, sl_err *err)
{
    sl_decode *d = arg;
    sl_status st = sl_run_step(d->run, worked, err);
    sl_run_turn(d->run);
    sl_pages_turn(d->pages);
    return st;
}

static void on_engine_report(void *arg)
{
    const sl_decode *d = arg;
    sl_report_now now;
    sl_run_stats_get(d->run, &now.run);
    sl_pages_stats_get(d->pages, &now.pages);
    sl_link_stats_get(d->link, &now.link);
    sl_report_turn(d->report, &now);
}

sl_status sl_decode_run(sl_decode *d, const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err)
{
    sl_worker_engine e = {.arg = d,
                          .mail = on_engine_mail,
                          .tick = on_engine_tick,
                          .idle = on_engine_idle,
                          .step = on_engine_step,
                          .report = on_engine_report,
                          .wake_fd = sl_pages_fd(d->pages)};
    return sl_worker_role_run(&d->role, d->worker, &e, stop, drain_timeout_ms, err);
}

/* ---- creation and destruction ---- */

static sl_status open_run(sl_decode *d, sl_err *err)
{
    sl_run_opts o = {.prompts = d->o.prompts,
                     .residency = d->o.residency,
                     .row_pages = d->o.row_pages,
                     .max_batch = d->o.max_batch,
                     .draft_tokens = d->o.draft_tokens,
                     .drawn = d->o.drawn,
                     .max_waiting = d->o.max_waiting,
                     .quarantine_ms = d->o.quarantine_ms};
    sl_run_worker w = {.role = &d->role, .opts = &d->o.role, .pages = d->pages};
    return sl_run_create(&o, &w, &d->run, err);
}

static sl_status open_report(sl_decode *d, sl_err *err)
{
    const sl_report_opts o = {.role = &d->role,
                              .runner = d->o.role.runner,
                              .n_layers = d->geo->n_layers,
                              .metrics = d->o.role.worker.metrics,
                              .cascade = sl_pages_cascade(d->pages),
                              .prompts = d->o.prompts.chunk_tokens > 0};
    return sl_report_create(&o, &d->report, err);
}

static void on_store_event(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    const sl_decode *d = ctx;
    if (d->pages) /* else the worker is being made, or has ended */
        sl_pages_store_event(d->pages, ev, page);
}

static sl_status open_parts(sl_decode *d, sl_err *err)
{
    sl_pages_worker pages = {.o = &d->o.pages,
                             .arena = d->o.role.arena,
                             .runner = d->o.role.runner,
                             .checker = &d->role.checker,
                             .draining = &d->role.draining};
    sl_link_opts link = {.worker = &d->worker,
                         .hello = &d->role.hello,
                         .geometry = &d->role.geometry,
                         .arena = d->o.role.arena,
                         .shipping = d->o.shipping,
                         .stall_ms = d->o.stall_ms ? d->o.stall_ms : d->o.quarantine_ms};
    SL_TRY(sl_worker_role_init(&d->role, role_of(d), &d->o.role, d->o.max_batch, DM_CHECKED, on_store_event,
                               d, err));
    link.inbox = d->role.inbox;
    pages.store = d->role.store;
    SL_TRY(sl_pages_create(&pages, &d->pages, err));
    SL_TRY(open_run(d, err));
    (void)sl_drafts_check(d->run);
    SL_TRY(sl_checker_start(&d->role.checker, err));
    SL_TRY(sl_link_create(&link, &d->link, err));
    SL_TRY(open_report(d, err));
    on_engine_report(d); /* the first heartbeat tells the load */
    sl_worker_opts w = sl_worker_role_core_opts(&d->role, &d->o.role, true);
    sl_worker_calls calls = calls_of(d);
    SL_TRY(sl_worker_start(&w, &calls, &d->worker, err));
    sl_pages_threads(d->pages, d->worker);
    sl_run_threads(d->run, d->worker);
    return SL_OK;
}

sl_status sl_decode_create(const sl_decode_opts *opts, sl_decode **out, sl_err *err)
{
    sl_decode *d = calloc(1, sizeof *d);
    if (!d) {
        sl_pages_opts rest = opts->pages;
        sl_pages_opts_close(&rest);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    d->o = *opts;
    d->geo = sl_arena_geometry(opts->role.arena);
    sl_status st = open_parts(d, err);
    if (st != SL_OK) {
        sl_decode_destroy(d);
        return st;
    }
    *out = d;
    return SL_OK;
}

/* The threads have ended: frees the mail that the engine thread has not taken. */
static void drop_mail(sl_decode *d)
{
    for (sl_wmail *m; (m = sl_worker_role_take(&d->role));) {
        if (m->kind == DM_MSG) {
            sl_wmsg_free((sl_wmsg *)m);
        } else if (m->kind == DM_CHECKED) {
            sl_check_free((sl_check *)m);
        } else if (m->kind != DM_PULL_ASKED && m->kind != DM_PULL_GOT) { /* these belong to their tier */
            free(m);
        }
    }
}

void sl_decode_destroy(sl_decode *d)
{
    if (!d)
        return;
    sl_worker_stop(d->worker);
    d->worker = NULL;
    if (d->pages)
        sl_pages_threads(d->pages, NULL);
    sl_checker_stop(&d->role.checker);
    drop_mail(d);
    sl_report_destroy(d->report);
    sl_run_destroy(d->run);
    sl_pages *pages = d->pages;
    d->pages = NULL; /* what the end of the store would tell is told */
    sl_pages_destroy(pages);
    sl_pages_opts_close(&d->o.pages); /* nothing, unless creation failed before the room took it over */
    sl_link_destroy(d->link);
    sl_worker_role_close(&d->role);
    free(d);
}

sl_status sl_decode_counts_get(const sl_decode *d, sl_decode_counts *out, sl_err *err)
{
    sl_store_stats st;
    sl_run_stats run;
    sl_pages_stats pages;
    sl_store_stats_get(d->role.store, &st);
    sl_run_stats_get(d->run, &run);
    sl_pages_stats_get(d->pages, &pages);
    *out = (sl_decode_counts){.tickets = run.tickets,
                              .quarantined = run.count[SL_TICKET_QUARANTINE],
                              .pages_total = st.total,
                              .pages_free = st.free,
                              .pages_cached = st.cached,
                              .steps = run.steps,
                              .tokens = run.tokens,
                              .stale = run.stale,
                              .corrupt = run.corrupt,
                              .retracted = run.retracted,
                              .spilled = run.spilled,
                              .fences = run.fences};
    out->damaged = run.damaged_reused + run.damaged_running + run.damaged_fetched + pages.damage.reused +
                   pages.damage.verified;
    out->pulled = pages.pull.pages;
    out->pull_bytes = pages.pull.bytes;
    out->pull_ns = pages.pull.ns;
    out->pull_leases = pages.pull.leases;
    out->lend_leases = pages.lend.leases;
    return sl_store_check(d->role.store, err);
}
