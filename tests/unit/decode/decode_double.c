/* See decode_double.h. */
#include "tests/unit/decode/decode_double.h"

#include "kvstore/page_key.h"
#include "worker/worker.h"
#include "tests/unit/kvstore/mla_geometry.h"

static decode_double *now; /* the worker to which the functions of the core belong */

/* ---- the worker core ---- */

static void say(uint32_t router, const sl_msg *m)
{
    ck_assert_int_lt(now->n_said, DD_SAID);
    if (m->type == SL_MSG_JOINED) { /* for traces alone: counted, and not among what requests are told */
        now->n_joined++;
        return;
    }
    dd_said *s = &now->said[now->n_said++];
    *s = (dd_said){.type = m->type, .router = router};
    switch (m->type) {
    case SL_MSG_RESERVED:
        s->rid = m->reserved.rid, s->attempt = m->reserved.attempt, s->ticket = m->reserved.ticket;
        s->matched = m->reserved.matched_pages, s->n = m->reserved.n_pages;
        break;
    case SL_MSG_TOKENS:
        s->rid = m->tokens.rid, s->attempt = m->tokens.attempt, s->first_index = m->tokens.first_index;
        break;
    case SL_MSG_DONE:
        s->rid = m->done.rid, s->attempt = m->done.attempt, s->finish = m->done.finish;
        s->produced = m->done.produced;
        break;
    case SL_MSG_FAILED:
        s->rid = m->failed.rid, s->attempt = m->failed.attempt, s->status = (sl_status)m->failed.status;
        s->retryable = m->failed.retryable;
        break;
    case SL_MSG_KV_EVENTS:
        s->rid = m->kv_events.medium, s->attempt = 1, s->n = m->kv_events.stored.len / 32;
        s->matched = (uint32_t)m->kv_events.removed.len / 16, s->first_index = m->kv_events.cleared;
        s->ticket = m->kv_events.sequence;
        break;
    case SL_MSG_PAGES_CRC:
        s->rid = m->pages_crc.rid, s->attempt = m->pages_crc.attempt, s->n = m->pages_crc.n_crc;
        break;
    case SL_MSG_PREFILLED:
        s->rid = m->prefilled.rid, s->attempt = m->prefilled.attempt, s->n = m->prefilled.cached_tokens;
        break;
    case SL_MSG_LOADING:
        s->rid = m->loading.rid, s->attempt = m->loading.attempt, s->matched = m->loading.pages;
        break;
    case SL_MSG_LEASE:
        s->rid = m->lease.lease, s->attempt = 1, s->n = m->lease.n_pages, s->matched = m->lease.lent;
        ck_assert_uint_eq(m->lease.labels.len, s->n * sl_cascade_label_bytes(now->d->geo));
        for (size_t i = 0; i < s->n && i < SL_COUNT(s->pages); i++)
            s->pages[i] = (int32_t)m->lease.pages[i];
        break;
    case SL_MSG_CACHE_JOB:
        s->rid = m->cache_job.ask, s->attempt = 1, s->status = (sl_status)m->cache_job.status;
        now->job = m->cache_job;
        memcpy(now->damaged, m->cache_job.keys.data ? m->cache_job.keys.data : (const uint8_t *)"",
               m->cache_job.keys.len);
        now->job.keys.data = (const uint8_t *)now->damaged;
        break;
    case SL_MSG_CACHE_PAGES:
        s->rid = m->cache_pages.ask, s->attempt = 1, s->n = m->cache_pages.pages.len / SL_CACHE_PAGE_BYTES;
        now->list = m->cache_pages;
        if (s->n)
            memcpy(now->listed, m->cache_pages.pages.data, m->cache_pages.pages.len);
        now->list.pages.data = now->listed;
        break;
    default:
        s->rid = m->id.rid, s->attempt = m->id.attempt;
        break;
    }
}

void sl_worker_tell_router(sl_worker *w, uint32_t router, const sl_msg *msg)
{
    (void)w;
    ck_assert_uint_ne(router, 0);
    say(router, msg);
}

