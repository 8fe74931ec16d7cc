/*
 * Text of messages as the templates of the models cut it: Python's str.strip(), and reasoning that is written inside of
 * the content. The templates run in Python, so white space is what Python calls white space.
 */
#include <string.h>

#include "model/chat_impl.h"

/* The length of the white space character at the start of text[0..len); 0: another character is there. */
static size_t space_at(const char *text, size_t len)
{
    const unsigned char *c = (const unsigned char *)text;
    if (len && ((c[0] >= 0x09 && c[0] <= 0x0D) || (c[0] >= 0x1C && c[0] <= 0x20)))
        return 1;
    if (len >= 2 && c[0] == 0xC2 && (c[1] == 0x85 || c[1] == 0xA0)) /* U+0085, U+00A0 */
        return 2;
    if (len < 3)
        return 0;
    uint32_t v = (uint32_t)c[0] << 16 | (uint32_t)c[1] << 8 | c[2];
    bool space = v == 0xE19A80 ||                    /* U+1680 */
                 (v >= 0xE28080 && v <= 0xE2808A) || /* U+2000 to U+200A */
                 v == 0xE280A8 || v == 0xE280A9 ||   /* U+2028, U+2029 */
                 v == 0xE280AF || v == 0xE2819F ||   /* U+202F, U+205F */
                 v == 0xE38080;                      /* U+3000 */
    return space ? 3 : 0;
}

void ct_strip(const char **text, size_t *len)
{
    size_t n;
    while ((n = space_at(*text, *len)) != 0) {
        *text += n;
        *len -= n;
    }
    while (*len) {
        size_t from = *len - 1;
        while (from > 0 && ((unsigned char)(*text)[from] & 0xC0) == 0x80)
            from--;
        if (space_at(*text + from, *len - from) != *len - from)
            break;
        *len = from;
    }
}

void ct_lstrip_newlines(const char **text, size_t *len)
{
    while (*len && **text == '\n') {
        ++*text;
        --*len;
    }
}

void ct_strip_newlines(const char **text, size_t *len)
{
    ct_lstrip_newlines(text, len);
    while (*len && (*text)[*len - 1] == '\n')
        --*len;
}

/* Last occurrence of needle in text[0..len), or NULL. */
static const char *find_last(const char *text, size_t len, const char *needle)
{
    const char *found = NULL, *at = text;
    while ((at = memmem(at, len - (size_t)(at - text), needle, strlen(needle))) != NULL)
        found = at++;
    return found;
}

ct_answer ct_take_apart_by(const json_t *msg, const char *content, size_t len, const char *open,
                           const char *close)
{
    ct_answer a = {NULL, content, 0, len};
    const json_t *given = json_object_get(msg, "reasoning_content");
    if (json_is_string(given)) {
        a.reasoning = json_string_value(given);
        a.n_reasoning = json_string_length(given);
        return a;
    }
    const char *first = memmem(content, len, close, strlen(close)), *last = find_last(content, len, close);
    if (!first)
        return a;
    a.n_reasoning = (size_t)(first - content);
    const char *begin = find_last(content, a.n_reasoning, open);
    a.reasoning = begin ? begin + strlen(open) : content;
    a.n_reasoning -= (size_t)(a.reasoning - content);
    a.content = last + strlen(close);
    a.n_content = len - (size_t)(a.content - content);
    return a;
}

ct_answer ct_take_apart(const json_t *msg, const char *content, size_t len)
{
    ct_answer a = ct_take_apart_by(msg, content, len, "<think>", "</think>");
    if (a.content != content) { /* the reasoning was in the content */
        ct_strip_newlines(&a.reasoning, &a.n_reasoning);
        ct_lstrip_newlines(&a.content, &a.n_content);
    }
    return a;
}
