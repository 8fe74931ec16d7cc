/*
 * The forward pass: its limits, its errors, what it passes to the owner of the cache, and the numeric conventions for
 * which transformers cannot make goldens (BF16 activations, F8 activations, official indexer, compressed rows).
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attend_resident.h"
#include "tests/unit/run_suite.h"

#define DS "tests/golden/model/ds-yarn"
#define F8 "tests/golden/model/ds-fp8"
#define GLM "tests/golden/model/glm-share"
#define TINY "models/tiny-v32"
#define LEN 150

typedef struct rig {
    sl_backend *be;
    sl_model *m;
    sl_resident *r;
    size_t vocab;
} rig;

static rig up(const char *dir, const sl_model_opts *o)
{
    rig g = {0};
    sl_err err = {0};
    sl_backend_opts bo = {.threads = 2};
    ck_assert_msg(sl_backend_create("cpu", &bo, &g.be, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_model_load(g.be, dir, o, &g.m, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_resident_create(g.be, g.m, 3, 256, &g.r, &err) == SL_OK, "%s", err.text);
    g.vocab = (size_t)sl_model_get_config(g.m)->vocab_size;
    return g;
}

static void down(rig *g)
{
    sl_resident_destroy(g->r);
    sl_model_destroy(g->m);
    sl_backend_destroy(g->be);
}

static sl_model_opts options(sl_dtype act, sl_index_format index, sl_row_format row, bool fp8)
{
    return (sl_model_opts){.index_format = index,
                           .row_format = row,
                           .act = act,
                           .max_tokens = 160,
                           .max_logit_rows = 160,
                           .max_context = 256,
                           .fp8_acts = fp8 ? SL_FP8_ACTS_AUTO : SL_FP8_ACTS_OFF};
}

static void prompt(int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((uint32_t)(i + 1) * 2654435761u >> 16) % 120 + 2;
}

/* Logits of every position, prefilled in chunks. */
static float *logits_of(rig *g, int32_t seq, int32_t chunk)
{
    int32_t ids[LEN];
    sl_err err = {0};
    float *out = malloc(LEN * g->vocab * sizeof *out);
    prompt(ids, LEN);
    for (int32_t at = 0; at < LEN; at += chunk) {
        sl_resident_chunk c = {seq, ids + at, LEN - at < chunk ? LEN - at : chunk};
        sl_status rc = sl_resident_step(g->r, &c, 1, true, out + (size_t)at * g->vocab, &err);
        ck_assert_msg(rc == SL_OK, "%s", err.text);
    }
    return out;
}

static const struct {
    const char *dir;
    sl_dtype act;
    sl_index_format index;
    sl_row_format row;
    bool fp8;
} conventions[] = {
    {DS, SL_BF16, SL_INDEX_PLAIN, SL_ROW_MLA_BF16, false},
    {DS, SL_BF16, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8, false},
    {DS, SL_F32, SL_INDEX_OFFICIAL, SL_ROW_MLA_F32, false},
    {DS, SL_F32, SL_INDEX_PLAIN, SL_ROW_MLA_FP8, false},
    {F8, SL_BF16, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8, true},
    {F8, SL_F32, SL_INDEX_PLAIN, SL_ROW_MLA_F32, true},
    {GLM, SL_BF16, SL_INDEX_OFFICIAL, SL_ROW_MLA_BF16, false},
    {TINY, SL_BF16, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8, false},
};

/* Logits of another convention differ from those of float32, are finite, and do not depend on the chunks. */
START_TEST(test_conventions)
{
    sl_model_opts exact = options(SL_F32, SL_INDEX_PLAIN, SL_ROW_MLA_F32, false);
    sl_model_opts o =
        options(conventions[_i].act, conventions[_i].index, conventions[_i].row, conventions[_i].fp8);
    rig e = up(conventions[_i].dir, &exact), g = up(conventions[_i].dir, &o);
    float *want = logits_of(&e, 0, LEN), *have = logits_of(&g, 0, LEN);
    for (size_t i = 0; i < LEN * g.vocab; i++)
        ck_assert(isfinite(have[i]));
    ck_assert_msg(memcmp(want, have, LEN * g.vocab * sizeof *want) != 0,
                  "the convention makes no difference");
    for (int32_t chunk = 1, seq = 1; seq < 3; chunk = 23, seq++) {
        float *again = logits_of(&g, seq, chunk);
        ck_assert_msg(memcmp(have, again, LEN * g.vocab * sizeof *have) == 0, "chunks of %d differ", chunk);
        free(again);
    }
    free(want);
    free(have);
    down(&e);
    down(&g);
}
END_TEST

