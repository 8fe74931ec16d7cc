/*
 * Weights: every tensor that follows from the config is required with its name, shape and dtype, an unknown tensor is
 * refused, and the result does not depend on how the tensors are stored (one file or shards, fused or separate experts,
 * aligned or not, mapped or copied to the device).
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend_resident.h"
#include "checkpoint_tools.h"
#include "kernels/backend_impl.h"
#include "kernels/formats.h"
#include "model/families/dsa/dsa.h"
#include "model/model_impl.h"
#include "tests/unit/run_suite.h"

#define DS "tests/golden/model/ds-yarn"
#define F8 "tests/golden/model/ds-fp8"
#define MTP "tests/golden/model/ds-mtp"
#define GLM_MTP "tests/golden/model/glm-mtp"
#define GLM "tests/golden/model/glm-share"
#define N_IDS 40

static const sl_model_opts plain = {.index_format = SL_INDEX_PLAIN,
                                    .row_format = SL_ROW_MLA_F32,
                                    .act = SL_F32,
                                    .max_tokens = 64,
                                    .max_logit_rows = 64,
                                    .max_context = 256,
                                    .fp8_acts = SL_FP8_ACTS_OFF};

static const sl_model_opts with_draft = {.index_format = SL_INDEX_PLAIN,
                                         .row_format = SL_ROW_MLA_F32,
                                         .act = SL_F32,
                                         .max_tokens = 64,
                                         .max_logit_rows = 64,
                                         .max_context = 256,
                                         .draft = true};
static const sl_model_opts *how = &plain; /* refused() loads */

static ct_list *list;
static char dir[256];

/* Starts from the tensors and the config of a golden checkpoint (single file). */
static void begin(const char *from)
{
    char path[300];
    list = calloc(1, sizeof *list);
    ct_mkdir(dir);
    ct_copy(from, dir, "config.json");
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    ct_read(list, path);
}

static void end(void)
{
    ct_rmdir(dir);
    ct_free(list);
    free(list);
}

static sl_backend *backend(void)
{
    sl_err err = {0};
    sl_backend *be;
    sl_backend_opts o = {.threads = 1};
    ck_assert_msg(sl_backend_create("cpu", &o, &be, &err) == SL_OK, "%s", err.text);
    return be;
}

