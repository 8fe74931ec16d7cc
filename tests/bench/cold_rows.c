/* Cold times of the ops on latent rows: attention, resolve, gather, attention during a gather; see cold.c. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/synth.h"
#include "tests/bench/cold.h"

enum { LORA = 512, ROPE = 64, WIDTH = LORA + ROPE, MOST_HEADS = 128 };

static struct rows {
    sl_row_view view;
    int64_t n;
    int32_t k;
    sl_row_format format;
    float *q, *o;
} in;

/* Rows of random values. Scales are powers of two, as in rows of the cache. */
static void make_rows(cold *c, sl_row_format format, int64_t n, int32_t tokens)
{
    enum { PART = 1 << 16 };
    size_t out = (size_t)tokens * MOST_HEADS * WIDTH;

    in = (struct rows){.format = format, .n = n, .k = c->o.tiny ? 64 : 2048};
    in.view.row_bytes = sl_row_bytes(format, LORA, ROPE);
    if (format == SL_ROW_MLA_BF16) {
        in.view.base = cold_random(c, n * WIDTH, SL_BF16, 0, 1.7f);
    } else {
        float *scales = cold_host(c, sizeof *scales * 4 * PART);
        uint16_t *rope = cold_host(c, sizeof *rope * ROPE * PART);
        in.view.base = cold_random(c, n * in.view.row_bytes, SL_F8_E4M3, 0, 110);
        for (int32_t i = 0; i < 4 * PART && scales; i++)
            scales[i] = cold_below(c, 2) ? 0.015625f : 0.0078125f;
        for (int32_t i = 0; i < ROPE * PART && rope; i++) /* bf16 of magnitude 0.5 to 2, either sign */
            rope[i] = (uint16_t)((0x3f00 + cold_below(c, 0x100)) | cold_below(c, 2) << 15);
        cold_stripe(c, in.view.base + LORA, in.view.row_bytes, n, scales, 16, PART);
        cold_stripe(c, in.view.base + LORA + 16, in.view.row_bytes, n, rope, 2 * ROPE, PART);
        free(scales);
        free(rope);
    }
    in.q = cold_random(c, (int64_t)out, SL_F32, 0, 1.7f);
    in.o = cold_mem(c, sizeof(float) * (size_t)tokens * MOST_HEADS * LORA);
}

/* Lists of k ascending rows out of `span`, different in every call. */
static int32_t *lists(cold *c, int32_t tokens, int32_t span)
{
    sl_draw_params d = {.ids = cold_mem(c, sizeof(int32_t) * (size_t)tokens * (size_t)in.k),
                        .seqs = cold_tables(c, tokens, tokens, 1, 1, NULL),
                        .k = in.k,
                        .ld_ids = in.k,
                        .span = span,
                        .seed = ++c->seed};

    if (c->st == SL_OK)
        c->st = sl_be_run(c->be, SL_OP_DRAW, &d, &c->err);
    return d.ids;
}

static sl_sparse_attn_params attention_params(cold *c, int32_t tokens, int32_t heads, int32_t span)
{
    return (sl_sparse_attn_params){.ql = in.q,
                                   .phys = lists(c, tokens, span),
                                   .rows = in.view,
                                   .o = in.o,
                                   .tokens = tokens,
                                   .heads = heads,
                                   .lora = LORA,
                                   .rope = ROPE,
                                   .k = in.k,
                                   .ld_ids = in.k,
                                   .scale = 0.04f,
                                   .format = in.format};
}

static double attention_bytes(int32_t tokens, int32_t heads)
{
    return (double)tokens * (in.k * (double)in.view.row_bytes + heads * (WIDTH + LORA) * 4.0);
}

static double attention_ops(int32_t tokens, int32_t heads)
{
    return 2.0 * tokens * heads * in.k * (WIDTH + LORA);
}

static void setup_fp8(cold *c)
{
    make_rows(c, SL_ROW_MLA_FP8, c->o.tiny ? 1000 : 4200000, c->o.tiny ? 2 : 1024);
}

static void setup_bf16(cold *c)
{
    make_rows(c, SL_ROW_MLA_BF16, c->o.tiny ? 1000 : 2000000, c->o.tiny ? 2 : 4096);
}

