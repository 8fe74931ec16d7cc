/*
 * Snapshots of states (kvstore/snapshot.h): what a request holds of them besides the pages of its tokens.
 *
 *   prefix   pinned in the prefix tree: after it the prompt begins. The writer reads it, or the sequence of a prompt that is
 *            computed here is restored from it
 *   kept     written by the writer, or made here when the prompt has come so far: enters the tree with the pages before it
 *   end      the same after all tokens: the sequence that decodes is restored from it, unless it is that of the prompt
 *
 * All of them end when the request joins the batch; from then on there are those of answers.c. A request that gives way, or
 * whose worker dies, begins again after the last snapshot of its prefix, and what follows is computed again. A prefix without a
 * snapshot counts as not cached, in what is granted and in what a router is told.
 */
#include <stdlib.h>
#include <string.h>

#include "decode/run/run_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

static const sl_msg_reserve *reserve_of(const sl_ticket *t)
{
    return &sl_run_of(t)->m->msg.reserve;
}

static int32_t shared_tokens(const sl_run *r, const sl_ticket *t)
{
    return sl_scores_shared(&t->sampling, sl_runner_shared(r->runner, t->n_prompt, t->n_tokens));
}

int32_t sl_run_match(const sl_run *r, const sl_ticket *t)
{
    const int32_t n = shared_tokens(r, t);
    const sl_key seed = reserve_of(t)->seed;
    if (r->snapshot)
        return sl_snapshot_find(r->role->store, r->geo, seed, t->tokens, n) / PAGE;
    return sl_store_match(r->role->store, seed, t->tokens, n);
}

int32_t sl_run_missing(const sl_run *r, const sl_ticket *t)
{
    const int32_t matched = sl_run_match(r, t);
    return sl_snapshot_place(r->snapshot, t->n_tokens, matched).written - matched;
}

/* Those of t before it has produced a token. */
static sl_snapshot_places places(const sl_run *r, const sl_ticket *t)
{
    return sl_snapshot_place(r->snapshot, t->n_tokens, t->matched);
}

sl_status sl_run_states_lease(sl_run *r, sl_ticket *t, int32_t *n_match)
{
    const sl_msg_reserve *m = reserve_of(t);
    sl_run_states *x = &sl_run_of(t)->states;
    sl_store *store = r->role->store;
    *n_match = shared_tokens(r, t);
    if (!r->snapshot)
        return SL_OK;
    const int32_t matched = sl_run_match(r, t);
    const sl_snapshot_places at = sl_snapshot_place(r->snapshot, t->n_tokens, matched);
    sl_status st = SL_OK;
    if (matched)
        st = sl_snapshot_lease(store, r->snapshot, m->tenant, m->seed, t->tokens, matched * PAGE, &x->prefix);
    if (st == SL_OK)
        st = sl_snapshot_room(store, r->snapshot, m->tenant, m->seed, &x->end);
    if (st == SL_OK && at.kept >= 0)
        st = sl_snapshot_room(store, r->snapshot, m->tenant, m->seed, &x->kept);
    x->kept_tokens = at.kept_tokens;
    if (st != SL_OK)
        sl_run_states_release(t);
    *n_match = matched * PAGE + 1;
    return st;
}

void sl_run_states_release(sl_ticket *t)
{
    sl_run_states *x = &sl_run_of(t)->states;
    sl_lease_release(x->end, false);
    sl_lease_release(x->kept, false);
    sl_lease_release(x->prefix, true);
    *x = (sl_run_states){0};
}

/* The last pages of a lease. */
static const int32_t *last_pages(const sl_run *r, const sl_lease *l)
{
    return sl_lease_pages(l) + sl_lease_n_pages(l) - r->snapshot;
}

int32_t *sl_run_states_list(const sl_run *r, const sl_ticket *t, int32_t *n)
{
    const sl_run_ticket *x = sl_run_of(t);
    const sl_snapshot_places at = places(r, t);
    const struct {
        int32_t at;
        const sl_lease *lease;
    } part[] = {{at.end, x->states.end}, {at.kept, x->states.kept}, {at.prefix, x->states.prefix}};
    int32_t *list = malloc((size_t)at.n * sizeof *list);
    *n = at.n;
    if (!list)
        return NULL;
    memcpy(list, sl_lease_pages(x->lease), (size_t)at.pages * sizeof *list);
    for (size_t i = 0; i < SL_COUNT(part); i++)
        if (part[i].at >= 0)
            memcpy(list + part[i].at, last_pages(r, part[i].lease), (size_t)r->snapshot * sizeof *list);
    return list;
}

