/*
 * Budgets by layer and KV head through the real engine, for every strategy that has them: each list is as long as its share says,
 * layers with shorter lists have fewer hot rows, and the bits do not depend on chunks, the batch, residency and swap-in. Lists that
 * end with a share of the attention (list_mass) are in half of the runs. Run from the repository's root.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/family.h"
#include "sparse/budgets.h"
#include "strategies.h"
#include "tests/unit/run_suite.h"
#include "ways.h"
#include "witness.h"

enum { BUDGET = 64, PAGES = 12, RETAINED = 4 };

typedef struct strategy {
    const sl_algo_desc *algo;
    select_params select;
    bool at_prompts; /* it selects at the end of a prompt */
    int32_t unit;    /* tokens of a unit of its budget */
} strategy;

static const strategy strategies[] = {
    {&sl_algo_quest, {.token_budget = BUDGET, .block_tokens = 4, .reduce = SL_GROUP_SOFTMAX}, false, 4},
    {&sl_algo_double_sparsity,
     {.token_budget = BUDGET, .heavy_channels = 3, .reduce = SL_GROUP_SOFTMAX},
     false,
     1},
    {&sl_algo_pq_cache,
     {.token_budget = BUDGET, .n_subvec = 2, .n_subbits = 3, .recent_ratio = 0.2f},
     true,
     1},
    {&sl_algo_rocket_kv,
     {.prompt_budget = 100, .window = 9, .kernel = 5, .top_pages = PAGES, .retained_page = RETAINED},
     true,
     RETAINED},
    {&sl_algo_cluster_kv,
     {.token_budget = BUDGET,
      .cluster_tokens = 7,
      .cluster_window = 20,
      .window_nlist = 3,
      .reduce = SL_GROUP_SOFTMAX},
     true,
     1},
};
enum { STRATEGIES = SL_COUNT(strategies) };

static const char *const dir = "tests/golden/model/qwen3-norms";
static sl_select_options options;
static sl_algo_model model;
static float shares[64];
static char path[64], channels[64];

static void set(const sl_algo_desc *a, const char *name, const char *value)
{
    sl_err err = {0};
    if (sl_options_find(a->options, name))
        ck_assert_msg(sl_options_set(a->options, options.values, name, value, &err) == SL_OK, "%s", err.text);
}

static void write_files(const sl_model_config *cfg)
{
    sl_err err = {0};
    model = (sl_algo_model){.architecture = "LlamaForCausalLM",
                            .n_layers = cfg->n_layers,
                            .n_heads = cfg->attn.n_heads,
                            .kv_heads = cfg->attn.n_kv_heads,
                            .head_dim = cfg->attn.v_head_dim,
                            .hidden_size = cfg->hidden_size,
                            .vocab_size = cfg->vocab_size};
    const size_t n = (size_t)model.n_layers * (size_t)model.kv_heads;
    double *importance = calloc(n * (size_t)model.head_dim, sizeof *importance);
    ck_assert_uint_le(n, SL_COUNT(shares));
    for (size_t i = 0; i < n; i++)
        shares[i] = (float)(i * 5 % 7) / 4; /* 0 to 1.5 */
    snprintf(path, sizeof path, "/tmp/sl-engine-budgets-%d.json", (int)getpid());
    snprintf(channels, sizeof channels, "/tmp/sl-engine-channels-%d.json", (int)getpid());
    ck_assert_int_eq(sl_budgets_write(path, &model, "m", "both", shares, &err), SL_OK);
    ck_assert_int_eq(sl_channels_write(channels, &model, "m", "qk", 1, importance, &err), SL_OK);
    free(importance);
}

