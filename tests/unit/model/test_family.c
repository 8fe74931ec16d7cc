/*
 * The seam between the model and its families, tested with a family without latent attention (toy_gqa.h). The family is
 * added to the registry, its config.json and its tensors are read and checked, and its forward pass, which consists of
 * shared steps and of its own, gives the same logits as an implementation of this test in double precision.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_tools.h"
#include "model/config.h"
#include "model/model_impl.h"
#include "tests/unit/run_suite.h"
#include "toy_gqa.h"

enum { VOCAB = 19, HIDDEN = 16, HEADS = 4, KV = 2, DIM = 6, INTER = 24, LAYERS = 2, TOKENS = 5 };

static const char config[] =
    "{\"architectures\":[\"ToyGqaForCausalLM\"],\"model_type\":\"toy_gqa\",\"vocab_size\":19,\"hidden_size\":16,"
    "\"intermediate_size\":24,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"head_dim\":6,\"max_position_embeddings\":64,\"rope_theta\":10000,\"rms_norm_eps\":1e-5,"
    "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\",\"eos_token_id\":[1,2]}";

static const sl_model_opts opts = {.act = SL_F32, .max_tokens = 8, .max_logit_rows = 8};

static sl_status parse(const char *text, sl_model_config *c, sl_err *err)
{
    return sl_model_config_parse(text, strlen(text), "dir/config.json", NULL, 0, NULL, c, err);
}

START_TEST(test_registry)
{
    sl_err err = {0};
    sl_model_config c;
    ck_assert_ptr_null(sl_family_find("toy_gqa"));
    ck_assert_int_eq(parse(config, &c, &err), SL_ERR_UNSUPPORTED);
    for (size_t i = 0; sl_family_at(i); i++)
        ck_assert_msg(strstr(err.text, sl_family_at(i)->model_type), "%s: %s", sl_family_at(i)->model_type,
                      err.text);
    ck_assert_int_eq(sl_family_add(&toy_gqa), SL_OK);
    ck_assert_ptr_eq(sl_family_find("toy_gqa"), &toy_gqa);
    ck_assert_int_eq(sl_family_add(&toy_gqa), SL_ERR_INVALID);
    ck_assert_int_eq(parse("{\"model_type\":\"other\"}", &c, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, ", toy_gqa are"));
}
END_TEST

START_TEST(test_config)
{
    sl_err err = {0};
    sl_model_config c;
    ck_assert_int_eq(sl_family_add(&toy_gqa), SL_OK);
    ck_assert_msg(parse(config, &c, &err) == SL_OK, "%s", err.text);
    ck_assert_str_eq(c.family, "toy_gqa");
    ck_assert(c.attn.n_heads == HEADS && c.attn.n_kv_heads == KV && c.attn.v_head_dim == DIM &&
              c.attn.kv_lora_rank == 0);
    ck_assert(c.tie_word_embeddings && c.n_eos == 2 && c.moe.n_routed == 0 && !c.layer_is_moe[0]);
    ck_assert_float_eq(c.attn.softmax_scale, (float)pow(DIM, -0.5));
}
END_TEST

static const struct {
    const char *from, *to, *says;
} bad[] = {
    {"\"head_dim\":6,", "", "head_dim: missing"},
    {"\"num_key_value_heads\":2", "\"num_key_value_heads\":3", "num_key_value_heads: 3 does not divide"},
    {"\"num_key_value_heads\":2", "\"num_key_value_heads\":\"2\"", "num_key_value_heads: not an integer"},
    {"\"vocab_size\":19,", "", "vocab_size: missing"},
    {"\"rope_theta\":10000,", "", "rope_theta: missing"},
};

START_TEST(test_bad_config)
{
    sl_err err = {0};
    sl_model_config c;
    char text[1024];
    const char *at = strstr(config, bad[_i].from);
    ck_assert_ptr_nonnull(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - config), config, bad[_i].to,
             at + strlen(bad[_i].from));
    ck_assert_int_eq(sl_family_add(&toy_gqa), SL_OK);
    ck_assert_int_eq(parse(text, &c, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, bad[_i].says) && !strncmp(err.text, "dir/config.json: ", 17), "%s",
                  err.text);
}
END_TEST

static ct_list *list;
static char dir[256];

static void add(const char *name, int64_t rows, int64_t cols)
{
    ct_tensor *t = ct_add(list, name, SL_ST_F32, rows, cols);
    float *v = (float *)t->data;
    for (size_t i = 0; i < t->bytes / sizeof *v; i++)
        v[i] = (float)sin((double)(i + 1) * 0.7 + (double)list->n * 1.3) * 0.5f + (cols ? 0 : 1);
}

static void add_layer(int layer, const char *name, int64_t rows, int64_t cols)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.%d.%s.weight", layer, name);
    add(full, rows, cols);
}

static void begin(void)
{
    list = calloc(1, sizeof *list);
    ct_mkdir(dir);
    ct_write_text(dir, "config.json", config);
    add("model.embed_tokens.weight", VOCAB, HIDDEN);
    add("model.norm.weight", HIDDEN, 0);
    for (int l = 0; l < LAYERS; l++) {
        add_layer(l, "input_layernorm", HIDDEN, 0);
        add_layer(l, "post_attention_layernorm", HIDDEN, 0);
        add_layer(l, "self_attn.q_proj", HEADS * DIM, HIDDEN);
        add_layer(l, "self_attn.k_proj", KV * DIM, HIDDEN);
        add_layer(l, "self_attn.v_proj", KV * DIM, HIDDEN);
        add_layer(l, "self_attn.o_proj", HIDDEN, HEADS * DIM);
        add_layer(l, "self_attn.q_norm", DIM, 0);
        add_layer(l, "self_attn.k_norm", DIM, 0);
        add_layer(l, "mlp.gate_proj", INTER, HIDDEN);
        add_layer(l, "mlp.up_proj", INTER, HIDDEN);
        add_layer(l, "mlp.down_proj", HIDDEN, INTER);
    }
    ck_assert_int_eq(sl_family_add(&toy_gqa), SL_OK);
}

static void end(void)
{
    ct_rmdir(dir);
    ct_free(list);
    free(list);
}

static sl_status load(sl_backend **be, sl_model **m, sl_err *err)
{
    sl_backend_opts o = {.threads = 1};
    ck_assert_int_eq(sl_backend_create("cpu", &o, be, err), SL_OK);
    ct_write(list, 0, list->n, dir, "model.safetensors", 0);
    return sl_model_load(*be, dir, &opts, m, err);
}

/* A checkpoint must have exactly the tensors of the family's list. */
START_TEST(test_tensors)
{
    sl_backend *be;
    sl_model *m;
    sl_err err = {0};
    begin();
    if (_i == 0)
        ct_remove(list, "model.layers.1.self_attn.k_norm.weight");
    else
        add("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 4, 4);
    ck_assert_int_eq(load(&be, &m, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, _i ? "self_attn.kv_a_proj_with_mqa.weight is not part of a toy_gqa model"
                                      : "self_attn.k_norm.weight is missing"),
                  "%s", err.text);
    sl_backend_destroy(be);
    end();
}
END_TEST

/* Causal attention of one sequence, one chunk: o = softmax(q k / sqrt(d)) v, HEADS / KV query heads per KV head. */
static void attention(const float *q, const float *k, const float *v, float scale, float *o)
{
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HEADS; h++) {
            int g = h / (HEADS / KV);
            double weight[TOKENS], sum = 0;
            for (int s = 0; s <= t; s++) {
                double dot = 0;
                for (int d = 0; d < DIM; d++)
                    dot += (double)q[(t * HEADS + h) * DIM + d] * k[(s * KV + g) * DIM + d];
                sum += weight[s] = exp(dot * scale);
            }
            for (int d = 0; d < DIM; d++) {
                double x = 0;
                for (int s = 0; s <= t; s++)
                    x += weight[s] / sum * v[(s * KV + g) * DIM + d];
                o[(t * HEADS + h) * DIM + d] = (float)x;
            }
        }
    }
}

