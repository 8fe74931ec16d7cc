/*
 * The engine's contract in its limit cases: refusals at create, exhaustion that changes nothing, wrong steps,
 * spilling, the layer hook, counters, goldens of transformers through hierarchical decode, and the memory plan.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "fix.h"
#include "model/safetensors.h"
#include "tests/unit/run_suite.h"

#define DS_YARN "tests/golden/model/ds-yarn"
#define GLM_SHARE "tests/golden/model/glm-share"

static const fix_opts plain = {
    .dir = DS_YARN, .max_seqs = 3, .max_hot = 1, .max_context = 256, .tail_rows = 4};

static fix f;
static fix_text text;

static void refused(const sl_engine_opts *o, sl_status want, const char *word)
{
    sl_engine *e = NULL;
    sl_err err = {0};
    ck_assert_int_eq(sl_engine_create(f.be, f.model, f.arena, o, &e, &err), want);
    ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" does not say %s", err.text, word);
    ck_assert_ptr_null(e);
}

START_TEST(create_refuses)
{
    fix_open(&f, &plain);
    sl_engine_opts o = f.eo;
    o.hot_rows = f.cfg->index.topk - 1;
    refused(&o, SL_ERR_INVALID, "hot_rows");
    int32_t layers[SL_MAX_LAYERS] = {SL_HOT_RESIDENT, 1};
    o = f.eo, o.hot_rows_layer = layers;
    refused(&o, SL_ERR_INVALID, "layer 1 is less");
    layers[1] = -2;
    refused(&o, SL_ERR_INVALID, "hot_rows_layer -2 of layer 1");
    o = f.eo, o.max_step_tokens = 129;
    refused(&o, SL_ERR_INVALID, "max_step_tokens");
    o = f.eo, o.max_context = f.cfg->max_context + 1;
    refused(&o, SL_ERR_INVALID, "max_context");
    o = f.eo, o.max_hot_seqs = 4;
    refused(&o, SL_ERR_INVALID, "max_hot_seqs");
    o = f.eo, o.index_pages = 0;
    refused(&o, SL_ERR_INVALID, "index_pages");
    o = f.eo,
    o.algorithm = sl_algo_find("nothing"); /* NULL; a name that is not found is reported where it is read */
    refused(&o, SL_ERR_INVALID, "no algorithm");
    o = f.eo, o.algorithm = &sl_algo_dense;
    refused(&o, SL_ERR_UNSUPPORTED, "whole context");
    sl_arena *mine = f.arena;
    sl_geometry g;
    sl_cache_dims bf16 = sl_engine_cache_dims(f.cfg, SL_ROW_MLA_BF16, f.o.index);
    sl_arena_opts ao = {.bytes = 1 << 22, .huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    ck_assert_int_eq(sl_engine_geometry(f.cfg, &bf16, &sl_algo_dsa, SL_LAYOUT_PAGE_FIRST,
                                        sl_model_fingerprint(f.model), &g, NULL),
                     SL_OK);
    ck_assert_int_eq(sl_arena_create(&g, &ao, &f.arena, NULL), SL_OK);
    refused(&f.eo, SL_ERR_REFUSED, "row");
    sl_arena_destroy(f.arena);
    f.arena = mine;
    fix_close(&f);
}
END_TEST

