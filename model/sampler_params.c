/*
 * Sampling parameters: defaults, ownership, bounds and the wire form.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/sampler.h"

/* SCORES: with prompt_logprobs, which older workers do not have; they refuse such a request alone. */
enum { WIRE_VERSION = 2, WIRE_VERSION_SCORES = 3 };
/* Added to the kind of a constraint that does not hold from the first token on. */
enum { BEGINS_LATER = 0x80 };

void sl_sampling_default(sl_sampling *s)
{
    *s = (sl_sampling){.temperature = 1,
                       .top_p = 1,
                       .repetition_penalty = 1,
                       .n_logprobs = -1,
                       .max_tokens = SL_SAMPLING_MAX_TOKENS};
}

void sl_sampling_free(sl_sampling *s)
{
    free(s->bias);
    free(s->stop_ids);
    free(s->grammar);
    sl_sampling_default(s);
}

/* malloc'ed copy; *out = NULL for n = 0. */
static sl_status copy_list(const void *from, size_t n, size_t each, void **out)
{
    void *p = NULL;
    if (n) {
        p = malloc(n * each);
        if (!p)
            return SL_ERR_NO_MEMORY;
        memcpy(p, from, n * each);
    }
    *out = p;
    return SL_OK;
}

sl_status sl_sampling_set_bias(sl_sampling *s, const sl_logit_bias *bias, uint32_t n)
{
    void *p;
    SL_TRY(copy_list(bias, n, sizeof *bias, &p));
    free(s->bias);
    s->bias = p;
    s->n_bias = n;
    return SL_OK;
}

sl_status sl_sampling_set_stop_ids(sl_sampling *s, const int32_t *ids, uint32_t n)
{
    void *p;
    SL_TRY(copy_list(ids, n, sizeof *ids, &p));
    free(s->stop_ids);
    s->stop_ids = p;
    s->n_stop_ids = n;
    return SL_OK;
}

sl_status sl_sampling_set_constraint(sl_sampling *s, sl_grammar_kind kind, const char *text, size_t n)
{
    char *copy = NULL;
    if (kind != SL_GRAMMAR_NONE) {
        copy = malloc(n + 1);
        if (!copy)
            return SL_ERR_NO_MEMORY;
        if (n)
            memcpy(copy, text, n);
        copy[n] = 0;
    }
    free(s->grammar);
    s->grammar = copy;
    s->constraint = kind;
    s->n_grammar = copy ? (uint32_t)n : 0;
    return SL_OK;
}

sl_status sl_sampling_copy(const sl_sampling *s, sl_sampling *out)
{
    sl_sampling c = *s;
    c.bias = NULL;
    c.stop_ids = NULL;
    c.grammar = NULL;
    SL_TRY(sl_sampling_set_bias(&c, s->bias, s->n_bias));
    sl_status st = sl_sampling_set_stop_ids(&c, s->stop_ids, s->n_stop_ids);
    if (st == SL_OK)
        st = sl_sampling_set_constraint(&c, s->constraint, s->grammar, s->n_grammar);
    if (st != SL_OK) {
        sl_sampling_free(&c);
        return st;
    }
    *out = c;
    return SL_OK;
}

/* ---- bounds ---- */

static sl_status check_floats(const sl_sampling *s, sl_err *err)
{
    const struct {
        const char *name;
        float value, low, high;
        bool open; /* low itself is not allowed */
    } rows[] = {
        {"temperature", s->temperature, 0, 100, false},
        {"top_p", s->top_p, 0, 1, true},
        {"min_p", s->min_p, 0, 1, false},
        {"frequency_penalty", s->frequency_penalty, -2, 2, false},
        {"presence_penalty", s->presence_penalty, -2, 2, false},
        {"repetition_penalty", s->repetition_penalty, SL_REPETITION_MIN, 10, false},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        bool ok = rows[i].open ? rows[i].value > rows[i].low : rows[i].value >= rows[i].low;
        if (!ok || !(rows[i].value <= rows[i].high))
            return sl_fail(err, SL_ERR_INVALID, "%s: %g is not in %c%g, %g]", rows[i].name,
                           (double)rows[i].value, rows[i].open ? '(' : '[', (double)rows[i].low,
                           (double)rows[i].high);
    }
    return SL_OK;
}

