/* Sizes of scratch.h: of the ops that select. */
#include "kernels/scratch.h"

#include "kernels/formats.h"

static size_t up256(size_t n)
{
    return (n + 255) & ~(size_t)255;
}

int32_t sl_slice_of(size_t each, int32_t all)
{
    const size_t fit = SL_SCRATCH_SLICE / (each ? each : 1);
    const int32_t most = fit < 1 ? 1 : fit > SL_SLICE_TOKENS ? SL_SLICE_TOKENS : (int32_t)fit;

    return most < all ? most : all > 0 ? all : 1;
}

size_t sl_slices_most(size_t each, int32_t all)
{
    const size_t most = each > SL_SCRATCH_SLICE ? each : SL_SCRATCH_SLICE;

    return all < 1 ? 0 : (size_t)all < most / (each ? each : 1) ? (size_t)all * each : most;
}

static size_t slices(size_t each, int32_t all)
{
    return all > 0 ? (size_t)sl_slice_of(each, all) * each : 0;
}

size_t sl_raw_scratch(int32_t heads, int32_t ld)
{
    return (size_t)heads * (4 * (size_t)ld + sizeof(double));
}

size_t sl_places_scratch(int32_t heads, int32_t ld)
{
    return 16 * (size_t)heads * (size_t)ld;
}

/* ---- scores of bounds and labels ---- */

size_t sl_digits_bytes(int32_t heads, int32_t kv_heads, int32_t dim, bool mean)
{
    enum {
        TOGETHER = 4,
        LINE = 256,
        SCALES = 16
    }; /* queries of a record; its bytes of a group of channels */
    const int32_t queries = mean ? 1 : heads / kv_heads,
                  groups = (dim + SL_BOUNDS_GROUP - 1) / SL_BOUNDS_GROUP;

    return (size_t)((queries + TOGETHER - 1) / TOGETHER) * ((size_t)groups * LINE + SCALES);
}

size_t sl_digits_scratch(int32_t heads, int32_t kv_heads, int32_t dim, int32_t lists, int32_t ld, bool mean)
{
    const size_t scores = lists < kv_heads ? 4 * (size_t)kv_heads * (size_t)ld : 0;

    return (size_t)kv_heads * sl_digits_bytes(heads, kv_heads, dim, mean) + (scores + 15) / 16 * 16;
}

size_t sl_group_scratch(sl_group_reduce reduce, int32_t heads, int32_t ld, size_t digits)
{
    const bool by_place = reduce == SL_GROUP_UNION, whole = by_place || reduce == SL_GROUP_SOFTMAX;

    return digits + (by_place ? sl_places_scratch(heads, ld) : 0) + (whole ? sl_raw_scratch(heads, ld) : 0);
}

static size_t bounds_scores(const sl_bounds_scores_params *p)
{
    const size_t digits = p->dtype == SL_I8 ? sl_digits_scratch(p->heads, p->kv_heads, p->dim, p->lists,
                                                                p->ld_scores, p->reduce == SL_GROUP_MEAN)
                                            : 0,
                 each = sl_group_scratch(p->reduce, p->heads, p->ld_scores, digits);

    return slices(each, p->token_count);
}

static size_t labels_scores(const sl_labels_scores_params *p)
{
    return slices(sl_group_scratch(p->reduce, p->heads, p->ld_scores, 0), p->token_count);
}

static size_t retained_scores(const sl_retained_scores_params *p)
{
    return slices(sl_raw_scratch(p->heads, p->ld_scores), p->token_count);
}

/* ---- clusters and codes ---- */

sl_codes_space sl_codes_space_of(int32_t tokens, int32_t heads, int32_t parts, int32_t k, int32_t ld)
{
    const size_t rows = (size_t)tokens * (size_t)heads, sums = 8 * rows, places = 8 * (size_t)tokens,
                 tables = 4 * rows * (size_t)parts * (size_t)k;

    return (sl_codes_space){.places = sums,
                            .tables = sums + places,
                            .products = sums + places + tables,
                            .bytes = sums + places + tables + 4 * rows * (size_t)ld};
}

static size_t code_scores(const sl_code_scores_params *p)
{
    const size_t one = sl_codes_space_of(1, p->heads, p->parts, p->k, p->ld_scores).bytes;

    return p->token_count < 1
               ? 0
               : sl_codes_space_of(sl_slice_of(one, p->token_count), p->heads, p->parts, p->k, p->ld_scores)
                     .bytes;
}

