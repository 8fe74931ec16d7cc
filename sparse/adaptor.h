/*
 * Adaptor: hands a selection to the attention kernel at hand. Here: the sparse MLA kernel, which takes one
 * list of physical rows per token in ascending token order. It resolves logical ids through the swap-in
 * manager and fills what the kernel wants to know of them. Another attention kernel (page tables, per-head
 * lists) is another function of the same shape.
 */
#ifndef SL_SPARSE_ADAPTOR_H
#define SL_SPARSE_ADAPTOR_H

#include "sparse/swapin.h"

typedef struct sl_selection {
    const int32_t *ids;   /* device [count][k], logical, ascending, -1 padded */
    int32_t first, count; /* tokens of the step */
    int32_t k;
} sl_selection;

/*
 * Resolve the selection into phys (device [count][k]) and gather; attend: call->attn.o receives the result
 * rows of these tokens. swap_ns (may be NULL) is increased by the time spent in resolve and gather. aside:
 * the gather runs on the side stream, and attend has to follow sl_swapin_wait() of the current group.
 */
sl_status sl_adapt_mla_fetch(sl_swapin *swapin, const sl_attn_call *call, const sl_selection *sel,
                             int32_t *phys, bool aside, uint64_t *swap_ns, sl_err *err);
sl_status sl_adapt_mla_attend(sl_backend *be, const sl_swapin *swapin, const sl_coord_layer *layer,
                              const sl_attn_call *call, const sl_selection *sel, const int32_t *phys,
                              sl_err *err);
/* The two in one go, in order. */
sl_status sl_adapt_mla_rows(sl_backend *be, sl_swapin *swapin, const sl_coord_layer *layer,
                            const sl_attn_call *call, const sl_selection *sel, int32_t *phys,
                            uint64_t *swap_ns, sl_err *err);

#endif
