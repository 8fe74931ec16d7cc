/*
 * Compares the choices of the configuration with the registries that own them, and checks that the generated reference
 * files, which list those names, are up to date. SL_UPDATE_REFERENCE=1 rewrites the files.
 */
#include <stdio.h>
#include <string.h>

#include "cli/config_choices.h"
#include "kernels/params.h"
#include "tests/unit/generated.h"
#include "tests/unit/run_suite.h"

static sl_config cfg;
static sl_err err;

static void fresh(void)
{
    sl_config_bind(sl_cli_choices);
    sl_config_init(&cfg);
    err.text[0] = '\0';
}

START_TEST(every_choice_is_bound)
{
    const char *key = sl_config_unbound(sl_cli_choices);
    ck_assert_msg(!key, "%s", key);
}
END_TEST

/* Every name of every registry is accepted as a value of its key. */
START_TEST(every_name_is_accepted)
{
    for (const sl_config_choice *c = sl_cli_choices; c->key; c++) {
        ck_assert_msg(c->names()[0] != NULL, "%s", c->key);
        for (const char *const *n = c->names(); *n; n++) {
            char set[128];
            fresh();
            snprintf(set, sizeof set, "%s=%s", c->key, *n);
            ck_assert_msg(sl_config_set(&cfg, set, &err) == SL_OK, "%s", err.text);
        }
    }
}
END_TEST

/*
 * The configuration accepts hot buffers up to the limit of the kernels. The limit is written twice, because base/ does
 * not include other rooms.
 */
START_TEST(hot_rows_end_where_the_kernels_do)
{
    char set[64];
    fresh();
    snprintf(set, sizeof set, "sparse_attention.hot_rows_layers=%d", SL_HOT_ROWS_MAX);
    ck_assert_msg(sl_config_set(&cfg, set, &err) == SL_OK, "%s", err.text);
    snprintf(set, sizeof set, "sparse_attention.hot_rows_layers=%d", SL_HOT_ROWS_MAX + 1);
    ck_assert_int_eq(sl_config_set(&cfg, set, &err), SL_ERR_INVALID);
}
END_TEST

static void rejects(const char *yaml, const char *where, const char *names)
{
    fresh();
    ck_assert_int_eq(sl_config_load_text(&cfg, yaml, strlen(yaml), "t.yaml", &err), SL_ERR_INVALID);
    ck_assert_msg(!strncmp(err.text, where, strlen(where)), "want \"%s...\", got: %s", where, err.text);
    ck_assert_msg(strstr(err.text, names), "want \"%s\" in: %s", names, err.text);
}

START_TEST(unknown_names_are_refused)
{
    rejects("kvstore:\n  layout: column\n", "t.yaml:2: kvstore.layout", "page_first, layer_first, page_head");
    rejects("backend: {name: tpu}\n", "t.yaml:1: backend.name", "cpu, cuda");
    rejects("model:\n  row_format: f8\n", "t.yaml:2: model.row_format",
            "auto, mla_f32, mla_bf16, mla_fp8, gqa_f32, gqa_bf16, gqa_fp8");
    rejects("cluster: {transport: tcp}\n", "t.yaml:1: cluster.transport", "ucx, loopback");
    rejects("router: {policy: random}\n", "t.yaml:1: router.policy",
            "round_robin, least_load, longest_prefix, cache_aware");
}
END_TEST

START_TEST(generated_files_are_fresh)
{
    fresh();
    check_generated("configs/reference.yaml", sl_config_reference_yaml());
    check_generated("docs/configuration.md", sl_config_reference());
    /* The reference file is a valid configuration that does not change any default. */
    sl_config before = cfg;
    ck_assert_msg(sl_config_load_file(&cfg, "configs/reference.yaml", &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(memcmp(&before, &cfg, sizeof cfg), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config_reference");
    TCase *t = tcase_create("config_reference");
    tcase_add_test(t, every_choice_is_bound);
    tcase_add_test(t, hot_rows_end_where_the_kernels_do);
    tcase_add_test(t, every_name_is_accepted);
    tcase_add_test(t, unknown_names_are_refused);
    tcase_add_test(t, generated_files_are_fresh);
    suite_add_tcase(s, t);
    return run_suite(s);
}
