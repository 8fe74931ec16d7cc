/*
 * Cold times of dense causal attention of a prompt's last tokens (SL_OP_GQA_ATTN without lists), 32 query and 8 KV heads,
 * bf16 rows of 16 tokens by KV head; see cold.c. Three head dimensions, fp8 rows, and Skip Softmax with inputs in which neighbouring
 * queries agree on what to leave out, as those of a trained model mostly do.
 *
 * Queries are ones with noise. Keys are of two kinds, in pages of 64 tokens, which are the tiles of the rule: loud ones,
 * whose products with every query are far above 0, and quiet ones, whose products are near 0. So every query leaves out
 * the quiet pages, and the share of the pages that are quiet is the share of the tiles that are left out. The line shows
 * the share that the op counted. Of fp8 rows all bytes are random, also those of scales, which are therefore small.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gqa.h"
#include "kernels/synth.h"
#include "tests/bench/cold.h"

enum { HEADS = 32, KV_HEADS = 8, DIM_MAX = 256, TOKENS = 2048, CONTEXT = 1 << 16, FACTOR = 1000 };
enum { LAYOUT_TOKENS, LAYOUT_BLOCKS, LAYOUT_FP8 }; /* LAYOUT_FP8 is added to the others */

static struct prompt {
    uint8_t *rows, *fp8;
    int64_t half; /* bytes of the loud pages, which the quiet ones follow */
    float *q;
    void *out;
    uint64_t *tiles;
} in;

/* n values around `mean`. */
static void fill(cold *c, void *to, int64_t n, sl_dtype dtype, float mean, float spread)
{
    const int32_t cols = 1 << 10;
    sl_random_params r = {.out = to,
                          .rows = (int32_t)(n / cols),
                          .cols = cols,
                          .dtype = dtype,
                          .mean = mean,
                          .spread = spread,
                          .seed = ++c->seed};

    if (c->st == SL_OK)
        c->st = sl_be_run(c->be, SL_OP_RANDOM, &r, &c->err);
}

static void setup(cold *c)
{
    const int64_t n = (int64_t)(c->o.tiny ? 256 : CONTEXT) * KV_HEADS * DIM_MAX * 2,
                  queries = (int64_t)(c->o.tiny ? 4 : TOKENS) * HEADS * DIM_MAX;

    in.half = 2 * n;
    in.rows = cold_mem(c, (size_t)(2 * in.half));
    fill(c, in.rows, n, SL_BF16, 0.5f, 0.5f);
    fill(c, in.rows + in.half, n, SL_BF16, 0, 0.5f);
    in.fp8 = cold_mem(c, (size_t)(n + n / 16));
    fill(c, in.fp8, n + n / 16, SL_F8_E4M3, 0.5f, 0.4f);
    in.q = cold_mem(c, (size_t)queries * sizeof *in.q);
    fill(c, in.q, queries, SL_F32, 1, 0.5f);
    in.out = cold_mem(c, (size_t)queries * 2);
    in.tiles = cold_mem(c, 2 * sizeof *in.tiles);
}

/* The pages of one call, of which about `quiet` per mille are quiet ones; the first one is loud. */
static int32_t *choose_pages(cold *c, int32_t n, int32_t call, int32_t quiet, int64_t pages)
{
    int32_t *to = cold_host(c, sizeof *to * (size_t)n);

    for (int32_t i = 0; i < n && to; i++) {
        bool is = i > 0 && (int32_t)cold_below(c, 1000) < quiet;
        to[i] = (int32_t)(((int64_t)call * n + i) % pages + (is ? pages : 0));
    }
    return to;
}

