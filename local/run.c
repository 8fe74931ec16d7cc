/* Opening and running of one request in one process; see run.h. */
#include "local/run.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "local/progress.h"

static double seconds_since(uint64_t t0)
{
    return (double)(sl_now_ns() - t0) / 1e9;
}

static void on_load(void *ctx, uint64_t done, uint64_t total)
{
    sl_progress_update(ctx, done, total, "bytes");
}

/* Longest sequence the request can come to. */
static int64_t max_len(const sl_gen *g, const sl_generate_opts *o)
{
    return (int64_t)g->n_prompt + o->max_new;
}

static sl_status open_model(sl_gen *g, const sl_generate_opts *o, sl_err *err)
{
    sl_progress progress;
    sl_progress_begin(&progress, "loading");
    uint64_t t0 = sl_now_ns();
    sl_backend_opts bo = {.threads = o->threads};
    sl_status st = sl_backend_create(o->backend_name, &bo, &g->be, err);
    if (st != SL_OK)
        return st;
    sl_model_opts mo = {
        .index_format = g->m.index_format,
        .row_format = g->m.row_format,
        .act = o->act == 1 || (o->act == 0 && g->m.stored == SL_F32) ? SL_F32 : SL_BF16,
        .max_tokens = o->chunk < (int32_t)g->n_prompt ? o->chunk : (int32_t)g->n_prompt,
        .max_logit_rows = 1,
        .progress = on_load,
        .progress_ctx = &progress,
    };
    st = sl_model_load(g->be, o->dir, &mo, &g->model, err);
    sl_progress_end(&progress);
    g->load_s = seconds_since(t0);
    return st;
}

