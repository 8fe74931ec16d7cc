/*
 * double_sparsity through the real engine. Every list is compared with a restatement of the definition in double
 * precision that reads the keys from the host pages and shares no code with the algorithm; labels in the host pages are
 * the channels of the keys, bit by bit; with all channels the selection is the exact top-k of q . k; and the bits do not
 * depend on chunks, threads, the batch, residency, slot reuse or prefix reuse. Run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "sparse/channels.h"
#include "strategies.h"
#include "tests/unit/run_suite.h"
#include "ways.h"
#include "witness.h"

enum { BUDGET = 64 };

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};
/* heavy_channels 0 stands for all channels of the head. */
static const select_params variants[] = {
    {.token_budget = BUDGET, .heavy_channels = 5},
    {.token_budget = BUDGET, .heavy_channels = 0},
    {.token_budget = BUDGET, .heavy_channels = 3, .shared_lists = true, .reduce = SL_GROUP_MEAN},
    {.token_budget = BUDGET + 7, .heavy_channels = 4, .reduce = SL_GROUP_SOFTMAX},
    {.token_budget = BUDGET, .heavy_channels = 4, .reduce = SL_GROUP_UNION},
    {.token_budget = BUDGET, .heavy_channels = 4, .reduce = SL_GROUP_SOFTMAX, .list_mass = 0.4f},
};

enum { MODELS = SL_COUNT(models), VARIANTS = SL_COUNT(variants) };

/* The tables that a test has made; they live until it ends. */
static sl_channels *tables[32];
static int n_tables;

static void free_tables(void)
{
    while (n_tables)
        sl_channels_free(tables[--n_tables]);
}

/* A table for the model in dir: every head has another order of its channels. */
static sl_channels *table_of(const char *dir)
{
    ck_assert_int_lt(n_tables, (int)SL_COUNT(tables));
    sl_model_config cfg;
    sl_err err = {0};
    ck_assert_msg(sl_model_config_load(dir, &cfg, &err) == SL_OK, "%s", err.text);
    const int32_t dim = cfg.attn.v_head_dim, heads = cfg.n_layers * cfg.attn.n_kv_heads;
    int32_t *of = calloc((size_t)heads * (size_t)dim, sizeof *of);
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = 0; i < dim; i++)
            of[h * dim + i] = (i * (dim - 1) + 3 * h) % dim; /* dim - 1 has no factor in common with dim */
    sl_channels *t = malloc(sizeof *t);
    *t = (sl_channels){.n_layers = cfg.n_layers,
                       .kv_heads = cfg.attn.n_kv_heads,
                       .head_dim = dim,
                       .count = dim,
                       .hash = 1,
                       .of = of};
    return tables[n_tables++] = t;
}

/* The options of run i. */
static fix_opts opts_of(int i)
{
    sl_row_format rows = formats[i % (int)SL_COUNT(formats)];
    fix_opts o = {.dir = models[i % (int)MODELS],
                  .rows = rows,
                  .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                  .threads = 1,
                  .max_tokens = WAYS_CONTEXT,
                  .max_context = WAYS_CONTEXT,
                  .max_seqs = 3,
                  .max_hot = 2,
                  .select = variants[i % (int)VARIANTS],
                  .tail_rows = 3,
                  .algorithm = "double_sparsity"};
    sl_channels *table = table_of(o.dir);
    o.select.channels = table;
    if (o.select.heavy_channels == 0)
        o.select.heavy_channels = table->head_dim;
    o.hot_rows = o.select.token_budget;
    return o;
}

/* ---- the definition ---- */

static double product(const witness *c, const seen_list *l, const double *q, int32_t head, int32_t pos)
{
    const sl_channels *t = c->f->o.select.channels;
    float k[WITNESS_MAX_DIM];
    double sum = 0;
    witness_key(c, l->layer, pos, head, k);
    for (int32_t i = 0; i < c->f->o.select.heavy_channels; i++) {
        int32_t ch = t->of[((int64_t)l->layer * t->kv_heads + head) * t->count + i];
        sum += q[ch] * (double)k[ch] /* the labels hold keys exactly */;
    }
    return sum;
}