void sl_worker_tell_router_bytes(sl_worker *w, uint32_t router, sl_msg_bytes bytes)
{
    sl_rd r;
    const uint8_t *data;
    size_t n;
    (void)w;
    ck_assert_uint_ne(router, 0);
    now->batches++;
    now->jobs = atomic_load(&now->d->role.checker.watch.jobs);
    now->available = sl_store_available(now->d->role.store);
    if (bytes.id == SL_MSG_BATCH)
        ck_assert_int_eq(sl_msg_batch_open(bytes.data, bytes.n, &r, &now->since, NULL), SL_OK);
    else
        r = (sl_rd){0};
    for (bool one = bytes.id != SL_MSG_BATCH; one || sl_msg_batch_next(&r, &data, &n);) {
        sl_msg m;
        ck_assert_int_eq(sl_msg_decode(one ? bytes.data : data, one ? bytes.n : n, &m, NULL), SL_OK);
        say(router, &m);
        sl_msg_free(&m);
        if (one)
            break;
    }
    free(bytes.data);
}

void sl_worker_tell_routers(sl_worker *w, const sl_msg *msg)
{
    (void)w;
    say(now->router, msg);
}

void sl_worker_tell_peer(sl_worker *w, uint32_t ep_serial, const sl_msg *msg)
{
    (void)w;
    (void)ep_serial;
    say(0, msg);
}

void sl_worker_post(sl_worker *w, sl_wmail *m)
{
    (void)w;
    if (m->kind == DM_READER_FENCE) {
        now->reader_fences++;
        now->fenced_reader = ((sl_reader_mail *)m)->ep_serial;
    } else {
        ck_assert_int_eq(m->kind, DM_FENCE);
        now->fences++;
        now->fenced = ((sl_fence *)m)->writer;
    }
    free(m);
}

/* ---- the runner: the fake one, with failures on demand ---- */

static sl_status take(sl_status *fail)
{
    sl_status st = *fail;
    *fail = SL_OK;
    return st;
}

static sl_runner inner;

static sl_status dd_run_open(void *impl, sl_residency r, const int32_t *pages, int32_t n, int32_t cached,
                             void **seq, sl_err *err)
{
    sl_status st = take(&now->fail_open);
    return st != SL_OK ? sl_fail(err, st, "as the test asked")
                       : inner.open(impl, r, pages, n, cached, seq, err);
}

static sl_status dd_run_submit(void *impl, sl_step_item *items, int32_t n, sl_err *err)
{
    sl_status st = now->fail_submit;
    now->fail_submit = SL_OK;
    return st != SL_OK ? sl_fail(err, st, "as the test asked") : inner.submit(impl, items, n, err);
}

static sl_status dd_run_step(void *impl, sl_step_item *items, int32_t n, const sl_step_hooks *hooks,
                             sl_err *err)
{
    sl_status st = take(&now->fail_step);
    return st != SL_OK ? sl_fail(err, st, "as the test asked") : inner.step(impl, items, n, hooks, err);
}

static int32_t dd_run_damaged(void *impl, void (*found)(void *ctx, int32_t page), void *ctx)
{
    int32_t page = now->bad_page - 1;
    (void)impl;
    now->bad_page = 0;
    if (page < 0)
        return 0;
    found(ctx, page);
    return 1;
}

/* ---- creation and destruction ---- */

dd_opts dd_defaults(void)
{
    return (dd_opts){.pages = 16, .max_batch = 2, .max_waiting = 2, .max_seqs = 8, .max_context = 1024};
}

static sl_geometry geometry(void)
{
    static const bool has_indexer[DD_LAYERS] = {true, true};
    return mla_geometry((sl_key){1, 2}, SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, DD_LAYERS,
                        has_indexer);
}

