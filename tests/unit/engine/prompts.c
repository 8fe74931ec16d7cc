/* See prompts.h. */
#include "prompts.h"

#include <check.h>
#include <string.h>

enum { LENGTH = PROMPTS_LENGTH, CONTEXT = PROMPTS_CONTEXT };

void prompts_open(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t prompt)
{
    sl_err err = {0};
    fix_seq_open(f, r, residency, n_cached, LENGTH);
    ck_assert_msg(sl_engine_seq_prompt(f->engine, r->seq, prompt, &err) == SL_OK, "%s", err.text);
}

/* The hashes of the logits of `t` after from, from + 1, ... tokens. */
static void decode_hashes(fix *f, fix_run *r, fix_text *t, int32_t from, sl_key *out)
{
    for (int32_t n = from; n <= LENGTH; n++) {
        t->n = n;
        out[n] = fix_hash(f, fix_feed(f, r, t, n, n == from ? CONTEXT : 1));
    }
}

static void same(const sl_key *a, const sl_key *b, int32_t from, const char *what)
{
    for (int32_t n = from; n <= LENGTH; n++)
        ck_assert_msg(memcmp(&a[n], &b[n], sizeof a[n]) == 0, "%s: logits differ after token %d", what, n);
}

/* Resident, the prompt in one step. */
static void reference(const fix_opts *o, uint64_t seed, int32_t prompt, sl_key *out)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    fix_open(&f, o);
    fix_prompt(&f, &t, LENGTH, seed);
    prompts_open(&f, &r, SL_RESIDENT, 0, prompt);
    decode_hashes(&f, &r, &t, prompt, out);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}

static void spill(fix *f, fix_run *r)
{
    sl_err err = {0};
    ck_assert_msg(sl_engine_seq_spill(f->engine, r->seq, &err) == SL_OK, "%s", err.text);
}

