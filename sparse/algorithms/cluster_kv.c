/*
 * cluster_kv: tokens by the similarity of their keys (ClusterKV, arXiv 2412.03213), for models with KV heads. The prompt is
 * computed dense. At its end the keys of each KV head are divided into clusters by k-means with the cosine as metric, and
 * every cluster_window generated tokens are divided into window_nlist more clusters. Later tokens rank the clusters by
 * q . centroid and read whole clusters until the budget is filled; of the last cluster the oldest tokens. The first tokens
 * and those that are not clustered yet are always read (kernels/clusters.h has the rules).
 *
 * What clusters depend on: the keys of the prompt, its number of tokens, and the keys of the generated tokens, in groups
 * whose limits are counted from the prompt's end. Chunks, batches, threads and the worker do not matter. k-means begins with
 * evenly spaced keys and runs a fixed number of iterations.
 *
 * Where clusters are: on the device, for running requests only. A page of the cache cannot have them. The pages of a prompt
 * are shared with longer prompts, which have other clusters, and the only page that belongs to one prompt, the last,
 * would need room for the labels of the longest context. They are a function of keys that lie in the pages. A worker
 * that opens the pages of a prompt therefore makes the same clusters again, from the host pages, before the first
 * step. That costs it the time of k-means, but no bytes in the store, in a storage tier or on the wire.
 *
 * What differs from the paper's code, and why: a list belongs to a KV head, not to a query head, because a row of the hot
 * buffer does; the number of clusters follows from that of the tokens (the paper's n / 80), because one number cannot serve
 * prompts of any length; and groups are complete one token before they are used, so that a query always reads itself.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "kernels/clusters.h"
#include "kernels/scratch.h"
#include "sparse/algorithms/by_scores.h"
#include "sparse/algorithms/rows.h"
#include "sparse/budgets.h"
#include "sparse/keys.h"

enum { DEFAULT_SINKS = 16, MOST_CLUSTERS = 1 << 16 };

typedef struct cluster_options {
    int token_budget, cluster_tokens, cluster_window, window_nlist, niter;
    int gqa_reduction;
    double list_mass;
    char budgets_path[256];
    const sl_budgets *budgets; /* no option: the contents of that file */
} cluster_options;

static const sl_option option_rows[] = {
    SL_ROW_TOKEN_BUDGET(cluster_options,
                        "Tokens that a query reads at most, sinks included, and generated tokens in "
                        "addition; at most the model's context."),
    SL_ROW_GQA_REDUCTION(cluster_options, "cluster"),
    SL_ROW_INT(cluster_options, cluster_tokens, "80", 1, SL_ROWS_MOST_TOKENS,
               "Tokens of the prompt per cluster, on average."),
    SL_ROW_INT(
        cluster_options, cluster_window, "320", 1, SL_ROWS_MOST_TOKENS,
        "Generated tokens after which these are divided into clusters; until then they are always read, in addition "
        "to token_budget."),
    SL_ROW_INT(cluster_options, window_nlist, "8", 1, 65535, "Clusters of cluster_window generated tokens."),
    SL_ROW_NITER(cluster_options),
    SL_ROW_LIST_MASS(cluster_options),
    SL_ROW_BUDGETS(cluster_options),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "cluster_kv",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = option_rows,
                                 .n = SL_COUNT(option_rows),
                                 .bytes = sizeof(cluster_options)};
_Static_assert(sizeof(cluster_options) <= SL_SELECT_BYTES, "options are kept in sl_select_options");

static cluster_options options_of(const sl_cache_dims *d)
{
    cluster_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

typedef struct cluster_kv {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    sl_cluster_rule rule;
    sl_limits limits; /* tokens that each list takes of clusters and sinks, at most rule.budget */
    int32_t most;     /* clusters of a request and KV head */
    float *centroids; /* device [layers][seqs][kv_heads][most][dim] */
    uint16_t *labels; /* device [layers][seqs][kv_heads][max_context] */
    int32_t *prompts; /* device [seqs] */
    int32_t *pages;   /* device: the host pages of the request whose prompt is announced */
} cluster_kv;

/* Clusters begin at the largest budget of a list, so that rule.budget is that of all lists. */
static int32_t most_tokens(const sl_cache_dims *d)
{
    const cluster_options o = options_of(d);
    const int32_t n = sl_budgets_longest(o.budgets, -1, o.token_budget, 1);
    return n > o.token_budget ? n : o.token_budget;
}

static sl_cluster_rule rule_of(const sl_cache_dims *d, int32_t sinks)
{
    const cluster_options o = options_of(d);
    return (sl_cluster_rule){.sinks = sinks,
                             .budget = most_tokens(d),
                             .cluster_tokens = o.cluster_tokens,
                             .window = o.cluster_window,
                             .window_nlist = o.window_nlist};
}

static sl_selector cluster_selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = 1,
                         .key = SL_KEY_MEAN,
                         .score = SL_SCORE_RAW,
                         .scope = SL_SCOPE_KV_HEAD};
}

