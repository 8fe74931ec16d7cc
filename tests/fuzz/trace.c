/*
 * Arbitrary bytes as a trace: what is accepted is written and read again to the same requests, and an error has a text.
 */
#include <stdlib.h>
#include <string.h>

#include "simulate/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_sim_trace t, again;
    sl_err err = {""};
    char *text = NULL;
    size_t n = 0;
    if (sl_sim_trace_parse((const char *)data, size, "fuzz", &t, &err)) {
        if (!err.text[0] || t.requests || t.ids)
            abort();
        return 0;
    }
    FILE *to = open_memstream(&text, &n);
    if (!to || sl_sim_trace_write(&t, to) || fclose(to))
        abort();
    if (sl_sim_trace_parse(text, n, "again", &again, &err) || again.n != t.n || again.n_ids != t.n_ids ||
        again.n_blocks != t.n_blocks || memcmp(again.ids, t.ids, t.n_ids * sizeof *t.ids))
        abort();
    sl_sim_trace_free(&again);
    sl_sim_trace_free(&t);
    free(text);
    return 0;
}