/* a: tokens, heads, rows that lists are drawn from (0: all) */
static void attention(cold *c, const cold_shape *a)
{
    int32_t tokens = c->o.tiny && a->a[0] > 2 ? 2 : a->a[0], heads = c->o.tiny ? 2 : a->a[1],
            span = a->a[2] && !c->o.tiny ? a->a[2] : (int32_t)in.n,
            rounds = tokens > 256 ? 3 : cold_rounds(c, (double)tokens * in.k * (double)in.view.row_bytes, 20);
    char text[64];
    double us;

    for (int32_t i = 0; i < rounds; i++) {
        sl_sparse_attn_params p = attention_params(c, tokens, heads, span);
        cold_add(c, SL_OP_SPARSE_ATTN, &p, sizeof p);
    }
    us = cold_time(c, rounds);
    snprintf(text, sizeof text, "%s %d x %d heads%s", in.format == SL_ROW_MLA_FP8 ? "fp8" : "bf16", tokens,
             heads, a->a[2] ? " prefill over 32K" : "");
    cold_report(c, a, a->a[2] ? "prefill" : "attention", text, us,
                a->a[2] ? 0 : attention_bytes(tokens, heads), attention_ops(tokens, heads), COLD_BF16, 0);
}

/* ---- resolve ---- */

typedef struct residency {
    sl_draw_params draw[COLD_CALLS];
    int32_t *pos, at;    /* of the next step: positions [tokens], and its number */
    uint32_t *step_word; /* device */
    int32_t tokens, steps[COLD_CALLS];
    bool fresh; /* lists change with every step; else all of their rows are hot from the second step on */
    const sl_seq_tables *t[COLD_CALLS];
} residency;

static residency rs;

/* Prepares the next step of the first `rounds` calls: positions advance, and lists are drawn for them. */
static void next_step(cold *c, int32_t rounds)
{
    uint32_t step = (uint32_t)++rs.at;

    c->st = sl_be_copy(c->be, rs.step_word, &step, sizeof step, &c->err);
    if (c->st == SL_OK)
        c->st = sl_be_sync(c->be, &c->err);
    for (int32_t i = 0; i < rounds && c->st == SL_OK; i++) {
        rs.steps[i]++;
        for (int32_t t = 0; t < rs.tokens; t++)
            rs.pos[t] = rs.draw[i].span + 100 + rs.steps[i];
        if (!rs.fresh && rs.steps[i] > 1)
            continue;
        c->st = sl_be_copy(c->be, (void *)rs.t[i]->token_pos, rs.pos, sizeof *rs.pos * (size_t)rs.tokens,
                           &c->err);
        if (c->st == SL_OK)
            c->st = sl_be_run(c->be, SL_OP_DRAW, &rs.draw[i], &c->err);
        if (c->st == SL_OK)
            c->st = sl_be_sync(c->be, &c->err);
    }
}

static sl_hot_state hot_state(cold *c, int32_t slots, int32_t hot_rows, int32_t max_tokens)
{
    size_t n = (size_t)slots, rows = (size_t)hot_rows;
    sl_hot_state h = {.slot_of = cold_mem(c, 2 * n * (size_t)max_tokens),
                      .token_of = cold_mem(c, 4 * n * rows),
                      .stamp = cold_mem(c, 4 * n * rows),
                      .cursor = cold_mem(c, 4 * n),
                      .counters = cold_mem(c, 16 * n),
                      .max_tokens = max_tokens};
    sl_hot_reset_params r = {.hot = h, .slot = -1, .hot_slots = slots, .hot_rows = hot_rows};

    if (c->st == SL_OK)
        c->st = sl_be_run(c->be, SL_OP_HOT_RESET, &r, &c->err);
    return h;
}

