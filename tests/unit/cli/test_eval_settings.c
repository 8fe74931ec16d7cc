/* The lists and settings of `sluice eval`: what the flags become, and what is refused with which reason. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/config_choices.h"
#include "cli/eval_lists.h"
#include "cli/eval_settings.h"
#include "tests/unit/run_suite.h"

static sl_arg_list list(const char *a, const char *b)
{
    return (sl_arg_list){.v = {a, b}, .n = (a != NULL) + (b != NULL)};
}

START_TEST(lists)
{
    sl_cli_eval_flags f = {.tasks = list("chain,needle", "early"), .lengths = list("4096,256", NULL)};
    sl_cli_eval_lists l;
    sl_err err = {""};
    f.algorithms = list("quest:block_tokens=32,dense", NULL);
    ck_assert_msg(sl_cli_eval_lists_read(&f, &l, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(l.n_sources, 3);
    ck_assert_str_eq(l.source[0].name, "chain");
    ck_assert_str_eq(l.source[2].name, "early");
    ck_assert_int_eq(l.n_lengths, 2);
    ck_assert_int_eq(l.length[0], 256);
    ck_assert_int_eq(l.n_budgets, 4);
    ck_assert_int_eq(l.algorithms.n, 2);
    ck_assert_str_eq(l.algorithms.v[0], "quest:block_tokens=32");
    sl_cli_eval_lists_free(&l);
    f = (sl_cli_eval_flags){.lengths = list("200", NULL)};
    ck_assert_int_eq(sl_cli_eval_lists_read(&f, &l, &err), SL_OK);
    ck_assert_int_eq(l.n_sources, 6);
    ck_assert_int_eq(l.n_budgets, 2); /* of the usual ones, 256 and 512 hold the whole length */
    sl_cli_eval_lists_free(&l);
}
END_TEST

/* A folder is one with a slash in its name or without; a task's own name stays the task. */
START_TEST(folders)
{
    static const char line[] = "{\"index\":0,\"input\":\"q\",\"outputs\":[\"a\"]}\n";
    char dir[] = "/tmp/sl-eval-XXXXXX", here[4096];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert(mkdir("ruler", 0700) == 0 && mkdir("ruler/vt", 0700) == 0 && mkdir("chain", 0700) == 0);
    FILE *to = fopen("ruler/vt/validation.jsonl", "w");
    ck_assert(to && fputs(line, to) >= 0 && fclose(to) == 0);
    const char *const names[] = {"ruler", "./ruler", "ruler/", "chain"}, *const sources[] = {"vt", "vt", "vt",
                                                                                             "chain"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        sl_cli_eval_flags f = {.tasks = list(names[i], NULL)};
        sl_cli_eval_lists l;
        sl_err err = {""};
        ck_assert_msg(sl_cli_eval_lists_read(&f, &l, &err) == SL_OK, "%s: %s", names[i], err.text);
        ck_assert_int_eq(l.n_sources, 1);
        ck_assert_str_eq(l.source[0].name, sources[i]);
        sl_cli_eval_lists_free(&l);
    }
    ck_assert(unlink("ruler/vt/validation.jsonl") == 0 && rmdir("ruler/vt") == 0 && rmdir("ruler") == 0 &&
              rmdir("chain") == 0);
    ck_assert(chdir(here) == 0 && rmdir(dir) == 0);
}
END_TEST

static void refused(sl_cli_eval_flags f, const char *says)
{
    sl_cli_eval_lists l;
    sl_err err = {""};
    ck_assert_int_lt(sl_cli_eval_lists_read(&f, &l, &err), SL_OK);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" is not in \"%s\"", says, err.text);
    sl_cli_eval_lists_free(&l);
}

START_TEST(refused_lists)
{
    refused((sl_cli_eval_flags){.budgets = list("0", NULL)},
            "--budgets: \"0\" is not a number of tokens from 1");
    refused((sl_cli_eval_flags){.budgets = list("64", "1x")}, "--budgets: \"1x\"");
    refused((sl_cli_eval_flags){.budgets = list("64,1024", NULL)},
            "--budgets: 1024 tokens hold the whole of the largest length");
    refused((sl_cli_eval_flags){.budgets = list("64,64", NULL)}, "--budgets: 64 is there twice");
    refused((sl_cli_eval_flags){.lengths = list("99999999999999999999", NULL)}, "--lengths: \"9999");
    refused((sl_cli_eval_flags){.lengths = list("256,", NULL)}, "--lengths: an empty item in \"256,\"");
    refused((sl_cli_eval_flags){.tasks = list("haystack", NULL)},
            "--tasks: task \"haystack\" does not exist");
    refused((sl_cli_eval_flags){.tasks = list("needle,needle", NULL)}, "--tasks: needle is there twice");
}
END_TEST

/* ---- settings ---- */

static sl_local_checkpoint checkpoint_of(const char *dir)
{
    sl_local_checkpoint c = {0};
    sl_err err = {""};
    ck_assert_msg(sl_local_checkpoint_read(dir, NULL, NULL, &c, &err) == SL_OK, "%s", err.text);
    return c;
}

static bool no_bounds = true;

static sl_status make(const char *dir, const char *entry, bool possible, sl_cli_eval_settings *out,
                      sl_err *err)
{
    static sl_config cfg;
    const sl_local_checkpoint checkpoint = checkpoint_of(dir);
    const int32_t budgets[] = {64, 128};
    const sl_cli_eval_choice c = {.cfg = &cfg,
                                  .checkpoint = &checkpoint,
                                  .entries = &entry,
                                  .budgets = budgets,
                                  .n_entries = 1,
                                  .n_budgets = 2,
                                  .no_bounds = no_bounds,
                                  .possible = possible};
    sl_config_init(&cfg);
    return sl_cli_eval_settings_make(&c, out, err);
}

