/*
 * Compares the choices of the configuration with the registries that own them, and checks that the generated reference
 * files, which list those names, are up to date. SL_UPDATE_REFERENCE=1 rewrites the files. The configurations for H200s are
 * valid and fit by the plan.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_impl.h"
#include "base/msg.h"
#include "cli/config_choices.h"
#include "engine/plan_group.h"
#include "kernels/params.h"
#include "model/synthetic.h"
#include "router/router.h"
#include "tests/unit/generated.h"
#include "tests/unit/run_suite.h"

static sl_config cfg;
static sl_err err;

static void fresh(void)
{
    sl_config_bind(sl_cli_choices, sl_cli_parts());
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
    snprintf(set, sizeof set, "sparse_attention.hot_rows=%d", SL_HOT_ROWS_MAX);
    ck_assert_msg(sl_config_set(&cfg, set, &err) == SL_OK, "%s", err.text);
    snprintf(set, sizeof set, "sparse_attention.hot_rows=%d", SL_HOT_ROWS_MAX + 1);
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
    rejects("router: {policy: random}\n", "t.yaml:1: router.policy",
            "round_robin, least_load, longest_prefix, cache_aware");
}
END_TEST

/* Implementations of one seam may share a key: of one type, with the same bounds and names. Every option has a text, and one
 * that a page depends on says so once. */
START_TEST(tables_agree)
{
    int shared = 0;
    for (const sl_options *const *t = sl_cli_parts(); *t; t++) {
        ck_assert((*t)->section && (*t)->name && (!(*t)->seam) != (!(*t)->on));
        ck_assert(!(*t)->on || sl_options_find(*t, (*t)->on)->type == SL_OPTION_TEXT);
        for (size_t i = 0; i < (*t)->n; i++) {
            const sl_option *o = &(*t)->rows[i];
            ck_assert_msg(strlen(o->doc) > 8 && o->offset + o->size <= (*t)->bytes, "%s.%s", (*t)->name,
                          o->name);
            for (const sl_options *const *u = sl_cli_parts(); u < t; u++) {
                const sl_option *p =
                    strcmp((*u)->section, (*t)->section) ? NULL : sl_options_find(*u, o->name);
                ck_assert_msg(!p || (p->type == o->type && p->flags == o->flags && p->min == o->min &&
                                     p->max == o->max && p->size == o->size &&
                                     sl_option_names(p) == sl_option_names(o)),
                              "%s of %s and %s", o->name, (*u)->name, (*t)->name);
                shared += p != NULL;
            }
        }
    }
    ck_assert_int_ge(shared, 10);
}
END_TEST

static void finish_rejects_now(const char *a, const char *reason)
{
    ck_assert_int_eq(sl_config_set(&cfg, a, &err), SL_OK);
    ck_assert_int_lt(sl_config_finish(&cfg, &err), 0);
    ck_assert_msg(strstr(err.text, reason), "want \"%s\" in: %s", reason, err.text);
}

static void finish_rejects(const char *a, const char *b, const char *reason)
{
    fresh();
    ck_assert_int_eq(sl_config_set(&cfg, a, &err), SL_OK);
    if (b)
        ck_assert_int_eq(sl_config_set(&cfg, b, &err), SL_OK);
    ck_assert_int_lt(sl_config_finish(&cfg, &err), 0);
    ck_assert_msg(strstr(err.text, reason), "want \"%s\" in: %s", reason, err.text);
}

