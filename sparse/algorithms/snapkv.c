/*
 * snapkv: what the last tokens of a prompt attended to (arXiv 2404.14469), for models with KV heads. The prompt is
 * computed dense. At its end the queries of its last tokens, the observation window, vote for the keys before them;
 * every KV head keeps its best ones (kept.h). Tokens after the prompt read the kept tokens, the window, and the newest
 * generated tokens.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "sparse/algorithms/kept.h"

enum { DEFAULT_KERNEL = 5 };

typedef struct snapkv {
    sl_algo base;
    sl_kept kept;
} snapkv;

static sl_pool_rule pool_of(const sl_cache_dims *d)
{
    return (sl_pool_rule){.kernel = d->select.kernel > 0 ? d->select.kernel : DEFAULT_KERNEL,
                          .pooling = d->select.pooled ? d->select.pooling : SL_POOLING_AVG};
}

static sl_status snapkv_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const sl_pool_rule pool = pool_of(&d->cache);
    if (g->recent_tokens > 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "snapkv: recent_tokens is %d, but window_size and output_tokens say what is read of the newest "
            "tokens",
            g->recent_tokens);
    return sl_kept_check("snapkv", d, g, &pool, err);
}

static int32_t snapkv_width(const sl_algo_dims *d, int32_t dense_below)
{
    const int32_t output = d->cache.select.output_tokens;
    int64_t w = output > 0 ? (int64_t)sl_kept_budget(&d->cache) + output : d->max_context;
    w = w > dense_below ? w : dense_below;
    return w < d->max_context ? (int32_t)w : d->max_context;
}

static void snapkv_destroy(sl_algo *a)
{
    snapkv *s = (snapkv *)a;
    if (!s)
        return;
    sl_kept_close(&s->kept);
    free(s);
}

static sl_status snapkv_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    const sl_pool_rule pool = pool_of(&d->cache);
    snapkv *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "snapkv: out of memory");
    s->base.desc = &sl_algo_snapkv;
    sl_status st = sl_kept_open(&s->kept, "snapkv", be, d, &pool, err);
    if (st != SL_OK) {
        snapkv_destroy(&s->base);
        return st;
    }
    *out = &s->base;
    return SL_OK;
}

static sl_status snapkv_prompt(sl_algo *a, const sl_algo_prompt *p, sl_err *err)
{
    return sl_kept_prompt(&((snapkv *)a)->kept, p, err);
}

static sl_status snapkv_update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    return sl_kept_update(&((snapkv *)a)->kept, call, err);
}

static sl_status snapkv_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                 int32_t *ids, sl_err *err)
{
    const sl_kept *s = &((const snapkv *)a)->kept;
    sl_kept_lists_params p = {.seqs = call->attn->seqs,
                              .prompts = s->prompts,
                              .kept = sl_kept_of(s, call->attn->layer, 0),
                              .ids = ids,
                              .token_first = first,
                              .token_count = count,
                              .lists = call->lists,
                              .ld_kept = s->most,
                              .ld_ids = call->k,
                              .window = s->window,
                              .output = s->dims.cache.select.output_tokens,
                              .dense_below = call->dense_below};
    return sl_be_run(s->be, SL_OP_KEPT_LISTS, &p, err);
}

const sl_algo_desc sl_algo_snapkv = {
    .name = "snapkv",
    .description =
        "the tokens of the prompt to which its last tokens attended most, those, and what was generated",
    .action = SL_ACTION_VISIBILITY,
    .has_params = true,
    .needs_kv_heads = true,
    .constant_k = true,
    .budget_key = "prompt_budget",
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = sl_kept_selector,
    .planes = sl_kept_planes,
    .check = snapkv_check,
    .width = snapkv_width,
    .device_bytes = sl_kept_device_bytes,
    .create = snapkv_create,
    .destroy = snapkv_destroy,
    .prompt = snapkv_prompt,
    .prompt_window = sl_kept_window,
    .update = snapkv_update,
    .retrieve = snapkv_retrieve,
};