/* Those that are checked together with pages [first, first + n) of the tokens. */
static const sl_lease *checked_with(const sl_ticket *t, sl_ticket_job job, int32_t end)
{
    const sl_run_states *x = &sl_run_of(t)->states;
    if (job == SL_JOB_VERIFY && x->prefix && end == t->matched)
        return x->prefix;
    if (job == SL_JOB_SEAL && x->kept && x->kept_made && end == x->kept_tokens / PAGE)
        return x->kept;
    return NULL;
}

sl_check *sl_run_states_check(const sl_run *r, const sl_ticket *t, sl_ticket_job job, sl_check_what what,
                              int32_t first, int32_t n)
{
    void *owner = (void *)(uintptr_t)t->number;
    const sl_lease *lease = sl_run_of(t)->lease, *with = checked_with(t, job, first + n);
    if (!with && (job != SL_JOB_COMPARE || !r->snapshot))
        return sl_check_new(what, sl_lease_pages(lease) + first, n, owner);
    int32_t all;
    int32_t *list = sl_run_states_list(r, t, &all);
    sl_check *k = NULL;
    if (list && with) { /* there is room in the list: it has more pages than these */
        memcpy(list + first + n, last_pages(r, with), (size_t)r->snapshot * sizeof *list);
        k = sl_check_new(what, list + first, n + r->snapshot, owner);
    } else if (list) {
        k = sl_check_new(what, list + first, n, owner);
        if (k)
            k->whole = places(r, t).written - places(r, t).pages;
    }
    free(list);
    return k;
}

void sl_run_states_publish(sl_run *r, sl_ticket *t, int32_t rows)
{
    sl_run_states *x = &sl_run_of(t)->states;
    const int32_t public = sl_runner_public(r->runner, t->n_prompt, rows);
    if (!x->kept || (!t->writer && !x->kept_made) || x->kept_tokens > public)
        return;
    r->st.snapshots[SL_SNAPSHOT_KEPT] +=
        sl_snapshot_publish(x->kept, sl_run_of(t)->lease, t->tokens, x->kept_tokens);
    x->kept = NULL;
}

int32_t sl_run_states_stop(const sl_run *r, const sl_ticket *t, int32_t pos)
{
    const sl_run_states *x = &sl_run_of(t)->states;
    return r->snapshot && pos < x->kept_tokens ? x->kept_tokens : t->n_tokens;
}

sl_status sl_run_states_save(sl_run *r, sl_ticket *t, int32_t n, sl_err *err)
{
    sl_run_ticket *x = sl_run_of(t);
    const sl_lease *l = n == t->n_tokens ? x->states.end : n == x->states.kept_tokens ? x->states.kept : NULL;
    if (!l)
        return SL_OK;
    const sl_key key = sl_snapshot_key(reserve_of(t)->seed, t->tokens, n);
    SL_TRY(r->runner->save(r->runner->impl, x->seq, key, sl_lease_pages(l), err));
    x->states.kept_made |= l == x->states.kept;
    r->st.snapshots[SL_SNAPSHOT_MADE]++;
    return SL_OK;
}

static sl_status restore(sl_run *r, const sl_ticket *t, int32_t n, const sl_lease *l, sl_err *err)
{
    const sl_key key = sl_snapshot_key(reserve_of(t)->seed, t->tokens, n);
    const sl_status st = r->runner->restore(r->runner->impl, sl_run_of(t)->seq, key, last_pages(r, l), err);
    r->st.snapshots[SL_SNAPSHOT_RESTORED] += st == SL_OK;
    r->st.snapshots[SL_SNAPSHOT_DAMAGED] += st == SL_ERR_CORRUPT;
    return st;
}

sl_status sl_run_states_begin(sl_run *r, sl_ticket *t, sl_err *err)
{
    const sl_run_states *x = &sl_run_of(t)->states;
    if (!x->prefix)
        return SL_OK;
    const sl_status st = restore(r, t, t->matched * PAGE, x->prefix, err);
    if (st == SL_ERR_CORRUPT)
        sl_lease_drop(x->prefix, t->matched);
    return st;
}

sl_status sl_run_states_resume(sl_run *r, sl_ticket *t, sl_err *err)
{
    return r->snapshot ? restore(r, t, t->n_tokens - 1, sl_run_of(t)->states.end, err) : SL_OK;
}
