/*
 * The part of the engine thread: admission, and the checks of own pages. Steps are in steps.c.
 *
 * Every step divides prefill.chunk_tokens among the requests that have tokens to compute, the shortest first
 * (worker/prompt_queue.h), or fewer tokens if they would take longer than prefill.max_step_ms at the pace that earlier
 * steps had. One of the prefill.max_requests places is reserved for prompts of at most one chunk, so that long prompts
 * cannot use all places. Pages are sealed as soon as they are full (kvstore/seal.h). When the prompt is computed all
 * its pages are verified; then they enter this worker's prefix tree, and COMMIT is sent: rows that were computed from
 * rows that have been damaged meanwhile are neither shipped nor kept. Pages that were pulled from a decode worker enter
 * it when their checksums have been compared; those of a prefetch (prefetch.c) before the request comes, which does not
 * begin while they arrive. Pages of this tree that a request reuses are verified while the rest of its prompt is
 * computed; FINISH, and with it COMMIT and the first token, waits for the result.
 *
 * A worker that begins to drain gives requests that have not started back to the router at once.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefill/prefill_impl.h"
#include "prefill/steps.h"

enum { PAGE = SL_PAGE_TOKENS };

sl_status sl_schedule_open(sl_prefill *p, sl_err *err)
{
    sl_prompt_queue_opts q = {.chunk_tokens = p->o.chunk_tokens,
                              .automatic = p->o.automatic,
                              .max_prompts = p->o.max_requests,
                              .max_step_ns = p->o.max_step_ms * 1e6,
                              .short_step_ns = p->o.short_step_ms * 1e6,
                              .min_step_tokens = p->o.min_step_tokens,
                              .unit = p->o.role.runner->prompt_unit,
                              .max_context = p->o.role.runner->max_context,
                              .guess_ns = p->o.max_step_ms > 0 ? p->o.max_step_ms * 1e6 / SL_PAGE_TOKENS : 1};
    return sl_prompt_queue_open(&p->queue, &q, err);
}

void sl_schedule_close(sl_prefill *p)
{
    sl_prompt_queue_close(&p->queue);
}

static void post(sl_prefill *p, sl_prefill_job *j, int kind)
{
    sl_worker_post(p->worker, sl_job_mail_of(j, kind));
}

/* Stops computing for the job. The job and its pages are kept until END. */
static void stop(sl_prefill *p, sl_prefill_job *j)
{
    sl_prefill_close_seq(p, j);
    sl_prompt_queue_end(&p->queue, &j->engine.prompt);
    j->engine.state = JOB_STOPPED;
}

void sl_schedule_fail(sl_prefill *p, sl_prefill_job *j, sl_status st, bool retryable, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(j->failure.reason, sizeof j->failure.reason, fmt, ap);
    va_end(ap);
    j->failure.status = st;
    j->failure.retryable = retryable;
    stop(p, j);
    post(p, j, PM_FAIL);
}

static sl_status check_request(sl_prefill *p, sl_prefill_job *j, sl_err *err)
{
    const sl_msg_prefill *r = j->msg;
    if ((int64_t)r->n_tokens > p->o.role.runner->max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%zu tokens exceed the context of %d", r->n_tokens,
                       p->o.role.runner->max_context);
    if (j->at.n > sl_arena_pages(p->o.role.arena))
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "%zu pages exceed this worker's host store of %d (kvstore.bytes)", r->n_pages,
                       sl_arena_pages(p->o.role.arena));
    for (size_t i = 0; i < r->n_tokens; i++) {
        if (r->tokens[i] < 0 || r->tokens[i] >= p->o.role.runner->vocab)
            return sl_fail(err, SL_ERR_INVALID, "token %zu is %d, the vocabulary has %d", i, r->tokens[i],
                           p->o.role.runner->vocab);
    }
    sl_rd rd = sl_rd_init(r->sampling.data, r->sampling.len);
    if (sl_sampling_read(&rd, &j->engine.sampling) != SL_OK)
        return sl_fail(err, SL_ERR_CORRUPT, "sampling parameters do not decode");
    SL_TRY(sl_sampling_validate(&j->engine.sampling, p->o.role.runner->vocab, err));
    if (sl_scores_open(&j->scores, &j->engine.sampling, r->tokens, r->n_prompt) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for log-probabilities");
    sl_status st = sl_constraint_open(p->role.constraints, &j->engine.sampling, r->tokens + r->n_prompt,
                                      r->n_tokens - r->n_prompt, &j->engine.constraint);
    return st == SL_OK ? st : sl_fail(err, st, "out of memory for a constraint");
}

