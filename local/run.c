/* See run.h. */
#include "local/run.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/choose.h"
#include "engine/plan.h"
#include "local/progress.h"

static double seconds_since(uint64_t t0)
{
    return (double)(sl_now_ns() - t0) / 1e9;
}

/* Tokens of the longest sequence. */
static sl_status choose_context(const sl_local_run *r, const sl_local_run_opts *o, int32_t *out, sl_err *err)
{
    const sl_model_config *cfg = &r->local.checkpoint.cfg;
    int64_t len = (int64_t)r->n_prompt + o->max_new;
    if (o->max_context > 0)
        len = o->max_context;
    if (len > cfg->max_context && o->max_context > 0)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%d tokens exceed the model's context of %d", o->max_context,
                       cfg->max_context);
    if (len > cfg->max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "%zu prompt tokens and %d new ones exceed the model's context of %d", r->n_prompt,
                       o->max_new, cfg->max_context);
    *out = (int32_t)len;
    return SL_OK;
}

static sl_status choose_selection(sl_local_run *r, const sl_local_run_opts *o, sl_local_opts *lo, sl_err *err)
{
    const sl_model_config *cfg = &r->local.checkpoint.cfg;
    if (o->chosen) {
        lo->algorithm = o->chosen->algorithm;
        lo->select = o->chosen->select;
        r->gates = o->chosen->gates;
        return SL_OK;
    }
    SL_TRY(sl_choose_algorithm(o->algorithm, cfg, &lo->algorithm, err));
    r->gates = (sl_gates){
        .sink_tokens = o->sink_tokens, .recent_tokens = o->recent_tokens, .min_tokens = o->min_tokens};
    sl_select_options values = {0};
    if (!o->selection)
        return sl_choose_selection(lo->algorithm, NULL, cfg, &r->gates, &lo->select, err);
    SL_TRY(sl_local_selection_options(o->selection, lo->algorithm, true, values.values, err));
    return sl_choose_selection(lo->algorithm, values.values, cfg, &r->gates, &lo->select, err);
}

static sl_status open_local(sl_local_run *r, const sl_local_run_opts *o, sl_err *err)
{
    int32_t len = 0;
    if (o->model)
        sl_local_borrow(&r->local, o->model, o->max_context);
    else if (o->dummy)
        SL_TRY(sl_local_checkpoint_dummy(o->dir, o->indexer, o->row_format, &r->local.checkpoint, err));
    else
        SL_TRY(sl_local_checkpoint_read(o->dir, o->indexer, o->row_format, &r->local.checkpoint, err));
    if (o->draft_tokens > 0 && !o->model) {
        sl_status st = sl_model_config_draft(&r->local.checkpoint.cfg, err);
        if (st != SL_OK)
            return sl_fail_in(err, st, "%s", o->dir);
    }
    SL_TRY(choose_context(r, o, &len, err));
    sl_local_opts lo = {.dir = o->dir,
                        .backend = o->backend,
                        .act = o->act,
                        .layout = o->layout,
                        .threads = o->threads,
                        .max_tokens = o->chunk < len ? o->chunk : len,
                        .max_logit_rows = 1 + o->draft_tokens,
                        .max_context = len};
    if (!o->max_context && lo.max_tokens > (int32_t)r->n_prompt)
        lo.max_tokens = (int32_t)r->n_prompt;
    if (lo.max_tokens < lo.max_logit_rows)
        lo.max_tokens = lo.max_logit_rows;
    SL_TRY(choose_selection(r, o, &lo, err));
    r->local.max_context = len;
    return o->model ? sl_local_open_store(&r->local, &lo, err) : sl_local_open(&r->local, &lo, err);
}

/* The longest list of the algorithm, in tokens. */
static sl_status longest_list(const sl_local_run *r, int32_t *out, sl_err *err)
{
    const sl_local_checkpoint *c = &r->local.checkpoint;
    const sl_algo_desc *a = r->local.algorithm;
    sl_algo_dims d = {.n_layers = c->cfg.n_layers,
                      .max_step_tokens = 1,
                      .max_context = r->local.max_context,
                      .sinks = r->gates.sink_tokens,
                      .recent = r->gates.recent_tokens,
                      .cache = sl_engine_cache_dims(&c->cfg, c->row_format, c->index_format)};
    d.cache.select = r->local.select;
    SL_TRY(sl_algo_cache_shape(a, &d.cache, &d.shape, err));
    *out = a->width(&d, r->gates.min_tokens);
    return SL_OK;
}

static sl_status open_engine(sl_local_run *r, const sl_local_run_opts *o, sl_err *err)
{
    const sl_algo_desc *algorithm = r->local.algorithm;
    int32_t longest;
    SL_TRY(longest_list(r, &longest, err));
    sl_engine_opts eo = {
        .max_hot_seqs = o->hierarchical,
        .hot_rows = o->hot_rows > 0
                        ? o->hot_rows
                        : sl_plan_default_hot_rows(algorithm, longest, longest * (1 + o->draft_tokens)),
        .max_item_tokens = 1 + o->draft_tokens,
        .tail_rows = o->tail_rows,
        .gates = r->gates,
        .poison = o->poison,
        .probe = o->probe,
        .count_tiles = o->count_tiles,
    };
    SL_TRY(sl_choose_policy(o->policy, sl_backend_caps(r->local.be), &eo.policy, err));
    return sl_local_engine(&r->local, &eo, &r->engine, err);
}

