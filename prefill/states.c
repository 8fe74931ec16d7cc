/*
 * Snapshots of a prompt's states (kvstore/snapshot.h), for models whose layers keep states. Engine thread.
 *
 * A prompt begins after the last snapshot that this worker's prefix tree has, or after the matched pages of the decode worker,
 * whose snapshot is pulled with them; what follows is computed, also where rows are cached. When the pulled snapshot is missing or
 * damaged the prompt begins where its own one is, and nothing that was pulled has been published by then. Chunks end where
 * snapshots are made (sl_snapshot_stop()). Those after full pages enter the tree at the end, when the prompt was verified and its
 * shipment is over. The snapshot after all tokens is for the decode worker alone.
 */
#include <stdlib.h>
#include <string.h>

#include "prefill/prefill_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

static sl_key key_of(const sl_prefill_job *j, int32_t n)
{
    return sl_snapshot_key(j->msg->seed, j->msg->tokens, n);
}

/* Pages for a snapshot after n tokens. */
static sl_status add_room(sl_prefill *p, sl_prefill_job *j, int32_t n)
{
    sl_prefill_states *x = &j->engine.states;
    sl_prefill_saved *list = realloc(x->list, (size_t)(x->n + 1) * sizeof *list);
    if (!list)
        return SL_ERR_NO_MEMORY;
    x->list = list;
    SL_TRY(sl_snapshot_room(p->role.store, sl_prefill_snapshot(p), 0, j->msg->seed, &list[x->n].lease));
    list[x->n].tokens = n;
    list[x->n++].made = false;
    return SL_OK;
}

static sl_prefill_saved *at(const sl_prefill_job *j, int32_t n)
{
    const sl_prefill_states *x = &j->engine.states;
    for (int32_t i = 0; i < x->n; i++)
        if (x->list[i].tokens == n)
            return &x->list[i];
    return NULL;
}

sl_status sl_prefill_states_lease(sl_prefill *p, sl_prefill_job *j, int32_t shared, int32_t *n_match)
{
    const sl_msg_prefill *r = j->msg;
    sl_prefill_states *x = &j->engine.states;
    *n_match = shared;
    if (!sl_prefill_snapshot(p))
        return SL_OK;
    int32_t cached = sl_snapshot_find(p->role.store, p->geo, r->seed, r->tokens, shared);
    sl_status st = SL_OK;
    if (cached)
        st = sl_snapshot_lease(p->role.store, sl_prefill_snapshot(p), 0, r->seed, r->tokens, cached,
                               &x->prefix);
    if (st == SL_OK)
        st = add_room(p, j, (int32_t)r->n_tokens);
    if (st == SL_OK && j->at.kept >= 0 && j->at.kept_tokens != cached)
        st = add_room(p, j, j->at.kept_tokens);
    if (st != SL_OK)
        sl_prefill_states_release(j);
    *n_match = cached + 1;
    return st;
}

/* The last pages of a lease. */
static const int32_t *last_pages(const sl_lease *l, int32_t n)
{
    return sl_lease_pages(l) + sl_lease_n_pages(l) - n;
}

void sl_prefill_states_place(const sl_prefill *p, sl_prefill_job *j)
{
    const size_t bytes = (size_t)sl_prefill_snapshot(p) * sizeof *j->own_pages;
    if (!sl_prefill_snapshot(p))
        return;
    const int32_t *end = sl_lease_pages(at(j, (int32_t)j->msg->n_tokens)->lease);
    memcpy(j->own_pages + j->at.end, end, bytes);
    if (j->at.prefix >= 0) /* it is read before the one after all tokens is made */
        memcpy(j->own_pages + j->at.prefix, end, bytes);
    if (j->at.kept < 0)
        return;
    const sl_prefill_saved *kept = at(j, j->at.kept_tokens);
    memcpy(j->own_pages + j->at.kept,
           kept ? sl_lease_pages(kept->lease) : last_pages(j->engine.states.prefix, sl_prefill_snapshot(p)),
           bytes);
}

int32_t sl_prefill_states_stop(const sl_prefill *p, const sl_prefill_job *j)
{
    return sl_snapshot_stop(sl_prefill_snapshot(p), (int32_t)j->msg->n_tokens, j->engine.prompt.pos);
}