static void on_new(sl_prefill *p, sl_prefill_job *j)
{
    j->engine.prev = p->jobs_tail;
    if (p->jobs_tail)
        p->jobs_tail->engine.next = j;
    else
        p->jobs = j;
    p->jobs_tail = j;
    p->n_jobs++;
    j->engine.state = JOB_QUEUED;
    j->engine.prompt =
        (sl_queued_prompt){.arrived = ++p->arrivals, .tokens = (int32_t)j->msg->n_tokens, .owner = j};
    sl_err err = {0};
    sl_status st = check_request(p, j, &err);
    if (st != SL_OK)
        sl_schedule_fail(p, j, st, false, "%.299s", err.text);
}

static void on_end(sl_prefill *p, sl_prefill_job *j)
{
    stop(p, j);
    j->engine.ended = true;
    if (j->engine.checks) /* the last check that comes back calls this again */
        return;
    sl_prefill_prefetch_end(p, j);
    sl_prefill_states_end(p, j);
    sl_lease_release(j->engine.lease, true);
    sl_constraint_close(j->engine.constraint);
    sl_scores_close(&j->scores);
    sl_sampling_free(&j->engine.sampling);
    *(j->engine.prev ? &j->engine.prev->engine.next : &p->jobs) = j->engine.next;
    *(j->engine.next ? &j->engine.next->engine.prev : &p->jobs_tail) = j->engine.prev;
    p->n_jobs--;
    post(p, j, PM_RELEASE);
}

/* ---- checks of own pages ---- */

/* The caller posts it. NULL: out of memory. */
static sl_check *new_check(const sl_prefill *p, sl_prefill_job *j, sl_check_what what, int32_t first,
                           int32_t end)
{
    sl_check *k = sl_check_new(what, sl_lease_pages(j->engine.lease) + first, end - first, j);
    if (!k)
        return NULL;
    k->sampled = p->role.checker.verify == SL_CFG_VERIFY_SAMPLED;
    j->engine.checks++;
    return k;
}

static bool post_check(sl_prefill *p, sl_prefill_job *j, sl_check_what what, int32_t first, int32_t end)
{
    sl_check *k = new_check(p, j, what, first, end);
    if (!k)
        return false;
    sl_checker_post(&p->role.checker, k);
    return true;
}

void sl_schedule_public(sl_prefill *p, sl_prefill_job *j, int32_t n_tokens)
{
    sl_lease_publish(j->engine.lease, j->msg->tokens,
                     sl_runner_public(p->o.role.runner, (int32_t)j->msg->n_prompt, n_tokens));
}

bool sl_schedule_seal(sl_prefill *p, sl_prefill_job *j, int32_t n_tokens)
{
    int32_t full = n_tokens / PAGE;
    if (sl_checker_seals(&p->role.checker) && full > j->engine.sealed) {
        if (!post_check(p, j, SL_CHECK_SEAL, j->engine.sealed, full)) {
            sl_schedule_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
            return false;
        }
        j->engine.sealed = full;
    }
    return true;
}

bool sl_schedule_publish(sl_prefill *p, sl_prefill_job *j, int32_t n_tokens)
{
    if (!sl_schedule_seal(p, j, n_tokens))
        return false;
    sl_schedule_public(p, j, n_tokens);
    return true;
}

/* The prompt is computed and its pages were verified after that: they may be used by others, and COMMIT may be sent. */
static void release_rows(sl_prefill *p, sl_prefill_job *j)
{
    sl_schedule_public(p, j, j->engine.prompt.pos);
    j->engine.states.verified = true;
    post(p, j, PM_FINISH);
}

void sl_schedule_computed(sl_prefill *p, sl_prefill_job *j)
{
    j->engine.state = JOB_FINISHED;
    j->engine.prompt.ready = false;
    int32_t full = j->engine.prompt.pos / PAGE;
    if (sl_checker_seals(&p->role.checker) && full > j->engine.prompt.start / PAGE) {
        if (!post_check(p, j, SL_CHECK_VERIFY, 0, full)) {
            sl_schedule_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
            return;
        }
        j->engine.unverified++;
    }
    if (!j->engine.unverified)
        release_rows(p, j);
}

/* Removes the page, if j holds it, and everything that continues it from the cache. Returns the number of pages. */
static int32_t drop_from(sl_prefill *p, sl_prefill_job *j, int32_t page)
{
    int32_t i = 0, n = j->engine.lease ? sl_lease_n_pages(j->engine.lease) : 0;
    while (i < n && sl_lease_pages(j->engine.lease)[i] != page)
        i++;
    if (i == n)
        return 0;
    bool finish_posted = j->engine.state == JOB_FINISHED && !j->engine.unverified;
    if (j->engine.state != JOB_STOPPED && !finish_posted)
        sl_schedule_fail(p, j, SL_ERR_CORRUPT, true, "pages of its prefix were damaged in the store");
    return sl_lease_drop(j->engine.lease, i);
}