START_TEST(exhaustion_changes_nothing)
{
    fix_opts o = plain;
    o.index_pages = 4, o.row_pages = 3, o.max_seqs = 3;
    fix_open(&f, &o);
    sl_err err = {0};
    sl_engine_stats a, b;
    fix_run one = {0}, two = {0};
    fix_seq_open(&f, &one, SL_RESIDENT, 0, 128);
    sl_engine_stats_get(f.engine, &a);
    int32_t pages[4] = {5, 6, 7, 8}, bad[] = {0, -1}, beyond[] = {sl_arena_pages(f.arena)};
    sl_seq *s = NULL;
    ck_assert_int_eq(sl_engine_seq_open(f.engine, SL_RESIDENT, pages, 2, 0, NULL, &s, &err),
                     SL_ERR_EXHAUSTED);
    ck_assert_int_eq(sl_engine_seq_open(f.engine, SL_HIERARCHICAL, pages, 3, 0, NULL, &s, &err),
                     SL_ERR_EXHAUSTED);
    ck_assert_int_eq(sl_engine_seq_open(f.engine, SL_HIERARCHICAL, bad, 2, 0, NULL, &s, &err),
                     SL_ERR_INVALID);
    ck_assert_int_eq(sl_engine_seq_open(f.engine, SL_HIERARCHICAL, beyond, 1, 0, NULL, &s, &err),
                     SL_ERR_INVALID);
    ck_assert_int_eq(sl_engine_seq_open(f.engine, SL_HIERARCHICAL, pages, 1, 65, NULL, &s, &err),
                     SL_ERR_INVALID);
    ck_assert_ptr_null(s);
    ck_assert_int_eq(sl_engine_seq_add_pages(f.engine, one.seq, pages, 2, &err), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(sl_engine_seq_add_pages(f.engine, one.seq, pages, 3, &err), SL_ERR_TOO_LARGE);
    ck_assert_int_eq(sl_engine_seq_capacity(one.seq), 128);
    sl_engine_stats_get(f.engine, &b);
    ck_assert_mem_eq(&a, &b, sizeof a);
    fix_seq_open(&f, &two, SL_HIERARCHICAL, 0, 64);
    ck_assert_int_eq(sl_engine_seq_open(f.engine, SL_HIERARCHICAL, pages, 1, 0, NULL, &s, &err),
                     SL_ERR_EXHAUSTED);
    ck_assert(strstr(err.text, "hot slots"));
    ck_assert_int_eq(sl_engine_seq_spill(f.engine, one.seq, &err), SL_ERR_EXHAUSTED);
    fix_seq_close(&f, &two, false);
    ck_assert_int_eq(sl_engine_seq_spill(f.engine, one.seq, &err), SL_OK);
    ck_assert_int_eq(sl_engine_seq_spill(f.engine, one.seq, &err), SL_ERR_INVALID);
    sl_engine_stats_get(f.engine, &b);
    ck_assert_int_eq(b.row_pages_free, 3); /* spilling gives all rows back */
    ck_assert_int_eq(b.index_pages_free, a.index_pages_free);
    fix_seq_close(&f, &one, false);
    fix_close(&f);
}
END_TEST

START_TEST(wrong_steps)
{
    fix_open(&f, &plain);
    fix_run r = {0}, h = {0};
    sl_err err = {0};
    fix_prompt(&f, &text, 200, 1);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 64);
    fix_seq_open(&f, &h, SL_HIERARCHICAL, 0, 64);
    sl_step_item it = {.seq = r.seq, .tokens = text.ids, .n_tokens = 65};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_EXHAUSTED); /* its pages hold 64 */
    it.n_tokens = 0;
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    it.n_tokens = 1, it.tokens = (const int32_t[]){f.cfg->vocab_size};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert(strstr(err.text, "128"));
    it.tokens = (const int32_t[]){-1};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 0, NULL, &err), SL_ERR_INVALID);
    it = (sl_step_item){.seq = h.seq, .tokens = text.ids, .n_tokens = 2};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_UNSUPPORTED);
    sl_step_item same[2] = {{.seq = r.seq, .tokens = text.ids, .n_tokens = 1},
                            {.seq = r.seq, .tokens = text.ids, .n_tokens = 1}};
    ck_assert_int_eq(sl_engine_step(f.engine, same, 2, NULL, &err), SL_ERR_INVALID);
    fix_grow(&f, &r, 200);
    it = (sl_step_item){.seq = r.seq, .tokens = text.ids, .n_tokens = 129};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_TOO_LARGE);
    ck_assert_int_eq(sl_engine_seq_len(r.seq), 0);
    ck_assert_int_eq(sl_engine_seq_len(h.seq), 0);
    it.n_tokens = 128; /* after all refusals a valid step works */
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_OK);
    ck_assert_ptr_null(it.logits);
    ck_assert_int_eq(sl_engine_seq_len(r.seq), 128);
    fix_seq_close(&f, &r, false), fix_seq_close(&f, &h, false);
    fix_close(&f);
}
END_TEST

