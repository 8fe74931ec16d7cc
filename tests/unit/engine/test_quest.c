/*
 * quest through the real engine, and with it lists per KV head and lists of blocks. Every list is compared with a
 * restatement of the definition in double precision that reads the keys from the host pages and shares no code with the
 * algorithm; the bits do not depend on chunks, threads, the batch, residency, the policy, slot reuse or prefix reuse;
 * and with a budget of the whole context they are those of dense attention over rows of single tokens for all heads.
 * Run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ways.h"
#include "kernels/backend_impl.h"
#include "kernels/gqa.h"
#include "tests/unit/run_suite.h"

enum { BUDGET = 64 };

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};
static const sl_select_params divisions[] = {
    {.token_budget = BUDGET, .block_tokens = 16},
    {.token_budget = BUDGET, .block_tokens = 1, .reduce = SL_GROUP_MEAN},
    {.token_budget = BUDGET, .block_tokens = 16, .shared_lists = true, .reduce = SL_GROUP_MEAN},
    {.token_budget = BUDGET, .block_tokens = 4, .reduce = SL_GROUP_SOFTMAX},
    {.token_budget = BUDGET + 7, .block_tokens = 8, .bounds_typed = true, .bounds = SL_BF16},
    {.token_budget = BUDGET, .block_tokens = 8, .shared_lists = true, .reduce = SL_GROUP_SOFTMAX},
};

enum { MODELS = SL_COUNT(models), DIVISIONS = SL_COUNT(divisions), STRIDE = 5 };

/* Half of the combinations; under a sanitizer each model, each division and each format at least once. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RUNS = DIVISIONS };
#else
enum { RUNS = 2 * DIVISIONS };
#endif

static fix_opts opts_of(int i)
{
    sl_row_format rows = formats[(i + i / DIVISIONS) % (int)SL_COUNT(formats)];
    return (fix_opts){.dir = models[i / DIVISIONS % MODELS],
                      .rows = rows,
                      .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                      .threads = 1,
                      .max_tokens = WAYS_CONTEXT,
                      .max_context = WAYS_CONTEXT,
                      .max_seqs = 3,
                      .max_hot = 2,
                      .hot_rows = BUDGET,
                      .tail_rows = 3,
                      .select = divisions[i % DIVISIONS],
                      .algorithm = "quest"};
}

/* ---- quest, with a witness of its lists ---- */

/* One list, after it was made; valid during the call. */
typedef struct seen_list {
    int32_t layer, pos, list;
    const float *q;     /* [n_q][dim] the queries that share it */
    const int32_t *ids; /* [k] */
    int32_t n_q, dim, k;
    float scale;
} seen_list;

static void (*witness)(void *ctx, const seen_list *l);
static void *witness_ctx;
static sl_algo_desc witnessed; /* quest, except these two functions */

static sl_status witnessed_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    SL_TRY(sl_algo_quest.create(be, d, out, err));
    (*out)->desc = &witnessed;
    return SL_OK;
}

static sl_status witnessed_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                    int32_t *ids, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const int32_t heads = c->gqa.attn.heads, n_q = heads / call->lists, dim = c->gqa.attn.dim;
    SL_TRY(sl_algo_quest.retrieve(a, call, first, count, ids, err));
    for (int32_t i = 0; i < count * call->lists; i++) {
        int32_t t = first + i / call->lists, list = i % call->lists;
        seen_list l = {.layer = c->layer,
                       .pos = c->seqs->token_pos[t],
                       .list = list,
                       .q = c->gqa.attn.q + ((int64_t)t * heads + (int64_t)list * n_q) * dim,
                       .ids = ids + (int64_t)i * call->k,
                       .n_q = n_q,
                       .dim = dim,
                       .k = call->k,
                       .scale = c->gqa.attn.scale};
        if (c->seqs->token_seq[t] >= 0)
            witness(witness_ctx, &l);
    }
    return SL_OK;
}

/* ---- the definition ---- */

typedef struct checker {
    const fix *f;
    const fix_run *run;
    int64_t lists;
} checker;

static void key_of(const checker *c, int32_t layer, int32_t pos, int32_t head, float *k)
{
    const sl_geometry *g = sl_arena_geometry(c->f->arena);
    const sl_cache_plane *rows = &g->shape.planes[SL_CACHE_ROWS];
    const sl_model_config *m = c->f->cfg;
    sl_host_plane h =
        sl_geometry_plane(g, sl_arena_base(c->f->arena), sl_arena_pages(c->f->arena), layer, SL_CACHE_ROWS);
    int32_t n = rows->unit_tokens, in_page = pos % SL_PAGE_TOKENS;
    const uint8_t *unit =
        h.base + c->run->pages[pos / SL_PAGE_TOKENS] * h.page_stride + in_page / n * h.row_stride;
    float v[512];
    if (rows->heads > 1)
        sl_gqa_row_decode(c->f->o.rows, n, m->v_head_dim, unit + head * sl_cache_unit_bytes(rows),
                          in_page % n, k, v);
    else
        sl_gqa_row_decode(c->f->o.rows, n * m->n_kv_heads, m->v_head_dim, unit,
                          in_page % n * m->n_kv_heads + head, k, v);
}