/* Loads a directory and runs a fixed prompt; logits [N_IDS][vocab], malloc'ed. */
static float *answer(sl_backend *be, const char *from, const sl_model_opts *o, sl_key *key)
{
    sl_err err = {0};
    sl_model *m;
    sl_resident *r;
    int32_t ids[N_IDS];
    for (int32_t i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + 11) % 90;
    ck_assert_msg(sl_model_load(be, from, o, &m, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_resident_create(be, m, 1, 64, &r, &err) == SL_OK, "%s", err.text);
    float *logits = malloc(sizeof *logits * N_IDS * (size_t)sl_model_get_config(m)->vocab_size);
    sl_resident_chunk c = {0, ids, N_IDS};
    ck_assert_msg(sl_resident_step(r, &c, 1, true, logits, &err) == SL_OK, "%s", err.text);
    if (key) {
        sl_key unloaded; /* computed without loading, as by the router */
        *key = sl_model_fingerprint(m);
        ck_assert_msg(sl_model_identify(from, o, &unloaded, &err) == SL_OK, "%s", err.text);
        ck_assert(sl_key_eq(*key, unloaded));
    }
    sl_resident_destroy(r);
    sl_model_destroy(m);
    return logits;
}

static void refused(sl_status status, const char *says, const char *also)
{
    sl_backend *be = backend();
    sl_err err = {0};
    sl_model *m = (void *)&err;
    ct_write(list, 0, list->n, dir, "model.safetensors", 0);
    sl_status rc = sl_model_load(be, dir, how, &m, &err);
    ck_assert_msg(rc == status, "%s: %s", sl_status_name(rc), err.text);
    ck_assert_msg(strstr(err.text, says) && strstr(err.text, also), "\"%s\" does not say \"%s\" and \"%s\"",
                  err.text, says, also);
    ck_assert_msg(strncmp(err.text, dir, strlen(dir)) == 0, "\"%s\" does not name the file", err.text);
    ck_assert_ptr_eq(m, (void *)&err);
    sl_backend_destroy(be);
}

/* Whichever tensor is missing, it is named. */
START_TEST(test_missing)
{
    static const char *const from[] = {DS, F8, MTP};
    begin(from[_i]);
    how = _i == 2 ? &with_draft : &plain;
    size_t n = list->n;
    for (size_t i = 0; i < n; i++) {
        ct_tensor gone = list->t[0]; /* rotate the list, so that each tensor is the first one once */
        memmove(list->t, list->t + 1, (n - 1) * sizeof gone);
        list->n = n - 1;
        refused(SL_ERR_INVALID, gone.name, "");
        list->t[n - 1] = gone;
        list->n = n;
    }
    how = &plain;
    end();
}
END_TEST

/*
 * With BF16 activations an F8 kv_b is loaded as the BF16 values that absorption would use; otherwise
 * unchanged.
 */
START_TEST(test_kv_b)
{
    sl_backend *be = backend();
    sl_err err = {0};
    sl_model *f8, *half;
    sl_model_opts o = plain;
    ck_assert_msg(sl_model_load(be, F8, &o, &f8, &err) == SL_OK, "%s", err.text);
    o.act = SL_BF16;
    ck_assert_msg(sl_model_load(be, F8, &o, &half, &err) == SL_OK, "%s", err.text);
    for (int32_t l = 0; l < f8->config.n_layers; l++) {
        const sl_weight *a = &f8->weights.layers[l].w[SL_DSA_KV_B],
                        *b = &half->weights.layers[l].w[SL_DSA_KV_B];
        ck_assert(a->dtype == SL_F8_E4M3 && a->scale && b->dtype == SL_BF16 && !b->scale);
        ck_assert(a->out == b->out && a->in == b->in);
        for (int64_t i = 0; i < (int64_t)a->out * a->in; i++) {
            float v, s = a->scale[i / a->in / 128 * ((a->in + 127) / 128) + i % a->in / 128];
            sl_load_f32(a->dtype, a->data, i, 1, &v);
            ck_assert_uint_eq(((const uint16_t *)b->data)[i], sl_f32_to_bf16(v * s));
        }
    }
    sl_model_destroy(f8);
    sl_model_destroy(half);
    sl_backend_destroy(be);
}
END_TEST

/* A checkpoint with an MTP layer is the same model with and without that layer, of which the other layers' bits do not depend;
 * but it is another cache, so it has another fingerprint. A model without the layer says so. */
START_TEST(test_draft)
{
    static const char *const from[] = {MTP, GLM_MTP}; /* the second has copies of embedding and head */
    sl_backend *be = backend();
    sl_model *m;
    sl_err err = {0};
    sl_key with, without;
    float *a = answer(be, from[_i], &plain, &without), *b = answer(be, from[_i], &with_draft, &with);
    ck_assert_mem_eq(a, b, sizeof *a * N_IDS * 96);
    ck_assert(!sl_key_eq(with, without));
    free(a);
    free(b);
    ck_assert_int_eq(sl_model_load(be, from[_i], &with_draft, &m, &err), SL_OK);
    const sl_model_config *c = sl_model_get_config(m);
    ck_assert_int_eq(c->n_draft, 1);
    ck_assert_int_eq(c->n_layers, _i ? 5 : 4);
    ck_assert_int_eq(c->n_nextn_layers, 0);
    ck_assert(c->layer_has_indexer[c->n_layers - 1] && c->layer_is_moe[c->n_layers - 1]);
    sl_model_destroy(m);
    ck_assert_int_eq(sl_model_load(be, "tests/golden/model/llama-odd", &with_draft, &m, &err),
                     SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "model.draft_tokens: llama drafts no tokens"));
    sl_backend_destroy(be);
    begin(from[_i]);
    how = &with_draft;
    ct_add(list, _i ? "model.layers.4.other.weight" : "model.layers.3.other.weight", SL_ST_F32, 4, 4);
    refused(SL_ERR_INVALID, "other.weight", "");
    how = &plain;
    end();
}
END_TEST

