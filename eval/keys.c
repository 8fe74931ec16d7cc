/* See keys.h. */
#include "eval/keys.h"

#include "kernels/formats.h"

sl_eval_keys sl_eval_keys_of(const sl_attn_call *call, sl_row_view rows, sl_host_plane host)
{
    if (call->kind == SL_ATTN_GQA) {
        const sl_gqa_attn_params *a = &call->gqa.attn;
        return (sl_eval_keys){.call = call,
                              .rows = rows,
                              .host = host,
                              .kv_heads = a->kv_heads,
                              .heads = a->heads / a->kv_heads,
                              .dim = a->dim,
                              .q = a->q,
                              .scale = a->scale};
    }
    const sl_sparse_attn_params *a = &call->mla.attn;
    return (sl_eval_keys){.call = call,
                          .rows = rows,
                          .host = host,
                          .kv_heads = 1,
                          .heads = a->heads,
                          .dim = a->lora + a->rope,
                          .q = a->ql,
                          .scale = a->scale};
}

void sl_eval_keys_load(const sl_eval_keys *s, int32_t token, int32_t kv_head, int32_t pos, float *key)
{
    const sl_seq_tables *t = s->call->seqs;
    const sl_row_view *rows = &s->rows;
    const int32_t page = t->host_pages[(int64_t)t->token_seq[token] * t->ld + pos / SL_PAGE_TOKENS];
    const int32_t block = pos % SL_PAGE_TOKENS >> rows->block_log2;
    const uint8_t *row = s->host.base + page * s->host.page_stride + block * s->host.row_stride;
    if (s->call->kind == SL_ATTN_MLA) {
        const sl_sparse_attn_params *a = &s->call->mla.attn;
        sl_row_decode(a->format, a->lora, a->rope, row, key);
        return;
    }
    const int32_t kv_heads = s->call->gqa.attn.kv_heads, per_row = sl_gqa_row_heads(rows, kv_heads);
    const int32_t within = (pos & ((1 << rows->block_log2) - 1)) * per_row;
    if (per_row == 1)
        row += kv_head * rows->row_bytes;
    sl_gqa_key_decode(s->call->gqa.attn.format, sl_gqa_row_slots(rows, kv_heads), s->dim, row,
                      per_row == 1 ? within : within + kv_head, key);
}