static int option(const sl_eval_setting *s, const char *name)
{
    return (int)sl_options_number(s->chosen.algorithm->options, s->chosen.select.values, name);
}

START_TEST(budgets_become_keys)
{
    sl_cli_eval_settings s;
    sl_err err = {""};
    ck_assert_msg(make("models/facts-llama", "quest:block_tokens=32:gqa_reduction=mean", false, &s, &err) ==
                      SL_OK,
                  "%s", err.text);
    ck_assert_int_eq(s.n, 3);
    ck_assert(s.v[0].baseline && !s.v[1].baseline && s.v[0].budget == 0);
    ck_assert_str_eq(s.v[0].name, "dense");
    ck_assert_int_eq(s.v[1].budget, 64);
    ck_assert_int_eq(option(&s.v[2], "token_budget"), 128);
    ck_assert_int_eq(option(&s.v[2], "block_tokens"), 32);
    sl_cli_eval_settings_free(&s);
    ck_assert_int_eq(make("models/facts-llama", "streaming_llm", false, &s, &err), SL_OK);
    ck_assert_int_eq(s.v[2].chosen.gates.sink_tokens, 4);
    ck_assert_int_eq(s.v[2].chosen.gates.recent_tokens, 124); /* together the budget */
    sl_cli_eval_settings_free(&s);
    ck_assert_int_eq(make("models/facts-llama", "rocket_kv:page_size=8", false, &s, &err), SL_OK);
    ck_assert_int_eq(s.v[2].budget, 128);
    ck_assert_int_eq(option(&s.v[2], "topk"), 16); /* pages of a budget of 128 tokens */
    sl_cli_eval_settings_free(&s);
    ck_assert_int_eq(make("models/facts-dsa", "dsa", false, &s, &err), SL_OK);
    ck_assert_int_eq(s.n, 2);
    ck_assert_int_eq(s.v[1].budget, 256); /* the model's own */
    sl_cli_eval_settings_free(&s);
}
END_TEST

/* A ceiling and a floor stand next to every budget that a strategy has, and next to no other. */
START_TEST(every_budget_has_its_bounds)
{
    sl_cli_eval_settings s;
    sl_err err = {""};
    no_bounds = false;
    ck_assert_msg(make("models/facts-llama", "quest", false, &s, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(s.n, 7);
    for (int i = 3; i < 7; i++) {
        ck_assert_str_eq(s.v[i].name, i < 5 ? "exact_topk" : "random");
        ck_assert_int_eq(s.v[i].budget, i % 2 ? 64 : 128);
        ck_assert_int_eq(option(&s.v[i], "token_budget"), s.v[i].budget);
        ck_assert(s.v[i].ideal && !s.v[i].baseline);
    }
    sl_cli_eval_settings_free(&s);
    ck_assert_int_eq(make("models/facts-llama", "skip_softmax", false, &s, &err), SL_OK);
    ck_assert_int_eq(s.n, 2);
    sl_cli_eval_settings_free(&s);
    no_bounds = true;
}
END_TEST

/* A key that does not exist would be found only when somebody evaluates the algorithm. */
START_TEST(every_budget_key_exists)
{
    for (const sl_algo_desc *const *a = sl_algo_registry(); *a; a++) {
        char assignment[128];
        static sl_config cfg;
        sl_err err = {""};
        if (!(*a)->budget_key)
            continue;
        sl_config_init(&cfg);
        snprintf(assignment, sizeof assignment, "sparse_attention.%s=64", (*a)->budget_key);
        ck_assert_msg(sl_config_set(&cfg, assignment, &err) == SL_OK, "%s: %s", (*a)->name, err.text);
    }
}
END_TEST

static void refused_setting(const char *entry, const char *says)
{
    sl_cli_eval_settings s;
    sl_err err = {""};
    ck_assert_int_lt(make("models/facts-llama", entry, false, &s, &err), SL_OK);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" is not in \"%s\"", says, err.text);
    sl_cli_eval_settings_free(&s);
}

START_TEST(refused_settings)
{
    sl_cli_eval_settings s;
    sl_err err = {""};
    refused_setting("attention_sink",
                    "--algorithms: sparse algorithm \"attention_sink\" does not exist; there are: ");
    refused_setting("quest:block=16",
                    "--algorithms: quest:block=16: --set sparse_attention.block: unknown key");
    refused_setting("quest:block_tokens=24", "block_tokens 24 does not divide a page");
    refused_setting("streaming_llm:sink_tokens=64",
                    "a budget of 64 tokens has no room for more than 64 sinks");
    ck_assert_int_eq(make("models/facts-llama", "quest:block_tokens=24", true, &s, &err), SL_OK);
    ck_assert_int_eq(s.n, 1); /* left out, with the reason on stderr */
    sl_cli_eval_settings_free(&s);
}
END_TEST

int main(void)
{
    sl_config_bind(sl_cli_choices, sl_cli_parts());
    Suite *s = suite_create("eval settings");
    TCase *t = tcase_create("settings");
    tcase_add_test(t, lists);
    tcase_add_test(t, folders);
    tcase_add_test(t, refused_lists);
    tcase_add_test(t, budgets_become_keys);
    tcase_add_test(t, every_budget_has_its_bounds);
    tcase_add_test(t, every_budget_key_exists);
    tcase_add_test(t, refused_settings);
    suite_add_tcase(s, t);
    return run_suite(s);
}
