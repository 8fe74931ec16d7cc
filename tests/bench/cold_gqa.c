/*
 * Cold times of grouped-query attention (SL_OP_GQA_ATTN), 32 query and 8 KV heads of 128, bf16 rows; see cold.c. The
 * same shapes are timed with the attention of torch by tests/bench/gqa_peers, which divides the two.
 *
 *   list     decode over lists per KV head, rows of 16 tokens of one head: what quest reads
 *   tokens   decode over lists per KV head, rows of one token of one head: what double_sparsity reads
 *   dense    decode over the whole context, without lists; rows of one token of all heads
 *   prefill  the last tokens of a prompt, causal, without lists; rows as for dense
 *
 * The group gqa_forms times decode with rows of fp8 and with head dimensions of 64 and 256.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gqa.h"
#include "kernels/synth.h"
#include "tests/bench/cold.h"

enum { HEADS = 32, KV_HEADS = 8, DIM = 128, MOST = 2048, BLOCK_LOG2 = 4 };
enum { LIST, TOKENS, DENSE, PREFILL };
static const char *const kinds[] = {"list", "tokens", "dense", "prefill"};

static struct gqa {
    uint8_t *rows;
    int64_t bytes; /* of rows */
    float *q;
    void *out;
} in;

/* Values between -2 and 2 that bf16 holds exactly, as the op wants them. */
static float *queries(cold *c)
{
    enum { DIFFERENT = 64 };
    float *q = cold_mem(c, sizeof *q * MOST * HEADS * DIM),
          *host = cold_host(c, sizeof *host * DIFFERENT * DIM);

    for (int32_t i = 0; i < DIFFERENT * DIM && host; i++)
        host[i] = (float)((int32_t)cold_below(c, 255) - 127) / 64;
    if (host)
        cold_stripe(c, (uint8_t *)q, sizeof *q * DIM, (int64_t)MOST * HEADS, host, sizeof *q * DIM,
                    DIFFERENT);
    free(host);
    return q;
}

/* Keys and values of 128 requests of 64K tokens, so that no two requests of a call share a row. */
void cold_gqa_setup(cold *c)
{
    const int64_t n = (int64_t)(c->o.tiny ? 1 << 12 : 1 << 23) * KV_HEADS * DIM * 2;

    in.bytes = 2 * n;
    in.rows = cold_random(c, n, SL_BF16, 0, 1);
    in.q = queries(c);
    in.out = cold_mem(c, (size_t)MOST * HEADS * DIM * 2);
}

/* a: as for cold_gqa_attention() */
static sl_gqa_attn_params params_of(const int32_t *a, int32_t tokens)
{
    const int32_t kind = a[0];
    const int32_t log2 = kind == LIST ? BLOCK_LOG2 : 0, heads = kind == LIST || kind == TOKENS ? KV_HEADS : 0;
    const sl_row_view rows = {.base = in.rows, .heads = heads, .block_log2 = log2};
    sl_gqa_attn_params p = {.q = in.q,
                            .rows = rows,
                            .out = in.out,
                            .tokens = tokens,
                            .heads = HEADS,
                            .kv_heads = KV_HEADS,
                            .dim = a[3] ? a[3] : DIM,
                            .scale = 0.088f,
                            .format = a[4] ? SL_ROW_GQA_FP8 : SL_ROW_GQA_BF16,
                            .act = SL_BF16};
    p.rows.row_bytes = sl_gqa_row_bytes(p.format, sl_gqa_row_slots(&rows, KV_HEADS), p.dim);
    return p;
}

/* Lists of k rows of each KV head anywhere in the memory, other ones for every call. */
static void add_lists(cold *c, const int32_t *a, int32_t tokens, int32_t len)
{
    sl_gqa_attn_params p = params_of(a, tokens);
    const int32_t per_row = 1 << p.rows.block_log2, k = len / per_row;
    const size_t n = (size_t)tokens * KV_HEADS * (size_t)k;
    int32_t *ids = cold_host(c, sizeof *ids * n), *pos = cold_host(c, sizeof *pos * (size_t)tokens);
    sl_draw_params d = {.ids = cold_mem(c, sizeof *ids * n),
                        .seqs = cold_tables(c, tokens, tokens, 1, 1, NULL),
                        .k = k,
                        .ld_ids = k,
                        .lists = KV_HEADS,
                        .span = (int32_t)(in.bytes / p.rows.row_bytes),
                        .seed = ++c->seed};

    for (size_t i = 0; i < n && c->st == SL_OK; i++)
        ids[i] = (int32_t)(i % (size_t)k);
    for (int32_t i = 0; i < tokens && c->st == SL_OK; i++)
        pos[i] = len - 1;
    if (c->st == SL_OK)
        c->st = sl_be_run(c->be, SL_OP_DRAW, &d, &c->err);
    p.phys = d.ids;
    p.k = p.ld_ids = k;
    p.ids = cold_put(c, ids, sizeof *ids * n);
    p.pos = cold_put(c, pos, sizeof *pos * (size_t)tokens);
    free(ids);
    free(pos);
    cold_add(c, SL_OP_GQA_ATTN, &p, sizeof p);
}

