/*
 * What the prompts of DeepSeek-V3.2 and V4 have in common: how tools and a response format are told, and how calls are
 * written, in tags with the name DSML.
 */
#include <string.h>

#include "model/chat_impl.h"

#define D CT_DSML

static void add_tools(ct_render *r, const ct_dsml *d, const json_t *tools)
{
    size_t i;
    json_t *tool;
    ct_str(&r->out, "\n\n");
    ct_str(&r->out, d->head);
    json_array_foreach(tools, i, tool)
    {
        ct_str(&r->out, i ? "\n" : "");
        ct_client_json(r, ct_function(tool));
    }
    ct_str(&r->out, d->tail);
}

static void add_schema(ct_render *r, const json_t *schema)
{
    ct_str(&r->out,
           "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
    ct_client_json(r, schema);
}

void ct_dsml_extras(ct_render *r, const ct_dsml *d, const json_t *msg, bool with_request)
{
    const json_t *tools = json_object_get(msg, "tools"), *schema = json_object_get(msg, "response_format");
    bool own = json_array_size(tools) > 0;
    if (!own && with_request)
        tools = ct_tools(r->req);
    if (json_array_size(tools) > 0)
        add_tools(r, d, tools);
    if (!own && with_request && tools)
        ct_choice(r);
    if ((!schema || json_is_null(schema)) && with_request)
        schema = ct_schema(r->req);
    if (schema && !json_is_null(schema))
        add_schema(r, schema);
}

static sl_status add_call(ct_render *r, size_t i, size_t k)
{
    const char *name, *key;
    json_t *args, *v;
    SL_TRY(ct_arguments(r, i, k, &name, &args));
    ct_str(&r->out, k ? "\n<" D "invoke name=\"" : "<" D "invoke name=\"");
    ct_client(r, name, strlen(name));
    ct_str(&r->out, "\">\n");
    bool first = true;
    json_object_foreach(args, key, v)
    {
        ct_str(&r->out, first ? "<" D "parameter name=\"" : "\n<" D "parameter name=\"");
        ct_client(r, key, strlen(key));
        ct_str(&r->out, json_is_string(v) ? "\" string=\"true\">" : "\" string=\"false\">");
        if (json_is_string(v))
            ct_client(r, json_string_value(v), json_string_length(v));
        else
            ct_client_json(r, v);
        ct_str(&r->out, "</" D "parameter>");
        first = false;
    }
    ct_str(&r->out, "\n</" D "invoke>");
    json_decref(args);
    return SL_OK;
}

sl_status ct_dsml_calls(ct_render *r, size_t i, const char *block)
{
    size_t n = json_array_size(ct_tool_calls(r->msgs[i]));
    if (!n)
        return SL_OK;
    ct_str(&r->out, "\n\n<" D);
    ct_str(&r->out, block);
    ct_str(&r->out, ">\n");
    for (size_t k = 0; k < n; k++)
        SL_TRY(add_call(r, i, k));
    ct_str(&r->out, "\n</" D);
    ct_str(&r->out, block);
    ct_str(&r->out, ">");
    return SL_OK;
}
