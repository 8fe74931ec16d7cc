/*
 * What an answer shows of its prompt: the text (echo), and the log-probabilities of its tokens (echo with logprobs, and
 * prompt_logprobs as vLLM has it). Pure, any thread.
 *
 * The text becomes a JSON string when the request is parsed, on the pool; a choice copies it. Log-probabilities come in parts
 * while the prompt is computed, and are kept as they come, eight bytes each: making JSON of those of a long prompt would hold
 * the loop. It is made with the document, on the pool. So they are not for streams.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "router/http/openai_answer_impl.h"
#include "router/http/openai_impl.h"

enum {
    JSON_BYTES =
        40, /* of each log-probability in the JSON: the number, the text of its token, punctuation. For the budget. */
    SEVERAL = 3 /* what an answer takes is counted so often: sl_oai_answer_memory() */
};

void sl_oai_prompts_free(sl_oai_prompt *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sl_sb_free(&p[i].json);
        sl_sb_free(&p[i].scores);
    }
    free(p);
}

/* ---- the request ---- */

sl_status sl_oai_read_shown(const json_t *o, sl_oai_request *q, sl_err *err)
{
    int64_t n = -1;
    SL_TRY(sl_json_opt_bool(o, "body", "echo", &q->echo, err));
    SL_TRY(sl_json_opt_int(o, "body", "prompt_logprobs", 0, SL_LOGPROBS_MAX, &n, err));
    q->prompt_logprobs = (int)n;
    bool echoed = q->echo && q->logprobs;
    if (q->stream && (echoed || n >= 0))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "body.%s: log-probabilities of the prompt need stream false",
                       n >= 0 ? "prompt_logprobs" : "echo");
    int most = echoed && q->top_logprobs > n ? q->top_logprobs : (int)n;
    q->spec.sampling.prompt_logprobs = 1 + most;
    return SL_OK;
}

/* The text that the client sent, or that its tokens have. */
static sl_status show(const sl_oai_env *env, const json_t *text, const sl_prompt *p, bool echo,
                      sl_oai_prompt *out, sl_err *err)
{
    char *decoded = NULL;
    const char *s = text ? json_string_value(text) : NULL;
    size_t piece, len = text ? json_string_length(text) : 0;
    out->first = p->n ? p->ids[0] : 0;
    const char *first = sl_tokenizer_piece(env->tok, out->first, &piece);
    out->added = s && !(first && piece <= len && !memcmp(first, s, piece));
    if (!echo)
        return SL_OK;
    if (!s && sl_tokenizer_decode(env->tok, p->ids, p->n, false, &decoded, &len))
        return sl_fail(err, SL_ERR_INVALID, "body.echo: the prompt has a token id that is in no vocabulary");
    out->len = len;
    sl_sb_json(&out->json, s ? s : decoded, len);
    free(decoded);
    return out->json.bad ? sl_fail(err, SL_ERR_NO_MEMORY, "out of memory")
                         : sl_guard_take(env->guard, out->json.cap, err);
}

/* What a token and `top` others take while they are kept, and in the documents of n choices. */
static uint64_t score_bytes(uint64_t top, uint64_t n)
{
    return 1 + (1 + top) * (sizeof(sl_logprob) + JSON_BYTES * n);
}

/* What follows from the request of the memory that its answer will take: what can never fit is refused before it is computed, and
 * its client is not told to come again. */
static sl_status check_fits(const sl_oai_env *env, const sl_oai_request *q, sl_err *err)
{
    const sl_request_spec *s = &q->spec;
    const int asked = s->sampling.prompt_logprobs;
    uint64_t need = 0, most = env->guard ? env->guard->most : 0;
    for (size_t i = 0; i < s->n_prompts; i++) {
        need += q->prompts[i].json.len * (q->stream ? 1 : (uint64_t)s->n);
        if (asked > 0 && s->prompts[i].n)
            need += (s->prompts[i].n - 1) * score_bytes((uint64_t)asked - 1, s->n);
    }
    need *= SEVERAL;
    if (!most || need <= most)
        return SL_OK;
    return sl_fail(
        err, SL_ERR_TOO_LARGE,
        "body.%s: an answer with what it shows of its prompts takes at least %lu bytes of memory, of %lu that the server "
        "has for all requests (router.max_request_bytes); ask for fewer tokens, choices or log-probabilities",
        q->prompt_logprobs >= 0 ? "prompt_logprobs" : "echo", (unsigned long)need, (unsigned long)most);
}

sl_status sl_oai_show_prompts(const sl_oai_env *env, const json_t *prompt, sl_oai_request *q, sl_err *err)
{
    const sl_request_spec *s = &q->spec;
    if (!q->echo && q->prompt_logprobs < 0)
        return SL_OK;
    q->prompts = calloc(s->n_prompts, sizeof *q->prompts);
    if (!q->prompts)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    q->n_shown = s->n_prompts;
    for (size_t i = 0; i < s->n_prompts; i++) {
        const json_t *text =
            s->n_prompts > 1 || (json_is_array(prompt) && json_is_string(json_array_get(prompt, 0)))
                ? json_array_get(prompt, i)
                : prompt;
        SL_TRY(show(env, json_is_string(text) ? text : NULL, &s->prompts[i], q->echo, &q->prompts[i], err));
    }
    return check_fits(env, q, err);
}

/* ---- what comes ---- */

/* One token: its id and its log-probability, the number of others, then theirs. */
static void keep(sl_strbuf *sb, const sl_msg_token *t)
{
    sl_logprob list[1 + SL_MSG_MAX_TOP] = {{t->id, t->logprob}};
    uint8_t n = t->n_top;
    for (uint8_t i = 0; i < n; i++)
        list[1 + i] = (sl_logprob){t->top_ids[i], t->top_logprobs[i]};
    sl_sb_append(sb, (const char *)&n, sizeof n);
    sl_sb_append(sb, (const char *)list, (1 + (size_t)n) * sizeof list[0]);
}

