/*
 * The world of the worker's requests (decode/core/effects.h): what effects do here. Messages go to the router of the ticket,
 * pages are leases of the store, jobs go to the checker.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode/run/run_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

/* ---- messages ---- */

/* A longer batch is sent before it is complete, so that the router can begin. */
enum { GATHERED_BYTES = 64 << 10 };

static void send_gathered(sl_run *r, sl_run_batch *b)
{
    if (b->batch.n)
        sl_worker_tell_router_bytes(r->worker, b->router, sl_msg_batch_take(&b->batch));
}

/* The batch of this router, or an empty one; NULL: every batch is that of another router. */
static sl_run_batch *batch_of(sl_run *r, uint32_t router)
{
    sl_run_batch *empty = NULL;
    for (int i = 0; i < SL_WORKER_ROUTERS_MAX; i++) {
        sl_run_batch *b = &r->gathered[i];
        if (b->batch.n && b->router == router)
            return b;
        if (!b->batch.n && !empty)
            empty = b;
    }
    if (empty) {
        empty->router = router;
        empty->batch.since = r->stepped;
    }
    return empty;
}

void sl_run_tell(sl_run *r, uint32_t router, const sl_msg *m)
{
    sl_run_batch *b = r->gathers ? batch_of(r, router) : NULL;
    if (!b || !sl_msg_batch_add(&b->batch, m)) {
        if (b)
            send_gathered(r, b); /* what was told before */
        sl_worker_tell_router(r->worker, router, m);
    } else if (b->batch.w.len > GATHERED_BYTES) {
        send_gathered(r, b);
    }
}

void sl_run_gather(sl_run *r, bool on)
{
    r->gathers = on;
    for (int i = 0; i < SL_WORKER_ROUTERS_MAX && !on; i++)
        send_gathered(r, &r->gathered[i]);
}

void sl_run_tell_failed(sl_run *r, uint32_t router, uint64_t rid, uint32_t attempt, sl_status st,
                        bool retryable, const char *why)
{
    sl_msg m = {.type = SL_MSG_FAILED};
    memset(&m.failed, 0, sizeof m.failed);
    m.failed.rid = rid;
    m.failed.attempt = attempt;
    m.failed.status = st;
    m.failed.retryable = retryable;
    snprintf(m.failed.reason, sizeof m.failed.reason, "%.399s", why);
    sl_run_tell(r, router, &m);
    sl_log(st == SL_ERR_EXHAUSTED ? SL_LOG_DEBUG : SL_LOG_WARN, "decode", "request_failed",
           "rid=%016" PRIx64 " attempt=%u status=%s retryable=%d reason=\"%s\"", rid, attempt,
           sl_status_name(st), retryable, m.failed.reason);
}

void sl_run_tell_drained(sl_run *r, uint32_t router, uint64_t rid, uint32_t attempt)
{
    sl_msg m = {.type = SL_MSG_DRAINED};
    m.id = (sl_msg_id){rid, attempt};
    sl_run_tell(r, router, &m);
}

static void tell_reserved(void *ctx, sl_ticket *t)
{
    sl_run *r = ctx;
    int32_t n;
    int32_t *pages = sl_run_states_list(r, t, &n);
    sl_msg m = {.type = SL_MSG_RESERVED};
    if (!pages) {
        sl_run_fail(r, t, SL_ERR_NO_MEMORY, "out of memory", "");
        return;
    }
    _Static_assert(sizeof(int32_t) == sizeof(uint32_t), "page numbers");
    m.reserved = (sl_msg_reserved){.rid = t->rid,
                                   .attempt = t->attempt,
                                   .ticket = t->number,
                                   .matched_pages = (uint32_t)t->matched,
                                   .pages = (uint32_t *)pages,
                                   .n_pages = (size_t)n};
    sl_run_tell(r, t->router, &m);
    free(pages);
    sl_log(SL_LOG_DEBUG, "decode", "reserved",
           "rid=%016" PRIx64 " attempt=%u ticket=%" PRIu64 " tokens=%d pages=%d matched=%d", t->rid,
           t->attempt, t->number, t->n_tokens, t->n_pages, t->matched);
}

