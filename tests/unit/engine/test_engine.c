/*
 * The engine's guarantees on real (tiny) checkpoints: hierarchical decode has the bits of resident decode over more
 * than a thousand steps with the fewest hot rows possible; chunking, batching, joining, leaving, retracting,
 * pausing, prefix reuse, layouts and thread counts change nothing. Stale device rows and unwritten host rows are
 * NaN throughout.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fix.h"
#include "tests/unit/run_suite.h"

#define DS_YARN "tests/golden/model/ds-yarn"
#define DS_ODD "tests/golden/model/ds-odd"
#define DS_BF16 "tests/golden/model/ds-bf16"
#define DS_FP8 "tests/golden/model/ds-fp8"
#define GLM_SHARE "tests/golden/model/glm-share"
#define GLM_ODD "tests/golden/model/glm-odd"

/* Every row format with every index convention, both families, IndexShare, odd sizes, fp8 weights. */
static const fix_opts configs[] = {
    {.dir = DS_YARN,
     .rows = SL_ROW_MLA_F32,
     .index = SL_INDEX_PLAIN,
     .act = SL_F32,
     .policy = SL_EVICT_LRU,
     .tail_rows = 1},
    {.dir = DS_YARN,
     .rows = SL_ROW_MLA_FP8,
     .index = SL_INDEX_OFFICIAL,
     .act = SL_BF16,
     .policy = SL_EVICT_CLOCK,
     .tail_rows = 8},
    {.dir = DS_BF16,
     .rows = SL_ROW_MLA_BF16,
     .index = SL_INDEX_PLAIN,
     .act = SL_BF16,
     .policy = SL_EVICT_CLOCK,
     .tail_rows = 3},
    {.dir = DS_FP8,
     .rows = SL_ROW_MLA_FP8,
     .index = SL_INDEX_OFFICIAL,
     .act = SL_F32,
     .policy = SL_EVICT_LRU,
     .tail_rows = 64},
    {.dir = GLM_SHARE,
     .rows = SL_ROW_MLA_F32,
     .index = SL_INDEX_OFFICIAL,
     .act = SL_F32,
     .policy = SL_EVICT_LRU,
     .tail_rows = 5},
    {.dir = GLM_ODD,
     .rows = SL_ROW_MLA_BF16,
     .index = SL_INDEX_PLAIN,
     .act = SL_F32,
     .policy = SL_EVICT_CLOCK,
     .tail_rows = 1},
    {.dir = DS_ODD,
     .rows = SL_ROW_MLA_FP8,
     .index = SL_INDEX_PLAIN,
     .act = SL_F32,
     .policy = SL_EVICT_LRU,
     .tail_rows = 130},
    {.dir = GLM_SHARE,
     .rows = SL_ROW_MLA_BF16,
     .index = SL_INDEX_OFFICIAL,
     .act = SL_BF16,
     .policy = SL_EVICT_CLOCK,
     .tail_rows = 2},
};
enum { CONFIGS = SL_COUNT(configs) };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/* all steps would take minutes; every path is still run */
enum { MANY_STEPS = 60, STREAM_LEN = 190, MORE = 0 };
#else
enum { MANY_STEPS = 1100, STREAM_LEN = 260, MORE = 4 };
#endif

static fix f;
static fix_text ref, text;

static void same(const fix_text *a, const fix_text *b, int32_t from, int32_t to)
{
    for (int32_t i = from; i < to; i++) {
        if (a->ids[i] != b->ids[i])
            ck_abort_msg("token %d is %d and %d", i, a->ids[i], b->ids[i]);
        if (b->logits[i].lo && a->logits[i].lo && !sl_key_eq(a->logits[i], b->logits[i]))
            ck_abort_msg("logits differ at position %d", i);
    }
}

START_TEST(hierarchical_equals_resident)
{
    fix_opts o = configs[_i];
    o.max_hot = 1, o.layout = (sl_layout)(_i % 3);
    fix_open(&f, &o);
    /* each format of rows goes all the way; the other configurations do 400 steps */
    int32_t prompt = 150, steps = _i < 3 || MANY_STEPS < 400 ? MANY_STEPS : 400,
            n = prompt + steps < f.o.max_context ? prompt + steps : f.o.max_context;
    fix_reference(&f, &ref, prompt, n, 11);
    fix_run r = {0};
    text = ref, text.n = prompt;
    memset(text.logits, 0, sizeof text.logits);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, prompt);
    fix_feed(&f, &r, &text, prompt - 1, 128);
    sl_err err = {0};
    ck_assert_msg(sl_engine_seq_spill(f.engine, r.seq, &err) == SL_OK, "%s", err.text);
    fix_greedy(&f, &r, &text, n);
    same(&ref, &text, 0, n);
    sl_layer_stats s;
    sl_engine_seq_stats(f.engine, r.seq, &s);
    uint64_t rows = (uint64_t)(n - prompt + 1) * (uint64_t)(f.cfg->n_layers * f.cfg->index.topk);
    ck_assert_uint_eq(s.hits + s.misses + s.tail_hits, rows);
    ck_assert_uint_gt(s.evictions, steps * 9 / 10);
    ck_assert_uint_eq(s.swap_bytes, s.misses * (uint64_t)sl_geometry_row_bytes(sl_arena_geometry(f.arena)));
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

