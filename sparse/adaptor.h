/*
 * Adaptor: hands a selection to the attention kernel of one kind of attention. It appends the new rows of a call,
 * resolves logical ids to physical rows through the swap-in manager, and attends over them. One const table per kind
 * (sl_attn_kind), found by the kind of the model's rows. An adaptor has no state. Threads: the coordinator's.
 */
#ifndef SL_SPARSE_ADAPTOR_H
#define SL_SPARSE_ADAPTOR_H

#include "sparse/swapin.h"

typedef struct sl_selection {
    const int32_t *ids;   /* device [count][lists][k], logical, ascending, -1 padded */
    int32_t first, count; /* tokens of the step */
    int32_t k;
    /* Of an algorithm whose action is SL_ACTION_KERNEL, see sl_gqa_attn_params; 0 otherwise. */
    float skip_factor;
    int32_t skip_from;
    uint64_t *tiles;            /* device [2] */
    sl_gqa_prompt_lists prompt; /* of attend_all: pages of tokens of prompts (sl_algo_desc.prompt_lists) */
} sl_selection;

typedef struct sl_adaptor {
    const char *name;
    sl_attn_kind kind;
    /* The lists that its kernel takes: an entry stands for at most this number of tokens (a power of two), and a list
     * is shared by all heads of a request, or also by the query heads of one KV head only. */
    int32_t block_tokens;
    sl_list_scope scope;
    bool skips_tiles;   /* its kernel can leave out tiles */
    bool awaits_blocks; /* its kernel can begin while rows are still being gathered (sl_swapin_overlap) */
    /* New rows of the step's tokens, to the device and to the host pages. */
    sl_status (*append)(sl_backend *be, const sl_coord_layer *layer, const sl_attn_call *call, sl_err *err);
    /* Resolves the selection into phys (of the shape of its ids) and gathers the rows. aside: the gather runs on the
     * side stream, and the caller waits for it before attend. swap_ns (may be NULL) is increased by the time that the
     * host needs. */
    sl_status (*fetch)(sl_swapin *swapin, const sl_attn_call *call, const sl_selection *sel, int32_t *phys,
                       bool aside, uint64_t *swap_ns, sl_err *err);
    /* Attention of the selection's tokens over phys; their rows of the call's output are written. */
    sl_status (*attend)(sl_backend *be, const sl_swapin *swapin, const sl_coord_layer *layer,
                        const sl_attn_call *call, const sl_selection *sel, const int32_t *phys, sl_err *err);
    /* Attention of the selection's tokens to everything before them, or to the pages of sel->prompt, without lists: their sequences
     * are resident. Of sel the ids are not read, and k is the most blocks of a sequence. Without pages the bits are those of attend
     * with lists of everything. NULL: its kernel needs lists. */
    sl_status (*attend_all)(sl_backend *be, const sl_coord_layer *layer, const sl_attn_call *call,
                            const sl_selection *sel, sl_err *err);
} sl_adaptor;

extern const sl_adaptor sl_adaptor_mla, sl_adaptor_gqa;

/* NULL: this build has no kernel for that kind. */
const sl_adaptor *sl_adaptor_of(sl_attn_kind kind);

#endif