/* A bound as it is stored: a bf16 value that is not below v (up) or not above it. */
static double stored(const checker *c, double v, bool up)
{
    const sl_select_params *p = &c->f->o.select;
    if (!p->bounds_typed || p->bounds == SL_F32)
        return v; /* keys of bf16 and e4m3 rows are bf16 values */
    int e;
    frexp(v, &e);
    double step = ldexp(1, e - 8); /* of a number with 8 bits */
    return (up ? ceil(v / step) : floor(v / step)) * step;
}

/* The bound of one query, and that no key of the block has a larger product with it. */
static double bound_of(const checker *c, const seen_list *l, const double *q, int32_t head, int32_t block)
{
    const int32_t size = c->f->o.select.block_tokens;
    double least[512], most[512], score = 0, product = -INFINITY;
    for (int32_t pos = block * size; pos < (block + 1) * size; pos++) {
        float k[512];
        double dot = 0;
        key_of(c, l->layer, pos, head, k);
        for (int32_t i = 0; i < l->dim; i++) {
            double x = (double)k[i];
            dot += q[i] * x;
            least[i] = pos == block * size ? x : fmin(least[i], x);
            most[i] = pos == block * size ? x : fmax(most[i], x);
        }
        product = fmax(product, dot);
    }
    for (int32_t i = 0; i < l->dim; i++)
        score += fmax(q[i] * stored(c, least[i], false), q[i] * stored(c, most[i], true));
    MUST(product <= score + 1e-9 * (1 + fabs(score)));
    if (size == 1 && !c->f->o.select.bounds_typed) /* without slack the bound is the product */
        MUST(fabs(product - score) <= 1e-9 * (1 + fabs(score)));
    return score;
}

/* Adds the scores of blocks 0 .. n - 1 for query head `from` of the list, or for the mean of `count` heads. */
static void add_head(const checker *c, const seen_list *l, int32_t from, int32_t count, int32_t n,
                     double *out)
{
    const int32_t head = (l->list * l->n_q + from) / (c->f->cfg->n_heads / c->f->cfg->n_kv_heads);
    const sl_group_reduce reduce = c->f->o.select.reduce;
    double q[512], each[WAYS_CONTEXT], top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < l->dim; i++) {
        q[i] = 0;
        for (int32_t h = 0; h < count; h++)
            q[i] += (double)l->q[(from + h) * l->dim + i] / count;
    }
    for (int32_t b = 0; b < n; b++) {
        each[b] = bound_of(c, l, q, head, b);
        top = fmax(top, each[b]);
    }
    for (int32_t b = 0; b < n; b++)
        sum += exp((double)l->scale * (each[b] - top));
    for (int32_t b = 0; b < n; b++)
        if (reduce == SL_GROUP_MAX)
            out[b] = from == 0 ? each[b] : fmax(out[b], each[b]);
        else if (reduce == SL_GROUP_MEAN)
            out[b] += each[b];
        else
            out[b] += exp((double)l->scale * (each[b] - top)) / sum;
}

static void naive_scores(const checker *c, const seen_list *l, int32_t n, double *out)
{
    const int32_t group = c->f->cfg->n_heads / c->f->cfg->n_kv_heads;
    const int32_t step = c->f->o.select.reduce == SL_GROUP_MEAN ? group : 1;
    for (int32_t b = 0; b < n; b++)
        out[b] = 0;
    for (int32_t h = 0; h < l->n_q; h += step)
        add_head(c, l, h, step, n, out);
}

static int falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Ascending, within the budget, with the first and the newest block, and the scores of the others are the best ones. */
static void check_list(void *ctx, const seen_list *l)
{
    checker *c = ctx;
    const int32_t size = c->f->o.select.block_tokens, last = l->pos / size;
    const int32_t budget = c->f->o.select.token_budget / size;
    double scores[WAYS_CONTEXT], all[WAYS_CONTEXT], got[WAYS_CONTEXT];
    bool in[WAYS_CONTEXT] = {false};
    int32_t n = 0, n_all = 0, n_got = 0;
    if (l->pos < WAYS_PROMPT - 20 && l->pos % 13 && l->pos != 63 && l->pos != 64)
        return; /* every position near the prompt's end and of decode, some of the others */
    c->lists++;
    for (; n < l->k && l->ids[n] >= 0; n++) {
        MUST(l->ids[n] <= last && (n == 0 || l->ids[n] > l->ids[n - 1]));
        in[l->ids[n]] = true;
    }
    for (int32_t i = n; i < l->k; i++)
        MUST(l->ids[i] == -1);
    MUST(n == (last + 1 < budget ? last + 1 : budget));
    MUST(in[0] && in[last]);
    naive_scores(c, l, last, scores);
    for (int32_t b = 1; b < last; b++) {
        all[n_all++] = scores[b];
        if (in[b])
            got[n_got++] = scores[b];
    }
    qsort(all, (size_t)n_all, sizeof *all, falling);
    qsort(got, (size_t)n_got, sizeof *got, falling);
    for (int32_t i = 0; i < n_got; i++)
        MUST(fabs(all[i] - got[i]) <= 1e-5 * (1 + fabs(all[i])));
}