static sl_status cluster_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const sl_cluster_rule r = rule_of(&d->cache, g->sink_tokens);
    if (d->cache.query_heads < 1 || d->cache.query_heads % d->cache.kv_heads)
        return sl_fail(err, SL_ERR_INVALID, "cluster_kv: %d query heads for %d KV heads",
                       d->cache.query_heads, d->cache.kv_heads);
    if (g->recent_tokens > 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "cluster_kv: recent_tokens is %d, but cluster_window says what is read of the newest tokens",
            g->recent_tokens);
    if (r.budget <= r.sinks)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster_kv: token_budget %d leaves nothing to select after sink_tokens %d", r.budget,
                       r.sinks);
    if (r.window_nlist > r.window)
        return sl_fail(err, SL_ERR_INVALID, "cluster_kv: window_nlist %d exceeds cluster_window %d",
                       r.window_nlist, r.window);
    if (sl_clusters_most(&r, d->max_context) > MOST_CLUSTERS)
        return sl_fail(
            err, SL_ERR_TOO_LARGE,
            "cluster_kv: a context of %d tokens may have more than %d clusters; cluster_tokens is %d, "
            "window_nlist %d of cluster_window %d",
            d->max_context, MOST_CLUSTERS, r.cluster_tokens, r.window_nlist, r.window);
    return SL_OK;
}

static sl_status cluster_prepare(void *options, const sl_algo_model *m, uint64_t *content, sl_err *err)
{
    cluster_options *o = options;
    SL_TRY(sl_budgets_prepare(o->budgets_path, m, &o->budgets, content, err));
    if (sl_budgets_longest(o->budgets, -1, o->token_budget, 1) == INT32_MAX)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "budgets_path %s: a list that reads everything (\"all\") has no clusters; cluster_kv takes numbers only",
            o->budgets_path);
    return sl_algo_mass_check(o->list_mass, o->gqa_reduction, err);
}

static int32_t cluster_width(const sl_algo_dims *d, int32_t dense_below)
{
    const sl_cluster_rule r = rule_of(&d->cache, 0);
    return sl_budget_width(d, (int64_t)r.budget + r.window, dense_below);
}

/* A group of clusters is made of one KV head at least at a time. */
static size_t cluster_scratch(const sl_algo_dims *d)
{
    const sl_cluster_rule r = rule_of(&d->cache, d->sinks);
    const sl_cache_dims *c = &d->cache;
    const int32_t most = (int32_t)sl_clusters_most(&r, d->max_context);
    const size_t head = sl_points_space_of(1, d->max_context, c->head_dim, 1, most).bytes,
                 token = sl_clusters_space_of(1, d->max_seqs, c->query_heads, c->kv_heads, most,
                                              (sl_group_reduce)options_of(c).gqa_reduction)
                             .bytes,
                 points = sl_slices_most(head, c->kv_heads),
                 lists = sl_slices_most(token, d->max_step_tokens);
    return points > lists ? points : lists;
}

typedef struct sizes {
    uint64_t centroids, labels, prompts, pages; /* bytes */
} sizes;

static sizes sizes_of(const sl_algo_dims *d)
{
    const sl_cluster_rule r = rule_of(&d->cache, d->sinks);
    const uint64_t heads = (uint64_t)d->n_layers * (uint64_t)d->max_seqs * (uint64_t)d->cache.kv_heads;
    return (sizes){.centroids = 4 * heads * (uint64_t)sl_clusters_most(&r, d->max_context) *
                                (uint64_t)d->cache.head_dim,
                   .labels = 2 * heads * (uint64_t)d->max_context,
                   .prompts = 4 * (uint64_t)d->max_seqs,
                   .pages = 4 * (uint64_t)sl_pages_for(d->max_context)};
}