static const struct {
    const char *name;
    sl_st_dtype dtype;
    int64_t rows, cols;
    bool accepted;
} extra[] = {
    {"model.layers.3.self_attn.q_c_proj.weight", SL_ST_F32, 4, 4, false},
    {"model.layers.1.self_attn.q_a_proj.bias", SL_ST_F32, 48, 0, false},
    {"model.layers.0.mlp.experts.0.gate_proj.weight", SL_ST_F32, 32, 64, false}, /* layer 0 is dense */
    {"model.layers.1.mlp.experts.8.gate_proj.weight", SL_ST_F32, 32, 64, false},
    {"model.layers.1.self_attn.q_a_proj.weight_scale_inv", SL_ST_F32, 1, 1, false},
    {"model.layers.5.self_attn.q_a_proj.weight", SL_ST_F32, 4, 4, false},
    {"model.layers.x.weight", SL_ST_F32, 1, 0, false},
    {"model.layers.4.self_attn.q_a_proj.weight", SL_ST_F32, 48, 64, true}, /* the MTP layer */
    {"model.layers.4.eh_proj.weight", SL_ST_BF16, 3, 3, true},
    {"model.layers.2.self_attn.rotary_emb.inv_freq", SL_ST_F32, 4, 0, true},
    {"model.visual.weight", SL_ST_I64, 1, 0, false},
};

START_TEST(test_extra)
{
    begin(DS);
    ct_add(list, extra[_i].name, extra[_i].dtype, extra[_i].rows, extra[_i].cols);
    if (extra[_i].accepted) {
        sl_backend *be = backend();
        ct_write(list, 0, list->n, dir, "model.safetensors", 0);
        float *a = answer(be, DS, &plain, NULL), *b = answer(be, dir, &plain, NULL);
        ck_assert_mem_eq(a, b, sizeof *a * N_IDS * 128);
        free(a);
        free(b);
        sl_backend_destroy(be);
    } else {
        refused(SL_ERR_INVALID, extra[_i].name, "");
    }
    end();
}
END_TEST

static const struct {
    const char *from, *name;
    sl_st_dtype dtype;
    int64_t rows, cols;
    const char *says;
} replaced[] = {
    {DS, "model.embed_tokens.weight", SL_ST_F32, 127, 64, "shape [127,64], the config asks for [128,64]"},
    {DS, "model.norm.weight", SL_ST_F32, 64, 1, "shape [64,1], the config asks for [64]"},
    {DS, "model.norm.weight", SL_ST_I32, 64, 0, "dtype I32"},
    {DS, "model.layers.1.self_attn.q_b_proj.weight", SL_ST_F32, 48, 96, "shape"},
    {DS, "model.layers.1.self_attn.q_b_proj.weight", SL_ST_F64, 96, 48, "dtype F64"},
    {DS, "model.layers.1.self_attn.q_b_proj.weight", SL_ST_F8_E5M2, 96, 48, "dtype F8_E5M2"},
    {DS, "model.layers.1.self_attn.q_b_proj.weight", SL_ST_F8_E4M3, 96, 48,
     "q_b_proj.weight_scale_inv is missing"},
    {DS, "model.layers.1.mlp.experts.3.up_proj.weight", SL_ST_F32, 32, 63, "shape"},
    {DS, "model.layers.1.mlp.gate.e_score_correction_bias", SL_ST_F32, 7, 0, "shape"},
    {DS, "model.layers.1.self_attn.indexer.k_norm.bias", SL_ST_F8_E4M3, 16, 0, "dtype F8_E4M3"},
    {DS, "model.embed_tokens.weight", SL_ST_F8_E4M3, 128, 64, "dtype F8_E4M3"},
    {F8, "model.layers.1.self_attn.q_a_proj.weight_scale_inv", SL_ST_F32, 2, 1,
     "shape [2,1], the config asks for [2,2]"},
    {F8, "model.layers.1.self_attn.q_a_proj.weight_scale_inv", SL_ST_F16, 2, 2, "a scale must be F32"},
    {F8, "model.layers.1.self_attn.q_a_proj.weight", SL_ST_BF16, 144, 160, "has no scale"},
};