static void resolve_call(cold *c, int32_t i, int32_t tokens, int32_t span, uint32_t *keep)
{
    enum { TAIL = 64, HOT = 3 };
    int32_t max = span + 4096, cap = tokens * in.k, ld = max / 64, hot = HOT * in.k;
    int32_t *pages = cold_host(c, sizeof *pages * (size_t)tokens * (size_t)ld);
    sl_resolve_params p = {.k = in.k, .ld_ids = in.k, .miss_cap = cap, .policy = SL_EVICT_CLOCK};

    for (int32_t t = 0; t < tokens && pages; t++) /* the pages of all requests are mixed over the arena */
        for (int32_t j = 0; j < ld; j++)
            pages[t * ld + j] = (j * 37 % ld) * tokens + t;
    rs.t[i] = p.seqs = cold_tables(c, tokens, tokens, span + 100, ld, pages);
    free(pages);
    rs.steps[i] = 0;
    p.ids = cold_mem(c, 4 * (size_t)cap);
    p.phys = cold_mem(c, 4 * (size_t)cap);
    p.miss_src = cold_mem(c, 8 * (size_t)cap);
    p.miss_dst = cold_mem(c, 4 * (size_t)cap);
    p.miss_count = cold_mem(c, 4);
    p.step = rs.step_word;
    p.hot = hot_state(c, tokens, hot, max);
    p.rows = (sl_row_view){in.view.base, 16, 0, hot, TAIL, 0, 0};
    rs.draw[i] = (sl_draw_params){.ids = (int32_t *)p.ids,
                                  .seqs = p.seqs,
                                  .keep = keep,
                                  .k = in.k,
                                  .ld_ids = in.k,
                                  .span = span,
                                  .seed = ++c->seed};
    cold_add(c, SL_OP_RESOLVE, &p, sizeof p);
}

static void setup_resolve(cold *c)
{
    in = (struct rows){.k = c->o.tiny ? 64 : 2048};
    in.view.base = cold_mem(c, 256);
}

/* a: requests, misses in units of 1/65536 of a list */
static void resolve(cold *c, const cold_shape *a)
{
    int32_t tokens = c->o.tiny ? 2 : a->a[0], span = c->o.tiny ? 4096 : 65536, rounds = c->o.tiny ? 2 : 16;
    uint32_t keep = (uint32_t)(65536 - a->a[1]);
    int32_t misses = 0;
    char text[64];

    rs.tokens = tokens;
    rs.at = 0;
    rs.fresh = a->a[1] > 0;
    rs.pos = cold_host(c, sizeof *rs.pos * (size_t)tokens);
    rs.step_word = cold_mem(c, sizeof *rs.step_word);
    uint32_t *keep_word = cold_put(c, &keep, sizeof keep);
    for (int32_t i = 0; i < rounds; i++)
        resolve_call(c, i, tokens, span, keep_word);
    c->prepare = next_step;
    double us = cold_time(c, rounds);
    if (c->st == SL_OK) { /* counts the misses of one further step of the same kind */
        const sl_resolve_params *p = c->calls[0].params;
        next_step(c, 1);
        if (c->st == SL_OK)
            c->st = sl_be_run(c->be, SL_OP_RESOLVE, p, &c->err);
        if (c->st == SL_OK)
            c->st = sl_be_copy(c->be, &misses, p->miss_count, sizeof misses, &c->err);
        if (c->st == SL_OK)
            c->st = sl_be_sync(c->be, &c->err);
    }
    free(rs.pos);
    snprintf(text, sizeof text, "%d requests %d misses", tokens, misses);
    /* each id: it is read from a list and written to one, and has a map entry and a stamp */
    cold_report(c, a, "resolve", text, us, (double)tokens * in.k * (4 + 4 + 2 + 4) + misses * 24.0, 0, 1, 0);
}

/* ---- gather ---- */

enum { PAGE_ROWS = 64, LAYERS = 61, DEVICE_ROWS = 65536 };
#define HOST_ROW 656
#define HOST_PAGE ((int64_t)PAGE_ROWS * (HOST_ROW + 132) * LAYERS) /* rows and index keys of all layers */

static size_t arena_bytes(const cold *c)
{
    double memory = (double)sysconf(_SC_AVPHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30);
    int32_t gib = c->o.arena_gib ? c->o.arena_gib : memory > 64 ? 48 : (int32_t)(memory / 4);

    return c->o.tiny ? (size_t)(4 * HOST_PAGE) : (size_t)(gib < 1 ? 1 : gib) << 30;
}

/* n rows from the whole arena, ascending. */
static void choose_rows(cold *c, int64_t *src, int32_t n)
{
    int64_t rows = (int64_t)arena_bytes(c) / HOST_PAGE * PAGE_ROWS;

    for (int64_t i = 0; i < n && src; i++) {
        int64_t from = rows * i / n, to = rows * (i + 1) / n;
        src[i] = from + (to > from ? cold_below(c, (uint32_t)(to - from)) : 0);
    }
}

