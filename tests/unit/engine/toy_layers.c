/* See toy_layers.h: the checkpoint of the family, texts, and engines. */
#include "toy_layers.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/model/checkpoint_tools.h"

static char dir[256]; /* of the checkpoint */

static void write_checkpoint(void)
{
    static const char config[] =
        "{\"architectures\":[\"ToyLayersForCausalLM\"],\"model_type\":\"toy_layers\",\"vocab_size\":64,"
        "\"hidden_size\":64,\"intermediate_size\":8,\"num_hidden_layers\":%d,\"num_attention_heads\":2,"
        "\"layer_kinds\":\"%s\",\"max_position_embeddings\":1024,\"rope_theta\":10000,\"rms_norm_eps\":1e-5,"
        "\"tie_word_embeddings\":false,\"hidden_act\":\"silu\",\"eos_token_id\":1}";
    char text[1024];
    ct_list *list = calloc(1, sizeof *list);
    ct_mkdir(dir);
    snprintf(text, sizeof text, config, TOY_LAYERS, TOY_KINDS);
    ct_write_text(dir, "config.json", text);
    ct_add(list, "model.embed_tokens.weight", SL_ST_F32, TOY_VOCAB, TOY_VOCAB);
    float *norm = (float *)(void *)ct_add(list, "model.norm.weight", SL_ST_F32, TOY_VOCAB, 0)->data;
    float *head = (float *)(void *)ct_add(list, "lm_head.weight", SL_ST_F32, TOY_VOCAB, TOY_VOCAB)->data;
    for (int i = 0; i < TOY_VOCAB; i++)
        norm[i] = head[i * TOY_VOCAB + i] = 1;
    ct_write(list, 0, list->n, dir, "model.safetensors", 0);
    ct_free(list);
    free(list);
}

void toy_setup(void)
{
    ck_assert_int_eq(sl_family_add(&toy_family), SL_OK);
    write_checkpoint();
}

void toy_teardown(void)
{
    ct_rmdir(dir);
}

/* ---- texts and engines ---- */

void toy_make_like(toy_text *t, const toy_text *like, int32_t same, int32_t prompt, int32_t n, uint64_t seed)
{
    for (int32_t i = 0; i < prompt; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        t->ids[i] = i < same ? like->ids[i] : (int32_t)(seed >> 33) % TOY_VOCAB;
    }
    toy_restate(t->ids, prompt, n, t->next);
}

void toy_make_text(toy_text *t, int32_t prompt, int32_t n, uint64_t seed)
{
    toy_make_like(t, NULL, 0, prompt, n, seed);
}

fix_opts toy_opts(void)
{
    return (fix_opts){.dir = dir,
                      .rows = SL_ROW_GQA_F32,
                      .act = SL_F32,
                      .max_tokens = TOY_CONTEXT,
                      .max_context = TOY_CONTEXT,
                      .max_seqs = TOY_SEQS,
                      .max_hot = TOY_SEQS,
                      .hot_rows = TOY_SINKS + TOY_RECENT,
                      .tail_rows = 3,
                      .algorithm = "streaming_llm",
                      .gates = {.sink_tokens = TOY_SINKS, .recent_tokens = TOY_RECENT}};
}

void toy_feed(fix *f, fix_run *r, const toy_text *t, int32_t to, int32_t chunk)
{
    for (int32_t at = sl_engine_seq_len(r->seq); at < to;) {
        sl_err err = {0};
        const int32_t n = to - at < chunk ? to - at : chunk;
        sl_step_item it = {.seq = r->seq, .tokens = t->ids + at, .n_tokens = n, .want_logits = 1};
        ck_assert_msg(sl_engine_step(f->engine, &it, 1, NULL, &err) == SL_OK, "%s", err.text);
        at += n;
        const int32_t got = fix_argmax(f, it.logits);
        ck_assert_msg(got == t->next[at - 1], "after token %d: %d, not %d", at - 1, got, t->next[at - 1]);
    }
}