START_TEST(test_replaced)
{
    begin(replaced[_i].from);
    ct_remove(list, replaced[_i].name);
    ct_add(list, replaced[_i].name, replaced[_i].dtype, replaced[_i].rows, replaced[_i].cols);
    refused(SL_ERR_INVALID, replaced[_i].says, replaced[_i].name);
    end();
}
END_TEST

/* Every tensor of a routed expert in another type than those of the layer's other experts: refused when it is loaded, by every
 * rank of a group, also by those that do not hold the expert, and when the checkpoint is only identified. */
START_TEST(test_mixed_experts)
{
    const int groups[] = {1, 2, 3};
    int mixed = 0;
    begin(DS);
    for (size_t i = 0; i < list->n; i++) {
        const ct_tensor was = list->t[i];
        int layer, expert, ranks = groups[mixed % 3];
        char part[8], what[96], layer_is[32];
        if (sscanf(was.name, "model.layers.%d.mlp.experts.%d.%7[a-z]_proj.weight", &layer, &expert, part) !=
            3)
            continue;
        list->t[i].dtype = mixed++ % 2 ? SL_ST_BF16 : SL_ST_F16;
        list->t[i].bytes /= 2;
        snprintf(layer_is, sizeof layer_is, "layer %d: ", layer);
        snprintf(what, sizeof what, "the %s projection of expert %d is %s, that of expert 0 %s", part,
                 expert ? expert : 1, expert ? mixed % 2 ? "F16" : "BF16" : "F32",
                 expert      ? "F32"
                 : mixed % 2 ? "F16"
                             : "BF16");
        for (int r = 0; r < ranks; r++) {
            sl_model_opts o = plain;
            o.rank = r, o.ranks = ranks;
            how = &o;
            refused(SL_ERR_UNSUPPORTED, layer_is, what);
            how = &plain;
        }
        sl_key k;
        sl_err err = {0};
        ck_assert_int_eq(sl_model_identify(dir, &plain, &k, &err), SL_ERR_UNSUPPORTED);
        list->t[i] = was;
    }
    ck_assert_int_ge(mixed, 3 * 8);
    end();
}
END_TEST

/* Writes list as two shards with an index, edited by a format of (first file's name, second file's name). */
static void shards(size_t cut)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    fprintf(f, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (size_t i = 0; i < list->n; i++)
        fprintf(f, "%s\"%s\":\"%c.safetensors\"", i ? "," : "", list->t[i].name, i < cut ? 'a' : 'b');
    fprintf(f, "}}");
    fclose(f);
    ct_write(list, 0, cut, dir, "a.safetensors", 0);
    ct_write(list, cut, list->n, dir, "b.safetensors", 0);
    ct_write_text(dir, "model.safetensors.index.json", text);
    free(text);
}

/* One file, shards, odd alignment and a device without host memory: the same bits and the same fingerprint.
 */
START_TEST(test_storage)
{
    static const char *const from[] = {DS, F8, GLM};
    sl_backend *be = backend(), *copying = backend();
    sl_key key[4];
    copying->caps &= ~(unsigned)SL_BE_UNIFIED;
    begin(from[_i]);
    float *a[4] = {answer(be, from[_i], &plain, &key[0]), answer(copying, from[_i], &plain, &key[1])};
    shards(list->n / 3);
    a[2] = answer(be, dir, &plain, &key[2]);
    ct_write(list, 0, list->n, dir, "model.safetensors", 1); /* takes precedence over the index */
    a[3] = answer(be, dir, &plain, &key[3]);
    for (int i = 1; i < 4; i++) {
        ck_assert_msg(memcmp(a[0], a[i], sizeof **a * N_IDS * 128) == 0, "variant %d differs", i);
        ck_assert_msg(sl_key_eq(key[0], key[i]), "fingerprint of variant %d differs", i);
    }
    for (int i = 0; i < 4; i++)
        free(a[i]);
    end();
    sl_backend_destroy(copying);
    sl_backend_destroy(be);
}
END_TEST

