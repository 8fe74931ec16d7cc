/*
 * Drafts in the steps of the batch: before a step, the model's MTP layer drafts tokens for the requests that are in it, whose
 * items then append their last token and the drafts; after it, the drafts that the model has chosen itself stand and the rest is taken
 * back. The stream of a request is the same with drafts and without. How many are drafted: draft_length.h.
 *
 * A request gets no drafts while it has a constraint, whose mask follows from the token before, at the end of its last page
 * (the next one is taken when it is needed), and at the limits of its length. With drafts, one step is in flight at a time. The ranks of a
 * group draft when the step of all ranks begins (sl_step_hooks.drafts).
 */
#include <stdlib.h>
#include <string.h>

#include "decode/run/run_impl.h"
#include "kernels/synth.h"

enum {
    DRAWN_SEED = 20262,
    MOVED_STEPS = 8, /* after which the runner is asked what they moved */
};

/* What an item with drafts appends, and its request's output with the drafts after it, as the histories of its tokens. */
typedef struct sl_run_drafted {
    int32_t ids[1 + SL_DRAFTS_MAX];
    int32_t *output; /* owned */
    size_t room;
} sl_run_drafted;

sl_status sl_drafts_open(sl_run *r, sl_err *err)
{
    sl_run_drafts *d = &r->drafts;
    const size_t n = (size_t)r->o.max_batch;
    if (!r->runner->draft || r->o.draft_tokens == 0)
        return SL_OK;
    d->automatic = r->o.draft_tokens < 0;
    d->most = d->automatic || r->o.draft_tokens > SL_DRAFTS_MAX ? SL_DRAFTS_MAX : r->o.draft_tokens;
    d->items = calloc(n, sizeof *d->items);
    d->of = calloc(n, sizeof *d->of);
    if (!d->items || !d->of)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    d->n_of = (int32_t)n;
    return SL_OK;
}

void sl_drafts_close(sl_run *r)
{
    for (int32_t i = 0; i < r->drafts.n_of; i++)
        free(r->drafts.of[i].output);
    free(r->drafts.of);
    free(r->drafts.items);
}

