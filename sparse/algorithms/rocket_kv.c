/*
 * rocket_kv: what a prompt keeps, and of that what each query needs (RocketKV, arXiv 2502.14051), for models with KV heads.
 * The names and defaults are TensorRT-LLM's; the code is made from the formulas.
 *
 * Stage 1, at the end of a prompt, is SnapKV's: the last tokens of the prompt vote, and every KV head keeps its best ones
 * (kept.h). Stage 2, for every token after the prompt: the retained tokens of a KV head (kept tokens, window, generated
 * tokens, in this order) are divided into pages; a query scores pages by the bounds of their keys, in its largest
 * channels, with signs that its group shares, and reads the tokens of the best top_pages pages (kernels/retained.h). No
 * page is read in any case, unless the gates ask for it. The queries of a prompt read everything.
 *
 * All rows stay in the host store, as in the paper's variant for conversations: "kept" says what the answer to this
 * prompt reads. The next turn is a prompt of its own, which votes among all tokens again.
 *
 * The bounds are no plane of the cache. Their pages are numbered by what one prompt keeps, while the pages of the cache
 * are shared by all prompts with the same prefix. What travels is the plane of kept positions; a worker that opens pages
 * makes the bounds from the keys of the retained tokens, with the same bits. That reads prompt_budget keys of a KV head,
 * where the bounds would be an eighth to a quarter of the bytes of those rows in every transfer. On the device they lie in
 * the request's index pages (page_state).
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "kernels/retained.h"
#include "sparse/algorithms/by_scores.h"
#include "sparse/algorithms/kept.h"
#include "sparse/budgets.h"

enum { SLICE = 256 /* tokens of a step whose pages are selected at a time */ };

typedef struct rocket_options {
    sl_kept_options kept;
    int topk, topr, page_size, kt_cache_dtype;
    double list_mass;
    char budgets_path[256];
    const sl_budgets *budgets; /* no option: the contents of that file */
} rocket_options;

static const sl_option option_rows[] = {
    SL_KEPT_ROWS(rocket_options, "63", "maxpool"),
    SL_ROW_INT(rocket_options, topk, "64", 1, SL_ROWS_MOST_TOKENS,
               "Pages that a query reads, of page_size tokens each; together at most the model's context."),
    SL_ROW_INT(rocket_options, topr, "128", 1, 1024,
               "Channels by which pages are scored, those with the largest queries. head_dim or more: all."),
    SL_ROW_INT(rocket_options, page_size, "4", 1, SL_PAGE_TOKENS,
               "Tokens of a page, neighbours among those that are kept; it divides 64."),
    SL_OPTION_LIST(rocket_options, kt_cache_dtype, SL_OPTION_PAGES, "float8_e5m2", sl_kt_type_names,
                   "How the bounds of a page are stored, rounded outward."),
    SL_ROW_LIST_MASS(rocket_options),
    SL_ROW_BUDGETS(rocket_options),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "rocket_kv",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = option_rows,
                                 .n = SL_COUNT(option_rows),
                                 .bytes = sizeof(rocket_options)};
_Static_assert(sizeof(rocket_options) <= SL_SELECT_BYTES, "options are kept in sl_select_options");

