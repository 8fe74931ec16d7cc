/*
 * A prefill worker: as prefill/schedule.c, in virtual time. Places, the order of prompts, the bounds of steps and the pace are
 * those of the product's queue (worker/prompt_queue.h); so is the cache of prefixes (kvstore/store.h).
 *
 * A job: QUEUED (no place or no pages) -> PULLING (pages that only the decode worker has come over the link) -> RUNNING
 * (steps) -> SHIPPING (the last rows are on the link) -> committed. Rows are shipped while the next ones are computed, in
 * the order in which they were computed: the link is busy until link_until_ns.
 */
#include <stdlib.h>
#include <string.h>

#include "simulate/sim_impl.h"

enum { MAX_ITEMS = 64 };

typedef enum { JOB_QUEUED, JOB_PULLING, JOB_RUNNING, JOB_SHIPPING } job_state;

struct sl_sim_job {
    sl_sim_job *next, *prev;
    sl_sim_worker *w;
    sl_msg m; /* PREFILL */
    job_state state;
    bool aborted; /* freed by the event that it waits for */
    sl_lease *lease;
    int32_t own; /* tokens in the own cache */
    sl_queued_prompt prompt;
    int32_t take; /* of the running step */
};

static int32_t length(const sl_sim_job *j)
{
    return (int32_t)j->m.prefill.n_tokens;
}

static void free_job(sl_sim_job *j)
{
    sl_msg_free(&j->m);
    free(j);
}

/* The worker forgets the job. Its memory is freed later when an event still names it. */
static void leave(sl_sim_job *j, bool pending)
{
    sl_sim_prefill *p = &j->w->prefill;
    sl_prompt_queue_end(&p->queue, &j->prompt);
    *(j->prev ? &j->prev->next : &p->jobs) = j->next;
    *(j->next ? &j->next->prev : &p->jobs_tail) = j->prev;
    sl_lease_release(j->lease, true);
    j->lease = NULL;
    j->aborted = true;
    if (!pending)
        free_job(j);
}

static void turn(sl_sim_worker *w);

/* ---- the end ---- */

/* The time of the job's rows on the link; pages: those that the decode worker does not have. */
static void ship(sl_sim_job *j, int32_t from, int32_t to, uint64_t from_ns)
{
    sl_sim_worker *w = j->w;
    int32_t theirs = (int32_t)j->m.prefill.matched_pages * PAGE;
    from = from > theirs ? from : theirs;
    if (to <= from)
        return;
    double ns =
        sl_sim_move_ns((to - from) * w->s->per_token * w->s->c->kv_bytes_per_token, w->s->c->link.gb_per_s);
    uint64_t begin = w->prefill.link_until_ns > from_ns ? w->prefill.link_until_ns : from_ns;
    w->prefill.link_until_ns = begin + (uint64_t)ns;
    w->s->out.link_ns += ns;
}

static void on_shipped(void *arg, uint64_t number)
{
    sl_sim_job *j = arg;
    sl_sim_worker *w = j->w;
    (void)number;
    if (j->aborted) {
        free_job(j);
        return;
    }
    const sl_msg_prefill *r = &j->m.prefill;
    sl_sim_worker *d = sl_sim_find(w->s, r->decode_worker);
    sl_msg done = {.type = SL_MSG_PREFILLED};
    done.prefilled = (sl_msg_prefilled){
        .rid = r->rid, .attempt = r->attempt, .cached_tokens = (uint32_t)j->prompt.start, .compute_us = 1};
    if (d)
        sl_sim_decode_commit(d, r->rid, r->attempt, (uint32_t)j->prompt.start);
    sl_sim_tell(w, &done);
    leave(j, false);
    turn(w);
}

static void finish(sl_sim_job *j)
{
    sl_sim *s = j->w->s;
    uint64_t at = j->w->prefill.link_until_ns > s->now_ns ? j->w->prefill.link_until_ns : s->now_ns;
    j->state = JOB_SHIPPING;
    j->prompt.ready = false;
    sl_sim_after(s, (double)(at - s->now_ns) + s->c->link.us * 1e3, on_shipped, j, 0);
}

