/*
 * The memory plan against what engines allocate: for every algorithm of the registry and every family, an engine is created
 * on a backend that counts the bytes of its device memory. They are those of the plan, up to the rounding of arrays, with hot
 * buffers and without. Pages of the plan are those of the host store.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/choose.h"
#include "engine/plan.h"
#include "kernels/backend_impl.h"
#include "kernels/scratch.h"
#include "model/sizes.h"
#include "model/synthetic.h"
#include "sparse/algorithm.h"
#include "sparse/channels.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/sparse/select_params.h"

/* How much more the plan may say, where a slot's share of an array is rounded up, and the array of all slots in the engine. */
#define ROUNDED(slots, layers) ((uint64_t)((slots) * (layers)*6 + 8) * 256)

enum { SEQS = 32, STEP = 40, CONTEXT = 448, HOT = 2, INDEX_PAGES = 17, ROW_PAGES = 11, TAIL = 64, ITEM = 4 };

/* The first of each family, and heads and rows of other sizes. */
static const struct {
    const char *dir;
    sl_row_format rows;
    int least; /* plans that are compared */
} models[] = {
    {"tests/golden/model/ds-yarn", SL_ROW_MLA_F32, 6},
    {"tests/golden/model/glm-share", SL_ROW_MLA_BF16, 6},
    {"tests/golden/model/ds-fp8", SL_ROW_MLA_FP8, 6},
    {"tests/golden/model/llama-rope3", SL_ROW_GQA_F32, 18},
    {"tests/golden/model/qwen2-g7", SL_ROW_GQA_FP8, 18},
    {"tests/golden/model/qwen3-d256", SL_ROW_GQA_BF16, 18},
    {"tests/golden/model/qwen4-ngram", SL_ROW_GQA_F32, 4},
    {"tests/golden/model/v4-flash", SL_ROW_GQA_F32, 2},
    {"tests/golden/model/v4-odd", SL_ROW_GQA_BF16, 2},
};

/* ---- a backend that counts ---- */

static sl_backend_desc counting;
static const sl_backend_desc *real;
static uint64_t taken; /* bytes of device memory since it was set to 0; frees are not counted */

static sl_status count_alloc(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err)
{
    if (kind == SL_MEM_DEVICE)
        taken += bytes;
    return real->alloc(be, kind, bytes, out, err);
}

static sl_backend *open_backend(void)
{
    sl_backend *be;
    sl_err err = {0};
    ck_assert_msg(sl_backend_create("cpu", &(sl_backend_opts){.threads = 1}, &be, &err) == SL_OK, "%s",
                  err.text);
    real = be->desc;
    counting = *real;
    counting.alloc = count_alloc;
    be->desc = &counting;
    return be;
}

/* ---- a model, its plan and its engines ---- */

typedef struct fixture {
    sl_backend *be;
    sl_model *model;
    const sl_model_config *cfg;
    int32_t *of;
    sl_channels channels; /* of double_sparsity: the first ones of each head */
} fixture;

static void open_fixture(fixture *f, int i)
{
    sl_err err = {0};
    const sl_model_opts o = {
        .row_format = models[i].rows, .act = SL_F32, .max_tokens = STEP, .max_logit_rows = STEP};
    *f = (fixture){.be = open_backend()};
    ck_assert_msg(sl_model_load(f->be, models[i].dir, &o, &f->model, &err) == SL_OK, "%s", err.text);
    f->cfg = sl_model_get_config(f->model);
    const int32_t heads = f->cfg->n_layers * f->cfg->attn.n_kv_heads, dim = f->cfg->attn.v_head_dim;
    f->of = calloc((size_t)(heads * dim + 1), sizeof *f->of);
    for (int32_t c = 0; c < heads * dim; c++)
        f->of[c] = c % dim;
    f->channels = (sl_channels){.n_layers = f->cfg->n_layers,
                                .kv_heads = f->cfg->attn.n_kv_heads,
                                .head_dim = dim,
                                .count = dim,
                                .hash = 1,
                                .of = f->of};
}

static void close_fixture(fixture *f)
{
    free(f->of);
    sl_model_destroy(f->model);
    sl_backend_destroy(f->be);
}