static sl_status check_ints(const sl_sampling *s, sl_err *err)
{
    const struct {
        const char *name;
        int32_t value, low, high;
    } rows[] = {
        {"top_k", s->top_k, 0, INT32_MAX},
        {"logprobs", s->n_logprobs, -1, SL_LOGPROBS_MAX},
        {"prompt_logprobs", s->prompt_logprobs, 0, 1 + SL_LOGPROBS_MAX},
        {"max_tokens", s->max_tokens, 1, INT32_MAX},
        {"min_tokens", s->min_tokens, 0, s->max_tokens},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        if (rows[i].value < rows[i].low || rows[i].value > rows[i].high)
            return sl_fail(err, SL_ERR_INVALID, "%s: %d is not in [%d, %d]", rows[i].name, rows[i].value,
                           rows[i].low, rows[i].high);
    }
    return SL_OK;
}

static sl_status check_bias(const sl_sampling *s, int32_t vocab, sl_err *err)
{
    if (s->n_bias > SL_BIAS_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "logit_bias: %u entries, at most %d", s->n_bias, SL_BIAS_MAX);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        const sl_logit_bias *b = &s->bias[i];
        if (b->id < 0 || b->id >= vocab)
            return sl_fail(err, SL_ERR_INVALID, "logit_bias: token %d is not in the vocabulary of %d", b->id,
                           vocab);
        if (!(b->bias >= -100 && b->bias <= 100))
            return sl_fail(err, SL_ERR_INVALID, "logit_bias: %g for token %d is not in [-100, 100]",
                           (double)b->bias, b->id);
        for (uint32_t k = 0; k < i; k++) {
            if (s->bias[k].id == b->id)
                return sl_fail(err, SL_ERR_INVALID, "logit_bias: token %d is listed twice", b->id);
        }
    }
    return SL_OK;
}

/* The text itself is judged by sl_grammar_open(). */
static sl_status check_constraint(const sl_sampling *s, int32_t vocab, sl_err *err)
{
    if (s->constraint < SL_GRAMMAR_NONE || s->constraint >= SL_GRAMMAR_KINDS)
        return sl_fail(err, SL_ERR_INVALID, "constraint: there is no kind %d", (int)s->constraint);
    if (s->constraint_after < 0 || s->constraint_after > vocab || (s->constraint_after && !s->constraint))
        return sl_fail(err, SL_ERR_INVALID,
                       "constraint_after: want a token of the vocabulary, with a constraint");
    if (s->n_grammar > SL_GRAMMAR_BYTES_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%s: %u bytes; at most %d are possible",
                       sl_grammar_kind_names[s->constraint], s->n_grammar, SL_GRAMMAR_BYTES_MAX);
    return SL_OK;
}

sl_status sl_sampling_validate(const sl_sampling *s, int32_t vocab, sl_err *err)
{
    SL_TRY(check_constraint(s, vocab, err));
    SL_TRY(check_floats(s, err));
    SL_TRY(check_ints(s, err));
    SL_TRY(check_bias(s, vocab, err));
    if (s->n_stop_ids > SL_STOP_IDS_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "stop_token_ids: %u entries, at most %d", s->n_stop_ids,
                       SL_STOP_IDS_MAX);
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] < 0 || s->stop_ids[i] >= vocab)
            return sl_fail(err, SL_ERR_INVALID, "stop_token_ids: token %d is not in the vocabulary of %d",
                           s->stop_ids[i], vocab);
    }
    return SL_OK;
}

/* ---- wire ---- */