static void open_tier(sl_decode *d, const dd_opts *how)
{
    sl_err err = {0};
    sl_tier_opts o = {.capacity_bytes = 16 << 20};
    ck_assert(sl_cascade_page_format(d->geo, &o.page_bytes, &o.format));
    sl_cascade_tier *t = &d->o.pages.tiers[d->o.pages.n_tiers++];
    *t = (sl_cascade_tier){
        .listener = sl_cascade_listen(&o), .policy = SL_CASCADE_WRITE_THROUGH, .load_timeout_ms = 10000};
    o.capacity_bytes = how->tier_pages ? (uint64_t)how->tier_pages * o.page_bytes : o.capacity_bytes;
    ck_assert_int_eq(sl_tier_open(&sl_tier_memory_ops, &o, &t->tier, &err), SL_OK);
    static sl_tier_ops local;
    local = sl_tier_memory_ops;
    local.persistent = true;
    if (how->local)
        t->tier->ops = &local;
}

static void open_pages(decode_double *x, const dd_opts *o)
{
    sl_decode *d = x->d;
    sl_err err = {0};
    d->o.pages.load_chunk_bytes = (uint64_t)o->load_chunk * (uint64_t)d->geo->page_bytes;
    if (o->tier)
        open_tier(d, o);
    sl_pages_worker w = {.o = &d->o.pages,
                         .store = d->role.store,
                         .arena = x->arena,
                         .runner = &x->runner,
                         .checker = &d->role.checker,
                         .draining = &d->role.draining};
    ck_assert_msg(sl_pages_create(&w, &d->pages, &err) == SL_OK, "%s", err.text);
    sl_pages_threads(d->pages, (sl_worker *)x); /* which the functions above never look into */
}

static void open_run(decode_double *x)
{
    sl_decode *d = x->d;
    sl_err err = {0};
    sl_run_opts o = {.prompts = d->o.prompts,
                     .residency = d->o.residency,
                     .row_pages = d->o.row_pages,
                     .max_batch = d->o.max_batch,
                     .draft_tokens = d->o.draft_tokens,
                     .max_waiting = d->o.max_waiting,
                     .quarantine_ms = d->o.quarantine_ms};
    sl_run_worker w = {.role = &d->role, .opts = &d->o.role, .pages = d->pages};
    ck_assert_msg(sl_run_create(&o, &w, &d->run, &err) == SL_OK, "%s", err.text);
    sl_run_threads(d->run, (sl_worker *)x);
}

void dd_open(decode_double *x, const dd_opts *o)
{
    sl_err err = {0};
    sl_geometry g = geometry();
    sl_arena_opts ao = {.bytes = (uint64_t)(o->pages * g.page_bytes), .lock = SL_OFF, .numa_node = -1};
    memset(x, 0, sizeof *x);
    now = x;
    x->router = DD_ROUTER;
    ck_assert_msg(sl_arena_create(&g, &ao, &x->arena, &err) == SL_OK, "%s", err.text);
    fake_opts fo = {.vocab = DD_VOCAB,
                    .max_context = o->max_context,
                    .max_step_tokens = 64 + o->chunk,
                    .max_seqs = o->max_seqs,
                    .overlaps = o->overlaps,
                    .drafts = o->drafts != 0,
                    .noise = o->noise,
                    .row_bytes = o->row_bytes,
                    .row_wait_ns = o->row_wait_ns};
    x->fake = fake_create(x->arena, &fo);
    inner = x->runner = fake_runner_of(x->fake);
    x->runner.open = dd_run_open;
    x->runner.step = dd_run_step;
    x->runner.submit = dd_run_submit;
    x->runner.damaged = dd_run_damaged;
    sl_decode *d = x->d = calloc(1, sizeof *d);
    d->o = (sl_decode_opts){.role = {.name = "d",
                                     .model = "m",
                                     .cluster_tag = "t",
                                     .metrics_address = "",
                                     .runner = &x->runner,
                                     .arena = x->arena,
                                     .prefix_cache = true,
                                     .verify_checksums = !o->no_verify,
                                     .verify = o->verify},
                            .prompts = {.chunk_tokens = o->chunk,
                                        .max_requests = o->prompts,
                                        .min_step_tokens = 1,
                                        .max_stall_ms = o->stall_ms},
                            .residency = SL_HIERARCHICAL,
                            .max_batch = o->max_batch,
                            .draft_tokens = o->drafts,
                            .max_waiting = o->max_waiting,
                            .pages = {.lend = true},
                            .quarantine_ms = 1000};
    d->geo = sl_arena_geometry(x->arena);
    ck_assert_int_eq(
        sl_worker_role_init(&d->role, SL_ROLE_DECODE, &d->o.role, o->max_batch, DM_CHECKED, NULL, NULL, &err),
        SL_OK);
    open_pages(x, o);
    open_run(x);
}

