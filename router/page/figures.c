/* See figures.h: lines NAME{LABELS} VALUE, of which a table says which field they are added to. */
#include "router/page/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

const char *const sl_figures_tiers[SL_FIGURES_TIERS] = {"disk", "nixl", "redis", "workers"};

enum { LINE_MAX_BYTES = 512 };

/* labels: what a line must have between its braces, NULL: anything. */
static const struct {
    const char *name, *labels;
    size_t at;
} rows[] = {
#define ROW(name, labels, field)                                                                             \
    {                                                                                                        \
        name, labels, offsetof(sl_figures, field)                                                            \
    }
    ROW("sluice_decode_step_seconds_sum", NULL, step_seconds),
    ROW("sluice_decode_step_seconds_count", NULL, steps),
    ROW("sluice_decode_batch_size_sum", NULL, batch_sum),
    ROW("sluice_decode_batch_size_count", NULL, batches),
    ROW("sluice_decode_idle_seconds_total", NULL, idle_seconds),
    ROW("sluice_swap_hidden_seconds_total", NULL, hidden_seconds),
    ROW("sluice_swap_exposed_seconds_total", NULL, exposed_seconds),
    ROW("sluice_swap_bytes_total", NULL, swap_bytes),
    ROW("sluice_prefill_tokens_total", NULL, prefill_tokens),
    ROW("sluice_prefill_reused_tokens_total", NULL, reused_tokens),
    ROW("sluice_prefill_chunk_seconds_sum", NULL, chunk_seconds),
    ROW("sluice_prefill_chunk_seconds_count", NULL, chunks),
    ROW("sluice_transfer_bytes_total", NULL, shipped_bytes),
    ROW("sluice_transfer_exposed_seconds_sum", NULL, ship_exposed_seconds),
    ROW("sluice_device_kv_bytes", "state=\"used\"", device_used),
    ROW("sluice_device_kv_bytes", "state=\"total\"", device_total),
    ROW("sluice_kv_pages", "state=\"total\"", pages_total),
    ROW("sluice_kv_pages", "state=\"free\"", pages_free),
    ROW("sluice_kv_pages", "state=\"cached\"", pages_cached),
    ROW("sluice_kv_pages", "state=\"active\"", pages_active),
    ROW("sluice_kv_pages", "state=\"landing\"", pages_landing),
    ROW("sluice_store_damaged_pages_total", NULL, damaged_pages),
#undef ROW
};

/* A line taken apart; name and labels end with a zero. */
typedef struct line {
    char name[LINE_MAX_BYTES], labels[LINE_MAX_BYTES];
    double value;
} line;

static bool take_apart(const char *text, size_t n, line *out)
{
    char copy[LINE_MAX_BYTES], *end;
    if (n == 0 || n >= sizeof copy || text[0] == '#' || memchr(text, 0, n))
        return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    char *space = strrchr(copy, ' ');
    if (!space || !space[1])
        return false;
    *space = 0;
    out->value = strtod(space + 1, &end);
    if (*end || !isfinite(out->value) || out->value < 0)
        return false;
    char *open = strchr(copy, '{'), *close = strrchr(copy, '}');
    if (open && (!close || close < open || close[1]))
        return false;
    if (open)
        *open = *close = 0;
    snprintf(out->name, sizeof out->name, "%s", copy);
    snprintf(out->labels, sizeof out->labels, "%s", open ? open + 1 : "");
    return true;
}

/* Two large numbers may be too large together: then the second is left out. */
static void plus(double *at, double v)
{
    if (isfinite(*at + v))
        *at += v;
}

static void add_layer(const line *l, sl_figures *out)
{
    char *end;
    if (strncmp(l->labels, "layer=\"", 7) != 0)
        return;
    long layer = strtol(l->labels + 7, &end, 10);
    if (layer < 0 || layer >= SL_FIGURES_LAYERS || end == l->labels + 7)
        return;
    if (strcmp(end, "\",result=\"hit\"") == 0)
        plus(&out->hits[layer], l->value);
    else if (strcmp(end, "\",result=\"miss\"") == 0)
        plus(&out->misses[layer], l->value);
    else
        return;
    if (layer >= out->n_layers)
        out->n_layers = (int)layer + 1;
}

static void add_tier(const line *l, double *values)
{
    for (int i = 0; i < SL_FIGURES_TIERS; i++) {
        char label[32];
        snprintf(label, sizeof label, "tier=\"%s\"", sl_figures_tiers[i]);
        if (strcmp(l->labels, label) == 0)
            plus(&values[i], l->value);
    }
}

static void add(const line *l, sl_figures *out)
{
    if (strcmp(l->name, "sluice_swap_rows_total") == 0)
        add_layer(l, out);
    else if (strcmp(l->name, "sluice_tier_pages") == 0)
        add_tier(l, out->tier_pages);
    else if (strcmp(l->name, "sluice_tier_hit_pages_total") == 0)
        add_tier(l, out->tier_hits);
    else if (strcmp(l->name, "sluice_tier_state") == 0)
        add_tier(l, out->tier_state);
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strcmp(l->name, rows[i].name) == 0 && (!rows[i].labels || strcmp(l->labels, rows[i].labels) == 0))
            plus((double *)(void *)((char *)out + rows[i].at), l->value);
}

void sl_figures_read(const char *text, size_t n, sl_figures *out)
{
    memset(out, 0, sizeof *out);
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - (text + at)) : n - at;
        line l;
        if (take_apart(text + at, len, &l))
            add(&l, out);
        at += len + 1;
    }
}
