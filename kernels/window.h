/*
 * Selection by an observation window (SnapKV, arXiv 2404.14469): the queries of the last tokens of a prompt vote for
 * the keys before them, the tokens with the most votes are kept, and later tokens read the kept tokens, the window and
 * what was generated.
 *
 *   a[h][w][j]  = softmax over j <= pos of w of scale * q[w][h] . k_j          for the window's tokens w, query head h
 *   sum[v][j]   = sum of a[h][w][j] over w and over the query heads h of KV head v       for j before the window
 *   votes[v][j] = average, or largest, of sum[v][j - kernel/2 .. j + kernel/2]
 *
 * Outside of 0 .. n - 1 the average counts zeros, in a divisor that is always `kernel`, and the largest skips: as
 * avg_pool1d and max_pool1d of torch do with padding kernel/2.
 *
 * The conventions are those of kernels/params.h, and the ops belong to sl_op as the others do. Both backends have
 * them.
 */
#ifndef SL_KERNELS_WINDOW_H
#define SL_KERNELS_WINDOW_H

#include "kernels/params.h"

typedef enum { SL_POOLING_AVG, SL_POOLING_MAX } sl_pooling;

/* The votes of one prompt in one layer. The prompt is resident; its last `window` tokens are the window. Sums of votes are
 * double, in the order of window tokens and within a token of query heads, rounded once. */
typedef struct sl_window_votes_params {
    const float *q;           /* [window][heads][dim] queries of the window, as attention reads them */
    const int32_t *row_pages; /* [ceil(tokens / 64)] device pages of its rows */
    sl_row_view rows;         /* rows of one token each */
    float *votes;   /* [kv_heads][ld_votes], of which the first tokens - window of a head are written */
    int32_t tokens; /* of the prompt, more than window */
    int32_t window, heads, kv_heads, dim, ld_votes;
    int32_t kernel; /* odd */
    sl_pooling pooling;
    float scale;
    sl_row_format format;
} sl_window_votes_params;

/*
 * Lists of tokens first .. first + count - 1 of a step. With n tokens in the prompt of its sequence, the list of a token
 * at pos is
 *
 *   0 .. pos                                               if pos < n, or pos < dense_below
 *   kept | n - window .. n - 1 | the newest `output` of n .. pos       otherwise; output 0: all of n .. pos
 *
 * ascending, -1 padded. SL_DEVERR_SELECTION: the list is longer than ld_ids. A padding token has an empty list.
 */
typedef struct sl_kept_lists_params {
    const sl_seq_tables *seqs;
    const int32_t *prompts; /* [S][2] tokens of the prompt; kept tokens of a list */
    const int32_t *kept;    /* [S][lists][ld_kept] ascending, before the window */
    int32_t *ids;           /* [token_count][lists][ld_ids], the first belong to token_first */
    int32_t token_first, token_count, lists, ld_kept, ld_ids;
    int32_t window, output, dense_below;
} sl_kept_lists_params;

/*
 * What a page has of a prompt whose last token it holds: for each list one unit,
 *
 *   tokens of the prompt i32 | kept tokens of a list i32 | gaps u16 [(unit_bytes - SL_KEPT_HEADER) / 2]
 *   gap: skipped tokens before the next kept one; SL_KEPT_SKIP: as many skipped tokens, and no kept one
 *
 * with zeros after the last gap. The op writes the units of the pages in which a prompt ends with a token of the step.
 * Other pages that begin in the step get zeros, so that their bytes do not depend on earlier requests. Units of list l of
 * a page are at host.base + page * page_stride + l * unit_bytes. SL_DEVERR_PAGE: a token has no host page.
 * SL_DEVERR_SELECTION: kept tokens do not ascend, or the gaps do not fit; the unit is then undefined.
 */
enum { SL_KEPT_HEADER = 8, SL_KEPT_SKIP = 0xffff };

typedef struct sl_kept_store_params {
    const sl_seq_tables *seqs; /* token_seq, token_pos, host_pages */
    const int32_t *prompts;    /* [S][2] tokens of the prompt; kept tokens of a list */
    const int32_t *kept;       /* [S][lists][ld_kept] ascending */
    sl_host_plane host;
    int32_t lists, ld_kept, unit_bytes;
} sl_kept_store_params;

/* The ways of pooling by name: "avgpool", "maxpool", in the order of the enumeration, NULL at the end. */
const char *const *sl_pooling_names(void);

#endif
