/* The same bits on every way; see ways.h. */
#include "ways.h"

#include <check.h>
#include <string.h>

void ways_hashes(fix *f, fix_run *r, fix_text *t, int32_t from, sl_key *out)
{
    for (int32_t n = from; n <= WAYS_LENGTH; n++) {
        t->n = n;
        out[n] = fix_hash(f, fix_feed(f, r, t, n, n == from ? WAYS_CONTEXT : 1));
    }
}

void ways_same(const sl_key *a, const sl_key *b, int32_t from, const char *what)
{
    for (int32_t n = from; n <= WAYS_LENGTH; n++)
        ck_assert_msg(memcmp(&a[n], &b[n], sizeof a[n]) == 0, "%s: logits differ after token %d", what, n);
}

static void text_of(const fix *f, fix_text *t, uint64_t seed)
{
    fix_prompt(f, t, WAYS_LENGTH, seed);
}

/* Reference: resident, the prompt in one step. */
static void reference(const fix_opts *o, uint64_t seed, sl_key *out)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    fix_open(&f, o);
    text_of(&f, &t, seed);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
    ways_hashes(&f, &r, &t, WAYS_PROMPT, out);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}

void ways_spill(fix *f, fix_run *r)
{
    sl_err err = {0};
    ck_assert_msg(sl_engine_seq_spill(f->engine, r->seq, &err) == SL_OK, "%s", err.text);
}

void ways_chunks(fix_opts o)
{
    static const int32_t chunks[] = {1, 7, 64};
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1];
    reference(&o, 5, want);
    for (size_t k = 0; k < SL_COUNT(chunks); k++) {
        fix f;
        fix_run r = {0};
        fix_text t;
        o.threads = 1 + (int)k % 2;
        fix_open(&f, &o);
        text_of(&f, &t, 5);
        fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
        fix_feed(&f, &r, &t, WAYS_PROMPT - 1, chunks[k]);
        ways_hashes(&f, &r, &t, WAYS_PROMPT, got);
        ways_same(want, got, WAYS_PROMPT, "chunks");
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
}

void ways_hierarchical(fix_opts o, int i)
{
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1], other[WAYS_LENGTH + 1];
    o.policy = i % 2 ? SL_EVICT_CLOCK : SL_EVICT_LRU;
    o.layout = (sl_layout)(i % 3);
    reference(&o, 9, want);
    fix f;
    fix_open(&f, &o);
    for (int round = 0; round < 2; round++) {
        fix_run r = {0};
        fix_text t;
        sl_layer_stats s;
        text_of(&f, &t, round ? 9 : 1234);
        fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
        fix_feed(&f, &r, &t, WAYS_PROMPT - 1, 40);
        ways_spill(&f, &r);
        ways_hashes(&f, &r, &t, WAYS_PROMPT, round ? got : other);
        sl_engine_seq_stats(f.engine, r.seq, &s);
        ck_assert_uint_gt(s.hits, 0);
        ck_assert_uint_gt(s.misses, 0);
        ck_assert_uint_gt(s.tail_hits, 0);
        ck_assert_uint_eq(s.swap_bytes,
                          s.misses * (uint64_t)sl_cache_unit_bytes(
                                         &sl_arena_geometry(f.arena)->shape.planes[SL_CACHE_ROWS]));
        fix_seq_close(&f, &r, false);
    }
    ways_same(want, got, WAYS_PROMPT, "hierarchical");
    fix_close(&f);
}

