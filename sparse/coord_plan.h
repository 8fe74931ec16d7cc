/*
 * What a coordinator needs for given options: which combinations are possible, how long a list gets, and how
 * much device memory is taken. Pure: the same answers for planning (no device) and for create. Internal to
 * sparse/.
 */
#ifndef SL_SPARSE_COORD_PLAN_H
#define SL_SPARSE_COORD_PLAN_H

#include "sparse/adaptor.h"
#include "sparse/algorithm.h"
#include "sparse/sparse.h"
#include "sparse/swapin.h"

typedef struct sl_coord_sizes {
    const sl_algo_desc *algo;
    const sl_adaptor *adaptor; /* of the rows' kind of attention */
    sl_algo_dims dims;
    int32_t lists;      /* per token: 1, or the number of KV heads */
    int32_t heads;      /* KV heads that have rows of their own, or 0 (sl_row_view) */
    int32_t block_log2; /* log2 of the tokens of a row, and of an entry of a list */
    bool any_dense;     /* some layers attend to everything */
    bool by_keys;       /* the algorithm selects by keys, not by positions alone */
    int32_t width;      /* longest list of the algorithm, in tokens */
    int32_t run;        /* most tokens of a hierarchical sequence in a step */
    int32_t need_list;  /* longest list of a layer that has hot rows, in tokens */
    int32_t need_hot;   /* least hot_rows: the longest union of a run's lists there, in tokens */
    int32_t spare;      /* blocks of the tail that tokens of a run that are taken back may have begun */
    int32_t longest;    /* longest list of any layer, in tokens */
    int32_t ahead;      /* most layers whose rows can be fetched with the list of a layer before them */
    int64_t ahead_room; /* int32 entries of the lists of one such layer */
    int64_t ids, slice; /* int32 entries of the kept lists, and of one slice's lists */
} sl_coord_sizes;

/* What the swap-in manager of these options is made with; layers are the options' own. */
sl_swapin_opts sl_coord_swapin_opts(const sl_coord_opts *o, const sl_coord_sizes *z);
/* Longest list of the algorithm in one layer, in tokens. */
int32_t sl_coord_layer_width(const sl_coord_sizes *z, const sl_gates *gates, int32_t layer);
sl_status sl_coord_check(const sl_coord_opts *o, sl_coord_sizes *out, sl_err *err);
/* Whether the layer reads the list of a layer before it, and fetches rows. */
bool sl_coord_shares(const sl_coord_opts *o, const sl_coord_sizes *z, int32_t layer);
/* Whether a layer attends to everything: a gate says so, or the algorithm selects in other layers alone. */
bool sl_coord_is_dense(const sl_coord_opts *o, int32_t layer);

#endif
