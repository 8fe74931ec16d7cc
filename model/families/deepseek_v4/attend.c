/*
 * The buffers of DeepSeek-V4 and the steps of its attention. What a layer keeps comes from the owner of the cache by the seam's
 * `memory`; in a dry pass there is none, and the ops are asked with no addresses.
 */
#include "kernels/formats.h"
#include "model/families/deepseek_v4/v4.h"
#include "model/steps.h"

enum { SCORES_BYTES = 64 << 20, SLICE_MAX = 1024 };

void sl_v4_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own)
{
    sl_v4_workspace *w = own;
    const int64_t t = o->max_tokens, n = c->streams.count, dim = c->attn.v_head_dim, heads = c->attn.n_heads;
    const int64_t index = (int64_t)c->index.n_heads * c->index.head_dim, all = heads * dim;
    const size_t act = sl_dtype_size(o->act), f32 = sizeof(float);
    w->streams = sl_carve_take(k, t, n * c->hidden_size, act);
    w->mix = sl_carve_take(k, t, (2 + n) * n, f32);
    w->post = sl_carve_take(k, t, n, f32);
    w->comb = sl_carve_take(k, t, n * n, f32);
    w->q_a = sl_carve_take(k, t, c->attn.q_lora_rank, act);
    w->q_r = sl_carve_take(k, t, c->attn.q_lora_rank, act);
    w->q = sl_carve_take(k, t, all, act);
    w->kv_raw = sl_carve_take(k, t, dim, act);
    w->kv = sl_carve_take(k, t, dim, f32);
    w->part = sl_carve_take(k, t, 2 * (dim > c->index.head_dim ? dim : c->index.head_dim), f32);
    w->gate = sl_carve_take(k, t, 2 * (dim > c->index.head_dim ? dim : c->index.head_dim), f32);
    w->o = sl_carve_take(k, t, all > index ? all : index, act);
    w->o_a = sl_carve_take(k, t, (int64_t)c->entries.o_groups * c->entries.o_rank, act);
    w->index_q = sl_carve_take(k, t, index, f32);
    w->index_raw = sl_carve_take(k, t, c->index.n_heads, f32);
    w->index_weights = sl_carve_take(k, t, c->index.n_heads, f32);
    w->max_entries = c->max_context / c->entries.rate_chosen + 1;
    w->slice = (int32_t)(SCORES_BYTES / ((int64_t)w->max_entries * 4));
    w->slice = w->slice < 1 ? 1 : w->slice > SLICE_MAX ? SLICE_MAX : w->slice;
    if (w->slice > o->max_tokens)
        w->slice = o->max_tokens;
    w->scores = sl_carve_take(k, w->slice, w->max_entries, f32);
    w->seen_seq = sl_carve_take(k, t, 1, sizeof(int32_t));
    w->seen_pos = sl_carve_take(k, t, 1, sizeof(int32_t));
    w->ids = sl_carve_take(k, t, c->entries.topk, sizeof(int32_t));
}

/* ---- where things are ---- */

static const float *angles(const sl_pass *p)
{
    return sl_v4_in_entries(p->c, p->layer) ? p->m->cos_sin_2 : p->m->cos_sin;
}

static sl_dtype kept_dtype(const sl_pass *p)
{
    return sl_v4_kept_dtype(p->m->opts.row_format);
}

static sl_status memory(const sl_pass *p, sl_layer_memory *out)
{
    *out = (sl_layer_memory){0};
    return p->dry ? SL_OK : p->f->seam.memory(p->f->seam.ctx, p->layer, out, p->err);
}

static sl_entries_view view_of(const sl_pass *p, const sl_layer_memory *m, int plane, int32_t dim)
{
    return (sl_entries_view){.base = m->planes[plane].device,
                             .page_stride = m->planes[plane].device_stride,
                             .rate = sl_v4_rate(p->c, p->layer),
                             .dim = dim,
                             .dtype = kept_dtype(p)};
}

/* ---- steps ---- */

