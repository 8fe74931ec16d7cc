/* See plan_layers.h. */
#include "cli/plan_layers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "engine/locality.h"

enum { MOST_BYTES = 16 << 20 };

#define LINK_BYTES                                                                                           \
    45e9 /* bytes per second that a gather of scattered rows reaches over PCIe gen5 x16, see docs/bench */

static char *read_file(const char *path, size_t *n, sl_err *err)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(MOST_BYTES) : NULL;
    if (text)
        *n = fread(text, 1, MOST_BYTES, f);
    if (!text || ferror(f))
        sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    else if (*n == MOST_BYTES)
        sl_fail(err, SL_ERR_INVALID, "%s: longer than 16 MiB, not a scrape of /metrics", path);
    if (f)
        fclose(f);
    if (err->text[0]) {
        free(text);
        return NULL;
    }
    return text;
}

static void print_list(const int32_t *rows, int32_t n)
{
    for (int32_t l = 0; l < n; l++)
        printf("%s%d", l ? ", " : "", rows[l]);
}

static void print_table(const sl_plan_layers *o, const sl_locality *m, const int32_t *rows, double share)
{
    printf("requests of %d tokens; swapping takes %.1f %% of a step\n\n", o->context, 100 * share);
    printf("%5s  %6s  %8s  %s\n", "layer", "hits", "misses", "hot rows");
    for (int32_t l = 0; l < m->n_layers; l++) {
        double seen = m->hits[l] + m->misses[l];
        printf("%5d  %5.1f%%  %7.3g  ", l, seen > 0 ? 100 * m->hits[l] / seen : 0, m->misses[l]);
        if (rows[l] == SL_HOT_RESIDENT)
            printf("all rows on the device\n");
        else
            printf("%d\n", rows[l]);
    }
    printf("\nsparse_attention:\n  hot_rows: [");
    print_list(rows, m->n_layers);
    printf("]\n");
}

int sl_cli_plan_layers(const sl_plan_layers *o, const sl_plan *p, int32_t n_layers, bool json)
{
    sl_err err = {0};
    sl_locality m;
    int32_t rows[SL_MAX_LAYERS];
    size_t n = 0;
    char *text = read_file(o->file, &n, &err);
    if (!text)
        return sl_args_fail("plan", SL_ERR_IO, &err);
    sl_status st = sl_locality_read(text, n, n_layers, &m, &err);
    free(text);
    if (st != SL_OK)
        return sl_args_fail("plan", st, &err);
    double share = o->swap_share >= 0 ? o->swap_share : sl_locality_swap_share(&m, LINK_BYTES);
    sl_locality_choose(&m, p, o->context, share, rows);
    if (!json) {
        print_table(o, &m, rows, share);
        return SL_EXIT_OK;
    }
    printf("{\"context\": %d, \"swap_share\": %.6f, \"hot_rows\": [", o->context, share);
    print_list(rows, n_layers);
    printf("]}\n");
    return SL_EXIT_OK;
}