/* ---- layer hook ---- */

typedef struct watch {
    const fix_run *run;
    int32_t n, next;
    uint32_t crc[SL_MAX_LAYERS];
} watch;

static uint32_t crc_of(const fix_run *r, int32_t layer, int32_t n_tokens)
{
    uint32_t crc = 0;
    for (int32_t p = 0; p * SL_PAGE_TOKENS < n_tokens; p++) {
        int32_t left = n_tokens - p * SL_PAGE_TOKENS;
        crc = crc * 31 +
              sl_arena_page_crc(f.arena, r->pages[p], layer, left < SL_PAGE_TOKENS ? left : SL_PAGE_TOKENS);
    }
    return crc;
}

static void on_layer(void *ctx, int32_t layer)
{
    watch *w = ctx;
    ck_assert_int_eq(layer, w->next++);
    w->crc[layer] = crc_of(w->run, layer, w->n);
}

START_TEST(layer_hook_sees_the_rows)
{
    fix_open(&f, &plain);
    fix_run r = {0};
    fix_prompt(&f, &text, 200, 2);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 200);
    for (int32_t at = 0, n; at < 200; at += n) {
        n = 200 - at < 90 ? 200 - at : 90;
        watch w = {.run = &r, .n = at + n};
        sl_step_hooks hooks = {.ctx = &w, .layer_done = on_layer};
        sl_step_item it = {.seq = r.seq, .tokens = text.ids + at, .n_tokens = n};
        ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, &hooks, NULL), SL_OK);
        ck_assert_int_eq(w.next, f.cfg->n_layers);
        for (int32_t l = 0; l < f.cfg->n_layers; l++)
            ck_assert_uint_eq(w.crc[l], crc_of(&r, l, at + n)); /* final when the hook was called */
    }
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* ---- goldens ---- */

static const sl_st_tensor *golden(sl_safetensors *st, int prompt, const char *what)
{
    char name[32];
    snprintf(name, sizeof name, "p%d.%s", prompt, what);
    return sl_st_find(st, name);
}

