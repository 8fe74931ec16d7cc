/* Conformance cases of the mixture of experts: router and routed experts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ep.h"
#include "kernels/formats.h"
#include "tests/unit/kernels/cf.h"

/* A table whose rows are in no order, and in which some experts are twice in a row. */
static void route_by_table(cf_run *r, int32_t vocab, sl_moe_route_params *p)
{
    int32_t *table = cf_temp(r, 4 * (size_t)(vocab * p->top_k)), *ids = cf_temp(r, 4 * (size_t)r->n);

    for (int32_t i = 0; i < vocab * p->top_k; i++)
        table[i] = (int32_t)(cf_hash(9, i) % (uint64_t)p->experts);
    for (int64_t t = 0; t < r->n; t++)
        ids[t] = (int32_t)((r->first + t) * 5 % vocab);
    p->vocab = vocab;
    p->table = cf_mem(r, table, 4 * (size_t)(vocab * p->top_k));
    p->ids = cf_mem(r, ids, 4 * (size_t)r->n);
}

/* T, experts, groups, top_groups, top_k, bias, normalise, ties, refused groups are zero, score, rows of a table */
static void route(cf_run *r, const int64_t *a)
{
    sl_moe_route_params p = {.tokens = (int32_t)r->n, .experts = (int32_t)a[1], .groups = (int32_t)a[2]};
    float *logits = cf_temp(r, 4 * (size_t)(r->n * a[1]));

    p.top_groups = (int32_t)a[3];
    p.top_k = (int32_t)a[4];
    p.normalise = a[6];
    p.zero_refused = a[8];
    p.scale = 2.5f;
    p.score = (sl_route_score)a[9];
    if (a[10])
        route_by_table(r, (int32_t)a[10], &p);
    for (int64_t t = 0; t < r->n; t++)
        for (int64_t i = 0; i < a[1]; i++) {
            float v = 4 * cf_uniform(1, (r->first + t) * a[1] + i);

            logits[t * a[1] + i] = a[7] ? roundf(v) : v; /* whole numbers: many equal experts and groups */
        }
    p.logits = cf_mem(r, logits, 4 * (size_t)(r->n * a[1]));
    p.bias = a[5] ? cf_matrix(r, 2, 0, 1, a[1], a[1], SL_F32, a[8] ? 1.5f : 0.5f) : NULL;
    p.experts_out = cf_mem(r, NULL, 4 * (size_t)(r->n * a[4]));
    p.weights_out = cf_mem(r, NULL, 4 * (size_t)(r->n * a[4]));
    cf_op(r, SL_OP_MOE_ROUTE, &p);
    cf_work(r, 4.0 * (double)r->n * (double)(a[1] + 2 * a[4]), 0, SL_F32, 0);
    cf_out_tokens(r, "experts", p.experts_out, 4 * (size_t)a[4], CF_BYTES, 0);
    cf_out_tokens(r, "weights", p.weights_out, 4 * (size_t)a[4], CF_F32, 2e-6);
}

static sl_weight *expert_weights(cf_run *r, uint32_t stream, int64_t n, int32_t out, int32_t in, int64_t form)
{
    sl_weight *w = cf_temp(r, sizeof(*w) * (size_t)n);
    sl_weight all = cf_weight(r, stream, (int32_t)((out + 127) / 128 * 128 * n), in, form);
    const sl_dtype dtype = cf_form_dtype(form);
    int32_t rows = (out + 127) / 128 * 128; /* whole blocks of scales per expert */

    for (int64_t i = 0; i < n; i++) {
        w[i] = all;
        w[i].out = out;
        w[i].data = (const uint8_t *)all.data + i * rows * sl_dtype_bytes(dtype, in);
        if (all.group)
            w[i].multiplier =
                all.multiplier + i * rows * sl_weight_groups(&all) * (int64_t)sl_scale_size(all.scale_type);
        else
            w[i].scale = all.scale ? all.scale + i * (rows / 128) * ((in + 127) / 128) : NULL;
        w[i].global = all.global * (1.0f + 0.25f * (float)(i % 3));
    }
    return w;
}