START_TEST(rules_of_implementations)
{
    finish_rejects("kvstore.disk.path=/d", NULL, "kvstore.disk.bytes: is mandatory");
    finish_rejects("kvstore.disk.bytes=1GiB", NULL, "kvstore.disk.bytes: has no effect");
    fresh();
    ck_assert_int_eq(sl_config_set(&cfg, "kvstore.share=none", &err), SL_OK);
    ck_assert_int_eq(sl_config_set(&cfg, "kvstore.disk.bytes=1GiB", &err), SL_OK);
    finish_rejects_now("kvstore.disk.path=/d", "kvstore.share: none");
    finish_rejects("kvstore.redis.bytes=1GiB", NULL, "kvstore.redis.bytes: has no effect");
    finish_rejects("kvstore.redis.user=u", NULL, "kvstore.redis.user: has no effect");
    finish_rejects("kvstore.redis.address=h:1", "kvstore.redis.user=u", "needs kvstore.redis.password_file");
    finish_rejects("kvstore.redis.address=h:1", "kvstore.redis.password_file=/nonexistent/p",
                   "kvstore.redis.password_file: /nonexistent/p");
    finish_rejects("kvstore.redis.address=h:1", "kvstore.share=none", "kvstore.redis.address: has no use");
    finish_rejects("kvstore.nixl.path=/d", NULL, "kvstore.nixl.path: has no effect");
    finish_rejects("kvstore.nixl.backend=POSIX", "kvstore.nixl.path=/d", "files need both");
    finish_rejects("kvstore.nixl.backend=OBJ", "kvstore.nixl.parameters=bucket=b,secret_key=hidden",
                   "kvstore.nixl.parameters: secret_key would be shown");
    finish_rejects("kvstore.nixl.backend=OBJ", "kvstore.nixl.parameters=session_token=hidden",
                   "AWS_SESSION_TOKEN");
    finish_rejects("kvstore.nixl.backend=POSIX", "kvstore.share=none", "kvstore.nixl.backend: has no use");
    finish_rejects("events.zmq.replay_endpoint=ipc:///r", NULL, "has no effect without events.zmq.endpoint");
    finish_rejects("events.zmq.endpoint=ipc:///r", "events.zmq.replay_endpoint=ipc:///r", "is the same as");
    finish_rejects("events.zmq.endpoint=ipc:///r", "events.zmq.topic=", "events.zmq.topic: is empty");
    finish_rejects("events.zmq.endpoint=ipc:///r", "kvstore.share=tenant",
                   "events.zmq.endpoint: needs kvstore.share: all");
    finish_rejects("router.cache_threshold=0.5", NULL, "is not read when router.policy is cache_aware");
    finish_rejects(
        "sparse_attention.algorithm=quest", "sparse_attention.topk=3",
        "--set sparse_attention.topk: is not read when sparse_attention.algorithm is quest, only when it is "
        "rocket_kv");
}
END_TEST

/* ---- keys of former versions ---- */

/* Every key that a sentence of the table names exists: a word "section.name", perhaps with ':' after it. */
static void names_known_keys(const char *instead)
{
    for (const char *at = instead; *at; at += strcspn(at, " ") + strspn(at + strcspn(at, " "), " ")) {
        char word[SL_CFG_KEY_MAX];
        snprintf(word, sizeof word, "%.*s", (int)strspn(at, "abcdefghijklmnopqrstuvwxyz_.0123456789"), at);
        for (size_t s = 0; s < sl_cfg_nsections; s++) {
            size_t n = strlen(sl_cfg_sections[s].name);
            if (!strncmp(word, sl_cfg_sections[s].name, n) && word[n] == '.')
                ck_assert_msg(sl_cfg_find(word) != NULL, "\"%s\" names %s, which is no key", instead, word);
        }
    }
}

/* Refused in a file and by --set, with the sentence of the table, and not as a wrong spelling of another key. */
START_TEST(a_key_that_is_gone_names_what_replaces_it)
{
    const sl_cfg_gone_key *k = &sl_cfg_gone_keys[_i];
    char text[2 * SL_CFG_KEY_MAX], want[512];
    snprintf(want, sizeof want, "%s: this key of former versions is gone: %s", k->key, k->instead);
    snprintf(text, sizeof text, "%s: 1\n", k->key);
    rejects(text, "t.yaml:1: ", want);
    const char *dot = strrchr(k->key, '.');
    snprintf(text, sizeof text, "log: {json: true}\n%.*s:\n  %s: 1\n", (int)(dot - k->key), k->key, dot + 1);
    rejects(text, "t.yaml:3: ", want);
    fresh();
    snprintf(text, sizeof text, "%s=1", k->key);
    ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, want) == err.text + strlen("--set "), "%s", err.text);
    ck_assert_ptr_null(sl_cfg_find(k->key));
    names_known_keys(k->instead);
    for (int i = 0; i < _i; i++)
        ck_assert_str_ne(k->key, sl_cfg_gone_keys[i].key);
}
END_TEST

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/*
 * keys.txt has every key that the program ever had. One that is in it and is no key any more has to be in the table; a new
 * key is added by SL_UPDATE_REFERENCE=1, and nothing takes one out.
 */
