/*
 * double_sparsity: tokens by the product of the query with a few channels of their keys (arXiv 2408.07092), for models
 * with KV heads. Which channels of each KV head these are was found before by a calibration (sparse/channels.h). A
 * query selects exactly token_budget tokens, those with the largest products; nothing is selected in any case, but the
 * gates may force the first and the newest tokens.
 *
 * The channels of a key are its label (kernels/labels.h). Labels are a plane of the cache, of one page and KV head per
 * unit: they are made when a token is appended, lie in the host pages and travel with them. They are a pure function of
 * the token's key, so that pages from a prefix, a storage tier or another worker are used as they are. The stamp of the
 * rows contains the table of channels, because what deeper layers store depends on it.
 *
 * What differs from the paper's code and SGLang's, and why: each KV head has a list, not each query head, because a row
 * of the hot buffer belongs to a KV head; and every query selects, also those of a prompt, because the contents of a
 * page must not depend on where a prompt ended (see quest.c). The gate min_tokens keeps queries before a position dense.
 */
#include "sparse/algorithm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/labels.h"
#include "sparse/algorithms/by_scores.h"
#include "sparse/algorithms/rows.h"
#include "sparse/budgets.h"
#include "sparse/channels.h"
#include "sparse/load.h"

typedef struct sparsity_options {
    int token_budget, heavy_channels;
    int list_scope, gqa_reduction;
    double list_mass;
    char channel_config_path[256], budgets_path[256];
    const sl_channels *channels; /* no options: the contents of these files */
    const sl_budgets *budgets;
} sparsity_options;

static const sl_option option_rows[] = {
    SL_ROW_TOKEN_BUDGET(sparsity_options,
                        "Tokens that a query reads at most, sinks and recent tokens included; at most the "
                        "model's context."),
    SL_ROW_LIST_SCOPE(sparsity_options),
    SL_ROW_GQA_REDUCTION(sparsity_options, "token"),
    SL_ROW_LIST_MASS(sparsity_options),
    SL_ROW_BUDGETS(sparsity_options),
    SL_OPTION(
        sparsity_options, channel_config_path, SL_OPTION_TEXT, 0, "", 0, 0,
        "The file with the calibrated channels of keys, which `sluice calibrate` makes for the model. Pages of other "
        "channels never match."),
    SL_ROW_INT(sparsity_options, heavy_channels, "32", 1, 1024,
               "Channels of each key that selection reads; at most as many as the file lists."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "double_sparsity",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = option_rows,
                                 .n = SL_COUNT(option_rows),
                                 .bytes = sizeof(sparsity_options)};
_Static_assert(sizeof(sparsity_options) <= SL_SELECT_BYTES, "options are kept in sl_select_options");

static sparsity_options options_of(const sl_cache_dims *d)
{
    sparsity_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

typedef struct sparsity {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    sl_by_scores by_scores;
    sl_limits limits;
    int32_t *channels; /* device [n_layers][kv_heads][count], ascending within a head */
    int32_t plane;     /* of the labels */
    int32_t count;
    sl_dtype dtype;
} sparsity;

static int32_t budget_of(const sl_cache_dims *d)
{
    return options_of(d).token_budget;
}

static int32_t channels_of(const sl_cache_dims *d)
{
    return options_of(d).heavy_channels;
}

static sl_dtype label_type(const sl_cache_dims *d)
{
    return sl_exact_key_type(d);
}

/* Loads the table of channels. */
static sl_status sparsity_prepare(void *options, const sl_algo_model *m, uint64_t *content, sl_err *err)
{
    sparsity_options *o = options;
    SL_TRY(sl_algo_mass_check(o->list_mass, o->gqa_reduction, err));
    if (m->kv_heads < 1) /* refused with the reason when the cache is shaped */
        return SL_OK;
    if (!o->channel_config_path[0])
        return sl_fail(
            err, SL_ERR_INVALID,
            "channel_config_path is not set; `sluice calibrate` makes the file that the algorithm needs");
    sl_status st = sl_channels_load(o->channel_config_path, m, &o->channels, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "channel_config_path");
    if (o->heavy_channels > o->channels->count)
        return sl_fail(err, SL_ERR_INVALID, "heavy_channels is %d, but %s lists %d channels per head",
                       o->heavy_channels, o->channel_config_path, o->channels->count);
    *content = o->channels->hash;
    return sl_budgets_prepare(o->budgets_path, m, &o->budgets, content, err);
}

void sl_select_channels(sl_select_options *s, const sl_channels *channels)
{
    sparsity_options o;
    memcpy(&o, s->values, sizeof o);
    o.channels = channels;
    memcpy(s->values, &o, sizeof o);
}

static sl_selector sparsity_selector(const sl_cache_dims *d)
{
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = 1,
                         .key = SL_KEY_STORED,
                         .score = SL_SCORE_RAW,
                         .scope = options_of(d).list_scope == SL_ROW_SCOPE_REQUEST ? SL_SCOPE_REQUEST
                                                                                   : SL_SCOPE_KV_HEAD};
}

static int32_t sparsity_planes(const sl_cache_dims *d, sl_cache_plane *out, int32_t most)
{
    const sl_dtype type = label_type(d);
    if (most < 1)
        return 0;
    *out = (sl_cache_plane){.name = "labels",
                            .role = SL_PLANE_META,
                            .scope = SL_SCOPE_KV_HEAD,
                            .heads = d->kv_heads,
                            .unit_tokens = SL_PAGE_TOKENS,
                            .n_parts = 1};
    snprintf(out->format, sizeof out->format, "labels_%s", type == SL_F32 ? "f32" : "bf16");
    out->parts[0] =
        (sl_cache_part){.name = "label", .dtype = type, .per = SL_PER_TOKEN, .count = channels_of(d)};
    return 1;
}

static sl_status sparsity_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const sl_cache_dims *c = &d->cache;
    const sl_channels *t = options_of(c).channels;
    if (!t)
        return sl_fail(err, SL_ERR_INVALID,
                       "double_sparsity: channel_config_path is not set; `sluice calibrate` makes the file");
    if (t->n_layers != d->n_layers || t->kv_heads != c->kv_heads || t->head_dim != c->head_dim)
        return sl_fail(
            err, SL_ERR_REFUSED,
            "double_sparsity: the channels are those of %d layers, %d KV heads and head_dim %d, but the "
            "model has %d, %d and %d",
            t->n_layers, t->kv_heads, t->head_dim, d->n_layers, c->kv_heads, c->head_dim);
    if (channels_of(c) > t->count)
        return sl_fail(
            err, SL_ERR_INVALID,
            "double_sparsity: heavy_channels is %d, but the calibration lists %d channels per head",
            channels_of(c), t->count);
    if (g->sink_tokens + g->recent_tokens > budget_of(c))
        return sl_fail(err, SL_ERR_INVALID,
                       "double_sparsity: sink_tokens %d + recent_tokens %d exceed token_budget %d",
                       g->sink_tokens, g->recent_tokens, budget_of(c));
    return SL_OK;
}

