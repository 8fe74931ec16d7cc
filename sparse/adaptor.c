/* Selection -> physical rows -> sparse MLA; see adaptor.h. */
#include "sparse/adaptor.h"

#include "base/log.h"
#include "sparse/algorithm.h"

sl_status sl_adapt_mla_fetch(sl_swapin *swapin, const sl_attn_call *call, const sl_selection *sel,
                             int32_t *phys, bool aside, uint64_t *swap_ns, sl_err *err)
{
    sl_seq_tables seqs = sl_seq_tables_slice(call->seqs, sel->first, sel->count);
    uint64_t t0 = sl_now_ns();
    sl_status st = sl_swapin_resolve(swapin, call->layer, &seqs, sel->ids, phys, sel->k, err);
    if (st == SL_OK)
        st = aside ? sl_swapin_gather_aside(swapin, call->layer, err)
                   : sl_swapin_gather(swapin, call->layer, err);
    if (swap_ns)
        *swap_ns += sl_now_ns() - t0;
    return st;
}

sl_status sl_adapt_mla_attend(sl_backend *be, const sl_swapin *swapin, const sl_coord_layer *layer,
                              const sl_attn_call *call, const sl_selection *sel, const int32_t *phys,
                              sl_err *err)
{
    sl_sparse_attn_params p = call->attn;
    size_t heads = (size_t)p.heads * (size_t)sel->first;
    p.ql += heads * (size_t)(p.lora + p.rope);
    p.o += heads * (size_t)p.lora;
    p.phys = phys;
    p.rows = layer->rows;
    p.tokens = sel->count;
    p.k = sel->k;
    p.ld_ids = sel->k;
    (void)sl_swapin_overlap(swapin, call->layer, sel->count, sel->k, &p);
    return sl_be_run(be, SL_OP_SPARSE_ATTN, &p, err);
}

sl_status sl_adapt_mla_rows(sl_backend *be, sl_swapin *swapin, const sl_coord_layer *layer,
                            const sl_attn_call *call, const sl_selection *sel, int32_t *phys,
                            uint64_t *swap_ns, sl_err *err)
{
    sl_status st = sl_adapt_mla_fetch(swapin, call, sel, phys, false, swap_ns, err);
    return st == SL_OK ? sl_adapt_mla_attend(be, swapin, layer, call, sel, phys, err) : st;
}
