/* See keys.h. */
#include "sparse/keys.h"

static sl_key_source source(const sl_cache_dims *d, const sl_row_view *rows)
{
    return (sl_key_source){
        .rows = *rows, .heads = d->kv_heads, .dim = d->head_dim, .format = d->rows->format};
}

sl_key_source sl_algo_keys_of_run(const sl_cache_dims *d, const sl_algo_call *call, const sl_algo_run *run)
{
    const sl_seq_tables *t = call->attn->seqs;
    sl_key_source s = source(d, &call->rows);
    const int64_t row = (int64_t)run->seq * t->ld;
    if (!run->hot || call->rows.hot_rows == 0) { /* 0: all rows of the layer are on the device */
        s.pages = t->row_pages + row;
    } else {
        s.host = call->host_rows;
        s.pages = t->host_pages + row;
    }
    return s;
}

sl_key_source sl_algo_keys_of_prompt(const sl_cache_dims *d, const sl_algo_prompt *p, const int32_t *pages)
{
    sl_key_source s = source(d, &p->rows);
    s.host = p->host_rows;
    s.pages = pages;
    return s;
}
