/* Conformance cases of block-sparse prompts: attention over the pages of lists that neighbouring tokens share, and the scores by
 * which these pages are chosen (kernels/gqa.h). */
#include <string.h>

#include "kernels/formats.h"
#include "kernels/gqa.h"
#include "tests/unit/kernels/batch.h"

enum { BY_HEAD = 16, PAGE = SL_PAGE_TOKENS };

/* Whether the list of page `page` of a sequence has page j. The tokens of every fourth page have no list. */
static bool has(int64_t seq, int64_t page, int64_t v, int64_t j, int64_t permille)
{
    return j == page || (int64_t)(cf_hash(91, ((seq * 977 + page) * 31 + v) * 8191 + j) % 1000) < permille;
}

static bool is_dense(int64_t page, int64_t permille)
{
    return permille < 1000 && page % 4 == 3;
}

/* The lists of the run's tokens. */
static void make_lists(cf_run *r, const batch *b, sl_gqa_attn_params *p, int64_t permille)
{
    const int64_t ld = b->ld;
    int32_t *of = cf_temp(r, 4 * (size_t)r->n), n = 0;
    int32_t *pages = cf_temp(r, 4 * (size_t)(r->n * p->kv_heads * ld));

    memset(pages, 0xff, 4 * (size_t)(r->n * p->kv_heads * ld));
    for (int64_t t = 0; t < r->n; t++) {
        const int64_t page = b->pos[t] / PAGE;
        of[t] = -1;
        if (b->seq[t] < 0 || is_dense(page, permille))
            continue;
        if (t > 0 && of[t - 1] >= 0 && b->seq[t - 1] == b->seq[t] && b->pos[t - 1] / PAGE == page) {
            of[t] = of[t - 1];
            continue;
        }
        of[t] = n++;
        for (int64_t v = 0; v < p->kv_heads; v++) {
            int32_t *to = pages + (of[t] * p->kv_heads + v) * ld;
            for (int64_t j = 0; j <= page; j++)
                if (has(b->seq[t], page, v, j, permille))
                    *to++ = (int32_t)j;
        }
    }
    p->prompt.of = cf_mem(r, of, 4 * (size_t)r->n);
    p->prompt.pages = cf_mem(r, pages, 4 * (size_t)(r->n * p->kv_heads * ld));
    p->prompt.ld = (int32_t)ld;
}

/* The same blocks as lists of rows, by token. */
static void list_rows(cf_run *r, const batch *b, sl_gqa_attn_params *p, int64_t permille)
{
    const int64_t lists = sl_row_lists(&p->rows), blocks = PAGE >> p->rows.block_log2;
    int32_t *phys = cf_temp(r, 4 * (size_t)(r->n * lists * p->ld_ids)),
            *ids = cf_temp(r, 4 * (size_t)(r->n * lists * p->ld_ids));

    memset(phys, 0xff, 4 * (size_t)(r->n * lists * p->ld_ids));
    memset(ids, 0xff, 4 * (size_t)(r->n * lists * p->ld_ids));
    for (int64_t i = 0; i < r->n * lists; i++) {
        const int64_t t = i / lists;
        int64_t n = i * p->ld_ids;
        for (int32_t j = 0; b->seq[t] >= 0 && j <= b->pos[t] >> p->rows.block_log2; j++) {
            const int64_t page = j / blocks, own = b->pos[t] / PAGE;
            if (!is_dense(own, permille) && !has(b->seq[t], own, i % lists, page, permille))
                continue;
            ids[n] = j;
            phys[n++] =
                (int32_t)((b->row_pages[b->seq[t] * b->ld + page] * blocks + j % blocks) * lists + i % lists);
        }
    }
    p->ids = cf_mem(r, ids, 4 * (size_t)(r->n * lists * p->ld_ids));
    p->phys = cf_mem(r, phys, 4 * (size_t)(r->n * lists * p->ld_ids));
    p->pos = p->seqs->token_pos;
}

static void run_into(cf_run *r, sl_gqa_attn_params *p, size_t bytes, uint8_t *got)
{
    p->out = cf_mem(r, NULL, bytes);
    cf_op(r, SL_OP_GQA_ATTN, p);
    cf_get(r, got, p->out, bytes);
}

/*
 * Attention by lists of pages. It must have the bits of the same rows as lists (where these can be by KV head), and with lists of all
 * pages those of no lists. T, heads, KV heads, dim, format, act, division of rows, tokens of a sequence, length, pages
 * of 1000 that a list has, first token of a sequence is padding
 */
