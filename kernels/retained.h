/*
 * Pages of retained tokens: the second stage of RocketKV (arXiv 2502.14051). What a prompt keeps for a KV head
 * (kernels/window.h), its window and the tokens after it, in this order, are the retained tokens of the head; token i of
 * them is retained token i. A page is page_tokens consecutive retained tokens, which may be far apart in the text. Each
 * page has the largest and the smallest value of each channel of its keys, and a query reads the pages with the best
 * scores.
 *
 *   position of retained token i = kept[i] for i < n_kept, else n - min(window, n) + i - n_kept, n tokens in the prompt
 *   c       = the top_r channels with the largest sum over the group of |q_h|; ties go to the smaller channel
 *   ext     = max where the sum over the group of q_h is above 0, else min
 *   s[h][p] = sum over the channels c of q_h * ext of page p
 *   score[p] = sum over the query heads h of the group of softmax over pages of scale * s[h]
 *
 * The sign is shared by the group, so s[h][p] bounds no product of a single query head. What holds with all channels: the
 * sum over h of s[h][p] is at least (sum over h of q_h) . k for every key k of the page, also in the stored type.
 *
 * Bounds have two types: bf16, and e5m2 (1 sign, 5 exponent, 2 mantissa bits; the upper byte of an IEEE half). Both are
 * rounded outward. A finite value that e5m2 cannot hold becomes its largest, 57,344, and is then no bound.
 *
 * A unit is max[dim] | min[dim] of one page and KV head. Units belong to the request alone, since other requests keep other
 * tokens: they are no plane of the cache. But a request has no more retained tokens than tokens, so they lie in its index
 * pages: [kv_heads][64 / page_tokens] units in each, those of retained tokens 64 i .. 64 i + 63 in page i of the request. A
 * unit is written once, when the last token of its page arrives; the open page at a query's end is made of its keys when it
 * is scored. So scores depend on the tokens up to the query alone, whatever else the step appends.
 *
 * Keys are read from the host rows, where those of kept tokens are in any case: a request whose rows are in the hot
 * buffer does not have them on the device.
 *
 * The conventions are those of kernels/params.h, and the ops belong to sl_op as the others do. Both backends have them.
 */
#ifndef SL_KERNELS_RETAINED_H
#define SL_KERNELS_RETAINED_H

#include "kernels/params.h"

typedef enum { SL_KT_E5M2, SL_KT_BF16 } sl_kt_type;

/* The retained tokens of requests, and the bounds of their pages. */
typedef struct sl_retained {
    const int32_t
        *prompts; /* [S][2] tokens of the prompt; kept tokens of a list. 0 tokens: there is no request */
    const int32_t *kept; /* [S][kv_heads][ld_kept] ascending, before the window */
    uint8_t *base;       /* bounds: index page p is at base + p * page_stride */
    int64_t page_stride; /* at least sl_retained_page_bytes() */
    sl_host_plane host_rows;
    sl_row_view rows; /* how host_rows are divided; no device memory */
    int32_t ld_kept, window, page_log2;
    int32_t kv_heads, dim;
    sl_row_format format;
    sl_kt_type type;
} sl_retained;

/*
 * Writes the bounds of the pages that become complete with the step's tokens: with the last token of a prompt all
 * complete pages, with a later token its page if it is the last of the page. Earlier tokens of a prompt write nothing.
 * SL_DEVERR_PAGE: a key has no host page, or a unit no index page. SL_DEVERR_POS: a page is outside the page tables.
 */
typedef struct sl_retained_append_params {
    const sl_seq_tables *seqs; /* token_seq, token_pos, host_pages, index_pages */
    sl_retained r;
} sl_retained_append_params;

/*
 * scores[t][h][p] of the pages of the KV heads h, for the tokens after a prompt, and where these tokens are among the
 * retained ones, as the tables of sl_topk_params: place[0][t] the sequence, place[1][t] the number of the token's
 * own retained token. A token that reads everything (one of a prompt, or at a position below dense_below) and a padding
 * token have place[0] = -1, place[1] = 0 and no scores. Scores of a token that has at most select pages, the open one included, are not
 * written either. Row t - token_first of scores and place belongs to token t; q holds all T.
 */
typedef struct sl_retained_scores_params {
    const float *q; /* [T][heads][dim] */
    const sl_seq_tables *seqs;
    sl_retained r;
    float *scores;  /* [token_count][kv_heads][ld_scores] */
    int32_t *place; /* [2][token_count] */
    int32_t token_first, token_count, heads, ld_scores, dense_below;
    int32_t top_r, select; /* channels of the scores, at most dim; pages of a list */
    float scale;           /* of attention */
} sl_retained_scores_params;

/*
 * Lists of tokens first .. first + count - 1 of a step: the positions of the retained tokens up to the query's in the pages
 * of its list, or 0 .. pos for a token that reads everything; ascending, -1 padded. SL_DEVERR_SELECTION: the list is
 * longer than ld_ids, or a page does not exist. A padding token has an empty list.
 */
typedef struct sl_retained_lists_params {
    const sl_seq_tables *seqs;
    sl_retained r;
    const int32_t
        *pages;   /* [token_count][kv_heads][select] ascending, -1 padded; read for tokens after a prompt */
    int32_t *ids; /* [token_count][kv_heads][ld_ids] */
    int32_t token_first, token_count, ld_ids, dense_below, select;
} sl_retained_lists_params;

/* Bytes of one unit; 0 for an unknown type. Pure. */
int64_t sl_retained_unit_bytes(int32_t dim, sl_kt_type type);

/* Bytes of the units in one index page. Pure. */
static inline int64_t sl_retained_page_bytes(int32_t kv_heads, int32_t dim, int32_t page_log2,
                                             sl_kt_type type)
{
    return ((int64_t)kv_heads << (SL_PAGE_LOG2 - page_log2)) * sl_retained_unit_bytes(dim, type);
}

/* The types by their names in TensorRT-LLM: "float8_e5m2", "bfloat16", NULL at the end. */
const char *const *sl_kt_type_names(void);

/* Number of the retained token at a position, which is that of the window or a later one. */
static inline int32_t sl_retained_index(const sl_retained *r, int32_t seq, int32_t pos)
{
    const int32_t n = r->prompts[2 * (int64_t)seq], window = r->window < n ? r->window : n;
    return r->prompts[2 * (int64_t)seq + 1] + pos - (n - window);
}

/* Position of retained token i of a KV head. */
static inline int32_t sl_retained_pos(const sl_retained *r, int32_t seq, int32_t head, int32_t i)
{
    const int32_t n = r->prompts[2 * (int64_t)seq], kept = r->prompts[2 * (int64_t)seq + 1];
    const int32_t window = r->window < n ? r->window : n;
    return i < kept ? r->kept[((int64_t)seq * r->kv_heads + head) * r->ld_kept + i] : n - window + i - kept;
}

/* Whether a token at this position reads everything: one of the prompt, or below a gate. */
static inline bool sl_retained_reads_all(const sl_retained *r, int32_t seq, int32_t pos, int32_t dense_below)
{
    return pos < r->prompts[2 * (int64_t)seq] || pos < dense_below;
}

#endif
