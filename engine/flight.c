/*
 * Steps in flight; see engine.h. A step is submitted, completed (the host has waited for it, and knows its tokens) and
 * collected. A step is completed before the next one is submitted if the host chooses one of its tokens, because the
 * logits have one place; else when it is collected. A step that is open has no tokens yet, and its logits wait on the device:
 * what it may choose follows from a token of the step before. The pass runs meanwhile.
 *
 * Everything that the device reads or writes while the host continues has a place in the step's sl_flight. What the host
 * enqueues between two steps (a sequence is opened or spilled) is ordered by the stream.
 */
#include "engine/flight.h"

#include <stdlib.h>

#include "base/log.h"
#include "engine/blocks.h"
#include "engine/draft.h"
#include "engine/sampling.h"
#include "engine/states.h"

/* The end of the step that was collected last, by two clocks. */
typedef struct step_end {
    uint64_t ns;         /* by the device's; 0: no step was collected */
    uint64_t done_ns;    /* when the host knew */
    uint64_t took_ns;    /* by the device's */
    uint64_t waiting_ns; /* as ns, while a caller waits for the next step; else 0 */
    int64_t gap,
        before; /* the host's clock less the device's: the smallest value of this period and of the one before */
    int32_t n; /* steps of this period; 0: none in any */
} step_end;

struct sl_flights {
    sl_flight of[SL_STEPS_IN_FLIGHT]; /* in flight: n from first on */
    int32_t first, n;
    uint64_t *stamps_dev; /* [SL_STEPS_IN_FLIGHT][2] */
    step_end end;
};

static sl_status make_flight(sl_engine *e, sl_flight *f, sl_err *err)
{
    SL_TRY(sl_step_arrays_make(e, SL_MEM_HOST, &f->in, err));
    SL_TRY(sl_be_alloc(e->be, SL_MEM_HOST, 2 * sizeof *f->stamps, (void **)&f->stamps, err));
    SL_TRY(sl_event_create(e->be, &f->end, err));
    if (!e->sync)
        SL_TRY(sl_tables_make(e, SL_MEM_HOST, &f->tables, err));
    return sl_chosen_make(e, &f->chosen, err);
}

sl_status sl_flights_init(sl_engine *e, sl_err *err)
{
    struct sl_flights *all = e->flights = calloc(1, sizeof *all);
    if (!all)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    SL_TRY(sl_dmem_alloc(e->mem, SL_STEPS_IN_FLIGHT * 2 * sizeof *all->stamps_dev, (void **)&all->stamps_dev,
                         err));
    for (int i = 0; i < SL_STEPS_IN_FLIGHT; i++) {
        all->of[i].stamps_dev = all->stamps_dev + 2 * i;
        SL_TRY(make_flight(e, &all->of[i], err));
    }
    return SL_OK;
}

void sl_flights_fini(sl_engine *e)
{
    struct sl_flights *all = e->flights;
    for (int i = 0; all && i < SL_STEPS_IN_FLIGHT; i++) {
        sl_flight *f = &all->of[i];
        sl_be_free(e->be, SL_MEM_HOST, f->in.ids);
        sl_be_free(e->be, SL_MEM_HOST, f->stamps);
        sl_be_free(e->be, SL_MEM_HOST, f->tables.host_pages);
        sl_event_destroy(f->end);
        sl_chosen_free(e, &f->chosen);
    }
    if (all)
        sl_be_free(e->be, SL_MEM_DEVICE, all->stamps_dev);
    free(all);
}

/* The i-th step in flight, the oldest first. */
static sl_flight *flight_at(sl_engine *e, int32_t i)
{
    return &e->flights->of[(e->flights->first + i) % SL_STEPS_IN_FLIGHT];
}

sl_flight *sl_flights_spare(sl_engine *e)
{
    SL_CHECK(e->flights->n == 0, "%d steps are in flight", e->flights->n);
    return flight_at(e, 0);
}

int32_t sl_engine_in_flight(const sl_engine *e)
{
    return e->flights->n;
}

bool sl_engine_overlaps(const sl_engine *e)
{
    return !e->sync;
}

uint64_t sl_engine_step_ns(const sl_engine *e)
{
    return e->flights->end.took_ns;
}