/* Takes one token from what was kept; false: there is none, or no caller wants it any more. */
static bool next(const sl_oai_answer *a, const sl_strbuf *sb, size_t *at, sl_msg_token *t)
{
    sl_logprob list[1 + SL_MSG_MAX_TOP];
    if (*at >= sb->len || sl_guard_check(a->env.guard, NULL))
        return false;
    uint8_t n = (uint8_t)sb->data[*at];
    memcpy(list, sb->data + *at + 1, (1 + (size_t)n) * sizeof list[0]);
    *t = (sl_msg_token){.id = list[0].id, .logprob = list[0].logprob, .n_top = n};
    for (uint8_t i = 0; i < n; i++) {
        t->top_ids[i] = list[1 + i].id;
        t->top_logprobs[i] = list[1 + i].logprob;
    }
    *at += 1 + (1 + (size_t)n) * sizeof list[0];
    return true;
}

void oai_prompt_take(sl_oai_answer *a, uint32_t prompt, const sl_msg_token *t, size_t n)
{
    if (!n || prompt >= a->n_shown)
        return;
    sl_strbuf *sb = &a->prompts[prompt].scores;
    for (size_t i = 0; i < n; i++) {
        keep(sb, &t[i]);
        a->kept += score_bytes(t[i].n_top, a->n_per_prompt);
    }
    a->oom |= sb->bad;
}

/* ---- the answer ---- */

void oai_prompt_text(const sl_oai_answer *a, uint32_t choice, const char *text, size_t len, sl_strbuf *out)
{
    if (!a->echo) {
        sl_sb_json(out, text, len);
        return;
    }
    const sl_strbuf *json = &a->prompts[choice / a->n_per_prompt].json;
    sl_sb_append(out, json->data, json->len - 1); /* without the quotation mark that ends it */
    size_t at = out->len;
    sl_sb_json(out, text, len);
    if (out->bad)
        return;
    memmove(out->data + at, out->data + at + 1,
            out->len - at - 1); /* nor the one that begins the other one */
    out->len--;
}

/* Appends a list of JSON to another one. */
static void join(sl_strbuf *to, sl_strbuf *list)
{
    if (list->len)
        sl_sb_char(to, ',');
    sl_sb_append(to, list->data ? list->data : "", list->len);
    to->bad |= list->bad;
    sl_sb_free(list);
}

void oai_prompt_logprobs(const sl_oai_answer *a, uint32_t choice, oai_logprobs *lp)
{
    oai_logprobs all = {0};
    sl_msg_token t;
    size_t len = 0;
    if (!a->echo || !a->logprobs)
        return;
    const sl_oai_prompt *p = &a->prompts[choice / a->n_per_prompt];
    char *text = oai_token_text(a, p->first, &len);
    sl_sb_json(&all.tokens, text ? text : "", text ? len : 0);
    free(text);
    sl_sb_str(&all.values, "null");
    sl_sb_str(&all.top, "null");
    sl_sb_str(&all.offsets, "0");
    all.offset = p->added ? 0 : len;
    for (size_t at = 0; next(a, &p->scores, &at, &t);)
        oai_logprobs_add(a, &all, &t);
    join(&all.tokens, &lp->tokens);
    join(&all.values, &lp->values);
    join(&all.top, &lp->top);
    join(&all.offsets, &lp->offsets);
    *lp = all;
}

/* "id":{"logprob":…,"rank":…,"decoded_token":…}; rank 0: not known */
static void put_entry(const sl_oai_answer *a, int32_t id, float logprob, int rank, sl_strbuf *out)
{
    size_t len = 0;
    char *text = oai_token_text(a, id, &len);
    sl_sb_printf(out, "\"%d\":{\"logprob\":", id);
    oai_put_logprob(out, logprob);
    if (rank)
        sl_sb_printf(out, ",\"rank\":%d", rank);
    else
        sl_sb_str(out, ",\"rank\":null");
    sl_sb_str(out, ",\"decoded_token\":");
    sl_sb_json(out, text ? text : "", text ? len : 0);
    sl_sb_char(out, '}');
    free(text);
}

void oai_prompt_input(const sl_oai_answer *a, sl_strbuf *out)
{
    sl_msg_token t;
    sl_sb_printf(out, ",\"input_token_logprobs\":[[null,%d,null]", a->prompts[0].first);
    for (size_t at = 0; next(a, &a->prompts[0].scores, &at, &t);) {
        sl_sb_str(out, ",[");
        oai_put_logprob(out, t.logprob);
        sl_sb_printf(out, ",%d,null]", t.id);
    }
    sl_sb_char(out, ']');
}

void oai_prompt_member(const sl_oai_answer *a, uint32_t choice, sl_strbuf *out)
{
    sl_msg_token t;
    if (a->prompt_top < 0)
        return;
    sl_sb_str(out, ",\"prompt_logprobs\":[null");
    for (size_t at = 0; next(a, &a->prompts[choice / a->n_per_prompt].scores, &at, &t);) {
        int rank = 0;
        for (int i = 0; i < t.n_top; i++)
            rank = t.top_ids[i] == t.id ? i + 1 : rank;
        sl_sb_str(out, ",{");
        put_entry(a, t.id, t.logprob, rank, out);
        for (int i = 0; i < t.n_top && i < a->prompt_top; i++) {
            if (t.top_ids[i] == t.id)
                continue;
            sl_sb_char(out, ',');
            put_entry(a, t.top_ids[i], t.top_logprobs[i], i + 1, out);
        }
        sl_sb_char(out, '}');
    }
    sl_sb_char(out, ']');
}
