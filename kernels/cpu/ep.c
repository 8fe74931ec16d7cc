/*
 * The ops of expert parallelism (kernels/ep.h). Plain loops over tokens: the work is in the products of the experts,
 * which run on the pool.
 */
#include "kernels/ep.h"

#include <string.h>

#include "kernels/cpu/experts.h"
#include "kernels/formats.h"

/* The rank that holds expert e; -1 if no rank does. */
static int32_t rank_of(const sl_ep_layout *l, int32_t e)
{
    for (int32_t r = 0; r < l->ranks; r++)
        if (e >= l->first[r] && e < l->first[r + 1])
            return r;
    return -1;
}

static bool is_padding(const int32_t *token_seq, int32_t t)
{
    return token_seq && token_seq[t] < 0;
}

/* The block for rank q, of `bytes`. */
static uint8_t *block_for(void *send, void *const *to, int32_t q, size_t bytes)
{
    return to ? to[q] : (uint8_t *)send + (size_t)q * bytes;
}

/* ---- home: rows out ---- */

/* The values of a row, quantised if they travel so. tmp: [hidden]. */
static void write_values(const sl_ep_layout *l, const sl_ep_row *parts, const void *x, int32_t t, float *tmp,
                         uint8_t *row)
{
    size_t act = sl_dtype_size(l->act);

    if (!l->quantised) {
        memcpy(row, (const uint8_t *)x + (size_t)t * (size_t)l->hidden * act, (size_t)l->hidden * act);
        return;
    }
    sl_load_f32(l->act, x, (int64_t)t * l->hidden, l->hidden, tmp);
    sl_quant_acts(tmp, l->hidden, (float *)(void *)(row + parts->scales));
    for (int32_t i = 0; i < l->hidden; i++)
        row[i] = sl_f32_to_e4m3(tmp[i]); /* exact: tmp holds e4m3 values */
}

/* Token t's experts on rank q, counted from the first of that rank; how many. */
static int32_t local_ids(const sl_ep_layout *l, const int32_t *ids, int32_t q, int32_t *out)
{
    int32_t n = 0;

    for (int32_t k = 0; k < l->top_k; k++)
        if (ids[k] >= l->first[q] && ids[k] < l->first[q + 1])
            out[n++] = ids[k] - l->first[q];
    for (int32_t k = n; k < l->top_k; k++)
        out[k] = -1;
    return n;
}

static bool ids_fit(const sl_ep_layout *l, const int32_t *ids)
{
    for (int32_t k = 0; k < l->top_k; k++)
        if (ids[k] < -1 || (ids[k] >= 0 && rank_of(l, ids[k]) < 0))
            return false;
    return true;
}

static sl_status run_ep_send(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ep_send_params *p = params;
    const sl_ep_layout *l = &p->layout;
    sl_ep_row parts = sl_ep_row_of(l);
    size_t row_bytes = (size_t)parts.bytes, block = row_bytes * (size_t)l->cap;
    void *tmp, *row;

    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_X, sizeof(float) * (size_t)l->hidden, &tmp, err));
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_Y, row_bytes, &row, err));
    memset(p->send_count, 0, sizeof(int32_t) * (size_t)l->ranks);
    memset(row, 0, row_bytes);
    for (int32_t t = 0; t < p->tokens; t++) {
        const int32_t *ids = p->expert_ids + (int64_t)t * l->top_k;
        int32_t *row_ids = (int32_t *)(void *)((uint8_t *)row + parts.ids);

        if (is_padding(p->token_seq, t))
            continue;
        if (!ids_fit(l, ids))
            return sl_deverr(SL_DEVERR_ID, "ep_send", err);
        write_values(l, &parts, p->x, t, tmp, row);
        for (int32_t q = 0; q < l->ranks; q++)
            if (local_ids(l, ids, q, row_ids) > 0)
                memcpy(block_for(p->send, p->to, q, block) + (size_t)p->send_count[q]++ * row_bytes, row,
                       row_bytes);
    }
    return SL_OK;
}

