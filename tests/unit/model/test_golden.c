/*
 * Compares the model with Hugging Face transformers: logits, selections and greedy tokens of every golden case. Also
 * shows that batches and chunks change no bit of the result.
 *
 * The goldens are made by tests/golden/model/make.py. Run from the root of the repository. One test for each case and
 * property.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend_resident.h"
#include "model/safetensors.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/model/"
#define MAX_LEN 448
#define MAX_PROMPTS 8
#define TOLERANCE 1e-4

static const struct {
    const char *name, *checkpoint;
} cases[] = {
    {"ds-yarn", GOLDEN "ds-yarn"},         {"ds-odd", GOLDEN "ds-odd"},
    {"ds-bf16", GOLDEN "ds-bf16"},         {"ds-fp8", GOLDEN "ds-fp8"},
    {"glm-share", GOLDEN "glm-share"},     {"glm-odd", GOLDEN "glm-odd"},
    {"glm-groups", GOLDEN "glm-groups"},   {"tiny-v32", "models/tiny-v32"},
    {"hy4-share", GOLDEN "hy4-share"},     {"hy4-halves", GOLDEN "hy4-halves"},
    {"hy4-fp8", GOLDEN "hy4-fp8"},         {"axk2-light", GOLDEN "axk2-light"},
    {"axk2-groups", GOLDEN "axk2-groups"},
};

typedef struct prompt {
    const int32_t *ids, *greedy, *positions, *selected;
    const float *logits, *all_logits;
    int32_t n, n_greedy, n_positions;
} prompt;

typedef struct fixture {
    sl_backend *be;
    sl_model *m;
    sl_resident *r;
    const sl_model_config *c;
    sl_safetensors *golden;
    prompt p[MAX_PROMPTS];
    int32_t n;
} fixture;

static void ok(sl_status rc, const sl_err *err)
{
    ck_assert_msg(rc == SL_OK, "%s: %s", sl_status_name(rc), err->text);
}

static const sl_st_tensor *part(const fixture *f, int32_t i, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "p%d.%s", i, what);
    return sl_st_find(f->golden, name);
}

static const void *need(const fixture *f, int32_t i, const char *what, sl_st_dtype d, int32_t *n)
{
    const sl_st_tensor *t = part(f, i, what);
    ck_assert_msg(t && t->dtype == d && t->rank >= 1, "golden p%d.%s", i, what);
    *n = (int32_t)t->shape[0];
    return t->data;
}

static void read_prompts(fixture *f)
{
    for (f->n = 0; f->n < MAX_PROMPTS && part(f, f->n, "ids"); f->n++) {
        prompt *p = &f->p[f->n];
        int32_t vocab;
        p->ids = need(f, f->n, "ids", SL_ST_I32, &p->n);
        p->greedy = need(f, f->n, "greedy", SL_ST_I32, &p->n_greedy);
        p->positions = need(f, f->n, "positions", SL_ST_I32, &p->n_positions);
        p->selected = need(f, f->n, "selected", SL_ST_I32, &vocab);
        p->logits = need(f, f->n, "logits", SL_ST_F32, &vocab);
        ck_assert_int_eq(vocab, f->c->vocab_size);
        ck_assert_int_eq(p->n_greedy, 64);
        const sl_st_tensor *all = part(f, f->n, "all_logits");
        p->all_logits = all ? all->data : NULL;
    }
    ck_assert_int_ge(f->n, 3);
}

static void setup(fixture *f, int i, int threads)
{
    sl_err err = {0};
    char path[256];
    sl_backend_opts bo = {.threads = threads};
    sl_model_opts mo = {.index_format = SL_INDEX_PLAIN,
                        .row_format = SL_ROW_MLA_F32,
                        .act = SL_F32,
                        .max_tokens = MAX_LEN,
                        .max_logit_rows = MAX_LEN,
                        .max_context = MAX_LEN,
                        .fp8_acts = SL_FP8_ACTS_OFF};
    *f = (fixture){0};
    ok(sl_backend_create("cpu", &bo, &f->be, &err), &err);
    ok(sl_model_load(f->be, cases[i].checkpoint, &mo, &f->m, &err), &err);
    ok(sl_resident_create(f->be, f->m, MAX_PROMPTS, MAX_LEN, &f->r, &err), &err);
    f->c = sl_model_get_config(f->m);
    snprintf(path, sizeof path, GOLDEN "%s/golden.safetensors", cases[i].name);
    ok(sl_st_open(path, &f->golden, &err), &err);
    read_prompts(f);
}

static void teardown(fixture *f)
{
    sl_st_close(f->golden);
    sl_resident_destroy(f->r);
    sl_model_destroy(f->m);
    sl_backend_destroy(f->be);
}

static void step(fixture *f, int32_t seq, const int32_t *ids, int32_t n, bool all, float *logits)
{
    sl_err err = {0};
    sl_resident_chunk c = {seq, ids, n};
    ok(sl_resident_step(f->r, &c, 1, all, logits, &err), &err);
}

static float *floats(size_t n)
{
    float *p = malloc(n * sizeof *p);
    ck_assert_ptr_nonnull(p);
    return p;
}

static int32_t argmax(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static double compare(const float *a, const float *b, size_t n, const char *what)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        ck_assert_msg(d <= TOLERANCE, "%s: element %zu is %.7g, the golden %.7g", what, i, a[i], b[i]);
        worst = d > worst ? d : worst;
    }
    return worst;
}

static void check_selection(fixture *f, const prompt *p)
{
    int32_t k = f->c->index.topk, layers = f->c->n_layers;
    for (int32_t i = 0; i < p->n_positions; i++)
        for (int32_t l = 0; l < layers; l++) {
            const int32_t *have = sl_resident_selected(f->r, l, p->positions[i]);
            const int32_t *want = p->selected + ((int64_t)i * layers + l) * k;
            ck_assert_msg(memcmp(have, want, (size_t)k * 4) == 0,
                          "selection of layer %d at position %d differs", l, p->positions[i]);
        }
}

START_TEST(test_golden)
{
    fixture f;
    setup(&f, _i, 0);
    int32_t v = f.c->vocab_size;
    float *logits = floats((size_t)MAX_LEN * (size_t)v);
    double worst = 0;
    for (int32_t i = 0; i < f.n; i++) {
        const prompt *p = &f.p[i];
        step(&f, i, p->ids, p->n, true, logits);
        check_selection(&f, p);
        float *last = logits + (size_t)(p->n - 1) * (size_t)v;
        double d = compare(last, p->logits, (size_t)v, "last logits");
        if (p->all_logits)
            d = fmax(d, compare(logits, p->all_logits, (size_t)p->n * (size_t)v, "all logits"));
        worst = fmax(worst, d);
        memmove(logits, last, (size_t)v * sizeof *logits);
        for (int32_t g = 0; g < p->n_greedy; g++) {
            ck_assert_msg(argmax(logits, v) == p->greedy[g],
                          "prompt %d: greedy token %d is %d, the golden %d", i, g, argmax(logits, v),
                          p->greedy[g]);
            step(&f, i, &p->greedy[g], 1, false, logits);
        }
    }
    printf("%s: %d prompts, largest difference %.2g\n", cases[_i].name, f.n, worst);
    free(logits);
    teardown(&f);
}
END_TEST

/* Prefill in chunks of any size gives the bits of prefill in one piece, at every position and in every
 * selection. */