/*
 * A page of the own cache is damaged: the requests that use it fail before their first token, and the router retries.
 */
static void drop_page(sl_prefill *p, int32_t page)
{
    int32_t dropped = 0;
    for (sl_prefill_job *j = p->jobs; j; j = j->engine.next)
        dropped += drop_from(p, j, page);
    p->damaged++;
    sl_counter_add(p->role.metrics.damaged_reused, 1);
    sl_log(SL_LOG_WARN, "prefill", "page_damaged", "page=%d dropped=%d", page, dropped);
}

void sl_schedule_checked(sl_prefill *p, sl_check *k)
{
    if (k->tag == CHECK_CHUNK) {
        sl_prefill_chunk_checked(p, k);
        return;
    }
    sl_prefill_job *j = k->owner;
    j->engine.checks--;
    for (int32_t i = 0; k->what == SL_CHECK_VERIFY && i < k->n_damaged; i++)
        drop_page(p, k->damaged[i]);
    if (k->what == SL_CHECK_VERIFY && !k->n_damaged) {
        j->engine.unverified--;
        if (j->engine.state == JOB_FINISHED && !j->engine.unverified)
            release_rows(p, j);
    }
    sl_schedule_check_back(p, j);
    sl_check_free(k);
}

void sl_schedule_check_back(sl_prefill *p, sl_prefill_job *j)
{
    if (j->engine.ended)
        on_end(p, j);
}

void sl_schedule_mail(sl_prefill *p, sl_wmail *m)
{
    if (m->kind == PM_CHUNK) {
        sl_prefill_chunk(p, (sl_pull_chunk *)m);
        return;
    }
    sl_prefill_job *j = ((sl_job_mail *)m)->job;
    bool of_job = m->kind == PM_NEW || m->kind == PM_PULLED || m->kind == PM_STOP || m->kind == PM_END;
    if (of_job && j->prefetch) {
        sl_prefill_prefetch_mail(p, j, m->kind);
        return;
    }
    switch (m->kind) {
    case PM_NEW:
        on_new(p, j);
        break;
    case PM_PULLED:
        sl_prefill_pulled(p, j);
        break;
    case PM_STOP:
        stop(p, j);
        break;
    case PM_END:
        on_end(p, j);
        break;
    case PM_STEP_BACK: {
        sl_prefill_step *s = (sl_prefill_step *)((char *)m - offsetof(sl_prefill_step, done));
        sl_steps_back(p->steps, s);
        break;
    }
    case PM_FLUSH_CACHE:
        sl_store_flush(p->role.store);
        sl_wmsg_free((sl_wmsg *)m);
        break;
    default:
        SL_CHECK(false, "mail %d", m->kind);
    }
}

/* ---- admission ---- */

/* Counts the own pages that are reused: [first, end) of the prompt were fetched for this request. */
static void count_reused(sl_prefill *p, int32_t own, int32_t first, int32_t end)
{
    int32_t fetched = (own < end ? own : end) - first;
    uint64_t ahead = fetched > 0 ? (uint64_t)fetched * PAGE : 0, local = (uint64_t)own * PAGE - ahead;
    p->reused += local;
    p->pulled += ahead;
    sl_counter_add(p->c.reused_local, local);
    sl_counter_add(p->c.reused_ahead, ahead);
}