static int32_t at_most(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* Drafts that t may have in this step. */
static int32_t room_of(const sl_run *r, const sl_ticket *t)
{
    const sl_run_ticket *x = sl_run_of(t);
    int32_t pages = x->seq_pages * SL_PAGE_TOKENS - t->n_tokens,
            output = t->sampling.max_tokens - sl_ticket_produced(t) - 1,
            context = r->core.env.max_context - t->n_tokens - 1;
    int32_t room = at_most(at_most(pages, output), context);
    return x->constraint || room < 0 ? 0 : room;
}

/* The output of t and room for its drafts. */
static bool copy_output(sl_run_drafted *o, const sl_ticket *t)
{
    const size_t n = (size_t)sl_ticket_produced(t), need = n + SL_DRAFTS_MAX;
    if (o->room < need) {
        int32_t *grown = realloc(o->output, 2 * need * sizeof *grown);
        if (!grown)
            return false;
        o->output = grown, o->room = 2 * need;
    }
    memcpy(o->output, t->tokens + t->n_prompt, n * sizeof *o->output);
    return true;
}

static sl_draft_cost *cost_of(sl_run *r, const sl_run_flight *f)
{
    int64_t tokens = 0;
    for (int32_t i = 0; i < f->decoding; i++)
        tokens += f->parts[i].end;
    return sl_draft_cost_of(&r->drafts.costs, f->decoding, tokens);
}

/* Chooses the requests that get drafts; returns their number. */
static int32_t choose(sl_run *r, sl_run_flight *f)
{
    sl_run_drafts *d = &r->drafts;
    d->cost = cost_of(r, f);
    d->rows_ns = sl_draft_rows_ns(&d->costs, d->cost, f->decoding);
    const bool plain = d->automatic && sl_draft_cost_turn(d->cost);
    int32_t n = 0;
    for (int32_t i = 0; i < f->decoding; i++) {
        sl_ticket *t = sl_tickets_number(&r->core.tickets, f->parts[i].number);
        int32_t room = t && !plain ? at_most(d->most, room_of(r, t)) : 0;
        int32_t want = room;
        if (room > 0 && d->automatic)
            want = sl_draft_length(d->cost, d->rows_ns, &sl_run_of(t)->drafts, room);
        if (want < 1 || !copy_output(&d->of[i], t))
            continue;
        d->of[i].ids[0] = t->tokens[t->n_tokens - 1];
        d->items[n++] = (sl_draft_item){.seq = f->items[i].seq,
                                        .token = d->of[i].ids[0],
                                        .n = want,
                                        .sampling = &t->sampling,
                                        .out = d->of[i].ids + 1};
        f->items[i].n_tokens = 1 + want;
        d->longest = want > d->longest ? want : d->longest;
    }
    return n;
}

/* The item appends the drafts as well, and every token chooses the next one. */
static void put_drafts(sl_run_drafted *o, sl_step_item *it)
{
    const int32_t n = it->n_tokens;
    sl_step_sample *w = it->sample;
    const size_t had = w->history.n_output;
    memcpy(o->output + had, o->ids + 1, (size_t)(n - 1) * sizeof *o->ids);
    it->tokens = o->ids;
    it->n_samples = n;
    for (int32_t k = 0; k < n; k++) {
        w[k] = *it->sample;
        w[k].history.output = o->output;
        w[k].history.n_output = had + (size_t)k;
    }
}

/* The tokens are there. */
static void drafted(void *ctx)
{
    sl_run_drafts *d = &((sl_run *)ctx)->drafts;
    d->took_ns = sl_now_ns() - d->began_ns;
    for (int32_t i = 0; i < d->flight->decoding; i++)
        if (d->flight->items[i].n_tokens > 1)
            put_drafts(&d->of[i], &d->flight->items[i]);
}

sl_status sl_drafts_make(sl_run *r, sl_run_flight *f, sl_err *err)
{
    sl_run_drafts *d = &r->drafts;
    d->longest = 0, d->took_ns = 0;
    if (!d->most)
        return SL_OK;
    int32_t n = choose(r, f);
    d->began_ns = sl_now_ns();
    d->flight = f;
    d->of_step = (sl_step_drafts){.items = d->items, .n = n, .made = drafted, .ctx = r};
    if (n == 0 || r->runner->group) /* of a group, whose ranks draft together when the step begins */
        return SL_OK;
    SL_TRY(r->runner->draft(r->runner->impl, d->items, n, err));
    drafted(r);
    return SL_OK;
}

const sl_step_hooks *sl_drafts_hooks(sl_run *r)
{
    r->drafts.hooks = (sl_step_hooks){.drafts = &r->drafts.of_step};
    return r->drafts.most && r->runner->group ? &r->drafts.hooks : NULL;
}

/* Asks the runner what the last steps moved. It may know that of the steps before them only, so the ones before those had the same
 * size, too, and computed about as many tokens. */
static void count_moved(sl_run *r)
{
    sl_run_drafts *d = &r->drafts;
    sl_run_moved *m = &d->moved;
    sl_engine_stats now;
    r->runner->stats(r->runner->impl, &now);
    const sl_draft_moved moved = {.tokens = m->tokens,
                                  .bytes = now.swap_bytes - m->bytes,
                                  .waited_ns = now.swap_exposed_ns - m->waited_ns};
    if (m->known)
        sl_draft_link_saw(&d->costs, m->size, &moved);
    sl_gauge_set(r->metrics.draft_rows, d->rows_ns / 1e9);
    *m = (sl_run_moved){
        .size = m->size, .known = true, .bytes = now.swap_bytes, .waited_ns = now.swap_exposed_ns};
}

/* A step has ended. */
static void watch_link(sl_run *r, const sl_run_flight *f)
{
    sl_run_moved *m = &r->drafts.moved;
    sl_draft_cost *size = f->prompts ? NULL : r->drafts.cost;
    if (size != m->size)
        *m = (sl_run_moved){.size = size};
    if (!size)
        return;
    for (int32_t i = 0; i < f->decoding; i++)
        m->tokens += (uint64_t)f->items[i].n_tokens;
    if (++m->steps == MOVED_STEPS)
        count_moved(r);
}

void sl_drafts_measure(sl_run *r, const sl_run_flight *f, uint64_t ns)
{
    sl_run_drafts *d = &r->drafts;
    r->st.draft_ns += d->took_ns;
    r->st.decoded += (uint64_t)f->decoding;
    if (!d->cost || !f->decoding)
        return;
    if (!f->prompts)
        sl_draft_cost_saw(d->cost, d->rows_ns, d->longest,
                          (double)(ns + (r->runner->group ? 0 : d->took_ns)));
    if (d->automatic)
        watch_link(r, f);
}

/* Tokens that stand: each draft before them is what was chosen at its place, and none of them ends the stream. */
static int32_t standing(const sl_run *r, const sl_ticket *t, const sl_step_item *it)
{
    const int32_t n = it->n_samples > 1 ? it->n_samples : 1;
    int32_t k = 0;
    while (k < n && it->sample[k].out.fault == SL_SAMPLE_FINE) {
        int32_t id = it->sample[k++].out.id;
        if (k == n || id != it->tokens[k] || r->core.env.is_stop(r->core.env.ctx, &t->sampling, id))
            break;
    }
    return k;
}

/* Benchmarks: tokens that are said to stand. A stop ends the stream all the same. */
static int32_t drawn_standing(const sl_run *r, const sl_ticket *t, const sl_step_item *it)
{
    const uint64_t at = t->number << 24 | (uint64_t)t->n_tokens;
    const double u = sl_synth_hash(DRAWN_SEED, at) / 4294967296.0;
    const int32_t most = 1 + sl_drawn_standing(r->o.drawn.accept, it->n_tokens - 1, u);
    int32_t k = 0;
    while (k < most && it->sample[k].out.fault == SL_SAMPLE_FINE)
        if (r->core.env.is_stop(r->core.env.ctx, &t->sampling, it->sample[k++].out.id))
            break;
    return k;
}

/* Once: an MTP layer that drafts noise, as one of another model would. */
static void warn_of_noise(const sl_run *r)
{
    enum { CHECKED = 1000, LEAST = 20 };
    if (r->st.drafted[0] == CHECKED && r->st.accepted[0] < LEAST)
        sl_log(
            SL_LOG_WARN, "decode", "drafts_are_noise",
            "drafted=%d accepted=%llu reason=\"the MTP layer's first drafts are almost never right; answers are not affected\"",
            CHECKED, (unsigned long long)r->st.accepted[0]);
}

int32_t sl_drafts_confirm(sl_run *r, sl_ticket *t, const sl_step_item *it)
{
    sl_err err = {0};
    int32_t n = it->n_tokens, kept = r->o.drawn.drafts ? drawn_standing(r, t, it) : standing(r, t, it);
    if (n == 1 || kept == 0)
        return kept;
    sl_status st = r->runner->truncate(r->runner->impl, it->seq, t->n_tokens - 1 + kept, &err);
    if (st != SL_OK) {
        sl_run_fail(r, t, st, "drafts: ", err.text);
        return 0;
    }
    sl_draft_saw(&sl_run_of(t)->drafts, n - 1, kept - 1);
    for (int32_t k = 0; k < n - 1; k++) {
        r->st.drafted[k]++;
        r->st.accepted[k] += k < kept - 1;
    }
    warn_of_noise(r);
    return kept;
}