START_TEST(equals_definition)
{
    fix f;
    fix_opts o = opts_of(_i * STRIDE);
    witnessed = sl_algo_quest;
    witnessed.create = witnessed_create, witnessed.retrieve = witnessed_retrieve;
    o.desc = &witnessed;
    fix_open(&f, &o);
    fix_run r = {0};
    fix_text t;
    checker c = {.f = &f, .run = &r};
    witness = check_list, witness_ctx = &c;
    fix_prompt(&f, &t, WAYS_LENGTH, 77);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
    fix_feed(&f, &r, &t, WAYS_PROMPT, 100);
    fix_feed(&f, &r, &t, WAYS_LENGTH, 1);
    ck_assert_int_gt(c.lists, 100);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* ---- the same bits on every way ---- */

START_TEST(chunks_and_threads_do_not_matter)
{
    ways_chunks(opts_of(_i * STRIDE));
}
END_TEST

START_TEST(hierarchical_equals_resident)
{
    ways_hierarchical(opts_of(_i * STRIDE), _i);
}
END_TEST

START_TEST(prefix_reuse_equals_recompute)
{
    ways_prefix(opts_of(_i), _i + _i / DIVISIONS);
}
END_TEST

START_TEST(the_batch_does_not_matter)
{
    ways_batch(opts_of(_i * STRIDE));
}
END_TEST

START_TEST(a_whole_budget_is_dense)
{
    ways_whole_budget(opts_of(_i * STRIDE));
}
END_TEST

START_TEST(gates_keep_the_division)
{
    ways_gates(opts_of(_i * STRIDE));
}
END_TEST

static void refused(fix *f, const sl_engine_opts *eo, sl_status want, const char *says)
{
    sl_engine *e;
    sl_err err = {0};
    ck_assert_int_eq(sl_engine_create(f->be, f->model, f->arena, eo, &e, &err), want);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" does not say %s", err.text, says);
}

START_TEST(refusals)
{
    fix f;
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    eo.hot_rows = BUDGET - 16;
    refused(&f, &eo, SL_ERR_INVALID, "hot_rows 48 of layer 0 is less than the longest selection, 64 tokens");
    eo = f.eo, eo.algorithm = &sl_algo_dense; /* the arena's rows are divided, those of dense are not */
    refused(&f, &eo, SL_ERR_REFUSED, "rows");
    eo = f.eo, eo.gates = (sl_gates){.sink_tokens = 20, .recent_tokens = 20};
    refused(&f, &eo, SL_ERR_INVALID, "token_budget 64 is 4 blocks of 16 tokens, but sink_tokens 20");
    /* A store that was made with other parameters is refused, in whichever plane they show. */
    eo = f.eo, eo.select.block_tokens = 8;
    refused(&f, &eo, SL_ERR_REFUSED, "unit_tokens differs");
    eo = f.eo, eo.select.bounds_typed = true, eo.select.bounds = SL_BF16;
    refused(&f, &eo, SL_ERR_REFUSED, "cache plane bounds: format differs");
    eo = f.eo, eo.select.stamp = 5;
    refused(&f, &eo, SL_ERR_REFUSED, "cache plane rows: stamp differs");
    f.be->caps &= ~(unsigned)SL_BE_UNIFIED; /* as a GPU */
    refused(&f, &f.eo, SL_ERR_UNSUPPORTED, "sparse algorithm quest: runs with backend.name cpu only so far");
    f.be->caps |= SL_BE_UNIFIED;
    fix_close(&f);
}
END_TEST

START_TEST(latent_rows_have_no_kv_heads)
{
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_BF16), .latent = 512, .rope = 64};
    sl_cache_shape shape;
    sl_err err = {0};
    ck_assert_int_eq(sl_algo_cache_shape(&sl_algo_quest, &d, &shape, &err), SL_ERR_UNSUPPORTED);
    ck_assert_str_eq(
        err.text,
        "sparse algorithm quest: selects by the keys of KV heads, which rows of mla_bf16 do not have");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/quest");
    TCase *c = tcase_create("quest");
    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, equals_definition, 0, RUNS);
    tcase_add_loop_test(c, chunks_and_threads_do_not_matter, 0, RUNS);
    tcase_add_loop_test(c, hierarchical_equals_resident, 0, RUNS);
    tcase_add_loop_test(c, prefix_reuse_equals_recompute, 0, RUNS);
    tcase_add_loop_test(c, the_batch_does_not_matter, 0, RUNS);
    tcase_add_loop_test(c, a_whole_budget_is_dense, 0, RUNS);
    tcase_add_loop_test(c, gates_keep_the_division, 0, DIVISIONS);
    tcase_add_test(c, refusals);
    tcase_add_test(c, latent_rows_have_no_kv_heads);
    suite_add_tcase(s, c);
    return run_suite(s);
}
