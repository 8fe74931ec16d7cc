/* Selection -> physical rows -> attention over them, for latent rows and for keys and values by head; see adaptor.h. */
#include "sparse/adaptor.h"

#include "base/log.h"
#include "sparse/algorithm.h"

static sl_status resolve_and_gather(sl_swapin *swapin, const sl_attn_call *call, const sl_selection *sel,
                                    int32_t *phys, bool aside, sl_err *err)
{
    sl_seq_tables seqs = sl_seq_tables_slice(call->seqs, sel->first, sel->count);
    SL_TRY(sl_swapin_resolve(swapin, call->layer, &seqs, sel->ids, phys, sel->k, err));
    return aside ? sl_swapin_gather_aside(swapin, call->layer, err)
                 : sl_swapin_gather(swapin, call->layer, err);
}

static sl_status fetch_rows(sl_swapin *swapin, const sl_attn_call *call, const sl_selection *sel,
                            int32_t *phys, bool aside, uint64_t *swap_ns, sl_err *err)
{
    uint64_t t0 = sl_now_ns();
    sl_status st = resolve_and_gather(swapin, call, sel, phys, aside, err);
    if (swap_ns)
        *swap_ns += sl_now_ns() - t0;
    return st;
}

static sl_status mla_attend(sl_backend *be, const sl_swapin *swapin, const sl_coord_layer *layer,
                            const sl_attn_call *call, const sl_selection *sel, const int32_t *phys,
                            sl_err *err)
{
    sl_sparse_attn_params p = call->mla.attn;
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

static sl_status mla_append(sl_backend *be, const sl_coord_layer *layer, const sl_attn_call *call,
                            sl_err *err)
{
    sl_kv_append_params kv = call->mla.kv;
    kv.seqs = call->seqs;
    kv.rows = layer->rows;
    kv.host = layer->host_rows;
    return sl_be_run(be, SL_OP_KV_APPEND, &kv, err);
}

const sl_adaptor sl_adaptor_mla = {
    .name = "sparse MLA",
    .kind = SL_ATTN_MLA,
    .block_tokens = 1,
    .scope = SL_SCOPE_REQUEST,
    .awaits_blocks = true,
    .append = mla_append,
    .fetch = fetch_rows,
    .attend = mla_attend,
};

static sl_status gqa_attend(sl_backend *be, const sl_swapin *swapin, const sl_coord_layer *layer,
                            const sl_attn_call *call, const sl_selection *sel, const int32_t *phys,
                            sl_err *err)
{
    sl_gqa_attn_params p = call->gqa.attn;
    size_t first = (size_t)p.heads * (size_t)p.dim * (size_t)sel->first;
    (void)swapin; /* the op waits for all rows, not for blocks of them */
    p.q += first;
    p.out = (uint8_t *)p.out + first * sl_dtype_size(p.act);
    p.phys = phys;
    p.ids = sel->ids;
    p.pos = call->seqs->token_pos + sel->first;
    p.rows = layer->rows;
    p.tokens = sel->count;
    p.k = p.ld_ids = sel->k;
    p.skip_factor = sel->skip_factor, p.skip_from = sel->skip_from, p.tiles = sel->tiles;
    return sl_be_run(be, SL_OP_GQA_ATTN, &p, err);
}

static sl_status gqa_attend_all(sl_backend *be, const sl_coord_layer *layer, const sl_attn_call *call,
                                const sl_selection *sel, sl_err *err)
{
    const sl_seq_tables seqs = sl_seq_tables_slice(call->seqs, sel->first, sel->count);
    sl_gqa_attn_params p = call->gqa.attn;
    const size_t first = (size_t)p.heads * (size_t)p.dim * (size_t)sel->first;
    p.q += first;
    p.out = (uint8_t *)p.out + first * sl_dtype_size(p.act);
    p.seqs = &seqs;
    p.tokens = sel->count;
    p.rows = layer->rows;
    p.k = sel->k;
    p.prompt = sel->prompt;
    p.skip_factor = sel->skip_factor, p.skip_from = sel->skip_from, p.tiles = sel->tiles;
    return sl_be_run(be, SL_OP_GQA_ATTN, &p, err);
}

static sl_status gqa_append(sl_backend *be, const sl_coord_layer *layer, const sl_attn_call *call,
                            sl_err *err)
{
    sl_gqa_append_params kv = call->gqa.kv;
    kv.seqs = call->seqs;
    kv.rows = layer->rows;
    kv.host = layer->host_rows;
    return sl_be_run(be, SL_OP_GQA_APPEND, &kv, err);
}

const sl_adaptor sl_adaptor_gqa = {
    .name = "grouped-query attention",
    .kind = SL_ATTN_GQA,
    .block_tokens = SL_PAGE_TOKENS,
    .scope = SL_SCOPE_KV_HEAD,
    .skips_tiles = true,
    .append = gqa_append,
    .fetch = fetch_rows,
    .attend = gqa_attend,
    .attend_all = gqa_attend_all,
};

static const sl_adaptor *const adaptors[SL_ATTN_KINDS] = {
    [SL_ATTN_MLA] = &sl_adaptor_mla, [SL_ATTN_GQA] = &sl_adaptor_gqa};

const sl_adaptor *sl_adaptor_of(sl_attn_kind kind)
{
    return (unsigned)kind < SL_ATTN_KINDS ? adaptors[kind] : NULL;
}