/* The whole context of every sequence, in pages of its own; the calls go through the memory. */
static void add_whole(cold *c, const int32_t *a, int32_t tokens, int32_t len, int32_t call)
{
    sl_gqa_attn_params p = params_of(a, tokens);
    const int32_t seqs = a[0] == PREFILL ? 1 : tokens, each = sl_pages_for(len),
                  most = (int32_t)(in.bytes / p.rows.row_bytes / SL_PAGE_TOKENS);
    int32_t *pages = cold_host(c, sizeof *pages * (size_t)seqs * (size_t)each);

    for (int32_t i = 0; i < seqs * each && c->st == SL_OK; i++)
        pages[i] = (int32_t)(((int64_t)call * seqs * each + i) % most);
    p.seqs = cold_tables(c, tokens, seqs, len, each, pages);
    p.k = len;
    free(pages);
    cold_add(c, SL_OP_GQA_ATTN, &p, sizeof p);
}

/* a: kind, tokens of the step, tokens that each attends to (of a prefill: the last one), head dimension or 0 for DIM,
 * whether rows are fp8 */
static void time_shape(cold *c, const cold_shape *s, const char *op, const char *form)
{
    const int32_t kind = s->a[0], tokens = c->o.tiny ? 4 : s->a[1], len = c->o.tiny ? 256 : s->a[2];
    const bool prefill = kind == PREFILL;
    const sl_gqa_attn_params p = params_of(s->a, tokens);
    const double read = prefill ? len : (double)tokens * len;
    const double pairs = prefill ? (double)tokens * (len - 0.5 * tokens) : read;
    const double row = 2.0 * KV_HEADS * p.dim * (p.format == SL_ROW_GQA_FP8 ? 1 + 4.0 / p.dim : 2);
    const double bytes = read * row + (double)tokens * HEADS * p.dim * 6;
    const int32_t rounds = cold_rounds(c, bytes, prefill ? 4 : 40);
    char text[64];

    for (int32_t i = 0; i < rounds; i++)
        if (kind == LIST || kind == TOKENS)
            add_lists(c, s->a, tokens, len);
        else
            add_whole(c, s->a, tokens, len, i);
    double us = cold_time(c, rounds);
    snprintf(text, sizeof text, "%s%s of %d tokens, %d each", form, kinds[kind], tokens, len);
    cold_report(c, s, op, text, us, bytes, pairs * HEADS * p.dim * 4, COLD_BF16, 0);
}

void cold_gqa_attention(cold *c, const cold_shape *s)
{
    time_shape(c, s, "gqa_attn", "");
}

void cold_gqa_forms(cold *c, const cold_shape *s)
{
    char form[32];

    snprintf(form, sizeof form, "%s of %d, ", s->a[4] ? "fp8" : "bf16", s->a[3]);
    time_shape(c, s, "gqa_forms", form);
}

const cold_shape cold_gqa_shapes[COLD_GQA_SHAPES] = {
    {{LIST, 1, 2048}, 0, 0},        {{LIST, 16, 2048}, 0, 0},      {{LIST, 64, 2048}, 0, 0},
    {{LIST, 128, 2048}, 0, 0},      {{TOKENS, 1, 2048}, 0, 0},     {{TOKENS, 16, 2048}, 0, 0},
    {{TOKENS, 64, 2048}, 0, 0},     {{TOKENS, 128, 2048}, 0, 0},   {{DENSE, 1, 2048}, 0, 0},
    {{DENSE, 16, 2048}, 0, 0},      {{DENSE, 64, 2048}, 0, 0},     {{DENSE, 128, 2048}, 0, 0},
    {{DENSE, 1, 65536}, 0, 0},      {{DENSE, 16, 65536}, 0, 0},    {{DENSE, 64, 65536}, 0, 0},
    {{DENSE, 128, 65536}, 0, 0},    {{PREFILL, 2048, 8192}, 0, 0}, {{PREFILL, 2048, 16384}, 0, 0},
    {{PREFILL, 2048, 32768}, 0, 0}, {{PREFILL, 2048, 65536}, 0, 0}};

const cold_shape cold_gqa_form_shapes[COLD_GQA_FORMS] = {
    {{LIST, 1, 2048, 64, 0}, 0, 0},     {{LIST, 64, 2048, 64, 0}, 0, 0},
    {{TOKENS, 64, 2048, 64, 0}, 0, 0},  {{DENSE, 16, 65536, 64, 0}, 0, 0},
    {{LIST, 1, 2048, 256, 0}, 0, 0},    {{LIST, 64, 2048, 256, 0}, 0, 0},
    {{TOKENS, 64, 2048, 256, 0}, 0, 0}, {{DENSE, 16, 65536, 256, 0}, 0, 0},
    {{LIST, 1, 2048, 128, 1}, 0, 0},    {{LIST, 64, 2048, 128, 1}, 0, 0},
    {{TOKENS, 64, 2048, 128, 1}, 0, 0}, {{DENSE, 16, 65536, 128, 1}, 0, 0},
    {{LIST, 64, 2048, 64, 1}, 0, 0},    {{LIST, 64, 2048, 256, 1}, 0, 0}};