/* Names of the text part of a model with pictures, and of experts in other places: the same bits, also with an index. */
static void rename_tensors(const char *from, const char *to, const char *parts)
{
    static const char *const usual[] = {".gate_proj.", ".up_proj.", ".down_proj."};
    for (size_t i = 0; i < list->n; i++) {
        char name[160], *at;
        snprintf(name, sizeof name, "%s", list->t[i].name);
        if (strncmp(name, from, strlen(from)) == 0)
            snprintf(list->t[i].name, sizeof name, "%s%s", to, name + strlen(from));
        if (!parts || !(at = strstr(name, ".mlp.experts.")))
            continue;
        for (size_t p = 0; p < 3; p++)
            if (strstr(at, usual[p]))
                snprintf(list->t[i].name, sizeof name, "%.*s.block_sparse_moe.experts.%.*s.w%c.weight",
                         (int)(at - name), name, (int)strspn(at + 13, "0123456789"), at + 13, parts[p]);
    }
}

static const struct {
    const char *from, *to, *parts;
} renamed[] = {
    {"", "language_model.", NULL},
    {"model.", "model.language_model.", NULL},
    {"", "", "132"},
};

START_TEST(test_renamed)
{
    sl_backend *be = backend();
    begin(DS);
    rename_tensors(renamed[_i].from, renamed[_i].to, renamed[_i].parts);
    shards(list->n / 2);
    float *a = answer(be, DS, &plain, NULL), *b = answer(be, dir, &plain, NULL);
    ck_assert_mem_eq(a, b, sizeof *a * N_IDS * 128);
    free(a);
    free(b);
    end();
    sl_backend_destroy(be);
}
END_TEST

/* A tensor with the prefix and without it is one tensor twice. */
START_TEST(test_named_twice)
{
    begin(DS);
    ct_add(list, "language_model.model.norm.weight", SL_ST_F32, 64, 0);
    refused(SL_ERR_INVALID, "model.norm.weight is also in", "");
    end();
}
END_TEST

/* glm-share's experts fused: the same bits. */
START_TEST(test_fused)
{
    sl_backend *be = backend();
    begin(GLM);
    for (int layer = 2; layer < 6; layer++)
        ct_fuse(list, layer, 8);
    ct_write(list, 0, list->n, dir, "model.safetensors", 0);
    float *a = answer(be, GLM, &plain, NULL), *b = answer(be, dir, &plain, NULL);
    ck_assert_mem_eq(a, b, sizeof *a * N_IDS * 128);
    free(a);
    free(b);
    end();
    sl_backend_destroy(be);
}
END_TEST

/* A bias and index norms stored in BF16 are widened; their values, being BF16 values, give the same bits. */
START_TEST(test_widened)
{
    static const char *const names[] = {"model.layers.1.mlp.gate.e_score_correction_bias",
                                        "model.layers.2.self_attn.indexer.k_norm.weight"};
    sl_backend *be = backend();
    begin(DS);
    for (size_t i = 0; i < 2; i++) { /* round to BF16 values, still stored in F32 */
        ct_tensor *t = ct_find(list, names[i]);
        for (size_t j = 0; j < t->bytes; j += 4)
            t->data[j] = t->data[j + 1] = 0;
    }
    ct_write(list, 0, list->n, dir, "model.safetensors", 0);
    float *a = answer(be, dir, &plain, NULL);
    for (size_t i = 0; i < 2; i++) {
        ct_tensor *t = ct_find(list, names[i]);
        for (size_t j = 0; j < t->bytes / 4; j++)
            memmove(t->data + 2 * j, t->data + 4 * j + 2, 2);
        t->dtype = SL_ST_BF16;
        t->bytes /= 2;
    }
    ct_write(list, 0, list->n, dir, "model.safetensors", 0);
    float *b = answer(be, dir, &plain, NULL);
    ck_assert_mem_eq(a, b, sizeof *a * N_IDS * 128);
    free(a);
    free(b);
    end();
    sl_backend_destroy(be);
}
END_TEST