static uint64_t cluster_device_bytes(const sl_algo_dims *d)
{
    const sizes z = sizes_of(d);
    return z.centroids + z.labels + z.prompts + z.pages +
           sl_limits_bytes(options_of(&d->cache).budgets, d->cache.kv_heads);
}

/* All centroids, and the labels by which the list is made. */
static uint64_t cluster_query_bytes(const sl_cache_dims *d, int32_t tokens)
{
    const int64_t of = rule_of(d, 0).cluster_tokens, clusters = (tokens + of - 1) / of;
    return (uint64_t)d->kv_heads * (4 * (uint64_t)clusters * (uint64_t)d->head_dim + 2 * (uint64_t)tokens);
}

static void cluster_destroy(sl_algo *a)
{
    cluster_kv *s = (cluster_kv *)a;
    if (!s)
        return;
    sl_be_free(s->be, SL_MEM_DEVICE, s->pages);
    sl_limits_close(&s->limits);
    sl_be_free(s->be, SL_MEM_DEVICE, s->prompts);
    sl_be_free(s->be, SL_MEM_DEVICE, s->labels);
    sl_be_free(s->be, SL_MEM_DEVICE, s->centroids);
    free(s);
}

static sl_status allocate(cluster_kv *s, sl_err *err)
{
    const sizes z = sizes_of(&s->dims);
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.centroids, (void **)&s->centroids, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.labels, (void **)&s->labels, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.prompts, (void **)&s->prompts, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.pages, (void **)&s->pages, err));
    SL_TRY(sl_limits_open(&s->limits, s->be, options_of(&s->dims.cache).budgets, s->dims.cache.kv_heads,
                          options_of(&s->dims.cache).token_budget, s->rule.sinks + 1, err));
    return sl_be_fill(s->be, s->prompts, 0, z.prompts, err);
}

static sl_status cluster_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    cluster_kv *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cluster_kv: out of memory");
    *s = (cluster_kv){
        .base.desc = &sl_algo_cluster_kv, .be = be, .dims = *d, .rule = rule_of(&d->cache, d->sinks)};
    s->most = (int32_t)sl_clusters_most(&s->rule, d->max_context);
    sl_status st = allocate(s, err);
    if (st != SL_OK)
        goto destroy;
    *out = &s->base;
    return SL_OK;
destroy:
    cluster_destroy(&s->base);
    return st;
}

/* ---- clusters ---- */

static int64_t request_at(const cluster_kv *s, int32_t layer, int32_t seq)
{
    return ((int64_t)layer * s->dims.max_seqs + seq) * s->dims.cache.kv_heads;
}

static float *centroids_of(const cluster_kv *s, int32_t layer, int32_t seq)
{
    return s->centroids + request_at(s, layer, seq) * s->most * s->dims.cache.head_dim;
}

static uint16_t *labels_of(const cluster_kv *s, int32_t layer, int32_t seq)
{
    return s->labels + request_at(s, layer, seq) * s->dims.max_context;
}

/* The clusters of the groups that are complete with the first `to` tokens of a request, but not with the first `from`. */
static sl_status make_groups(cluster_kv *s, const sl_key_source *keys, int32_t layer, int32_t seq,
                             int32_t prompt, int32_t from, int32_t to, sl_err *err)
{
    const sl_cluster_rule *r = &s->rule;
    sl_cluster_state g = sl_clusters_at(r, prompt, from);
    for (;;) {
        const int32_t end = g.groups ? g.end + r->window : prompt > r->budget ? prompt : r->budget;
        if (end > to)
            return SL_OK;
        g = sl_clusters_at(r, prompt, end);
        const sl_kmeans_params p = {.keys = *keys,
                                    .first = g.begin,
                                    .tokens = g.end - g.begin,
                                    .parts = 1,
                                    .k = g.count - g.before,
                                    .iterations = options_of(&s->dims.cache).niter,
                                    .metric = SL_KMEANS_COSINE,
                                    .centroids = centroids_of(s, layer, seq) +
                                                 (int64_t)g.before * s->dims.cache.head_dim,
                                    .labels = labels_of(s, layer, seq) + g.begin,
                                    .ld_centroids = s->most,
                                    .ld_labels = s->dims.max_context,
                                    .label_base = g.before};
        SL_TRY(sl_be_run(s->be, SL_OP_KMEANS, &p, err));
    }
}