const sl_op_impl sl_cpu_ep_send = {.run = run_ep_send};

/* ---- the experts' rank ---- */

typedef struct received {
    const sl_ep_experts_params *p;
    sl_ep_row parts;
    const uint8_t **rows; /* [n] where each row is */
    uint8_t **results;    /* [n * top_k] where the result of each choice goes */
} received;

static void load_row(const void *ctx, int32_t i, float *x, float *scale)
{
    const received *r = ctx;
    const sl_ep_layout *l = &r->p->layout;

    if (l->quantised) { /* then every gate and up takes them so: scale is never NULL */
        sl_load_f32(SL_F8_E4M3, r->rows[i], 0, l->hidden, x);
        memcpy(scale, r->rows[i] + r->parts.scales, sizeof(float) * (size_t)sl_fp8_groups(l->hidden));
        return;
    }
    sl_load_f32(l->act, r->rows[i], 0, l->hidden, x);
    if (scale)
        sl_quant_acts(x, l->hidden, scale);
}

static void take_result(void *ctx, int32_t slot, const float *d)
{
    received *r = ctx;

    sl_store_f32(r->p->layout.act, d, r->p->layout.hidden, r->results[slot], 0);
}

/* Lists the received rows and where their results go; ids[n][top_k] are copied out of the rows. */
static void list_rows(received *r, int32_t *ids)
{
    const sl_ep_experts_params *p = r->p;
    const sl_ep_layout *l = &p->layout;
    size_t row_bytes = (size_t)r->parts.bytes, block = row_bytes * (size_t)l->cap,
           result = (size_t)sl_ep_result_bytes(l);
    int32_t n = 0;

    for (int32_t from = 0; from < l->ranks; from++) {
        uint8_t *out = block_for(p->send, p->to, from, (size_t)sl_ep_result_cap(l) * result);
        int32_t sent = 0;

        for (int32_t i = 0; i < p->recv_count[from]; i++, n++) {
            int32_t *own = ids + (int64_t)n * l->top_k;

            r->rows[n] = (const uint8_t *)p->recv + (size_t)from * block + (size_t)i * row_bytes;
            memcpy(own, r->rows[n] + r->parts.ids, sizeof(int32_t) * (size_t)l->top_k);
            for (int32_t k = 0; k < l->top_k; k++)
                if (own[k] >= 0)
                    r->results[(int64_t)n * l->top_k + k] = out + (size_t)sent++ * result;
        }
        p->send_count[from] = sent;
    }
}

/* ids[slots]: experts of this rank or -1; count[load->experts] is scratch. */
static void count_load(sl_ep_load *load, const int32_t *ids, size_t slots, int32_t *count)
{
    int32_t most = 0;

    memset(count, 0, sizeof(int32_t) * (size_t)load->experts);
    for (size_t i = 0; i < slots; i++) {
        if (ids[i] < 0 || ids[i] >= load->experts)
            continue;
        load->rows++;
        most = ++count[ids[i]] > most ? count[ids[i]] : most;
    }
    load->busiest += (uint64_t)most;
}

/* The gates and ups must be what the rows were quantised for. */
static sl_status check_quantised(const sl_ep_experts_params *p, int32_t experts, sl_err *err)
{
    for (int32_t e = 0; p->layout.quantised && e < experts; e++)
        if (!p->fp8_acts || !sl_weight_takes_e4m3(&p->gate[e]) || !sl_weight_takes_e4m3(&p->up[e]))
            return sl_fail(
                err, SL_ERR_INVALID,
                "ep_experts: the rows are quantised, but expert %d of this rank takes no such rows", e);
    return SL_OK;
}