void prompts_chunks(fix_opts o, int32_t prompt)
{
    static const int32_t chunks[] = {1, 7, 64, CONTEXT}, after[] = {-1, 30, 5, 43};
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    reference(&o, 5, prompt, want);
    for (size_t k = 0; k < SL_COUNT(chunks); k++) {
        fix f;
        fix_run r = {0};
        fix_text t;
        o.threads = 1 + (int)k % 2;
        fix_open(&f, &o);
        fix_prompt(&f, &t, LENGTH, 5);
        prompts_open(&f, &r, SL_RESIDENT, 0, prompt);
        fix_feed(&f, &r, &t, prompt + after[k], chunks[k]);
        decode_hashes(&f, &r, &t, prompt + after[k] + 1, got);
        same(want, got, prompt + after[k] + 1, "chunks");
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
}

void prompts_graphs(fix_opts o, int32_t prompt, int32_t once)
{
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    sl_engine_stats s;
    reference(&o, 21, prompt, want);
    o.graphs = SL_GRAPHS_PAD;
    fix f;
    fix_run r = {0};
    fix_text t;
    fix_open(&f, &o);
    fix_prompt(&f, &t, LENGTH, 21);
    prompts_open(&f, &r, SL_RESIDENT, 0, prompt);
    decode_hashes(&f, &r, &t, prompt, got);
    same(want, got, prompt, "padded steps");
    sl_engine_stats_get(f.engine, &s);
    ck_assert_uint_eq(s.decode_steps, (uint64_t)(LENGTH - prompt - once));
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}

void prompts_hierarchical(fix_opts o, int i, int32_t prompt)
{
    sl_key want[LENGTH + 1], got[LENGTH + 1], other[LENGTH + 1];
    o.policy = i % 2 ? SL_EVICT_CLOCK : SL_EVICT_LRU;
    o.layout = (sl_layout)(i % 3);
    reference(&o, 9, prompt, want);
    fix f;
    fix_open(&f, &o);
    for (int round = 0; round < 2; round++) {
        fix_run r = {0};
        fix_text t;
        sl_layer_stats s;
        fix_prompt(&f, &t, LENGTH, round ? 9 : 1234);
        prompts_open(&f, &r, SL_RESIDENT, 0, prompt);
        fix_feed(&f, &r, &t, prompt, 40);
        spill(&f, &r);
        decode_hashes(&f, &r, &t, prompt + 1, round ? got : other);
        sl_engine_seq_stats(f.engine, r.seq, &s);
        ck_assert_uint_gt(s.hits, 0);
        ck_assert_uint_gt(s.misses, 0);
        ck_assert_uint_gt(s.tail_hits, 0);
        fix_seq_close(&f, &r, false);
    }
    same(want, got, prompt + 1, "hierarchical");
    fix_close(&f);
}

void prompts_pages(fix_opts o, int i, int32_t prompt)
{
    const int32_t cuts[] = {1, prompt > 64 ? 64 : 33, prompt - 1, prompt, prompt + 1, prompt + 45};
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    o.layout = (sl_layout)((i + 1) % 3);
    reference(&o, 31, prompt, want);
    fix f;
    fix_open(&f, &o);
    for (size_t k = 0; k < SL_COUNT(cuts); k++) {
        const bool whole = cuts[k] >= prompt;
        fix_run r = {0};
        fix_text t;
        fix_prompt(&f, &t, LENGTH, 31);
        prompts_open(&f, &r, SL_RESIDENT, 0, whole ? prompt : prompt + 9);
        fix_feed(&f, &r, &t, whole ? cuts[k] : prompt + 9, 100);
        fix_seq_close(&f, &r, true);
        prompts_open(&f, &r, whole && (k + (size_t)i) % 2 ? SL_HIERARCHICAL : SL_RESIDENT, cuts[k], prompt);
        if (cuts[k] < prompt - 1)
            fix_feed(&f, &r, &t, prompt - 1, 33);
        const int32_t from = whole ? cuts[k] + 1 : prompt;
        decode_hashes(&f, &r, &t, from, got);
        same(want, got, from, "pages");
        fix_seq_close(&f, &r, false);
    }
    fix_close(&f);
}

void prompts_batch(fix_opts o, int32_t prompt)
{
    enum { N = 3, STEPS = 12, CHUNK = 13 };
    static const uint64_t seeds[N] = {41, 42, 43};
    sl_key want[N][LENGTH + 1];
    fix f;
    fix_run r[N] = {0};
    static fix_text t[N];
    sl_step_item items[N];
    sl_err err = {0};
    for (int i = 0; i < N; i++)
        reference(&o, seeds[i], prompt, want[i]);
    fix_open(&f, &o);
    for (int i = 0; i < N; i++) {
        fix_prompt(&f, &t[i], LENGTH, seeds[i]);
        prompts_open(&f, &r[i], SL_RESIDENT, 0, prompt);
        fix_feed(&f, &r[i], &t[i], i ? prompt + 11 * i : prompt - CHUNK * STEPS / 2, 50);
    }
    spill(&f, &r[2]);
    for (int32_t step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++) {
            const int32_t at = sl_engine_seq_len(r[i].seq);
            items[i] = (sl_step_item){.seq = r[i].seq,
                                      .tokens = t[i].ids + at,
                                      .n_tokens = i == 0 && at < prompt ? CHUNK : 1,
                                      .want_logits = true};
        }
        ck_assert_msg(sl_engine_step(f.engine, items, N, NULL, &err) == SL_OK, "%s", err.text);
        for (int i = 0; i < N; i++) {
            const int32_t len = sl_engine_seq_len(r[i].seq);
            const sl_key now = fix_hash(&f, items[i].logits);
            ck_assert_msg(len < prompt || memcmp(&now, &want[i][len], sizeof now) == 0,
                          "request %d differs after token %d", i, len);
        }
    }
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}

void prompts_dense(fix_opts o, int32_t prompt)
{
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    o.hot_rows = CONTEXT;
    o.gates = (sl_gates){0};
    reference(&o, 3, prompt, got);
    o.select = (select_params){0}, o.algorithm = "dense";
    reference(&o, 3, prompt, want);
    same(want, got, prompt, "dense");
}
