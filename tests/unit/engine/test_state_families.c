/*
 * Families whose layers keep a state, through the engine: the logits and greedy tokens of transformers, and the same bits of every logit
 * in chunks of any size, resident or hierarchical with few hot rows, with one thread or two, among other requests, and after a
 * snapshot. The goldens are made by tests/golden/model/make_states.py; run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "kvstore/snapshot.h"
#include "model/safetensors.h"
#include "tests/unit/model/checkpoint_tools.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/model/"
#define TOLERANCE 1e-4

enum { CONTEXT = 256, GREEDY = GOLDEN_GREEDY, DECODED = 40, HOT = 40 };

static const struct {
    const char *dir;
    sl_row_format rows[3];
} cases[] = {
    {GOLDEN "qwen4-ngram", {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8}},
    {GOLDEN "qwen4-odd", {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8}},
    {GOLDEN "glm5-flash", {SL_ROW_MLA_F32, SL_ROW_MLA_BF16, SL_ROW_MLA_FP8}},
    {GOLDEN "glm5-odd", {SL_ROW_MLA_F32, SL_ROW_MLA_BF16, SL_ROW_MLA_FP8}},
};

static void open_case(fix *f, int i, int format, int threads)
{
    fix_opts o = {.dir = cases[i].dir,
                  .rows = cases[i].rows[format],
                  .act = format == 0 ? SL_F32 : SL_BF16,
                  .threads = threads,
                  .max_tokens = CONTEXT,
                  .max_context = CONTEXT,
                  .max_seqs = 12, /* also pages of snapshots */
                  .max_hot = 2,
                  .hot_rows = HOT,
                  .tail_rows = 3,
                  .algorithm = "pooled"};
    fix_open(f, &o);
}