/* The options of a strategy with the file, prepared for the model. hot_rows: what its longest list needs. */
static fix_opts opts_of(const strategy *s, bool mass)
{
    sl_model_config cfg;
    sl_err err = {0};
    uint64_t content = 0;
    ck_assert_msg(sl_model_config_load(dir, &cfg, &err) == SL_OK, "%s", err.text);
    write_files(&cfg);
    model.max_context = WAYS_CONTEXT;
    options = select_options(s->algo, &s->select);
    set(s->algo, "budgets_path", path);
    set(s->algo, "channel_config_path", channels);
    set(s->algo, "list_mass", mass ? "0.6" : "0");
    ck_assert_msg(s->algo->prepare(options.values, &model, &content, &err) == SL_OK, "%s", err.text);
    ck_assert(content != 0);
    remove(path), remove(channels);
    fix_opts o = {.dir = dir,
                  .rows = SL_ROW_GQA_BF16,
                  .act = SL_BF16,
                  .threads = 1,
                  .max_tokens = WAYS_CONTEXT,
                  .max_context = WAYS_CONTEXT,
                  .max_seqs = 3,
                  .max_hot = 2,
                  .select = s->select,
                  .tail_rows = 3,
                  .options = &options,
                  .algorithm = s->algo->name};
    sl_algo_dims d = {.n_layers = model.n_layers, .max_context = WAYS_CONTEXT};
    d.cache = (sl_cache_dims){.kv_heads = model.kv_heads, .head_dim = model.head_dim, .select = options};
    o.hot_rows = s->algo->width(&d, 0);
    return o;
}

/* ---- lengths ---- */

static const strategy *checked;

static void check_list(witness *w, const seen_list *l)
{
    const strategy *s = checked;
    const int32_t heads = model.kv_heads, budget = s->algo == &sl_algo_rocket_kv ? PAGES : BUDGET / s->unit,
                  head = l->list % heads;
    const double x = (double)shares[l->layer * heads + head] * budget;
    int32_t most = (int32_t)(x + 0.5), n = 0;
    while (n < l->k && l->ids[n] >= 0)
        n++;
    if (l->pos < (s->at_prompts ? WAYS_PROMPT : 100))
        return;
    w->lists++;
    if (s->algo == &sl_algo_quest) {
        most = most > 2 ? most : 2; /* the first and the newest block */
        MUST(n == most);
    } else if (s->algo == &sl_algo_double_sparsity) {
        MUST(n == (most > 1 ? most : 1));
    } else if (s->algo == &sl_algo_pq_cache) {
        const int32_t least = (int32_t)(BUDGET * (double)s->select.recent_ratio);
        MUST(n == (most > least ? most : least));
    } else if (s->algo == &sl_algo_rocket_kv) {
        MUST(n <= (most > 1 ? most : 1) * RETAINED && n > ((most > 1 ? most : 1) - 1) * RETAINED);
    } else {
        MUST(n >= most && n <= (most > 1 ? most : 1) + s->select.cluster_window);
    }
}

START_TEST(lists_are_as_long_as_their_shares)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    const strategy *s = checked = &strategies[_i];
    fix_opts o = opts_of(s, false);
    witness w = {.f = &f, .run = &r, .check = check_list};
    o.desc = witness_of(s->algo, &w);
    fix_open(&f, &o);
    fix_prompt(&f, &t, WAYS_LENGTH, 77);
    ways_prompt_open(&f, &r, SL_RESIDENT, 0, WAYS_PROMPT);
    fix_feed(&f, &r, &t, WAYS_PROMPT, 100);
    fix_feed(&f, &r, &t, WAYS_LENGTH, 1);
    ck_assert_int_gt(w.lists, 100);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* By strategy, and with list_mass in odd runs. */
START_TEST(the_ways_do_not_matter)
{
    const strategy *s = &strategies[_i / 2];
    const fix_opts o = opts_of(s, _i % 2);
    if (s->at_prompts) {
        ways_prompt_chunks(o);
        ways_prompt_hierarchical(o, _i);
        ways_prompt_batch(o);
        return;
    }
    ways_chunks(o);
    ways_hierarchical(o, _i);
    ways_batch(o);
}
END_TEST

Suite *budgets_suite(void)
{
    Suite *s = suite_create("engine/budgets");
    TCase *c = tcase_create("budgets");
    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, lists_are_as_long_as_their_shares, 0, STRATEGIES);
    add_variants(c, the_ways_do_not_matter, 2 * STRATEGIES);
    suite_add_tcase(s, c);
    return s;
}