void sl_sampling_write(sl_wr *w, const sl_sampling *s)
{
    sl_wr_u8(w, s->prompt_logprobs ? WIRE_VERSION_SCORES : WIRE_VERSION);
    sl_wr_f32(w, s->temperature);
    sl_wr_i32(w, s->top_k);
    sl_wr_f32(w, s->top_p);
    sl_wr_f32(w, s->min_p);
    sl_wr_f32(w, s->frequency_penalty);
    sl_wr_f32(w, s->presence_penalty);
    sl_wr_f32(w, s->repetition_penalty);
    sl_wr_u64(w, s->seed);
    sl_wr_i32(w, s->n_logprobs);
    sl_wr_i32(w, s->min_tokens);
    sl_wr_i32(w, s->max_tokens);
    sl_wr_u8(w, s->ignore_eos);
    sl_wr_u32(w, s->n_bias);
    for (uint32_t i = 0; i < s->n_bias; i++) {
        sl_wr_i32(w, s->bias[i].id);
        sl_wr_f32(w, s->bias[i].bias);
    }
    sl_wr_i32s(w, s->stop_ids, s->n_stop_ids);
    sl_wr_u8(w, (uint8_t)s->constraint | (s->constraint_after ? BEGINS_LATER : 0));
    if (s->constraint)
        sl_wr_blob(w, s->grammar, s->n_grammar);
    if (s->constraint_after)
        sl_wr_i32(w, s->constraint_after);
    if (s->prompt_logprobs)
        sl_wr_i32(w, s->prompt_logprobs);
}

static void read_bias(sl_rd *r, sl_sampling *s)
{
    uint32_t n = sl_rd_u32(r);
    if (n > SL_BIAS_MAX || (size_t)(r->end - r->p) / 8 < n)
        r->bad = true;
    if (r->bad || n == 0)
        return;
    s->bias = malloc(n * sizeof *s->bias);
    if (!s->bias) {
        r->bad = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        s->bias[i].id = sl_rd_i32(r);
        s->bias[i].bias = sl_rd_f32(r);
    }
    s->n_bias = n;
}

static void read_constraint(sl_rd *r, sl_sampling *s)
{
    uint8_t first = sl_rd_u8(r), kind = first & (BEGINS_LATER - 1);
    size_t n = 0;
    const uint8_t *text = kind ? sl_rd_blob(r, &n) : NULL;
    if (kind >= SL_GRAMMAR_KINDS || n > SL_GRAMMAR_BYTES_MAX || (kind && !text))
        r->bad = true;
    if (first & BEGINS_LATER) { /* an older reader takes it for an unknown kind, and refuses it */
        s->constraint_after = sl_rd_i32(r);
        r->bad |= s->constraint_after <= 0 || !kind;
    }
    if (!r->bad && sl_sampling_set_constraint(s, (sl_grammar_kind)kind, (const char *)text, n) != SL_OK)
        r->bad = true;
}

sl_status sl_sampling_read(sl_rd *r, sl_sampling *out)
{
    sl_sampling s;
    sl_sampling_default(&s);
    uint8_t version = sl_rd_u8(r);
    if (version != WIRE_VERSION && version != WIRE_VERSION_SCORES)
        r->bad = true;
    s.temperature = sl_rd_f32(r);
    s.top_k = sl_rd_i32(r);
    s.top_p = sl_rd_f32(r);
    s.min_p = sl_rd_f32(r);
    s.frequency_penalty = sl_rd_f32(r);
    s.presence_penalty = sl_rd_f32(r);
    s.repetition_penalty = sl_rd_f32(r);
    s.seed = sl_rd_u64(r);
    s.n_logprobs = sl_rd_i32(r);
    s.min_tokens = sl_rd_i32(r);
    s.max_tokens = sl_rd_i32(r);
    uint8_t ignore_eos = sl_rd_u8(r);
    if (ignore_eos > 1)
        r->bad = true;
    s.ignore_eos = ignore_eos;
    read_bias(r, &s);
    size_t n = 0;
    sl_rd_i32s(r, &s.stop_ids, &n, SL_STOP_IDS_MAX);
    s.n_stop_ids = (uint32_t)n;
    read_constraint(r, &s);
    if (version == WIRE_VERSION_SCORES) {
        s.prompt_logprobs = sl_rd_i32(r);
        r->bad |= s.prompt_logprobs == 0; /* is written in the other version */
    }
    if (r->bad) {
        sl_sampling_free(&s);
        return SL_ERR_CORRUPT;
    }
    *out = s;
    return SL_OK;
}