static double difference(const float *a, const float *b, int32_t n)
{
    double worst = 0;
    for (int32_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

/* All positions where the golden has them, then the greedy tokens. Returns the largest difference. */
static double check_prompt(fix *f, const sl_safetensors *g, int i)
{
    fix_run r = {0};
    fix_text want, t;
    const int32_t vocab = f->cfg->vocab_size;
    const sl_st_tensor *all = golden_part(g, i, "all_logits");
    double worst = 0;
    golden_read(g, i, &want);
    t = want;
    fix_seq_open(f, &r, SL_RESIDENT, 0, want.n + GREEDY);
    const float *logits = NULL;
    for (int32_t k = all ? 1 : want.n; k <= want.n; k++) {
        logits = fix_feed(f, &r, &t, k, 48);
        if (all)
            worst = fmax(
                worst, difference(logits, (const float *)all->data + (size_t)(k - 1) * (size_t)vocab, vocab));
    }
    worst = fmax(worst, difference(logits, golden_part(g, i, "logits")->data, vocab));
    for (int32_t k = want.n; k < want.n + GREEDY; k++) {
        ck_assert_msg(fix_argmax(f, logits) == want.ids[k],
                      "%s, prompt %d: greedy token %d is %d, the golden %d", f->o.dir, i, k - want.n,
                      fix_argmax(f, logits), want.ids[k]);
        t.n = k + 1;
        logits = fix_feed(f, &r, &t, t.n, 1);
    }
    fix_seq_close(f, &r, false);
    return worst;
}

START_TEST(equals_transformers)
{
    fix f;
    double worst = 0;
    int prompts = 0;
    open_case(&f, _i, 0, 1);
    sl_safetensors *g = golden_open(cases[_i].dir);
    for (; golden_part(g, prompts, "ids"); prompts++)
        worst = fmax(worst, check_prompt(&f, g, prompts));
    printf("%s: %d prompts, largest difference %.2g\n", cases[_i].dir, prompts, worst);
    ck_assert_int_ge(prompts, 3);
    ck_assert_double_le(worst, TOLERANCE);
    sl_st_close(g);
    fix_close(&f);
}
END_TEST

/* ---- the same bits on every way ---- */

typedef struct way {
    int32_t chunk;
    bool spill, others; /* rows go to the host after the prompt; another request takes part in every step */
    /* the states are saved after this number of tokens, and another sequence continues from there; 0: never */
    int32_t snapshot;
    int threads;
} way;

/* A step of the sequence, and where wanted of another one, which computes something else. */
static const float *feed(fix *f, fix_run *r, fix_run *other, const fix_text *t, int32_t to, int32_t chunk)
{
    const float *logits = NULL;
    for (int32_t at = sl_engine_seq_len(r->seq); at < to;) {
        const int32_t n = to - at < chunk ? to - at : chunk, room = CONTEXT - 1;
        sl_err err = {0};
        sl_step_item it[2] = {{.seq = r->seq, .tokens = t->ids + at, .n_tokens = n, .want_logits = 1}};
        int32_t items = 1;
        if (other && sl_engine_seq_len(other->seq) + 2 < room)
            it[items++] = (sl_step_item){.seq = other->seq, .tokens = t->ids + at % 7, .n_tokens = 2};
        ck_assert_msg(sl_engine_step(f->engine, it, items, NULL, &err) == SL_OK, "%s", err.text);
        logits = it[0].logits;
        at += n;
    }
    return logits;
}

/* The states move to another sequence of the same pages by a snapshot. */
static void restart(fix *f, fix_run *r, int32_t n_tokens)
{
    const int32_t len = sl_engine_seq_len(r->seq), pages = sl_snapshot_pages(sl_arena_geometry(f->arena));
    const sl_key key = {5, 6};
    int32_t held[64];
    fix_run again = *r;
    sl_err err = {0};
    ck_assert(pages <= 64 && pages <= f->n_free);
    for (int32_t i = 0; i < pages; i++)
        held[i] = f->free_pages[--f->n_free];
    ck_assert_msg(sl_engine_seq_save(f->engine, r->seq, key, held, &err) == SL_OK, "%s", err.text);
    fix_seq_close(f, r, true);
    again.seq = NULL;
    fix_seq_open(f, &again, SL_RESIDENT, len, n_tokens);
    ck_assert_msg(sl_engine_seq_restore(f->engine, again.seq, key, held, &err) == SL_OK, "%s", err.text);
    for (int32_t i = 0; i < pages; i++)
        f->free_pages[f->n_free++] = held[i];
    *r = again;
}

static void hashes(fix *f, const fix_text *t, const way *w, sl_key *out)
{
    fix_run r = {0}, other = {0};
    sl_err err = {0};
    fix_seq_open(f, &r, SL_RESIDENT, 0, t->n + DECODED);
    if (w->others)
        fix_seq_open(f, &other, SL_RESIDENT, 0, CONTEXT);
    if (w->snapshot) {
        (void)feed(f, &r, NULL, t, w->snapshot, w->chunk);
        restart(f, &r, t->n + DECODED);
    }
    out[0] = fix_hash(f, feed(f, &r, w->others ? &other : NULL, t, t->n, w->chunk));
    if (w->spill)
        ck_assert_msg(sl_engine_seq_spill(f->engine, r.seq, &err) == SL_OK, "%s", err.text);
    for (int32_t k = 1; k <= DECODED; k++)
        out[k] = fix_hash(f, feed(f, &r, w->others ? &other : NULL, t, t->n + k, 1));
    if (w->others)
        fix_seq_close(f, &other, false);
    fix_seq_close(f, &r, false);
}

START_TEST(bits_do_not_depend_on_the_way)
{
    static const way ways[] = {{CONTEXT, false, false, 0, 1}, {1, false, false, 0, 2},
                               {7, false, true, 0, 1},        {64, true, false, 0, 1},
                               {33, true, true, 0, 2},        {50, false, false, 64, 1},
                               {50, true, false, 64, 1},      {19, false, true, 101, 1}};
    const int i = _i / 3, format = _i % 3;
    sl_key first[DECODED + 1], now[DECODED + 1];
    fix_text t;
    golden_read_last(cases[i].dir, &t);
    for (size_t k = 0; k < SL_COUNT(ways); k++) {
        fix f;
        open_case(&f, i, format, ways[k].threads);
        hashes(&f, &t, &ways[k], k ? now : first);
        for (int32_t p = 0; k && p <= DECODED; p++)
            ck_assert_msg(memcmp(&now[p], &first[p], sizeof now[p]) == 0,
                          "%s, %s: way %zu differs after token %d", cases[i].dir,
                          sl_row_format_name(cases[i].rows[format]), k, p);
        fix_close(&f);
    }
}
END_TEST

/* ---- what is refused ---- */

static void refused(const char *dir, const char *says)
{
    sl_backend_opts bo = {.threads = 1};
    sl_model_opts mo = {.row_format = SL_ROW_GQA_F32, .act = SL_F32, .max_tokens = 8, .max_logit_rows = 1};
    sl_backend *be;
    sl_model *m = NULL;
    sl_err err = {0};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    ck_assert_int_ne(sl_model_load(be, dir, &mo, &m, &err), SL_OK);
    ck_assert_msg(strstr(err.text, says), "%s: not \"%s\"", err.text, says);
    sl_backend_destroy(be);
}

/* A copy of a checkpoint in which the numbers of one tensor have become others. */
static void spoil(const char *dir, const char *tensor, int64_t at, int64_t value)
{
    char from[512], to[300];
    sl_safetensors *st;
    sl_err err = {0};
    snprintf(
        from, sizeof from,
        "cp tests/golden/model/qwen4-ngram/config.json tests/golden/model/qwen4-ngram/model.safetensors %s",
        dir);
    ck_assert_int_eq(system(from), 0);
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    ck_assert_int_eq(sl_st_open(to, &st, &err), SL_OK);
    const sl_st_tensor *t = sl_st_find(st, tensor), *first = sl_st_at(st, 0);
    ck_assert_ptr_nonnull(t);
    for (size_t i = 0; i < sl_st_count(st); i++)
        first =
            (const uint8_t *)sl_st_at(st, i)->data < (const uint8_t *)first->data ? sl_st_at(st, i) : first;
    const long in_body = (long)((const uint8_t *)t->data - (const uint8_t *)first->data) + 8 * at;
    sl_st_close(st);
    FILE *f = fopen(to, "r+b");
    uint64_t head;
    ck_assert(f && fread(&head, 8, 1, f) == 1 && fseek(f, 8 + (long)head + in_body, SEEK_SET) == 0);
    ck_assert(fwrite(&value, 8, 1, f) == 1 && fclose(f) == 0);
}

/* A hash could then be no row of the table. */
START_TEST(refuses_tables_that_are_too_small)
{
#define PLE "model.language_model.layers.1.ple.ple_embedding."
    static const struct {
        const char *tensor;
        int64_t at, value;
    } c[] = {{PLE "ngram_heads_vocab_sizes", 7, 1 << 20},
             {PLE "ngram_heads_vocab_sizes", 0, 0},
             {PLE "ngram_heads_offsets", 3, -1},
             {PLE "ngram_heads_offsets", 0, INT64_MAX}};
    char dir[256];
    ct_mkdir(dir);
    spoil(dir, c[_i].tensor, c[_i].at, c[_i].value);
    refused(dir, "rows from row");
    ct_rmdir(dir);
}
END_TEST

/* Selections that do not know keys of units, or know nothing else. */
START_TEST(refuses_other_selections)
{
    fix f;
    open_case(&f, 0, 0, 1);
    sl_engine_opts eo = f.eo;
    eo.algorithm = sl_algo_find("dsa");
    fix_refused(&f, &eo, SL_ERR_UNSUPPORTED, "units of tokens");
    eo = f.eo, eo.hot_rows = HOT / 2;
    fix_refused(&f, &eo, SL_ERR_INVALID, "hot_rows");
    eo = f.eo, eo.gates.recent_tokens = 31;
    fix_refused(&f, &eo, SL_ERR_INVALID, "recent_tokens");
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("state families");
    TCase *t = tcase_create("state families");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, equals_transformers, 0, (int)SL_COUNT(cases));
    tcase_add_loop_test(t, bits_do_not_depend_on_the_way, 0, 3 * (int)SL_COUNT(cases));
    tcase_add_loop_test(t, refuses_tables_that_are_too_small, 0, 4);
    tcase_add_test(t, refuses_other_selections);
    suite_add_tcase(s, t);
    return run_suite(s);
}
