/*
 * What a device asks of addresses, without the device: the CPU backend requires here that rows which are multiples of
 * SL_ROW_ALIGN bytes begin at such a multiple, as a GPU's does, and weights are copied as for a GPU. Models whose sizes are
 * not multiples of 8 compute a prompt and decode, resident and from the host, with the sparse algorithms that serve them
 * (but double_sparsity, which needs a table of channels): no op may be refused, whatever part of a buffer it is given. The
 * results are those of the plain CPU backend. Run from the repository's root.
 */
#include <check.h>
#include <string.h>

#include "fix.h"
#include "kernels/backend_impl.h"
#include "kernels/params.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/model/"

enum { CONTEXT = 256, PROMPT = 150, LENGTH = 160, SPILL_AT = 154 };

static const struct {
    const char *dir;
    sl_row_format rows;
} models[] = {
    {GOLDEN "llama-odd", SL_ROW_GQA_BF16}, {GOLDEN "qwen2-mha", SL_ROW_GQA_BF16},
    {GOLDEN "qwen3-yarn", SL_ROW_GQA_FP8}, {GOLDEN "glm-odd", SL_ROW_MLA_BF16},
    {GOLDEN "ds-odd", SL_ROW_MLA_FP8},
};

/* heads: serves rows of KV heads. latent: serves latent rows. hot_rows 0: as many as a selection has. */
static const struct {
    const char *name;
    bool heads, latent;
    select_params select;
    sl_gates gates;
    int32_t hot_rows;
} algorithms[] = {
    {"dsa", .latent = true},
    {"dense", .heads = true, .latent = true, .hot_rows = CONTEXT},
    {"streaming_llm", .heads = true, .latent = true, .gates = {.sink_tokens = 4, .recent_tokens = 40},
     .hot_rows = 44},
    {"quest", .heads = true, .select = {.token_budget = 64, .block_tokens = 16}, .hot_rows = 64},
    {"quest", .heads = true,
     .select = {.token_budget = 64, .block_tokens = 1, .shared_lists = true, .reduce = SL_GROUP_MEAN},
     .hot_rows = 64},
    {"snapkv", .heads = true, .select = {.prompt_budget = 48, .window = 8, .kernel = 5, .output_tokens = 40},
     .hot_rows = 88},
    {"rocket_kv", .heads = true,
     .select = {.prompt_budget = 64, .window = 16, .top_pages = 8, .retained_page = 4, .kt_type = SL_KT_BF16},
     .hot_rows = 32},
    {"cluster_kv", .heads = true,
     .select =
         {.token_budget = 64, .cluster_tokens = 8, .cluster_window = 20, .window_nlist = 3, .niter = 10},
     .gates = {.sink_tokens = 4}, .hot_rows = 84},
    {"pq_cache", .heads = true,
     .select = {.token_budget = 64, .n_subvec = 2, .n_subbits = 4, .niter = 8, .recent_ratio = 0.5f},
     .gates = {.sink_tokens = 4}, .hot_rows = 64},
    {"skip_softmax", .heads = true, .select = {.skip_factor = 100}, .hot_rows = CONTEXT},
    {"xattention", .heads = true, .select = {.list_mass = 0.3f}, .hot_rows = CONTEXT},
};

enum { MODELS = SL_COUNT(models), ALGORITHMS = SL_COUNT(algorithms) };

static sl_backend_desc desc;

static void ask_for_lines(sl_backend *be)
{
    desc = sl_backend_cpu;
    desc.row_align = SL_ROW_ALIGN;
    be->desc = &desc;
    be->caps &= ~(unsigned)SL_BE_UNIFIED;
}

static bool latent(int m)
{
    return models[m].rows == SL_ROW_MLA_BF16 || models[m].rows == SL_ROW_MLA_FP8;
}

static fix_opts opts_of(int m, int a, sl_dtype act)
{
    return (fix_opts){.dir = models[m].dir,
                      .rows = models[m].rows,
                      .act = act,
                      .threads = 1,
                      .max_tokens = CONTEXT,
                      .max_context = CONTEXT,
                      .max_seqs = 1,
                      .max_hot = 1,
                      .hot_rows = algorithms[a].hot_rows,
                      .tail_rows = 3,
                      .algorithm = algorithms[a].name,
                      .select = algorithms[a].select,
                      .gates = algorithms[a].gates};
}

