/*
 * The coordinator's state, and the functions that its files call of each other. By subject:
 *
 *   coordinator.c        create and destroy, which layers are dense or wanted, counters and clocks
 *   coord_plan.c         which options are possible, and how much device memory they take
 *   coord_request.c      a request begins, is spilled, ends
 *   coord_step.c         a step begins and ends
 *   coord_attend.c       one layer of a step: capture, select, swap in, attend
 *   coord_groups.c       the same for a decode step that is cut into groups of tokens
 *   coord_ahead.c        rows of layers that share a list, before their turn
 *
 * Not for other rooms.
 */
#ifndef SL_SPARSE_COORDINATOR_IMPL_H
#define SL_SPARSE_COORDINATOR_IMPL_H

#include "sparse/adaptor.h"
#include "sparse/coord_plan.h"
#include "sparse/sparse.h"
#include "sparse/swapin.h"
#include "sparse/tracker.h"

/* Token groups that `groups` 0 stands for, where the backend copies while it computes. */
enum { SL_COORD_AUTO_GROUPS = 2 };

struct sl_coord {
    sl_backend *be;
    sl_coord_opts o;
    sl_coord_sizes z;
    bool async; /* the backend copies concurrently with ops */
    bool rows_free;
    sl_coord_layer *layers;
    bool *is_dense;  /* [n_layers]: the layer attends to everything */
    bool *is_wanted; /* [n_layers]: its selection is read by the layer itself or by a layer that shares it */
    bool *may_be_late; /* [n_layers], sl_attend_seam.late of a step in groups: the layer has an indexer */
    bool *shares;      /* [n_layers]: the layer reads the list of a layer before it, and has rows to fetch */
    sl_algo *algo, *dense; /* dense: for dense layers, NULL when there are none */
    sl_swapin *swapin;
    sl_tracker tracker;
    sl_algo_run *runs; /* [max_seqs] of the running step */
    int32_t n_runs;
    int32_t per; /* of a shaped step: tokens for every run, padding included; else 1 */
    /* For an algorithm that selects at the end of prompts: some, or all, tokens of the step are tokens of prompts. */
    bool in_prompt, all_prompt;
    bool no_hot; /* no sequence of the step is hierarchical, nor of steps that repeat this one as a graph */
    sl_coord_draw draw;
    sl_algo_scores scores;           /* of a probe: what the call's lists were selected by */
    int32_t *ids, *slice_ids, *phys; /* device */
    /* The rows of layers owner + 1 .. last were fetched with the list of `owner`, or are being fetched, in this number of groups. */
    struct {
        int32_t owner, last, groups;
        int32_t *phys; /* device [z.ahead][z.ahead_room] */
    } ahead;
    int32_t index_plane;     /* of the model's index keys; -1: none */
    int32_t *no_slots;       /* device [max_seqs] of -1: the hot slots of a resident layer */
    const int32_t *last_ids; /* of the last attend */
    int32_t last_k;
    uint64_t *tiles; /* device [2], see sl_coord_tiles(); NULL: the kernel leaves out none */
    /* The same of lists of pages of prompts, in host memory; counted points to it or is NULL. */
    uint64_t pages[2], *counted;
    uint64_t attend_ns, swap_ns, device_bytes;
};

/* Whether the layer makes a list of its own. */
static inline bool sl_coord_selects(const sl_coord *c, int32_t layer)
{
    return !c->layers[layer].absent && (!c->z.algo->needs_indexer || c->layers[layer].has_indexer);
}

/* Whether the rows of the layer were fetched when an earlier layer of the step selected. */
static inline bool sl_coord_is_ahead(const sl_coord *c, int32_t layer)
{
    return layer > c->ahead.owner && layer <= c->ahead.last;
}

/* Where the lists of token `first` begin in an array of lists. */
static inline int64_t sl_coord_lists_at(const sl_algo_call *a, int32_t first)
{
    return (int64_t)first * a->lists * a->k;
}

/* ---- coord_attend.c ---- */

/* New rows, to the device and to the host pages. */
sl_status sl_coord_capture_rows(sl_coord *c, const sl_attn_call *call, sl_err *err);
/* Makes the queries of a late layer; does nothing for other layers. */
sl_status sl_coord_make_queries(const sl_attn_call *call, sl_err *err);
/* Where lists are kept: makes those of tokens first .. first + n - 1, if the layer has its own. */
sl_status sl_coord_select_kept(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t first,
                               int32_t n, sl_err *err);

/* ---- coord_groups.c ---- */

/* The tokens of group g of a call of `total` tokens, with the lists that are kept. */
sl_selection sl_coord_group(const sl_coord *c, const sl_algo_call *a, int32_t total, int32_t g,
                            int32_t groups);
/* How many groups of tokens the call is cut into; 1: it is computed as a whole. */
int32_t sl_coord_groups_of(const sl_coord *c, const sl_attn_call *call, const sl_algo_call *a);
/*
 * Everything after update, for more than one group: while the rows of one group are fetched, the next groups select
 * and the previous ones attend. Every token gets the same bits as in a step without groups.
 */
sl_status sl_coord_attend_groups(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t groups,
                                 sl_err *err);
/* Attention of groups whose rows are being fetched. The first `begun` ones are waited for, also when `before`, the result of what led
 * here, is an error; it is returned. */
sl_status sl_coord_attend_fetched(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a,
                                  int32_t groups, int32_t begun, sl_status before, sl_err *err);

/* ---- coord_ahead.c ---- */

/* The number of a group for the swap-in manager, and where the physical lists of the layer are. */
int32_t sl_coord_group_number(const sl_coord *c, int32_t layer, int32_t g);
int32_t *sl_coord_phys_of(const sl_coord *c, int32_t layer);
/* The lists of the call's layer are made: begins to fetch the rows of the layers that share them, if there are any. */
sl_status sl_coord_fetch_ahead(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, int32_t groups,
                               sl_err *err);
/* All of a layer whose rows were fetched so, after its keys. */
sl_status sl_coord_attend_ahead(sl_coord *c, const sl_attn_call *call, const sl_algo_call *a, sl_err *err);

#endif