/* Parameters that copy such rows to the rows from `first` on of the view, in another order. */
static sl_gather_params gather_params(cold *c, int32_t n, int64_t first, int64_t of)
{
    sl_gather_params p = {.rows = in.view, .miss_cap = n};
    int64_t *src = cold_host(c, sizeof *src * (size_t)n);
    int32_t *dst = cold_host(c, sizeof *dst * (size_t)n);

    p.host = (sl_host_plane){cold_arena(c, arena_bytes(c)), HOST_PAGE, HOST_ROW};
    choose_rows(c, src, n);
    for (int64_t i = 0; i < n && dst; i++)
        dst[i] = (int32_t)(first + i * 40503 % of); /* 40503 is prime to powers of two */
    p.miss_src = cold_put(c, src, sizeof *src * (size_t)n);
    p.miss_dst = cold_put(c, dst, sizeof *dst * (size_t)n);
    p.miss_count = cold_put(c, &n, sizeof n);
    free(src);
    free(dst);
    return p;
}

/* Other rows before every replay: as in a step, no cache holds the address translations of their host pages. */
static void next_rows(cold *c, int32_t rounds)
{
    for (int32_t i = 0; i < rounds && c->st == SL_OK; i++) {
        const sl_gather_params *p = c->calls[i].params;
        int64_t *src = cold_host(c, sizeof *src * (size_t)p->miss_cap);
        choose_rows(c, src, p->miss_cap);
        if (c->st == SL_OK)
            c->st = sl_be_copy(c->be, (void *)(uintptr_t)p->miss_src, src, sizeof *src * (size_t)p->miss_cap,
                               &c->err);
        if (c->st == SL_OK)
            c->st = sl_be_sync(c->be, &c->err);
        free(src);
    }
}

static void setup_gather(cold *c)
{
    in = (struct rows){.view = {.row_bytes = HOST_ROW}};
    in.view.base = cold_mem(c, (size_t)DEVICE_ROWS * HOST_ROW);
}

/* a: rows, whether every replay reads other rows */
static void gather(cold *c, const cold_shape *a)
{
    int32_t n = c->o.tiny ? 50 : a->a[0], rounds = c->o.tiny ? 2 : n > 10000 ? 8 : 16;
    char text[64];

    for (int32_t i = 0; i < rounds; i++) {
        sl_gather_params p = gather_params(c, n, 0, DEVICE_ROWS);
        cold_add(c, SL_OP_GATHER, &p, sizeof p);
    }
    c->prepare = a->a[1] ? next_rows : NULL;
    double us = cold_time(c, rounds);
    snprintf(text, sizeof text, "%d rows of %d from %.0f GiB%s", n, HOST_ROW,
             (double)arena_bytes(c) / (1 << 30), a->a[1] ? " never read before" : "");
    cold_report(c, a, "gather", text, us, (double)n * HOST_ROW, 0, 1, (double)n * HOST_ROW);
}

/* ---- attention during a gather of rows that it does not use ---- */

/* Rounds of `each` attentions, with or without a gather of n rows on the side stream. */
static double beside_us(cold *c, int32_t tokens, int32_t each, int32_t n, int32_t rounds, bool attend)
{
    double us;

    c->n_calls = 0;
    c->kept = 0;
    for (int32_t i = 0; i < rounds; i++) {
        if (n) {
            sl_gather_params g = gather_params(c, n, in.n - DEVICE_ROWS, DEVICE_ROWS);
            cold_add(c, COLD_SIDE_BEGIN, NULL, 0);
            cold_add(c, SL_OP_GATHER, &g, sizeof g);
            cold_add(c, COLD_SIDE_END, NULL, 0);
        }
        for (int32_t j = 0; j < each && attend; j++) {
            sl_sparse_attn_params p =
                attention_params(c, tokens, c->o.tiny ? 2 : MOST_HEADS, (int32_t)in.n - DEVICE_ROWS);
            cold_add(c, SL_OP_SPARSE_ATTN, &p, sizeof p);
        }
        if (n)
            cold_add(c, COLD_SIDE_WAIT, NULL, 0);
    }
    us = cold_time(c, rounds);
    return us;
}

static void setup_beside(cold *c)
{
    make_rows(c, SL_ROW_MLA_FP8, c->o.tiny ? DEVICE_ROWS + 1000 : 4200000, c->o.tiny ? 2 : 64);
}

/*
 * a: tokens, rows. Runs enough attentions that they take about a third longer than the concurrent gather. The
 * time beyond that of the attentions alone was lost during the gather: slowed = gather / (gather - loss).
 */