/* Variants of the activation: none, a clamp that bites, swigluoai. */
static const sl_glu glus[] = {{0, 0, 0}, {0.75f, 0, 0}, {1.5f, 1.702f, 1}};

/* SL_OP_MOE as the cases of T, hidden, inter, experts, top_k, weight, act, fp8_acts, skipped; ids are host copies. */
static sl_moe_params experts_of(cf_run *r, const int64_t *a, int32_t *ids)
{
    sl_moe_params p = {
        .tokens = (int32_t)r->n, .hidden = (int32_t)a[1], .inter = (int32_t)a[2], .experts = (int32_t)a[3]};
    float *weights = cf_temp(r, 4 * (size_t)(r->n * a[4]));

    p.top_k = (int32_t)a[4];
    p.act = (sl_dtype)a[6];
    p.fp8_acts = a[7];
    p.glu = glus[a[11]];
    for (int64_t t = 0; t < r->n; t++)
        for (int64_t i = 0; i < a[4]; i++) { /* distinct, ascending: a run of experts with gaps */
            int64_t g = r->first + t, span = a[3] / a[4];

            ids[t * a[4] + i] = (int32_t)(i * span + (int64_t)(cf_hash(9, g * 64 + i) % (uint64_t)span));
            weights[t * a[4] + i] = 0.6f + 0.5f * cf_uniform(8, g * 64 + i);
            if (a[8] && i == a[4] - 1 && g % 3 == 0)
                ids[t * a[4] + i] = -1;
        }
    p.expert_ids = cf_mem(r, ids, 4 * (size_t)(r->n * a[4]));
    p.weights = cf_mem(r, weights, 4 * (size_t)(r->n * a[4]));
    p.gate = expert_weights(r, 1, a[3], p.inter, p.hidden, a[5]);
    p.up = expert_weights(r, 2, a[3], p.inter, p.hidden, a[10] ? SL_BF16 : a[5]);
    p.down = expert_weights(r, 3, a[3], p.hidden, p.inter, a[5]);
    p.x = cf_matrix(r, 4, r->first, r->n, a[1], a[1], p.act, 2);
    p.out = cf_mem(r, NULL, (size_t)r->n * (size_t)a[1] * sl_dtype_size(p.act));
    p.workspace_bytes = sl_moe_workspace_bytes(p.tokens, p.hidden, p.inter, p.experts, p.top_k);
    p.workspace = cf_mem(r, NULL, p.workspace_bytes);
    return p;
}

/* f8: the tolerance with fp8 activations. A value midway between two e4m3 or bf16 codes may be rounded to either in the
 * product between the two layers. */
static void out_of_experts(cf_run *r, const sl_moe_params *p, const void *out, double f8)
{
    cf_out_tokens(r, "out", out, (size_t)p->hidden * sl_dtype_size(p->act),
                  p->act == SL_BF16 ? CF_BF16 : CF_F32,
                  p->fp8_acts         ? f8
                  : p->act == SL_BF16 ? 6e-3
                                      : 1e-5);
}

/* T, hidden, inter, experts, top_k, weight, act, fp8_acts, skipped: the last choice of every third token is
 * -1 */
static void moe(cf_run *r, const int64_t *a)
{
    sl_moe_params p = experts_of(r, a, cf_temp(r, 4 * (size_t)(r->n * a[4])));
    double touched = (double)a[3] * (1 - pow(1 - 1.0 / (double)(a[3] / a[4]), (double)r->n));
    double each = 3.0 * (double)a[1] * (double)a[2];
    double bytes = 2.0 * (double)cf_form_bytes(a[5], a[2], a[1]) + (double)cf_form_bytes(a[5], a[1], a[2]);

    cf_op(r, SL_OP_MOE, &p);
    cf_work(r, touched * bytes, 2.0 * each * (double)(r->n * a[4]), p.fp8_acts ? SL_F8_E4M3 : p.act, 0);
    out_of_experts(r, &p, p.out, 2e-2);
}