bool sl_engine_wants_rest(const sl_engine *e)
{
    return sl_graphs_is_due(e->graphs) && e->flights->n > 0;
}

void sl_engine_rest(sl_engine *e)
{
    e->flights->end.waiting_ns = 0;
}

/* ---- numbers ---- */

enum { GAP_STEPS = 256 };

/* The clocks drift, so what was seen long ago counts no more. */
static void see_end(step_end *x, uint64_t ns, uint64_t now)
{
    const int64_t gap = (int64_t)(now - ns);
    if (x->n == 0)
        x->gap = x->before = gap;
    x->gap = gap < x->gap ? gap : x->gap;
    if (++x->n > GAP_STEPS) {
        x->before = x->gap;
        x->gap = gap;
        x->n = 1;
    }
    x->ns = ns;
    x->done_ns = now;
}

uint64_t sl_engine_ended_ns(const sl_engine *e)
{
    const step_end *x = &e->flights->end;
    const int64_t gap = x->gap < x->before ? x->gap : x->before;
    return x->ns ? (uint64_t)((int64_t)x->ns + (e->sync ? 0 : gap)) : 0;
}

/* A step takes from when it was submitted, or from when the one before was known to have ended, if that is later. */
static void count_step(sl_engine *e, const sl_flight *f, uint64_t now)
{
    uint64_t ns = now - (f->began_ns > e->flights->end.done_ns ? f->began_ns : e->flights->end.done_ns);
    uint64_t host = ns > f->waited_ns ? ns - f->waited_ns : 0;
    if (e->flights->end.waiting_ns && f->stamps[0] > e->flights->end.waiting_ns)
        e->stats.idle_ns += f->stamps[0] - e->flights->end.waiting_ns;
    e->flights->end.waiting_ns = f->stamps[1];
    e->flights->end.took_ns = f->stamps[1] > f->stamps[0] ? f->stamps[1] - f->stamps[0] : 0;
    see_end(&e->flights->end, f->stamps[1], now);
    if (f->n_items == 0)
        return;
    e->stats.steps++;
    e->stats.tokens += (uint64_t)f->p.own;
    e->stats.step_ns += ns;
    e->stats.host_ns += host;
    if (f->p.shape.tokens == 0)
        return;
    e->stats.decode_steps++;
    e->stats.decode_ns += ns;
    e->stats.decode_host_ns += host;
}

/* ---- results ---- */

/* Chooses the tokens of a step that is open. */
static sl_status choose(sl_engine *e, sl_flight *f, sl_err *err)
{
    SL_TRY(sl_step_results(e, f, err));
    f->open = false;
    sl_choices_submitted(e, f);
    return SL_OK;
}

/* Waits for the oldest step that is not complete. Its status stays with it. */
static sl_status complete(sl_engine *e, sl_flight *f)
{
    if (f->done)
        return f->st;
    uint64_t t0 = sl_now_ns();
    bool last = f == flight_at(e, e->flights->n - 1);
    f->st = f->open ? choose(e, f, &f->err) : SL_OK;
    if (f->st == SL_OK)
        f->st = last ? sl_be_sync(e->be, &f->err) : sl_event_wait(f->end, &f->err);
    f->done = true;
    f->waited_ns = sl_now_ns() - t0;
    if (f->st == SL_OK) {
        count_step(e, f, sl_now_ns());
        sl_choices_finish(e, f);
    }
    return f->st;
}

/* The rows of logits of each item, which are those of its last tokens. */
static void give_logits(sl_engine *e, sl_flight *f)
{
    const sl_step_plan *p = &f->p;
    int32_t g = 0;
    for (int32_t i = 0; i < f->n_items; i++) {
        sl_step_item *it = &f->items[i];
        int32_t row = p->shape.tokens ? i * p->shape.per + it->n_tokens - it->want_logits
                                      : g + sl_item_rows(it) - it->want_logits;
        g += sl_item_rows(it);
        it->logits = it->want_logits ? e->logits_host + (int64_t)row * e->cfg->vocab_size : NULL;
    }
}

/* Takes back a step that was submitted. */
static void undo(sl_engine *e, sl_flight *f)
{
    for (int32_t i = 0; i < f->n_items; i++) {
        sl_seq *s = f->items[i].seq;
        e->runs[i] = (sl_coord_run){.seq = s->row, .n = f->items[i].n_tokens};
        s->len -= f->items[i].n_tokens;
        s->list.bytes = 0;
        s->chosen_at = -1;
        s->flights--;
        sl_states_failed(s);
    }
    sl_coord_step_undo(e->coord, e->runs, f->n_items);
    f->chosen.n = 0;
    f->open = false;
}

