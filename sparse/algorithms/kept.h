/*
 * What a prompt keeps by the votes of its last tokens (kernels/window.h): the part that is common to SnapKV and to the
 * first stage of RocketKV. Every KV head keeps its best tokens before the observation window, and the window. All rows
 * stay in the host store: the pages of a prompt are those of dense attention and can be shared by prefix, up to the
 * window, and the next turn of a conversation selects anew among all tokens.
 *
 * An algorithm has one sl_kept, gives it every prompt and every step, and reads `prompts` and sl_kept_of() in its lists.
 * The parameters are its options, and sink_tokens of its dimensions.
 *
 * Threads: those of the algorithm.
 */
#ifndef SL_SPARSE_KEPT_H
#define SL_SPARSE_KEPT_H

#include "kernels/gqa.h"
#include "sparse/algorithms/rows.h"
#include "sparse/sparse.h"

/* The options of both algorithms, which begin their structs. */
typedef struct sl_kept_options {
    int prompt_budget, window_size, kernel_size, pooling;
} sl_kept_options;
/* Their rows, for a struct whose first field is `kept`. */
#define SL_KEPT_ROW(type, field, kind, flags, dflt, lo, hi, list, doc)                                       \
    {                                                                                                        \
#field, kind, SL_OPTION_PAGES | (flags), SL_OPTION_FIELD(type, kept.field), dflt, lo, hi, NULL,      \
            list, doc                                                                                        \
    }
#define SL_KEPT_ROWS(type, kernel, pool)                                                                     \
    SL_KEPT_ROW(type, prompt_budget, SL_OPTION_INT, SL_OPTION_CONTEXT, "2048", 1, SL_ROWS_MOST_TOKENS, NULL, \
                "Tokens of a prompt that each KV head keeps, the window included; at most the model's "      \
                "context."),                                                                                 \
        SL_KEPT_ROW(type, window_size, SL_OPTION_INT, 0, "32", 1, 4096, NULL,                                \
                    "Newest tokens of a prompt. Their queries choose the tokens that are kept; they are "    \
                    "always kept."),                                                                         \
        SL_KEPT_ROW(type, kernel_size, SL_OPTION_INT, 0, kernel, 1, 4095, NULL,                              \
                    "Tokens over which votes are pooled; odd."),                                             \
        SL_KEPT_ROW(type, pooling, SL_OPTION_ENUM, 0, pool, 0, 0, sl_pooling_names,                          \
                    "How the votes of neighbouring tokens are pooled.")

typedef struct sl_kept {
    const char *name; /* of the algorithm, for messages */
    sl_backend *be;
    sl_algo_dims dims;
    sl_kept_options options;
    int32_t plane, window, most; /* most: kept tokens of a list, without the window */
    float *queries;              /* device [layers][seqs][window][query heads][dim] */
    float *votes;                /* device [kv_heads][max_context] */
    int32_t *kept;               /* device [layers][seqs][kv_heads][most] */
    int32_t *prompts;            /* device [seqs][2], see sl_kept_lists_params */
    /* device [seqs][2], tables of the token that top-k sees: sequence 0, the last one before the window */
    int32_t *places;
    int32_t *list; /* host [most] */
} sl_kept;

/* Functions of sl_algo_desc with the options, where name is the algorithm's. sl_kept_check: SL_ERR_INVALID or SL_ERR_TOO_LARGE name the
 * key. sl_kept_planes: the plane of kept positions, host only. */
sl_selector sl_kept_selector(const sl_cache_dims *d);
int32_t sl_kept_planes(const sl_cache_dims *d, const sl_kept_options *o, sl_cache_plane *out, int32_t most);
sl_status sl_kept_check(const char *name, const sl_algo_dims *d, const sl_gates *g, const sl_kept_options *o,
                        sl_err *err);
uint64_t sl_kept_device_bytes(const sl_algo_dims *d, const sl_kept_options *o);

/* close frees what a failed open has allocated, too. */
sl_status sl_kept_open(sl_kept *s, const char *name, sl_backend *be, const sl_algo_dims *d,
                       const sl_kept_options *o, sl_err *err);
void sl_kept_close(sl_kept *s);
/* sl_algo_desc.prompt and .update: the selection is made, or taken from the pages. */
sl_status sl_kept_prompt(sl_kept *s, const sl_algo_prompt *p, sl_err *err);
sl_status sl_kept_update(sl_kept *s, const sl_algo_call *call, sl_err *err);

/* Tokens before the window of a prompt, and how many of them are kept. */
int32_t sl_kept_before(const sl_kept *s, int32_t prompt);
int32_t sl_kept_count(const sl_kept *s, int32_t prompt);
/* Kept tokens of a request in a layer: device [kv_heads][most], ascending, of which the first sl_kept_count() are. */
int32_t *sl_kept_of(const sl_kept *s, int32_t layer, int32_t seq);

#endif
