/* See steps.h. */
#include "prefill/steps.h"

#include <stdlib.h>

#include "worker/token.h"

struct sl_step_room {
    sl_prefill_step *free, *running;
    int32_t n_layers;
    sl_step_item items[SL_STEP_PROMPTS];
    sl_step_sample samples[SL_STEP_PROMPTS];
    sl_scores_room scored;
};

sl_status sl_steps_create(struct sl_step_room **out, int32_t n_layers, sl_err *err)
{
    struct sl_step_room *all = *out = calloc(1, sizeof *all);
    if (!all)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    all->n_layers = n_layers;
    return SL_OK;
}

void sl_steps_destroy(struct sl_step_room *all)
{
    if (!all)
        return;
    for (sl_prefill_step *s; (s = all->free);) {
        all->free = s->next;
        free(s);
    }
    sl_scores_room_free(&all->scored);
    free(all);
}

void sl_steps_back(struct sl_step_room *all, sl_prefill_step *s)
{
    s->next = all->free;
    all->free = s;
}

static sl_prefill_step *take_step(struct sl_step_room *all)
{
    sl_prefill_step *s = all->free;
    if (s) {
        all->free = s->next;
        s->n = 0;
        return s;
    }
    s = calloc(1, sizeof *s + (size_t)all->n_layers * sizeof s->layer[0]);
    for (int32_t l = 0; s && l < all->n_layers; l++)
        s->layer[l] = (sl_layer_mail){.mail.kind = PM_LAYER, .step = s, .layer = l};
    return s;
}

/* The prompts of the step, and their tokens. Returns the number of tokens. */
static int32_t share_out(sl_prefill *p, sl_prefill_step *s)
{
    int32_t tokens = sl_prompt_queue_share(&p->queue, 0);
    s->n = 0;
    for (const sl_queued_prompt *t = p->queue.first; tokens && t; t = t->next) {
        if (!t->take)
            continue;
        s->item[s->n].job = t->owner;
        s->item[s->n].first = t->pos;
        s->item[s->n++].end = t->pos + t->take;
    }
    return tokens;
}

static void on_layer_done(void *ctx, int32_t layer)
{
    sl_prefill *p = ctx;
    sl_worker_post(p->worker, &p->steps->running->layer[layer].mail);
}

static void finish(sl_prefill *p, sl_prefill_job *j, const sl_step_item *it)
{
    sl_err err = {0};
    sl_status st = sl_worker_chosen(it->sample, &j->result.first, &err);
    if (st == SL_OK && !sl_scores_whole(&j->scores))
        st = sl_fail(&err, SL_ERR_INTERNAL, "not every token of the prompt was scored");
    if (st != SL_OK) {
        sl_schedule_fail(p, j, st, true, "sampling: %.200s", err.text);
        return;
    }
    j->result.cached_tokens = (uint32_t)j->engine.prompt.start;
    j->result.compute_us = (sl_now_ns() - j->engine.started_ns) / 1000;
    sl_draft_state_take(&j->result.hidden, p->o.role.runner, j->engine.seq);
    if (!j->dev_rows) /* else it is closed at END, when no copy reads its device pages any more */
        sl_prefill_close_seq(p, j);
    sl_schedule_computed(p, j);
}

static uint32_t measure(sl_prefill *p, const sl_prefill_step *s, uint64_t ns)
{
    sl_pace_part part[SL_COUNT(s->item)];
    for (int32_t i = 0; i < s->n; i++)
        part[i] = (sl_pace_part){s->item[i].first, s->item[i].end};
    return sl_prompt_queue_measured(&p->queue, part, s->n, (double)ns);
}

static void advance(sl_prefill *p, sl_prefill_step *s)
{
    for (int32_t i = 0; i < s->n; i++) {
        sl_prefill_job *j = s->item[i].job;
        sl_err err = {0};
        j->engine.prompt.pos = s->item[i].end;
        sl_status st = sl_scores_take(&j->scores, s->item[i].first, p->steps->items[i].score, &err);
        if (st != SL_OK) {
            sl_schedule_fail(p, j, st, true, "log-probabilities: %.200s", err.text);
            continue;
        }
        if (!sl_schedule_seal(p, j, j->engine.prompt.pos))
            continue;
        st = sl_prefill_states_save(p, j, &err);
        if (st != SL_OK) {
            sl_schedule_fail(p, j, st, true, "snapshot: %.200s", err.text);
            continue;
        }
        if (!sl_checker_seals(&p->role.checker))
            sl_schedule_public(p, j, j->engine.prompt.pos);
        if (j->engine.prompt.pos == (int32_t)j->msg->n_tokens)
            finish(p, j, &p->steps->items[i]);
    }
}

/* What is to be chosen when item i ends the prompt. */
static sl_step_sample *sample_of(sl_prefill *p, sl_prefill_job *j, int32_t i)
{
    const sl_msg_prefill *r = j->msg;
    p->steps->samples[i] = (sl_step_sample){.sampling = &j->engine.sampling,
                                            .history = {.prompt = r->tokens,
                                                        .n_prompt = r->n_prompt,
                                                        .output = r->tokens + r->n_prompt,
                                                        .n_output = r->n_tokens - r->n_prompt}};
    sl_constraint_apply(j->engine.constraint, &p->steps->samples[i]);
    return &p->steps->samples[i];
}

bool sl_steps_compute(sl_prefill *p, sl_status *st, sl_err *err)
{
    sl_prefill_step *s = take_step(p->steps);
    *st = SL_OK;
    if (!s)
        return false;
    int32_t tokens = share_out(p, s);
    if (!tokens) {
        sl_steps_back(p->steps, s);
        return false;
    }
    p->steps->scored.n = p->steps->scored.tokens = 0;
    for (int32_t i = 0; i < s->n; i++) {
        sl_prefill_job *j = s->item[i].job;
        const int32_t first = s->item[i].first, n = s->item[i].end - first;
        p->steps->items[i] = (sl_step_item){
            .seq = j->engine.seq,
            .tokens = j->msg->tokens + first,
            .n_tokens = n,
            .sample = s->item[i].end == (int32_t)j->msg->n_tokens ? sample_of(p, j, i) : NULL,
            .score = sl_scores_ask(&j->scores, first, n, &p->steps->scored, (int32_t)SL_COUNT(s->item),
                                   p->o.role.runner->max_step_tokens)};
    }
    p->steps->running = s;
    s->done.kind = PM_STEP_DONE;
    sl_step_hooks hooks = {.ctx = p, .layer_done = on_layer_done};
    uint64_t t0 = sl_now_ns();
    sl_status step = sl_runner_step(p->o.role.runner, p->steps->items, s->n, &hooks, err);
    uint64_t ns = sl_now_ns() - t0;
    sl_histogram_observe(p->c.chunk, (double)ns / 1e9);
    if (step == SL_OK) {
        atomic_store(&p->role.load.prefill_rate, measure(p, s, ns));
        sl_counter_add(p->c.tokens, (uint64_t)tokens);
        atomic_fetch_add(&p->role.load.tokens_done, (uint64_t)tokens);
        advance(p, s);
    } else if (step <= SL_ERR_DEVICE ||
               !sl_runner_broken(p->o.role.runner)) { /* else the sessions end, and the jobs */
        for (int32_t i = 0; i < s->n; i++)
            sl_schedule_fail(p, s->item[i].job, step, true, "step: %.250s", err->text);
        *st = step <= SL_ERR_DEVICE ? step : SL_OK;
    }
    sl_worker_post(p->worker, &s->done);
    return true;
}