START_TEST(chunks_equal_whole)
{
    static const int32_t sizes[] = {1, 7, 63, 64, 65, 199};
    fix_opts o = configs[_i];
    o.max_tokens = 230;
    fix_open(&f, &o);
    fix_reference(&f, &ref, 230, 231, 12);
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        fix_run r = {0};
        text = ref;
        memset(text.logits, 0, sizeof text.logits);
        fix_seq_open(&f, &r, SL_RESIDENT, 0, 64); /* grows page by page */
        fix_feed(&f, &r, &text, 231, sizes[i]);
        ck_assert(text.logits[230].lo != 0);
        same(&ref, &text, 230, 231);
        fix_seq_close(&f, &r, false);
    }
    fix_close(&f);
}
END_TEST

START_TEST(prefix_reuse_equals_recompute)
{
    static const int32_t cuts[] = {1, 63, 64, 129, 191};
    fix_opts o = configs[_i];
    o.max_seqs = 2, o.max_hot = 1, o.layout = (sl_layout)(_i % 3);
    fix_open(&f, &o);
    fix_reference(&f, &ref, 200, 300, 13);
    fix_run owner = {0};
    text = ref;
    fix_seq_open(&f, &owner, SL_RESIDENT, 0, 300);
    fix_feed(&f, &owner, &text, 300, 128);
    fix_seq_close(&f, &owner, true); /* only its host pages are left */
    for (size_t i = 0; i < SL_COUNT(cuts) * 2; i++) {
        int32_t cut = cuts[i / 2];
        fix_run r = {0};
        fix_grow(&f, &r, 300);
        const sl_geometry *g = sl_arena_geometry(f.arena);
        /* page_first: a private copy of the last pages */
        for (int p = 0; p * SL_PAGE_TOKENS < cut && g->layout == SL_LAYOUT_PAGE_FIRST; p++)
            memcpy(sl_arena_base(f.arena) + r.pages[p] * g->page_bytes,
                   sl_arena_base(f.arena) + owner.pages[p] * g->page_bytes, (size_t)g->page_bytes);
        for (int p = 0; p * SL_PAGE_TOKENS < cut && g->layout != SL_LAYOUT_PAGE_FIRST; p++) {
            f.free_pages[f.n_free++] = r.pages[p]; /* strided layouts: use the owner's pages themselves */
            r.pages[p] = owner.pages[p];
        }
        text = ref;
        memset(text.logits, 0, sizeof text.logits);
        fix_seq_open(&f, &r, i % 2 ? SL_HIERARCHICAL : SL_RESIDENT, cut, 300);
        int32_t end = i % 2 ? cut + 50 : 300; /* hierarchical: token by token */
        fix_feed(&f, &r, &text, end, i % 2 ? 1 : 77);
        same(&ref, &text, cut, end);
        for (int p = 0; p * SL_PAGE_TOKENS < cut && g->layout != SL_LAYOUT_PAGE_FIRST; p++)
            r.pages[p] = f.free_pages[--f.n_free];
        fix_seq_close(&f, &r, false);
    }
    fix_close(&f);
}
END_TEST