/* ---- expert parallelism: the ranks of a group, played by one backend ---- */

enum { EP_MOST = 8 };

typedef struct ep_side {
    uint8_t *send, *recv, *results, *back;
    int32_t *count[4]; /* rows sent, received; results sent, received */
    int64_t first, n;  /* the tokens of this rank, within this run */
} ep_side;

typedef struct ep_case {
    sl_moe_params p;
    ep_side sides[EP_MOST];
    int32_t ranks, *first, *seq; /* seq: on the device */
    uint8_t *out;
    sl_ep_load *load; /* of all ranks */
    bool quantised;
    bool placed; /* the ops write into the receivers' blocks; else the blocks are copied */
} ep_case;

static sl_ep_layout ep_layout(const ep_case *c, int32_t rank)
{
    return (sl_ep_layout){.first = c->first,
                          .rank = rank,
                          .ranks = c->ranks,
                          .cap = c->p.tokens,
                          .hidden = c->p.hidden,
                          .top_k = c->p.top_k,
                          .act = c->p.act,
                          .quantised = c->quantised};
}

/* Where rank q writes its blocks: sl_ep_send_params.to. */
static void *const *ep_places(const ep_case *c, int32_t q, bool back, size_t block, void **to)
{
    for (int32_t d = 0; d < c->ranks; d++)
        to[d] = (back ? c->sides[d].back : c->sides[d].recv) + (size_t)q * block;
    return c->placed ? to : NULL;
}

/* What sl_comm_all_to_all() does. */
static void ep_exchange(cf_run *r, ep_case *c, bool back, size_t block)
{
    for (int32_t i = 0; i < c->ranks * c->ranks && r->st == SL_OK; i++) {
        int32_t from = i / c->ranks, to = i % c->ranks;
        ep_side *s = &c->sides[from], *d = &c->sides[to];

        if (!c->placed)
            r->st = sl_be_copy(r->be, (back ? d->back : d->recv) + (size_t)from * block,
                               (back ? s->results : s->send) + (size_t)to * block, block, &r->err);
        if (r->st == SL_OK)
            r->st = sl_be_copy(r->be, d->count[back ? 3 : 1] + from, s->count[back ? 2 : 0] + to, 4, &r->err);
    }
}

static void ep_run(cf_run *r, ep_case *c)
{
    sl_ep_layout l = ep_layout(c, 0);
    size_t row = (size_t)c->p.hidden * sl_dtype_size(c->p.act), rows = (size_t)(sl_ep_row_bytes(&l) * l.cap),
           results = (size_t)(sl_ep_result_bytes(&l) * sl_ep_result_cap(&l));
    void *to[EP_MOST];

    for (int32_t q = 0; q < c->ranks; q++) {
        ep_side *s = &c->sides[q];
        sl_ep_send_params p = {.layout = ep_layout(c, q),
                               .x = (const uint8_t *)c->p.x + (size_t)s->first * row,
                               .expert_ids = c->p.expert_ids + s->first * c->p.top_k,
                               .token_seq = c->seq + s->first,
                               .send = s->send,
                               .send_count = s->count[0],
                               .tokens = (int32_t)s->n,
                               .to = ep_places(c, q, false, rows, to)};
        cf_op(r, SL_OP_EP_SEND, &p);
    }
    ep_exchange(r, c, false, rows);
    for (int32_t q = 0; q < c->ranks; q++) {
        ep_side *s = &c->sides[q];
        sl_ep_experts_params p = {.layout = ep_layout(c, q),
                                  .recv = s->recv,
                                  .recv_count = s->count[1],
                                  .gate = c->p.gate + c->first[q],
                                  .up = c->p.up + c->first[q],
                                  .down = c->p.down + c->first[q],
                                  .send = s->results,
                                  .send_count = s->count[2],
                                  .inter = c->p.inter,
                                  .fp8_acts = c->p.fp8_acts,
                                  .glu = c->p.glu,
                                  .load = c->load,
                                  .to = ep_places(c, q, true, results, to)};
        cf_op(r, SL_OP_EP_EXPERTS, &p);
    }
    ep_exchange(r, c, true, results);
    for (int32_t q = 0; q < c->ranks; q++) {
        ep_side *s = &c->sides[q];
        sl_ep_sum_params p = {.layout = ep_layout(c, q),
                              .recv = s->back,
                              .recv_count = s->count[3],
                              .expert_ids = c->p.expert_ids + s->first * c->p.top_k,
                              .weights = c->p.weights + s->first * c->p.top_k,
                              .token_seq = c->seq + s->first,
                              .out = c->out + (size_t)s->first * row,
                              .tokens = (int32_t)s->n};
        cf_op(r, SL_OP_EP_SUM, &p);
    }
}