static rocket_options options_of(const sl_cache_dims *d)
{
    rocket_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

typedef struct rocket {
    sl_algo base;
    sl_kept kept;
    sl_by_scores by_scores;
    sl_limits limits; /* pages of each list */
    int32_t *place;   /* device [2][SLICE], see sl_retained_scores_params */
    int32_t *pages;   /* device [SLICE][kv_heads][top_pages] */
    /* sl_seq_tables of one request that is opened: token_seq and token_pos [max_context], host_pages, index_pages. Device
     * and host. */
    int32_t *tables, *host_tables;
} rocket;

static int32_t top_pages(const sl_cache_dims *d)
{
    return options_of(d).topk;
}

static int32_t page_tokens(const sl_cache_dims *d)
{
    return options_of(d).page_size;
}

static int32_t top_channels(const sl_cache_dims *d)
{
    const int32_t r = options_of(d).topr;
    return r < d->head_dim ? r : d->head_dim;
}

static int32_t page_log2(const sl_cache_dims *d)
{
    return sl_log2_of(page_tokens(d));
}

static int32_t rocket_window(const sl_cache_dims *d)
{
    return options_of(d).kept.window_size;
}

static int32_t rocket_planes(const sl_cache_dims *d, sl_cache_plane *out, int32_t most)
{
    const rocket_options o = options_of(d);
    return sl_kept_planes(d, &o.kept, out, most);
}

static int32_t rocket_budget_unit(const void *options)
{
    return ((const rocket_options *)options)->page_size;
}

static sl_status rocket_prepare(void *options, const sl_algo_model *m, uint64_t *content, sl_err *err)
{
    rocket_options *o = options;
    SL_TRY(sl_budgets_prepare(o->budgets_path, m, &o->budgets, content, err));
    if ((int64_t)o->topk * o->page_size > m->max_context)
        return sl_fail(err, SL_ERR_INVALID,
                       "topk %d pages of page_size %d tokens exceed the model's context of %d tokens",
                       o->topk, o->page_size, m->max_context);
    if (SL_PAGE_TOKENS % o->page_size)
        return sl_fail(err, SL_ERR_INVALID, "page_size %d does not divide a page of %d tokens", o->page_size,
                       SL_PAGE_TOKENS);
    return SL_OK;
}

/* ---- life ---- */

static sl_status rocket_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const sl_cache_dims *c = &d->cache;
    const rocket_options o = options_of(c);
    const int32_t size = page_tokens(c),
                  forced = sl_forced_blocks(g->sink_tokens, g->recent_tokens, page_log2(c));
    if (SL_PAGE_TOKENS % size)
        return sl_fail(err, SL_ERR_INVALID, "rocket_kv: page_size %d does not divide a page of %d tokens",
                       size, SL_PAGE_TOKENS);
    if (g->recent_tokens > o.kept.window_size)
        return sl_fail(
            err, SL_ERR_INVALID,
            "rocket_kv: recent_tokens %d are more than window_size %d, and older tokens are not all kept",
            g->recent_tokens, o.kept.window_size);
    if (forced > top_pages(c))
        return sl_fail(
            err, SL_ERR_INVALID,
            "rocket_kv: topk is %d pages of %d tokens, but sink_tokens %d and recent_tokens %d need %d",
            top_pages(c), size, g->sink_tokens, g->recent_tokens, forced);
    return sl_kept_check("rocket_kv", d, g, &o.kept, err);
}

/* Pages that every list has. */
static int32_t least_pages(const sl_algo_dims *d)
{
    const int32_t forced = sl_forced_blocks(d->sinks, d->recent, page_log2(&d->cache));
    return forced > 1 ? forced : 1;
}

/* Pages of the longest list of a layer; -1: of all. */
static int32_t most_pages(const sl_algo_dims *d, int32_t layer)
{
    const int32_t all = (d->max_context >> page_log2(&d->cache)) + 1,
                  n = sl_budgets_longest(options_of(&d->cache).budgets, layer, top_pages(&d->cache),
                                         least_pages(d));
    return n < all ? n : all;
}

static int32_t rocket_layer_width(const sl_algo_dims *d, int32_t dense_below, int32_t layer)
{
    return sl_budget_width(d, (int64_t)most_pages(d, layer) * page_tokens(&d->cache), dense_below);
}

static int32_t rocket_width(const sl_algo_dims *d, int32_t dense_below)
{
    return rocket_layer_width(d, dense_below, -1);
}

typedef struct sizes {
    uint64_t place, pages, tables; /* bytes */
} sizes;

static sizes sizes_of(const sl_algo_dims *d)
{
    const sl_cache_dims *c = &d->cache;
    return (sizes){.place = 8 * SLICE,
                   .pages = 4 * SLICE * (uint64_t)c->kv_heads * (uint64_t)most_pages(d, -1),
                   .tables = 8 * ((uint64_t)d->max_context + (uint64_t)sl_pages_for(d->max_context))};
}

/* A prompt that is kept whole has as many retained tokens as it has tokens. */
static int64_t rocket_page_state(const sl_cache_dims *d)
{
    return sl_retained_page_bytes(d->kv_heads, d->head_dim, page_log2(d),
                                  (sl_kt_type)options_of(d).kt_cache_dtype);
}

/* The retained tokens; before the prompt's end none have bounds. */
static int32_t rocket_state_tokens(const sl_cache_dims *d, int32_t prompt, int32_t tokens)
{
    const int32_t budget = options_of(d).kept.prompt_budget, kept = prompt < budget ? prompt : budget,
                  all = tokens > prompt ? kept + tokens - prompt : kept;
    return all < tokens ? all : tokens;
}

static int64_t score_floats(const sl_algo_dims *d)
{
    return sl_by_scores_floats(d, d->cache.kv_heads, page_log2(&d->cache));
}

static uint64_t rocket_device_bytes(const sl_algo_dims *d)
{
    const rocket_options o = options_of(&d->cache);
    const sizes z = sizes_of(d);
    return sl_kept_device_bytes(d, &o.kept) + 4 * (uint64_t)score_floats(d) + z.place + z.pages + z.tables +
           sl_limits_bytes(o.budgets, d->cache.kv_heads);
}

