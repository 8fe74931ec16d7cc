/*
 * quest through the real engine, and with it lists per KV head and lists of blocks. Every list is compared with a
 * restatement of the definition in double precision that reads the keys from the host pages and shares no code with the
 * algorithm; the bits do not depend on chunks, threads, the batch, residency, the policy, slot reuse or prefix reuse;
 * and with a budget of the whole context they are those of dense attention over rows of single tokens for all heads.
 * Run from the repository's root.
 */
#include <check.h>
#include <math.h>

#include "kernels/backend_impl.h"
#include "strategies.h"
#include "tests/unit/run_suite.h"
#include "ways.h"
#include "witness.h"

enum { BUDGET = 64 };

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};
static const select_params divisions[] = {
    {.token_budget = BUDGET, .block_tokens = 16},
    {.token_budget = BUDGET, .block_tokens = 1, .reduce = SL_GROUP_MEAN},
    {.token_budget = BUDGET, .block_tokens = 16, .shared_lists = true, .reduce = SL_GROUP_MEAN},
    {.token_budget = BUDGET, .block_tokens = 4, .reduce = SL_GROUP_SOFTMAX},
    {.token_budget = BUDGET, .block_tokens = 4, .reduce = SL_GROUP_UNION},
    {.token_budget = BUDGET + 7, .block_tokens = 8, .bounds_typed = true, .bounds = SL_BF16},
    {.token_budget = BUDGET, .block_tokens = 8, .shared_lists = true, .reduce = SL_GROUP_SOFTMAX},
};

/* Models whose heads have a multiple of 16 channels. */
static const char *const wide_models[] = {"tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};

enum { MODELS = SL_COUNT(models), DIVISIONS = SL_COUNT(divisions), STRIDE = 5 };

enum {
    RUNS = 2 * DIVISIONS,
    WAYS_STEP = 5
}; /* half of the combinations; of these two or three on each way */

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

/* Bounds of int8. */
static fix_opts int8_opts(int i)
{
    fix_opts o = opts_of(i);
    o.dir = wide_models[i % (int)SL_COUNT(wide_models)];
    o.select = (select_params){.token_budget = BUDGET,
                               .block_tokens = i ? 8 : 16,
                               .reduce = i ? SL_GROUP_SOFTMAX : SL_GROUP_MAX,
                               .bounds_typed = true,
                               .bounds = SL_I8};
    return o;
}

/* ---- the definition ---- */

/* The codes of one block and KV head as bounds, from all of its keys at once (kernels/bounds.h). */
static void coded(int32_t dim, double *least, double *most)
{
    for (int32_t g = 0; g < dim; g += 16) {
        int e = -100;
        for (int32_t i = g; i < g + 16; i++)
            while (ldexp(fmax(fabs(most[i]), fabs(least[i])), -e) > 127)
                e++;
        for (int32_t i = g; i < g + 16; i++) {
            most[i] = ldexp(ceil(ldexp(most[i], -e)), e);
            least[i] = ldexp(floor(ldexp(least[i], -e)), e);
        }
    }
}

/* A value of a query as its integer stands for it. */
static double rounded(const double *q, int32_t dim, int32_t at)
{
    double most = 0;
    int x;
    for (int32_t i = 0; i < dim; i++)
        most = fmax(most, fabs(q[i]));
    frexp(most, &x);
    return ldexp(nearbyint(ldexp(q[at], 13 - x)), x - 13);
}

/* A bound as it is stored: a bf16 value that is not below v (up) or not above it. */
static double stored(const witness *w, double v, bool up)
{
    const select_params *p = &w->f->o.select;
    if (!p->bounds_typed || p->bounds != SL_BF16)
        return v; /* keys of bf16 and e4m3 rows are bf16 values */
    return witness_bf16(v, up ? ceil : floor);
}

/* The bound of one query, and that no key of the block has a larger product with it. */
static double bound_of(const witness *c, const seen_list *l, const double *q, int32_t head, int32_t block)
{
    const int32_t size = c->f->o.select.block_tokens;
    double least[WITNESS_MAX_DIM], most[WITNESS_MAX_DIM], score = 0, product = -INFINITY;
    for (int32_t pos = block * size; pos < (block + 1) * size; pos++) {
        float k[WITNESS_MAX_DIM];
        double dot = 0;
        witness_key(c, l->layer, pos, head, k);
        for (int32_t i = 0; i < l->dim; i++) {
            double x = (double)k[i];
            dot += q[i] * x;
            least[i] = pos == block * size ? x : fmin(least[i], x);
            most[i] = pos == block * size ? x : fmax(most[i], x);
        }
        product = fmax(product, dot);
    }
    const bool codes = c->f->o.select.bounds_typed && c->f->o.select.bounds == SL_I8;
    double slack = 1e-9 * (1 + fabs(score));
    if (codes)
        coded(l->dim, least, most);
    for (int32_t i = 0; i < l->dim; i++) {
        const double v = codes ? rounded(q, l->dim, i) : q[i];
        score += fmax(v * stored(c, least[i], false), v * stored(c, most[i], true));
        slack += fabs(v - q[i]) * fmax(fabs(least[i]), fabs(most[i]));
    }
    MUST(product <= score + slack + 1e-9 * fabs(score));
    if (size == 1 && !c->f->o.select.bounds_typed) /* without slack the bound is the product */
        MUST(fabs(product - score) <= 1e-9 * (1 + fabs(score)));
    return score;
}

/* Ascending, within the budget, with the first and the newest block, and the scores of the others are the best ones. */
static void check_list(witness *c, const seen_list *l)
{
    const int32_t size = c->f->o.select.block_tokens, last = l->pos / size;
    const int32_t budget = c->f->o.select.token_budget / size;
    double scores[WAYS_CONTEXT], all[WAYS_CONTEXT], got[WAYS_CONTEXT];
    bool in[WAYS_CONTEXT] = {false};
    int32_t n_all = 0, n_got = 0;
    if (l->pos < WAYS_PROMPT - 20 && l->pos % 13 && l->pos != 63 && l->pos != 64)
        return; /* every position near the prompt's end and of decode, some of the others */
    c->lists++;
    MUST(witness_ids(l, last, in) == (last + 1 < budget ? last + 1 : budget));
    MUST(in[0] && in[last]);
    witness_scores(c, l, last, bound_of, scores);
    for (int32_t b = 1; b < last; b++) {
        all[n_all++] = scores[b];
        if (in[b])
            got[n_got++] = scores[b];
    }
    witness_best(all, n_all, got, n_got);
}

static void check_definition(fix_opts o)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    witness c = {.f = &f, .run = &r, .check = check_list};
    o.desc = witness_of(&sl_algo_quest, &c);
    fix_open(&f, &o);
    fix_prompt(&f, &t, WAYS_LENGTH, 77);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
    fix_feed(&f, &r, &t, WAYS_PROMPT, 100);
    fix_feed(&f, &r, &t, WAYS_LENGTH, 1);
    ck_assert_int_gt(c.lists, 100);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}