/* Ascending, exactly the budget, and no token outside has a larger score than one inside. */
/* all: falling. The first `have` have the mass, unless there are no more; one less does not. */
static void check_mass(const double *all, int32_t n, int32_t have, int32_t most, double mass)
{
    double sum = 0, of = 0;
    for (int32_t i = 0; i < n; i++)
        sum += all[i], of += i < have ? all[i] : 0;
    MUST(of >= mass * sum - 1e-5 * sum || have == most);
    MUST(have == 1 || of - all[have - 1] <= mass * sum + 1e-5 * sum);
}

static void check_list(witness *c, const seen_list *l)
{
    const int32_t n = l->pos + 1, budget = c->f->o.select.token_budget;
    double all[WAYS_CONTEXT], got[WAYS_CONTEXT];
    bool in[WAYS_CONTEXT] = {false};
    int32_t n_got = 0;
    if (l->pos < WAYS_PROMPT - 20 && l->pos % 13 && l->pos != budget - 1 && l->pos != budget)
        return; /* every position near the prompt's end and of decode, some of the others */
    c->lists++;
    const double mass = (double)c->f->o.select.list_mass;
    const int32_t have = witness_ids(l, l->pos, in), most = n < budget ? n : budget;
    MUST(mass > 0 ? have >= 1 && have <= most : have == most);
    witness_scores(c, l, n, product, all);
    for (int32_t i = 0; i < n; i++)
        if (in[i])
            got[n_got++] = all[i];
    witness_best(all, n, got, n_got);
    if (mass > 0)
        check_mass(all, n, have, most, mass);
}

/* Every label in the host pages is made of the channels of the token's key, ascending. */
static void check_labels(const witness *c)
{
    const sl_geometry *g = sl_arena_geometry(c->f->arena);
    const int32_t p = sl_cache_find_name(&g->shape, "labels");
    const sl_channels *t = c->f->o.select.channels;
    const int32_t count = c->f->o.select.heavy_channels;
    const bool wide = g->shape.planes[p].parts[0].dtype == SL_F32;
    for (int32_t layer = 0; layer < t->n_layers; layer++)
        for (int32_t pos = 0; pos < WAYS_LENGTH; pos += 7)
            for (int32_t head = 0; head < t->kv_heads; head++) {
                const sl_host_plane h = witness_plane(c, layer, p);
                const uint8_t *unit = h.base + c->run->pages[pos / SL_PAGE_TOKENS] * h.page_stride +
                                      head * sl_cache_unit_bytes(&g->shape.planes[p]);
                const int32_t *of = t->of + ((int64_t)layer * t->kv_heads + head) * t->count;
                float k[WITNESS_MAX_DIM];
                witness_key(c, layer, pos, head, k);
                for (int32_t ch = 0, at = 0; ch < t->head_dim; ch++) {
                    bool in = false;
                    for (int32_t i = 0; i < count; i++)
                        in |= of[i] == ch;
                    if (!in)
                        continue;
                    const int64_t i = (int64_t)(pos % SL_PAGE_TOKENS) * count + at++;
                    float label;
                    uint32_t bits;
                    if (wide) {
                        memcpy(&label, unit + 4 * i, 4);
                    } else {
                        bits = (uint32_t)unit[2 * i] << 16 | (uint32_t)unit[2 * i + 1] << 24;
                        memcpy(&label, &bits, 4);
                    }
                    MUST((double)label == (double)k[ch]);
                }
            }
}

