/*
 * A plug-in that runs on every backend: `sampled` reads the first and the newest tokens (sink_tokens, recent_tokens), and of everything
 * between them a random sample that stays the same from step to step: a token has a random number that follows from its position and
 * `seed`, and those with the largest numbers are read. It is what a strategy must beat. It calls the ops of the backend
 * (kernels/ops.h) and reads no device memory itself, so it needs no host_only and may be a part of a captured step.
 * docs/sparse-algorithms.md goes through it.
 *
 *   cc -shared -fPIC -O2 -I SLUICE -o sampled.so sampled.c
 *   sluice generate --backend cuda --plugin ./sampled.so --algorithm sampled --token-budget 256 --model DIR --prompt "..."
 */
#include <stdlib.h>

#include "base/options.h"
#include "kernels/synth.h"
#include "sparse/plugin.h"

typedef struct sampled_options {
    int token_budget, seed;
} sampled_options;

static const sl_option rows[] = {
    SL_OPTION(sampled_options, token_budget, SL_OPTION_INT, SL_OPTION_PAGES | SL_OPTION_CONTEXT, "1024", 1,
              1 << 24, "Tokens that a query reads at most."),
    SL_OPTION(sampled_options, seed, SL_OPTION_INT, SL_OPTION_PAGES, "1", 0, 1 << 30,
              "Another seed is another sample."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "sampled",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = rows,
                                 .n = sizeof rows / sizeof *rows,
                                 .bytes = sizeof(sampled_options)};

extern const sl_algo_desc sampled;

typedef struct instance {
    sl_algo base; /* first */
    sl_backend *be;
    float *numbers; /* device; [rows][ld], every row the same */
    int32_t rows, ld;
    int32_t budget;
} instance;

static sampled_options options_of(const sl_cache_dims *d)
{
    sampled_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

/* Lists of single tokens, which all heads share. */
static sl_selector selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1, .block_tokens = 1, .scope = SL_SCOPE_REQUEST};
}

/* A query always reads its own token. */
static int32_t newest(int32_t recent)
{
    return recent > 1 ? recent : 1;
}

static sl_status check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const int budget = options_of(&d->cache).token_budget;
    return g->sink_tokens + newest(g->recent_tokens) <= budget
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID,
                         "sampled: token_budget is %d, but sink_tokens %d and recent_tokens %d need more",
                         budget, g->sink_tokens, g->recent_tokens);
}

static int32_t width(const sl_algo_dims *d, int32_t dense_below)
{
    const int32_t budget = options_of(&d->cache).token_budget,
                  most = budget > dense_below ? budget : dense_below;
    return most < d->max_context ? most : d->max_context;
}

/* Tokens of a step that select at once: as many as the workspace holds, at least one. */
static int32_t rows_of(const sl_algo_dims *d)
{
    const int64_t fit = d->workspace_bytes / 4 / d->max_context;
    return fit < 1 ? 1 : fit < d->max_step_tokens ? (int32_t)fit : d->max_step_tokens;
}

static uint64_t device_bytes(const sl_algo_dims *d)
{
    return 4 * (uint64_t)rows_of(d) * (uint64_t)d->max_context;
}

static void destroy(sl_algo *a)
{
    instance *s = (instance *)a;
    if (s)
        sl_be_free(s->be, SL_MEM_DEVICE, s->numbers);
    free(s);
}

/* A value of SL_OP_RANDOM depends on its index and the seed alone, so rows are written one by one. */
static sl_status write_numbers(instance *s, uint64_t seed, sl_err *err)
{
    for (int32_t i = 0; i < s->rows; i++) {
        const sl_random_params r = {.out = s->numbers + (int64_t)i * s->ld,
                                    .rows = 1,
                                    .cols = s->ld,
                                    .dtype = SL_F32,
                                    .spread = 1,
                                    .seed = seed};
        SL_TRY(sl_be_run(s->be, SL_OP_RANDOM, &r, err));
    }
    return SL_OK;
}

static sl_status create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    const sampled_options o = options_of(&d->cache);
    instance *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "sampled: out of memory");
    *s = (instance){
        .base.desc = &sampled, .be = be, .rows = rows_of(d), .ld = d->max_context, .budget = o.token_budget};
    sl_status st = sl_be_alloc(be, SL_MEM_DEVICE, (size_t)device_bytes(d), (void **)&s->numbers, err);
    if (st == SL_OK)
        st = write_numbers(s, (uint64_t)o.seed, err);
    if (st != SL_OK) {
        destroy(&s->base);
        return st;
    }
    *out = &s->base;
    return SL_OK;
}

/* ids[count][call->k]: the lists of tokens first .. first + count - 1 of the step. */
static sl_status retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                          sl_err *err)
{
    instance *s = (instance *)a;
    const int32_t k = s->budget < call->k ? s->budget : call->k;
    const bool gates =
        call->sinks + newest(call->recent) <= k; /* otherwise the step is so short that everything is read */
    for (int32_t done = 0, n; done < count; done += n) {
        n = count - done < s->rows ? count - done : s->rows;
        const sl_seq_tables seqs = sl_seq_tables_slice(call->attn->seqs, first + done, n);
        const sl_topk_params t = {.scores = s->numbers,
                                  .seqs = &seqs,
                                  .ids = ids + (int64_t)done * call->k,
                                  .token_count = n,
                                  .k = k,
                                  .ld_scores = s->ld,
                                  .ld_ids = call->k,
                                  .sinks = gates ? call->sinks : 0,
                                  .recent = gates ? newest(call->recent) : 0,
                                  .dense_below = call->dense_below};
        SL_TRY(sl_be_run(s->be, SL_OP_TOPK, &t, err));
    }
    return SL_OK;
}

const sl_algo_desc sampled = {.name = "sampled",
                              .description =
                                  "the first and the newest tokens, and a random sample of the others",
                              .action = SL_ACTION_VISIBILITY,
                              .prefix_reuse = true,
                              .chunked_prefill = true,
                              .disaggregation = true,
                              .keeps_lists = true,
                              .constant_k = true,
                              .budget_key = "token_budget",
                              .options = &table,
                              .selector = selector,
                              .check = check,
                              .width = width,
                              .device_bytes = device_bytes,
                              .create = create,
                              .destroy = destroy,
                              .retrieve = retrieve};

static const sl_algo_desc *const algorithms[] = {&sampled, NULL};
SL_PLUGIN(algorithms);