/* The tokens of the whole case are divided into ranges, so that a slice of the case leaves some ranks without tokens. */
static void ep_sides(cf_run *r, ep_case *c, int64_t total)
{
    sl_ep_layout l = ep_layout(c, 0);
    size_t rows = (size_t)(sl_ep_row_bytes(&l) * l.cap * l.ranks),
           results = (size_t)(sl_ep_result_bytes(&l) * sl_ep_result_cap(&l) * l.ranks);

    for (int32_t q = 0; q < c->ranks; q++) {
        ep_side *s = &c->sides[q];
        int64_t from = total * q / c->ranks - r->first, to = total * (q + 1) / c->ranks - r->first;

        s->first = from < 0 ? 0 : from > r->n ? r->n : from;
        s->n = (to < 0 ? 0 : to > r->n ? r->n : to) - s->first;
        s->send = cf_mem(r, NULL, rows);
        s->recv = cf_mem(r, NULL, rows);
        s->results = cf_mem(r, NULL, results);
        s->back = cf_mem(r, NULL, results);
        s->count[0] = cf_mem(r, NULL, 16 * EP_MOST);
        for (int i = 1; i < 4; i++)
            s->count[i] = s->count[0] ? s->count[0] + EP_MOST * i : NULL;
    }
}

/* What the ranks must have counted: the pairs of tokens and experts, and the sum over the ranks of those of its busiest
 * expert. */
static void ep_check_load(cf_run *r, const ep_case *c, const int32_t *ids, const sl_ep_load *got)
{
    uint64_t rows = 0, busiest = 0;

    for (int32_t q = 0; q < c->ranks; q++) {
        uint64_t most = 0;
        for (int32_t e = c->first[q]; e < c->first[q + 1]; e++) {
            uint64_t n = 0;
            for (int64_t i = 0; i < r->n * c->p.top_k; i++)
                n += ids[i] == e;
            rows += n;
            most = n > most ? n : most;
        }
        busiest += most;
    }
    if (r->st == SL_OK && (got->rows != rows || got->busiest != busiest))
        cf_fail(r, "the load is %llu rows, busiest %llu; counted %llu and %llu",
                (unsigned long long)got->rows, (unsigned long long)got->busiest, (unsigned long long)rows,
                (unsigned long long)busiest);
}

/* The bits of this backend's own SL_OP_MOE. */
static void ep_compare(cf_run *r, const ep_case *c, uint8_t *got, const uint8_t *want, size_t bytes)
{
    cf_get(r, got, c->out, bytes);
    for (size_t i = 0; i < bytes && r->st == SL_OK; i++)
        if (got[i] != want[i])
            cf_fail(r, "%d ranks%s: byte %zu of token %zu is not that of SL_OP_MOE", c->ranks,
                    c->placed ? ", rows placed" : "", i % (bytes / (size_t)r->n), i / (bytes / (size_t)r->n));
}