static int32_t lists_of(const sl_algo_dims *d)
{
    return options_of(&d->cache).list_scope == SL_ROW_SCOPE_REQUEST ? 1 : d->cache.kv_heads;
}

/* Tokens that every list has. */
static int32_t least_tokens(const sl_algo_dims *d)
{
    const int32_t forced = d->sinks + d->recent;
    return forced > 1 ? forced : 1;
}

/* Tokens of the longest list of a layer; -1: of all. */
static int32_t most_tokens(const sl_algo_dims *d, int32_t layer)
{
    return sl_budgets_longest(options_of(&d->cache).budgets, layer, budget_of(&d->cache), least_tokens(d));
}

static int32_t sparsity_layer_width(const sl_algo_dims *d, int32_t dense_below, int32_t layer)
{
    return sl_budget_width(d, most_tokens(d, layer), dense_below);
}

static int32_t sparsity_width(const sl_algo_dims *d, int32_t dense_below)
{
    return sparsity_layer_width(d, dense_below, -1);
}

static int64_t score_floats(const sl_algo_dims *d)
{
    return sl_by_scores_floats(d, lists_of(d), 0);
}

static size_t table_entries(const sl_algo_dims *d)
{
    return (size_t)d->n_layers * (size_t)d->cache.kv_heads * (size_t)channels_of(&d->cache);
}

static uint64_t sparsity_device_bytes(const sl_algo_dims *d)
{
    return 4 * ((uint64_t)score_floats(d) + table_entries(d)) +
           sl_limits_bytes(options_of(&d->cache).budgets, lists_of(d));
}

static void sparsity_destroy(sl_algo *a)
{
    sparsity *s = (sparsity *)a;
    if (!s)
        return;
    sl_be_free(s->be, SL_MEM_DEVICE, s->channels);
    sl_limits_close(&s->limits);
    sl_by_scores_close(&s->by_scores);
    free(s);
}