/* Small budgets, so that hot buffers are smaller than the context. False: the algorithm does not serve the model. */
static bool choose(const fixture *f, const sl_algo_desc *a, sl_plan_in *in, int i)
{
    const select_params keys = {.token_budget = 64,
                                .block_tokens = 16,
                                .prompt_budget = 96,
                                .window = 16,
                                .output_tokens = 32,
                                .cluster_window = 48,
                                .cluster_tokens = 20,
                                .top_pages = 8,
                                .top_channels = 8,
                                .recent_ratio = 0.5f};
    sl_err err = {0};
    *in = (sl_plan_in){.cfg = f->cfg,
                       .cache = sl_engine_cache_dims(f->cfg, models[i].rows, SL_INDEX_PLAIN),
                       .algorithm = a,
                       .tail_rows = TAIL,
                       .max_context = CONTEXT,
                       .max_step_tokens = STEP,
                       .max_seqs = SEQS,
                       .gpu_bytes = 1ull << 40,
                       .host_bytes = 1ull << 32};
    sl_status st;
    if (a->needs_indexer && f->cfg->attn.n_kv_heads)
        return false;
    if (a == &sl_algo_double_sparsity) {
        in->cache.select = select_options(
            a, &(select_params){.token_budget = 64, .heavy_channels = 8, .channels = &f->channels});
        st = SL_OK;
    } else {
        const sl_select_options values = select_options(a, &keys);
        st = sl_choose_selection(a, values.values, f->cfg, &in->gates, &in->cache.select, &err);
    }
    if (st == SL_OK)
        st = sl_algo_serves(a, &in->cache, &err);
    ck_assert_msg(st == SL_OK || st == SL_ERR_UNSUPPORTED, "%s: %s", a->name, err.text);
    return st == SL_OK;
}