/* After a failure: nothing of these steps runs any more, and no sequence has their tokens. */
static void undo_all(sl_engine *e)
{
    (void)sl_be_sync(e->be, NULL);
    while (e->flights->n > 0) {
        undo(e, flight_at(e, e->flights->n - 1));
        e->flights->n--;
    }
    sl_drafts_forget(e);
    e->flights->end.waiting_ns = 0;
}

sl_status sl_engine_collect(sl_engine *e, sl_err *err)
{
    if (e->flights->n == 0)
        return sl_fail(err, SL_ERR_INVALID, "collect: no step is in flight");
    sl_flight *f = flight_at(e, 0);
    sl_status st = complete(e, f);
    if (st != SL_OK) {
        if (err)
            *err = f->err;
        undo_all(e);
        return st;
    }
    give_logits(e, f);
    for (int32_t i = 0; i < f->n_items; i++)
        f->items[i].seq->flights--;
    e->flights->first = (e->flights->first + 1) % SL_STEPS_IN_FLIGHT;
    e->flights->n--;
    return SL_OK;
}

sl_status sl_engine_choose(sl_engine *e, sl_err *err)
{
    sl_flight *f = e->flights->n > 0 ? flight_at(e, e->flights->n - 1) : NULL;
    if (!f || !f->open)
        return SL_OK;
    if (e->flights->n > 1)
        return sl_fail(err, SL_ERR_INVALID, "choose: the step before was not collected");
    sl_status st = choose(e, f, err);
    if (st != SL_OK)
        undo_all(e);
    return st;
}

/* ---- a step begins ---- */

/* The step before must be collected, or completed, before its logits are written over. */
static sl_status finish_logits(sl_engine *e, sl_err *err)
{
    if (e->flights->n == SL_STEPS_IN_FLIGHT)
        return sl_fail(err, SL_ERR_INVALID, "step: %d steps are in flight", e->flights->n);
    if (e->flights->n == 0)
        return SL_OK;
    sl_flight *before = flight_at(e, e->flights->n - 1);
    if (before->open)
        return sl_fail(err, SL_ERR_INVALID, "step: the tokens of the step before were not chosen");
    if (before->p.rows > 0)
        return sl_fail(err, SL_ERR_INVALID, "step: the logits of the step before were not collected");
    if (before->chosen.n_host > 0)
        (void)complete(e, before); /* collect reports its failure */
    return SL_OK;
}

/* Whether what a step may choose follows from a token of the step before. */
static bool waits_for_token(const sl_step_item *items, int32_t n_items)
{
    for (int32_t i = 0; i < n_items; i++)
        if (items[i].follows && items[i].sample && items[i].sample->mask)
            return true;
    return false;
}

/* Enqueues the step. A shape that is new is captured, which needs a device without work: when its tokens were collected, in a group
 * at once, because all ranks do it in the same step. */
static sl_status run(sl_engine *e, sl_flight *f, const sl_step_hooks *hooks, sl_err *err)
{
    bool fresh;
    sl_reports_hooks(e->reports, hooks);
    sl_status st = sl_step_run(e, f, &fresh, err);
    sl_reports_hooks(e->reports, NULL);
    const bool group = sl_agree_comm(e->agree) != NULL;
    if (st == SL_OK && fresh && !group)
        sl_graphs_want(e->graphs, &f->p.shape);
    if (st == SL_OK && (!fresh || !group))
        return SL_OK;
    for (int32_t i = 0; i < e->flights->n; i++) /* its failure is its own */
        (void)complete(e, flight_at(e, i));
    uint64_t t0 = sl_now_ns();
    sl_status done = sl_be_sync(e->be, st == SL_OK ? err : NULL);
    f->waited_ns += sl_now_ns() - t0;
    if (st == SL_OK && done == SL_OK)
        sl_step_capture(e, f);
    return st != SL_OK ? st : done;
}

