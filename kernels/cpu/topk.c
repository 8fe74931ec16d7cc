/*
 * SL_OP_TOPK: exact selection in O(n). Scores become unsigned keys of the same order; three histograms
 * (11, 11, 10 bits) find the k-th largest key and how many of its equals belong to the selection; one more
 * pass over the tokens writes the ids, ascending by construction.
 */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/group.h"
#include "kernels/cpu/place.h"
#include "kernels/mass.h"

#define BINS 2048

/* The keys of one list in scratch memory. Sinks and recent tokens, or the blocks that they are in, get the key of a
 * positive NaN, which no score has. */
static void make_keys(const sl_topk_params *p, const float *scores, int32_t pos, int64_t n, uint32_t *keys)
{
    int64_t recent = p->recent > pos ? 0 : p->recent > 0 ? (pos + 1 - p->recent) >> p->block_log2 : n;
    int64_t sinks = sl_blocks_for(p->sinks, p->block_log2);

    for (int64_t i = 0; i < n; i++)
        keys[i] = sl_score_key(scores[i]);
    for (int64_t i = 0; i < sinks && i < n; i++)
        keys[i] = UINT32_MAX;
    for (int64_t i = recent; i < n; i++)
        keys[i] = UINT32_MAX;
}

/* Walks from the highest bin down to the one that holds the k-th largest key; *k becomes the key's rank within that
 * bin. */
static uint32_t bin_of_rank(const uint32_t *hist, uint32_t bins, int64_t *k)
{
    uint32_t bin = bins - 1;

    while ((int64_t)hist[bin] < *k) /* all bins together hold at least k */
        *k -= hist[bin--];
    return bin;
}

/* The bin, by the top 11 bits, of the k-th largest of n keys. Two histograms are filled alternately, so that
 * neighbouring equal keys do not increment the same counter one directly after the other. */
static uint32_t top_bin(const uint32_t *keys, int64_t n, uint32_t *hist, int64_t *k)
{
    memset(hist, 0, 2 * sizeof(*hist) * BINS);
    for (int64_t i = 0; i + 1 < n; i += 2) {
        hist[keys[i] >> 21]++;
        hist[BINS + (keys[i + 1] >> 21)]++;
    }
    if (n % 2)
        hist[keys[n - 1] >> 21]++;
    for (int b = 0; b < BINS; b++)
        hist[b] += hist[BINS + b];
    return bin_of_rank(hist, BINS, k);
}

/* Keeps the keys whose bits from shift on are those of prefix; out may be keys. */
static int64_t keep(const uint32_t *keys, int64_t n, uint32_t prefix, int shift, uint32_t *out)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t key = keys[i];

        out[kept] = key;
        kept += key >> shift == prefix >> shift;
    }
    return kept;
}

/* The k-th largest of more than k keys; *ties = how many equal to it are selected. left has room for n keys.
 */
static uint32_t threshold(const uint32_t *keys, int64_t n, int64_t k, uint32_t *hist, uint32_t *left,
                          int64_t *ties)
{
    static const int shifts[] = {10, 0};
    uint32_t cut = top_bin(keys, n, hist, &k) << 21;
    int64_t kept = keep(keys, n, cut, 21, left);

    for (int pass = 0; pass < 2; pass++) {
        uint32_t bins = pass == 0 ? 2048 : 1024;

        memset(hist, 0, sizeof(*hist) * bins);
        for (int64_t i = 0; i < kept; i++)
            hist[left[i] >> shifts[pass] & (bins - 1)]++;
        cut |= bin_of_rank(hist, bins, &k) << shifts[pass];
        kept = keep(left, kept, cut, shifts[pass], left);
    }
    *ties = k;
    return cut;
}

