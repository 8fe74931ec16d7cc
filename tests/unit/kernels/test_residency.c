/*
 * The promise of hierarchical decode at op level: thousands of steps of append, resolve, gather and attention
 * over hot buffers give the same bits as the same steps over resident rows. The hot rows start as NaN and
 * evicted rows are overwritten with NaN before the gather, so a row that was not fetched would be noticed.
 * Runs on whatever SLUICE_TEST_BACKEND names (cpu).
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "tests/unit/kernels/cf.h"
#include "tests/unit/run_suite.h"

enum {
    S = 3,
    LORA = 32,
    ROPE = 8,
    HEADS = 2,
    K = 24,
    HOT = 30,
    TAIL = 4,
    TOKENS = 1600,
    FIRST = 40,
    LD = TOKENS / 64
};

typedef struct world {
    sl_backend *be;
    sl_seq_tables seqs; /* both kinds: sequence s hierarchical, S + s its resident twin */
    sl_kv_append_params kv;
    sl_resolve_params res;
    uint32_t step;
    sl_gather_params gather;
    sl_sparse_attn_params attn;
    size_t row;
    void *mem[64];
    int n;
} world;

static void *dev(world *w, sl_mem_kind kind, size_t bytes, const void *from)
{
    void *p = NULL;

    ck_assert_int_eq(sl_be_alloc(w->be, kind, bytes, &p, NULL), SL_OK);
    w->mem[w->n++] = p;
    if (from)
        ck_assert_int_eq(sl_be_copy(w->be, p, from, bytes, NULL), SL_OK);
    else
        ck_assert_int_eq(sl_be_fill(w->be, p, 0xff, bytes, NULL), SL_OK);
    ck_assert_int_eq(sl_be_sync(w->be, NULL), SL_OK);
    return p;
}

static void put(world *w, const void *dst, const void *src, size_t n)
{
    ck_assert_int_eq(sl_be_copy(w->be, (void *)(uintptr_t)dst, src, n, NULL), SL_OK);
    ck_assert_int_eq(sl_be_sync(w->be, NULL), SL_OK);
}