static uint64_t allocated(const fixture *f, const sl_plan_in *in, const sl_plan *p, int32_t hot)
{
    sl_engine_opts o = {.algorithm = in->algorithm,
                        .select = in->cache.select,
                        .gates = in->gates,
                        .max_seqs = SEQS,
                        .max_hot_seqs = hot,
                        .max_step_tokens = STEP,
                        .max_item_tokens = in->max_item_tokens,
                        .max_context = CONTEXT,
                        .hot_rows = p->hot_rows,
                        .tail_rows = p->tail_rows,
                        .groups = 2, /* as on a GPU, which copies while it computes */
                        .index_pages = INDEX_PAGES,
                        .row_pages = ROW_PAGES};
    sl_geometry g;
    sl_arena *arena;
    sl_engine *e;
    sl_err err = {0};
    ck_assert_msg(sl_engine_geometry(f->cfg, &in->cache, in->algorithm, SL_LAYOUT_PAGE_FIRST,
                                     sl_model_fingerprint(f->model), &g, &err) == SL_OK,
                  "%s", err.text);
    ck_assert_int_eq(g.page_bytes, p->page_bytes);
    const sl_arena_opts ao = {.bytes = (uint64_t)(8 * p->page_bytes), .lock = SL_OFF, .numa_node = -1};
    ck_assert_msg(sl_arena_create(&g, &ao, &arena, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_arena_pages(arena), 8);
    taken = 0;
    ck_assert_msg(sl_engine_create(f->be, f->model, arena, &o, &e, &err) == SL_OK, "%s", err.text);
    const uint64_t bytes = taken;
    sl_engine_stats s;
    sl_engine_stats_get(e, &s);
    ck_assert_msg(s.device_bytes == bytes, "%s: the engine says that it has %llu bytes, it took %llu",
                  in->algorithm->name, (unsigned long long)s.device_bytes, (unsigned long long)bytes);
    sl_engine_destroy(e);
    sl_arena_destroy(arena);
    return bytes;
}

/* item: most tokens of a sequence in a step. */
static void compare(const fixture *f, const sl_algo_desc *a, int i, int32_t item, int *compared)
{
    sl_plan_in in;
    sl_plan p;
    sl_err err = {0};
    if (!choose(f, a, &in, i))
        return;
    if (item > 1)
        in.max_item_tokens = item, in.tail_rows = 3 * SL_PAGE_TOKENS;
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s, %s: %s", models[i].dir, a->name, err.text);
    /* the engine's own memory: scratch belongs to the backend */
    const uint64_t fixed = p.fixed_bytes - p.scratch_bytes + SEQS * p.state_device,
                   pools = INDEX_PAGES * p.index_page_device + ROW_PAGES * p.row_page_device,
                   plan = pools + HOT * (p.hot_rows_bytes + p.hot_meta_bytes) + fixed;
    const uint64_t hot = allocated(f, &in, &p, HOT), resident = allocated(f, &in, &p, 0);
    ck_assert_msg(hot <= plan && plan - hot <= ROUNDED(HOT, f->cfg->n_layers),
                  "%s, %s: %llu bytes with hot buffers, the plan says %llu", models[i].dir, a->name,
                  (unsigned long long)hot, (unsigned long long)plan);
    /* Without hot slots entries are in index pages; a plan for such an engine has as many of these as row pages. */
    const uint64_t most =
        pools + fixed + (strstr(models[i].dir, "v4-") ? (INDEX_PAGES - ROW_PAGES) * p.row_page_device : 0);
    ck_assert_msg(resident <= most, "%s, %s: %llu bytes without, the plan says %llu", models[i].dir, a->name,
                  (unsigned long long)resident, (unsigned long long)most);
    ck_assert_uint_le(p.algorithm_bytes + p.logit_bytes, fixed);
    ++*compared;
}

START_TEST(plans_are_what_engines_allocate)
{
    fixture f;
    int compared = 0;
    open_fixture(&f, _i);
    for (const char *const *name = sl_algo_names(); *name; name++)
        for (int32_t item = 1; item <= ITEM; item += ITEM - 1)
            compare(&f, sl_algo_find(*name), _i, item, &compared);
    ck_assert_int_ge(compared, models[_i].least);
    close_fixture(&f);
}
END_TEST

/* The hot buffer is planned for the lists of all tokens that a sequence has in a step, and more logits. */
START_TEST(several_tokens_of_a_sequence_are_planned)
{
    fixture f;
    sl_plan_in in;
    sl_plan one, several;
    sl_err err = {0};
    open_fixture(&f, 3);
    ck_assert(choose(&f, &sl_algo_quest, &in, 3));
    in.tail_rows = 3 * SL_PAGE_TOKENS, in.max_context = 16384, in.max_step_tokens = SEQS * ITEM;
    ck_assert_msg(sl_plan_make(&in, &one, &err) == SL_OK, "%s", err.text);
    in.max_item_tokens = ITEM;
    ck_assert_msg(sl_plan_make(&in, &several, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(one.width, several.width);
    ck_assert_int_eq(one.hot_rows, 2 * one.width);
    ck_assert_int_eq(several.hot_rows, (ITEM + 1) * one.width);
    ck_assert_uint_eq(several.logit_bytes, ITEM * one.logit_bytes);
    in.hot_rows = ITEM * one.width - 1; /* quest's rows are blocks of 16 tokens, so one block is missing */
    in.hot_rows -= in.hot_rows % 16;
    ck_assert_int_eq(sl_plan_make(&in, &several, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "tokens of a step") != NULL, "%s", err.text);
    close_fixture(&f);
}
END_TEST

/* Entries that are chosen are swapped in: a hierarchical request has those of its hot slot on the device, and index keys of all. */
START_TEST(chosen_entries_are_planned_as_rows)
{
    fixture f;
    sl_plan_in in;
    sl_plan p;
    sl_err err = {0};
    open_fixture(&f, 7);
    ck_assert(choose(&f, &sl_algo_dense, &in, 7));
    in.max_context = 16384;
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
    const sl_model_config *c = f.cfg;
    int32_t chosen = 0;
    for (int32_t l = 0; l < c->n_layers; l++)
        chosen += in.cache.classes[c->layer_class[l]].chosen > 0;
    ck_assert_int_gt(chosen, 0);
    const uint64_t entry = 4 * (uint64_t)c->attn.v_head_dim;
    ck_assert_uint_eq(p.row_page_device, (uint64_t)chosen * 16 * entry);
    ck_assert_uint_eq(p.hot_rows_bytes, (uint64_t)chosen * (2 * (uint64_t)c->entries.topk + 16) * entry);
    ck_assert_uint_lt(p.rows[0].hierarchical_bytes, p.rows[0].resident_bytes / 2);
    close_fixture(&f);
}
END_TEST

/* What is set aside grows with the number of requests, and no more than these are promised. */
START_TEST(state_is_for_all_requests)
{
    fixture f;
    sl_plan_in in;
    sl_plan p;
    sl_err err = {0};
    uint64_t last = 0;
    open_fixture(&f, 3);
    ck_assert(choose(&f, &sl_algo_cluster_kv, &in, 3));
    in.max_context = 16384, in.host_bytes = 1ull << 40;
    for (int32_t seqs = 2; seqs <= 8; seqs += 3) {
        in.max_seqs = seqs;
        ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
        ck_assert_uint_gt(p.algorithm_bytes, last + (1 << 20));
        ck_assert_int_eq(p.rows[0].hierarchical_batch, seqs);
        ck_assert_int_eq(p.rows[0].resident_batch, seqs);
        last = p.algorithm_bytes;
        char *text = sl_plan_text(&in, &p), says[64];
        snprintf(says, sizeof says, "for %d requests of 16384 tokens", seqs);
        ck_assert_msg(strstr(text, "cluster_kv takes") && strstr(text, says), "%s", text);
        free(text);
    }
    close_fixture(&f);
}
END_TEST

/* The bounds of rocket_kv are in index pages: a request takes those of what it keeps, not of the longest context. */
START_TEST(state_in_pages_is_planned_by_request)
{
    fixture f;
    sl_plan_in in;
    sl_plan p;
    sl_err err = {0};
    open_fixture(&f, 3);
    ck_assert(choose(&f, &sl_algo_rocket_kv, &in, 3));
    in.max_context = 131072;
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
    /* 16 pages of 4 tokens, of each KV head the largest and the smallest value of each channel, in e5m2 */
    const uint64_t page =
        (uint64_t)(f.cfg->n_layers * 16 * f.cfg->attn.n_kv_heads * 2 * f.cfg->attn.v_head_dim);
    ck_assert_uint_eq(p.index_page_device, page);
    /* 96 tokens of a prompt are kept, and 1,024 are generated: no more at 128K than at 16K */
    ck_assert_int_eq(p.index_tokens, 96 + SL_PLAN_GENERATED);
    ck_assert_uint_eq(p.rows[3].hierarchical_bytes - p.hot_rows_bytes - p.hot_meta_bytes,
                      (uint64_t)sl_pages_for(96 + SL_PLAN_GENERATED) * page);
    ck_assert_uint_eq(p.rows[3].hierarchical_bytes, p.rows[0].hierarchical_bytes);
    sl_engine_opts o = {0};
    ck_assert_msg(sl_plan_pools(&p, SL_HIERARCHICAL, 3, 4096, &o, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(o.index_pages, 64); /* one request may have all of its tokens in them */
    ck_assert_msg(sl_plan_pools(&p, SL_HIERARCHICAL, 30, 4096, &o, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(o.index_pages, 30 * sl_pages_for(96 + SL_PLAN_GENERATED));
    const uint64_t at_once = p.algorithm_bytes;
    in.max_context = 16384;
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_gt(at_once, p.algorithm_bytes); /* scores and tables, of one request or step */
    ck_assert_uint_lt(at_once - p.algorithm_bytes, 16 << 20);
    close_fixture(&f);
}
END_TEST

/* What a step of an engine asks for, of `tokens` tokens: the linear layers, and the ops that have most. */
typedef struct step {
    const sl_gpu *g;
    const sl_model_config *c;
    int32_t tokens;
    uint64_t plan;
} step;

static void planned(const step *s, sl_op op, const void *params, const char *what)
{
    const size_t bytes = sl_op_scratch(s->g, op, params);
    ck_assert_msg(bytes <= s->plan, "%s, %d tokens, %s: %zu bytes, planned %llu", s->c->family, s->tokens,
                  what, bytes, (unsigned long long)s->plan);
}

static void linear_is_planned(void *ctx, int64_t out, int64_t in, bool fp8)
{
    const step *s = ctx;
    const sl_linear_params p = {
        .w = {.out = (int32_t)out, .in = (int32_t)in, .dtype = fp8 ? SL_F8_E4M3 : SL_F32},
        .ld_x = (int32_t)in,
        .ld_out = (int32_t)out,
        .tokens = s->tokens,
        .fp8_acts = s->c->fp8_acts,
        .act = SL_BF16,
        .out_dtype = SL_BF16};
    planned(s, SL_OP_LINEAR, &p, "linear");
}

static void experts_are_planned(const step *s)
{
    const sl_weight w[] = {{.dtype = SL_BF16}, {.dtype = SL_F8_E4M3}};
    for (size_t i = 0; s->c->moe.n_routed && i < SL_COUNT(w); i++) {
        const sl_moe_params p = {.gate = &w[i],
                                 .up = &w[i],
                                 .down = &w[i],
                                 .tokens = s->tokens,
                                 .hidden = s->c->hidden_size,
                                 .inter = s->c->moe.intermediate_size,
                                 .experts = s->c->moe.n_routed,
                                 .top_k = s->c->moe.per_token,
                                 .fp8_acts = true,
                                 .act = SL_BF16};
        planned(s, SL_OP_MOE, &p, "moe");
    }
}

static void attention_is_planned(const step *s, const sl_cache_dims *d, int32_t context)
{
    const sl_seq_tables two = {.n_seqs = 2};
    const sl_sparse_attn_params latent = {
        .tokens = s->tokens, .lora = d->latent, .rope = d->rope, .format = d->rows->format};
    sl_gqa_attn_params p = {.tokens = s->tokens,
                            .heads = d->query_heads,
                            .kv_heads = d->kv_heads,
                            .dim = d->head_dim,
                            .format = d->rows->format,
                            .act = SL_BF16};
    planned(s, SL_OP_SPARSE_ATTN, &latent, "sparse_attn");
    for (p.k = 512; d->kv_heads && p.k <= context + 63;
         p.k = p.k < context / 2 ? 2 * p.k : p.k + context / 3) {
        p.seqs = NULL;
        planned(s, SL_OP_GQA_ATTN, &p, "gqa_attn, lists");
        p.seqs = &two;
        planned(s, SL_OP_GQA_ATTN, &p, "gqa_attn, prompts");
    }
}

/* Every op of the seam that selects, as a strategy may call it; plug-ins state more by sl_algo_desc.scratch. */
static void selection_is_planned(const step *s, const sl_cache_dims *d, const sl_algo_desc *a,
                                 int32_t context)
{
    if (d->kv_heads < 1 || (a->reads_all && !a->prompt_lists))
        return;
    for (int reduce = SL_GROUP_MAX; reduce <= SL_GROUP_UNION; reduce++) {
        const sl_bounds_scores_params b = {.heads = d->query_heads,
                                           .kv_heads = d->kv_heads,
                                           .dim = d->head_dim,
                                           .lists = reduce % 2 ? 1 : d->kv_heads,
                                           .ld_scores = context,
                                           .token_count = s->tokens,
                                           .reduce = (sl_group_reduce)reduce,
                                           .dtype = SL_I8};
        planned(s, SL_OP_BOUNDS_SCORES, &b, "bounds_scores");
    }
    const sl_window_votes_params v = {.heads = d->query_heads,
                                      .kv_heads = d->kv_heads,
                                      .tokens = context,
                                      .window = 32 < s->tokens ? 32 : s->tokens};
    planned(s, SL_OP_WINDOW_VOTES, &v, "window_votes");
    const sl_prompt_scores_params x = {.n = (s->tokens + 63) / 64,
                                       .heads = d->query_heads,
                                       .kv_heads = d->kv_heads,
                                       .dim = d->head_dim,
                                       .max_pos = context - 1};
    planned(s, SL_OP_PROMPT_SCORES, &x, "prompt_scores");
    const sl_topk_params t = {.token_count = 1, .k = 2048, .ld_scores = context, .lists = d->kv_heads};
    planned(s, SL_OP_TOPK, &t, "topk");
}

/* Whatever a step has, no op asks for more scratch memory than the plan sets aside: for the presets of every family, with
 * strategies that select in each way. The ops of engines are held to the same plan in every test of this room (fix.c). */
START_TEST(scratch_of_every_op_is_planned)
{
    static const sl_algo_desc *const algorithms[] = {&sl_algo_dense, &sl_algo_quest, &sl_algo_snapkv,
                                                     &sl_algo_xattention, &sl_algo_dsa};
    static const int32_t steps[] = {1, 64, 257, 512, 4096, 8190};
    const sl_gpu h200 = sl_gpu_of(90, 132, 227 << 10);
    sl_model_config c;
    sl_plan p;
    sl_err err = {0};
    int compared = 0;

    for (size_t m = 0; sl_synthetic_name(m); m++)
        for (size_t i = 0; i < SL_COUNT(algorithms) * SL_COUNT(steps); i++) {
            const sl_algo_desc *a = algorithms[i % SL_COUNT(algorithms)];
            const int32_t most = steps[i / SL_COUNT(algorithms)];
            ck_assert_msg(sl_synthetic_config(sl_synthetic_name(m), 4, &c, &err) == SL_OK, "%s", err.text);
            const sl_row_format rows = c.attn.n_kv_heads ? SL_ROW_GQA_BF16 : SL_ROW_MLA_BF16;
            const sl_plan_in in = {.cfg = &c,
                                   .cache = sl_engine_cache_dims(&c, rows, SL_INDEX_PLAIN),
                                   .algorithm = a,
                                   .max_context = c.max_context < 131072 ? c.max_context : 131072,
                                   .max_step_tokens = most,
                                   .max_seqs = 20,
                                   .gpu_bytes = 1ull << 40,
                                   .host_bytes = 1ull << 40};
            if (sl_plan_make(&in, &p, &err) != SL_OK) /* the strategy does not serve the model */
                continue;
            for (int32_t t = most; t > 0; t = t > most - 5 ? t - 1 : t / 2) {
                step s = {&h200, &c, t, p.scratch_bytes};
                sl_model_each_linear(&c, linear_is_planned, &s);
                experts_are_planned(&s);
                attention_is_planned(&s, &in.cache, p.max_context);
                selection_is_planned(&s, &in.cache, a, p.max_context);
                compared++;
            }
        }
    ck_assert_int_gt(compared, 300);
}
END_TEST

/* A hot buffer cannot hold 128K rows. Algorithms that read everything are then planned as what they are: resident. */
START_TEST(lists_longer_than_a_hot_buffer_are_resident)
{
    static const sl_algo_desc *const all[] = {&sl_algo_dense, &sl_algo_skip_softmax, &sl_algo_xattention};
    fixture f;
    sl_plan_in in;
    sl_plan p;
    sl_err err = {0};
    open_fixture(&f, 3);
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        ck_assert(choose(&f, all[i], &in, 3));
        in.max_context = 65534;
        ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
        ck_assert_int_eq(p.resident_layers, 0);
        in.max_context = 131072;
        ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s: %s", all[i]->name, err.text);
        ck_assert_int_eq(p.resident_layers, f.cfg->n_layers);
        ck_assert_uint_eq(p.rows[3].hierarchical_bytes - p.hot_meta_bytes, p.rows[3].resident_bytes);
        ck_assert_int_eq(p.rows[3].resident_batch > 0, p.rows[3].hierarchical_batch > 0);
        char *text = sl_plan_text(&in, &p);
        ck_assert_msg(strstr(text, "hold the whole context, 131072 tokens"), "%s", text);
        free(text);
        in.hot_rows = 1000; /* as asked for: refused */
        ck_assert_int_eq(sl_plan_make(&in, &p, &err), SL_ERR_UNSUPPORTED);
    }
    close_fixture(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/plan");
    TCase *t = tcase_create("plan");
    tcase_set_timeout(t, 100);
    tcase_add_loop_test(t, plans_are_what_engines_allocate, 0, SL_COUNT(models));
    tcase_add_test(t, several_tokens_of_a_sequence_are_planned);
    tcase_add_test(t, chosen_entries_are_planned_as_rows);
    tcase_add_test(t, state_is_for_all_requests);
    tcase_add_test(t, state_in_pages_is_planned_by_request);
    tcase_add_test(t, scratch_of_every_op_is_planned);
    tcase_add_test(t, lists_longer_than_a_hot_buffer_are_resident);
    suite_add_tcase(s, t);
    return run_suite(s);
}