static void chosen(cf_run *r, const int64_t *a)
{
    batch b;
    sl_gqa_attn_params p = {.tokens = (int32_t)r->n,
                            .heads = (int32_t)a[1],
                            .kv_heads = (int32_t)a[2],
                            .dim = (int32_t)a[3],
                            .format = (sl_row_format)a[4],
                            .act = (sl_dtype)a[5],
                            .scale = 0.3f};
    const size_t out = (size_t)(a[1] * a[3]) * sl_dtype_size(p.act), bytes = (size_t)r->n * out;
    uint8_t *got = cf_temp(r, bytes), *other = cf_temp(r, bytes);

    p.rows.heads = a[6] & BY_HEAD ? p.kv_heads : 0;
    p.rows.block_log2 = (int32_t)a[6] % BY_HEAD;
    p.rows.row_bytes = sl_gqa_row_bytes(p.format, sl_gqa_row_slots(&p.rows, p.kv_heads), p.dim);
    p.k = p.ld_ids = sl_blocks_for((int32_t)a[8], p.rows.block_log2);
    batch_make(r, &b, a[0], a[7], a[8], 0);
    for (int64_t t = 0; a[10] && t < r->n; t++)
        if ((r->first + t) % a[7] == 0)
            b.seq[t] = -1, b.pos[t] = 0;
    cf_put(r, (void *)(uintptr_t)b.t.token_seq, b.seq, 4 * (size_t)r->n);
    cf_put(r, (void *)(uintptr_t)b.t.token_pos, b.pos, 4 * (size_t)r->n);
    p.seqs = &b.t;
    batch_pages(r, &b, &p.rows, p.format, p.kv_heads, p.dim, false);
    p.q = cf_matrix(r, 6, r->first, r->n, a[1] * a[3], a[1] * a[3], p.act, 2);
    if (p.act == SL_BF16) { /* queries are f32 values that bf16 has */
        uint16_t *half = cf_temp(r, 2 * (size_t)(r->n * a[1] * a[3]));
        float *full = cf_temp(r, 4 * (size_t)(r->n * a[1] * a[3]));
        cf_get(r, half, p.q, 2 * (size_t)(r->n * a[1] * a[3]));
        sl_load_f32(SL_BF16, half, 0, r->n * a[1] * a[3], full);
        p.q = cf_mem(r, full, 4 * (size_t)(r->n * a[1] * a[3]));
    }
    make_lists(r, &b, &p, a[9]);
    run_into(r, &p, bytes, got);
    cf_out_tokens(r, "out", p.out, out, p.act == SL_BF16 ? CF_BF16 : CF_F32, p.act == SL_BF16 ? 4e-3 : 1e-5);
    if (a[9] >= 1000) {
        p.prompt.of = NULL;
        run_into(r, &p, bytes, other);
        if (r->st == SL_OK && r->be && memcmp(got, other, bytes) != 0)
            cf_fail(r, "with lists of all pages the result has other bits than without lists");
    }
    if (!p.rows.heads && p.kv_heads > 1)
        return;
    list_rows(r, &b, &p, a[9]);
    p.prompt.of = NULL, p.seqs = NULL;
    run_into(r, &p, bytes, other);
    if (r->st == SL_OK && r->be && memcmp(got, other, bytes) != 0)
        cf_fail(r, "as lists of rows the result has other bits");
}

/* Each block alone, in a launch that allows for longer sequences, has the bits that it has among the others. */
static void scores_alone(cf_run *r, const sl_prompt_scores_params *all, const int32_t *pages)
{
    sl_prompt_scores_params one = *all;
    const int64_t wide = all->ld_scores + 37;
    const size_t bytes = 4 * (size_t)(all->kv_heads * wide),
                 whole = 4 * (size_t)(all->n * all->kv_heads * all->ld_scores);
    float *got = cf_temp(r, whole), *alone = cf_temp(r, bytes);

    cf_get(r, got, all->scores, whole);
    one.n = 1, one.ld_scores = (int32_t)wide, one.max_pos = all->max_pos + 37 * PAGE;
    one.scores = cf_mem(r, NULL, bytes);
    for (int32_t i = 0; r->st == SL_OK && r->be && i < all->n; i++) {
        one.first = all->first + i;
        cf_op(r, SL_OP_PROMPT_SCORES, &one);
        cf_get(r, alone, one.scores, bytes);
        for (int64_t h = 0; r->st == SL_OK && h < all->kv_heads; h++)
            if (memcmp(alone + h * wide, got + (i * all->kv_heads + h) * all->ld_scores,
                       4 * (size_t)pages[i]) != 0)
                cf_fail(r, "block %d, KV head %d: alone it has other bits than among the others", i, (int)h);
    }
}