START_TEST(test_chunks)
{
    static const int32_t sizes[] = {1, 7, 64};
    fixture f;
    setup(&f, _i, 0);
    const prompt *p = &f.p[f.n - 1]; /* the longest */
    size_t v = (size_t)f.c->vocab_size, k = (size_t)f.c->index.topk;
    float *whole = floats((size_t)p->n * v), *piece = floats((size_t)p->n * v);
    int32_t *picked = malloc((size_t)f.c->n_layers * (size_t)p->n * k * 4);
    step(&f, 0, p->ids, p->n, true, whole);
    for (int32_t l = 0; l < f.c->n_layers; l++)
        for (int32_t t = 0; t < p->n; t++)
            memcpy(picked + ((size_t)l * (size_t)p->n + (size_t)t) * k, sl_resident_selected(f.r, l, t),
                   k * 4);
    for (size_t s = 0; s < SL_COUNT(sizes); s++) {
        int32_t seq = (int32_t)s + 1;
        for (int32_t at = 0; at < p->n; at += sizes[s]) {
            int32_t n = p->n - at < sizes[s] ? p->n - at : sizes[s];
            step(&f, seq, p->ids + at, n, true, piece);
            ck_assert_msg(memcmp(piece, whole + (size_t)at * v, (size_t)n * v * sizeof *piece) == 0,
                          "logits of chunk at %d of size %d", at, n);
            for (int32_t l = 0; l < f.c->n_layers; l++)
                for (int32_t t = 0; t < n; t++)
                    ck_assert_msg(memcmp(sl_resident_selected(f.r, l, t),
                                         picked + ((size_t)l * (size_t)p->n + (size_t)(at + t)) * k,
                                         k * 4) == 0,
                                  "selection of layer %d at %d, chunks of %d", l, at + t, sizes[s]);
        }
    }
    free(whole);
    free(piece);
    free(picked);
    teardown(&f);
}
END_TEST

/* Prompts of all lengths in one step, then decoding together (and by another number of threads): the bits of
 * each alone. */