/* ---- steps ---- */

void sl_sim_prefill_stepped(sl_sim_worker *w, uint64_t began_ns)
{
    sl_sim_prefill *p = &w->prefill;
    sl_pace_part part[MAX_ITEMS];
    double ns = (double)(w->s->now_ns - began_ns);
    int32_t n = 0;
    for (sl_sim_job *j = p->jobs, *next; j; j = next) {
        next = j->next;
        if (j->state != JOB_RUNNING || !j->take)
            continue;
        int32_t pos = j->prompt.pos, end = pos + j->take;
        part[n++] = (sl_pace_part){pos, end};
        ship(j, pos, end, began_ns);
        j->prompt.pos = end;
        p->tokens_done += (uint64_t)j->take;
        j->take = 0;
        sl_lease_publish(j->lease, j->m.prefill.tokens, end);
        if (end == length(j))
            finish(j);
    }
    if (n) /* else all of its prompts were aborted */
        p->tokens_per_s = sl_prompt_queue_measured(&p->queue, part, n, ns);
}

/* ---- the beginning ---- */

static void on_pulled(void *arg, uint64_t number)
{
    sl_sim_job *j = arg;
    (void)number;
    if (j->aborted) {
        free_job(j);
        return;
    }
    j->state = JOB_RUNNING;
    j->prompt.ready = true;
    sl_lease_publish(j->lease, j->m.prefill.tokens, j->prompt.start);
    turn(j->w);
}

/* False: there are no pages; some become free when another prompt ends. */
static bool start(sl_sim_job *j)
{
    sl_sim_worker *w = j->w;
    sl_sim *s = w->s;
    const sl_msg_prefill *r = &j->m.prefill;
    if (sl_store_lease(w->prefill.store, r->seed, r->tokens, length(j), &j->lease) != SL_OK)
        return false;
    int32_t theirs = (int32_t)r->matched_pages * PAGE;
    j->own = sl_lease_matched(j->lease) * PAGE;
    j->prompt.start = j->prompt.pos = theirs > j->own ? theirs : j->own;
    sl_prompt_queue_begin(&w->prefill.queue, &j->prompt);
    if (r->n_tokens == r->n_prompt) { /* else it was retracted, and counted before */
        s->out.prefill_cache += j->own > theirs ? j->own - theirs : 0;
        s->out.computed += length(j) - j->prompt.start;
        s->out.block_hits += j->prompt.start / s->block;
        s->out.blocks += (length(j) + s->block - 1) / s->block;
    }
    ship(j, 0, j->own, s->now_ns); /* cached rows that the decode worker does not have */
    if (theirs <= j->own) {
        j->state = JOB_RUNNING;
        j->prompt.ready = true;
        return true;
    }
    double ns =
        sl_sim_move_ns((theirs - j->own) * s->per_token * s->c->kv_bytes_per_token, s->c->link.gb_per_s);
    s->out.link_ns += ns;
    j->state = JOB_PULLING;
    sl_sim_after(s, ns + s->c->link.us * 1e3, on_pulled, j, 0);
    return true;
}

static void admit(sl_sim_worker *w)
{
    sl_sim_prefill *p = &w->prefill;
    bool pages = true;
    for (sl_sim_job *j = p->jobs; j && pages; j = j->next) {
        if (j->state == JOB_QUEUED && sl_prompt_queue_has_place(&p->queue, length(j)))
            pages = start(j);
    }
}

double sl_sim_prefill_step(sl_sim_worker *w)
{
    sl_sim *s = w->s;
    double ns = 0, k = s->per_token;
    admit(w);
    int32_t tokens = sl_prompt_queue_share(&w->prefill.queue, 0);
    for (const sl_queued_prompt *p = w->prefill.queue.first; tokens && p; p = p->next) {
        ((sl_sim_job *)p->owner)->take = p->take;
        if (p->take)
            ns += sl_sim_prefill_ns(s->c, tokens * k, p->take * k, p->pos * k);
    }
    s->out.prefill_ns += ns;
    return ns;
}

static void turn(sl_sim_worker *w)
{
    sl_sim_step(w);
    sl_sim_beat(w);
}