/* The hash of the last logits. */
static sl_key run(const fix_opts *o)
{
    static fix_text t;
    fix f;
    fix_run r = {0};
    sl_err err = {0};
    fix_open(&f, o);
    fix_prompt(&f, &t, LENGTH, 5);
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, LENGTH, PROMPT);
    fix_feed(&f, &r, &t, PROMPT, 61);
    fix_feed(&f, &r, &t, SPILL_AT, 1);
    ck_assert_msg(sl_engine_seq_spill(f.engine, r.seq, &err) == SL_OK, "%s", err.text);
    fix_feed(&f, &r, &t, LENGTH, 1);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    return t.logits[LENGTH - 1];
}

static void both(int m, int a, sl_dtype act)
{
    fix_opts o = opts_of(m, a, act);
    sl_key plain = run(&o);
    o.wrap = ask_for_lines;
    sl_key lines = run(&o);
    ck_assert_msg(memcmp(&plain, &lines, sizeof plain) == 0, "%s of %s", algorithms[a].name, models[m].dir);
}

START_TEST(odd_models_give_whole_lines)
{
    int m = _i / ALGORITHMS, a = _i % ALGORITHMS;
    if (!(latent(m) ? algorithms[a].latent : algorithms[a].heads))
        return; /* the algorithm is not one of such rows */
    both(m, a, SL_BF16);
    both(m, a, SL_F32);
}
END_TEST

/* Families with states, by the algorithm of their own indexer. */
START_TEST(odd_states_give_whole_lines)
{
    static const struct {
        const char *dir;
        sl_row_format rows;
    } all[] = {{GOLDEN "glm5-odd", SL_ROW_MLA_BF16}, {GOLDEN "qwen4-odd", SL_ROW_GQA_FP8}};
    fix_opts o = {.dir = all[_i].dir,
                  .rows = all[_i].rows,
                  .act = SL_BF16,
                  .threads = 1,
                  .max_tokens = CONTEXT,
                  .max_context = CONTEXT,
                  .max_seqs = 1,
                  .max_hot = 1,
                  .hot_rows = 40,
                  .tail_rows = 4,
                  .algorithm = "pooled"};
    sl_key plain = run(&o);
    o.wrap = ask_for_lines;
    sl_key lines = run(&o);
    ck_assert_msg(memcmp(&plain, &lines, sizeof plain) == 0, "%s", all[_i].dir);
}
END_TEST

/* Groups of heads are parts of rows: where a part does not begin at a whole line, the model is refused when it is loaded. */
START_TEST(odd_groups_are_refused_at_load)
{
    sl_model_opts mo = {.row_format = SL_ROW_GQA_BF16, .act = SL_BF16, .max_tokens = 8, .max_logit_rows = 1};
    sl_backend *be;
    sl_model *m = NULL;
    sl_err err = {0};
    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, &err), SL_OK);
    ask_for_lines(be);
    ck_assert_int_eq(sl_model_load(be, GOLDEN "v4-odd", &mo, &m, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "v4-odd") && strstr(err.text, "o_groups: 4 groups of 30 values") &&
                      strstr(err.text, "not aligned to 16 bytes"),
                  "%s", err.text);
    mo.act = SL_F32; /* its groups of 12 values are 48 bytes then */
    ck_assert_msg(sl_model_load(be, GOLDEN "v4-flash", &mo, &m, &err) == SL_OK, "%s", err.text);
    sl_model_destroy(m);
    sl_backend_destroy(be);
}
END_TEST

/* The backend of this test refuses what a GPU's would: without that the other test could not fail. */
START_TEST(the_backend_asks)
{
    _Alignas(16) uint16_t x[64] = {0}, w[64] = {0}, out[64] = {0};
    sl_backend *be;
    sl_err err = {0};
    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, &err), SL_OK);
    sl_linear_params p = {.x = x,
                          .w = {.data = w, .out = 8, .in = 8, .dtype = SL_BF16},
                          .out = out + 4,
                          .tokens = 1,
                          .ld_x = 8,
                          .ld_out = 8,
                          .act = SL_BF16,
                          .out_dtype = SL_BF16};
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &p, &err), SL_OK);
    ask_for_lines(be);
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &p, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "linear: out is not aligned to 16 bytes") != NULL, "%s", err.text);
    sl_backend_destroy(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("alignment");
    TCase *t = tcase_create("alignment");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, the_backend_asks);
    tcase_add_loop_test(t, odd_states_give_whole_lines, 0, 2);
    tcase_add_test(t, odd_groups_are_refused_at_load);
    tcase_add_loop_test(t, odd_models_give_whole_lines, 0, MODELS * ALGORITHMS);
    suite_add_tcase(s, t);
    return run_suite(s);
}