void sl_prefill_states_own(const sl_prefill *p, sl_prefill_job *j)
{
    const int32_t own = j->own_matched;
    j->engine.states.pulled = false;
    j->engine.have = j->engine.sealed = own;
    j->engine.prompt.start = j->engine.prompt.pos = own * PAGE;
    j->engine.prompt.stop = sl_prefill_states_stop(p, j);
}

void sl_prefill_states_pulled(const sl_prefill *p, sl_prefill_job *j)
{
    if (sl_prefill_snapshot(p) && (j->engine.have < j->pull_end || !j->engine.states.pulled))
        sl_prefill_states_own(p, j);
}

sl_status sl_prefill_states_restore(sl_prefill *p, sl_prefill_job *j, sl_err *err)
{
    const sl_runner *r = p->o.role.runner;
    sl_prefill_states *x = &j->engine.states;
    const int32_t pos = j->engine.prompt.pos;
    if (!sl_prefill_snapshot(p) || pos == 0)
        return SL_OK;
    const int32_t *pages =
        x->pulled ? j->own_pages + j->at.prefix : last_pages(x->prefix, sl_prefill_snapshot(p));
    const sl_status st = r->restore(r->impl, j->engine.seq, key_of(j, pos), pages, err);
    if (st == SL_OK)
        sl_counter_add(p->c.snapshots[SL_SNAPSHOT_RESTORED], 1);
    if (st != SL_ERR_CORRUPT)
        return st;
    sl_counter_add(p->c.snapshots[SL_SNAPSHOT_DAMAGED], 1);
    sl_log(SL_LOG_WARN, "prefill", "snapshot_damaged", "rid=%016lx attempt=%u tokens=%d pulled=%d", j->rid,
           j->attempt, pos, x->pulled);
    if (!x->pulled)
        sl_lease_drop(x->prefix, j->own_matched);
    return st;
}

/* A snapshot between two chunks for which there is no room is left out. */
static sl_prefill_saved *room_for(sl_prefill *p, sl_prefill_job *j, int32_t n)
{
    sl_prefill_saved *s = at(j, n);
    if (s || n % PAGE != 0 || !p->o.role.prefix_cache || add_room(p, j, n) != SL_OK)
        return s;
    return at(j, n);
}

sl_status sl_prefill_states_save(sl_prefill *p, sl_prefill_job *j, sl_err *err)
{
    const sl_runner *r = p->o.role.runner;
    const int32_t n = j->engine.prompt.pos;
    if (!sl_prefill_snapshot(p) || n != j->engine.prompt.stop)
        return SL_OK;
    sl_prefill_saved *s = room_for(p, j, n);
    if (s) {
        SL_TRY(r->save(r->impl, j->engine.seq, key_of(j, n), sl_lease_pages(s->lease), err));
        s->made = true;
        sl_counter_add(p->c.snapshots[SL_SNAPSHOT_MADE], 1);
    }
    j->engine.prompt.stop = sl_prefill_states_stop(p, j);
    return SL_OK;
}

void sl_prefill_states_end(sl_prefill *p, sl_prefill_job *j)
{
    sl_prefill_states *x = &j->engine.states;
    const int32_t public =
        sl_runner_public(p->o.role.runner, (int32_t)j->msg->n_prompt, j->engine.prompt.pos);
    for (int32_t i = 0; x->verified && i < x->n; i++) {
        sl_prefill_saved *s = &x->list[i];
        if (!s->made || s->tokens % PAGE != 0 || s->tokens > public)
            continue;
        if (sl_snapshot_publish(s->lease, j->engine.lease, j->msg->tokens, s->tokens))
            sl_counter_add(p->c.snapshots[SL_SNAPSHOT_KEPT], 1);
        s->lease = NULL;
    }
    sl_prefill_states_release(j);
}

void sl_prefill_states_release(sl_prefill_job *j)
{
    sl_prefill_states *x = &j->engine.states;
    for (int32_t i = 0; i < x->n; i++)
        sl_lease_release(x->list[i].lease, false);
    free(x->list);
    sl_lease_release(x->prefix, true);
    *x = (sl_prefill_states){0};
}