static sl_status open_arena(sl_gen *g, const sl_generate_opts *o, sl_err *err)
{
    sl_geometry geo;
    sl_status st = sl_engine_geometry(&g->m.cfg, g->m.row_format, g->m.index_format, (sl_layout)o->layout,
                                      sl_model_fingerprint(g->model), &geo, err);
    if (st != SL_OK)
        return st;
    int64_t pages = (max_len(g, o) + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
    sl_arena_opts ao = {
        .bytes = (uint64_t)(pages * geo.page_bytes), .huge_pages = SL_AUTO, .lock = SL_OFF, .numa_node = -1};
    return sl_arena_create(&geo, &ao, &g->arena, err);
}

static sl_status open_engine(sl_gen *g, const sl_generate_opts *o, sl_err *err)
{
    int32_t len = (int32_t)max_len(g, o);
    int64_t pages = (len + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS;
    int32_t topk = g->m.cfg.index_topk, hot = o->hot_rows > 0    ? o->hot_rows
                                              : 2 * topk < 65534 ? 2 * topk
                                                                 : 65534;
    sl_engine_opts eo = {
        .algorithm = o->algorithm,
        .max_seqs = 1,
        .max_hot_seqs = o->mode, /* hierarchical: one */
        .max_step_tokens = sl_model_get_opts(g->model)->max_tokens,
        .max_context = len,
        .hot_rows = hot,
        .tail_rows = o->tail_rows,
        .policy = (sl_evict_policy)o->policy,
        .index_pages = pages,
        .row_pages = pages, /* the prompt is prefilled resident in both modes */
        .sink_tokens = o->sinks,
        .recent_tokens = o->recent,
        .min_tokens = o->min_tokens,
        .poison = o->poison,
    };
    return sl_engine_create(g->be, g->model, g->arena, &eo, &g->engine, err);
}

static sl_status open_sampler(sl_gen *g, const sl_generate_opts *o, sl_err *err)
{
    sl_sampling_default(&g->sampling);
    g->sampling.temperature = (float)o->temperature;
    g->sampling.top_k = o->top_k;
    g->sampling.top_p = (float)o->top_p;
    g->sampling.min_p = (float)o->min_p;
    g->sampling.seed = o->seed;
    g->sampling.ignore_eos = o->ignore_eos;
    const sl_model_config *c = &g->m.cfg;
    sl_status st = sl_sampling_validate(&g->sampling, c->vocab_size, err);
    if (st == SL_OK)
        st = sl_sampler_create(c->vocab_size, c->eos_ids, (size_t)c->n_eos, &g->sampler);
    return st;
}

static sl_status open_seq(sl_gen *g, const sl_generate_opts *o, sl_err *err)
{
    int32_t n = (int32_t)((max_len(g, o) + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS);
    int32_t *pages = calloc((size_t)n, sizeof *pages);
    if (!pages)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < n; i++)
        pages[i] = i;
    sl_status st = sl_engine_seq_open(g->engine, SL_RESIDENT, pages, n, 0, NULL, &g->seq, err);
    free(pages);
    return st;
}

sl_status sl_gen_open(sl_gen *g, const sl_generate_opts *o, sl_err *err)
{
    sl_status st = sl_cli_model_read(o->dir, o->indexer, o->rows, &g->m, err);
    if (st != SL_OK)
        return st;
    if (max_len(g, o) > g->m.cfg.max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "%zu prompt tokens and %d new ones exceed the model's context of %d", g->n_prompt,
                       o->max_new, g->m.cfg.max_context);
    g->output = calloc((size_t)o->max_new + 1, sizeof *g->output);
    g->prompt_logits = o->want_logits ? calloc((size_t)g->m.cfg.vocab_size, sizeof(float)) : NULL;
    if (!g->output || (o->want_logits && !g->prompt_logits))
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if ((st = open_model(g, o, err)) == SL_OK && (st = open_arena(g, o, err)) == SL_OK &&
        (st = open_engine(g, o, err)) == SL_OK && (st = open_sampler(g, o, err)) == SL_OK)
        st = open_seq(g, o, err);
    return st;
}

void sl_gen_close(sl_gen *g)
{
    if (g->seq)
        sl_engine_seq_close(g->engine, g->seq);
    sl_sampler_destroy(g->sampler);
    sl_sampling_free(&g->sampling);
    sl_engine_destroy(g->engine);
    sl_arena_destroy(g->arena);
    sl_model_destroy(g->model);
    sl_backend_destroy(g->be);
    sl_tokenizer_destroy(g->tok);
    free(g->prompt_logits);
    free(g->output);
    free(g->prompt);
    *g = (sl_gen){0};
}

/* Prefill in chunks; *logits are those of the last prompt position. */
static sl_status prefill(sl_gen *g, const float **logits, sl_err *err)
{
    sl_progress p;
    sl_progress_begin(&p, "prefill");
    int32_t total = (int32_t)g->n_prompt, chunk = sl_model_get_opts(g->model)->max_tokens;
    sl_status st = SL_OK;
    for (int32_t done = 0; done < total && st == SL_OK;) {
        int32_t n = total - done < chunk ? total - done : chunk;
        sl_step_item it = {
            .seq = g->seq, .tokens = g->prompt + done, .n_tokens = n, .want_logits = done + n == total};
        st = sl_engine_step(g->engine, &it, 1, NULL, err);
        *logits = it.logits;
        done += n;
        sl_progress_update(&p, (uint64_t)done, (uint64_t)total, "tokens");
    }
    sl_progress_end(&p);
    return st;
}

static sl_status sample(sl_gen *g, const float *logits, int32_t *id, sl_err *err)
{
    sl_history h = {
        .prompt = g->prompt, .n_prompt = g->n_prompt, .output = g->output, .n_output = g->n_output};
    sl_sampled s;
    sl_status st = sl_sample(g->sampler, logits, &g->sampling, &h, g->n_prompt + g->n_output, &s, err);
    if (st == SL_OK)
        *id = s.id;
    return st;
}

static sl_status decode(sl_gen *g, const sl_generate_opts *o, const float *logits, sl_err *err)
{
    sl_progress p;
    sl_progress_begin(&p, "decode");
    sl_status st = SL_OK;
    while (g->n_output < (size_t)o->max_new && !g->stopped) {
        int32_t id;
        if ((st = sample(g, logits, &id, err)) != SL_OK)
            break;
        g->output[g->n_output++] = id;
        g->stopped = sl_sampling_is_stop(&g->sampling, g->sampler, id);
        if (g->stopped || g->n_output == (size_t)o->max_new)
            break;
        sl_step_item it = {.seq = g->seq, .tokens = &id, .n_tokens = 1, .want_logits = true};
        if ((st = sl_engine_step(g->engine, &it, 1, NULL, err)) != SL_OK)
            break;
        logits = it.logits;
        sl_progress_update(&p, g->n_output, (uint64_t)o->max_new, "tokens");
    }
    sl_progress_end(&p);
    return st;
}

sl_status sl_gen_run(sl_gen *g, const sl_generate_opts *o, sl_err *err)
{
    const float *logits = NULL;
    uint64_t t0 = sl_now_ns();
    sl_status st = prefill(g, &logits, err);
    if (st != SL_OK)
        return st;
    if (o->want_logits)
        memcpy(g->prompt_logits, logits, (size_t)g->m.cfg.vocab_size * sizeof(float));
    g->prefill_s = seconds_since(t0);
    if (o->mode == 1 && (st = sl_engine_seq_spill(g->engine, g->seq, err)) != SL_OK)
        return st;
    t0 = sl_now_ns();
    st = decode(g, o, logits, err);
    g->decode_s = seconds_since(t0);
    sl_engine_stats_get(g->engine, &g->stats);
    return st;
}