static sl_status run_ep_experts(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ep_experts_params *p = params;
    const sl_ep_layout *l = &p->layout;
    received r = {.p = p, .parts = sl_ep_row_of(l)};
    sl_cpu_experts x = {.gate = p->gate,
                        .up = p->up,
                        .down = p->down,
                        .top_k = l->top_k,
                        .experts = l->first[l->rank + 1] - l->first[l->rank],
                        .hidden = l->hidden,
                        .inter = p->inter,
                        .act = l->act,
                        .fp8_acts = p->fp8_acts,
                        .glu = p->glu,
                        .load = load_row,
                        .take = take_result,
                        .ctx = &r};
    void *lists, *work;
    size_t slots;

    for (int32_t q = 0; q < l->ranks; q++) {
        if (p->recv_count[q] < 0 || p->recv_count[q] > l->cap)
            return sl_fail(err, SL_ERR_INVALID, "ep_experts: %d rows from rank %d, not within 0 and %d",
                           p->recv_count[q], q, l->cap);
        x.rows += p->recv_count[q];
    }
    SL_TRY(check_quantised(p, x.experts, err));
    slots = (size_t)x.rows * (size_t)l->top_k;
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_X,
                          sizeof(void *) * ((size_t)x.rows + slots) +
                              sizeof(int32_t) * (slots + (size_t)x.experts) + 64,
                          &lists, err));
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_Y, sl_cpu_experts_bytes(&x), &work, err));
    r.rows = lists;
    r.results = (uint8_t **)(void *)(r.rows + x.rows);
    x.expert_ids = (int32_t *)(void *)(r.results + slots);
    list_rows(&r, (int32_t *)(void *)(r.results + slots));
    if (p->load) {
        p->load->experts = x.experts;
        count_load(p->load, x.expert_ids, slots, (int32_t *)(void *)(r.results + slots) + slots);
    }
    return x.rows ? sl_cpu_experts_run((sl_cpu *)be, &x, work, "ep_experts", err) : SL_OK;
}

const sl_op_impl sl_cpu_ep_experts = {.run = run_ep_experts};

/* ---- home: the sum ---- */

static sl_status run_ep_sum(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ep_sum_params *p = params;
    const sl_ep_layout *l = &p->layout;
    size_t result = (size_t)sl_ep_result_bytes(l), block = result * (size_t)sl_ep_result_cap(l);
    void *at_mem, *sum_mem;
    int32_t *at; /* results used so far, of each rank */
    float *sum, *d;

    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_X, sizeof(int32_t) * (size_t)l->ranks, &at_mem, err));
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_Y, 2 * sizeof(float) * (size_t)l->hidden, &sum_mem, err));
    at = at_mem;
    sum = sum_mem;
    d = sum + l->hidden;
    memset(at, 0, sizeof(int32_t) * (size_t)l->ranks);
    for (int32_t t = 0; t < p->tokens; t++) {
        memset(sum, 0, sizeof(float) * (size_t)l->hidden);
        for (int32_t k = 0; k < l->top_k && !is_padding(p->token_seq, t); k++) {
            int64_t slot = (int64_t)t * l->top_k + k;
            int32_t q = p->expert_ids[slot] < 0 ? -1 : rank_of(l, p->expert_ids[slot]);
            float w = p->weights[slot];

            if (q < 0)
                continue;
            if (at[q] >= p->recv_count[q])
                return sl_fail(err, SL_ERR_INVALID, "ep_sum: only %d results came from rank %d",
                               p->recv_count[q], q);
            sl_load_f32(l->act, (const uint8_t *)p->recv + (size_t)q * block + (size_t)at[q]++ * result, 0,
                        l->hidden, d);
            for (int32_t i = 0; i < l->hidden; i++)
                sum[i] += w * d[i];
        }
        sl_store_f32(l->act, sum, l->hidden, p->out, (int64_t)t * l->hidden);
    }
    return SL_OK;
}

const sl_op_impl sl_cpu_ep_sum = {.run = run_ep_sum};
