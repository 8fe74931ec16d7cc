/*
 * Options and pages: for every option of every algorithm, the bytes of the pages of one request change with its value exactly
 * when its row says so (SL_OPTION_PAGES), and then its stamp does, too, so pages of two values never match. The values are
 * generated from the tables; budgets are first made small enough to matter for a request of some hundred tokens. Options that
 * name a file are in test_choose.c (double_sparsity) and tests/unit/sparse/test_budgets.c.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "engine/choose.h"
#include "tests/unit/run_suite.h"

#include "fix.h"

enum { PROMPT = 200, TOKENS = 290, CASES_MAX = 128 };

/* Values for a short request, of every algorithm that has the option. */
static const char *const small[][2] = {
    {"token_budget", "48"},
    {"block_tokens", "4"},
    {"prompt_budget", "64"},
    {"window_size", "16"},
    {"output_tokens", "20"},
    {"cluster_tokens", "4"},
    {"cluster_window", "16"},
    {"window_nlist", "3"},
    {"niter", "1"},
    {"n_subbits", "2"},
    {"threshold_scale_factor", "60"},
    {"topk", "8"},
    {"topr", "2"},
    {"gqa_reduction", "softmax"}, /* list_mass needs it */
};

/* Doubled, halved, of 0 a tenth, or the next name; of types not f32, which `auto` stands for with rows of f32. */
static void other_value(const sl_option *o, double v, char *text, size_t cap)
{
    const char *const *names = sl_option_names(o);
    if (o->type == SL_OPTION_ENUM)
        snprintf(text, cap, "%s",
                 !strcmp(names[0], "auto") ? names[2]
                 : names[(int)v + 1]       ? names[(int)v + 1]
                                           : names[0]);
    else if (o->type == SL_OPTION_FLOAT)
        snprintf(text, cap, "%g", v > 1 ? 4 * v : v > 0 ? v / 2 : 0.1);
    else if (!strcmp(o->name, "kernel_size"))
        snprintf(text, cap, "%d", (int)v == 5 ? 1 : 5);
    else
        snprintf(text, cap, "%d", 2 * (int)v);
}

static void set(const sl_options *t, sl_select_options *s, const char *name, const char *text)
{
    sl_err err = {0};
    ck_assert_msg(sl_options_set(t, s->values, name, text, &err) == SL_OK, "%s", err.text);
}

/* The hash of all pages of a request of fixed tokens under these options. */
static sl_key pages_of(const sl_algo_desc *a, const sl_select_options *select)
{
    static fix_text text;
    fix f;
    fix_run run = {0};
    fix_opts o = {
        .dir = "tests/golden/model/llama-odd",
        .rows = SL_ROW_GQA_F32,
        .act = SL_F32,
        .threads = 1,
        .max_tokens = PROMPT,
        .max_context = TOKENS + 1,
        .algorithm = a->name,
        .options = select,
        .gates = {.sink_tokens = a->default_sinks ? 4 : 0, .recent_tokens = a->default_recent ? 4 : 0}};
    fix_open(&f, &o);
    fix_prompt(&f, &text, TOKENS, 7);
    text.n = 0;
    fix_prompt_open(&f, &run, SL_RESIDENT, 0, TOKENS, PROMPT);
    fix_feed(&f, &run, &text, PROMPT, PROMPT);
    fix_feed(&f, &run, &text, TOKENS, 1);
    const int64_t bytes = sl_arena_geometry(f.arena)->page_bytes;
    sl_key h = {0, 0};
    for (int32_t i = 0; i < run.n_pages; i++)
        h = sl_hash_chain(h, sl_arena_base(f.arena) + run.pages[i] * bytes, (size_t)bytes);
    fix_seq_close(&f, &run, false);
    fix_close(&f);
    return h;
}

static const struct {
    const sl_algo_desc *a;
    size_t row;
} * cases;
static int n_cases;

static void find_cases(void)
{
    static struct {
        const sl_algo_desc *a;
        size_t row;
    } all[CASES_MAX];
    for (const sl_algo_desc *const *a = sl_algo_registry(); *a; a++)
        for (size_t i = 0; (*a)->options && *a != &sl_algo_double_sparsity && i < (*a)->options->n; i++)
            if (n_cases < CASES_MAX && (*a)->options->rows[i].type != SL_OPTION_TEXT)
                all[n_cases].a = *a, all[n_cases++].row = i;
    cases = (const void *)all;
}

START_TEST(pages_change_with_an_option)
{
    const sl_algo_desc *a = cases[_i].a;
    const sl_options *t = a->options;
    const sl_option *o = &t->rows[cases[_i].row];
    sl_select_options before = {.set = true}, after;
    char text[64];
    sl_options_default(t, before.values);
    for (size_t i = 0; i < SL_COUNT(small); i++)
        if (sl_options_find(t, small[i][0]))
            set(t, &before, small[i][0], small[i][1]);
    after = before;
    other_value(o, sl_options_number(t, before.values, o->name), text, sizeof text);
    set(t, &after, o->name, text);
    const sl_model_config m = {.attn.n_kv_heads = 2, .max_context = 4096};
    sl_gates g = {0};
    sl_select_options one, two;
    ck_assert_int_eq(sl_choose_selection(a, before.values, &m, &g, &one, NULL), SL_OK);
    ck_assert_int_eq(sl_choose_selection(a, after.values, &m, &g, &two, NULL), SL_OK);
    const bool changed = !sl_key_eq(pages_of(a, &before), pages_of(a, &after));
    ck_assert_msg(changed == ((o->flags & SL_OPTION_PAGES) != 0), "%s: %s=%s: pages %s", a->name, o->name,
                  text, changed ? "change" : "are the same");
    ck_assert_msg(changed == (one.stamp != two.stamp), "%s: %s=%s: the stamp", a->name, o->name, text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/options");
    TCase *t = tcase_create("options");
    find_cases();
    tcase_add_loop_test(t, pages_change_with_an_option, 0, n_cases);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return run_suite(s);
}