static sl_status open_sampler(sl_local_run *r, const sl_local_run_opts *o, sl_err *err)
{
    sl_sampling_default(&r->sampling);
    r->sampling.temperature = (float)o->temperature;
    r->sampling.top_k = o->top_k;
    r->sampling.top_p = (float)o->top_p;
    r->sampling.min_p = (float)o->min_p;
    r->sampling.presence_penalty = (float)o->penalty.presence;
    r->sampling.frequency_penalty = (float)o->penalty.frequency;
    r->sampling.repetition_penalty = o->penalty.repetition > 0 ? (float)o->penalty.repetition : 1;
    r->sampling.seed = o->seed;
    r->sampling.ignore_eos = o->ignore_eos;
    const sl_model_config *c = &r->local.checkpoint.cfg;
    SL_TRY(sl_sampling_validate(&r->sampling, c->vocab_size, err));
    return sl_sampler_create(c->vocab_size, c->eos_ids, (size_t)c->n_eos, &r->sampler);
}

/* A run that has no prompt yet gets one before it is restarted. */
static sl_status open_seq(sl_local_run *r, sl_err *err)
{
    SL_TRY(sl_local_seq_open(&r->local, r->engine, SL_RESIDENT, 0, &r->seq, err));
    return r->n_prompt ? sl_engine_seq_prompt(r->engine, r->seq, (int32_t)r->n_prompt, err) : SL_OK;
}

sl_status sl_local_run_open(sl_local_run *r, const sl_local_run_opts *o, sl_err *err)
{
    SL_TRY(open_local(r, o, err));
    r->output = calloc((size_t)o->max_new + 1, sizeof *r->output);
    r->prompt_logits =
        o->want_logits ? calloc((size_t)r->local.checkpoint.cfg.vocab_size, sizeof(float)) : NULL;
    if (!r->output || (o->want_logits && !r->prompt_logits))
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    SL_TRY(open_engine(r, o, err));
    SL_TRY(open_sampler(r, o, err));
    /* The prompt is prefilled resident in both modes. */
    return open_seq(r, err);
}

sl_status sl_local_run_restart(sl_local_run *r, sl_err *err)
{
    if (r->seq)
        sl_engine_seq_close(r->engine, r->seq);
    r->seq = NULL;
    r->n_output = 0;
    r->stopped = false;
    return open_seq(r, err);
}

void sl_local_run_close(sl_local_run *r)
{
    if (r->seq)
        sl_engine_seq_close(r->engine, r->seq);
    sl_sampler_destroy(r->sampler);
    sl_sampling_free(&r->sampling);
    sl_engine_destroy(r->engine);
    sl_local_close(&r->local);
    sl_tokenizer_destroy(r->tok);
    free(r->prompt_logits);
    free(r->output);
    free(r->prompt);
    *r = (sl_local_run){0};
}

static sl_status run_chunks(sl_local_run *r, sl_local_progress *p, const float **logits, sl_err *err)
{
    const int32_t total = (int32_t)r->n_prompt, most = sl_model_get_opts(r->local.model)->max_tokens,
                  chunk = sl_engine_prompt_chunk(r->engine, most, total);
    if (chunk < 1)
        return sl_fail(err, SL_ERR_INVALID, "chunks of %d tokens: %s computes prompts by %d tokens", most,
                       r->local.algorithm->name, sl_engine_prompt_unit(r->engine));
    for (int32_t done = 0; done < total;) {
        int32_t n = total - done < chunk ? total - done : chunk;
        sl_step_item it = {
            .seq = r->seq, .tokens = r->prompt + done, .n_tokens = n, .want_logits = done + n == total};
        SL_TRY(sl_engine_step(r->engine, &it, 1, NULL, err));
        *logits = it.logits;
        done += n;
        sl_local_progress_update(p, (uint64_t)done, (uint64_t)total, "tokens");
    }
    return SL_OK;
}

/* Prefills in chunks; *logits are those of the last prompt position. */
static sl_status prefill(sl_local_run *r, const float **logits, sl_err *err)
{
    sl_local_progress p;
    sl_local_progress_begin(&p, "prefill");
    sl_status st = run_chunks(r, &p, logits, err);
    sl_local_progress_end(&p);
    return st;
}

static sl_status sample(sl_local_run *r, const float *logits, int32_t *id, sl_err *err)
{
    sl_history h = {
        .prompt = r->prompt, .n_prompt = r->n_prompt, .output = r->output, .n_output = r->n_output};
    sl_sampled s;
    SL_TRY(sl_sample(r->sampler, logits, &r->sampling, &h, r->n_prompt + r->n_output, &s, err));
    *id = s.id;
    return SL_OK;
}