/* What decode.c does after each mail and each tick. */
static void take_events(decode_double *x)
{
    sl_pages_event ev;
    while (sl_pages_next(x->d->pages, &ev)) {
        sl_run_pages_event(x->d->run, &ev);
    }
}

uint64_t dd_tick(decode_double *x, uint64_t now_ns)
{
    uint64_t due = sl_pages_tick(x->d->pages, now_ns);
    take_events(x);
    return due;
}

sl_pages_stats dd_stats(const decode_double *x)
{
    sl_pages_stats s;
    sl_pages_stats_get(x->d->pages, &s);
    return s;
}

uint64_t dd_damaged(const decode_double *x)
{
    sl_pages_stats s = dd_stats(x);
    sl_run_stats r = dd_counts(x);
    return r.damaged_reused + r.damaged_running + r.damaged_fetched + s.damage.reused + s.damage.verified;
}

void dd_reader_gone(decode_double *x, uint32_t ep_serial)
{
    sl_reader_mail *m = calloc(1, sizeof *m);
    *m = (sl_reader_mail){.mail.kind = DM_READER_GONE, .ep_serial = ep_serial};
    ck_assert(sl_pages_mail(x->d->pages, &m->mail));
    take_events(x);
}

void dd_router_up(decode_double *x, uint32_t session)
{
    sl_run_router_up(x->d->run, session);
    sl_pages_router_up(x->d->pages, session);
}

void dd_router_down(decode_double *x, uint32_t session)
{
    sl_pages_router_down(x->d->pages, session);
    sl_run_router_down(x->d->run, session);
}

void dd_resync(decode_double *x, uint32_t session)
{
    sl_wmsg *m = calloc(1, sizeof *m);
    m->msg.type = SL_MSG_KV_RESYNC;
    m->router = session;
    ck_assert(sl_pages_msg(x->d->pages, m));
}

/* Whether the cascade has nothing to do. */
static bool dd_stored(const decode_double *x)
{
    const sl_cascade *c = sl_pages_cascade(x->d->pages);
    return !c || sl_cascade_idle(c);
}

void dd_settle(decode_double *x)
{
    for (int quiet = 0, turns = 0; quiet < 2; turns++) {
        ck_assert_int_lt(turns, 1000);
        int jobs = dd_check(x);
        dd_tick(x, sl_now_ns());
        quiet = jobs || sl_pages_waiting(x->d->pages) || !dd_stored(x) ? 0 : quiet + 1;
    }
}

void dd_close(decode_double *x)
{
    sl_err err = {0};
    sl_decode *d = x->d;
    ck_assert_int_eq(dd_tickets(x), 0);
    ck_assert_int_eq(dd_held(x), 0);
    ck_assert_int_eq(dd_stats(x).lend.waiting, 0);
    ck_assert_int_eq(dd_running(x), 0);
    ck_assert_int_eq(fake_open_seqs(x->fake), 0);
    ck_assert_msg(sl_store_check(d->role.store, &err) == SL_OK, "%s", err.text);
    ck_assert_ptr_null(sl_mailbox_take(d->role.checker.inbox));
    sl_run_destroy(d->run);
    sl_pages *pages = d->pages;
    d->pages = NULL;
    sl_pages_destroy(pages);
    sl_worker_role_close(&d->role);
    free(d);
    fake_destroy(x->fake);
    sl_arena_destroy(x->arena);
}

