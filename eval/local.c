/* A checkpoint in this process as a target of eval.h: one model, and for each setting a store and an engine of its own. */
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"

enum { FACTS_VOCAB_MAX = 4096 };

typedef struct local {
    const sl_local *model;
    const sl_tokenizer *tok;
    sl_chat_format format;
    sl_local_run_opts run_opts;
    sl_local_chosen chosen;
    sl_local_run run; /* of the setting that has begun */
    sl_eval_meter *meter;
    bool open;
} local;

static void end(local *l)
{
    sl_local_run_close(&l->run);
    sl_eval_meter_destroy(l->meter);
    l->meter = NULL;
    l->open = false;
}

/* Query heads that share a key. */
static int32_t shared_heads(const sl_model_config *c)
{
    return c->n_kv_heads > 0 ? c->n_heads / c->n_kv_heads : c->n_heads;
}

static sl_status make_meter(local *l, const sl_eval_setting *s, int32_t length, sl_err *err)
{
    const sl_local_checkpoint *c = &l->model->checkpoint;
    sl_cache_dims dims = sl_engine_cache_dims(&c->cfg, c->row_format, c->index_format);
    sl_cache_shape shape;
    if (!(sl_backend_caps(l->model->be) & SL_BE_UNIFIED))
        return SL_OK;
    dims.select = s->chosen.select;
    SL_TRY(sl_algo_cache_shape(s->chosen.algorithm, &dims, &shape, err));
    l->meter = sl_eval_meter_create(s->chosen.algorithm, &dims, &shape, shared_heads(&c->cfg), length);
    if (!l->meter)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for the scores of %d tokens", length);
    l->run_opts.probe = sl_eval_meter_probe(l->meter);
    return SL_OK;
}

static sl_status begin(void *ctx, const sl_eval_setting *s, int32_t length, sl_err *err)
{
    local *l = ctx;
    end(l);
    sl_status st = make_meter(l, s, length, err);
    l->chosen = s->chosen;
    l->run_opts.chosen = &l->chosen;
    l->run_opts.max_context = length;
    l->run_opts.max_new = length; /* bounds the output's array */
    if (st == SL_OK)
        st = sl_local_run_open(&l->run, &l->run_opts, err);
    l->open = true;
    return st;
}

/* The prompt: the user's message in the format of the model's family, from which no token of the message can escape. */
static sl_status encode(local *l, const char *user, sl_err *err)
{
    sl_chat_prompt p = {0};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", user);
    sl_chat_request q = {.messages = messages};
    if (!messages)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a prompt");
    sl_status st = sl_chat_render(l->format, &q, &p, err);
    free(l->run.prompt);
    l->run.prompt = NULL;
    if (st == SL_OK)
        st = sl_tokenizer_encode_mixed(l->tok, p.text, p.len, 0, p.client, p.n_client, &l->run.prompt,
                                       &l->run.n_prompt, err);
    sl_chat_prompt_free(&p);
    json_decref(messages);
    return st;
}

static sl_status answer(void *ctx, const char *user, int32_t max_new, sl_eval_answer *out, sl_err *err)
{
    local *l = ctx;
    size_t len;
    SL_TRY(encode(l, user, err));
    l->run_opts.max_new = max_new;
    if ((int64_t)l->run.n_prompt + max_new > l->run_opts.max_context)
        return sl_fail(err, SL_ERR_INTERNAL, "a prompt of %zu tokens and %d new ones exceed the length of %d",
                       l->run.n_prompt, max_new, l->run_opts.max_context);
    SL_TRY(sl_local_run_restart(&l->run, err));
    if (l->meter)
        (void)sl_eval_meter_take(l->meter);
    SL_TRY(sl_local_run_request(&l->run, &l->run_opts, err));
    sl_status st = sl_tokenizer_decode(l->tok, l->run.output, l->run.n_output, true, &out->text, &len);
    if (st != SL_OK)
        return sl_fail(err, st, "decoding the answer failed");
    out->prompt_tokens = (int32_t)l->run.n_prompt;
    if (l->meter)
        out->reads = sl_eval_meter_take(l->meter);
    return SL_OK;
}

static int32_t count_tokens(void *ctx, const char *text, size_t len)
{
    const local *l = ctx;
    int32_t *ids = NULL;
    size_t n = 0;
    if (sl_tokenizer_encode(l->tok, text, len, 0, &ids, &n, NULL) != SL_OK)
        return sl_eval_count_pieces(NULL, text, len);
    free(ids);
    return (int32_t)n;
}

static void destroy(void *ctx)
{
    end(ctx);
    free(ctx);
}

/* Tokens of a prompt whose message is one word, without the word. */
static sl_status measure_frame(local *l, int32_t *out, sl_err *err)
{
    SL_TRY(encode(l, "a", err));
    *out = (int32_t)l->run.n_prompt;
    return SL_OK;
}

sl_status sl_eval_local_create(const sl_local *model, const sl_tokenizer *tok, sl_chat_format format,
                               int32_t chunk, sl_eval_target *out, sl_err *err)
{
    local *l = calloc(1, sizeof *l);
    if (!l)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    *l = (local){.model = model, .tok = tok, .format = format};
    l->run_opts =
        (sl_local_run_opts){.model = model, .top_p = 1, .tail_rows = SL_PAGE_TOKENS, .chunk = chunk};
    sl_eval_target t = {.ctx = l,
                        .begin = begin,
                        .answer = answer,
                        .counter = {.count = count_tokens, .ctx = l},
                        .destroy = destroy};
    sl_status st = measure_frame(l, &t.frame_tokens, err);
    if (st == SL_OK)
        *out = t;
    else
        destroy(l);
    return st;
}

bool sl_eval_knows_facts(const sl_tokenizer *tok)
{
    static const char word[] =
        "\xc4\xa0omicron"; /* a blank and the word, as byte-level vocabularies spell it */
    return sl_tokenizer_vocab_size(tok) <= FACTS_VOCAB_MAX &&
           sl_tokenizer_id(tok, word, sizeof word - 1) >= 0;
}