START_TEST(test_batch)
{
    enum { STEPS = 12 };
    fixture f, g;
    setup(&f, _i, 1);
    setup(&g, _i, 3);
    size_t v = (size_t)f.c->vocab_size, n = (size_t)f.n;
    float *alone = floats((STEPS + 1) * n * v), *batch = floats(n * v);
    for (int32_t i = 0; i < f.n; i++) {
        step(&f, i, f.p[i].ids, f.p[i].n, false, alone + (size_t)i * v);
        for (int32_t s = 0; s < STEPS; s++)
            step(&f, i, &f.p[i].greedy[s], 1, false, alone + (((size_t)s + 1) * n + (size_t)i) * v);
    }
    for (int32_t s = 0; s <= STEPS; s++) {
        sl_resident_chunk c[MAX_PROMPTS];
        sl_err err = {0};
        for (int32_t i = 0; i < g.n; i++) /* in reverse, so that rows differ too */
            c[i] =
                (sl_resident_chunk){g.n - 1 - i, s ? &g.p[g.n - 1 - i].greedy[s - 1] : g.p[g.n - 1 - i].ids,
                                    s ? 1 : g.p[g.n - 1 - i].n};
        ok(sl_resident_step(g.r, c, g.n, false, batch, &err), &err);
        for (int32_t i = 0; i < g.n; i++)
            ck_assert_msg(memcmp(batch + (size_t)i * v, alone + ((size_t)s * n + (size_t)(g.n - 1 - i)) * v,
                                 v * sizeof *batch) == 0,
                          "step %d: prompt %d differs in the batch", s, g.n - 1 - i);
    }
    free(alone);
    free(batch);
    teardown(&g);
    teardown(&f);
}
END_TEST

/*
 * The published conventions, which are simulated inside the transformers model: compressed rows, official indexer, F8
 * activations. With F8 activations values are rounded so often that two implementations differ in some of the
 * roundings; the bound is larger there.
 */
static const struct {
    const char *dir, *checkpoint, *name;
    sl_row_format row;
    sl_index_format index;
    bool fp8_acts;
} conventions[] = {
    {GOLDEN "ds-yarn", GOLDEN "ds-yarn", "rows", SL_ROW_MLA_FP8, SL_INDEX_PLAIN, false},
    {GOLDEN "ds-yarn", GOLDEN "ds-yarn", "official", SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, false},
    {GOLDEN "ds-fp8", GOLDEN "ds-fp8", "rows", SL_ROW_MLA_FP8, SL_INDEX_PLAIN, false},
    {GOLDEN "ds-fp8", GOLDEN "ds-fp8", "official", SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, false},
    {GOLDEN "ds-fp8", GOLDEN "ds-fp8", "w8a8", SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, true},
    {GOLDEN "tiny-v32", "models/tiny-v32", "rows", SL_ROW_MLA_FP8, SL_INDEX_PLAIN, false},
    {GOLDEN "tiny-v32", "models/tiny-v32", "official", SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, false},
};

static void check_all_selections(fixture *f, const char *name, int32_t n)
{
    char key[64];
    snprintf(key, sizeof key, "%s.selected", name);
    const sl_st_tensor *t = sl_st_find(f->golden, key);
    ck_assert_ptr_nonnull(t);
    int32_t k = f->c->index.topk, layers = f->c->n_layers;
    for (int32_t i = 0; i < n * layers; i++)
        ck_assert_msg(memcmp(sl_resident_selected(f->r, i % layers, i / layers),
                             (const int32_t *)t->data + (int64_t)i * k, (size_t)k * 4) == 0,
                      "selection of layer %d at position %d differs", i % layers, i / layers);
}

START_TEST(test_conventions)
{
    sl_err err = {0};
    char key[256];
    fixture f = {0};
    sl_backend_opts bo = {0};
    sl_model_opts mo = {.index_format = conventions[_i].index,
                        .row_format = conventions[_i].row,
                        .act = SL_F32,
                        .max_tokens = MAX_LEN,
                        .max_logit_rows = MAX_LEN,
                        .max_context = MAX_LEN,
                        .fp8_acts = conventions[_i].fp8_acts ? SL_FP8_ACTS_AUTO : SL_FP8_ACTS_OFF};
    ok(sl_backend_create("cpu", &bo, &f.be, &err), &err);
    ok(sl_model_load(f.be, conventions[_i].checkpoint, &mo, &f.m, &err), &err);
    ok(sl_resident_create(f.be, f.m, 1, MAX_LEN, &f.r, &err), &err);
    f.c = sl_model_get_config(f.m);
    snprintf(key, sizeof key, "%s/golden.safetensors", conventions[_i].dir);
    ok(sl_st_open(key, &f.golden, &err), &err);
    snprintf(key, sizeof key, "%s.ids", conventions[_i].name);
    const sl_st_tensor *ids = sl_st_find(f.golden, key);
    snprintf(key, sizeof key, "%s.logits", conventions[_i].name);
    const sl_st_tensor *want = sl_st_find(f.golden, key);
    ck_assert(ids && want && f.c->fp8_acts == conventions[_i].fp8_acts);
    size_t n = want->bytes / sizeof(float);
    float *logits = floats(n);
    step(&f, 0, ids->data, (int32_t)ids->shape[0], true, logits);
    check_all_selections(&f, conventions[_i].name, (int32_t)ids->shape[0]);
    printf("%s %s: largest difference %.2g\n", conventions[_i].dir, conventions[_i].name,
           compare(logits, want->data, n, "logits"));
    free(logits);
    teardown(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("golden");
    TCase *t = tcase_create("golden");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, test_golden, 0, SL_COUNT(cases));
    add_variants(t, test_chunks, SL_COUNT(cases));
    add_variants(t, test_batch, SL_COUNT(cases));
    tcase_add_loop_test(t, test_conventions, 0, SL_COUNT(conventions));
    suite_add_tcase(s, t);
    return run_suite(s);
}