static void rocket_destroy(sl_algo *a)
{
    rocket *r = (rocket *)a;
    if (!r)
        return;
    sl_backend *be = r->kept.be;
    sl_limits_close(&r->limits);
    sl_by_scores_close(&r->by_scores);
    if (be) {
        sl_be_free(be, SL_MEM_DEVICE, r->tables);
        sl_be_free(be, SL_MEM_DEVICE, r->pages);
        sl_be_free(be, SL_MEM_DEVICE, r->place);
    }
    sl_kept_close(&r->kept);
    free(r->host_tables);
    free(r);
}

static sl_status allocate(rocket *r, sl_backend *be, const sl_algo_dims *d, sl_err *err)
{
    const rocket_options o = options_of(&d->cache);
    const sizes z = sizes_of(d);
    SL_TRY(sl_kept_open(&r->kept, "rocket_kv", be, d, &o.kept, err));
    SL_TRY(sl_by_scores_open(&r->by_scores, be, score_floats(d), err));
    SL_TRY(sl_limits_open(&r->limits, be, options_of(&d->cache).budgets, d->cache.kv_heads,
                          top_pages(&d->cache), least_pages(d), err));
    SL_TRY(sl_be_alloc(be, SL_MEM_DEVICE, z.place, (void **)&r->place, err));
    SL_TRY(sl_be_alloc(be, SL_MEM_DEVICE, z.pages, (void **)&r->pages, err));
    SL_TRY(sl_be_alloc(be, SL_MEM_DEVICE, z.tables, (void **)&r->tables, err));
    r->host_tables = malloc(z.tables);
    return r->host_tables ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "rocket_kv: out of memory");
}

static sl_status rocket_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    rocket *r = calloc(1, sizeof *r);
    if (!r)
        return sl_fail(err, SL_ERR_NO_MEMORY, "rocket_kv: out of memory");
    r->base.desc = &sl_algo_rocket_kv;
    sl_status st = allocate(r, be, d, err);
    if (st != SL_OK) {
        rocket_destroy(&r->base);
        return st;
    }
    *out = &r->base;
    return SL_OK;
}

/* ---- bounds ---- */

/* The retained tokens of the requests of a layer from `seq` on. */
static sl_retained retained(const rocket *r, int32_t layer, int32_t seq, const sl_algo_plane *planes,
                            const sl_row_view *rows, const sl_host_plane *host_rows)
{
    const sl_algo_dims *d = &r->kept.dims;
    return (sl_retained){.prompts = r->kept.prompts + 2 * (int64_t)seq,
                         .kept = sl_kept_of(&r->kept, layer, seq),
                         .base = planes[SL_ALGO_STATE].device,
                         .page_stride = planes[SL_ALGO_STATE].device_stride,
                         .host_rows = *host_rows,
                         .rows = *rows,
                         .ld_kept = r->kept.most,
                         .window = r->kept.window,
                         .page_log2 = page_log2(&d->cache),
                         .kv_heads = d->cache.kv_heads,
                         .dim = d->cache.head_dim,
                         .format = d->cache.rows->format,
                         .type = (sl_kt_type)options_of(&d->cache).kt_cache_dtype};
}

/* The bounds of a prompt whose rows exist, and of the tokens after it. */
static sl_status make_bounds(rocket *r, const sl_algo_prompt *p, sl_err *err)
{
    const int32_t n = p->n_cached - (p->tokens - 1), n_pages = sl_pages_for(p->n_cached);
    int32_t *t = r->host_tables;
    for (int32_t i = 0; i < n; i++)
        t[i] = 0, t[n + i] = p->tokens - 1 + i;
    for (int32_t i = 0; i < n_pages; i++)
        t[2 * n + i] = p->host_pages[i], t[2 * n + n_pages + i] = p->index_pages[i];
    SL_TRY(sl_be_copy(r->kept.be, r->tables, t, 8 * ((size_t)n + (size_t)n_pages), err));
    const sl_seq_tables seqs = {.n_tokens = n,
                                .n_seqs = 1,
                                .ld = n_pages,
                                .token_seq = r->tables,
                                .token_pos = r->tables + n,
                                .host_pages = r->tables + 2 * (int64_t)n,
                                .index_pages = r->tables + 2 * (int64_t)n + n_pages};
    const sl_retained_append_params a = {
        .seqs = &seqs, .r = retained(r, p->layer, p->seq, p->planes, &p->rows, &p->host_rows)};
    return sl_be_run(r->kept.be, SL_OP_RETAINED_APPEND, &a, err);
}