static const struct {
    const char *index, *says;
    sl_status status;
} indexes[] = {
    {"{", "index.json: line", SL_ERR_INVALID},
    {"{}", "weight_map: missing", SL_ERR_INVALID},
    {"{\"weight_map\":{}}", "weight_map: missing", SL_ERR_INVALID},
    {"{\"weight_map\":{\"lm_head.weight\":3}}", "not the name of a file", SL_ERR_INVALID},
    {"{\"weight_map\":{\"lm_head.weight\":\"../a.safetensors\"}}", "not the name of a file", SL_ERR_INVALID},
    {"{\"weight_map\":{\"lm_head.weight\":\"/etc/passwd\"}}", "not the name of a file", SL_ERR_INVALID},
    {"{\"weight_map\":{\"lm_head.weight\":\"c.safetensors\"}}", "c.safetensors", SL_ERR_NOT_FOUND},
    {"{\"weight_map\":{\"lm_head.weight\":\"a.safetensors\"}}", "is not in the index", SL_ERR_INVALID},
    {"{\"weight_map\":{\"no.such\":\"a.safetensors\"}}", "tensor no.such is not in a.safetensors",
     SL_ERR_INVALID},
    {"{\"weight_map\":{\"lm_head.weight\":\"a.safetensors\",\"model.norm.weight\":\"b.safetensors\"}}",
     "is also in", SL_ERR_INVALID},
};

START_TEST(test_index)
{
    sl_backend *be = backend();
    sl_err err = {0};
    sl_model *m;
    begin(DS);
    ck_assert_int_eq(sl_model_load(be, dir, &plain, &m, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "neither model.safetensors nor"));
    ct_write(list, 0, list->n, dir, "a.safetensors", 0);
    ct_write(list, 0, 3, dir, "b.safetensors", 0);
    ct_write_text(dir, "model.safetensors.index.json", indexes[_i].index);
    sl_status rc = sl_model_load(be, dir, &plain, &m, &err);
    ck_assert_msg(rc == indexes[_i].status && strstr(err.text, indexes[_i].says), "%s: %s",
                  sl_status_name(rc), err.text);
    end();
    sl_backend_destroy(be);
}
END_TEST

/* The fingerprint changes if and only if rows become incompatible. */
START_TEST(test_fingerprint)
{
    sl_backend *be = backend();
    sl_key key[7];
    sl_model_opts o = plain;
    begin(DS);
    free(answer(be, DS, &o, &key[0]));
    o.max_context = 512;
    o.max_tokens = 50;
    o.max_logit_rows = 50;
    free(answer(be, DS, &o, &key[1]));
    o.act = SL_BF16;
    free(answer(be, DS, &o, &key[2]));
    o = plain;
    o.index_format = SL_INDEX_OFFICIAL;
    free(answer(be, DS, &o, &key[3]));
    o = plain;
    o.row_format = SL_ROW_MLA_BF16;
    free(answer(be, DS, &o, &key[4]));
    ct_find(list, "model.layers.3.mlp.experts.7.down_proj.weight")->data[5] ^= 1;
    ct_write(list, 0, list->n, dir, "model.safetensors", 0);
    free(answer(be, dir, &plain, &key[5]));
    free(answer(be, GLM, &plain, &key[6]));
    ck_assert(sl_key_eq(key[0], key[1]));
    for (int i = 2; i < 7; i++)
        for (int j = 1; j < i; j++)
            ck_assert_msg(!sl_key_eq(key[i], key[j]), "fingerprints %d and %d are equal", i, j);
    end();
    sl_backend_destroy(be);
}
END_TEST

typedef struct seen {
    uint64_t last, total;
    int calls;
} seen;

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    seen *s = ctx;
    ck_assert(done >= s->last && done <= total);
    *s = (seen){done, total, s->calls + 1};
}