static void add_call(cold *c, const cold_shape *s, int32_t tokens, int32_t len, int32_t call)
{
    const int32_t dim = s->a[0], per_page = sl_pages_for(len), layout = s->a[4] % LAYOUT_FP8;
    const bool fp8 = s->a[4] >= LAYOUT_FP8;
    sl_gqa_attn_params p = {.q = in.q,
                            .rows = {.base = fp8 ? in.fp8 : in.rows},
                            .out = in.out,
                            .tokens = tokens,
                            .heads = HEADS,
                            .kv_heads = KV_HEADS,
                            .dim = dim,
                            .scale = 11.3f / (float)dim,
                            .format = fp8 ? SL_ROW_GQA_FP8 : SL_ROW_GQA_BF16,
                            .act = SL_BF16,
                            .tiles = in.tiles};

    p.rows.heads = layout == LAYOUT_BLOCKS ? KV_HEADS : 0;
    p.rows.block_log2 = layout == LAYOUT_BLOCKS ? 4 : 0;
    p.rows.row_bytes = sl_gqa_row_bytes(p.format, sl_gqa_row_slots(&p.rows, KV_HEADS), dim);
    p.skip_factor = s->a[3] < 0 ? 0 : c->o.tiny ? 10 : FACTOR;
    p.k = len;
    int32_t *pages =
        choose_pages(c, per_page, call, s->a[3], in.half / (SL_PAGE_TOKENS * (int64_t)KV_HEADS * dim * 4));
    p.seqs = cold_tables(c, tokens, 1, len, per_page, pages);
    free(pages);
    cold_add(c, SL_OP_GQA_ATTN, &p, sizeof p);
}

/* a: head dimension, tokens of the step, tokens that the last one attends to, per mille of the pages that are quiet or -1
 * for dense attention, division of rows, and of fp8 rows LAYOUT_FP8 */
static void prompt_attention(cold *c, const cold_shape *s)
{
    const int32_t tokens = c->o.tiny ? 4 : s->a[1], len = c->o.tiny ? 256 : s->a[2], dim = s->a[0];
    const bool fp8 = s->a[4] >= LAYOUT_FP8;
    const double bytes = (double)len * KV_HEADS * dim * (fp8 ? 2 : 4) + (double)tokens * HEADS * dim * 6,
                 pairs = (double)tokens * (len - 0.5 * tokens);
    const int32_t rounds = cold_rounds(c, bytes, 4);
    uint64_t tiles[2] = {0, 0};
    char text[96];

    if (c->st == SL_OK)
        c->st = sl_be_fill(c->be, in.tiles, 0, sizeof tiles, &c->err);
    for (int32_t i = 0; i < rounds; i++)
        add_call(c, s, tokens, len, i);
    double us = cold_time(c, rounds);
    if (c->st == SL_OK)
        c->st = sl_be_copy(c->be, tiles, in.tiles, sizeof tiles, &c->err);
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err);
    snprintf(text, sizeof text, "dim %d, %d tokens, %d each, %s%s, %s %.1f%%", dim, tokens, len,
             fp8 ? "fp8 " : "",
             s->a[4] % LAYOUT_FP8 == LAYOUT_BLOCKS ? "blocks by head" : "rows of all heads",
             s->a[3] < 0 ? "dense" : "skip", tiles[0] ? 100.0 * (double)tiles[1] / (double)tiles[0] : 0);
    cold_report(c, s, "gqa_prompt", text, us, bytes, pairs * HEADS * dim * 4, COLD_BF16, 0);
}

static const cold_shape shapes[] = {{{128, 2048, 32768, -1, 1}, 0, 0},  {{128, 2048, 32768, 0, 1}, 0, 0},
                                    {{128, 2048, 32768, 500, 1}, 0, 0}, {{128, 2048, 32768, 750, 1}, 0, 0},
                                    {{128, 2048, 32768, 900, 1}, 0, 0}, {{128, 2048, 32768, -1, 0}, 0, 0},
                                    {{128, 256, 32768, -1, 1}, 0, 0},   {{64, 2048, 32768, -1, 1}, 0, 0},
                                    {{64, 2048, 32768, 500, 1}, 0, 0},  {{256, 2048, 32768, -1, 1}, 0, 0},
                                    {{256, 2048, 32768, 500, 1}, 0, 0}, {{128, 2048, 32768, -1, 2}, 0, 0},
                                    {{128, 2048, 32768, -1, 3}, 0, 0},  {{64, 2048, 32768, -1, 3}, 0, 0},
                                    {{256, 2048, 32768, -1, 3}, 0, 0}};

const cold_group cold_prompt_groups[] = {
    {"gqa_prompt", setup, prompt_attention, shapes, SL_COUNT(shapes)},
    {0},
};