void sl_sim_prefill_begin(sl_sim_worker *w, sl_msg *m)
{
    sl_sim_prefill *p = &w->prefill;
    sl_sim_job *j = calloc(1, sizeof *j);
    SL_CHECK(j, "out of memory");
    *j = (sl_sim_job){.w = w, .m = *m, .prev = p->jobs_tail};
    j->prompt = (sl_queued_prompt){.arrived = ++p->arrivals, .tokens = length(j), .owner = j};
    *(j->prev ? &j->prev->next : &p->jobs) = j;
    p->jobs_tail = j;
    turn(w);
}

void sl_sim_prefill_abort(sl_sim_worker *w, const sl_msg_abort *a)
{
    sl_sim_job *j = w->prefill.jobs;
    sl_msg m = {.type = SL_MSG_DRAINED};
    m.id = (sl_msg_id){.rid = a->rid, .attempt = a->attempt};
    while (j && (j->m.prefill.rid != a->rid || j->m.prefill.attempt != a->attempt))
        j = j->next;
    if (!j)
        return;
    leave(j, j->state == JOB_PULLING || j->state == JOB_SHIPPING);
    sl_sim_tell(w, &m);
    turn(w);
}

/* ---- the worker ---- */

void sl_sim_prefill_load(const sl_sim_worker *w, sl_msg_load *out)
{
    const sl_sim_prefill *p = &w->prefill;
    sl_store_stats st;
    sl_store_stats_get(p->store, &st);
    for (const sl_sim_job *j = p->jobs; j; j = j->next) {
        out->running += j->state != JOB_QUEUED;
        out->waiting += j->state == JOB_QUEUED;
        int32_t theirs = (int32_t)j->m.prefill.matched_pages * PAGE;
        out->queued_tokens += (uint64_t)(length(j) - (j->prompt.pos > theirs ? j->prompt.pos : theirs));
    }
    out->free_pages = (uint32_t)st.free;
    out->cached_pages = (uint32_t)st.cached;
    out->total_pages = (uint32_t)st.total;
    out->tokens_done = p->tokens_done;
    out->prefill_rate = p->tokens_per_s;
}

sl_prompt_queue_opts sl_sim_prompt_opts(const sl_sim *s)
{
    const sl_config *cfg = s->o.cfg;
    sl_order_steps steps = sl_order_steps_for(
        cfg->prefill.max_step_ms, sl_chunk_most(cfg->prefill.chunk_tokens, true, 1), s->c->prefill.host);
    return (sl_prompt_queue_opts){.chunk_tokens = s->chunk_tokens,
                                  .max_prompts = cfg->prefill.max_requests,
                                  .max_step_ns = steps.max_ms * 1e6,
                                  .short_step_ns = steps.short_ms * 1e6,
                                  .min_step_tokens = steps.min_tokens > s->per_token
                                                         ? (int32_t)(steps.min_tokens / s->per_token)
                                                         : steps.min_tokens,
                                  .max_context = s->max_context,
                                  .guess_ns = steps.max_ms > 0 ? steps.max_ms * 1e6 / PAGE : 1};
}

sl_status sl_sim_prefill_open(sl_sim_worker *w, sl_err *err)
{
    sl_sim *s = w->s;
    const sl_config *cfg = s->o.cfg;
    double pages = (double)cfg->kvstore.bytes / s->page_bytes;
    sl_store_opts so = {.n_pages = pages < 1 << 29 ? (int32_t)pages : 1 << 29,
                        .prefix_cache = cfg->kvstore.share != SL_CFG_SHARE_NONE};
    sl_prompt_queue_opts q = sl_sim_prompt_opts(s);
    SL_TRY(sl_prompt_queue_open(&w->prefill.queue, &q, err));
    return sl_store_create(&so, &w->prefill.store, err);
}

void sl_sim_prefill_close(sl_sim_worker *w)
{
    while (w->prefill.jobs)
        leave(w->prefill.jobs, false);
    sl_prompt_queue_close(&w->prefill.queue);
    sl_store_destroy(w->prefill.store);
}