START_TEST(no_key_disappears_silently)
{
    static const char path[] = "tests/unit/cli/keys.txt";
    static char text[1 << 16], keys[512][SL_CFG_KEY_MAX];
    const char *sorted[1024];
    size_t n = 0, m = 0;
    fresh();
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (n < SL_COUNT(keys) && fscanf(f, "%127s", keys[n]) == 1)
        n++;
    fclose(f);
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(sl_cfg_find(keys[i]) || sl_cfg_gone(keys[i]),
                      "%s is no key any more: base/config_gone.c has to say what replaces it", keys[i]);
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        sorted[m++] = sl_cfg_rows[i].key;
    for (size_t i = 0; i < sl_cfg_ngone; i++)
        sorted[m++] = sl_cfg_gone_keys[i].key;
    for (size_t i = 0; i < n; i++)
        sorted[m++] = keys[i];
    ck_assert_uint_le(m, SL_COUNT(sorted));
    n = m;
    qsort(sorted, n, sizeof *sorted, by_text);
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        if (!i || strcmp(sorted[i], sorted[i - 1]))
            len += (size_t)snprintf(text + len, sizeof text - len, "%s\n", sorted[i]);
    check_generated(path, strdup(text));
}
END_TEST

/* Values that are no keys any more: each follows from a key, and its default is what the key's was. */
START_TEST(values_that_follow_from_keys)
{
    sl_router_opts o;
    fresh();
    sl_router_opts_from_config(&cfg, &o);
    ck_assert(o.front.handshake_timeout_ms == 10000 && o.front.receive_timeout_ms == 30000 &&
              o.front.idle_timeout_ms == 120000);
    ck_assert(o.link.heartbeat_ms == 200 && o.front.max_unread_bytes == 1 << 20);
    ck_assert_int_eq(sl_config_max_waiting(&cfg.decode), 256);
    static const char *const sets[] = {"router.client_timeout_ms=21600000", "cluster.dead_after_ms=50",
                                       "router.max_request_bytes=1MiB", "decode.max_batch=4096"};
    for (size_t i = 0; i < SL_COUNT(sets); i++)
        ck_assert_msg(sl_config_set(&cfg, sets[i], &err) == SL_OK, "%s", err.text);
    sl_router_opts_from_config(&cfg, &o);
    ck_assert(o.front.handshake_timeout_ms == 7200000 && o.front.idle_timeout_ms == 24 * 3600 * 1000);
    ck_assert(o.link.heartbeat_ms == 5 && o.front.max_unread_bytes == 64 << 10);
    ck_assert_int_eq(sl_config_max_waiting(&cfg.decode), 16384);
}
END_TEST