/* Drafts after the last token, as many as the sequence, its length and the caller allow. */
static sl_status draft(sl_local_run *r, const sl_local_run_opts *o, int32_t *ids, int32_t *n, sl_err *err)
{
    int32_t room = r->local.max_context - sl_engine_seq_len(r->seq) - 1,
            left = o->max_new - (int32_t)r->n_output - 1;
    *n = o->draft_tokens < left ? o->draft_tokens : left;
    *n = *n < room ? *n : room;
    if (*n < 1) {
        *n = 0;
        return SL_OK;
    }
    sl_draft_item it = {.seq = r->seq, .token = ids[0], .n = *n, .sampling = &r->sampling, .out = ids + 1};
    return sl_engine_draft(r->engine, &it, 1, err);
}

/* Every token of a step with drafts chooses the next one, until a choice is not the draft. */
static sl_status take(sl_local_run *r, const sl_local_run_opts *o, const sl_step_item *it, int32_t drafts,
                      sl_err *err)
{
    const int32_t before = sl_engine_seq_len(r->seq) - it->n_tokens;
    int32_t id, k = 0;
    for (; k < drafts; k++) {
        SL_TRY(sample(r, it->logits + (size_t)k * (size_t)r->local.checkpoint.cfg.vocab_size, &id, err));
        if (id != it->tokens[1 + k])
            break;
        r->output[r->n_output++] = id;
        r->stopped = sl_sampling_is_stop(&r->sampling, r->sampler, id);
        if (r->stopped || r->n_output == (size_t)o->max_new)
            break;
    }
    r->drafted += (uint64_t)drafts;
    r->accepted += (uint64_t)k;
    /* The token after those that stand is chosen by the caller, from the same logits. */
    return drafts ? sl_engine_seq_truncate(r->engine, r->seq, before + 1 + k, err) : SL_OK;
}

static sl_status run_steps(sl_local_run *r, const sl_local_run_opts *o, sl_local_progress *p,
                           const float *logits, sl_err *err)
{
    while (r->n_output < (size_t)o->max_new && !r->stopped) {
        int32_t ids[1 + SL_LOCAL_DRAFTS_MAX], drafts;
        SL_TRY(sample(r, logits, &ids[0], err));
        r->output[r->n_output++] = ids[0];
        r->stopped = sl_sampling_is_stop(&r->sampling, r->sampler, ids[0]);
        if (r->stopped || r->n_output == (size_t)o->max_new)
            break;
        SL_TRY(draft(r, o, ids, &drafts, err));
        sl_step_item it = {.seq = r->seq, .tokens = ids, .n_tokens = 1 + drafts, .want_logits = 1 + drafts};
        SL_TRY(sl_engine_step(r->engine, &it, 1, NULL, err));
        const size_t had = r->n_output;
        SL_TRY(take(r, o, &it, drafts, err));
        logits = it.logits + (r->n_output - had) * (size_t)r->local.checkpoint.cfg.vocab_size;
        r->steps++;
        sl_local_progress_update(p, r->n_output, (uint64_t)o->max_new, "tokens");
    }
    return SL_OK;
}

static sl_status decode(sl_local_run *r, const sl_local_run_opts *o, const float *logits, sl_err *err)
{
    sl_local_progress p;
    sl_local_progress_begin(&p, "decode");
    sl_status st = run_steps(r, o, &p, logits, err);
    sl_local_progress_end(&p);
    return st;
}

sl_status sl_local_run_request(sl_local_run *r, const sl_local_run_opts *o, sl_err *err)
{
    const float *logits = NULL;
    uint64_t t0 = sl_now_ns();
    SL_TRY(prefill(r, &logits, err));
    if (o->want_logits)
        memcpy(r->prompt_logits, logits, (size_t)r->local.checkpoint.cfg.vocab_size * sizeof(float));
    r->prefill_s = seconds_since(t0);
    if (o->hierarchical)
        SL_TRY(sl_engine_seq_spill(r->engine, r->seq, err));
    t0 = sl_now_ns();
    sl_status st = decode(r, o, logits, err);
    r->decode_s = seconds_since(t0);
    sl_engine_stats_get(r->engine, &r->stats);
    return st;
}

sl_status sl_local_run_follow(sl_local_run *r, const sl_local_run_opts *o, const int32_t *tokens, int32_t n,
                              void (*seen)(void *ctx, int32_t i, const float *logits), void *ctx, sl_err *err)
{
    const float *logits = NULL;
    SL_TRY(prefill(r, &logits, err));
    if (o->hierarchical)
        SL_TRY(sl_engine_seq_spill(r->engine, r->seq, err));
    for (int32_t i = 0; i < n; i++) {
        sl_step_item it = {.seq = r->seq, .tokens = tokens + i, .n_tokens = 1, .want_logits = true};
        SL_TRY(sl_engine_step(r->engine, &it, 1, NULL, err));
        seen(ctx, i, it.logits);
    }
    return SL_OK;
}