/* x: [T][heads * dim] of the activations' dtype. */
static sl_head_rotate_params rotation(const sl_pass *p, const void *x, void *out, int32_t heads, int32_t dim)
{
    return (sl_head_rotate_params){.x = x,
                                   .out = out,
                                   .pos = p->f->seqs->token_pos,
                                   .cos_sin = angles(p),
                                   .tokens = p->tokens,
                                   .heads = heads,
                                   .dim = dim,
                                   .rope = p->c->attn.qk_rope_head_dim,
                                   .ld_x = heads * dim,
                                   .act = p->act,
                                   .out_dtype = p->act};
}

sl_status sl_v4_step_queries(sl_pass *p)
{
    const sl_model_config *c = p->c;
    const sl_weight *w = p->lw->w;
    const sl_v4_workspace *own = p->ws->own;
    sl_head_rotate_params q = rotation(p, own->q, own->q, c->attn.n_heads, c->attn.v_head_dim),
                          kv = rotation(p, own->kv_raw, own->kv, 1, c->attn.v_head_dim);
    SL_TRY(sl_pass_linear(p, p->ws->h, &w[SL_V4_Q_A], own->q_a));
    SL_TRY(sl_pass_norm(p, own->q_a, NULL, &w[SL_V4_Q_NORM], c->rms_eps, p->tokens, own->q_r));
    SL_TRY(sl_pass_linear(p, own->q_r, &w[SL_V4_Q_B], own->q));
    q.eps = c->rms_eps;
    SL_TRY(sl_pass_run(p, SL_OP_HEAD_ROTATE, &q));
    SL_TRY(sl_pass_linear(p, p->ws->h, &w[SL_V4_KV], own->kv_raw));
    kv.eps = c->rms_eps, kv.norm = w[SL_V4_KV_NORM].data, kv.norm_dtype = w[SL_V4_KV_NORM].dtype;
    kv.out_dtype = kept_dtype(p);
    return sl_pass_run(p, SL_OP_HEAD_ROTATE, &kv);
}

/* New entries, or index keys: the weights from `slot` on, the plane, and their part of the state. */
static sl_status append(sl_pass *p, const sl_layer_memory *m, int slot, int plane, int part)
{
    const sl_weight *w = &p->lw->w[slot];
    const sl_v4_workspace *own = p->ws->own;
    const sl_layer_plane *to = &m->planes[plane];
    sl_entries_append_params a = {.kv = own->part,
                                  .gate = own->gate,
                                  .bias = w[SL_V4_ENTRY_BIAS - SL_V4_ENTRY_KV].data,
                                  .norm = w[SL_V4_ENTRY_NORM - SL_V4_ENTRY_KV].data,
                                  .cos_sin = angles(p),
                                  .seqs = p->f->seqs,
                                  .open = sl_layer_part(m, part),
                                  .open_stride = m->state_stride,
                                  .device = to->device,
                                  .device_stride = to->device_stride,
                                  .host = to->host,
                                  .rows = to->rows,
                                  .dim = w[SL_V4_ENTRY_NORM - SL_V4_ENTRY_KV].out,
                                  .rope = p->c->attn.qk_rope_head_dim,
                                  .rate = sl_v4_rate(p->c, p->layer),
                                  .overlap = sl_v4_in_chosen(p->c, p->layer),
                                  .eps = p->c->rms_eps,
                                  .dtype = kept_dtype(p),
                                  .norm_dtype = w[SL_V4_ENTRY_NORM - SL_V4_ENTRY_KV].dtype};
    if (a.rate < SL_PAGE_TOKENS && SL_PAGE_TOKENS % a.rate != 0) /* the entries of a page are one unit */
        a.host.row_stride = a.dim * (int64_t)sl_dtype_size(a.dtype);
    SL_TRY(sl_pass_linear_as(p, p->ws->h, w[0].in, &w[0], own->part, w[0].out, SL_F32));
    SL_TRY(sl_pass_linear_as(p, p->ws->h, w[1].in, &w[1], own->gate, w[1].out, SL_F32));
    return sl_pass_run(p, SL_OP_ENTRIES_APPEND, &a);
}