/* ---- what a test observes ---- */

const dd_said *dd_expect(decode_double *x, sl_msg_type type, uint64_t rid)
{
    ck_assert_msg(x->seen < x->n_said, "%s was not said", sl_msg_type_name(type));
    const dd_said *s = &x->said[x->seen++];
    ck_assert_msg(s->type == type && s->rid == rid && s->attempt == 1, "%s of request %d, not %s of %d",
                  sl_msg_type_name(s->type), (int)s->rid, sl_msg_type_name(type), (int)rid);
    ck_assert(!s->router || s->router == x->router);
    return s;
}

void dd_silent(const decode_double *x)
{
    ck_assert_msg(x->seen == x->n_said, "%s was said", sl_msg_type_name(x->said[x->seen].type));
}

sl_ticket *dd_ticket(const decode_double *x, uint64_t rid)
{
    for (sl_ticket *t = x->d->run->core.tickets.first; t; t = t->next) {
        if (t->rid == rid && t->router == x->router && sl_ticket_has_place(t))
            return t;
    }
    return NULL;
}

const sl_lease *dd_lease(const decode_double *x, uint64_t rid)
{
    return sl_run_of(dd_ticket(x, rid))->lease;
}

int dd_running(const decode_double *x)
{
    return x->d->run->core.tickets.count[SL_TICKET_RUNNING];
}

sl_run_stats dd_counts(const decode_double *x)
{
    sl_run_stats s;
    sl_run_stats_get(x->d->run, &s);
    return s;
}

int dd_tickets(const decode_double *x)
{
    return sl_tickets_placed(&x->d->run->core.tickets);
}

int dd_held(const decode_double *x)
{
    sl_store_stats st;
    sl_store_stats_get(x->d->role.store, &st);
    return st.total - st.free - st.cached;
}

/* ---- messages to the worker ---- */

/* As it comes from the transport: encoded and decoded again, blobs in the message's own bytes. writer 0: the router
 * says it. */
static void receive_at(decode_double *x, const sl_msg *m, uint32_t writer, uint32_t ep_serial)
{
    sl_wr w;
    sl_err err = {0};
    sl_wr_init(&w);
    sl_msg_encode(m, &w);
    sl_wmsg *in = calloc(1, sizeof *in + w.len);
    memcpy(in->bytes, w.data, w.len);
    ck_assert_msg(sl_msg_decode(in->bytes, w.len, &in->msg, &err) == SL_OK, "%s", err.text);
    in->router = x->router;
    in->worker_id = writer;
    in->ep_serial = ep_serial;
    sl_wr_free(&w);
    if (!sl_pages_msg(x->d->pages, in))
        sl_run_msg(x->d->run, in);
    take_events(x);
}

static void receive(decode_double *x, const sl_msg *m, uint32_t writer)
{
    receive_at(x, m, writer, 0);
}

static void reserve(decode_double *x, uint64_t rid, uint32_t writer, int n_tokens, int max_tokens, int seed,
                    uint32_t deadline_ms)
{
    int32_t *tokens = malloc((size_t)n_tokens * sizeof *tokens);
    for (int i = 0; i < n_tokens; i++)
        tokens[i] = (i * 7 + seed) % DD_VOCAB;
    sl_sampling s;
    sl_wr w;
    sl_sampling_default(&s);
    s.temperature = 0;
    s.max_tokens = max_tokens;
    sl_wr_init(&w);
    sl_sampling_write(&w, &s);
    sl_msg m = {.type = SL_MSG_RESERVE};
    m.reserve = (sl_msg_reserve){.rid = rid,
                                 .attempt = 1,
                                 .prefill_worker = writer,
                                 .n_prompt = (uint32_t)n_tokens,
                                 .tokens = tokens,
                                 .n_tokens = (size_t)n_tokens,
                                 .deadline_ms = deadline_ms,
                                 .sampling = {w.data, w.len},
                                 .seed = dd_seed};
    receive(x, &m, 0);
    sl_wr_free(&w);
    sl_sampling_free(&s);
    free(tokens);
}