static int rising(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The most important channels of each head, ascending: the order in which a file lists them changes no sum. */
static sl_status copy_channels(sparsity *s, sl_err *err)
{
    const sl_channels *t = options_of(&s->dims.cache).channels;
    const size_t n = table_entries(&s->dims), count = (size_t)s->count;
    int32_t *of = malloc(n * sizeof *of);
    if (!of)
        return sl_fail(err, SL_ERR_NO_MEMORY, "double_sparsity: out of memory");
    for (size_t h = 0; h < n / count; h++) {
        memcpy(of + h * count, t->of + h * (size_t)t->count, count * sizeof *of);
        qsort(of + h * count, count, sizeof *of, rising);
    }
    sl_status st = sl_be_copy(s->be, s->channels, of, n * sizeof *of, err);
    if (st == SL_OK)
        st = sl_be_sync(s->be, err);
    free(of);
    return st;
}

static sl_status make_memory(sparsity *s, sl_err *err)
{
    SL_TRY(sl_by_scores_open(&s->by_scores, s->be, score_floats(&s->dims), err));
    SL_TRY(sl_limits_open(&s->limits, s->be, options_of(&s->dims.cache).budgets, lists_of(&s->dims),
                          budget_of(&s->dims.cache), least_tokens(&s->dims), err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, table_entries(&s->dims) * 4, (void **)&s->channels, err));
    return copy_channels(s, err);
}

static sl_status sparsity_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    sparsity *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "double_sparsity: out of memory");
    *s = (sparsity){.base.desc = &sl_algo_double_sparsity, .be = be, .dims = *d};
    s->plane = sl_cache_find(&d->shape, SL_PLANE_META);
    s->count = channels_of(&d->cache);
    s->dtype = label_type(&d->cache);
    sl_status st = make_memory(s, err);
    if (st != SL_OK) {
        sparsity_destroy(&s->base);
        return st;
    }
    *out = &s->base;
    return SL_OK;
}

static const int32_t *layer_channels(const sparsity *s, int32_t layer)
{
    return s->channels + (int64_t)layer * s->dims.cache.kv_heads * s->count;
}

static sl_status sparsity_update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    sparsity *s = (sparsity *)a;
    const sl_algo_plane *plane = &call->planes[s->plane];
    const sl_labels_append_params p = {.seqs = call->attn->seqs,
                                       .rows = call->rows,
                                       .host_rows = call->host_rows,
                                       .base = plane->device,
                                       .page_stride = plane->device_stride,
                                       .host = plane->host,
                                       .channels = layer_channels(s, call->attn->layer),
                                       .heads = s->dims.cache.kv_heads,
                                       .dim = s->dims.cache.head_dim,
                                       .count = s->count,
                                       .format = s->dims.cache.rows->format,
                                       .dtype = s->dtype};
    return sl_be_run(s->be, SL_OP_LABELS_APPEND, &p, err);
}

static sl_status sparsity_construct(sl_algo *a, const sl_algo_pages *p, sl_err *err)
{
    sparsity *s = (sparsity *)a;
    return sl_load_plane(s->be, &s->dims.shape.planes[s->plane], &p->planes[s->plane], p->host_pages,
                         p->device_pages, p->n_pages, err);
}

static sl_status sparsity_score(sl_algo *a, const sl_algo_call *call, const sl_score_slice *slice,
                                sl_err *err)
{
    sparsity *s = (sparsity *)a;
    const sl_attn_call *c = call->attn;
    const sl_algo_plane *plane = &call->planes[s->plane];
    const sl_labels_scores_params l = {.q = c->gqa.attn.q,
                                       .seqs = c->seqs,
                                       .base = plane->device,
                                       .page_stride = plane->device_stride,
                                       .channels = layer_channels(s, c->layer),
                                       .scores = s->by_scores.scores,
                                       .token_first = slice->first,
                                       .token_count = slice->count,
                                       .heads = c->gqa.attn.heads,
                                       .kv_heads = s->dims.cache.kv_heads,
                                       .dim = s->dims.cache.head_dim,
                                       .count = s->count,
                                       .lists = call->lists,
                                       .ld_scores = slice->ld,
                                       .from_pos = slice->from_pos,
                                       .reduce = (sl_group_reduce)options_of(&s->dims.cache).gqa_reduction,
                                       .scale = c->gqa.attn.scale,
                                       .dtype = s->dtype};
    return sl_be_run(s->be, SL_OP_LABELS_SCORES, &l, err);
}

static sl_status sparsity_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                   int32_t *ids, sl_err *err)
{
    const sparsity *s = (const sparsity *)a;
    const sl_best best = {.budget = most_tokens(&s->dims, call->attn->layer),
                          .limits = sl_limits_at(&s->limits, call->attn->layer),
                          .sinks = call->sinks,
                          .recent = call->recent,
                          .mass = options_of(&s->dims.cache).list_mass,
                          .score = sparsity_score};
    return sl_by_scores_retrieve(&s->by_scores, &best, a, call, first, count, ids, err);
}

const sl_algo_desc sl_algo_double_sparsity = {
    .name = "double_sparsity",
    .description =
        "tokens with the largest products of the query with a few calibrated channels of their keys",
    .action = SL_ACTION_VISIBILITY,
    .budget_key = "token_budget",
    .options = &table,
    .prepare = sparsity_prepare,
    .needs_kv_heads = true,
    .constant_k = true,
    .keeps_lists = true,
    .groupable = true,
    .reads_rows = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = sparsity_selector,
    .planes = sparsity_planes,
    .check = sparsity_check,
    .width = sparsity_width,
    .layer_width = sparsity_layer_width,
    .device_bytes = sparsity_device_bytes,
    .create = sparsity_create,
    .destroy = sparsity_destroy,
    .construct = sparsity_construct,
    .update = sparsity_update,
    .retrieve = sparsity_retrieve,
};