/* Integers are stored as I32 or I64. */
static int32_t golden_int(const sl_st_tensor *t, int64_t i)
{
    return t->dtype == SL_ST_I64 ? (int32_t)((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
}

START_TEST(goldens_hierarchical)
{
    static const char *const dirs[] = {DS_YARN, GLM_SHARE, "tests/golden/model/ds-odd",
                                       "tests/golden/model/glm-odd"};
    char path[128];
    snprintf(path, sizeof path, "%s/golden.safetensors", dirs[_i]);
    sl_safetensors *st;
    sl_err err = {0};
    ck_assert_msg(sl_st_open(path, &st, &err) == SL_OK, "%s", err.text);
    fix_opts o = {.dir = dirs[_i], .max_hot = 1, .tail_rows = 2, .max_tokens = 50, .max_context = 900};
    fix_open(&f, &o);
    int prompts = 0;
    for (; golden(st, prompts, "ids"); prompts++) {
        const sl_st_tensor *ids = golden(st, prompts, "ids"), *want = golden(st, prompts, "logits");
        const sl_st_tensor *greedy = golden(st, prompts, "greedy");
        int32_t n = (int32_t)ids->shape[ids->rank - 1],
                more = greedy ? (int32_t)greedy->shape[greedy->rank - 1] : 0;
        fix_run r = {0};
        text = (fix_text){.n = n};
        for (int32_t i = 0; i < n; i++)
            text.ids[i] = golden_int(ids, i);
        fix_seq_open(&f, &r, SL_RESIDENT, 0, n);
        if (n > 1)
            fix_feed(&f, &r, &text, n - 1, 50);
        ck_assert_int_eq(sl_engine_seq_spill(f.engine, r.seq, NULL), SL_OK);
        const float *logits = fix_feed(&f, &r, &text, n, 1);
        for (int32_t v = 0; v < f.cfg->vocab_size; v++)
            MUST(fabsf(logits[v] - ((const float *)want->data)[v]) <= 1e-4f);
        for (int32_t i = 0; i < more; i++) {
            int32_t id = fix_argmax(&f, logits);
            MUST(id == golden_int(greedy, i));
            text.ids[text.n++] = id;
            logits = fix_feed(&f, &r, &text, text.n, 1);
        }
        fix_seq_close(&f, &r, false);
    }
    ck_assert_int_gt(prompts, 2);
    sl_st_close(st);
    fix_close(&f);
}
END_TEST

/* ---- statistics and plan ---- */

START_TEST(statistics_add_up)
{
    fix_open(&f, &plain);
    sl_engine_stats s;
    sl_layer_stats layers[SL_MAX_LAYERS], one;
    fix_run r = {0};
    fix_prompt(&f, &text, 100, 3);
    fix_seq_open(&f, &r, SL_HIERARCHICAL, 0, 100);
    fix_feed(&f, &r, &text, 100, 1);
    sl_engine_stats_get(f.engine, &s);
    sl_engine_layer_stats_get(f.engine, layers);
    sl_engine_seq_stats(f.engine, r.seq, &one);
    uint64_t rows = 0, all = 0, misses = 0;
    for (int p = 0; p < 100; p++)
        rows += (uint64_t)(p + 1 < f.cfg->index.topk ? p + 1 : f.cfg->index.topk);
    for (int l = 0; l < f.cfg->n_layers; l++) {
        ck_assert_uint_eq(layers[l].hits + layers[l].tail_hits + layers[l].misses, rows);
        all += rows, misses += layers[l].misses;
    }
    ck_assert_uint_eq(s.steps, 100);
    ck_assert_uint_eq(s.tokens, 100);
    ck_assert_uint_eq(s.hits + s.tail_hits + s.misses, all);
    ck_assert_uint_eq(one.misses, misses);
    ck_assert_uint_eq(s.swap_bytes, misses * (uint64_t)sl_geometry_row_bytes(sl_arena_geometry(f.arena)));
    ck_assert(s.step_ns > s.attend_ns && s.attend_ns > s.swap_ns && s.swap_ns > 0);
    /* a CPU does not copy concurrently, so all of the time is exposed */
    ck_assert_uint_eq(s.swap_exposed_ns, s.swap_ns);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* What plan promises is what an engine of these pools takes. */
START_TEST(plan_matches_engine)
{
    static const int32_t layers[SL_MAX_LAYERS] = {0, SL_HOT_RESIDENT, 64};
    fix_opts o = plain;
    fix_open(&f, &o);
    sl_plan_in in = {.cfg = f.cfg,
                     .cache = sl_engine_cache_dims(f.cfg, o.rows, o.index),
                     .algorithm = &sl_algo_dsa,
                     .hot_rows = 32,
                     .tail_rows = 8,
                     .max_context = 1024,
                     .max_step_tokens = 128,
                     .max_seqs = 8,
                     .gpu_bytes = 160 << 20,
                     .host_bytes = 1 << 30};
    sl_plan p;
    sl_err err = {0};
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
    for (int i = 0; i < 4; i++) {
        int mode = i % 2;
        sl_engine_opts eo = f.eo;
        if (i == 2) {
            in.hot_rows_layer = layers;
            ck_assert_int_eq(sl_plan_make(&in, &p, &err), SL_OK);
            ck_assert_int_eq(p.resident_layers, 1);
        }
        eo.hot_rows_layer = in.hot_rows_layer;
        ck_assert_msg(sl_plan_pools(&p, (sl_residency)mode, 8, 1024, &eo, &err) == SL_OK, "%s", err.text);
        ck_assert_int_eq(eo.max_hot_seqs, mode == SL_HIERARCHICAL ? 8 : 0);
        ck_assert_int_eq(eo.index_pages, 8 * 16);
        sl_engine *e;
        sl_engine_stats s;
        ck_assert_msg(sl_engine_create(f.be, f.model, f.arena, &eo, &e, &err) == SL_OK, "%s", err.text);
        sl_engine_stats_get(e, &s);
        ck_assert_uint_le(s.device_bytes, in.gpu_bytes);
        uint64_t pools = (uint64_t)eo.index_pages * p.index_page_device +
                         (uint64_t)eo.row_pages * p.row_page_device +
                         (uint64_t)eo.max_hot_seqs * (p.hot_rows_bytes + p.hot_meta_bytes);
        /* 1 MiB: step arrays and logits */
        ck_assert_uint_ge(pools + p.fixed_bytes + (1 << 20), s.device_bytes);
        ck_assert_uint_ge(s.device_bytes + (1 << 20), pools);
        sl_engine_destroy(e);
    }
    sl_engine_opts eo = f.eo;
    in.gpu_bytes = p.fixed_bytes + 1000;
    ck_assert_int_eq(sl_plan_make(&in, &p, &err), SL_OK);
    ck_assert_int_eq(sl_plan_pools(&p, SL_HIERARCHICAL, 8, 1024, &eo, &err), SL_ERR_DEVICE_MEMORY);
    ck_assert(strstr(err.text, "MiB"));
    in.hot_rows = 3;
    ck_assert_int_eq(sl_plan_make(&in, &p, &err), SL_ERR_INVALID);
    ck_assert(strstr(err.text, "layer 0"));
    fix_close(&f);
}
END_TEST

/* The dimensions of DeepSeek-V3.2: 61 layers of 656 B rows and 132 B keys; at 64K the capacity is five times
 * larger. */
START_TEST(plan_of_the_real_model)
{
    static sl_model_config cfg;
    cfg = (sl_model_config){.family = "deepseek_v32",
                            .n_layers = 61,
                            .attn.kv_lora_rank = 512,
                            .attn.qk_rope_head_dim = 64,
                            .index.head_dim = 128,
                            .index.n_heads = 64,
                            .index.topk = 2048,
                            .max_context = 163840,
                            .vocab_size = 129280};
    for (int l = 0; l < 61; l++)
        cfg.layer_has_indexer[l] = true;
    sl_plan_in in = {.cfg = &cfg,
                     .cache = sl_engine_cache_dims(&cfg, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL),
                     .algorithm = &sl_algo_dsa,
                     .hot_rows = 4096,
                     .max_context = 131072,
                     .max_step_tokens = 512,
                     .gpu_bytes = 139ull << 30,
                     .weight_bytes = 85ull << 30,
                     .host_bytes = 4096ull << 30};
    sl_plan p;
    ck_assert_int_eq(sl_plan_make(&in, &p, NULL), SL_OK);
    ck_assert_int_eq(p.row_bytes, 656);
    ck_assert_int_eq(p.page_bytes, 3076352);
    ck_assert_int_eq(p.width, 2048);
    ck_assert_int_eq(p.rows[2].context, 65536);
    ck_assert_uint_eq(p.rows[2].resident_bytes, 65536ull / 64 * 3076352);
    ck_assert_uint_eq(p.hot_rows_bytes, 61ull * (4096 + 64) * 656);
    ck_assert_int_gt(p.rows[2].resident_batch, 0);
    ck_assert_int_gt(p.rows[2].hierarchical_batch, 3 * p.rows[2].resident_batch);
    /* 128K: more than 4.5x */
    ck_assert_int_gt(p.rows[3].hierarchical_batch * 10, 45 * p.rows[3].resident_batch);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/api");
    TCase *c = tcase_create("api");
    tcase_set_timeout(c, 100);
    tcase_add_test(c, create_refuses);
    tcase_add_test(c, exhaustion_changes_nothing);
    tcase_add_test(c, wrong_steps);
    tcase_add_test(c, layer_hook_sees_the_rows);
    tcase_add_loop_test(c, goldens_hierarchical, 0, 4);
    tcase_add_test(c, statistics_add_up);
    tcase_add_test(c, plan_matches_engine);
    tcase_add_test(c, plan_of_the_real_model);
    suite_add_tcase(s, c);
    return run_suite(s);
}