/* Cached pages that come in parts are moved to the device part by part; until then the host pages of the next ones are NaN. */
START_TEST(pages_that_arrive_in_parts)
{
    static const int32_t parts[] = {64, 128, 256};
    fix_opts o = configs[_i];
    o.max_seqs = 2;
    fix_open(&f, &o);
    fix_reference(&f, &ref, 300, 310, 17);
    fix_run owner = {0}, r = {0};
    text = ref;
    fix_seq_open(&f, &owner, SL_RESIDENT, 0, 310);
    fix_feed(&f, &owner, &text, 310, 128);
    fix_seq_close(&f, &owner, true);
    for (size_t first = 0; first < SL_COUNT(parts); first++) {
        int64_t page = sl_arena_geometry(f.arena)->page_bytes;
        uint8_t *base = sl_arena_base(f.arena);
        sl_err err = {0};
        text = ref;
        memset(text.logits, 0, sizeof text.logits);
        fix_seq_open(&f, &r, SL_RESIDENT, 0, 200); /* and grows while pages arrive */
        for (size_t i = first, p = 0; i < SL_COUNT(parts); i++) {
            fix_grow(&f, &r, parts[i]);
            for (; p < (size_t)parts[i] / SL_PAGE_TOKENS; p++)
                memcpy(base + r.pages[p] * page, base + owner.pages[p] * page, (size_t)page);
            ck_assert_msg(sl_engine_seq_load(f.engine, r.seq, parts[i], &err) == SL_OK, "%s", err.text);
            ck_assert_int_eq(sl_engine_seq_len(r.seq), parts[i]);
        }
        ck_assert_int_eq(sl_engine_seq_load(f.engine, r.seq, 128, &err),
                         SL_ERR_INVALID); /* less than it has */
        ck_assert_int_eq(sl_engine_seq_load(f.engine, r.seq, 321, &err),
                         SL_ERR_INVALID); /* more than its pages hold */
        fix_grow(&f, &r, 310);
        fix_feed(&f, &r, &text, 310, 33);
        ck_assert_int_eq(sl_engine_seq_load(f.engine, r.seq, 320, &err),
                         SL_ERR_INVALID); /* after part of a page */
        same(&ref, &text, 256, 310);
        fix_seq_close(&f, &r, false);
    }
    fix_close(&f);
}
END_TEST

START_TEST(threads_do_not_matter)
{
    fix_opts o = configs[_i];
    o.threads = 1;
    fix_open(&f, &o);
    fix_reference(&f, &ref, 170, 200, 14);
    fix_close(&f);
    for (int n = 2; n <= 3; n++) {
        o.threads = n;
        fix_open(&f, &o);
        fix_reference(&f, &text, 170, 200, 14);
        same(&ref, &text, 0, 200);
        fix_close(&f);
    }
}
END_TEST

START_TEST(layouts_do_not_matter)
{
    fix_opts o = configs[_i];
    for (int layout = 0; layout < 3; layout++) {
        o.layout = (sl_layout)layout, o.max_hot = 1;
        fix_open(&f, &o);
        fix_run r = {0};
        fix_prompt(&f, &text, 90, 15);
        fix_seq_open(&f, &r, SL_HIERARCHICAL, 0, 90);
        fix_feed(&f, &r, &text, 89, 1); /* hierarchical from its first token on */
        fix_greedy(&f, &r, &text, 160);
        fix_seq_close(&f, &r, false);
        if (layout > 0)
            same(&ref, &text, 0, 160);
        ref = text;
        fix_close(&f);
    }
}
END_TEST

/* ---- a batch in motion ---- */

enum { STREAMS = 6 };

typedef struct stream {
    fix_text *want;
    fix_run run;
    int32_t prompt;
    bool open, hot;
} stream;

/* Every layer has another setting: resident, the default, more hot rows. */
static const int32_t uneven[SL_MAX_LAYERS] = {SL_HOT_RESIDENT, 0, 200, SL_HOT_RESIDENT, 150, 0, 0, 180};

static uint64_t rng = 99;

static uint32_t roll(uint32_t n)
{
    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng >> 33) % n;
}

static void begin(stream *s)
{
    /* Fresh, after a retraction (no pages), or after a pause (pages full of its cache). */
    int32_t cached = s->run.n_pages > 0 ? s->run.n_pages * SL_PAGE_TOKENS : 0;
    if (cached > STREAM_LEN - 1)
        cached = STREAM_LEN - 1 - (int32_t)roll(5);
    s->hot = cached > 0 && roll(2);
    s->open = true;
    fix_seq_open(&f, &s->run, s->hot ? SL_HIERARCHICAL : SL_RESIDENT, cached, cached + 1);
}

/* One event, chosen at random, happens to the stream between two steps. */
static void shake(stream *s)
{
    int32_t len = sl_engine_seq_len(s->run.seq);
    switch (roll(250)) {
    case 0: /* retracted: everything is recomputed later */
        fix_seq_close(&f, &s->run, false);
        s->open = false;
        break;
    case 1:
    case 2: /* paused: whole pages stay */
        fix_seq_close(&f, &s->run, true);
        while (s->run.n_pages > len / SL_PAGE_TOKENS)
            f.free_pages[f.n_free++] = s->run.pages[--s->run.n_pages];
        s->open = false;
        break;
    case 3:
    case 4:
    case 5:
        if (!s->hot) {
            sl_err err = {0};
            ck_assert_msg(sl_engine_seq_spill(f.engine, s->run.seq, &err) == SL_OK, "%s", err.text);
            s->hot = true;
        }
        break;
    }
}