/* T, heads, KV heads, dim, format, division of rows, tokens of a sequence (pages), length; all tokens are in whole blocks */
static void scores(cf_run *r, const int64_t *a)
{
    batch b;
    sl_prompt_scores_params p = {.heads = (int32_t)a[1],
                                 .kv_heads = (int32_t)a[2],
                                 .dim = (int32_t)a[3],
                                 .format = (sl_row_format)a[4],
                                 .scale = 0.4f,
                                 .n = (int32_t)(r->n / PAGE),
                                 .max_pos = (int32_t)a[7] - 1,
                                 .ld_scores = (int32_t)a[7] / PAGE + 2};
    int32_t *first = cf_temp(r, 4 * (size_t)p.n), *pages = cf_temp(r, 4 * (size_t)p.n);

    p.rows.heads = a[5] & BY_HEAD ? p.kv_heads : 0;
    p.rows.block_log2 = (int32_t)a[5] % BY_HEAD;
    p.rows.row_bytes = sl_gqa_row_bytes(p.format, sl_gqa_row_slots(&p.rows, p.kv_heads), p.dim);
    batch_make(r, &b, a[0], a[6], a[7], 0);
    for (int64_t t = 0; t < r->n; t++)
        b.pos[t] = (int32_t)((b.pos[t] - t % a[6]) / PAGE * PAGE + t % a[6]);
    cf_put(r, (void *)(uintptr_t)b.t.token_pos, b.pos, 4 * (size_t)r->n);
    for (int32_t i = 0; i < p.n; i++)
        first[i] = i * PAGE, pages[i] = b.pos[i * PAGE] / PAGE + 1;
    p.first = cf_mem(r, first, 4 * (size_t)p.n);
    p.seqs = &b.t;
    batch_pages(r, &b, &p.rows, p.format, p.kv_heads, p.dim, true);
    /* Queries with few bits: their products with bf16 keys are exact in every order of a short sum. */
    float *q = cf_temp(r, 4 * (size_t)(r->n * a[1] * a[3]));
    for (int64_t i = 0; i < r->n * a[1] * a[3]; i++)
        q[i] = (float)((int)(cf_hash(93, i) % 17) - 8) / 8;
    p.q = cf_mem(r, q, 4 * (size_t)(r->n * a[1] * a[3]));
    float *start = cf_temp(r, 4 * (size_t)(p.n * p.kv_heads * p.ld_scores));
    memset(start, 0, 4 * (size_t)(p.n * p.kv_heads * p.ld_scores));
    p.scores = cf_mem(r, start, 4 * (size_t)(p.n * p.kv_heads * p.ld_scores));
    cf_op(r, SL_OP_PROMPT_SCORES, &p);
    cf_out(r, "scores", p.scores, p.n * p.kv_heads, 4 * (size_t)p.ld_scores, 4 * (size_t)p.ld_scores, CF_F32,
           2e-5);
    scores_alone(r, &p, pages);
}

/* One wrong field at a time. */
static void bad_scores(cf_run *r, const int64_t *a)
{
    float some[64] = {0};
    sl_seq_tables seqs = {.n_tokens = 64, .n_seqs = 1, .ld = 1};
    (void)a;
    seqs.token_seq = seqs.token_pos = seqs.row_pages = cf_mem(r, some, sizeof some);
    const sl_prompt_scores_params good = {.seqs = &seqs,
                                          .q = cf_mem(r, some, sizeof some),
                                          .first = seqs.token_seq,
                                          .scores = cf_mem(r, some, sizeof some),
                                          .rows = {.base = cf_mem(r, some, sizeof some), .row_bytes = 64},
                                          .n = 1,
                                          .heads = 2,
                                          .kv_heads = 2,
                                          .dim = 4,
                                          .ld_scores = 1,
                                          .max_pos = 63,
                                          .scale = 1,
                                          .format = SL_ROW_GQA_F32};
    sl_prompt_scores_params p = good;
    p.kv_heads = 3;
    cf_refused(r, SL_OP_PROMPT_SCORES, &p, SL_ERR_INVALID, "kv_heads");
    p = good, p.scale = 0;
    cf_refused(r, SL_OP_PROMPT_SCORES, &p, SL_ERR_INVALID, "scale");
    p = good, p.max_pos = 64;
    cf_refused(r, SL_OP_PROMPT_SCORES, &p, SL_ERR_INVALID, "ld_scores");
    p = good, p.first = NULL;
    cf_refused(r, SL_OP_PROMPT_SCORES, &p, SL_ERR_INVALID, "first");
}

