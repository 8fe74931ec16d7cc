/* The table of ratios of `sluice bench decode`; see decode.h. */
#include <stdio.h>
#include <string.h>

#include "bench/decode/decode.h"
#include "kernels/cache.h"

typedef sl_bench_decode_result result;

static bool same_point(const result *a, const result *b)
{
    return a->rows == b->rows && a->context == b->context;
}

/* The resident results with which r is compared: dense ones, or where there is none, those of its algorithm. */
static const result *base_of(const result *all, int32_t n, const result *r)
{
    const result *best = NULL;
    for (int32_t i = 0; i < n; i++) {
        const result *x = &all[i];
        if (!same_point(x, r) || !sl_bench_on_device(x->mode))
            continue;
        if (x->mode == SL_BENCH_RESIDENT && strcmp(x->algorithm, r->algorithm) != 0)
            continue;
        bool better = !best || (x->mode == SL_BENCH_READ_ALL && best->mode != SL_BENCH_READ_ALL) ||
                      (x->mode == best->mode && x->tokens_s > best->tokens_s);
        if (better)
            best = x;
    }
    return best;
}

/* The result whose rows are free, of the same algorithm, profile and batch. */
static const result *free_of(const result *all, int32_t n, const result *r)
{
    for (int32_t i = 0; i < n; i++) {
        const result *x = &all[i];
        if (same_point(x, r) && x->mode == SL_BENCH_FREE_ROWS && strcmp(x->algorithm, r->algorithm) == 0 &&
            x->profile == r->profile && x->batch == r->batch)
            return x;
    }
    return NULL;
}

static void print_ratio(FILE *out, bool known, double a, double b)
{
    if (known)
        fprintf(out, " %8.2fx", a / b);
    else
        fprintf(out, " %9s", "-");
}

void sl_bench_decode_print_summary(FILE *out, const result *r, int32_t n)
{
    fprintf(out, "\n  %-8s %7s %-16s %-14s %-8s %5s %10s %10s %9s %9s %9s %9s\n", "rows", "context",
            "algorithm", "mode", "profile", "batch", "step ms", "tokens/s", "batch", "tokens/s", "step over",
            "selection");
    fprintf(out, "  %-8s %7s %-16s %-14s %-8s %5s %10s %10s %9s %9s %9s %9s\n", "", "", "", "", "", "", "",
            "", "of dense", "of dense", "free rows", "of step");
    for (int32_t i = 0; i < n; i++) {
        const result *x = &r[i], *base = base_of(r, n, x),
                     *free_rows = x->mode == SL_BENCH_HIERARCHICAL || x->mode == SL_BENCH_IN_TURN
                                      ? free_of(r, n, x)
                                      : NULL;
        fprintf(out, "  %-8s %7d %-16s %-14s %-8s %5d %10.3f %10.1f", sl_row_format_name(x->rows), x->context,
                x->algorithm, sl_bench_mode_names[x->mode],
                sl_bench_on_device(x->mode) ? "any" : sl_coord_profile_names()[x->profile], x->batch,
                x->step_ms, x->tokens_s);
        print_ratio(out, base, x->batch, base ? base->batch : 1);
        print_ratio(out, base, x->tokens_s, base ? base->tokens_s : 1);
        print_ratio(out, free_rows, x->step_ms, free_rows ? free_rows->step_ms : 1);
        if (x->select_ms >= 0)
            fprintf(out, " %8.1f%%\n", 100 * x->select_ms / x->step_ms);
        else
            fprintf(out, " %9s\n", "-");
    }
}