static void tell_failed(void *ctx, const sl_ticket *t, sl_status st, bool retryable, const char *why)
{
    sl_run *r = ctx;
    r->st.expired += st == SL_ERR_DEADLINE;
    r->st.refused += !t->n_pages;
    sl_run_tell_failed(r, t->router, t->rid, t->attempt, st, retryable, why);
}

/* The prompt of a worker of role both is complete and verified. */
static void tell_scores(sl_run *r, const sl_ticket *t)
{
    sl_msg_token list[SL_SCORES_MESSAGE];
    for (size_t n, at = 1; (n = sl_scores_message(&sl_run_of(t)->scores, at, list)); at += n) {
        sl_msg m = {.type = SL_MSG_SCORES};
        m.tokens = (sl_msg_tokens){
            .rid = t->rid, .attempt = t->attempt, .first_index = (uint32_t)at, .tokens = list, .n_tokens = n};
        sl_run_tell(r, t->router, &m);
    }
}

static void tell_prefilled(void *ctx, const sl_ticket *t)
{
    sl_run *r = ctx;
    tell_scores(r, t);
    uint64_t now = sl_now_ns(), began = sl_run_of(t)->started_ns;
    sl_msg m = {.type = SL_MSG_PREFILLED};
    m.prefilled = (sl_msg_prefilled){.rid = t->rid,
                                     .attempt = t->attempt,
                                     .cached_tokens = t->cached_tokens,
                                     .queue_us = (began - t->granted_ns) / 1000,
                                     .compute_us = (now - began) / 1000};
    sl_run_tell(r, t->router, &m);
}

static void tell_tokens(void *ctx, sl_ticket *t, int32_t first_index, const sl_msg_token *list, int32_t n)
{
    sl_run *r = ctx;
    sl_msg m = {.type = SL_MSG_TOKENS};
    m.tokens = (sl_msg_tokens){.rid = t->rid,
                               .attempt = t->attempt,
                               .first_index = (uint32_t)first_index,
                               .tokens = (sl_msg_token *)(uintptr_t)list,
                               .n_tokens = (size_t)n};
    sl_run_tell(r, t->router, &m);
    r->st.tokens += (uint64_t)n;
}

static void tell_done(void *ctx, sl_ticket *t, sl_finish finish, int32_t matched)
{
    sl_run *r = ctx;
    sl_msg m = {.type = SL_MSG_DONE};
    sl_answers_done(r, t);
    if (sl_run_of(t)->seq)
        r->runner->seq_stats(r->runner->impl, sl_run_of(t)->seq, &sl_run_of(t)->stats);
    const sl_layer_stats s = sl_run_of(t)->stats;
    m.done = (sl_msg_done){.rid = t->rid,
                           .attempt = t->attempt,
                           .finish = (uint8_t)finish,
                           .matched_stop = matched,
                           .produced = (uint32_t)sl_ticket_produced(t),
                           .cached_tokens = t->cached_tokens,
                           .hits = s.hits,
                           .misses = s.misses,
                           .swap_bytes = s.swap_bytes};
    sl_run_tell(r, t->router, &m);
    sl_log(SL_LOG_DEBUG, "decode", "done",
           "rid=%016" PRIx64 " attempt=%u produced=%u finish=%d hits=%" PRIu64 " misses=%" PRIu64
           " swap_bytes=%" PRIu64,
           t->rid, t->attempt, m.done.produced, (int)finish, s.hits, s.misses, s.swap_bytes);
}

static void tell_retracted(void *ctx, sl_ticket *t, const char *why)
{
    sl_run *r = ctx;
    sl_msg m = {.type = SL_MSG_RETRACTED};
    int32_t safe = t->damaged ? t->safe - t->n_prompt : sl_ticket_produced(t);
    m.retracted = (sl_msg_retracted){
        .rid = t->rid, .attempt = t->attempt, .safe = safe > 0 ? (uint32_t)safe : 0, .damaged = t->damaged};
    sl_run_tell(r, t->router, &m);
    r->st.retracted++;
    sl_log(SL_LOG_WARN, "decode", "retracted",
           "rid=%016" PRIx64 " attempt=%u produced=%d safe=%d pages=%d why=%s", t->rid, t->attempt,
           sl_ticket_produced(t), safe, sl_lease_n_pages(sl_run_of(t)->lease), why);
}