sl_status sl_v4_step_entries(sl_pass *p)
{
    sl_layer_memory m;
    SL_TRY(memory(p, &m));
    SL_TRY(append(p, &m, SL_V4_ENTRY_KV, 0, SL_V4_PART_ENTRY));
    return sl_v4_in_chosen(p->c, p->layer) ? append(p, &m, SL_V4_INDEX_KV, 1, SL_V4_PART_INDEX) : SL_OK;
}

static sl_status index_queries(sl_pass *p)
{
    const sl_model_config *c = p->c;
    const sl_weight *w = p->lw->w;
    const sl_v4_workspace *own = p->ws->own;
    sl_head_rotate_params q = rotation(p, own->o, own->o, c->index.n_heads, c->index.head_dim);
    sl_index_query_params a = {.q = own->o,
                               .wproj = own->index_raw,
                               .pos = p->f->seqs->token_pos,
                               .q_out = own->index_q,
                               .weights = own->index_weights,
                               .tokens = p->tokens,
                               .heads = c->index.n_heads,
                               .dim = c->index.head_dim,
                               .format = SL_INDEX_PLAIN,
                               .act = p->act};
    SL_TRY(sl_pass_linear(p, own->q_r, &w[SL_V4_INDEX_Q], own->o));
    SL_TRY(sl_pass_run(p, SL_OP_HEAD_ROTATE, &q));
    SL_TRY(sl_pass_linear_as(p, p->ws->h, c->hidden_size, &w[SL_V4_INDEX_WEIGHTS], own->index_raw,
                             c->index.n_heads, SL_F32));
    return sl_pass_run(p, SL_OP_INDEX_QUERY, &a);
}

/* The best entries of every token, slice by slice, because the scores of a long context are many. */
sl_status sl_v4_step_index(sl_pass *p)
{
    const sl_v4_workspace *own = p->ws->own;
    const int32_t topk = p->c->entries.topk;
    sl_layer_memory m;
    SL_TRY(memory(p, &m));
    SL_TRY(index_queries(p));
    sl_entry_scores_params s = {.q = own->index_q,
                                .weights = own->index_weights,
                                .seqs = p->f->seqs,
                                .entries = view_of(p, &m, 1, p->c->index.head_dim),
                                .scores = own->scores,
                                .seen_seq = own->seen_seq,
                                .seen_pos = own->seen_pos,
                                .heads = p->c->index.n_heads,
                                .ld_scores = own->max_entries};
    sl_seq_tables seen = *p->f->seqs; /* tokens are entries here */
    sl_topk_params k = {.scores = own->scores,
                        .seqs = &seen,
                        .ids = own->ids,
                        .k = topk,
                        .ld_scores = own->max_entries,
                        .ld_ids = topk};
    seen.token_seq = own->seen_seq, seen.token_pos = own->seen_pos;
    for (int32_t first = 0; first < p->tokens; first += own->slice) {
        s.token_first = k.token_first = first;
        s.token_count = k.token_count = p->tokens - first < own->slice ? p->tokens - first : own->slice;
        SL_TRY(sl_pass_run(p, SL_OP_ENTRY_SCORES, &s));
        SL_TRY(sl_pass_run(p, SL_OP_TOPK, &k));
    }
    return SL_OK;
}

