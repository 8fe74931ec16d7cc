/* See dump.h. Numbers are written byte by byte, so that the file is the same on every machine. */
#include "eval/dump.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER = 1, LIST = 2 };

static void put_u64(FILE *to, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(v >> 8 * i & 0xff), to);
}

static void put_f32(FILE *to, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_u64(to, bits, 4);
}

void sl_eval_dump_begin(FILE *to)
{
    fputs("sluice-lists 2\n", to);
}

void sl_eval_dump_answer(FILE *to, const char *task, int32_t document, const char *algorithm, int32_t budget,
                         int32_t length)
{
    json_t *o = json_pack("{s:s, s:i, s:s, s:i, s:i}", "task", task, "document", document, "algorithm",
                          algorithm, "budget", budget, "length", length);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    put_u64(to, text ? strlen(text) : 2, 4);
    put_u64(to, ANSWER, 4);
    fputs(text ? text : "{}", to);
    free(text);
}

void sl_eval_dump_one(FILE *to, const sl_eval_dump_list *l)
{
    const int32_t head[] = {l->layer, l->list, l->position, l->unit_tokens, l->n};
    uint64_t bits;
    memcpy(&bits, &l->mass, sizeof bits);
    put_u64(to, sizeof head + 8 + 12 * (uint64_t)l->n, 4);
    put_u64(to, LIST, 4);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        put_u64(to, (uint32_t)head[i], 4);
    put_u64(to, bits, 8);
    for (int32_t i = 0; i < l->n; i++)
        put_u64(to, (uint32_t)l->ids[i], 4);
    for (int32_t i = 0; i < l->n; i++)
        put_f32(to, l->shares[i]);
    for (int32_t i = 0; i < l->n; i++)
        put_f32(to, l->scores[i]);
}
