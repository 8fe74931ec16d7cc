/*
 * The meter against a restatement in double precision that reads the keys before they are encoded: rows of one token and
 * of blocks, all heads together and by KV head, latent rows; shares of the mass, and bytes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/reads.h"
#include "kernels/formats.h"
#include "tests/unit/run_suite.h"

enum { KV = 2, GROUP = 3, HEADS = KV * GROUP, DIM = 8, N = 150, PAGES = 3, MOST = 512 };

static float keys[KV][N][DIM], queries[HEADS][DIM];
static const int32_t page_of[PAGES] = {2, 0, 1};

static float uniform(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1;
}

static void fill(void)
{
    uint32_t state = 5;
    float *k = &keys[0][0][0], *q = &queries[0][0];
    for (int i = 0; i < KV * N * DIM; i++)
        k[i] = 2 * uniform(&state);
    for (int i = 0; i < HEADS * DIM; i++)
        q[i] = 2 * uniform(&state);
}

/* Whether KV head g selected block b. */
static bool wanted(int32_t g, int32_t b)
{
    return b == 0 || (b * 7 + g * 3) % 5 < 2;
}

/* The shares by definition. lists 1: every head has the list of head 0. */
static sl_eval_reads expected(int32_t lists, int32_t block, float scale)
{
    sl_eval_reads r = {0};
    for (int32_t h = 0; h < HEADS; h++) {
        double p[N], sum = 0, max = -1e300;
        for (int32_t j = 0; j < N; j++) {
            p[j] = 0;
            for (int32_t i = 0; i < DIM; i++)
                p[j] += (double)queries[h][i] * (double)keys[h / GROUP][j][i];
            p[j] *= (double)scale;
            max = p[j] > max ? p[j] : max;
        }
        for (int32_t j = 0; j < N; j++)
            sum += p[j] = exp(p[j] - max);
        r.all += 1;
        for (int32_t j = 0; j < N; j++) {
            bool in = wanted(lists > 1 ? h / GROUP : 0, j / block), middle = j >= 4 && j < N - 64;
            r.kept += in ? p[j] / sum : 0;
            r.middle += middle ? p[j] / sum : 0;
            r.middle_kept += in && middle ? p[j] / sum : 0;
        }
    }
    return r;
}

/* Lists of all KV heads; returns the entries. */
static int32_t make_lists(int32_t lists, int32_t block, int32_t k, int32_t *ids)
{
    int32_t entries = 0;
    for (int32_t i = 0; i < lists * k; i++)
        ids[i] = -1;
    for (int32_t g = 0; g < lists; g++)
        for (int32_t b = 0, n = 0; b * block < N; b++)
            if (wanted(g, b))
                ids[g * k + n++] = b, entries++;
    return entries;
}

static void compare(const sl_eval_reads *got, const sl_eval_reads *want)
{
    ck_assert_double_eq_tol(got->all, want->all, 1e-12);
    ck_assert_double_eq_tol(got->kept, want->kept, 1e-5);
    ck_assert_double_eq_tol(got->middle, want->middle, 1e-5);
    ck_assert_double_eq_tol(got->middle_kept, want->middle_kept, 1e-5);
    ck_assert(sl_eval_mass(got) > 0.05 && sl_eval_mass(got) < 0.95); /* the case is not trivial */
}

static void set_row(uint8_t *base, int32_t lists, int32_t block, int64_t row_bytes)
{
    int32_t heads = lists > 1 ? 1 : KV, slots = heads * block, per_page = SL_PAGE_TOKENS / block;
    const float zero[KV * DIM] = {0};
    for (int32_t j = 0; j < N; j++)
        for (int32_t g = 0; g < KV; g += heads) {
            int64_t at =
                ((int64_t)page_of[j / SL_PAGE_TOKENS] * per_page + j % SL_PAGE_TOKENS / block) * lists + g;
            float k[KV * DIM];
            for (int32_t h = 0; h < heads; h++)
                memcpy(k + h * DIM, keys[g + h][j], sizeof keys[g][j]);
            sl_gqa_row_encode(SL_ROW_GQA_F32, slots, DIM, j % block * heads, heads, k, zero,
                              base + at * row_bytes);
        }
}

/* The cache shape of a plane of rows and one of metadata, of 32 bytes per token. */
static sl_cache_shape shape_with_meta(sl_plane_role role)
{
    sl_cache_shape s = {.n_planes = 2};
    s.planes[0] = (sl_cache_plane){.role = SL_PLANE_ROWS, .heads = 1, .unit_tokens = 1};
    s.planes[1] = (sl_cache_plane){.role = role, .heads = 1, .unit_tokens = 1, .n_parts = 1};
    s.planes[1].parts[0] = (sl_cache_part){.dtype = SL_F32, .per = SL_PER_TOKEN, .count = 8};
    return s;
}