static int attended;

static sl_status attend(void *ctx, const sl_attn_call *call, sl_err *err)
{
    sl_model *m = ctx;
    toy_workspace *w = m->ws.own;
    ck_assert_int_eq(call->layer, attended++);
    SL_TRY(sl_be_sync(m->be, err));
    attention(w->qn, w->kn, w->v, m->config.attn.softmax_scale, w->o);
    return SL_OK;
}

/* out[n][rows] = x[n][cols] * w^T; the tensor's name is that of a layer, or of the model (layer -1). */
static void mul(int layer, const char *name, const float *x, int n, int rows, int cols, float *out)
{
    char full[128];
    if (layer < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s.weight", layer, name);
    const float *w = (const float *)ct_find(list, full)->data;
    for (int t = 0; t < n; t++) {
        for (int r = 0; r < rows; r++) {
            double sum = 0;
            for (int c = 0; c < cols; c++)
                sum += (double)x[t * cols + c] * w[r * cols + c];
            out[t * rows + r] = (float)sum;
        }
    }
}

static void norm(int layer, const char *name, const float *x, int n, int dim, float *out)
{
    char full[128];
    if (layer < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s.weight", layer, name);
    const float *w = (const float *)ct_find(list, full)->data;
    for (int t = 0; t < n; t++) {
        double sum = 0;
        for (int i = 0; i < dim; i++)
            sum += (double)x[t * dim + i] * x[t * dim + i];
        for (int i = 0; i < dim; i++)
            out[t * dim + i] = (float)(x[t * dim + i] / sqrt(sum / dim + 1e-5) * w[i]);
    }
}

static void reference_layer(int l, float *x)
{
    static float h[TOKENS * HIDDEN], q[TOKENS * HEADS * DIM], k[TOKENS * KV * DIM], v[TOKENS * KV * DIM],
        o[TOKENS * HEADS * DIM], delta[TOKENS * HIDDEN], gate[TOKENS * INTER], up[TOKENS * INTER];
    norm(l, "input_layernorm", x, TOKENS, HIDDEN, h);
    mul(l, "self_attn.q_proj", h, TOKENS, HEADS * DIM, HIDDEN, q);
    mul(l, "self_attn.k_proj", h, TOKENS, KV * DIM, HIDDEN, k);
    mul(l, "self_attn.v_proj", h, TOKENS, KV * DIM, HIDDEN, v);
    norm(l, "self_attn.q_norm", q, TOKENS * HEADS, DIM, q);
    norm(l, "self_attn.k_norm", k, TOKENS * KV, DIM, k);
    attention(q, k, v, (float)pow(DIM, -0.5), o);
    mul(l, "self_attn.o_proj", o, TOKENS, HIDDEN, HEADS * DIM, delta);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] += delta[i];
    norm(l, "post_attention_layernorm", x, TOKENS, HIDDEN, h);
    mul(l, "mlp.gate_proj", h, TOKENS, INTER, HIDDEN, gate);
    mul(l, "mlp.up_proj", h, TOKENS, INTER, HIDDEN, up);
    for (int i = 0; i < TOKENS * INTER; i++)
        gate[i] = (float)(gate[i] / (1 + exp(-gate[i])) * up[i]);
    mul(l, "mlp.down_proj", gate, TOKENS, HIDDEN, INTER, delta);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] += delta[i];
}