START_TEST(generated_files_are_fresh)
{
    fresh();
    check_generated("configs/reference.yaml", sl_config_reference_yaml());
    check_generated("docs/configuration.md", sl_config_reference());
    /* The reference file is a valid configuration that does not change any default. */
    char *before = sl_config_dump(&cfg);
    ck_assert_msg(sl_config_load_file(&cfg, "configs/reference.yaml", &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_config_finish(&cfg, &err) == SL_OK, "%s", err.text);
    char *after = sl_config_dump(&cfg);
    ck_assert_str_eq(before, after);
    free(before);
    free(after);
}
END_TEST

static int32_t workers_of(sl_role role)
{
    int32_t n = 0;
    for (int i = 0; i < cfg.cluster.roles.n; i++)
        n += cfg.cluster.roles.v[i] == role;
    return n;
}

static void load_h200(const char *path)
{
    fresh();
    ck_assert_msg(sl_config_load_file(&cfg, path, &err) == SL_OK, "%s", err.text);
    cfg.cluster.insecure.n = 1; /* in place of a secret */
    cfg.cluster.insecure.v[0] = SL_CFG_WORKERS;
    ck_assert_msg(sl_config_finish(&cfg, &err) == SL_OK, "%s: %s", path, err.text);
}

/* The plan of V3.2 for a rank of 8 on one node of 8 H200 with 1.5 TiB, with the steps of this configuration. */
static sl_plan plan_h200(int32_t step_tokens)
{
    const uint64_t gib = 1ull << 30;
    static sl_model_config v32;
    sl_plan p;
    ck_assert_msg(sl_synthetic_config("deepseek_v32", 0, &v32, &err) == SL_OK, "%s", err.text);
    sl_plan_group g = {.ranks = 8,
                       .ranks_per_host = 8,
                       .stored = SL_F8_E4M3,
                       .act = SL_BF16,
                       .host_bytes = 8 * cfg.kvstore.bytes,
                       .given_weights = UINT64_MAX};
    sl_plan_in in = {.cfg = &v32,
                     .cache = sl_engine_cache_dims(&v32, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL),
                     .algorithm = &sl_algo_dsa,
                     .max_step_tokens = step_tokens,
                     .reserve_bytes = 139 * gib / 16,
                     .gpu_bytes = 139 * gib};
    ck_assert_uint_le(g.host_bytes, 1536 * gib);
    ck_assert_msg(sl_plan_group_make(&g, &in, &p, &err) == SL_OK, "%s", err.text);
    ck_assert(p.rows[0].context == 16384 && p.rows[3].context == 131072);
    return p;
}

/* The configurations for H200s are valid, make whole groups, and fit by the plan: the batch at 16K, and several requests of
 * 128K; on a prefill rank, whose requests are resident, one of 128K. */
START_TEST(configurations_for_h200)
{
    load_h200("configs/h200-node.yaml");
    ck_assert(cfg.cluster.group[SL_ROLE_BOTH].ranks == 8 && workers_of(SL_ROLE_BOTH) == 8);
    sl_plan p = plan_h200(cfg.prefill.chunk_tokens + cfg.decode.max_batch);
    ck_assert_int_ge(p.rows[0].hierarchical_batch, cfg.decode.max_batch);
    ck_assert_int_ge(p.rows[3].hierarchical_batch, 8);

    load_h200("configs/h200-two-nodes.yaml");
    ck_assert(cfg.cluster.group[SL_ROLE_PREFILL].ranks == 8 && workers_of(SL_ROLE_PREFILL) == 8);
    ck_assert(cfg.cluster.group[SL_ROLE_DECODE].ranks == 8 && workers_of(SL_ROLE_DECODE) == 8);
    p = plan_h200(cfg.decode.max_batch);
    ck_assert_int_ge(p.rows[0].hierarchical_batch, cfg.decode.max_batch);
    ck_assert_int_ge(p.rows[3].hierarchical_batch, 8);
    p = plan_h200(cfg.prefill.chunk_tokens);
    ck_assert_int_ge(p.rows[3].resident_gpu, 1);
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
    tcase_add_test(t, tables_agree);
    tcase_add_test(t, rules_of_implementations);
    tcase_add_loop_test(t, a_key_that_is_gone_names_what_replaces_it, 0, (int)sl_cfg_ngone);
    tcase_add_test(t, no_key_disappears_silently);
    tcase_add_test(t, values_that_follow_from_keys);
    tcase_add_test(t, generated_files_are_fresh);
    tcase_add_test(t, configurations_for_h200);
    suite_add_tcase(s, t);
    return run_suite(s);
}