START_TEST(test_limits)
{
    sl_model_opts o = options(SL_F32, SL_INDEX_PLAIN, SL_ROW_MLA_F32, false);
    rig g = up(DS, &o);
    sl_err err = {0};
    sl_seq_tables t = {.n_tokens = 161, .n_seqs = 1};
    sl_forward f = {.seqs = &t};
    ck_assert_int_eq(sl_model_forward(g.m, &f, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "161 tokens"));
    t.n_tokens = 1;
    f.n_logits = 161;
    ck_assert_int_eq(sl_model_forward(g.m, &f, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "161 logit rows"));
    f.n_logits = 0;
    t.n_tokens = 0;
    ck_assert_int_eq(sl_model_forward(g.m, &f, &err), SL_OK);
    f.seqs = NULL;
    ck_assert_int_eq(sl_model_forward(g.m, &f, &err), SL_ERR_INVALID);
    down(&g);
}
END_TEST

static const struct {
    sl_model_opts o;
    const char *says;
} bad_options[] = {
    {{.act = SL_F16, .max_tokens = 4}, "activations"},
    {{.act = SL_F32, .max_tokens = 0}, "max_tokens"},
    {{.act = SL_F32, .max_tokens = 4, .max_logit_rows = 5}, "max_logit_rows"},
    {{.act = SL_F32, .max_tokens = 4, .max_logit_rows = -1}, "max_logit_rows"},
    {{.act = SL_F32, .max_tokens = 4, .max_context = -1}, "max_context"},
};

START_TEST(test_options)
{
    sl_backend *be;
    sl_model *m;
    sl_err err = {0};
    sl_backend_opts bo = {.threads = 1};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    ck_assert_int_eq(sl_model_load(be, DS, &bad_options[_i].o, &m, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, bad_options[_i].says) != NULL, "%s", err.text);
    sl_backend_destroy(be);
}
END_TEST

/* What the backend cannot compute is refused when the model is loaded, not in the first request. */
START_TEST(test_unsupported)
{
    sl_backend *be;
    sl_model *m;
    sl_err err = {0};
    sl_backend_opts bo = {.threads = 1};
    /* index_head_dim 22: no Hadamard */
    sl_model_opts o = options(SL_F32, SL_INDEX_OFFICIAL, SL_ROW_MLA_F32, false);
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    ck_assert_int_eq(sl_model_load(be, "tests/golden/model/ds-odd", &o, &m, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "the cpu backend cannot run it: layer 0, index: ") != NULL, "%s",
                  err.text);
    sl_backend_destroy(be);
}
END_TEST

/* max_context is the smaller of what the config and the caller say. */
START_TEST(test_context)
{
    sl_model_opts o = options(SL_F32, SL_INDEX_PLAIN, SL_ROW_MLA_F32, false);
    rig g = up(DS, &o);
    ck_assert_int_eq(sl_model_get_config(g.m)->max_context, 256);
    down(&g);
    o.max_context = 0;
    g = up(DS, &o);
    ck_assert_int_eq(sl_model_get_config(g.m)->max_context, 4096);
    ck_assert_int_eq(sl_model_get_opts(g.m)->max_tokens, 160);
    down(&g);
    o.max_context = 1 << 20;
    g = up(DS, &o);
    ck_assert_int_eq(sl_model_get_config(g.m)->max_context, 4096);
    down(&g);
}
END_TEST

typedef struct spy {
    sl_resident *r;
    const sl_model_config *c;
    int32_t calls, fail_at;
    const bool *late; /* layers whose queries the receiver makes; NULL: none */
} spy;