void dd_reserve(decode_double *x, uint64_t rid, int n_tokens, int max_tokens, int seed, uint32_t deadline_ms)
{
    reserve(x, rid, DD_WRITER, n_tokens, max_tokens, seed, deadline_ms);
}

void dd_reserve_own(decode_double *x, uint64_t rid, int n_tokens, int max_tokens, int seed)
{
    reserve(x, rid, 0, n_tokens, max_tokens, seed, 0);
}

void dd_prefetch(decode_double *x, uint64_t rid, int n_tokens, int seed)
{
    int32_t *tokens = malloc((size_t)n_tokens * sizeof *tokens);
    for (int i = 0; i < n_tokens; i++)
        tokens[i] = (i * 7 + seed) % DD_VOCAB;
    sl_msg m = {.type = SL_MSG_PREFETCH};
    m.prefetch = (sl_msg_prefetch){
        .rid = rid, .attempt = 1, .tokens = tokens, .n_tokens = (size_t)n_tokens, .seed = dd_seed};
    receive(x, &m, 0);
    free(tokens);
}

void dd_abort(decode_double *x, uint64_t rid, sl_status why)
{
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort = (sl_msg_abort){rid, 1, why};
    receive(x, &m, 0);
}

static void drained(decode_double *x, uint64_t rid, uint32_t writer)
{
    sl_msg m = {.type = SL_MSG_DRAINED};
    m.id = (sl_msg_id){rid, 1};
    receive(x, &m, writer);
}

void dd_drained_relayed(decode_double *x, uint64_t rid)
{
    drained(x, rid, 0);
}

void dd_drained(decode_double *x, uint64_t rid, uint32_t writer)
{
    drained(x, rid, writer);
}

void dd_commit(decode_double *x, uint64_t rid, uint32_t writer, int n_tokens_off)
{
    static uint32_t crc[1024];
    const sl_ticket *t = dd_ticket(x, rid);
    ck_assert_ptr_nonnull(t);
    const sl_lease *lease = dd_lease(x, rid);
    int matched = t->matched, last = (t->n_tokens - 1) / SL_PAGE_TOKENS;
    for (int i = matched * DD_LAYERS; i < sl_lease_n_pages(lease) * DD_LAYERS; i++) {
        int page = i / DD_LAYERS, n = page == last ? t->n_tokens - page * SL_PAGE_TOKENS : SL_PAGE_TOKENS;
        crc[i - matched * DD_LAYERS] =
            sl_arena_page_crc(x->arena, sl_lease_pages(lease)[page], i % DD_LAYERS, n);
    }
    sl_msg m = {.type = SL_MSG_COMMIT};
    m.commit = (sl_msg_commit){.rid = rid,
                               .attempt = 1,
                               .ticket = t->number,
                               .worker_id = writer,
                               .n_tokens = (uint32_t)(t->n_tokens + n_tokens_off),
                               .first_page = (uint32_t)matched,
                               .crc = crc,
                               .n_crc = (size_t)(sl_lease_n_pages(lease) - matched) * DD_LAYERS,
                               .first = {.id = 3},
                               .hidden = x->hidden};
    receive(x, &m, writer);
}

void dd_pages_ask(decode_double *x, uint64_t rid, uint32_t first, uint32_t count)
{
    const sl_ticket *t = dd_ticket(x, rid);
    sl_msg m = {.type = SL_MSG_PAGES_ASK};
    m.pages_ask = (sl_msg_pages_ask){
        .rid = rid, .attempt = 1, .ticket = t ? t->number : 0, .first = first, .count = count};
    receive(x, &m, DD_WRITER);
}

