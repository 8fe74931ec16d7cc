/* See golden.h. */
#include "golden.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

sl_safetensors *golden_open(const char *dir)
{
    char path[256];
    sl_safetensors *g;
    sl_err err = {0};
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    ck_assert_msg(sl_st_open(path, &g, &err) == SL_OK, "%s", err.text);
    return g;
}

const sl_st_tensor *golden_part(const sl_safetensors *g, int prompt, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "p%d.%s", prompt, what);
    return sl_st_find(g, name);
}

int golden_last(const sl_safetensors *g)
{
    int last = 0;
    while (golden_part(g, last + 1, "ids"))
        last++;
    return last;
}

void golden_read(const sl_safetensors *g, int prompt, fix_text *t)
{
    const sl_st_tensor *ids = golden_part(g, prompt, "ids"), *greedy = golden_part(g, prompt, "greedy");
    ck_assert(ids && greedy && greedy->shape[0] == GOLDEN_GREEDY);
    *t = (fix_text){.n = (int32_t)ids->shape[0]};
    memcpy(t->ids, ids->data, (size_t)t->n * 4);
    memcpy(t->ids + t->n, greedy->data, GOLDEN_GREEDY * 4);
}

void golden_read_last(const char *dir, fix_text *t)
{
    sl_safetensors *g = golden_open(dir);
    golden_read(g, golden_last(g), t);
    sl_st_close(g);
}
