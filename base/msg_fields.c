/* The kinds of fields of which messages consist, each in both directions. See msg_impl.h. */
#include <string.h>

#include "base/msg_impl.h"

void sl_mf_fail(sl_codec *c, const char *field)
{
    if (!c->bad)
        c->field = field;
    c->bad = true;
}

/* Called after each read: if the reader has failed, remembers the name of the field. */
static void settle(sl_codec *c, const char *field)
{
    if (c->r && c->r->bad)
        sl_mf_fail(c, field);
}

void sl_mf_require(sl_codec *c, const char *field, bool ok)
{
    if (c->r && !c->bad && !ok)
        sl_mf_fail(c, field);
}

#define SCALAR(suffix, type)                                                                                 \
    void sl_mf_##suffix(sl_codec *c, const char *field, type *v)                                             \
    {                                                                                                        \
        if (c->w)                                                                                            \
            sl_wr_##suffix(c->w, *v);                                                                        \
        else                                                                                                 \
            *v = sl_rd_##suffix(c->r);                                                                       \
        settle(c, field);                                                                                    \
    }
SCALAR(u8, uint8_t)
SCALAR(u32, uint32_t)
SCALAR(u64, uint64_t)
SCALAR(i32, int32_t)
SCALAR(f32, float)
#undef SCALAR

void sl_mf_str(sl_codec *c, const char *field, char *s, size_t cap)
{
    if (c->w)
        sl_wr_blob(c->w, s, strnlen(s, cap - 1));
    else
        sl_rd_str(c->r, s, cap);
    settle(c, field);
}

void sl_mf_blob(sl_codec *c, const char *field, sl_blob *b)
{
    if (c->w) {
        sl_wr_blob(c->w, b->data, b->len);
    } else {
        b->data = sl_rd_blob(c->r, &b->len);
        settle(c, field);
        sl_mf_require(c, field, b->len <= SL_MSG_MAX_BLOB);
    }
}

void sl_mf_i32s(sl_codec *c, const char *field, int32_t **v, size_t *n, size_t max)
{
    if (c->w)
        sl_wr_i32s(c->w, *v, *n);
    else
        sl_rd_i32s(c->r, v, n, max);
    settle(c, field);
}

void sl_mf_u32s(sl_codec *c, const char *field, uint32_t **v, size_t *n, size_t max)
{
    if (c->w)
        sl_wr_u32s(c->w, *v, *n);
    else
        sl_rd_u32s(c->r, v, n, max);
    settle(c, field);
}

void sl_mf_key(sl_codec *c, const char *field, sl_key *k)
{
    sl_mf_u64(c, field, &k->lo);
    sl_mf_u64(c, field, &k->hi);
}

void sl_mf_flag(sl_codec *c, const char *field, uint8_t *v)
{
    sl_mf_u8(c, field, v);
    sl_mf_require(c, field, *v <= 1);
}

void sl_mf_request(sl_codec *c, uint64_t *rid, uint32_t *attempt)
{
    sl_mf_u64(c, "rid", rid);
    sl_mf_u32(c, "attempt", attempt);
    sl_mf_require(c, "attempt", *attempt >= 1);
}

size_t sl_mf_pages_of(size_t tokens)
{
    return (tokens + SL_MSG_PAGE_TOKENS - 1) / SL_MSG_PAGE_TOKENS;
}

void sl_mf_identity(sl_codec *c, sl_identity *id)
{
    sl_mf_key(c, "id.fingerprint", &id->fingerprint);
    sl_mf_blob(c, "id.geometry", &id->geometry);
}

void sl_mf_token(sl_codec *c, const char *field, sl_msg_token *t)
{
    sl_mf_i32(c, field, &t->id);
    sl_mf_f32(c, field, &t->logprob);
    sl_mf_u8(c, field, &t->n_top);
    sl_mf_require(c, field, t->n_top <= SL_MSG_MAX_TOP);
    if (c->bad)
        return;
    for (int i = 0; i < t->n_top; i++) {
        sl_mf_i32(c, field, &t->top_ids[i]);
        sl_mf_f32(c, field, &t->top_logprobs[i]);
    }
}

/* Prompt, sampling and seed: the same in RESERVE and PREFILL. */
void sl_mf_prompt(sl_codec *c, uint32_t *n_prompt, int32_t **tokens, size_t *n_tokens)
{
    sl_mf_u32(c, "n_prompt", n_prompt);
    sl_mf_i32s(c, "tokens", tokens, n_tokens, SL_MSG_MAX_TOKENS);
    sl_mf_require(c, "tokens", *n_tokens >= 1);
    sl_mf_require(c, "n_prompt", *n_prompt >= 1 && *n_prompt <= *n_tokens);
}

/* Zero means "none": a sender that forgot the seed would let everybody share. */
void sl_mf_seed(sl_codec *c, const char *field, sl_key *seed)
{
    sl_mf_key(c, field, seed);
    sl_mf_require(c, field, seed->lo | seed->hi);
}