void ways_prefix(fix_opts o, int i)
{
    static const int32_t cuts[] = {1, 15, 16, 63, 64, 65, 128, 149};
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1];
    o.layout = (sl_layout)(i % 3);
    reference(&o, 31, want);
    fix f;
    fix_open(&f, &o);
    for (size_t k = 0; k < SL_COUNT(cuts); k++)
        for (int hot = 0; hot < 2; hot++) {
            fix_run r = {0};
            fix_text t;
            text_of(&f, &t, 31);
            fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
            fix_feed(&f, &r, &t, WAYS_PROMPT, WAYS_CONTEXT); /* longer than what is reused */
            fix_seq_close(&f, &r, true);
            bool in_parts = !hot && cuts[k] == 128;
            fix_seq_open(&f, &r, hot && cuts[k] == 149 ? SL_HIERARCHICAL : SL_RESIDENT,
                         in_parts ? 64 : cuts[k], WAYS_LENGTH);
            ck_assert(!in_parts || sl_engine_seq_load(f.engine, r.seq, cuts[k], NULL) == SL_OK);
            fix_feed(&f, &r, &t, WAYS_PROMPT - 1, 33);
            if (hot && cuts[k] != 149)
                ways_spill(&f, &r);
            ways_hashes(&f, &r, &t, WAYS_PROMPT, got);
            ways_same(want, got, WAYS_PROMPT, "prefix");
            fix_seq_close(&f, &r, false);
        }
    fix_close(&f);
}

void ways_batch(fix_opts o)
{
    enum { N = 3 };
    static const uint64_t seeds[N] = {41, 42, 43};
    sl_key want[N][WAYS_LENGTH + 1];
    fix f;
    fix_run r[N] = {0};
    static fix_text t[N];
    sl_step_item items[N];
    sl_err err = {0};
    for (int i = 0; i < N; i++)
        reference(&o, seeds[i], want[i]);
    fix_open(&f, &o);
    for (int i = 0; i < N; i++) {
        text_of(&f, &t[i], seeds[i]);
        fix_seq_open(&f, &r[i], SL_RESIDENT, 0, WAYS_LENGTH);
        fix_feed(&f, &r[i], &t[i], WAYS_PROMPT + 7 * i, 50);
        if (i > 0)
            ways_spill(&f, &r[i]);
    }
    for (int32_t step = 0; step < WAYS_LENGTH - WAYS_PROMPT - 14; step++) {
        for (int i = 0; i < N; i++)
            items[i] = (sl_step_item){.seq = r[i].seq,
                                      .tokens = t[i].ids + WAYS_PROMPT + 7 * i + step,
                                      .n_tokens = 1,
                                      .want_logits = true};
        ck_assert_msg(sl_engine_step(f.engine, items, N, NULL, &err) == SL_OK, "%s", err.text);
        for (int i = 0; i < N; i++) {
            sl_key now = fix_hash(&f, items[i].logits);
            ck_assert_msg(memcmp(&now, &want[i][WAYS_PROMPT + 7 * i + step + 1], sizeof now) == 0,
                          "request %d differs in step %d", i, step);
        }
    }
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}

void ways_whole_budget(fix_opts o)
{
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1];
    o.select.token_budget = WAYS_CONTEXT;
    o.hot_rows = WAYS_CONTEXT;
    reference(&o, 3, got);
    o.select = (select_params){0}, o.algorithm = "dense";
    reference(&o, 3, want);
    ways_same(want, got, WAYS_PROMPT, "dense");
}

void ways_gates(fix_opts o)
{
    static const int32_t first_layer[] = {0};
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1];
    fix f;
    fix_run r = {0};
    fix_text t;
    for (int way = 0; way < 2; way++) {
        o.hot_rows = WAYS_CONTEXT;
        fix_open(&f, &o);
        sl_engine_destroy(f.engine);
        f.eo.gates = (sl_gates){.sink_tokens = 5,
                                .recent_tokens = 20,
                                .min_tokens = 100,
                                .dense_layers = first_layer,
                                .n_dense_layers = 1};
        sl_err err = {0};
        ck_assert_msg(sl_engine_create(f.be, f.model, f.arena, &f.eo, &f.engine, &err) == SL_OK, "%s",
                      err.text);
        r = (fix_run){0};
        text_of(&f, &t, 8);
        fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
        fix_feed(&f, &r, &t, WAYS_PROMPT - 1, way ? 31 : WAYS_CONTEXT);
        if (way)
            ways_spill(&f, &r);
        ways_hashes(&f, &r, &t, WAYS_PROMPT, way ? got : want);
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
    ways_same(want, got, WAYS_PROMPT, "gates");
}
