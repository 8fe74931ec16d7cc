/*
 * Anthropic's answer: one message of blocks; as events message_start, content_block_start, content_block_delta, content_block_stop
 * for each block, message_delta, message_stop. Tokens that were in the caches are counted as read from them, not as input.
 */
#include <stdlib.h>
#include <string.h>

#include "router/http/agent.h"

static void put_usage(const sl_oai_answer *a, sl_strbuf *out)
{
    const oai_choice *c = &a->choices[0];
    sl_sb_printf(out,
                 "{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,"
                 "\"output_tokens\":%u}",
                 c->prompt_tokens - c->cached_tokens, c->cached_tokens, c->completion_tokens);
}

static void put_stop(const sl_oai_answer *a, sl_strbuf *out)
{
    const oai_choice *c = &a->choices[0];
    const char *why = oai_agent_called(a)                         ? "tool_use"
                      : c->finish && !strcmp(c->finish, "length") ? "max_tokens"
                      : c->stop_string                            ? "stop_sequence"
                                                                  : "end_turn";
    sl_sb_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", why);
    if (c->stop_string && !strcmp(why, "stop_sequence"))
        sl_sb_json(out, c->stop_reason, strlen(c->stop_reason));
    else
        sl_sb_str(out, "null");
}

static void put_head(const sl_oai_answer *a, sl_strbuf *out)
{
    sl_sb_str(out, "{\"id\":");
    sl_sb_json(out, a->id, strlen(a->id));
    sl_sb_str(out, ",\"type\":\"message\",\"role\":\"assistant\"");
    oai_agent_member(out, "model", a->env.served_name, strlen(a->env.served_name));
    sl_sb_str(out, ",\"content\":[");
}

/* With its contents, or as it begins. */
static void put_block(const oai_block *b, bool whole, sl_strbuf *out)
{
    const char *text = whole && b->text.data ? b->text.data : "";
    size_t len = whole ? b->text.len : 0;
    if (b->kind == OAI_BLOCK_TEXT) {
        sl_sb_str(out, "{\"type\":\"text\"");
        oai_agent_member(out, "text", text, len);
    } else if (b->kind == OAI_BLOCK_THINKING) {
        sl_sb_str(out, "{\"type\":\"thinking\"");
        oai_agent_member(out, "thinking", text, len);
        sl_sb_str(out, ",\"signature\":\"\"");
    } else {
        sl_sb_str(out, "{\"type\":\"tool_use\"");
        oai_agent_member(out, "id", b->id, strlen(b->id));
        oai_agent_member(out, "name", b->name.data, b->name.len);
        /* The model's text may be no object, if it was cut. */
        json_t *input = len ? json_loadb(text, len, JSON_ALLOW_NUL, NULL) : NULL;
        sl_sb_str(out, ",\"input\":");
        oai_put_json(json_is_object(input) ? json_incref(input) : json_object(), out);
        json_decref(input);
    }
    sl_sb_char(out, '}');
}

static void begin(sl_oai_answer *a)
{
    oai_agent_event(a, "message_start");
    sl_sb_str(&a->out, ",\"message\":");
    put_head(a, &a->out);
    sl_sb_str(&a->out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    put_usage(a, &a->out);
    sl_sb_char(&a->out, '}');
    oai_agent_event_end(a);
}

static void open_block(sl_oai_answer *a, size_t i)
{
    oai_agent_event(a, "content_block_start");
    sl_sb_printf(&a->out, ",\"index\":%zu,\"content_block\":", i);
    put_block(&a->agent->blocks[i], false, &a->out);
    oai_agent_event_end(a);
}

static void delta(sl_oai_answer *a, size_t i, const char *text, size_t len)
{
    static const char *const kinds[][2] = {[OAI_BLOCK_THINKING] = {"thinking_delta", "thinking"},
                                           [OAI_BLOCK_TEXT] = {"text_delta", "text"},
                                           [OAI_BLOCK_CALL] = {"input_json_delta", "partial_json"}};
    const char *const *kind = kinds[a->agent->blocks[i].kind];
    oai_agent_event(a, "content_block_delta");
    sl_sb_printf(&a->out, ",\"index\":%zu,\"delta\":{\"type\":\"%s\"", i, kind[0]);
    oai_agent_member(&a->out, kind[1], text, len);
    sl_sb_char(&a->out, '}');
    oai_agent_event_end(a);
}

static void close_block(sl_oai_answer *a, size_t i)
{
    oai_agent_event(a, "content_block_stop");
    sl_sb_printf(&a->out, ",\"index\":%zu", i);
    oai_agent_event_end(a);
}

static void end(sl_oai_answer *a)
{
    oai_agent_event(a, "message_delta");
    sl_sb_str(&a->out, ",\"delta\":{");
    put_stop(a, &a->out);
    sl_sb_str(&a->out, "},\"usage\":");
    put_usage(a, &a->out);
    oai_agent_event_end(a);
    oai_agent_event(a, "message_stop");
    oai_agent_event_end(a);
}

static void error(sl_oai_answer *a, sl_status st, const char *text)
{
    int code;
    free(sl_oai_error_json(st, text, &code));
    char *json = sl_oai_messages_error(code, text);
    sl_sb_str(&a->out, "event: error\ndata: ");
    sl_sb_str(&a->out, json ? json : "{}");
    sl_sb_str(&a->out, "\n\n");
    free(json);
}

static char *document(sl_oai_answer *a)
{
    sl_strbuf out = {0};
    put_head(a, &out);
    for (size_t i = 0; i < a->agent->n; i++) {
        if (i)
            sl_sb_char(&out, ',');
        put_block(&a->agent->blocks[i], true, &out);
    }
    sl_sb_str(&out, "],");
    put_stop(a, &out);
    sl_sb_str(&out, ",\"usage\":");
    put_usage(a, &out);
    sl_sb_char(&out, '}');
    return sl_sb_take(&out);
}

const oai_agent_shape oai_messages_shape = {.ids = {"thinking", "text", "toolu"},
                                            .begin = begin,
                                            .open = open_block,
                                            .delta = delta,
                                            .close = close_block,
                                            .end = end,
                                            .error = error,
                                            .document = document};