static void run(world *w, sl_op op, const void *params)
{
    sl_err err = {0};

    ck_assert_msg(sl_be_run(w->be, op, params, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_be_sync(w->be, &err) == SL_OK, "%s", err.text);
}

static void make(world *w, sl_row_format format, sl_evict_policy policy)
{
    static int32_t pages[2 * S][LD], slot[2 * S];
    static float cs[TOKENS][ROPE], norm[LORA];
    const char *name = getenv("SLUICE_TEST_BACKEND");
    sl_hot_reset_params reset = {.slot = -1, .hot_slots = S, .hot_rows = HOT};

    memset(w, 0, sizeof(*w));
    ck_assert_int_eq(sl_backend_create(name ? name : "cpu", NULL, &w->be, NULL), SL_OK);
    for (int s = 0; s < 2 * S; s++) {
        slot[s] = s < S ? s : -1;
        for (int i = 0; i < LD; i++)
            pages[s][i] = (i * 2 * S + s) ^ 1;
    }
    for (int p = 0; p < TOKENS; p++)
        for (int i = 0; i < ROPE / 2; i++) {
            cs[p][2 * i] = (float)cos(p / pow(100, i));
            cs[p][2 * i + 1] = (float)sin(p / pow(100, i));
        }
    for (int i = 0; i < LORA; i++)
        norm[i] = 1 + cf_uniform(1, i) / 2;
    w->row = (size_t)sl_row_bytes(format, LORA, ROPE);
    w->seqs = (sl_seq_tables){.n_tokens = 2 * S, .n_seqs = 2 * S, .ld = LD};
    w->seqs.host_pages = w->seqs.row_pages = w->seqs.index_pages =
        dev(w, SL_MEM_DEVICE, sizeof(pages), pages);
    w->seqs.hot_slot = dev(w, SL_MEM_DEVICE, sizeof(slot), slot);
    w->seqs.token_seq = dev(w, SL_MEM_DEVICE, sizeof(int32_t) * 2 * S, NULL);
    w->seqs.token_pos = dev(w, SL_MEM_DEVICE, sizeof(int32_t) * 2 * S, NULL);
    w->kv = (sl_kv_append_params){
        .ld_kv = LORA + ROPE, .lora = LORA, .rope = ROPE, .eps = 1e-6f, .format = format};
    w->kv.kv = dev(w, SL_MEM_DEVICE, 4 * 2 * S * (LORA + ROPE), NULL);
    w->kv.norm = dev(w, SL_MEM_DEVICE, sizeof(norm), norm);
    w->kv.cos_sin = dev(w, SL_MEM_DEVICE, sizeof(cs), cs);
    w->kv.seqs = &w->seqs;
    w->kv.rows = (sl_row_view){
        .row_bytes = (int64_t)w->row, .hot_base = 2 * S * LD * 64, .hot_rows = HOT, .tail_rows = TAIL};
    w->kv.rows.base = dev(w, SL_MEM_DEVICE, w->row * (2 * S * LD * 64 + S * (HOT + TAIL)), NULL);
    w->kv.host.row_stride = (int64_t)w->row;
    w->kv.host.page_stride = 64 * (int64_t)w->row;
    w->kv.host.base = dev(w, SL_MEM_HOST, w->row * 2 * S * LD * 64, NULL);
    w->res = (sl_resolve_params){
        .seqs = &w->seqs, .rows = w->kv.rows, .miss_cap = S * K, .k = K, .ld_ids = K, .policy = policy};
    w->res.ids = dev(w, SL_MEM_DEVICE, 4 * 2 * S * K, NULL);
    w->res.phys = dev(w, SL_MEM_DEVICE, 4 * 2 * S * K, NULL);
    w->res.miss_src = dev(w, SL_MEM_DEVICE, 8 * S * K, NULL);
    w->res.miss_dst = dev(w, SL_MEM_DEVICE, 4 * S * K, NULL);
    w->res.miss_count = dev(w, SL_MEM_DEVICE, 4, NULL);
    w->res.step = dev(w, SL_MEM_DEVICE, 4, NULL);
    w->res.hot.max_tokens = TOKENS;
    w->res.hot.slot_of = dev(w, SL_MEM_DEVICE, 2 * S * TOKENS, NULL);
    w->res.hot.token_of = dev(w, SL_MEM_DEVICE, 4 * S * HOT, NULL);
    w->res.hot.stamp = dev(w, SL_MEM_DEVICE, 4 * S * HOT, NULL);
    w->res.hot.prev = dev(w, SL_MEM_DEVICE, 2 * S * (HOT + 1), NULL);
    w->res.hot.next = dev(w, SL_MEM_DEVICE, 2 * S * (HOT + 1), NULL);
    w->res.hot.cursor = dev(w, SL_MEM_DEVICE, 4 * S, NULL);
    w->res.hot.counters = dev(w, SL_MEM_DEVICE, 16 * S, NULL);
    w->gather = (sl_gather_params){.rows = w->kv.rows, .host = w->kv.host, .miss_src = w->res.miss_src};
    w->gather.miss_dst = w->res.miss_dst;
    w->gather.miss_count = w->res.miss_count;
    w->gather.miss_cap = w->res.miss_cap;
    w->attn = (sl_sparse_attn_params){
        .phys = w->res.phys, .rows = w->kv.rows, .tokens = 2 * S, .heads = HEADS, .lora = LORA};
    w->attn.rope = ROPE;
    w->attn.k = w->attn.ld_ids = K;
    w->attn.scale = 0.3f;
    w->attn.format = format;
    w->attn.ql = dev(w, SL_MEM_DEVICE, 4 * 2 * S * HEADS * (LORA + ROPE), NULL);
    w->attn.o = dev(w, SL_MEM_DEVICE, 4 * 2 * S * HEADS * LORA, NULL);
    reset.hot = w->res.hot;
    run(w, SL_OP_HOT_RESET, &reset);
}

static int by_id(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* The newest token and K - 1 others: some from the last steps, some from anywhere. */
static void choose(int32_t *ids, int32_t pos, int s)
{
    int n = 0;

    for (int i = 0; i < K; i++)
        ids[i] = -1;
    for (int i = 0; n < K && n <= pos; i++) {
        uint64_t h = cf_hash(500 + (uint32_t)s, (i % 3 ? pos / 7 : pos) * 4096 + i);
        int32_t id = i == 0 ? pos : (int32_t)(h % (uint64_t)(pos + 1));
        bool twice = false;

        for (int j = 0; j < n; j++)
            twice |= ids[j] == id;
        if (!twice)
            ids[n++] = id;
    }
    qsort(ids, (size_t)n, 4, by_id);
}

/* One step at position pos of every sequence; tokens of the pairs get the same inputs. */
static void step(world *w, int32_t pos, float out[2 * S][HEADS * LORA])
{
    static float kv[2 * S][LORA + ROPE], q[2 * S][HEADS * (LORA + ROPE)];
    int32_t seq[2 * S], at[2 * S], ids[2 * S][K];

    for (int s = 0; s < 2 * S; s++) {
        seq[s] = s;
        at[s] = pos;
        for (int i = 0; i < LORA + ROPE; i++)
            kv[s][i] = cf_uniform(10 + (uint32_t)(s % S), (int64_t)pos * 4096 + i);
        for (int i = 0; i < HEADS * (LORA + ROPE); i++)
            q[s][i] = 2 * cf_uniform(20 + (uint32_t)(s % S), (int64_t)pos * 4096 + i);
        choose(ids[s], pos, s % S);
    }
    put(w, w->seqs.token_seq, seq, sizeof(seq));
    put(w, w->seqs.token_pos, at, sizeof(at));
    put(w, w->kv.kv, kv, sizeof(kv));
    put(w, w->attn.ql, q, sizeof(q));
    put(w, w->res.ids, ids, sizeof(ids));
    run(w, SL_OP_KV_APPEND, &w->kv);
    if (pos < FIRST)
        return;
    w->step++;
    put(w, (void *)(uintptr_t)w->res.step, &w->step, 4);
    run(w, SL_OP_RESOLVE, &w->res);
    {
        int32_t count = 0, dst[S * K];

        put(w, &count, w->res.miss_count, 4);
        ck_assert(count >= 0 && count <= S * K);
        put(w, dst, w->res.miss_dst, 4 * (size_t)count);
        for (int i = 0; i < count; i++)
            ck_assert_int_eq(sl_be_fill(w->be, w->kv.rows.base + (size_t)dst[i] * w->row, 0xff, w->row, NULL),
                             SL_OK);
    }
    run(w, SL_OP_GATHER, &w->gather);
    run(w, SL_OP_SPARSE_ATTN, &w->attn);
    put(w, out, w->attn.o, sizeof(float) * 2 * S * HEADS * LORA);
}

static const struct {
    sl_row_format format;
    sl_evict_policy policy;
} kinds[] = {{SL_ROW_MLA_F32, SL_EVICT_LRU},
             {SL_ROW_MLA_BF16, SL_EVICT_CLOCK},
             {SL_ROW_MLA_FP8, SL_EVICT_LRU},
             {SL_ROW_MLA_FP8, SL_EVICT_CLOCK}};

START_TEST(hot_rows_give_the_bits_of_resident_rows)
{
    static float out[2 * S][HEADS * LORA];
    uint32_t counters[S][4];
    world w;

    make(&w, kinds[_i].format, kinds[_i].policy);
    for (int32_t pos = 0; pos < TOKENS; pos++) {
        step(&w, pos, out);
        for (int s = 0; pos >= FIRST && s < S; s++) {
            ck_assert_msg(memcmp(out[s], out[S + s], sizeof(out[s])) == 0,
                          "sequence %d differs at position %d", s, pos);
            for (int i = 0; i < HEADS * LORA; i++)
                ck_assert(isfinite(out[s][i]));
        }
    }
    put(&w, counters, w.res.hot.counters, sizeof(counters));
    for (int s = 0; s < S; s++) { /* every path was used, and every id was counted once */
        ck_assert_uint_gt(counters[s][0], 1000);
        ck_assert_uint_gt(counters[s][1], 1000);
        ck_assert_uint_eq(counters[s][2], counters[s][1] - HOT);
        ck_assert_uint_gt(counters[s][3], 1000);
        ck_assert_uint_eq(counters[s][0] + counters[s][1] + counters[s][3], (TOKENS - FIRST) * K);
    }
    while (w.n > 0)
        sl_be_free(w.be, SL_MEM_DEVICE, w.mem[--w.n]);
    sl_backend_destroy(w.be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels/residency");
    TCase *tc = tcase_create("residency");

    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, hot_rows_give_the_bits_of_resident_rows, 0, SL_COUNT(kinds));
    suite_add_tcase(s, tc);
    return run_suite(s);
}