#define G4 SL_ROW_GQA_F32
#define G2 SL_ROW_GQA_BF16
#define G1 SL_ROW_GQA_FP8
#define F SL_F32
#define B SL_BF16
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_GQA_ATTN, "T=12 h=6 kv=2 d=32 f32 chosen pages by head", chosen, {12, 6, 2, 32, G4, F, BY_HEAD + 4, 6, 700, 400, 1}, CF_SPLIT},
    {SL_OP_GQA_ATTN, "T=140 h=2 kv=2 d=16 f32 chosen pages", chosen, {140, 2, 2, 16, G4, F, 0, 70, 400, 300, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=70 h=2 kv=1 d=16 f32 all pages", chosen, {70, 2, 1, 16, G4, F, 3, 35, 300, 1000, 1}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=70 h=4 kv=2 d=64 bf16 chosen pages", chosen, {70, 4, 2, 64, G2, B, 0, 35, 600, 500, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_GQA_ATTN, "T=140 h=4 kv=1 d=128 bf16 chosen pages", chosen, {140, 4, 1, 128, G2, B, 0, 140, 900, 300, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=200 h=8 kv=2 d=128 bf16 chosen pages by head", chosen, {200, 8, 2, 128, G2, B, BY_HEAD + 4, 100, 2000, 300, 1}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=130 h=7 kv=1 d=128 bf16 chosen pages", chosen, {130, 7, 1, 128, G2, B, 0, 65, 1500, 200, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=130 h=4 kv=1 d=128 bf16 all pages", chosen, {130, 4, 1, 128, G2, B, BY_HEAD + 4, 65, 1500, 1000, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=130 h=2 kv=1 d=64 bf16 chosen pages", chosen, {130, 2, 1, 64, G2, B, 0, 130, 1500, 200, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=80 h=5 kv=1 d=256 bf16 chosen pages", chosen, {80, 5, 1, 256, G2, B, 4, 80, 1200, 300, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=70 h=6 kv=1 d=128 fp8 chosen pages", chosen, {70, 6, 1, 128, G1, B, BY_HEAD + 4, 70, 1400, 300, 0}, CF_SPLIT | CF_FEW | CF_LARGE},
    {SL_OP_GQA_ATTN, "T=3 h=8 kv=2 d=128 bf16 chosen pages, one token each", chosen, {3, 8, 2, 128, G2, B, BY_HEAD + 4, 1, 1100, 300, 0}, CF_SPLIT | CF_FEW},
    {SL_OP_PROMPT_SCORES, "T=64 h=1 d=2 first page", scores, {64, 1, 1, 2, G4, 0, 64, 64}, CF_FIX_ALL},
    {SL_OP_PROMPT_SCORES, "T=256 h=6 kv=2 d=14 f32", scores, {256, 6, 2, 14, G4, 0, 128, 300}, CF_FIX_ALL},
    {SL_OP_PROMPT_SCORES, "T=128 h=4 kv=2 d=32 fp8 by head", scores, {128, 4, 2, 32, G1, BY_HEAD + 4, 64, 300}, CF_FIX_ALL},
    {SL_OP_PROMPT_SCORES, "T=256 h=8 kv=2 d=64 bf16", scores, {256, 8, 2, 64, G2, 0, 128, 600}, CF_FIX_ALL},
    {SL_OP_PROMPT_SCORES, "T=192 h=3 kv=1 d=64 bf16 three sequences", scores, {192, 3, 1, 64, G2, BY_HEAD + 4, 64, 200}, CF_FIX_ALL},
    {SL_OP_PROMPT_SCORES, "T=256 h=16 kv=1 d=16 bf16 four sequences", scores, {256, 16, 1, 16, G2, 0, 64, 2300}, CF_FIX_ALL},
    {SL_OP_PROMPT_SCORES, "T=448 h=3 kv=3 d=48 bf16", scores, {448, 3, 3, 48, G2, 2, 448, 700}, CF_FIX_ALL},
    {SL_OP_PROMPT_SCORES, "T=2560 h=2 kv=2 d=32 bf16 many blocks", scores, {2560, 2, 2, 32, G2, BY_HEAD + 6, 1280, 2600}, CF_LARGE},
    {SL_OP_PROMPT_SCORES, "T=1024 h=32 kv=8 d=128 bf16", scores, {1024, 32, 8, 128, G2, BY_HEAD + 4, 1024, 6400}, CF_LARGE},
    {SL_OP_PROMPT_SCORES, "T=384 h=7 kv=1 d=128 bf16", scores, {384, 7, 1, 128, G2, 4, 384, 3000}, CF_LARGE},
    {SL_OP_PROMPT_SCORES, "T=640 h=16 kv=4 d=128 bf16", scores, {640, 16, 4, 128, G2, 0, 320, 5000}, CF_LARGE},
    {SL_OP_PROMPT_SCORES, "T=128 h=16 kv=1 d=256 bf16", scores, {128, 16, 1, 256, G2, 0, 64, 900}, CF_LARGE},
    {SL_OP_PROMPT_SCORES, "refuses bad shapes", bad_scores, {1}, 0},
};
/* clang-format on */

const cf_table cf_prompt_cases = {cases, SL_COUNT(cases)};
