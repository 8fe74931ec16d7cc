/*
 * snapkv: what the last tokens of a prompt attended to (arXiv 2404.14469), for models with KV heads. The prompt is
 * computed dense. At its end the queries of its last tokens, the observation window, vote for the keys before them;
 * every KV head keeps its best ones (kept.h). Tokens after the prompt read the kept tokens, the window, and the newest
 * generated tokens.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "sparse/algorithms/kept.h"

typedef struct snapkv_options {
    sl_kept_options kept;
    int output_tokens;
} snapkv_options;

static const sl_option option_rows[] = {
    SL_KEPT_ROWS(snapkv_options, "5", "avgpool"),
    SL_ROW_INT(
        snapkv_options, output_tokens, "1024", 0, SL_ROWS_MOST_TOKENS,
        "Newest generated tokens that a query reads. 0: all, and hot_rows must then hold the whole context."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "snapkv",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = option_rows,
                                 .n = SL_COUNT(option_rows),
                                 .bytes = sizeof(snapkv_options)};
_Static_assert(sizeof(snapkv_options) <= SL_SELECT_BYTES, "options are kept in sl_select_options");

static snapkv_options options_of(const sl_cache_dims *d)
{
    snapkv_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

typedef struct snapkv {
    sl_algo base;
    sl_kept kept;
} snapkv;

static int32_t snapkv_window(const sl_cache_dims *d)
{
    return options_of(d).kept.window_size;
}

static int32_t snapkv_planes(const sl_cache_dims *d, sl_cache_plane *out, int32_t most)
{
    const snapkv_options o = options_of(d);
    return sl_kept_planes(d, &o.kept, out, most);
}

static uint64_t snapkv_device_bytes(const sl_algo_dims *d)
{
    const snapkv_options o = options_of(&d->cache);
    return sl_kept_device_bytes(d, &o.kept);
}

static sl_status snapkv_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const snapkv_options o = options_of(&d->cache);
    if (g->recent_tokens > 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "snapkv: recent_tokens is %d, but window_size and output_tokens say what is read of the newest "
            "tokens",
            g->recent_tokens);
    return sl_kept_check("snapkv", d, g, &o.kept, err);
}

static int32_t snapkv_width(const sl_algo_dims *d, int32_t dense_below)
{
    const snapkv_options o = options_of(&d->cache);
    int64_t w = o.output_tokens > 0 ? (int64_t)o.kept.prompt_budget + o.output_tokens : d->max_context;
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
    const snapkv_options o = options_of(&d->cache);
    snapkv *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "snapkv: out of memory");
    s->base.desc = &sl_algo_snapkv;
    sl_status st = sl_kept_open(&s->kept, "snapkv", be, d, &o.kept, err);
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
                              .output = options_of(&s->dims.cache).output_tokens,
                              .dense_below = call->dense_below};
    return sl_be_run(s->be, SL_OP_KEPT_LISTS, &p, err);
}

const sl_algo_desc sl_algo_snapkv = {
    .name = "snapkv",
    .description =
        "the tokens of the prompt to which its last tokens attended most, those, and what was generated",
    .action = SL_ACTION_VISIBILITY,
    .options = &table,
    .needs_kv_heads = true,
    .constant_k = true,
    .budget_key = "prompt_budget",
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = sl_kept_selector,
    .planes = snapkv_planes,
    .check = snapkv_check,
    .width = snapkv_width,
    .device_bytes = snapkv_device_bytes,
    .create = snapkv_create,
    .destroy = snapkv_destroy,
    .prompt = snapkv_prompt,
    .prompt_window = snapkv_window,
    .update = snapkv_update,
    .retrieve = snapkv_retrieve,
};
