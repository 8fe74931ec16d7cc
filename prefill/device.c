/*
 * Sequences that are opened while pages of their prefix still arrive, so that the device copies the first pages while the network,
 * or the storage tier of the decode worker, delivers the next ones. Engine thread, which only enqueues the copies.
 *
 * Pages are moved in runs of whole pages with all their layers, not layer by layer: they arrive so (a record of a tier, and the
 * checksums of a page, cover all layers), and a run that was compared is a prefix that stays valid whatever happens to the rest. A
 * layer of all pages would be complete only when the last page is. In both layouts a run of pages is one strided copy for each
 * layer and plane.
 *
 * Only pages that were compared are moved, in their order, so the length of such a sequence is always a right prefix.
 * If it ends early (damage, loss, abort), it is continued from its length or closed. Device memory is not taken from
 * any request: while a request waits for it nothing is opened early, and prefetches give theirs back first.
 */
#include "prefill/prefill_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

void sl_prefill_close_seq(sl_prefill *p, sl_prefill_job *j)
{
    if (j->engine.seq)
        p->o.role.runner->close(p->o.role.runner->impl, j->engine.seq);
    j->engine.seq = NULL;
}

/* Opens the sequence, or gives it the pages that it lacks, and moves the rows of the first n_tokens tokens. After an error there is
 * none. */
static sl_status extend(sl_prefill *p, sl_prefill_job *j, int32_t n_pages, int32_t n_tokens, sl_err *err)
{
    const sl_runner *r = p->o.role.runner;
    int32_t had = j->engine.seq_pages;
    if (!j->engine.seq) {
        j->engine.seq_pages = n_pages;
        return r->open(r->impl, SL_RESIDENT, j->own_pages, n_pages, n_tokens, &j->engine.seq, err);
    }
    sl_status st = SL_OK;
    if (n_pages > had)
        st = r->add_pages(r->impl, j->engine.seq, j->own_pages + had, n_pages - had, err);
    if (st == SL_OK && n_tokens > r->len(j->engine.seq))
        st = r->load(r->impl, j->engine.seq, n_tokens, err);
    if (st != SL_OK)
        sl_prefill_close_seq(p, j);
    else
        j->engine.seq_pages = n_pages;
    return st;
}

static int32_t moved(const sl_prefill *p, const sl_prefill_job *j)
{
    return j->engine.seq ? p->o.role.runner->len(j->engine.seq) : 0;
}

/* With states the sequence is opened where its snapshot is, which is known last. */
static bool moves_early(const sl_prefill *p)
{
    return p->o.role.runner->load && !sl_prefill_snapshot(p);
}

static void extend_early(sl_prefill *p, sl_prefill_job *j, int32_t n_pages, int32_t end)
{
    int32_t before = moved(p, j);
    if (extend(p, j, n_pages, end * PAGE, NULL) == SL_OK)
        sl_counter_add(p->c.moved_early, (uint64_t)(end * PAGE - before));
}

void sl_prefill_open_early(sl_prefill *p, sl_prefill_job *j)
{
    if (moves_early(p) && !(j->engine.seq && j->engine.seq_pages == j->at.pages))
        extend_early(p, j, j->at.pages, j->engine.have);
}

static bool request_waits(const sl_prefill *p)
{
    const sl_prefill_job *j = p->jobs;
    while (j && j->engine.state != JOB_READY)
        j = j->engine.next;
    return j != NULL;
}

void sl_prefill_move_early(sl_prefill *p, sl_prefill_job *j, int32_t end)
{
    if (!moves_early(p) || (j->prefetch ? request_waits(p) : !j->engine.seq))
        return;
    extend_early(p, j, j->prefetch ? end : j->engine.seq_pages, end);
}

static sl_status open_seq(sl_prefill *p, sl_prefill_job *j, sl_err *err)
{
    int32_t before = moved(p, j);
    SL_TRY(extend(p, j, j->at.pages, j->engine.prompt.pos, err));
    sl_status st = sl_runner_prompt(p->o.role.runner, j->engine.seq, (int32_t)j->msg->n_prompt, err);
    if (st == SL_OK)
        st = sl_prefill_states_restore(p, j, err);
    if (st != SL_OK) {
        sl_prefill_close_seq(p, j);
        return st;
    }
    sl_counter_add(p->c.moved_late, (uint64_t)(j->engine.prompt.pos - before));
    return SL_OK;
}

sl_status sl_prefill_open(sl_prefill *p, sl_prefill_job *j, sl_err *err)
{
    sl_status st = open_seq(p, j, err);
    if (st != SL_ERR_CORRUPT || !j->engine.states.pulled)
        return st;
    sl_prefill_states_own(p, j);
    return open_seq(p, j, err);
}