/* Overwrites what the first run left where rows and results arrive. */
static void ep_forget(cf_run *r, ep_case *c)
{
    sl_ep_layout l = ep_layout(c, 0);

    for (int32_t q = 0; q < c->ranks && r->st == SL_OK; q++) {
        r->st = sl_be_fill(r->be, c->sides[q].recv, 0x7f, (size_t)(sl_ep_row_bytes(&l) * l.cap * l.ranks),
                           &r->err);
        if (r->st == SL_OK)
            r->st = sl_be_fill(r->be, c->sides[q].back, 0x7f,
                               (size_t)(sl_ep_result_bytes(&l) * sl_ep_result_cap(&l) * l.ranks), &r->err);
    }
}

/* As moe, then the number of ranks, and whether the ups are bf16, so that rows travel unquantised. Every fifth token is
 * padding. Besides the comparison with the other implementation: the bits of this backend's own SL_OP_MOE, also when the
 * ops write where rows and results are read. */
static void ep(cf_run *r, const int64_t *a)
{
    int32_t *ids = cf_temp(r, 4 * (size_t)(r->n * a[4])), *seq = cf_temp(r, 4 * (size_t)r->n);
    ep_case c = {.p = experts_of(r, a, ids), .ranks = (int32_t)a[9]};
    size_t bytes = (size_t)r->n * (size_t)a[1] * sl_dtype_size(c.p.act);
    void *got = cf_temp(r, bytes), *want = cf_temp(r, bytes);
    static sl_ep_load load; /* until the next sync, also when the case fails */

    load = (sl_ep_load){0};
    c.load = &load;
    for (int64_t t = 0; t < r->n; t++) {
        seq[t] = (r->first + t) % 5 == 3 ? -1 : (int32_t)t;
        for (int64_t k = 0; seq[t] < 0 && k < a[4]; k++)
            ids[t * a[4] + k] = -1;
    }
    c.first = cf_temp(r, 4 * (EP_MOST + 1));
    sl_ep_split(c.p.experts, c.ranks, c.first);
    c.quantised = c.p.fp8_acts && sl_weight_takes_e4m3(&c.p.gate[0]) && sl_weight_takes_e4m3(&c.p.up[0]);
    c.seq = cf_mem(r, seq, 4 * (size_t)r->n);
    c.out = cf_mem(r, NULL, bytes);
    if (r->be && r->st == SL_OK) {
        ep_sides(r, &c, a[0]);
        ep_run(r, &c);
    }
    c.p.expert_ids = cf_mem(r, ids, 4 * (size_t)(r->n * a[4])); /* padding has no experts */
    cf_op(r, SL_OP_MOE, &c.p);
    if (r->be) {
        cf_get(r, want, c.p.out, bytes);
        ep_compare(r, &c, got, want, bytes);
        ep_check_load(r, &c, ids, &load);
        c.placed = true, c.load = NULL;
        ep_forget(r, &c);
        if (r->st == SL_OK)
            ep_run(r, &c);
        ep_compare(r, &c, got, want, bytes);
    }
    out_of_experts(r, &c.p, r->be ? c.out : c.p.out,
                   3e-2); /* more tokens, and 128 values in between: more flips */
}