static void beside(cold *c, const cold_shape *a)
{
    int32_t tokens = c->o.tiny ? 1 : a->a[0], n = c->o.tiny ? 20 : a->a[1], rounds = c->o.tiny ? 2 : 6;
    double one = beside_us(c, tokens, 1, 0, rounds, true), gather = beside_us(c, tokens, 0, n, rounds, false);
    int32_t each = c->o.tiny ? 2 : (int32_t)(gather * 1.33 / one) + 1;
    char text[96];

    if (each > 20)
        each = 20;
    double alone = beside_us(c, tokens, each, 0, rounds, true),
           both = beside_us(c, tokens, each, n, rounds, true);
    snprintf(text, sizeof text, "%d x 128 heads fp8 x %d alone", tokens, each);
    cold_report(c, a, "beside", text, alone, each * attention_bytes(tokens, MOST_HEADS),
                each * attention_ops(tokens, MOST_HEADS), COLD_BF16, 0);
    snprintf(text, sizeof text, "gather of %d rows alone", n);
    cold_report(c, &(cold_shape){0}, "beside", text, gather, 0, 0, 1, (double)n * HOST_ROW);
    snprintf(text, sizeof text, "both: attention slowed %.2f times", gather / (gather - (both - alone)));
    cold_report(c, &(cold_shape){0}, "beside", text, both, each * attention_bytes(tokens, MOST_HEADS),
                each * attention_ops(tokens, MOST_HEADS), COLD_BF16, (double)n * HOST_ROW);
}

static const cold_shape fp8_shapes[] = {
    {{1, 128}, 17.2, 9},   {{16, 128}, 38.1, 26}, {{20, 128}, 43.9, 30},      {{32, 128}, 59.6, 0},
    {{64, 128}, 89.0, 80}, {{128, 128}, 174, 0},  {{1, 64}, 17.5, 0},         {{16, 64}, 30.5, 0},
    {{20, 64}, 34.9, 0},   {{32, 64}, 48.5, 0},   {{64, 64}, 77.9, 0},        {{128, 64}, 118, 0},
    {{1, 16}, 0, 0},       {{16, 16}, 0, 0},      {{20, 16}, 0, 0},           {{32, 16}, 0, 0},
    {{64, 16}, 0, 0},      {{128, 16}, 0, 0},     {{1024, 128, 32768}, 0, 0},
};
static const cold_shape bf16_shapes[] = {
    {{1, 128}, 0, 0},  {{16, 128}, 0, 0}, {{20, 128}, 0, 0},
    {{32, 128}, 0, 0}, {{64, 128}, 0, 0}, {{128, 128}, 0, 0},
    {{20, 64}, 0, 0},  {{20, 16}, 0, 0},  {{4096, 128, 32768}, 4075, 4670}, /* 573 and 500 TFLOP/s */
};
static const cold_shape resolve_shapes[] = {
    {{20, 0}, 0, 5}, {{64, 0}, 0, 0}, {{20, 3300}, 0, 0}, {{66, 9830}, 0, 0}, {{20, 21845}, 0, 0},
};
/* Peers and goals of 656-byte rows in 48 GiB: 26.5, 37.9, 44.3 and 26, 37, 45 GB/s. */
static const cold_shape gather_shapes[] = {{{2000}, 49.5, 50.5},    {{6000}, 103.9, 106.4},
                                           {{32000}, 473.9, 466.5}, {{2000, 1}, 0, 0},
                                           {{6000, 1}, 0, 0},       {{9500, 1}, 0, 0}};
static const cold_shape beside_shapes[] = {{{20, 32000}, 0, 0}, {{60, 32000}, 0, 0}, {{64, 32000}, 0, 0}};

const cold_group cold_rows_groups[] = {
    {"attention", setup_fp8, attention, fp8_shapes, SL_COUNT(fp8_shapes)},
    {"attention_bf16", setup_bf16, attention, bf16_shapes, SL_COUNT(bf16_shapes)},
    {"resolve", setup_resolve, resolve, resolve_shapes, SL_COUNT(resolve_shapes)},
    {"gather", setup_gather, gather, gather_shapes, SL_COUNT(gather_shapes)},
    {"beside", setup_beside, beside, beside_shapes, SL_COUNT(beside_shapes)},
    {"gqa_attn", cold_gqa_setup, cold_gqa_attention, cold_gqa_shapes, COLD_GQA_SHAPES},
    {"gqa_forms", cold_gqa_setup, cold_gqa_forms, cold_gqa_form_shapes, COLD_GQA_FORMS},
    {0},
};