static bool start_job(sl_prefill *p, sl_prefill_job *j)
{
    const sl_msg_prefill *r = j->msg;
    int32_t fetched, fetched_end;
    sl_prefill_prefetch_use(p, j, &fetched, &fetched_end);
    const int32_t n = (int32_t)r->n_tokens,
                  shared = sl_runner_shared(p->o.role.runner, (int32_t)r->n_prompt, n);
    int32_t n_match;
    sl_status st = sl_prefill_states_lease(p, j, sl_scores_shared(&j->engine.sampling, shared), &n_match);
    if (st == SL_OK)
        st = sl_store_lease_part(p->role.store, 0, r->seed, r->tokens, n, n_match, &j->engine.lease);
    if (st != SL_OK) {
        sl_prefill_states_release(j);
        sl_prefill_prefetch_give_seq(p, j); /* closes it: its pages are not held any more */
    }
    if (st == SL_ERR_EXHAUSTED) {
        sl_prefill_prefetch_make_room(p);
        return false; /* pages become free when other requests end */
    }
    if (st != SL_OK) {
        sl_schedule_fail(p, j, st, true, "cannot lease %zu pages", r->n_pages);
        return true;
    }
    j->own_pages = malloc((size_t)j->at.n * sizeof *j->own_pages);
    if (!j->own_pages) {
        sl_schedule_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
        return true;
    }
    memcpy(j->own_pages, sl_lease_pages(j->engine.lease), (size_t)j->at.pages * sizeof *j->own_pages);
    sl_prefill_states_place(p, j);
    int32_t own = sl_lease_matched(j->engine.lease), theirs = (int32_t)r->matched_pages;
    /* Pages that were fetched for this request have just been compared, and were pinned since then. */
    int32_t verify = own <= fetched_end && fetched < own ? fetched : own;
    j->own_matched = own;
    sl_prefill_prefetch_give_seq(p, j);
    sl_prefill_prefetch_end(p, j);
    j->pull_end = theirs > own ? theirs : own;
    j->engine.prompt.start = j->engine.prompt.pos = own * PAGE;
    j->engine.prompt.stop = sl_prefill_states_stop(p, j);
    j->engine.state = j->pull_end > own ? JOB_PULLING : JOB_READY;
    j->engine.started_ns = sl_now_ns();
    j->engine.sealed = j->engine.have = own;
    j->engine.unverified = verify && sl_checker_seals(&p->role.checker);
    j->result.queue_us = (j->engine.started_ns - j->arrived_ns) / 1000;
    count_reused(p, own, fetched, fetched_end);
    sl_prompt_queue_begin(&p->queue, &j->engine.prompt);
    sl_log(SL_LOG_DEBUG, "prefill", "start",
           "rid=%016" PRIx64
           " attempt=%u tokens=%zu own_pages=%d pull_pages=%d decode_pages=%d queue_us=%" PRIu64,
           j->rid, j->attempt, r->n_tokens, own, j->pull_end - own, theirs, j->result.queue_us);
    post(p, j, PM_START);
    if (j->engine.unverified && !post_check(p, j, SL_CHECK_VERIFY, 0, verify))
        sl_schedule_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
    return true;
}

/* Finds the device pages of the rows. Without memory for their numbers, the rows are read from the own arena. */
static void find_on_device(sl_prefill *p, sl_prefill_job *j)
{
    size_t n = (size_t)j->at.pages;
    if (!p->dev_layers)
        return;
    int32_t *pages = malloc(2 * n * sizeof *pages);
    if (!pages)
        return;
    p->o.role.runner->device_pages(j->engine.seq, pages, pages + n, (int32_t)n);
    j->dev_index = pages + n;
    j->dev_rows = pages;
}

/* A prompt with a constraint is not computed before the constraint can say what its first token may be. */
static bool can_choose(sl_prefill *p, sl_prefill_job *j)
{
    sl_err err = {0};
    sl_status st = sl_constraint_failed(j->engine.constraint, &err);
    if (st == SL_OK)
        return sl_constraint_ready(j->engine.constraint);
    sl_schedule_fail(p, j, st, false, "constraint: %.270s", err.text);
    return false;
}

static bool open_job(sl_prefill *p, sl_prefill_job *j)
{
    sl_err err = {0};
    sl_status st = sl_prefill_open(p, j, &err);
    while (st == SL_ERR_EXHAUSTED && sl_prefill_prefetch_yield(p))
        st = sl_prefill_open(p, j, &err);
    if (st == SL_OK) {
        find_on_device(p, j);
        j->engine.state = JOB_RUNNING;
        j->engine.prompt.ready = true;
        return true;
    }
    if (st == SL_ERR_EXHAUSTED && p->queue.n > 1)
        return false; /* the device has free memory when another request ends */
    sl_schedule_fail(p, j, st, true, "cannot open the sequence: %.200s", err.text);
    return true;
}

void sl_schedule_admit(sl_prefill *p)
{
    bool pages = true, slots = true;
    if (p->role.draining)
        sl_prefill_prefetch_drain(p);
    for (sl_prefill_job *j = p->jobs, *next; j; j = next) {
        next = j->engine.next;
        if (j->engine.state == JOB_QUEUED && p->role.draining)
            sl_schedule_fail(p, j, SL_ERR_PEER, true, "the worker is draining");
        bool place = sl_prompt_queue_has_place(&p->queue, (int32_t)j->msg->n_tokens);
        if (j->engine.state == JOB_QUEUED && pages && place && !sl_prefill_prefetch_awaited(p, j))
            pages = start_job(p, j);
        if (j->engine.state == JOB_PULLING && slots)
            sl_prefill_open_early(p, j);
        if (j->engine.state == JOB_READY && (slots || j->engine.seq) && can_choose(p, j))
            slots &= open_job(p, j);
    }
}