sl_clusters_space sl_clusters_space_of(int32_t tokens, int32_t seqs, int32_t heads, int32_t kv_heads,
                                       int32_t ld_clusters, sl_group_reduce reduce)
{
    const bool by_place = reduce == SL_GROUP_UNION, by_head = by_place || reduce == SL_GROUP_SOFTMAX;
    const size_t most = (size_t)tokens, ld = (size_t)ld_clusters,
                 each = most * (size_t)heads * (by_place ? 2 * ld : 1), sums = by_head ? 8 * each : 0,
                 pages = 4 * (size_t)seqs * ((ld + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS), tables = 8 * most;

    return (sl_clusters_space){.pages = sums,
                               .tables = sums + pages,
                               .scores = sums + pages + tables,
                               .bytes = sums + pages + tables +
                                        4 * most * (size_t)(by_head ? heads : kv_heads) * ld};
}

static size_t cluster_lists(const sl_cluster_lists_params *p)
{
    const int32_t seqs = p->seqs ? p->seqs->n_seqs : 0;
    const size_t one = sl_clusters_space_of(1, seqs, p->heads, p->kv_heads, p->ld_clusters, p->reduce).bytes;

    return p->token_count < 1 ? 0
                              : sl_clusters_space_of(sl_slice_of(one, p->token_count), seqs, p->heads,
                                                     p->kv_heads, p->ld_clusters, p->reduce)
                                    .bytes;
}

sl_points_space sl_points_space_of(int32_t heads, int32_t tokens, int32_t dim, int32_t parts, int32_t k)
{
    const size_t sets = (size_t)heads * (size_t)parts, n = (size_t)tokens,
                 pad = (size_t)(dim / parts + 7) / 8 * 8;
    sl_points_space s;

    s.rows = up256(4 * (size_t)heads * n * (size_t)dim);
    s.half = s.rows + up256(4 * sets * (size_t)k * pad);
    s.labels = s.half + up256(4 * sets * (size_t)k);
    s.changed = s.labels + up256(4 * sets * n);
    s.done = s.changed + up256(4 * sets);
    s.distance = s.done + up256(4 * sets);
    s.count = s.distance + up256(8 * sets * n);
    s.bytes = s.count + 4 * sets * (size_t)k;
    return s;
}

int32_t sl_points_heads(int32_t heads, int32_t tokens, int32_t dim, int32_t parts, int32_t k)
{
    const size_t fit = SL_SCRATCH_SLICE / sl_points_space_of(1, tokens, dim, parts, k).bytes;
    const int32_t most = fit < 1               ? 1
                         : fit < (size_t)heads ? (int32_t)fit
                                               : heads,
                  times = (heads + most - 1) / most;

    return (heads + times - 1) / times;
}

static size_t points(const sl_key_source *keys, int32_t tokens, int32_t parts, int32_t k)
{
    return sl_points_space_of(sl_points_heads(keys->heads, tokens, keys->dim, parts, k), tokens, keys->dim,
                              parts, k)
        .bytes;
}

static size_t codes(const sl_codes_params *p)
{
    return p->step ? 0 : points(&p->keys, p->tokens, p->parts, p->k);
}

static size_t kmeans(const sl_kmeans_params *p)
{
    return points(&p->keys, p->tokens, p->parts, p->k);
}

/* ---- prompts and lists ---- */

size_t sl_votes_sums(int32_t kv_heads, int32_t keys)
{
    return 8 * (size_t)kv_heads * (size_t)keys;
}

static size_t window_votes(const sl_window_votes_params *p)
{
    return sl_votes_sums(p->kv_heads, p->tokens - p->window) +
           slices(sl_raw_scratch(p->heads, (p->tokens + 3) / 4 * 4), p->window);
}

size_t sl_prompt_plain_scratch(int32_t heads, int32_t pages)
{
    return 4 * (size_t)heads * SL_STRIPS * (size_t)pages * SL_STRIPS;
}

sl_prompt_space sl_prompt_space_of(int32_t heads, int32_t dim, int32_t pages)
{
    const size_t rows = (size_t)heads * SL_STRIPS,
                 segments = ((size_t)pages * SL_STRIPS + SL_STRIP_SEGMENT - 1) / SL_STRIP_SEGMENT;

    return (sl_prompt_space){.q = rows * SL_PROMPT_STRIP * (size_t)dim * 2,
                             .sums = up256(rows * (size_t)pages * 4),
                             .tops = up256(rows * segments * 4)};
}

/* Whichever of the two kernels runs. */
static size_t prompt_scores(const sl_prompt_scores_params *p)
{
    const int32_t pages = p->max_pos / SL_PAGE_TOKENS + 1;
    const sl_prompt_space s = sl_prompt_space_of(p->heads, p->dim, pages);
    const size_t plain = slices(sl_prompt_plain_scratch(p->heads, pages), p->n),
                 tensor = slices(s.q + s.sums + s.tops, p->n);

    return plain > tensor ? plain : tensor;
}

/* Rows that need no scores, or are short, have no hint; a fast kernel for few rows may do without it. */
static size_t topk(const sl_topk_params *p)
{
    const int64_t rows = (int64_t)p->token_count * (p->lists > 1 ? p->lists : 1);

    if (p->hint || p->ld_scores <= SL_TOPK_ROW_MAX || p->k >= p->ld_scores || rows > INT32_MAX ||
        (p->block_log2 == 0 && p->sinks + p->recent == p->k))
        return 0;
    return sl_topk_hint_bytes((int32_t)rows, p->ld_scores);
}

size_t sl_select_scratch(sl_op op, const void *params)
{
    switch (op) {
    case SL_OP_BOUNDS_SCORES:
        return bounds_scores(params);
    case SL_OP_LABELS_SCORES:
        return labels_scores(params);
    case SL_OP_RETAINED_SCORES:
        return retained_scores(params);
    case SL_OP_CODE_SCORES:
        return code_scores(params);
    case SL_OP_CLUSTER_LISTS:
        return cluster_lists(params);
    case SL_OP_KMEANS:
        return kmeans(params);
    case SL_OP_CODES:
        return codes(params);
    case SL_OP_WINDOW_VOTES:
        return window_votes(params);
    case SL_OP_PROMPT_SCORES:
        return prompt_scores(params);
    case SL_OP_TOPK:
        return topk(params);
    default:
        return 0;
    }
}