/* *begun: whether the ranks of the group have met for this step. */
static sl_status submit(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                        bool *begun, sl_err *err)
{
    SL_TRY(finish_logits(e, err));
    sl_flight *f = flight_at(e, e->flights->n);
    if (e->flights->n == 0)
        sl_step_capture_due(e, f);
    f->items = items, f->n_items = n_items;
    f->began_ns = sl_now_ns(), f->waited_ns = 0;
    f->done = false;
    f->open = waits_for_token(items, n_items);
    f->chosen.n = f->chosen.n_host = 0;
    SL_TRY(sl_step_measure(e, f, err));
    SL_TRY(sl_blocks_step(e, err));
    SL_TRY(sl_coord_step_begin(e->coord, e->runs, n_items, err));
    *begun = true;
    sl_status st = sl_agree_on_step(e->agree, f->p.tokens, err);
    if (st != SL_OK)
        goto abort_step;
    sl_step_shape_of(e, f, hooks);
    st = run(e, f, hooks, err);
    for (int32_t i = 0; i < n_items && st != SL_OK; i++)
        sl_states_failed(items[i].seq);
    if (st != SL_OK)
        goto abort_step;
    sl_coord_step_end(e->coord);
    for (int32_t i = 0; i < n_items; i++) {
        items[i].seq->len += items[i].n_tokens;
        items[i].seq->flights++;
        sl_states_stepped(items[i].seq, items[i].n_tokens);
    }
    sl_choices_stepped(e);
    if (!f->open)
        sl_choices_submitted(e, f);
    e->flights->n++;
    return SL_OK;
abort_step:
    sl_choices_abort(f);
    sl_drafts_forget(e);
    sl_coord_step_abort(e->coord);
    return st;
}

sl_status sl_engine_submit(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                           sl_err *err)
{
    bool begun = false;
    if (sl_agree_comm(e->agree))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "submit: the steps of a group are those of all ranks");
    return submit(e, items, n_items, hooks, &begun, err);
}

static sl_status step(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                      bool *begun, sl_err *err)
{
    SL_TRY(submit(e, items, n_items, hooks, begun, err));
    return sl_engine_collect(e, err);
}

sl_status sl_engine_step(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                         sl_err *err)
{
    sl_comm *comm = sl_agree_comm(e->agree);
    bool begun = false;
    if (e->flights->n > 0)
        return sl_fail(err, SL_ERR_INVALID, "step: %d steps are in flight", e->flights->n);
    sl_status st = comm && e->drafts
                       ? sl_drafts_round(e, sl_flights_spare(e), hooks ? hooks->drafts : NULL, &begun, err)
                       : SL_OK;
    if (st == SL_OK)
        st = step(e, items, n_items, hooks, &begun, err);
    if (st == SL_OK || !comm)
        return st;
    if (!begun)
        (void)step(e, NULL, 0, NULL, &begun, NULL); /* the other ranks wait for this one */
    else if (sl_comm_state(comm, NULL) == SL_OK)
        sl_comm_abort(comm); /* this rank will not come to the exchanges of this step */
    return st;
}

sl_status sl_engine_draft(sl_engine *e, sl_draft_item *items, int32_t n_items, sl_err *err)
{
    const bool group = sl_agree_comm(e->agree) != NULL;
    if (!e->drafts || group)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "draft: %s",
                       group ? "the ranks of a group draft with their steps"
                             : "the model's MTP layer is not loaded");
    if (e->flights->n > 0)
        return sl_fail(err, SL_ERR_INVALID, "draft: %d steps are in flight", e->flights->n);
    return sl_drafts_run(e, sl_flights_spare(e), items, n_items, err);
}

void sl_engine_set_comm(sl_engine *e, sl_comm *comm)
{
    SL_CHECK(e->flights->n == 0, "a group changes with %d steps in flight", e->flights->n);
    sl_graphs_clear(e->graphs);
    sl_model_set_comm(e->model, comm);
    sl_agree_set_comm(e->agree, comm);
}

void sl_engine_set_flags(sl_engine *e, uint32_t flags)
{
    sl_agree_set_flags(e->agree, flags);
}

sl_ep_load sl_engine_expert_load(const sl_engine *e)
{
    return sl_model_expert_load(e->model);
}

const sl_step_share *sl_engine_shares(const sl_engine *e, uint64_t *steps)
{
    return sl_agree_shares(e->agree, steps);
}
