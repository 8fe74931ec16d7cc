/*
 * Logprobs as JSON text, in the two shapes of the API: one list of objects for chat, four parallel lists for
 * completions.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "router/http/openai_answer_impl.h"

void oai_put_logprob(sl_strbuf *sb, float v)
{
    char text[40];
    int n =
        snprintf(text, sizeof text, "%.17g", isfinite(v) ? (double)v : -9999.0); /* JSON has no infinity */
    sl_sb_append(sb, text, (size_t)n);
    if (!strpbrk(text, ".e")) /* parsers that distinguish integers from reals must see a real */
        sl_sb_str(sb, ".0");
}

static void comma(sl_strbuf *sb)
{
    if (sb->len)
        sl_sb_char(sb, ',');
}

char *oai_token_text(const sl_oai_answer *a, int32_t id, size_t *len)
{
    char *text;
    return sl_tokenizer_decode(a->env.tok, &id, 1, false, &text, len) ? NULL : text;
}

/* The members of one token's object, without the brace that closes it. */
static void put_chat_token(const sl_oai_answer *a, int32_t id, float logprob, sl_strbuf *sb)
{
    size_t len, n;
    char *text = oai_token_text(a, id, &len);
    sl_sb_char(sb, '{');
    if (text) {
        sl_sb_str(sb, "\"token\":");
        sl_sb_json(sb, text, len);
        sl_sb_char(sb, ',');
    }
    free(text);
    sl_sb_str(sb, "\"logprob\":");
    oai_put_logprob(sb, logprob);
    sl_sb_str(sb, ",\"bytes\":[");
    const char *piece = sl_tokenizer_piece(a->env.tok, id, &n);
    for (size_t i = 0; piece && i < n; i++)
        sl_sb_printf(sb, i ? ",%u" : "%u", (unsigned)(unsigned char)piece[i]);
    sl_sb_char(sb, ']');
}

static void add_chat(const sl_oai_answer *a, sl_strbuf *sb, const sl_msg_token *t)
{
    comma(sb);
    put_chat_token(a, t->id, t->logprob, sb);
    sl_sb_str(sb, ",\"top_logprobs\":[");
    for (int i = 0; i < t->n_top && i < a->top; i++) {
        if (i)
            sl_sb_char(sb, ',');
        put_chat_token(a, t->top_ids[i], t->top_logprobs[i], sb);
        sl_sb_char(sb, '}');
    }
    sl_sb_str(sb, "]}");
}

/* An object from text to logprob; of several tokens with one text the first counts. */
static void add_top(const sl_oai_answer *a, sl_strbuf *sb, const sl_msg_token *t)
{
    char *seen[SL_MSG_MAX_TOP];
    size_t lens[SL_MSG_MAX_TOP], n = 0;
    comma(sb);
    sl_sb_char(sb, '{');
    for (int i = 0; i < t->n_top && i < a->top; i++) {
        seen[n] = oai_token_text(a, t->top_ids[i], &lens[n]);
        bool twice = !seen[n];
        for (size_t k = 0; k < n && !twice; k++)
            twice = lens[k] == lens[n] && !memcmp(seen[k], seen[n], lens[n]);
        if (twice) {
            free(seen[n]);
            continue;
        }
        if (n)
            sl_sb_char(sb, ',');
        sl_sb_json(sb, seen[n], lens[n]);
        sl_sb_char(sb, ':');
        oai_put_logprob(sb, t->top_logprobs[i]);
        n++;
    }
    sl_sb_char(sb, '}');
    while (n)
        free(seen[--n]);
}

static void add_text(const sl_oai_answer *a, oai_logprobs *lp, const sl_msg_token *t)
{
    size_t len = 0;
    char *text = oai_token_text(a, t->id, &len);
    comma(&lp->tokens);
    sl_sb_json(&lp->tokens, text ? text : "", len);
    comma(&lp->values);
    oai_put_logprob(&lp->values, t->logprob);
    add_top(a, &lp->top, t);
    comma(&lp->offsets);
    sl_sb_printf(&lp->offsets, "%zu", lp->offset);
    lp->offset += text ? len : 0;
    free(text);
}

void oai_logprobs_add(const sl_oai_answer *a, oai_logprobs *lp, const sl_msg_token *t)
{
    if (a->chat)
        add_chat(a, &lp->content, t);
    else
        add_text(a, lp, t);
}

bool oai_logprobs_any(const oai_logprobs *lp)
{
    return lp->content.len || lp->tokens.len;
}

size_t oai_logprobs_bytes(const oai_logprobs *lp)
{
    return lp->content.len + lp->tokens.len + lp->values.len + lp->top.len + lp->offsets.len;
}

static void take_list(const char *name, sl_strbuf *list, sl_strbuf *out)
{
    sl_sb_str(out, name);
    sl_sb_append(out, list->data ? list->data : "", list->len);
    sl_sb_char(out, ']');
    out->bad |= list->bad;
    sl_sb_free(list);
}

void oai_logprobs_take(const sl_oai_answer *a, oai_logprobs *lp, sl_strbuf *out)
{
    if (!a->logprobs) {
        sl_sb_str(out, "null");
        return;
    }
    if (a->chat) {
        take_list("{\"content\":[", &lp->content, out);
    } else {
        take_list("{\"tokens\":[", &lp->tokens, out);
        take_list(",\"token_logprobs\":[", &lp->values, out);
        take_list(",\"top_logprobs\":[", &lp->top, out);
        take_list(",\"text_offset\":[", &lp->offsets, out);
    }
    sl_sb_char(out, '}');
}

void oai_logprobs_free(oai_logprobs *lp)
{
    sl_sb_free(&lp->content);
    sl_sb_free(&lp->tokens);
    sl_sb_free(&lp->values);
    sl_sb_free(&lp->top);
    sl_sb_free(&lp->offsets);
}