static sl_status watch(void *ctx, const sl_attn_call *call, sl_err *err)
{
    spy *s = ctx;
    if (s->calls == s->fail_at)
        return sl_fail(err, SL_ERR_EXHAUSTED, "no pages");
    ck_assert_int_eq(call->layer, s->calls++);
    ck_assert((call->queries != NULL) == (s->late && s->late[call->layer]));
    if (call->queries)
        ck_assert_int_eq(call->queries(call->queries_ctx, err), SL_OK);
    ck_assert(call->has_indexer == s->c->layer_has_indexer[call->layer]);
    ck_assert(call->has_indexer == (call->index.q != NULL) &&
              call->has_indexer == (call->index.weights != NULL));
    ck_assert(call->index.topk == s->c->index.topk && call->index.heads == s->c->index.n_heads);
    ck_assert(call->mla.kv.lora == s->c->attn.kv_lora_rank && call->mla.attn.heads == s->c->attn.n_heads);
    ck_assert(call->mla.attn.scale == s->c->attn.softmax_scale && call->mla.kv.eps == s->c->attn.lora_eps);
    return SL_OK; /* does not write attn.o: only the calls are counted */
}

/* The hook is called once per layer in order; its failure ends the pass and says where. */
START_TEST(test_hook)
{
    sl_model_opts o = options(SL_F32, SL_INDEX_PLAIN, SL_ROW_MLA_F32, false);
    rig g = up(GLM, &o);
    sl_err err = {0};
    int32_t ids[2] = {3, 4}, seq[2] = {0, 0}, pos[2] = {0, 1};
    sl_seq_tables t = {.n_tokens = 2, .n_seqs = 1, .ld = 1, .token_seq = seq, .token_pos = pos};
    spy s = {.c = sl_model_get_config(g.m), .fail_at = 100};
    sl_forward f = {.ids = ids, .seqs = &t, .seam = {.attend = watch, .ctx = &s}};
    ck_assert_msg(sl_model_forward(g.m, &f, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(s.calls, s.c->n_layers);
    s.calls = 0;
    s.fail_at = 3;
    ck_assert_int_eq(sl_model_forward(g.m, &f, &err), SL_ERR_EXHAUSTED);
    ck_assert_msg(strstr(err.text, "layer 3, attend: no pages") != NULL, "%s", err.text);
    ids[1] = 128; /* beyond the vocabulary */
    ck_assert_int_ne(sl_model_forward(g.m, &f, &err), SL_OK);
    down(&g);
}
END_TEST

/* The model leaves the queries to the receiver exactly where the receiver said so, layer by layer. */
START_TEST(test_late_layers)
{
    sl_model_opts o = options(SL_F32, SL_INDEX_PLAIN, SL_ROW_MLA_F32, false);
    rig g = up(GLM, &o);
    sl_err err = {0};
    int32_t ids[2] = {3, 4}, seq[2] = {0, 0}, pos[2] = {0, 1};
    bool late[SL_MAX_LAYERS] = {0};
    sl_seq_tables t = {.n_tokens = 2, .n_seqs = 1, .ld = 1, .token_seq = seq, .token_pos = pos};
    spy s = {.c = sl_model_get_config(g.m), .fail_at = 100, .late = late};
    for (int32_t l = 0, n = 0; l < s.c->n_layers; l++)
        late[l] = s.c->layer_has_indexer[l] && n++ % 2 == 0;
    sl_forward f = {.ids = ids, .seqs = &t, .seam = {.attend = watch, .ctx = &s, .late = late}};
    ck_assert_msg(sl_model_forward(g.m, &f, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(s.calls, s.c->n_layers);
    down(&g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("forward");
    TCase *t = tcase_create("forward");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, test_conventions, 0, SL_COUNT(conventions));
    tcase_add_test(t, test_limits);
    tcase_add_loop_test(t, test_options, 0, SL_COUNT(bad_options));
    tcase_add_test(t, test_unsupported);
    tcase_add_test(t, test_context);
    tcase_add_test(t, test_hook);
    tcase_add_test(t, test_late_layers);
    suite_add_tcase(s, t);
    return run_suite(s);
}