static sl_status rocket_prompt(sl_algo *a, const sl_algo_prompt *p, sl_err *err)
{
    rocket *r = (rocket *)a;
    SL_TRY(sl_kept_prompt(&r->kept, p, err));
    return p->n_cached >= p->tokens ? make_bounds(r, p, err) : SL_OK;
}

static sl_status rocket_update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    rocket *r = (rocket *)a;
    SL_TRY(sl_kept_update(&r->kept, call, err));
    const sl_retained_append_params p = {
        .seqs = call->attn->seqs,
        .r = retained(r, call->attn->layer, 0, call->planes, &call->rows, &call->host_rows)};
    return sl_be_run(r->kept.be, SL_OP_RETAINED_APPEND, &p, err);
}

/* ---- lists ---- */

static sl_status best_pages(rocket *r, const sl_algo_call *call, const sl_retained *of, int32_t first,
                            int32_t count, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const sl_cache_dims *d = &r->kept.dims.cache;
    const int32_t ld = (call->max_pos >> of->page_log2) + 1, layer = c->layer,
                  pages = most_pages(&r->kept.dims, layer);
    const double mass = options_of(d).list_mass;
    const bool cut = mass > 0 || r->limits.of; /* lists of everything, too */
    const sl_retained_scores_params s = {.q = c->gqa.attn.q,
                                         .seqs = c->seqs,
                                         .r = *of,
                                         .scores = r->by_scores.scores,
                                         .place = r->place,
                                         .token_first = first,
                                         .token_count = count,
                                         .heads = c->gqa.attn.heads,
                                         .ld_scores = ld,
                                         .dense_below = call->dense_below,
                                         .top_r = top_channels(d),
                                         .select = cut ? 1 : pages,
                                         .scale = c->gqa.attn.scale};
    SL_TRY(sl_be_run(r->kept.be, SL_OP_RETAINED_SCORES, &s, err));
    sl_seq_tables seqs = *c->seqs;
    seqs.n_tokens = count, seqs.token_seq = r->place, seqs.token_pos = r->place + count;
    const sl_topk_params t = {.scores = r->by_scores.scores,
                              .seqs = &seqs,
                              .ids = r->pages,
                              .token_count = count,
                              .k = pages,
                              .ld_scores = ld,
                              .ld_ids = pages,
                              .sinks = call->sinks,
                              .recent = call->recent,
                              .lists = d->kv_heads,
                              .block_log2 = of->page_log2,
                              .mass = (float)mass,
                              .k_of = sl_limits_at(&r->limits, layer)};
    return sl_be_run(r->kept.be, SL_OP_TOPK, &t, err);
}

static sl_status rocket_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                 int32_t *ids, sl_err *err)
{
    rocket *r = (rocket *)a;
    const sl_retained of = retained(r, call->attn->layer, 0, call->planes, &call->rows, &call->host_rows);
    const int64_t fit =
        r->by_scores.capacity / (((call->max_pos >> of.page_log2) + 1) * (int64_t)call->lists);
    const int32_t most = fit < SLICE ? (int32_t)fit : SLICE;
    for (int32_t done = 0, n; done < count; done += n) {
        n = count - done < most ? count - done : most;
        SL_TRY(best_pages(r, call, &of, first + done, n, err));
        const sl_retained_lists_params l = {.seqs = call->attn->seqs,
                                            .r = of,
                                            .pages = r->pages,
                                            .ids = ids + (int64_t)done * call->lists * call->k,
                                            .token_first = first + done,
                                            .token_count = n,
                                            .ld_ids = call->k,
                                            .dense_below = call->dense_below,
                                            .select = most_pages(&r->kept.dims, call->attn->layer)};
        SL_TRY(sl_be_run(r->kept.be, SL_OP_RETAINED_LISTS, &l, err));
    }
    return SL_OK;
}

const sl_algo_desc sl_algo_rocket_kv = {
    .name = "rocket_kv",
    .description =
        "of what the last tokens of the prompt attended to and the tokens since, the pages whose bounds fit the "
        "query best",
    .action = SL_ACTION_VISIBILITY,
    .budget_key = "topk",
    .options = &table,
    .prepare = rocket_prepare,
    .budget_unit = rocket_budget_unit,
    .needs_kv_heads = true,
    .constant_k = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = sl_kept_selector,
    .planes = rocket_planes,
    .page_state = rocket_page_state,
    .state_tokens = rocket_state_tokens,
    .check = rocket_check,
    .width = rocket_width,
    .layer_width = rocket_layer_width,
    .device_bytes = rocket_device_bytes,
    .create = rocket_create,
    .destroy = rocket_destroy,
    .prompt = rocket_prompt,
    .prompt_window = rocket_window,
    .update = rocket_update,
    .retrieve = rocket_retrieve,
};
