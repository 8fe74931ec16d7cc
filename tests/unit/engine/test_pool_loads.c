/*
 * Loads of one device pool (sl_engine_opts.pool_bytes), for families whose layers keep states: many short sequences, few long ones,
 * and a mix that changes, in the same engine and memory. Both extremes have as many sequences as the plan says, which no fixed
 * division could have; every logit is the one of an engine with room for everything; nothing is ever taken beyond the pool, and what
 * does not fit is refused and changes nothing. The CPU's spaces make an access to memory that a sequence does not hold a crash.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "kernels/space.h"
#include "tests/unit/engine/fix.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/model/"

enum { LONG = 576, SHORT = 40, TEXTS = 3, SEQS = 160, CHUNK = 64, AT_ONCE = 10, STEPS = 600 };

static const struct {
    const char *dir, *algorithm;
    sl_row_format rows;
} cases[] = {
    {GOLDEN "qwen4-odd", "pooled", SL_ROW_GQA_F32},
    {GOLDEN "glm5-flash", "pooled", SL_ROW_MLA_F32},
    {GOLDEN "v4-flash", "dense", SL_ROW_GQA_F32},
};

typedef struct text {
    fix_text t;
    int32_t n;
} text;

typedef struct run {
    fix_run r;
    const text *of;
    bool hot;
} run;

static text texts[2][TEXTS]; /* long, short */
static run runs[SEQS];
static fix f;

static fix_opts options(int i)
{
    return (fix_opts){.dir = cases[i].dir,
                      .rows = cases[i].rows,
                      .algorithm = cases[i].algorithm,
                      .max_tokens = SEQS,
                      .max_context = LONG + SL_PAGE_TOKENS,
                      .hot_rows = 72,
                      .tail_rows = 3,
                      .threads = 1};
}

/* The logits after every token, of an engine with room. */
static void make_texts(int i)
{
    fix_opts o = options(i);
    fix_open(&f, &o);
    for (int k = 0; k < 2 * TEXTS; k++) {
        text *x = &texts[k / TEXTS][k % TEXTS];
        fix_run r = {0};
        x->n = k < TEXTS ? LONG - 7 * k : SHORT - k;
        fix_prompt(&f, &x->t, x->n, (uint64_t)(i * 100 + k + 1));
        fix_seq_open(&f, &r, SL_RESIDENT, 0, x->n);
        fix_feed(&f, &r, &x->t, x->n, 1);
        fix_seq_close(&f, &r, false);
    }
    fix_close(&f);
}

static sl_plan plan_of(int i, sl_residency mode, uint64_t pool)
{
    fix_opts o = options(i);
    sl_plan p;
    sl_err err = {0};
    fix_open(&f, &o);
    sl_plan_in in = {.cfg = f.cfg,
                     .cache = sl_engine_cache_dims(f.cfg, f.o.rows, f.o.index),
                     .algorithm = f.eo.algorithm,
                     .hot_rows = o.hot_rows,
                     .tail_rows = o.tail_rows,
                     .max_context = o.max_context,
                     .max_step_tokens = SEQS,
                     .max_seqs = SEQS,
                     .pool_unit = sl_space_unit(f.be),
                     .gpu_bytes = pool ? pool : UINT64_MAX / 2,
                     .host_bytes = 1ull << 40};
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(p.pool_unit, in.pool_unit);
    if (pool) /* what is fixed comes in addition */
        p.cache_bytes = pool + (mode == SL_HIERARCHICAL ? SEQS * p.hot_meta_bytes : 0);
    fix_close(&f);
    return p;
}

static uint64_t bytes_of(const sl_plan *p, sl_residency mode, int32_t tokens)
{
    const uint64_t pages = (uint64_t)sl_pages_for(tokens);
    return p->state_device + pages * p->index_page_device +
           (mode == SL_RESIDENT ? pages * p->row_page_device : p->hot_rows_bytes);
}

