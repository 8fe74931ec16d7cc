/*
 * Options and pages: for every option of every algorithm, the bytes of the pages of one request change with its value exactly
 * when its row says so (SL_OPTION_PAGES), and then its stamp does, too, so pages of two values never match. The values are
 * generated from the tables; budgets are first made small enough to matter for a request of some hundred tokens. Options that
 * name a file are in test_choose.c (double_sparsity) and tests/unit/sparse/test_budgets.c. Likewise the gates, which every algorithm
 * has: pages that differ have other stamps. A value that is written in another way is the same value, and has the same stamp.
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

/* Values for a short request, and the defaults of the other options. */
static void small_options(const sl_options *t, sl_select_options *s)
{
    sl_options_default(t, s->values);
    for (size_t i = 0; i < SL_COUNT(small); i++)
        if (sl_options_find(t, small[i][0]))
            set(t, s, small[i][0], small[i][1]);
}

static sl_gates gates_of(const sl_algo_desc *a)
{
    return (sl_gates){.sink_tokens = a->default_sinks ? 4 : 0, .recent_tokens = a->default_recent ? 4 : 0};
}

/* The hash of all pages of a request of fixed tokens under these options. */
static sl_key pages_of(const sl_algo_desc *a, const sl_select_options *select, const sl_gates *gates)
{
    static fix_text text;
    fix f;
    fix_run run = {0};
    fix_opts o = {.dir = "tests/golden/model/llama-odd",
                  .rows = SL_ROW_GQA_F32,
                  .act = SL_F32,
                  .threads = 1,
                  .max_tokens = PROMPT,
                  .max_context = TOKENS + 1,
                  .algorithm = a->name,
                  .options = select,
                  .gates = *gates};
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
static uint64_t stamp_of(const sl_algo_desc *a, const sl_select_options *s, sl_gates g)
{
    const sl_model_config m = {.attn.n_kv_heads = 2, .max_context = 4096};
    sl_select_options out;
    sl_err err = {0};
    ck_assert_msg(sl_choose_selection(a, a->options ? s->values : NULL, &m, &g, &out, &err) == SL_OK, "%s",
                  err.text);
    return out.stamp;
}

START_TEST(pages_change_with_an_option)
{
    const sl_algo_desc *a = cases[_i].a;
    const sl_options *t = a->options;
    const sl_option *o = &t->rows[cases[_i].row];
    sl_select_options before = {.set = true}, after;
    char text[64];
    small_options(t, &before);
    after = before;
    other_value(o, sl_options_number(t, before.values, o->name), text, sizeof text);
    set(t, &after, o->name, text);
    const sl_gates g = gates_of(a);
    const uint64_t one = stamp_of(a, &before, g), two = stamp_of(a, &after, g);
    const bool changed = !sl_key_eq(pages_of(a, &before, &g), pages_of(a, &after, &g));
    ck_assert_msg(changed == ((o->flags & SL_OPTION_PAGES) != 0), "%s: %s=%s: pages %s", a->name, o->name,
                  text, changed ? "change" : "are the same");
    ck_assert_msg(changed == (one != two), "%s: %s=%s: the stamp", a->name, o->name, text);
}
END_TEST

static bool is_for_gates(const sl_algo_desc *a)
{
    return !a->needs_indexer && a != &sl_algo_double_sparsity;
}

/* Whether recent_tokens is a gate of the algorithm: others have options of their own for the newest tokens and refuse it, or
 * select nothing. */
static bool takes_recent(const sl_algo_desc *a)
{
    return a->action != SL_ACTION_KERNEL && a != &sl_algo_snapkv && a != &sl_algo_cluster_kv &&
           a != &sl_algo_pq_cache;
}

START_TEST(pages_change_with_a_gate)
{
    static const int32_t one[] = {1}, twice[] = {2, 1, 2}, sorted[] = {1, 2};
    const sl_algo_desc *a = sl_algo_registry()[_i];
    sl_select_options s = {.set = a->options != NULL};
    const sl_gates before = gates_of(a);
    sl_gates after[] = {before, before, before, before};
    if (!is_for_gates(a))
        return;
    if (a->options)
        small_options(a->options, &s);
    after[0].sink_tokens += a->action != SL_ACTION_KERNEL ? 20 : 0;
    after[1].recent_tokens += takes_recent(a) ? 12 : 0;
    after[2].min_tokens = PROMPT + 40;
    after[3].dense_layers = one, after[3].n_dense_layers = 1;
    const sl_key pages = pages_of(a, &s, &before);
    const uint64_t stamp = stamp_of(a, &s, before);
    for (size_t i = 0; i < SL_COUNT(after); i++) {
        const bool changed = !sl_key_eq(pages, pages_of(a, &s, &after[i]));
        const bool other = stamp != stamp_of(a, &s, after[i]);
        ck_assert_msg(other || !changed, "%s: gate %zu: pages change, the stamp does not", a->name, i);
        ck_assert_msg(a != &sl_algo_dense || (!changed && !other), "dense: gate %zu", i);
    }
    sl_gates g = before, h = before;
    g.dense_layers = twice, g.n_dense_layers = 3;
    h.dense_layers = sorted, h.n_dense_layers = 2;
    ck_assert_msg(stamp_of(a, &s, g) == stamp_of(a, &s, h), "%s: the order of dense layers", a->name);
}
END_TEST

/* Other ways to write the value of an option: digits and signs that do not count. */
START_TEST(a_value_has_one_stamp)
{
    static const char *const ways[][2] = {{"+", ""},  {"0", ""},    {"-", ""}, {"-0", ""},
                                          {"", ".0"}, {"", "0e-1"}, {"", "."}, {"", "e0"}};
    const sl_algo_desc *a = cases[_i].a;
    const sl_option *o = &a->options->rows[cases[_i].row];
    sl_select_options s = {.set = true};
    char plain[32], text[64];
    small_options(a->options, &s);
    const double v = sl_options_number(a->options, s.values, o->name);
    const uint64_t stamp = stamp_of(a, &s, gates_of(a));
    if (o->type == SL_OPTION_ENUM)
        return;
    snprintf(plain, sizeof plain, "%.17g", v);
    for (size_t i = 0; i < SL_COUNT(ways); i++) {
        snprintf(text, sizeof text, "%s%s%s", ways[i][0], plain, ways[i][1]);
        if (sl_options_set(a->options, s.values, o->name, text, NULL) != SL_OK)
            continue;
        const double got = sl_options_number(a->options, s.values, o->name);
        ck_assert_msg((got == v) == (stamp_of(a, &s, gates_of(a)) == stamp) || !(o->flags & SL_OPTION_PAGES),
                      "%s: %s=%s", a->name, o->name, text);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/options");
    TCase *t = tcase_create("options");
    find_cases();
    tcase_add_loop_test(t, pages_change_with_an_option, 0, n_cases);
    tcase_add_loop_test(t, a_value_has_one_stamp, 0, n_cases);
    int n = 0;
    while (sl_algo_registry()[n])
        n++;
    tcase_add_loop_test(t, pages_change_with_a_gate, 0, n);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    return run_suite(s);
}
