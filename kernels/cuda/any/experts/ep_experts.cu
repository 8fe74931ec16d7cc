/*
 * Rows that other ranks sent, through this rank's experts: the list of their choices, and the paths of SL_OP_MOE
 * (moe_run.h). Each result is written where it is sent from: after the results of earlier choices of the same rank.
 * The number of rows is known on the device only, so nothing here waits for it.
 */
#include "kernels/cuda/any/experts/moe_list.cuh"

/* One block lists the rows of one rank, and one more counts. Experts that do not exist (rows of an exchange that broke
 * off) are an error and are not computed. */
__global__ static void __launch_bounds__(SL_EP_THREADS) list_kernel(sl_moe_arrived a, uint32_t *deverr)
{
    if (blockIdx.x == a.ranks)
        return sl_moe_count_load(a);
    int from = blockIdx.x, came = sl_ep_count(a.count, from, a.cap), base = 0, all;

    for (int i0 = 0; i0 < a.cap; i0 += SL_EP_THREADS) {
        int i = i0 + threadIdx.x, n = 0;
        int64_t place = (int64_t)from * a.cap + i;
        const int32_t *own = (const int32_t *)(a.recv + place * a.row.bytes + a.row.ids);
        for (int k = 0; i < came && k < a.top_k; k++) {
            n += own[k] >= 0 && own[k] < a.experts;
            if (own[k] >= a.experts)
                atomicOr(deverr, SL_DEVERR_ID);
        }
        int at = from * a.cap * a.top_k + base + sl_ep_before(n, &all);
        for (int k = 0; i < a.cap && k < a.top_k; k++) {
            bool real = i < came && own[k] >= 0 && own[k] < a.experts;
            a.ids[place * a.top_k + k] = real ? own[k] : -1;
            a.result[place * a.top_k + k] = real ? at++ : -1;
        }
        base += all;
    }
    if (threadIdx.x == 0)
        a.send_count[from] = base;
}

sl_status sl_moe_begin(sl_cuda *cu, sl_moe_run *r, bool floats, size_t bytes, void **mem, sl_err *err)
{
    sl_moe_params *p = &r->p;
    sl_moe_arrived *a = &r->arrived;
    const size_t pairs = (size_t)p->tokens * p->top_k, lists = sl_ep_lists_bytes((int64_t)pairs),
                 results = floats ? sl_ep_floats_bytes((int64_t)pairs, p->hidden, p->inter) : 0;
    uint8_t *at;

    if (!a->recv) {
        r->mid = (float *)p->workspace;
        r->res = r->mid + pairs * p->inter;
        return bytes ? sl_cuda_scratch(cu, bytes, mem, err) : SL_OK;
    }
    SL_TRY(sl_cuda_scratch(cu, lists + results + bytes, (void **)&at, err));
    a->ids = (int32_t *)at, a->result = a->ids + pairs;
    r->mid = (float *)(at + lists), r->res = r->mid + pairs * p->inter;
    p->expert_ids = a->ids;
    *mem = at + lists + results;
    a->sort_lists = !floats && p->tokens <= SL_MOE_LIST_PLACES;
    if (a->sort_lists)
        return SL_OK;
    return SL_LAUNCH(cu, list_kernel, (sl_launch{dim3(a->ranks + (a->counts ? 1 : 0)), SL_EP_THREADS}), err,
                     *a, cu->deverr);
}

__global__ static void send_kernel(sl_moe_arrived a, const float *res)
{
    int64_t pair = blockIdx.x;

    if (a.ids[pair] < 0)
        return;
    for (int o = blockIdx.y * blockDim.x + threadIdx.x; o < a.hidden; o += gridDim.y * blockDim.x)
        sl_st(sl_moe_result_at(a.to, a.send, a.result[pair], a.result_bytes), o, res[pair * a.hidden + o],
              a.act);
}

sl_status sl_moe_send(sl_cuda *cu, const sl_moe_run *r, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    dim3 grid((unsigned)(p->tokens * p->top_k), min(sl_ceil_div(p->hidden, 256), 8));

    return SL_LAUNCH(cu, send_kernel, (sl_launch{grid, 256}), err, r->arrived, r->res);
}

/* The gates and ups must be what the rows were quantised for. */
static sl_status check_quantised(const sl_ep_experts_params *p, int32_t experts, sl_err *err)
{
    for (int32_t e = 0; p->layout.quantised && e < experts; e++)
        if (!p->fp8_acts || !sl_weight_takes_e4m3(&p->gate[e]) || !sl_weight_takes_e4m3(&p->up[e]))
            return sl_fail(
                err, SL_ERR_INVALID,
                "cuda: ep_experts: the rows are quantised, but expert %d of this rank takes no such rows", e);
    return SL_OK;
}

static sl_status run_ep_experts(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ep_experts_params *e = (const sl_ep_experts_params *)params;
    const sl_ep_layout *l = &e->layout;
    sl_moe_run r = {};
    sl_moe_params *p = &r.p;
    sl_moe_arrived *a = &r.arrived;

    *p = sl_ep_experts_as_moe(e);
    p->x = e->recv, p->out = p->workspace = e->send;
    SL_TRY(check_quantised(e, p->experts, err));
    a->recv = (const uint8_t *)e->recv, a->count = e->recv_count;
    a->send = (uint8_t *)e->send, a->send_count = e->send_count;
    a->row = sl_ep_row_of(l), a->result_bytes = sl_ep_result_bytes(l);
    a->ranks = l->ranks, a->cap = l->cap, a->top_k = l->top_k, a->hidden = l->hidden, a->experts = p->experts;
    a->quantised = l->quantised, a->act = l->act;
    a->to.rows = e->to ? sl_ep_result_cap(l) : 0;
    for (int q = 0; e->to && q < l->ranks; q++)
        a->to.block[q] = (uint8_t *)e->to[q];
    if (e->load) {
        e->load->experts = p->experts;
        sl_cuda_of(be)->load = e->load;
        a->counts = p->experts <= SL_EP_COUNTED ? sl_cuda_counts_of(sl_cuda_of(be)) : NULL;
    }
    return sl_moe_products(sl_cuda_of(be), &r, err);
}

const sl_op_impl sl_cuda_ep_experts = {.run = run_ep_experts};