static void tell_drained(void *ctx, const sl_ticket *t)
{
    sl_log(SL_LOG_DEBUG, "decode", "drained", "rid=%016" PRIx64 " attempt=%u", t->rid, t->attempt);
    sl_run_tell_drained(ctx, t->router, t->rid, t->attempt);
}

void sl_run_answer_pages(sl_run *r, const sl_wmsg *m, uint32_t *crc, size_t n)
{
    const sl_msg_pages_ask *a = &m->msg.pages_ask;
    sl_msg out = {.type = SL_MSG_PAGES_CRC};
    out.pages_crc =
        (sl_msg_pages_crc){.rid = a->rid, .attempt = a->attempt, .first = a->first, .crc = crc, .n_crc = n};
    sl_worker_tell_peer(r->worker, m->ep_serial, &out);
}

/* ---- the checker ---- */

static bool check(void *ctx, sl_ticket *t, sl_ticket_job job, int32_t first, int32_t n,
                  const sl_msg_commit *commit)
{
    static const sl_check_what what[SL_JOBS] = {
        [SL_JOB_COMPARE] = SL_CHECK_KEEP,  [SL_JOB_VERIFY] = SL_CHECK_VERIFY,
        [SL_JOB_PATROL] = SL_CHECK_VERIFY, [SL_JOB_CONFIRM] = SL_CHECK_VERIFY,
        [SL_JOB_READ] = SL_CHECK_READ,     [SL_JOB_SEAL] = SL_CHECK_SEAL,
        [SL_JOB_STATES] = SL_CHECK_SEAL};
    sl_run *r = ctx;
    sl_check *k =
        job == SL_JOB_STATES ? sl_answers_check(r, t) : sl_run_states_check(r, t, job, what[job], first, n);
    if (!k && job == SL_JOB_READ)
        sl_run_answer_pages(r, r->m, NULL, 0);
    if (!k)
        return false;
    k->tag = (int)job;
    k->sampled = r->role->checker.verify == SL_CFG_VERIFY_SAMPLED;
    if (commit) {
        k->expect = commit->crc;
        k->last_tokens = (t->n_tokens - 1) % PAGE + 1;
        k->compare = r->verify_checksums;
    }
    if (job == SL_JOB_COMPARE || job == SL_JOB_READ) {
        k->m = r->m;
        r->m = NULL;
    }
    r->patrolling |= job == SL_JOB_PATROL;
    sl_checker_post(&r->role->checker, k);
    return true;
}

/* ---- pages ---- */

static int32_t missing(void *ctx, const sl_ticket *t)
{
    return sl_run_missing(ctx, t);
}

static int32_t available(void *ctx)
{
    const sl_run *r = ctx;
    return sl_store_available(r->role->store) + sl_answers_spare(r);
}

static bool load(void *ctx, sl_ticket *t)
{
    sl_run *r = ctx;
    if (t->sampling.prompt_logprobs) /* it shares no pages */
        return false;
    return sl_pages_wait(r->pages, t->number, t->router, &sl_run_of(t)->m->msg.reserve);
}

static void leave(void *ctx, sl_ticket *t)
{
    sl_run *r = ctx;
    sl_pages_leave(r->pages, t->number);
}

static sl_status lease_all(sl_run *r, sl_ticket *t, sl_lease **out)
{
    const sl_msg_reserve *m = &sl_run_of(t)->m->msg.reserve;
    int32_t n_match;
    SL_TRY(sl_run_states_lease(r, t, &n_match));
    sl_status st =
        sl_store_lease_part(r->role->store, m->tenant, m->seed, t->tokens, t->n_tokens, n_match, out);
    if (st != SL_OK)
        sl_run_states_release(t);
    return st;
}