static void ask_lease(decode_double *x, sl_msg_lease_ask a, uint32_t peer, uint32_t ep_serial, int seed,
                      int first, int n)
{
    int32_t tokens[DD_LEASED * SL_PAGE_TOKENS];
    sl_key keys[DD_LEASED];
    ck_assert_int_le(first + n, DD_LEASED);
    for (int i = 0; i < (first + n) * SL_PAGE_TOKENS; i++)
        tokens[i] = (i * 7 + seed) % DD_VOCAB;
    sl_page_keys(dd_seed, tokens, (size_t)(first + n) * SL_PAGE_TOKENS, keys);
    sl_msg m = {.type = SL_MSG_LEASE_ASK};
    m.lease_ask = a;
    m.lease_ask.keys = (sl_blob){(uint8_t *)(keys + first), (size_t)n * sizeof *keys};
    receive_at(x, &m, peer, ep_serial);
}

void dd_lease_ask(decode_double *x, uint64_t id, uint32_t ep_serial, sl_key domain, int seed, int first,
                  int n, uint32_t ms)
{
    ask_lease(x, (sl_msg_lease_ask){.lease = id, .ms = ms, .seed = domain}, DD_READER, ep_serial, seed, first,
              n);
}

void dd_lease_wait(decode_double *x, uint64_t id, uint32_t ep_serial, int seed, int first, int n)
{
    ask_lease(x, (sl_msg_lease_ask){.lease = id, .ms = 60000, .seed = dd_seed, .wait = 1}, DD_WRITER,
              ep_serial, seed, first, n);
}

void dd_lease_end(decode_double *x, uint64_t id, uint32_t ep_serial)
{
    sl_msg m = {.type = SL_MSG_LEASE_END};
    m.lease_end.lease = id;
    receive_at(x, &m, DD_READER, ep_serial);
}

void dd_lease_damaged(decode_double *x, uint64_t id, uint32_t ep_serial, uint32_t first, uint32_t count)
{
    sl_msg m = {.type = SL_MSG_LEASE_DAMAGED};
    m.lease_damaged = (sl_msg_lease_damaged){id, first, count};
    receive_at(x, &m, DD_READER, ep_serial);
}

void dd_cache_ask(decode_double *x, const sl_msg_cache_ask *q)
{
    sl_msg m = {.type = SL_MSG_CACHE_ASK};
    m.cache_ask = *q;
    receive(x, &m, 0);
}

void dd_answer(decode_double *x, sl_check *k)
{
    if (!sl_pages_checked(x->d->pages, k))
        sl_run_checked(x->d->run, k);
}

bool dd_checked(decode_double *x, size_t bad)
{
    sl_check *c = (sl_check *)sl_mailbox_take(x->d->role.checker.inbox);
    if (!c)
        return false;
    c->bad = bad;
    if (bad && c->what == SL_CHECK_KEEP)
        c->damaged[c->n_damaged++] = c->pages[0];
    if (c->what == SL_CHECK_READ)
        c->n_crc = (size_t)c->n_pages * DD_LAYERS;
    dd_answer(x, c);
    take_events(x);
    return true;
}

bool dd_check_one(decode_double *x)
{
    sl_check *c = (sl_check *)sl_mailbox_take(x->d->role.checker.inbox);
    if (!c)
        return false;
    while (!sl_checker_work(&x->d->role.checker, c))
        ;
    dd_answer(x, c);
    take_events(x);
    return true;
}

int dd_check(decode_double *x)
{
    int n = 0;
    while (dd_check_one(x))
        n++;
    return n;
}

void dd_verified(decode_double *x, uint64_t rid, int n_tokens, int max_tokens, int seed)
{
    dd_reserve(x, rid, n_tokens, max_tokens, seed, 0);
    dd_expect(x, SL_MSG_RESERVED, rid);
    dd_commit(x, rid, DD_WRITER, 0);
    ck_assert(dd_checked(x, 0));
    dd_expect(x, SL_MSG_TOKENS, rid);
}

sl_status dd_step(decode_double *x, bool *worked)
{
    sl_err err = {0};
    sl_status st = sl_run_step(x->d->run, worked, &err);
    sl_run_turn(x->d->run);
    return st;
}