static void check_gqa(int32_t lists, int32_t log2_block)
{
    const int32_t block = 1 << log2_block, k = N, heads = lists > 1 ? 1 : KV;
    const int64_t row_bytes = sl_gqa_row_bytes(SL_ROW_GQA_F32, heads * block, DIM);
    const int32_t per_page = SL_PAGE_TOKENS / block, zero = 0, pos = N - 1;
    uint8_t *base = calloc((size_t)PAGES * (size_t)per_page * (size_t)lists, (size_t)row_bytes);
    int32_t *ids = malloc((size_t)lists * (size_t)k * sizeof *ids);
    const int32_t entries = make_lists(lists, block, k, ids);
    set_row(base, lists, block, row_bytes);
    sl_seq_tables seqs = {.n_tokens = 1,
                          .n_seqs = 1,
                          .ld = PAGES,
                          .token_seq = &zero,
                          .token_pos = &pos,
                          .host_pages = page_of};
    sl_attn_call call = {.kind = SL_ATTN_GQA, .seqs = &seqs};
    call.gqa.attn = (sl_gqa_attn_params){.q = &queries[0][0],
                                         .heads = HEADS,
                                         .kv_heads = KV,
                                         .dim = DIM,
                                         .scale = 0.3f,
                                         .format = SL_ROW_GQA_F32};
    sl_coord_layer layer = {
        .rows = {.row_bytes = row_bytes, .heads = lists > 1 ? KV : 0, .block_log2 = log2_block},
        .host_rows = {
            .base = base, .page_stride = per_page * lists * row_bytes, .row_stride = lists * row_bytes}};
    sl_coord_seen seen = {.call = &call,
                          .layer = &layer,
                          .ids = ids,
                          .count = 1,
                          .lists = lists,
                          .k = k,
                          .block_log2 = log2_block};
    const sl_cache_shape shape = shape_with_meta(SL_PLANE_META);
    const sl_cache_dims dims = {0};
    sl_eval_meter *m = sl_eval_meter_create(&sl_algo_quest, &dims, &shape, GROUP, MOST);
    sl_coord_probe probe = sl_eval_meter_probe(m);
    probe.seen(probe.ctx, &seen);
    sl_eval_reads got = sl_eval_meter_take(m), want = expected(lists, block, 0.3f);
    compare(&got, &want);
    ck_assert_uint_eq(got.steps, 1);
    ck_assert_uint_eq(got.row_bytes, (uint64_t)entries * (uint64_t)row_bytes);
    ck_assert_uint_eq(got.meta_bytes, 32u * N);
    seqs.n_tokens = 2; /* a step of a prompt */
    probe.seen(probe.ctx, &seen);
    got = sl_eval_meter_take(m);
    ck_assert_uint_eq(got.steps, 0);
    ck_assert_double_eq(sl_eval_mass(&got), -1);
    sl_eval_meter_destroy(m);
    free(ids);
    free(base);
}

START_TEST(keys_by_head)
{
    check_gqa(1, 0);
    check_gqa(1, 4);
    check_gqa(KV, 0);
    check_gqa(KV, 4);
}
END_TEST

/* Latent rows: one key for all heads, here the keys of KV head 0. */
START_TEST(latent_rows)
{
    static uint8_t base[PAGES * SL_PAGE_TOKENS][4 * DIM];
    const int32_t zero = 0, pos = N - 1;
    int32_t ids[N];
    memcpy(keys[1], keys[0], sizeof keys[0]);
    const int32_t entries = make_lists(1, 1, N, ids);
    for (int32_t j = 0; j < N; j++)
        sl_row_encode(SL_ROW_MLA_F32, 6, 2, keys[0][j],
                      base[page_of[j / SL_PAGE_TOKENS] * SL_PAGE_TOKENS + j % SL_PAGE_TOKENS]);
    const sl_seq_tables seqs = {.n_tokens = 1,
                                .n_seqs = 1,
                                .ld = PAGES,
                                .token_seq = &zero,
                                .token_pos = &pos,
                                .host_pages = page_of};
    sl_attn_call call = {.kind = SL_ATTN_MLA, .seqs = &seqs};
    call.mla.attn = (sl_sparse_attn_params){
        .ql = &queries[0][0], .heads = HEADS, .lora = 6, .rope = 2, .scale = 0.3f, .format = SL_ROW_MLA_F32};
    const sl_coord_layer layer = {
        .rows = {.row_bytes = 4 * DIM},
        .host_rows = {.base = base[0], .page_stride = sizeof base / PAGES, .row_stride = 4 * DIM}};
    const sl_coord_seen seen = {.call = &call, .layer = &layer, .ids = ids, .count = 1, .lists = 1, .k = N};
    const sl_cache_shape shape = shape_with_meta(SL_PLANE_INDEX);
    const sl_cache_dims dims = {0};
    sl_eval_meter *m = sl_eval_meter_create(&sl_algo_streaming_llm, &dims, &shape, HEADS, MOST);
    sl_coord_probe probe = sl_eval_meter_probe(m);
    probe.seen(probe.ctx, &seen);
    const sl_eval_reads got = sl_eval_meter_take(m), want = expected(1, 1, 0.3f);
    compare(&got, &want);
    ck_assert_uint_eq(got.row_bytes, 4u * DIM * (uint64_t)entries);
    ck_assert_uint_eq(got.meta_bytes, 0); /* a window does not read the model's index keys */
    sl_eval_meter_destroy(m);
    fill();
}
END_TEST

/* 4 clusters of 16 channels and 300 labels for each of 3 KV heads; 32 centroids of each channel, and 2 codes a token. */
START_TEST(metadata_outside_of_the_planes)
{
    sl_cache_dims d = {.kv_heads = 3, .head_dim = 16};
    ck_assert_int_eq(sl_algo_select(&sl_algo_cluster_kv, "cluster_tokens=80", &d.select, NULL), SL_OK);
    ck_assert_uint_eq(sl_algo_cluster_kv.query_bytes(&d, 300), 3 * (4 * 16 * 4 + 300 * 2));
    ck_assert_int_eq(sl_algo_select(&sl_algo_pq_cache, "n_subvec=2:n_subbits=5", &d.select, NULL), SL_OK);
    ck_assert_uint_eq(sl_algo_pq_cache.query_bytes(&d, 300), 3 * (32 * 16 * 4 + 300 * 2));
}
END_TEST

int main(void)
{
    fill();
    Suite *s = suite_create("eval reads");
    TCase *t = tcase_create("reads");
    tcase_add_test(t, keys_by_head);
    tcase_add_test(t, latent_rows);
    tcase_add_test(t, metadata_outside_of_the_planes);
    suite_add_tcase(s, t);
    return run_suite(s);
}