static sl_status lease(void *ctx, sl_ticket *t, sl_grant *out)
{
    sl_run *r = ctx;
    sl_lease *l = NULL;
    sl_status st = lease_all(r, t, &l);
    while (st == SL_ERR_EXHAUSTED && sl_answers_give(r))
        st = lease_all(r, t, &l);
    SL_TRY(st);
    sl_run_of(t)->lease = l;
    sl_run_forget_sums(r, l, sl_lease_matched(l));
    *out = (sl_grant){.n_pages = sl_lease_n_pages(l), .matched = sl_lease_matched(l)};
    out->verify = sl_pages_to_verify(r->loaded, out->matched);
    return SL_OK;
}

static void publish(void *ctx, sl_ticket *t, int32_t rows)
{
    sl_run *r = ctx;
    sl_lease_publish(sl_run_of(t)->lease, t->tokens, sl_runner_public(r->runner, t->n_prompt, rows));
    sl_run_states_publish(r, t, rows);
    sl_answers_publish(r, t, rows);
}

static void accepted(void *ctx, const sl_ticket *t)
{
    sl_run *r = ctx;
    r->st.committed++;
    sl_run_of(t)->at.waiting = sl_now_ns();
    sl_log(SL_LOG_DEBUG, "decode", "committed",
           "rid=%016" PRIx64 " attempt=%u ticket=%" PRIu64 " tokens=%d cached=%u wait_us=%" PRIu64, t->rid,
           t->attempt, t->number, t->n_tokens, t->cached_tokens, (sl_now_ns() - t->granted_ns) / 1000);
}

static void release(void *ctx, sl_ticket *t)
{
    sl_answers_release(ctx, t);
    sl_run_states_release(t);
    sl_lease_release(sl_run_of(t)->lease, true);
    sl_run_of(t)->lease = NULL;
}

/* ---- sequences, fences ---- */

void sl_run_close_seq(sl_run *r, sl_ticket *t)
{
    sl_run_ticket *x = sl_run_of(t);
    if (x->seq) {
        r->runner->seq_stats(r->runner->impl, x->seq, &x->stats);
        r->runner->close(r->runner->impl, x->seq);
    }
    x->seq = NULL;
    x->resident = false;
    sl_prompt_queue_end(&r->prompts, &x->prompt);
}

static void close_seq(void *ctx, sl_ticket *t)
{
    sl_run_close_seq(ctx, t);
}

static void quarantined(void *ctx, const sl_ticket *t)
{
    (void)ctx;
    sl_log(SL_LOG_INFO, "decode", "quarantine", "rid=%016" PRIx64 " attempt=%u pages=%d writer=%u why=%s",
           t->rid, t->attempt, t->n_pages, t->writer, sl_status_name(t->why));
}

static void fence(void *ctx, const sl_ticket *t)
{
    sl_run *r = ctx;
    sl_fence *f = calloc(1, sizeof *f);
    if (!f)
        return; /* the next deadline asks again */
    f->mail.kind = DM_FENCE;
    f->writer = (sl_writer){t->router, t->writer};
    sl_worker_post(r->worker, &f->mail);
}

void sl_run_fail(sl_run *r, sl_ticket *t, sl_status st, const char *what, const char *detail)
{
    char why[300];
    snprintf(why, sizeof why, "%s%.250s", what, detail);
    sl_core_fail(&r->core, t, st, true, why, sl_now_ns());
}

sl_world sl_run_world(sl_run *r)
{
    return (sl_world){.ctx = r,
                      .tell_reserved = tell_reserved,
                      .tell_failed = tell_failed,
                      .tell_prefilled = tell_prefilled,
                      .tell_tokens = tell_tokens,
                      .tell_done = tell_done,
                      .tell_retracted = tell_retracted,
                      .tell_drained = tell_drained,
                      .check = check,
                      .publish = publish,
                      .accepted = accepted,
                      .quarantined = quarantined,
                      .fence = fence,
                      .close = close_seq,
                      .leave = leave,
                      .release = release,
                      .missing = missing,
                      .available = available,
                      .load = load,
                      .lease = lease};
}