START_TEST(test_forward)
{
    static const int32_t ids[TOKENS] = {3, 18, 0, 7, 3}, rows[TOKENS] = {0, 1, 2, 3, 4};
    static float logits[TOKENS * VOCAB], want[TOKENS * VOCAB], x[TOKENS * HIDDEN];
    sl_seq_tables seqs = {.n_tokens = TOKENS, .n_seqs = 1, .ld = 1};
    sl_backend *be;
    sl_model *m;
    sl_err err = {0};
    begin();
    ck_assert_msg(load(&be, &m, &err) == SL_OK, "%s", err.text);
    sl_forward f = {.ids = ids,
                    .seqs = &seqs,
                    .logit_rows = rows,
                    .n_logits = TOKENS,
                    .logits = logits,
                    .seam = {.attend = attend, .ctx = m}};
    ck_assert_msg(sl_model_forward(m, &f, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_be_sync(be, &err), SL_OK);
    ck_assert_int_eq(attended, LAYERS);

    const float *table = (const float *)ct_find(list, "model.embed_tokens.weight")->data;
    for (int t = 0; t < TOKENS; t++)
        memcpy(x + t * HIDDEN, table + ids[t] * HIDDEN, HIDDEN * sizeof *x);
    for (int l = 0; l < LAYERS; l++)
        reference_layer(l, x);
    norm(-1, "model.norm", x, TOKENS, HIDDEN, x);
    mul(-1, "model.embed_tokens", x, TOKENS, VOCAB, HIDDEN, want);
    for (int i = 0; i < TOKENS * VOCAB; i++)
        ck_assert_float_eq_tol(logits[i], want[i], 2e-4);
    sl_model_destroy(m);
    sl_backend_destroy(be);
    end();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("family");
    TCase *t = tcase_create("family");
    tcase_add_test(t, test_registry);
    tcase_add_test(t, test_config);
    tcase_add_loop_test(t, test_bad_config, 0, SL_COUNT(bad));
    tcase_add_loop_test(t, test_tensors, 0, 2);
    tcase_add_test(t, test_forward);
    suite_add_tcase(s, t);
    return run_suite(s);
}
