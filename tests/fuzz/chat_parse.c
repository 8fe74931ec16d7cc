/*
 * Generated text of arbitrary bytes through the streaming answer parser, once in each of two divisions into pieces:
 * both give the same parts, and the arguments of every call are a complete JSON object. The first byte: bits 0, 1, 6 and 7 are
 * the format, bit 2 thinking, with bit 4 at the model's will, bit 3 no tools.
 */
#include <stdlib.h>
#include <string.h>

#include "model/chat.h"
#include "model/tokenizer_utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct log {
    char *p;
    size_t n, cap, args_from;
    int last;
    /* the input is UTF-8 without NUL (jansson accepts none in a key), so arguments must be JSON */
    bool valid;
} log;

static void add(log *l, const void *bytes, size_t n)
{
    if (l->cap - l->n < n) {
        l->cap = (l->n + n) * 2;
        l->p = realloc(l->p, l->cap);
        if (!l->p)
            abort();
    }
    memcpy(l->p + l->n, bytes, n);
    l->n += n;
}

static void sink(void *user, const sl_chat_event *ev)
{
    log *l = user;
    if (ev->kind == SL_CHAT_TOOL_END && l->valid) {
        json_t *args = json_loadb(l->p + l->args_from, l->n - l->args_from,
                                  JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        if (!json_is_object(args))
            abort();
        json_decref(args);
    }
    if ((int)ev->kind != l->last || ev->kind == SL_CHAT_TOOL_BEGIN) {
        char mark = (char)('0' + ev->kind);
        add(l, &mark, 1);
        l->last = (int)ev->kind;
    }
    if (ev->kind == SL_CHAT_TOOL_ARGS && ev->len && l->args_from == 0)
        l->args_from = l->n;
    if (ev->kind == SL_CHAT_TOOL_BEGIN || ev->kind == SL_CHAT_TOOL_END)
        l->args_from = 0;
    if (ev->len)
        add(l, ev->text, ev->len);
}

static log run(uint8_t mode, const json_t *tools, const char *text, size_t len, size_t step)
{
    sl_chat_parser *p;
    log l = {.last = -1, .valid = sl_utf8_valid_len(text, len) == len && !memchr(text, 0, len)};
    sl_chat_format format = (sl_chat_format)(((mode & 3) | (mode >> 4 & 12)) % SL_CHAT_FORMATS);
    sl_chat_think think = !(mode & 4) ? SL_CHAT_THINK_NO
                          : mode & 16 ? SL_CHAT_THINK_ADAPTIVE
                                      : SL_CHAT_THINK_YES;
    if (sl_chat_parser_create(format, think, mode & 8 ? NULL : tools, &p) != SL_OK)
        abort();
    for (size_t at = 0; at < len; at += step) {
        if (sl_chat_parser_feed(p, text + at, len - at < step ? len - at : step, sink, &l) != SL_OK)
            abort();
    }
    if (sl_chat_parser_finish(p, sink, &l) != SL_OK)
        abort();
    sl_chat_parser_destroy(p);
    return l;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *tools;
    if (!tools)
        tools = json_loads(
            "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
            "\"n\":{\"type\":\"number\"},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"o\":{\"type\":\"object\","
            "\"additionalProperties\":{\"type\":[\"object\",\"null\"]}}}}}}]",
            0, NULL);
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    log a = run(data[0], tools, text, size - 2, size),
        b = run(data[0], tools, text, size - 2, 1u + data[1] % 9);
    if (a.n != b.n || (a.n && memcmp(a.p, b.p, a.n) != 0))
        abort();
    free(a.p);
    free(b.p);
    return 0;
}
