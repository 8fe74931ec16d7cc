/*
 * SGLang's answer to /generate: the text and its meta_info. In a stream every event carries the text from its beginning.
 */
#include <string.h>

#include "router/http/openai_answer_impl.h"

/* Keeps [log-probability, token, null] of each token of the output. */
static void keep_logprobs(sl_oai_answer *a, oai_choice *c, const sl_output *o)
{
    for (size_t i = 0; a->logprobs && i < o->n_tokens; i++) {
        size_t before = c->lp.content.len;
        sl_sb_char(&c->lp.content, before ? ',' : '[');
        sl_sb_char(&c->lp.content, '[');
        oai_put_logprob(&c->lp.content, o->tokens[i].logprob);
        sl_sb_printf(&c->lp.content, ",%d,null]", o->tokens[i].id);
        a->kept += c->lp.content.len - before;
    }
}

static void put_finish(const oai_choice *c, sl_strbuf *out)
{
    if (!c->ended) {
        sl_sb_str(out, "null");
    } else if (!strcmp(c->finish, "length")) {
        sl_sb_printf(out, "{\"type\":\"length\",\"length\":%u}", c->completion_tokens);
    } else {
        sl_sb_str(out, "{\"type\":\"stop\",\"matched\":");
        if (c->stop_reason)
            oai_put_stop_reason(c, out);
        else
            sl_sb_str(out, "null");
        sl_sb_char(out, '}');
    }
}

static void put_answer(const sl_oai_answer *a, sl_strbuf *out)
{
    const oai_choice *c = &a->choices[0];
    sl_sb_str(out, "{\"text\":");
    sl_sb_json(out, c->text.data ? c->text.data : "", c->text.len);
    sl_sb_printf(
        out,
        ",\"meta_info\":{\"id\":\"%s\",\"prompt_tokens\":%u,\"completion_tokens\":%u,\"cached_tokens\":%u,"
        "\"finish_reason\":",
        a->id, c->prompt_tokens, c->completion_tokens, c->cached_tokens);
    put_finish(c, out);
    if (a->logprobs) {
        sl_sb_str(out, ",\"output_token_logprobs\":");
        sl_sb_append(out, c->lp.content.data ? c->lp.content.data : "[",
                     c->lp.content.len ? c->lp.content.len : 1);
        sl_sb_char(out, ']');
    }
    if (a->prompt_top >= 0)
        oai_prompt_input(a, out);
    sl_sb_str(out, "}}");
}

void oai_generate_output(sl_oai_answer *a, const sl_output *o)
{
    oai_choice *c = &a->choices[0];
    sl_sb_append(&c->text, o->text, o->text_len);
    a->kept += o->text_len;
    keep_logprobs(a, c, o);
    if (!a->stream || (!o->text_len && !o->finished))
        return;
    sl_sb_str(&a->out, "data: ");
    put_answer(a, &a->out);
    sl_sb_str(&a->out, o->finished ? "\n\ndata: [DONE]\n\n" : "\n\n");
    a->began = true;
}

char *oai_generate_document(const sl_oai_answer *a)
{
    sl_strbuf out = {0};
    put_answer(a, &out);
    return sl_sb_take(&out);
}