/* An engine whose pool holds AT_ONCE long sequences. */
static uint64_t open_pool(int i, sl_residency mode, sl_plan *plan)
{
    fix_opts o = options(i);
    sl_err err = {0};
    *plan = plan_of(i, mode, 0);
    const uint64_t pool = plan->pool_edges + AT_ONCE * bytes_of(plan, mode, LONG);
    *plan = plan_of(i, mode, pool);
    sl_engine_opts pools = {0};
    ck_assert_msg(sl_plan_pools(plan, mode, SEQS, o.max_context, &pools, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_le(pools.pool_bytes, pool);
    ck_assert_uint_gt(pools.pool_bytes + plan->pool_unit, pool);
    o.max_seqs = SEQS, o.max_hot = pools.max_hot_seqs;
    o.index_pages = pools.index_pages, o.row_pages = pools.row_pages;
    o.pool_bytes = pools.pool_bytes;
    o.host_pages = SEQS * sl_pages_for(LONG) / 4;
    fix_open(&f, &o);
    return pools.pool_bytes;
}

/* Nothing is held beyond the pool; returns what is free. */
static uint64_t room(void)
{
    sl_engine_stats s;
    sl_engine_stats_get(f.engine, &s);
    MUST(s.pool_free <= s.pool_bytes && s.kv_bytes == s.pool_bytes &&
         s.kv_bytes_used == s.pool_bytes - s.pool_free);
    return s.pool_free;
}

/* False: it does not fit, and nothing has changed. */
static bool open_run(run *x, const text *of, bool hot, int32_t tokens)
{
    sl_err err = {0};
    const uint64_t before = room();
    *x = (run){.of = of, .hot = hot};
    fix_grow(&f, &x->r, tokens);
    sl_status st = sl_engine_seq_open(f.engine, hot ? SL_HIERARCHICAL : SL_RESIDENT, x->r.pages, x->r.n_pages,
                                      0, x, &x->r.seq, &err);
    if (st == SL_OK)
        return true;
    ck_assert_msg(st == SL_ERR_EXHAUSTED, "%s", err.text);
    MUST(room() == before);
    fix_seq_close(&f, &x->r, false);
    return false;
}

/* Computes up to `to` tokens, with pages that the run has; every result is that of the engine with room. */
static void feed(run *x, int32_t to, int32_t chunk)
{
    fix_text t = {.n = x->of->n};
    memcpy(t.ids, x->of->t.ids, sizeof t.ids);
    memset(t.logits, 0, sizeof t.logits);
    const int32_t from = sl_engine_seq_len(x->r.seq);
    if (to <= from)
        return;
    fix_feed(&f, &x->r, &t, to, x->hot ? 1 : chunk);
    for (int32_t k = from; k < to; k++)
        if (t.logits[k].lo | t.logits[k].hi)
            ck_assert_msg(sl_key_eq(t.logits[k], x->of->t.logits[k]), "%s: other logits after %d tokens, %s",
                          f.o.dir, k + 1, x->hot ? "hierarchical" : "resident");
}

static void close_all(void)
{
    for (int k = 0; k < SEQS; k++)
        if (runs[k].r.seq)
            fix_seq_close(&f, &runs[k].r, false);
    sl_engine_stats s;
    sl_engine_stats_get(f.engine, &s);
    MUST(s.pool_free == s.pool_bytes);
}

/* As many sequences of one kind as fit, all of them computed while the others are open; returns how many. */
static int fill(int length, bool hot)
{
    int n = 0;
    while (n < SEQS && open_run(&runs[n], &texts[length][n % TEXTS], hot, texts[length][n % TEXTS].n))
        n++;
    for (int k = 0; k < n; k++)
        feed(&runs[k], hot && length == 0 ? 6 : runs[k].of->n, CHUNK);
    close_all();
    return n;
}

START_TEST(both_extremes_fit)
{
    const int i = _i / 2;
    const sl_residency mode = _i % 2 ? SL_HIERARCHICAL : SL_RESIDENT;
    sl_plan p;
    make_texts(i);
    const uint64_t pool = open_pool(i, mode, &p);
    const int planned = (int)((pool - p.pool_edges) / bytes_of(&p, mode, SHORT)),
              want = planned < SEQS ? planned : SEQS;
    for (int turn = 0; turn < 2; turn++) { /* each after the other */
        const int few = fill(0, mode == SL_HIERARCHICAL), many = fill(1, mode == SL_HIERARCHICAL);
        ck_assert_msg(few >= AT_ONCE && many >= want, "%s: %d long, %d short, planned %d and %d",
                      cases[i].dir, few, many, AT_ONCE, want);
        if (mode ==
            SL_RESIDENT) /* with the states of all short sequences set aside, these long ones have no pages */
            ck_assert_msg((uint64_t)many * p.state_device +
                                  (uint64_t)few * (bytes_of(&p, mode, LONG) - p.state_device) >
                              pool,
                          "%s: a fixed division has both", cases[i].dir);
    }
    fix_close(&f);
}
END_TEST

static uint32_t below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % n;
}

/* One more page and its tokens; a run that finds no room stays what it is. */
static void grow(run *x)
{
    sl_err err = {0};
    const int32_t len = sl_engine_seq_len(x->r.seq), most = x->of->n;
    int32_t to = len + CHUNK < most ? len + CHUNK : most;
    to = x->hot && to > len + 3 ? len + 3 : to;
    if (to > x->r.n_pages * SL_PAGE_TOKENS) {
        const int32_t page = f.free_pages[f.n_free - 1];
        const uint64_t before = room();
        sl_status st = sl_engine_seq_add_pages(f.engine, x->r.seq, &page, 1, &err);
        if (st == SL_OK) {
            x->r.pages[x->r.n_pages++] = page, f.n_free--;
        } else {
            ck_assert_msg(st == SL_ERR_EXHAUSTED, "%s", err.text);
            MUST(room() == before);
        }
    }
    const int32_t have = x->r.n_pages * SL_PAGE_TOKENS;
    feed(x, to < have ? to : have, CHUNK);
}

static void spill(run *x)
{
    sl_err err = {0};
    const uint64_t before = room();
    sl_status st = sl_engine_seq_spill(f.engine, x->r.seq, &err);
    x->hot = st == SL_OK;
    ck_assert_msg(st == SL_OK || (st == SL_ERR_EXHAUSTED && room() == before), "%s", err.text);
    const int32_t next = sl_engine_seq_len(x->r.seq) + 1, have = x->r.n_pages * SL_PAGE_TOKENS;
    if (next <= x->of->n && next <= have)
        feed(x, next, 1);
}

START_TEST(a_mix_that_changes_keeps_its_bits)
{
    const int i = _i;
    sl_plan p;
    uint64_t seed = (uint64_t)i + 11;
    int opened = 0, refused = 0, spilled = 0;
    make_texts(i);
    (void)open_pool(i, SL_HIERARCHICAL, &p);
    for (int step = 0; step < STEPS; step++) {
        const bool shorts =
            below(&seed, 10) < (step / 150 % 2 ? 9 : 1); /* short ones, long ones, and again */
        run *x = &runs[below(&seed, 60)];
        if (!x->r.seq) {
            const bool fits = open_run(x, &texts[shorts][below(&seed, TEXTS)], below(&seed, 3) == 0, 1);
            *(fits ? &opened : &refused) += 1;
            x = &runs[below(&seed, 60)];
            if (!fits && x->r.seq)
                fix_seq_close(&f, &x->r, false);
        } else if (below(&seed, 12) == 0) {
            fix_seq_close(&f, &x->r, false);
        } else if (!x->hot && below(&seed, 4) == 0) {
            spill(x);
            spilled += x->hot;
        } else if (sl_engine_seq_len(x->r.seq) < x->of->n) {
            grow(x);
        } else {
            fix_seq_close(&f, &x->r, false);
        }
        (void)room();
    }
    sl_engine_stats s;
    sl_engine_stats_get(f.engine, &s);
    ck_assert_msg(opened > 20 && spilled > 0 && s.pool_moved > 0,
                  "%d opened, %d refused, %d spilled, %llu moved", opened, refused, spilled,
                  (unsigned long long)s.pool_moved);
    close_all();
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pool_loads");
    TCase *t = tcase_create("pool_loads");
    tcase_set_timeout(t, 300);
    add_variants(t, both_extremes_fit, 2 * SL_COUNT(cases));
    add_variants(t, a_mix_that_changes_keeps_its_bits, SL_COUNT(cases));
    suite_add_tcase(s, t);
    return run_suite(s);
}