static int falling(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

static int rising(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The units of n weights by kernels/mass.h, and the largest weight. */
static uint64_t units_of(const float *scores, int64_t n, float *best)
{
    uint64_t all = 0;

    *best = 0;
    for (int64_t i = 0; i < n; i++)
        *best = scores[i] > *best ? scores[i] : *best;
    for (int64_t i = 0; i < n; i++)
        all += sl_mass_units(scores[i], *best);
    return all;
}

/* Of the ids of a list those that its mass needs, at most `most`; returns how many. order: `count` ranks, key and complement of
 * the id. */
static int64_t cut_list(const sl_topk_params *p, const float *scores, const uint32_t *keys, int64_t n,
                        int64_t most, uint64_t *order, int32_t *ids, int64_t count)
{
    float best = 0;
    uint64_t need = UINT64_MAX, have = 0;
    int64_t kept = 0;

    if (p->mass > 0)
        need = sl_mass_need(p->mass, units_of(scores, n, &best));
    for (int64_t j = 0; j < count; j++)
        order[j] = (uint64_t)keys[ids[j]] << 32 | (uint32_t)~ids[j];
    qsort(order, (size_t)count, sizeof *order, falling);
    while (kept < count && (kept == 0 || (have < need && kept < most) || order[kept] >> 32 == UINT32_MAX)) {
        ids[kept] = (int32_t) ~(uint32_t)order[kept];
        have += best > 0 ? sl_mass_units(scores[ids[kept]], best) : 0;
        kept++;
    }
    qsort(ids, (size_t)kept, sizeof *ids, rising);
    return kept;
}

/* Whether lists are cut after they were selected, so that everything that a token sees has a rank. */
static bool cuts(const sl_topk_params *p)
{
    return p->mass > 0 || p->k_of;
}

/* One list of a token at pos, which sees n blocks and takes at most `most`. Returns how many ids were written. own: 2
 * histograms, then twice n keys, with a cut also n ranks. */
static int64_t select_ids(const sl_topk_params *p, const float *scores, int32_t pos, int64_t n, int64_t most,
                          uint32_t *own, int32_t *ids)
{
    uint32_t *keys = own + 2 * BINS, cut;
    const bool weighed = cuts(p) && pos >= p->dense_below;
    int64_t ties, out = 0;

    if (n <= p->k || pos < p->dense_below)
        for (; out < n; out++)
            ids[out] = (int32_t)out;
    if (out > 0 && !weighed)
        return out;
    if (!weighed && p->block_log2 == 0 && p->sinks + p->recent == p->k) { /* the forced tokens are the list */
        while (out < p->sinks)
            ids[out] = (int32_t)out, out++;
        for (int64_t i = n - p->recent; i < n; i++)
            ids[out++] = (int32_t)i;
        return out;
    }
    make_keys(p, scores, pos, n, keys);
    if (out == 0) {
        cut = threshold(keys, n, p->k, own, keys + n, &ties);
        for (int64_t i = 0; i < n && out < p->k; i++)
            if (keys[i] > cut || (keys[i] == cut && ties-- > 0))
                ids[out++] = (int32_t)i;
    }
    return weighed ? cut_list(p, scores, keys, n, most, (uint64_t *)(void *)(keys + 2 * n), ids, out) : out;
}

static uint32_t list(const void *arg, int64_t i, void *own)
{
    const sl_topk_params *p = arg;
    const int64_t per = p->lists > 1 ? p->lists : 1, most = p->k_of ? p->k_of[i % per] : p->k;
    int32_t *ids = p->ids + (p->token_first * per + i) * p->ld_ids,
            pos = p->seqs->token_pos[p->token_first + i / per];
    int64_t n = ((int64_t)pos >> p->block_log2) + 1;

    if (pos < 0 || ((n > p->k || cuts(p)) && pos >= p->dense_below && n > p->ld_scores))
        return SL_DEVERR_POS;
    for (int64_t j = select_ids(p, p->scores + i * p->ld_scores, pos, n, most, own, ids); j < p->ld_ids; j++)
        ids[j] = -1;
    return 0;
}

static sl_status run_topk(sl_backend *be, const void *params, sl_err *err)
{
    const sl_topk_params *p = params;
    const size_t ranks = cuts(p) ? sizeof(uint64_t) * (size_t)p->ld_scores : 0;
    return sl_cpu_run(be, "topk", sizeof(uint32_t) * 2 * (BINS + (size_t)p->ld_scores) + ranks,
                      (int64_t)p->token_count * (p->lists > 1 ? p->lists : 1), p->ld_scores, list, p, err);
}

const sl_op_impl sl_cpu_topk = {.run = run_topk};