START_TEST(test_progress)
{
    sl_backend *be = backend();
    seen s = {0};
    sl_err err = {0};
    sl_model *m;
    sl_model_opts o = plain;
    o.progress = on_progress;
    o.progress_ctx = &s;
    ck_assert_int_eq(sl_model_load(be, DS, &o, &m, &err), SL_OK);
    ck_assert(s.calls >= 1 && s.last == s.total && s.total == sl_model_weight_bytes(m) && s.total > 1000000);
    sl_model_destroy(m);
    sl_model_destroy(NULL);
    sl_backend_destroy(be);
}
END_TEST

START_TEST(test_stored_dtype)
{
    static const struct {
        const char *dir;
        sl_dtype dtype;
        sl_index_format index;
        sl_row_format row;
    } want[] = {
        {DS, SL_F32, SL_INDEX_PLAIN, SL_ROW_MLA_F32},
        {F8, SL_F8_E4M3, SL_INDEX_OFFICIAL, SL_ROW_MLA_FP8},
        {"tests/golden/model/ds-bf16", SL_BF16, SL_INDEX_PLAIN, SL_ROW_MLA_BF16},
        {"tests/golden/model/glm-groups", SL_BF16, SL_INDEX_PLAIN, SL_ROW_MLA_BF16},
    };
    for (size_t i = 0; i < SL_COUNT(want); i++) {
        sl_dtype d;
        sl_err err = {0};
        sl_model_config c;
        sl_index_format index;
        sl_row_format row;
        ck_assert_int_eq(sl_model_stored_dtype(want[i].dir, &d, &err), SL_OK);
        ck_assert_int_eq(sl_model_config_load(want[i].dir, &c, &err), SL_OK);
        sl_model_auto_formats(&c, d, &index, &row);
        ck_assert(d == want[i].dtype && index == want[i].index && row == want[i].row);
    }
}
END_TEST

START_TEST(test_chosen_formats)
{
    sl_err err = {0};
    sl_model_config c;
    sl_index_format index;
    sl_row_format row;
    ck_assert_int_eq(sl_model_config_load(DS, &c, &err), SL_OK);
    ck_assert_int_eq(sl_model_choose_formats(&c, SL_F8_E4M3, NULL, "auto", &index, &row, &err), SL_OK);
    ck_assert(index == SL_INDEX_OFFICIAL && row == SL_ROW_MLA_FP8);
    ck_assert_int_eq(sl_model_choose_formats(&c, SL_F8_E4M3, "plain", "mla_bf16", &index, &row, &err), SL_OK);
    ck_assert(index == SL_INDEX_PLAIN && row == SL_ROW_MLA_BF16);
    ck_assert_int_eq(sl_model_choose_formats(&c, SL_F32, "official", "f8", &index, &row, &err),
                     SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "row format \"f8\" does not exist; there are: mla_f32"));
    ck_assert(index == SL_INDEX_PLAIN && row == SL_ROW_MLA_BF16);
    ck_assert_int_eq(sl_model_choose_formats(&c, SL_F32, "other", NULL, &index, &row, &err),
                     SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "indexer \"other\" does not exist"));
    ck_assert(sl_model_auto_act(SL_F32) == SL_F32 && sl_model_auto_act(SL_F8_E4M3) == SL_BF16);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("weights");
    TCase *t = tcase_create("weights");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, test_kv_b);
    tcase_add_loop_test(t, test_missing, 0, 3);
    tcase_add_loop_test(t, test_draft, 0, 2);
    tcase_add_loop_test(t, test_extra, 0, SL_COUNT(extra));
    tcase_add_test(t, test_mixed_experts);
    tcase_add_loop_test(t, test_replaced, 0, SL_COUNT(replaced));
    tcase_add_loop_test(t, test_storage, 0, 3);
    tcase_add_loop_test(t, test_renamed, 0, SL_COUNT(renamed));
    tcase_add_test(t, test_named_twice);
    tcase_add_test(t, test_fused);
    tcase_add_test(t, test_widened);
    tcase_add_loop_test(t, test_index, 0, SL_COUNT(indexes));
    tcase_add_test(t, test_fingerprint);
    tcase_add_test(t, test_progress);
    tcase_add_test(t, test_stored_dtype);
    tcase_add_test(t, test_chosen_formats);
    suite_add_tcase(s, t);
    return run_suite(s);
}
