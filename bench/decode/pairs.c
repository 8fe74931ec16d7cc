/*
 * How many tokens each expert of this rank gets. The choices are drawn (model/synthetic.h), and this draws them again
 * with the function that SL_OP_DRAW uses, for the tokens of all ranks; so nothing is read from the device.
 */
#include <limits.h>

#include "bench/decode/decode.h"
#include "kernels/synth.h"

enum { MOST_EXPERTS = 1024, TILE = 32 /* of kernels/cuda/sm90/experts/moe_few.cu */ };

/* Counts one layer. The experts of this rank are the first `own` of d->span. */
static void add_layer(const sl_draw_params *d, int32_t ranks, int32_t pos, int32_t own,
                      sl_bench_decode_result *r)
{
    int32_t count[MOST_EXPERTS] = {0};
    for (int32_t q = 0; q < ranks; q++) {
        sl_draw_params of_rank = *d;
        of_rank.seed = (uint64_t)q;
        for (int32_t s = 0; s < r->batch; s++)
            for (int32_t k = 0; k < d->k; k++)
                count[sl_synth_draw(&of_rank, 0, s, pos, 0, k)]++;
    }
    for (int32_t e = 0; e < own; e++) {
        r->pairs_least = count[e] < r->pairs_least ? count[e] : r->pairs_least;
        r->pairs_most = count[e] > r->pairs_most ? count[e] : r->pairs_most;
        r->pairs_mean += count[e], r->pairs_none += count[e] == 0, r->pairs_over += count[e] > TILE;
    }
}

void sl_bench_decode_pairs(const sl_bench_decode *b, int32_t pos, sl_bench_decode_result *r)
{
    const sl_model_config *c = &b->local.checkpoint.cfg;
    bool group = b->o.group > 1;
    int32_t ranks = group ? b->o.group : 1, all = group ? c->moe.n_routed : c->moe.n_routed / b->o.ranks;
    int32_t own = all / ranks, layers = 0;
    r->pairs_least = INT_MAX, r->pairs_most = 0; /* 0 at the end: no layer has experts */
    r->pairs_mean = r->pairs_none = r->pairs_over = 0;
    for (int32_t l = 0; l < c->n_layers && all <= MOST_EXPERTS; l++) {
        sl_draw_params d = {.k = c->moe.per_token, .span = all, .layer = l};
        if (!c->layer_is_moe[l])
            continue;
        add_layer(&d, ranks, pos, own, r);
        layers++;
    }
    double n = layers > 0 && own > 0 ? (double)layers * own : 1;
    r->pairs_mean /= n, r->pairs_none /= n, r->pairs_over /= n;
}