START_TEST(equals_definition)
{
    check_definition(opts_of(_i * STRIDE));
}
END_TEST

START_TEST(int8_equals_definition)
{
    check_definition(int8_opts(_i));
}
END_TEST

/* ---- the same bits on every way ---- */

START_TEST(chunks_and_threads_do_not_matter)
{
    ways_chunks(opts_of(_i * STRIDE));
}
END_TEST

START_TEST(int8_is_the_same_on_every_way)
{
    ways_chunks(int8_opts(_i));
    ways_hierarchical(int8_opts(_i), _i);
    ways_prefix(int8_opts(_i), _i);
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

/* Decode steps in groups: the rows of one group are fetched after the other one has selected. */
START_TEST(groups_do_not_matter)
{
    fix_opts o = opts_of(_i * STRIDE);
    o.groups = 2, o.graphs = SL_GRAPHS_PAD;
    ways_batch(o);
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

START_TEST(refusals)
{
    fix f;
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    eo.hot_rows = BUDGET - 16;
    fix_refused(&f, &eo, SL_ERR_INVALID,
                "hot_rows 48 of layer 0 is less than the longest selection, 64 tokens");
    eo = f.eo, eo.algorithm = &sl_algo_dense; /* the arena's rows are divided, those of dense are not */
    fix_refused(&f, &eo, SL_ERR_REFUSED, "rows");
    eo = f.eo, eo.gates = (sl_gates){.sink_tokens = 20, .recent_tokens = 20};
    fix_refused(&f, &eo, SL_ERR_INVALID, "token_budget 64 is 4 blocks of 16 tokens, but sink_tokens 20");
    /* A store that was made with other parameters is refused, in whichever plane they show. */
    eo = f.eo, fix_option(&eo, "block_tokens", "8");
    fix_refused(&f, &eo, SL_ERR_REFUSED, "unit_tokens differs");
    eo = f.eo, fix_option(&eo, "bounds_dtype", "bf16");
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane bounds: format differs");
    eo = f.eo, eo.select.stamp = 5;
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane rows: stamp differs");
    fix_close(&f);
}
END_TEST

START_TEST(int8_needs_whole_groups)
{
    sl_algo_dims d = {.cache = {
                          .head_dim = 24,
                          .kv_heads = 2,
                      }};
    ck_assert_int_eq(sl_algo_select(&sl_algo_quest, "bounds_dtype=int8", &d.cache.select, NULL), SL_OK);
    const sl_gates gates = {0};
    sl_err err = {0};
    ck_assert_int_eq(sl_algo_quest.check(&d, &gates, &err), SL_ERR_INVALID);
    ck_assert_str_eq(err.text,
                     "quest: bounds_dtype int8 needs heads of a multiple of 16 channels, and these have 24");
    d.cache.head_dim = 32;
    ck_assert_int_eq(sl_algo_quest.check(&d, &gates, &err), SL_OK);
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

Suite *quest_suite(void)
{
    Suite *s = suite_create("engine/quest");
    TCase *c = tcase_create("quest");
    tcase_set_timeout(c, 240);
    add_variants(c, equals_definition, RUNS);
    add_variants(c, int8_equals_definition, SL_COUNT(wide_models));
    add_variants(c, int8_is_the_same_on_every_way, SL_COUNT(wide_models));
    add_every(c, chunks_and_threads_do_not_matter, RUNS, WAYS_STEP);
    add_every(c, hierarchical_equals_resident, RUNS, WAYS_STEP);
    add_every(c, prefix_reuse_equals_recompute, RUNS, WAYS_STEP);
    add_every(c, the_batch_does_not_matter, RUNS, WAYS_STEP);
    add_every(c, groups_do_not_matter, RUNS, WAYS_STEP);
    add_every(c, a_whole_budget_is_dense, RUNS, WAYS_STEP);
    tcase_add_loop_test(c, gates_keep_the_division, 0, DIVISIONS);
    tcase_add_test(c, refusals);
    tcase_add_test(c, int8_needs_whole_groups);
    tcase_add_test(c, latent_rows_have_no_kv_heads);
    suite_add_tcase(s, c);
    return s;
}