#define F SL_F32
#define B SL_BF16
#define Q SL_F8_E4M3
#define I32F CF_FORM(SL_I4, SL_SCALE_F32, 32)
#define I64B CF_FORM(SL_I4, SL_SCALE_BF16, 64)
#define I128B CF_FORM(SL_I4, SL_SCALE_BF16, 128)
#define I256F CF_FORM(SL_I4, SL_SCALE_F32, 256)
#define MX CF_FORM(SL_F4_E2M1, SL_SCALE_E8M0, 32)
#define NV CF_FORM(SL_F4_E2M1, SL_SCALE_E4M3, 16)
#define Q1 CF_FORM(SL_F8_E4M3, SL_SCALE_F32, 1024)
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_MOE_ROUTE, "T=40 E=16 4 groups of 2 zero", route, {40, 16, 4, 2, 6, 1, 1, 0, 1}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=40 E=256 8 groups of 4 zero", route, {40, 256, 8, 4, 8, 1, 1, 0, 1}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=33 E=512 k=10 softmax", route, {33, 512, 0, 0, 10, 0, 1, 0, 0, 1}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=9 E=256 k=6 softmax", route, {9, 256, 1, 1, 6, 0, 0, 0, 0, 1}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=9 E=12 k=3 softmax", route, {9, 12, 0, 0, 3, 1, 1, 0, 0, 1}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=9 E=256 k=6 sqrt softplus", route, {9, 256, 1, 1, 6, 1, 1, 0, 0, 2}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=9 E=10 k=3 sqrt softplus", route, {9, 10, 0, 0, 3, 0, 1, 0, 0, 2}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=40 E=256 table", route, {40, 256, 1, 1, 6, 0, 1, 0, 0, 2, 64}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=9 E=5 table, sigmoid", route, {9, 5, 0, 0, 3, 0, 1, 0, 0, 0, 7}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=1 E=1", route, {1, 1, 1, 1, 1, 0, 1, 0}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=9 E=16 groups=4/2 k=4", route, {9, 16, 4, 2, 4, 1, 1, 0}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=40 E=256 groups=8/4 k=8", route, {40, 256, 8, 4, 8, 1, 1, 0}, CF_SPLIT | CF_PERF},
    {SL_OP_MOE_ROUTE, "T=7 E=256 groups=1 k=8", route, {7, 256, 1, 1, 8, 1, 1, 0}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=7 E=24 groups=0 k=24", route, {7, 24, 0, 0, 24, 0, 0, 0}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=30 E=64 groups=8/3 k=6 ties", route, {30, 64, 8, 3, 6, 0, 1, 1}, CF_SPLIT},
    {SL_OP_MOE_ROUTE, "T=5 E=8 groups=8/3 k=3 one each", route, {5, 8, 8, 3, 3, 1, 0, 0}, CF_SPLIT},

    {SL_OP_MOE, "T=1 1x1 E=1", moe, {1, 1, 1, 1, 1, F, F, 0, 0}, CF_SPLIT},
    /* more (token, choice) pairs than a grid has blocks in y: prompts of more than 8,192 tokens with 8 choices */
    {SL_OP_MOE, "T=8200 hidden=8 inter=4 E=16 k=8 f32", moe, {8200, 8, 4, 16, 8, F, F, 0, 0}, CF_LARGE},
    {SL_OP_MOE, "T=11 hidden=96 inter=40 E=16 k=4 f32", moe, {11, 96, 40, 16, 4, F, F, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=11 hidden=96 inter=40 E=16 k=4 skipped", moe, {11, 96, 40, 16, 4, F, F, 0, 1}, CF_SPLIT},
    {SL_OP_MOE, "T=11 96x40 E=16 k=4 f32 clamp", moe, {11, 96, 40, 16, 4, F, F, 0, 0, 0, 0, 1}, CF_SPLIT},
    {SL_OP_MOE, "T=11 96x40 E=16 k=4 f32 swigluoai", moe, {11, 96, 40, 16, 4, F, F, 0, 0, 0, 0, 2}, CF_SPLIT},
    {SL_OP_MOE, "T=7 256x128 E=8 k=2 bf16 swigluoai", moe, {7, 256, 128, 8, 2, B, B, 0, 0, 0, 0, 2}, CF_SPLIT},
    {SL_OP_MOE, "T=7 256x128 E=8 k=2 f8 acts clamp", moe, {7, 256, 128, 8, 2, Q, B, 1, 0, 0, 0, 1}, CF_SPLIT},
    {SL_OP_MOE, "T=7 hidden=256 inter=128 E=8 k=2 bf16", moe, {7, 256, 128, 8, 2, B, B, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 hidden=256 inter=128 E=8 k=2 f8", moe, {7, 256, 128, 8, 2, Q, B, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 hidden=300 inter=200 E=8 k=2 f8 acts", moe, {7, 300, 200, 8, 2, Q, B, 1, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 hidden=300 inter=200 E=8 k=2 f8 acts f32", moe, {7, 300, 200, 8, 2, Q, F, 1, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=90 hidden=256 inter=384 E=8 k=4 f8 acts", moe, {90, 256, 384, 8, 4, Q, B, 1, 1}, CF_SPLIT | CF_LARGE},
    {SL_OP_MOE, "T=7 hidden=512 inter=128 E=8 k=2 f8 acts f32", moe, {7, 512, 128, 8, 2, Q, F, 1, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=300 hidden=640 inter=256 E=8 k=4 f8 acts", moe, {300, 640, 256, 8, 4, Q, B, 1, 1}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_MOE, "T=150 hidden=256 inter=128 E=1 k=1 f8 acts", moe, {150, 256, 128, 1, 1, Q, B, 1, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=140 hidden=192 inter=256 E=4 k=2 bf16 skipped", moe, {140, 192, 256, 4, 2, B, B, 0, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=5 hidden=320 inter=128 E=40 k=2 bf16", moe, {5, 320, 128, 40, 2, B, B, 0, 1}, CF_SPLIT},
    {SL_OP_MOE, "T=16 hidden=7168 inter=2048 E=16 k=8 f8 acts", moe, {16, 7168, 2048, 16, 8, Q, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_MOE, "T=2048 hidden=2048 inter=1024 E=16 k=4 bf16", moe, {2048, 2048, 1024, 16, 4, B, B, 0, 0}, CF_PERF_ONLY},
    {SL_OP_MOE, "T=2048 hidden=2048 inter=1024 E=16 k=4 f8 acts", moe, {2048, 2048, 1024, 16, 4, Q, B, 1, 0}, CF_PERF_ONLY},
    /* weights in 4 bits: shapes of the plain path, then those of the stream */
    {SL_OP_MOE, "T=7 300x200 E=8 k=2 int4/64 f32", moe, {7, 300, 200, 8, 2, I64B, F, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 300x200 E=8 k=2 int4/32 acts f32", moe, {7, 300, 200, 8, 2, I32F, F, 1, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 300x200 E=8 k=2 mxfp4 acts", moe, {7, 300, 200, 8, 2, MX, B, 1, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 300x200 E=8 k=2 nvfp4", moe, {7, 300, 200, 8, 2, NV, B, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 300x200 E=8 k=2 fp8 by output", moe, {7, 300, 200, 8, 2, Q1, B, 1, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 256x128 E=8 k=2 int4/128", moe, {7, 256, 128, 8, 2, I128B, B, 0, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=7 512x256 E=8 k=2 int4/128 acts", moe, {7, 512, 256, 8, 2, I128B, B, 1, 0}, CF_SPLIT},
    {SL_OP_MOE, "T=9 512x256 E=8 k=2 int4/256 acts", moe, {9, 512, 256, 8, 2, I256F, B, 1, 1}, CF_SPLIT},
    {SL_OP_MOE, "T=9 512x256 E=8 k=2 int4/256", moe, {9, 512, 256, 8, 2, I256F, B, 0, 1}, CF_SPLIT},
    {SL_OP_MOE, "T=90 256x512 E=8 k=4 int4/64 acts", moe, {90, 256, 512, 8, 4, I64B, B, 1, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=90 256x512 E=8 k=4 int4/64", moe, {90, 256, 512, 8, 4, I64B, B, 0, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=40 768x256 E=4 k=2 int4/32 acts", moe, {40, 768, 256, 4, 2, I32F, B, 1, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=40 768x256 E=4 k=2 int4/32", moe, {40, 768, 256, 4, 2, I32F, B, 0, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=90 256x512 E=8 k=4 mxfp4 acts", moe, {90, 256, 512, 8, 4, MX, B, 1, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=90 256x512 E=8 k=4 mxfp4", moe, {90, 256, 512, 8, 4, MX, B, 0, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=90 256x512 E=8 k=4 nvfp4", moe, {90, 256, 512, 8, 4, NV, B, 0, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=150 256x256 E=1 k=1 int4/128 acts", moe, {150, 256, 256, 1, 1, I128B, B, 1, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_MOE, "T=16 hidden=7168 inter=2048 E=16 k=8 int4/128 acts", moe, {16, 7168, 2048, 16, 8, I128B, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_MOE, "T=16 hidden=7168 inter=2048 E=16 k=8 int4/128", moe, {16, 7168, 2048, 16, 8, I128B, B, 0, 0}, CF_PERF_ONLY},
    {SL_OP_MOE, "T=16 hidden=7168 inter=2048 E=16 k=8 mxfp4 acts", moe, {16, 7168, 2048, 16, 8, MX, B, 1, 0}, CF_PERF_ONLY},
    {SL_OP_MOE, "T=16 hidden=7168 inter=2048 E=16 k=8 nvfp4", moe, {16, 7168, 2048, 16, 8, NV, B, 0, 0}, CF_PERF_ONLY},
    {SL_OP_EP_EXPERTS, "T=9 256x512 E=8 k=2 int4/128 acts, 3 ranks", ep, {9, 256, 512, 8, 2, I128B, B, 1, 1, 3}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=9 256x128 E=8 k=2 nvfp4, 2 ranks", ep, {9, 256, 128, 8, 2, NV, B, 0, 0, 2}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=9 256x128 E=8 k=2 mxfp4 acts, bf16 ups", ep, {9, 256, 128, 8, 2, MX, B, 1, 0, 2, 1}, CF_SPLIT},
    /* ranks 1 to 8; on CUDA the plain path, then those of bf16, of fp8 with f32, and of fp8 with few and many rows */
    {SL_OP_EP_EXPERTS, "T=11 96x40 E=16 k=4 f32, 3 ranks", ep, {11, 96, 40, 16, 4, F, F, 0, 1, 3}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=11 96x40 E=16 clamp, 3 ranks", ep, {11, 96, 40, 16, 4, F, F, 0, 1, 3, 0, 1}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=7 256x128 E=8 k=2 f8, 2 ranks", ep, {7, 256, 128, 8, 2, Q, B, 0, 0, 2}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=9 300x200 E=8 k=2 f8 acts, 3 ranks", ep, {9, 300, 200, 8, 2, Q, B, 1, 0, 3}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=9 131x200 E=7 k=3 f8 acts f32, 4 ranks", ep, {9, 131, 200, 7, 3, Q, F, 1, 0, 4}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=9 256x128 E=6 k=2 f8 acts, bf16 ups, 2 ranks", ep, {9, 256, 128, 6, 2, Q, B, 1, 0, 2, 1}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=140 192x256 E=4 k=2 bf16, 2 ranks", ep, {140, 192, 256, 4, 2, B, B, 0, 1, 2}, CF_SPLIT | CF_FEW},
    {SL_OP_EP_EXPERTS, "T=5 320x128 E=40 k=3 bf16, 3 ranks", ep, {5, 320, 128, 40, 3, B, B, 0, 1, 3}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=9 512x128 E=8 k=2 f8 acts f32, 3 ranks", ep, {9, 512, 128, 8, 2, Q, F, 1, 0, 3}, CF_SPLIT},
    {SL_OP_EP_EXPERTS, "T=90 256x384 E=8 k=4 f8 acts, 8 ranks", ep, {90, 256, 384, 8, 4, Q, B, 1, 1, 8}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_EP_EXPERTS, "T=20 512x256 E=64 k=8 f8 acts, 2 ranks", ep, {20, 512, 256, 64, 8, Q, B, 1, 1, 2}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_EP_EXPERTS, "T=300 640x256 E=8 k=4 f8 acts, 1 rank", ep, {300, 640, 256, 8, 4, Q, B, 1, 1, 1}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_EP_EXPERTS, "T=1100 128x128 E=6 k=2 f8 acts, 2 ranks", ep, {1100, 128, 128, 6, 2, Q, B, 1, 1, 2}, CF_SPLIT | CF_FEW | CF_LARGE},
};
/* clang-format on */

const cf_table cf_expert_cases = {cases, SL_COUNT(cases)};
