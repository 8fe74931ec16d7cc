/* See agent.h. */
#include "router/http/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

sl_status oai_agent_create(sl_oai_api api, sl_strbuf *shown, struct oai_agent **out)
{
    *out = NULL;
    if (api != OAI_RESPONSES && api != OAI_MESSAGES)
        return SL_OK;
    struct oai_agent *g = *out = calloc(1, sizeof *g);
    if (!g)
        return SL_ERR_NO_MEMORY;
    g->shape = api == OAI_RESPONSES ? &oai_responses_shape : &oai_messages_shape;
    g->shown = *shown;
    *shown = (sl_strbuf){0};
    return SL_OK;
}

void oai_agent_free(struct oai_agent *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n; i++) {
        sl_sb_free(&g->blocks[i].name);
        sl_sb_free(&g->blocks[i].text);
    }
    free(g->blocks);
    sl_sb_free(&g->shown);
    free(g);
}

bool oai_agent_called(const sl_oai_answer *a)
{
    for (size_t i = 0; i < a->agent->n; i++)
        if (a->agent->blocks[i].kind == OAI_BLOCK_CALL)
            return true;
    return false;
}

/* ---- blocks ---- */

static void close_block(sl_oai_answer *a)
{
    struct oai_agent *g = a->agent;
    if (g->open && a->stream)
        g->shape->close(a, g->n - 1);
    g->open = false;
}

static void open_block(sl_oai_answer *a, oai_block_kind kind, const char *name, size_t len)
{
    struct oai_agent *g = a->agent;
    close_block(a);
    oai_block *b = realloc(g->blocks, (g->n + 1) * sizeof *b);
    if (!b) {
        a->oom = true;
        return;
    }
    g->blocks = b;
    b += g->n++;
    *b = (oai_block){.kind = kind};
    snprintf(b->id, sizeof b->id, "%s_%016lx%08lx", g->shape->ids[kind], sl_random_u64(),
             sl_random_u64() & 0xffffffffu);
    sl_sb_append(&b->name, name, len);
    a->kept += len + sizeof *b;
    a->oom |= b->name.bad;
    g->open = true;
    if (a->stream)
        g->shape->open(a, g->n - 1);
}

static void add(sl_oai_answer *a, oai_block_kind kind, const char *text, size_t len)
{
    struct oai_agent *g = a->agent;
    if (!len)
        return;
    if (!g->open || g->blocks[g->n - 1].kind != kind)
        open_block(a, kind, "", 0);
    if (a->oom)
        return;
    oai_block *b = &g->blocks[g->n - 1];
    sl_sb_append(&b->text, text, len);
    a->kept += len;
    a->oom |= b->text.bad;
    if (a->stream)
        g->shape->delta(a, g->n - 1, text, len);
}

static void on_event(void *user, const sl_chat_event *ev)
{
    sl_oai_answer *a = user;
    switch (ev->kind) {
    case SL_CHAT_REASONING:
        add(a, OAI_BLOCK_THINKING, ev->text, ev->len);
        break;
    case SL_CHAT_CONTENT:
        add(a, OAI_BLOCK_TEXT, ev->text, ev->len);
        break;
    case SL_CHAT_TOOL_BEGIN:
        open_block(a, OAI_BLOCK_CALL, ev->text, ev->len);
        break;
    case SL_CHAT_TOOL_ARGS:
        add(a, OAI_BLOCK_CALL, ev->text, ev->len);
        break;
    default:
        break;
    }
}

/* ---- answers under a constraint ---- */

static void forced(sl_oai_answer *a, oai_choice *c, const char *text, size_t len)
{
    if (a->form == OAI_CALLS) {
        sl_sb_append(&c->text, text, len);
        a->kept += len;
        a->oom |= c->text.bad;
        return;
    }
    if (a->form == OAI_CALL && len && !c->call_sent) {
        c->call_sent = true;
        open_block(a, OAI_BLOCK_CALL, a->function, strlen(a->function));
    }
    add(a, a->form == OAI_CALL ? OAI_BLOCK_CALL : OAI_BLOCK_TEXT, text, len);
}

/* What an answer that reasons before its constraint begins consists of. An answer of an agent is one choice. */
static void on_forced_event(void *user, const sl_chat_event *ev)
{
    sl_oai_answer *a = user;
    if (ev->kind == SL_CHAT_CONTENT)
        forced(a, &a->choices[0], ev->text, ev->len);
    else
        on_event(a, ev);
}

/* A list of calls is there as a whole; one that was cut is text. */
static void end_forced(sl_oai_answer *a, oai_choice *c)
{
    if (c->parser)
        a->oom |= sl_chat_parser_finish(c->parser, on_forced_event, a) != SL_OK;
    if (a->form != OAI_CALLS)
        return;
    json_t *calls = oai_forced_calls(c), *call;
    size_t i;
    if (!calls)
        add(a, OAI_BLOCK_TEXT, c->text.data ? c->text.data : "", c->text.len);
    json_array_foreach(calls, i, call)
    {
        const json_t *f = json_object_get(call, "function");
        const json_t *name = json_object_get(f, "name"), *args = json_object_get(f, "arguments");
        open_block(a, OAI_BLOCK_CALL, json_string_value(name), json_string_length(name));
        add(a, OAI_BLOCK_CALL, json_string_value(args), json_string_length(args));
    }
    json_decref(calls);
}

void oai_agent_output(sl_oai_answer *a, const sl_output *o)
{
    struct oai_agent *g = a->agent;
    oai_choice *c = &a->choices[o->index];
    if (a->stream && !g->begun)
        g->shape->begin(a);
    g->begun = true;
    if (a->form && c->parser)
        a->oom |= sl_chat_parser_feed(c->parser, o->text, o->text_len, on_forced_event, a) != SL_OK;
    else if (a->form)
        forced(a, c, o->text, o->text_len);
    else if (o->text_len)
        a->oom |= sl_chat_parser_feed(c->parser, o->text, o->text_len, on_event, a) != SL_OK;
    if (!o->finished)
        return;
    if (a->form)
        end_forced(a, c);
    else
        a->oom |= sl_chat_parser_finish(c->parser, on_event, a) != SL_OK;
    close_block(a);
    if (a->stream)
        g->shape->end(a);
}

/* ---- events ---- */

void oai_agent_event(sl_oai_answer *a, const char *name)
{
    sl_sb_printf(&a->out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

void oai_agent_event_end(sl_oai_answer *a)
{
    sl_sb_str(&a->out, "}\n\n");
    a->began = true;
}

void oai_agent_member(sl_strbuf *out, const char *key, const char *text, size_t len)
{
    sl_sb_printf(out, ",\"%s\":", key);
    sl_sb_json(out, text ? text : "", len);
}
