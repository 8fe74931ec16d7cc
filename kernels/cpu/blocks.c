/*
 * The ops on blocks of tokens (kernels/blocks.h). A task of the scores is one token: its queries with the keys of page after
 * page. A task of the lists is one list of one token: the best blocks are kept in a heap of k, whose worst is on top.
 */
#include "kernels/blocks.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"

/* ---- scores ---- */

/* Products of keys first .. first + n - 1 of a request with one head, into the scores of their blocks. */
static void add_keys(const float *dots, int32_t first, int32_t n, int32_t block_tokens, float *out)
{
    for (int32_t i = 0; i < n;) {
        const int32_t block = (first + i) / block_tokens;
        const int64_t end = ((int64_t)block + 1) * block_tokens - first;
        const int32_t to = end < n ? (int32_t)end : n;
        float most = (first + i) % block_tokens ? out[block] : -INFINITY;

        for (; i < to; i++)
            most = dots[i] > most ? dots[i] : most;
        out[block] = most;
    }
}

static uint32_t score_token(const void *arg, int64_t i, void *own)
{
    const sl_block_scores_params *p = arg;
    const int64_t t = p->token_first + i;
    float *dots = own;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad)
        return bad;
    if (at.pos < p->from_pos)
        return 0;
    if (at.pos / p->block_tokens >= p->ld_scores)
        return SL_DEVERR_POS;
    const int32_t *pages = p->seqs->index_pages + (int64_t)at.seq * p->seqs->ld;
    float *out = p->scores + i * p->heads * p->ld_scores;
    for (int32_t first = 0; first <= at.pos; first += SL_PAGE_TOKENS) {
        const int32_t page = pages[first / SL_PAGE_TOKENS], left = at.pos + 1 - first;
        const int32_t n = left < SL_PAGE_TOKENS ? left : SL_PAGE_TOKENS;

        if (page < 0)
            return SL_DEVERR_PAGE;
        const float *keys = (const float *)(const void *)(p->index_base + page * p->index_page_stride);
        sl_vec_products((sl_vec_rows){keys, p->dim, n},
                        (sl_vec_rows){p->q + t * p->heads * p->dim, p->dim, p->heads}, p->dim, dots,
                        SL_PAGE_TOKENS);
        for (int32_t h = 0; h < p->heads; h++)
            add_keys(dots + (int64_t)h * SL_PAGE_TOKENS, first, n, p->block_tokens,
                     out + (int64_t)h * p->ld_scores);
    }
    return 0;
}

static sl_status run_block_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_block_scores_params *p = params;
    return sl_cpu_run(be, "block_scores", 4 * (size_t)p->heads * SL_PAGE_TOKENS, p->token_count,
                      (int64_t)p->ld_scores * p->heads * p->dim, score_token, p, err);
}

const sl_op_impl sl_cpu_block_scores = {.run = run_block_scores};

/* ---- lists ---- */

/* By rank: the key of the score above, the older block below. Larger is better. */
static uint64_t rank_of(uint32_t key, int32_t block)
{
    return (uint64_t)key << 32 | (UINT32_MAX - (uint32_t)block);
}

/* Restores the order of a heap of n whose top, the smallest, was replaced. */
static void sift(uint64_t *heap, int32_t n)
{
    for (int32_t i = 0;;) {
        int32_t least = 2 * i + 1;

        if (least >= n)
            return;
        if (least + 1 < n && heap[least + 1] < heap[least])
            least++;
        if (heap[i] <= heap[least])
            return;
        const uint64_t other = heap[i];
        heap[i] = heap[least], heap[least] = other;
        i = least;
    }
}

/* The rank of the worst block that is selected, of n > k blocks. heap: room for k. */
static uint64_t worst_of(const sl_block_lists_params *p, const float *scores, int32_t pos, int32_t n,
                         uint64_t *heap)
{
    const int64_t oldest = (int64_t)pos + 1 - p->recent; /* of the recent tokens */

    memset(heap, 0, sizeof *heap * (size_t)p->k);
    for (int32_t b = 0; b < n; b++) {
        const int64_t first = (int64_t)b * p->block_tokens, end = first + p->block_tokens;
        const bool forced = first < p->sinks || (p->recent > 0 && end > oldest);
        const uint64_t rank = rank_of(forced ? UINT32_MAX : sl_score_key(scores[b]), b);

        if (rank > heap[0])
            heap[0] = rank, sift(heap, p->k);
    }
    return heap[0];
}

static uint32_t list_of(const void *arg, int64_t i, void *heap)
{
    const sl_block_lists_params *p = arg;
    const int64_t t = p->token_first + i / p->lists;
    const int32_t list = (int32_t)(i % p->lists);
    int32_t *ids = p->ids + (t * p->lists + list) * p->ld_ids, used = 0;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad && bad != SL_PLACE_NONE)
        return bad;
    const int32_t n = bad ? 0 : at.pos / p->block_tokens + 1, rows = bad ? 0 : (at.pos >> p->block_log2) + 1;
    const int32_t each = p->block_tokens >> p->block_log2;
    const bool all = bad || n <= p->k || at.pos < p->dense_below;
    if (!all && n > p->ld_scores)
        return SL_DEVERR_POS;
    const int32_t head = list / (p->lists / p->heads);
    const float *scores = p->scores + ((t - p->token_first) * p->heads + head) * p->ld_scores;
    const int64_t oldest = bad ? 0 : (int64_t)at.pos + 1 - p->recent;
    const uint64_t worst = all ? 0 : worst_of(p, scores, at.pos, n, heap);
    for (int32_t b = 0; b < n; b++) {
        const int64_t first = (int64_t)b * p->block_tokens, end = first + p->block_tokens;
        const bool forced = first < p->sinks || (p->recent > 0 && end > oldest);

        if (!all && rank_of(forced ? UINT32_MAX : sl_score_key(scores[b]), b) < worst)
            continue;
        for (int64_t r = (int64_t)b * each; r < ((int64_t)b + 1) * each && r < rows; r++) {
            if (used == p->ld_ids)
                return SL_DEVERR_SELECTION;
            ids[used++] = (int32_t)r;
        }
    }
    for (; used < p->ld_ids; used++)
        ids[used] = -1;
    return 0;
}

static sl_status run_block_lists(sl_backend *be, const void *params, sl_err *err)
{
    const sl_block_lists_params *p = params;
    return sl_cpu_run(be, "block_lists", sizeof(uint64_t) * (size_t)p->k, (int64_t)p->token_count * p->lists,
                      4 * (int64_t)p->ld_scores + p->ld_ids, list_of, p, err);
}

const sl_op_impl sl_cpu_block_lists = {.run = run_block_lists};