START_TEST(batch_in_motion)
{
    fix_opts o = configs[_i];
    o.max_seqs = STREAMS, o.max_hot = STREAMS, o.max_context = 300, o.max_tokens = 300;
    if (_i % 2)
        o.hot_rows_layer = uneven;
    fix_open(&f, &o);
    sl_engine_stats before, after;
    stream streams[STREAMS] = {0};
    int finished = 0;
    rng = 100 + (uint64_t)_i;
    for (int i = 0; i < STREAMS; i++) {
        streams[i].want = calloc(1, sizeof *streams[i].want);
        streams[i].prompt = 20 + 31 * i;
        fix_reference(&f, streams[i].want, streams[i].prompt, STREAM_LEN, 500 + (uint64_t)i);
    }
    int32_t pages = f.n_free;
    sl_engine_stats_get(f.engine, &before);
    while (finished < STREAMS + MORE) {
        sl_step_item items[STREAMS];
        stream *who[STREAMS];
        int n = 0;
        for (int i = 0; i < STREAMS; i++) {
            stream *s = &streams[i];
            if (!s->open && roll(3) == 0)
                begin(s);
            if (!s->open || roll(6) == 0)
                continue;
            int32_t len = sl_engine_seq_len(s->run.seq), left = STREAM_LEN - len;
            int32_t most = s->hot            ? 1
                           : len < s->prompt ? 1 + (int32_t)roll(45)
                                             : 1 + (int32_t)roll(2) * (int32_t)roll(4);
            int32_t m = most < left ? most : left;
            fix_grow(&f, &s->run, len + m);
            who[n] = s;
            items[n++] = (sl_step_item){
                .seq = s->run.seq, .tokens = s->want->ids + len, .n_tokens = m, .want_logits = roll(4) != 0};
        }
        if (n == 0)
            continue;
        sl_err err = {0};
        if (sl_engine_step(f.engine, items, n, NULL, &err) != SL_OK)
            ck_abort_msg("%s", err.text);
        for (int i = 0; i < n; i++) {
            int32_t at = sl_engine_seq_len(who[i]->run.seq) - 1;
            MUST(!items[i].want_logits == !items[i].logits);
            sl_key k = who[i]->want->logits[at];
            if (items[i].logits && k.lo && !sl_key_eq(k, fix_hash(&f, items[i].logits)))
                ck_abort_msg("stream %d differs at position %d", (int)(who[i] - streams), at);
        }
        for (int i = 0; i < n; i++) {
            if (sl_engine_seq_len(who[i]->run.seq) == STREAM_LEN) {
                fix_seq_close(&f, &who[i]->run, false);
                who[i]->open = false;
                finished++;
            } else {
                shake(who[i]);
            }
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        if (streams[i].open)
            fix_seq_close(&f, &streams[i].run, false);
        while (streams[i].run.n_pages > 0)
            f.free_pages[f.n_free++] = streams[i].run.pages[--streams[i].run.n_pages];
        free(streams[i].want);
    }
    sl_engine_stats_get(f.engine, &after);
    ck_assert_int_eq(f.n_free, pages);
    ck_assert_int_eq(after.index_pages_free, before.index_pages_free);
    ck_assert_int_eq(after.row_pages_free, before.row_pages_free);
    ck_assert_int_eq(after.hot_slots_free, before.hot_slots_free);
    ck_assert_uint_eq(after.device_bytes, before.device_bytes);
    fix_close(&f);
}
END_TEST

START_TEST(dense_hierarchical)
{
    fix_opts o = configs[0];
    o.algorithm = "dense", o.max_hot = 1, o.max_context = 200, o.hot_rows = 200;
    fix_open(&f, &o);
    fix_reference(&f, &ref, 50, 200, 16);
    fix_run r = {0};
    text = ref, text.n = 50;
    fix_seq_open(&f, &r, SL_HIERARCHICAL, 0, 50);
    fix_feed(&f, &r, &text, 49, 1);
    fix_greedy(&f, &r, &text, 200);
    same(&ref, &text, 49, 200);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine");
    TCase *c = tcase_create("engine");
    tcase_set_timeout(c, 200);
    add_variants(c, hierarchical_equals_resident, CONFIGS);
    add_variants(c, chunks_equal_whole, CONFIGS);
    add_variants(c, prefix_reuse_equals_recompute, CONFIGS);
    add_variants(c, pages_that_arrive_in_parts, CONFIGS);
    add_variants(c, threads_do_not_matter, CONFIGS);
    add_variants(c, layouts_do_not_matter, CONFIGS);
    add_variants(c, batch_in_motion, CONFIGS);
    tcase_add_test(c, dense_hierarchical);
    suite_add_tcase(s, c);
    return run_suite(s);
}