START_TEST(equals_definition)
{
    fix f;
    fix_opts o = opts_of(_i);
    fix_run r = {0};
    fix_text t;
    witness c = {.f = &f, .run = &r, .check = check_list};
    o.desc = witness_of(&sl_algo_double_sparsity, &c);
    fix_open(&f, &o);
    fix_prompt(&f, &t, WAYS_LENGTH, 77);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
    fix_feed(&f, &r, &t, WAYS_PROMPT, 100);
    fix_feed(&f, &r, &t, WAYS_LENGTH, 1);
    ck_assert_int_gt(c.lists, 100);
    check_labels(&c);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

START_TEST(chunks_and_threads_do_not_matter)
{
    ways_chunks(opts_of(_i));
}
END_TEST

START_TEST(hierarchical_equals_resident)
{
    ways_hierarchical(opts_of(_i), _i);
}
END_TEST

START_TEST(prefix_reuse_equals_recompute)
{
    ways_prefix(opts_of(_i), _i);
}
END_TEST

START_TEST(the_batch_does_not_matter)
{
    ways_batch(opts_of(_i));
}
END_TEST

/* Decode steps in groups: the rows of one group are fetched after the other one has selected. */
START_TEST(groups_do_not_matter)
{
    fix_opts o = opts_of(_i);
    o.groups = 2, o.graphs = SL_GRAPHS_PAD;
    ways_batch(o);
}
END_TEST

START_TEST(a_whole_budget_is_dense)
{
    ways_whole_budget(opts_of(_i));
}
END_TEST

START_TEST(gates_do_not_change_the_ways)
{
    ways_gates(opts_of(_i));
}
END_TEST

START_TEST(refusals)
{
    fix f;
    fix_opts o = opts_of(0);
    sl_channels other = *o.select.channels;
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    sl_select_channels(&eo.select, NULL);
    fix_refused(&f, &eo, SL_ERR_INVALID, "channel_config_path is not set");
    eo = f.eo, other.n_layers++, sl_select_channels(&eo.select, &other);
    fix_refused(&f, &eo, SL_ERR_REFUSED, "the channels are those of");
    eo = f.eo, other = *o.select.channels, other.count = 4, sl_select_channels(&eo.select, &other);
    fix_refused(&f, &eo, SL_ERR_INVALID,
                "heavy_channels is 5, but the calibration lists 4 channels per head");
    eo = f.eo, eo.gates = (sl_gates){.sink_tokens = 60, .recent_tokens = 5};
    fix_refused(&f, &eo, SL_ERR_INVALID, "sink_tokens 60 + recent_tokens 5 exceed token_budget 64");
    eo = f.eo, eo.hot_rows = BUDGET - 1;
    fix_refused(&f, &eo, SL_ERR_INVALID, "is less than the longest selection, 64 tokens");
    eo = f.eo, fix_option(&eo, "heavy_channels", "6"); /* a store with other labels */
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane labels: label differs: ");
    eo = f.eo,
    eo.select.stamp = 5; /* a store with other channels, see stamps_tell_selections_apart of test_choose */
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane rows: stamp differs");
    fix_close(&f);
}
END_TEST

Suite *double_sparsity_suite(void)
{
    Suite *s = suite_create("engine/double_sparsity");
    TCase *c = tcase_create("double_sparsity");
    tcase_set_timeout(c, 240);
    tcase_add_checked_fixture(c, NULL, free_tables);
    add_variants(c, equals_definition, VARIANTS);
    tcase_add_loop_test(c, chunks_and_threads_do_not_matter, 0, 2);
    add_variants(c, hierarchical_equals_resident, VARIANTS);
    tcase_add_loop_test(c, prefix_reuse_equals_recompute, 0, 2);
    tcase_add_loop_test(c, the_batch_does_not_matter, 1, 3);
    tcase_add_loop_test(c, groups_do_not_matter, 1, 3);
    tcase_add_loop_test(c, a_whole_budget_is_dense, 0, 3);
    tcase_add_loop_test(c, gates_do_not_change_the_ways, 0, 2);
    tcase_add_test(c, refusals);
    suite_add_tcase(s, c);
    return s;
}