static sl_status cluster_prompt(sl_algo *a, const sl_algo_prompt *p, sl_err *err)
{
    cluster_kv *s = (cluster_kv *)a;
    const sl_key_source keys = sl_algo_keys_of_prompt(&s->dims.cache, p, s->pages);
    SL_TRY(sl_be_copy(s->be, s->prompts + p->seq, &p->tokens, sizeof p->tokens, err));
    SL_TRY(sl_be_copy(s->be, s->pages, p->host_pages, 4 * (size_t)sl_pages_for(p->n_cached), err));
    return make_groups(s, &keys, p->layer, p->seq, p->tokens, 0, p->n_cached, err);
}

static sl_status cluster_update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    cluster_kv *s = (cluster_kv *)a;
    for (int32_t i = 0; i < call->n_runs; i++) {
        const sl_algo_run *run = &call->runs[i];
        const sl_key_source keys = sl_algo_keys_of_run(&s->dims.cache, call, run);
        SL_TRY(make_groups(s, &keys, call->attn->layer, run->seq, run->prompt, run->pos, run->pos + run->n,
                           err));
    }
    return SL_OK;
}

/* Whether a run completes a group. */
static bool cluster_once(const sl_algo *a, const sl_algo_run *runs, int32_t n_runs)
{
    const cluster_kv *s = (const cluster_kv *)a;
    for (int32_t i = 0; i < n_runs; i++)
        if (sl_clusters_at(&s->rule, runs[i].prompt, runs[i].pos).groups !=
            sl_clusters_at(&s->rule, runs[i].prompt, runs[i].pos + runs[i].n).groups)
            return true;
    return false;
}

static sl_status cluster_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                  int32_t *ids, sl_err *err)
{
    cluster_kv *s = (cluster_kv *)a;
    const sl_attn_call *c = call->attn;
    sl_cluster_lists_params p = {.seqs = c->seqs,
                                 .q = c->gqa.attn.q,
                                 .prompts = s->prompts,
                                 .centroids = centroids_of(s, c->layer, 0),
                                 .labels = labels_of(s, c->layer, 0),
                                 .ids = ids,
                                 .token_first = first,
                                 .token_count = count,
                                 .heads = c->gqa.attn.heads,
                                 .kv_heads = s->dims.cache.kv_heads,
                                 .dim = s->dims.cache.head_dim,
                                 .ld_clusters = s->most,
                                 .ld_labels = s->dims.max_context,
                                 .ld_ids = call->k,
                                 .dense_below = call->dense_below,
                                 .rule = s->rule,
                                 .reduce = (sl_group_reduce)options_of(&s->dims.cache).gqa_reduction,
                                 .scale = c->gqa.attn.scale,
                                 .take_of = sl_limits_at(&s->limits, c->layer),
                                 .mass = (float)options_of(&s->dims.cache).list_mass};
    return sl_be_run(s->be, SL_OP_CLUSTER_LISTS, &p, err);
}

/* The last token alone: clusters are made when it is computed, or from pages that have it. */
static int32_t cluster_prompt_window(const sl_cache_dims *d)
{
    (void)d;
    return 1;
}

const sl_algo_desc sl_algo_cluster_kv = {
    .name = "cluster_kv",
    .description = "tokens whose keys are similar to the query, by clusters of the prompt's keys",
    .action = SL_ACTION_VISIBILITY,
    .options = &table,
    .needs_kv_heads = true,
    .constant_k = true,
    .budget_key = "token_budget",
    .default_sinks = DEFAULT_SINKS,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = cluster_selector,
    .check = cluster_check,
    .width = cluster_width,
    .prepare = cluster_prepare,
    .device_bytes = cluster_device_bytes,
    .scratch = cluster_scratch,
    .query_bytes = cluster_query_bytes,
    .create = cluster_create,
    .destroy = cluster_destroy,
    .prompt = cluster_prompt,
    .prompt_window = cluster_prompt_window,
    .update = cluster_update,
    .once = cluster_once,
    .retrieve = cluster_retrieve,
};
