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
    FILE *dump;                    /* of lists, or NULL */
    uint64_t tiles, tiles_skipped; /* of the engine, when they were read last */
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
    return c->attn.n_kv_heads > 0 ? c->attn.n_heads / c->attn.n_kv_heads : c->attn.n_heads;
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
    if (l->dump && !sl_eval_meter_dump(l->meter, l->dump))
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for the shares of %d tokens", length);
    l->run_opts.probe = sl_eval_meter_probe(l->meter);
    return SL_OK;
}

static sl_status begin(void *ctx, const sl_eval_setting *s, int32_t length, sl_err *err)
{
    local *l = ctx;
    end(l);
    sl_status st = make_meter(l, s, length, err);
    l->chosen = s->chosen;
    l->tiles = l->tiles_skipped = 0;
    l->run_opts.chosen = &l->chosen;
    l->run_opts.max_context = length;
    l->run_opts.max_new = length; /* bounds the output's array */
    if (st == SL_OK)
        st = sl_local_run_open(&l->run, &l->run_opts, err);
    l->open = true;
    return st;
}

static void drop_prompt(local *l)
{
    free(l->run.prompt);
    l->run.prompt = NULL;
    l->run.n_prompt = 0;
}

/* The user's message in the format of the model's family, from which no token of the message can escape. */
static sl_status encode_chat(local *l, const char *user, sl_err *err)
{
    sl_chat_prompt p = {0};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", user);
    sl_chat_request q = {.messages = messages};
    if (!messages)
        return sl_fail(err, SL_ERR_INVALID, "a prompt is not UTF-8, or memory is out");
    sl_status st = sl_chat_render(l->format, &q, &p, err);
    if (st == SL_OK)
        st = sl_tokenizer_encode_mixed(l->tok, p.text, p.len, 0, p.client, p.n_client, &l->run.prompt,
                                       &l->run.n_prompt, err);
    sl_chat_prompt_free(&p);
    json_decref(messages);
    return st;
}

/* Appends what begins the answer. */
static sl_status encode_prefix(local *l, const char *prefix, sl_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    SL_TRY(sl_tokenizer_encode(l->tok, prefix, strlen(prefix), 0, &ids, &n, err));
    int32_t *all = realloc(l->run.prompt, (l->run.n_prompt + n + 1) * sizeof *all);
    if (all) {
        memcpy(all + l->run.n_prompt, ids, n * sizeof *ids);
        l->run.prompt = all;
        l->run.n_prompt += n;
    }
    free(ids);
    return all ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a prompt");
}

/* As it is: what spells an added token is one, so that a prompt may have a chat format of its own. */
static sl_status encode_text(local *l, const char *user, const char *prefix, sl_err *err)
{
    const size_t n = strlen(user), m = prefix ? strlen(prefix) : 0;
    char *text = malloc(n + m + 1);
    if (!text)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a prompt");
    memcpy(text, user, n);
    memcpy(text + n, prefix ? prefix : "", m + 1);
    sl_status st =
        sl_tokenizer_encode(l->tok, text, n + m, SL_TOK_ADD_SPECIAL, &l->run.prompt, &l->run.n_prompt, err);
    free(text);
    return st;
}

static sl_status encode_user(local *l, const sl_eval_question *q, const char *user, sl_err *err)
{
    drop_prompt(l);
    if (!q->chat)
        return encode_text(l, user, q->prefix, err);
    SL_TRY(encode_chat(l, user, err));
    return q->prefix ? encode_prefix(l, q->prefix, err) : SL_OK;
}

/* The first and the last tokens of the message, `keep` together, as LongBench's programs cut it; malloc'ed. */
static sl_status cut_middle(local *l, const char *user, int32_t keep, char **out, sl_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0, len;
    char *first = NULL, *last = NULL;
    SL_TRY(sl_tokenizer_encode(l->tok, user, strlen(user), 0, &ids, &n, err));
    const size_t half = (size_t)(keep > 1 ? keep / 2 : 0);
    sl_status st = SL_OK;
    *out = NULL;
    if (2 * half < n && (sl_tokenizer_decode(l->tok, ids, half, true, &first, &len) != SL_OK ||
                         sl_tokenizer_decode(l->tok, ids + n - half, half, true, &last, &len) != SL_OK ||
                         asprintf(out, "%s%s", first, last) < 0))
        *out = NULL, st = sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a prompt");
    else if (2 * half >= n && !(*out = strdup(user)))
        st = sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a prompt");
    free(first);
    free(last);
    free(ids);
    return st;
}

/* Fills the prompt of the run; a message that is too long is cut, once more where its halves have become other tokens. */
static sl_status encode(local *l, const sl_eval_question *q, int32_t most, sl_err *err)
{
    SL_TRY(encode_user(l, q, q->user, err));
    int32_t keep = (int32_t)strlen(q->user); /* no more tokens than bytes */
    for (int tries = 0; q->cut && (int64_t)l->run.n_prompt > most && tries < 8; tries++) {
        char *user;
        int32_t *ids = NULL;
        size_t n = 0;
        if (tries == 0) {
            SL_TRY(sl_tokenizer_encode(l->tok, q->user, strlen(q->user), 0, &ids, &n, err));
            free(ids);
            keep = (int32_t)n;
        }
        keep -= (int32_t)l->run.n_prompt - most + tries;
        SL_TRY(cut_middle(l, q->user, keep, &user, err));
        sl_status st = encode_user(l, q, user, err);
        free(user);
        SL_TRY(st);
    }
    return SL_OK;
}