sl_status sl_v4_step_attend(sl_pass *p)
{
    const sl_model_config *c = p->c;
    const sl_v4_workspace *own = p->ws->own;
    const bool chosen = sl_v4_in_chosen(c, p->layer);
    sl_layer_memory m;
    SL_TRY(memory(p, &m));
    sl_ring_attn_params a = {.q = own->q,
                             .kv = own->kv,
                             .seqs = p->f->seqs,
                             .ring = sl_layer_part(&m, SL_V4_PART_RING),
                             .ring_stride = m.state_stride,
                             .entries = view_of(p, &m, 0, c->attn.v_head_dim),
                             .ids = chosen ? own->ids : NULL,
                             .sinks = p->lw->w[SL_V4_SINKS].data,
                             .out = own->o,
                             .tokens = p->tokens,
                             .heads = c->attn.n_heads,
                             .dim = c->attn.v_head_dim,
                             .window = c->entries.window,
                             .k = chosen ? c->entries.topk : 0,
                             .ld_ids = chosen ? c->entries.topk : 0,
                             .scale = c->attn.softmax_scale,
                             .act = p->act};
    sl_ring_store_params s = {.kv = own->kv,
                              .seqs = p->f->seqs,
                              .ring = sl_layer_part(&m, SL_V4_PART_RING),
                              .ring_stride = m.state_stride,
                              .window = c->entries.window,
                              .dim = c->attn.v_head_dim,
                              .dtype = a.entries.dtype};
    if (m.planes[0].rows.base && chosen) {
        a.rows = m.planes[0].rows.base;
        SL_TRY(p->f->seam.fetch(p->f->seam.ctx, p->layer, p->f->seqs, own->ids, &a.phys, p->err));
    }
    SL_TRY(sl_pass_run(p, SL_OP_RING_ATTN, &a));
    return sl_pass_run(p, SL_OP_RING_STORE, &s);
}

/* Rows first .. first + n - 1 of a weight. */
static sl_status rows_of(const sl_pass *p, const sl_weight *w, int32_t first, int32_t n, sl_weight *out)
{
    const int32_t blocks = (w->in + 127) / 128;
    *out = *w;
    out->out = n;
    if (w->scale_type == SL_SCALE_BLOCKS && w->scale && first % 128)
        return sl_fail(p->err, SL_ERR_UNSUPPORTED,
                       "o_lora_rank: groups of %d rows do not end at blocks of F8", n);
    if (!w->data)
        return SL_OK;
    out->data = (const uint8_t *)w->data + sl_dtype_bytes(w->dtype, (int64_t)first * w->in);
    if (w->scale_type != SL_SCALE_BLOCKS)
        out->multiplier = w->multiplier + first * sl_weight_groups(w) * (int64_t)sl_scale_size(w->scale_type);
    else if (w->scale)
        out->scale = w->scale + (int64_t)(first / 128) * blocks;
    return SL_OK;
}

/* At load: the backend may want parts of rows to begin at multiples of some bytes. */
static sl_status ask_group(const sl_pass *p, const sl_linear_params *a)
{
    sl_err why = {0};
    sl_status rc = sl_be_check(p->m->be, SL_OP_LINEAR, a, &why);
    return rc == SL_OK ? SL_OK
                       : sl_fail(p->err, SL_ERR_UNSUPPORTED,
                                 "config.json: o_groups: %d groups of %d values, and o_lora_rank %d: %s",
                                 p->c->entries.o_groups, a->w.in, p->c->entries.o_rank, why.text);
}

/* The rotation of the values is taken back; then each group of heads is projected by itself, and all results together. */
sl_status sl_v4_step_output(sl_pass *p)
{
    const sl_model_config *c = p->c;
    const sl_v4_workspace *own = p->ws->own;
    const sl_weight *w = &p->lw->w[SL_V4_O_A];
    const int32_t groups = c->entries.o_groups, rank = c->entries.o_rank;
    const size_t act = sl_dtype_size(p->act);
    sl_head_rotate_params o = rotation(p, own->o, own->o, c->attn.n_heads, c->attn.v_head_dim);
    o.back = true;
    SL_TRY(sl_pass_run(p, SL_OP_HEAD_ROTATE, &o));
    for (int32_t g = 0; g < groups; g++) {
        sl_weight part;
        SL_TRY(rows_of(p, w, g * rank, rank, &part));
        sl_linear_params a = sl_pass_linear_params(
            p, (const uint8_t *)own->o + act * (size_t)g * (size_t)w->in, groups * w->in, &part,
            (uint8_t *)own->o_a + act * (size_t)g * (size_t)rank, groups * rank, p->act);
        if (p->dry)
            SL_TRY(ask_group(p, &a));
        SL_TRY(sl_pass_run(p, SL_OP_LINEAR, &a));
    }
    p->pending = true;
    return sl_pass_linear(p, own->o_a, &p->lw->w[SL_V4_O_B], p->ws->delta);
}