static sl_status measure(void *ctx, const sl_eval_question *q, int32_t *tokens, sl_err *err)
{
    local *l = ctx;
    SL_TRY(encode_user(l, q, q->user, err));
    *tokens = (int32_t)l->run.n_prompt;
    return SL_OK;
}

static sl_status fits(const local *l, int32_t more, sl_err *err)
{
    if (l->run.n_prompt && (int64_t)l->run.n_prompt + more <= l->run_opts.max_context)
        return SL_OK;
    return sl_fail(err, SL_ERR_TOO_LARGE, "a prompt of %zu tokens and %d new ones exceed the length of %d",
                   l->run.n_prompt, more, l->run_opts.max_context);
}

/* What was read since the last call. */
static sl_eval_reads take_reads(local *l)
{
    sl_eval_reads r = l->meter ? sl_eval_meter_take(l->meter) : (sl_eval_reads){0};
    sl_engine_stats s;
    sl_engine_stats_get(l->run.engine, &s);
    r.tiles = s.tiles - l->tiles, r.tiles_skipped = s.tiles_skipped - l->tiles_skipped;
    l->tiles = s.tiles, l->tiles_skipped = s.tiles_skipped;
    return r;
}

static sl_status answer(void *ctx, const sl_eval_question *q, sl_eval_answer *out, sl_err *err)
{
    local *l = ctx;
    size_t len;
    SL_TRY(encode(l, q, l->run_opts.max_context - q->max_new, err));
    l->run_opts.max_new = q->max_new;
    SL_TRY(fits(l, q->max_new, err));
    SL_TRY(sl_local_run_restart(&l->run, err));
    (void)take_reads(l);
    SL_TRY(sl_local_run_request(&l->run, &l->run_opts, err));
    sl_status st = sl_tokenizer_decode(l->tok, l->run.output, l->run.n_output, true, &out->text, &len);
    if (st != SL_OK)
        return sl_fail(err, st, "decoding the answer failed");
    out->prompt_tokens = (int32_t)l->run.n_prompt;
    out->reads = take_reads(l);
    return SL_OK;
}

typedef struct onlooker {
    const sl_eval_follow *f;
    int32_t vocab;
} onlooker;

static void pass_on(void *ctx, int32_t i, const float *logits)
{
    const onlooker *o = ctx;
    o->f->seen(o->f->ctx, i, logits, o->vocab);
}

static sl_status follow(void *ctx, const sl_eval_follow *f, sl_eval_reads *reads, sl_err *err)
{
    local *l = ctx;
    onlooker o = {.f = f, .vocab = l->model->checkpoint.cfg.vocab_size};
    drop_prompt(l);
    l->run.prompt = malloc((size_t)f->n_prompt * sizeof *f->tokens);
    if (!l->run.prompt)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a prompt");
    memcpy(l->run.prompt, f->tokens, (size_t)f->n_prompt * sizeof *f->tokens);
    l->run.n_prompt = (size_t)f->n_prompt;
    SL_TRY(fits(l, f->n, err));
    SL_TRY(sl_local_run_restart(&l->run, err));
    (void)take_reads(l);
    SL_TRY(sl_local_run_follow(&l->run, &l->run_opts, f->tokens + f->n_prompt, f->n, pass_on, &o, err));
    *reads = take_reads(l);
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
    SL_TRY(encode_chat(l, "a", err));
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
    l->run_opts = (sl_local_run_opts){
        .model = model, .top_p = 1, .tail_rows = SL_PAGE_TOKENS, .chunk = chunk, .count_tiles = true};
    sl_eval_target t = {.ctx = l,
                        .begin = begin,
                        .answer = answer,
                        .measure = measure,
                        .follow = follow,
                        .vocab = model->checkpoint.cfg.vocab_size,
                        .counter = {.count = count_tokens, .ctx = l},
                        .destroy = destroy};
    sl_status st = measure_frame(l, &t.frame_tokens, err);
    if (st == SL_OK)
        *out = t;
    else
        destroy(l);
    return st;
}

sl_status sl_eval_local_dump(sl_eval_target *t, FILE *to, sl_err *err)
{
    local *l = t->ctx;
    if (!(sl_backend_caps(l->model->be) & SL_BE_UNIFIED))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "lists are seen with the CPU backend only");
    l->dump = to;
    return SL_OK;
}

bool sl_eval_knows_facts(const sl_tokenizer *tok)
{
    static const char word[] =
        "\xc4\xa0omicron"; /* a blank and the word, as byte-level vocabularies spell it */
    return sl_tokenizer_vocab_size(tok) <= FACTS_VOCAB_MAX &&
           sl_tokenizer_id(tok, word, sizeof word - 1) >= 0;
}
