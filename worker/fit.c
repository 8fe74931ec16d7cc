/* See fit.h. The largest value that fits is found by trial, because only sl_plan_pools() knows what pools cost. */
#include "worker/fit.h"

#include <stdio.h>
#include <string.h>

static double gib(uint64_t bytes)
{
    return (double)bytes / (1u << 30);
}

/* Writes advice: a smaller type of the same weights that would fit, or a larger device. */
static void say_what_fits(uint64_t weights, sl_dtype stored, uint64_t free_bytes, uint64_t total, char *out,
                          size_t cap)
{
    uint64_t fp8 = stored == SL_F32 ? weights / 4 : stored == SL_BF16 || stored == SL_F16 ? weights / 2 : 0;
    uint64_t half = stored == SL_F32 ? weights / 2 : 0;
    if (weights <= total - total / 16)
        snprintf(out, cap, "it would fit if nothing else used the device");
    else if (half && half < free_bytes)
        snprintf(out, cap, "in bf16 it would take %.2f GiB, which fits", gib(half));
    else if (fp8 && fp8 < free_bytes)
        snprintf(out, cap, "in fp8 it would take %.2f GiB, which fits", gib(fp8));
    else
        snprintf(
            out, cap,
            "a device with more than %.0f GiB would hold it; `sluice plan` computes what fits on a device",
            gib(weights) + 1);
}

sl_status sl_setup_fit_weights(const char *what, uint64_t weight_bytes, sl_dtype stored, uint64_t free_bytes,
                               uint64_t total_bytes, const char *device, sl_err *err)
{
    char fits[160];
    if (weight_bytes < free_bytes)
        return SL_OK;
    say_what_fits(weight_bytes, stored, free_bytes, total_bytes, fits, sizeof fits);
    return sl_fail(err, SL_ERR_DEVICE_MEMORY,
                   "%.60s take %.2f GiB, %.120s has %.2f of %.2f GiB free: %.2f GiB are missing, "
                   "and the cache needs memory in addition; %s",
                   what, gib(weight_bytes), device, gib(free_bytes), gib(total_bytes),
                   gib(weight_bytes - free_bytes), fits);
}

static bool fits(const sl_plan *p, sl_residency mode, int32_t seqs, int32_t context)
{
    sl_engine_opts o = {0};
    return seqs > 0 && context > 0 && sl_plan_pools(p, mode, seqs, context, &o, NULL) == SL_OK;
}

static int32_t most_seqs(const sl_plan *p, sl_residency mode, int32_t seqs, int32_t context)
{
    int32_t low = 0, high = seqs; /* the number low fits, the number high does not */
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        *(fits(p, mode, mid, context) ? &low : &high) = mid;
    }
    return low;
}

static int32_t longest(const sl_plan *p, sl_residency mode, int32_t seqs, int32_t context)
{
    int32_t low = 0, high = sl_pages_for(context); /* in pages, as above */
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        *(fits(p, mode, seqs, mid * SL_PAGE_TOKENS) ? &low : &high) = mid;
    }
    return low * SL_PAGE_TOKENS;
}

sl_status sl_setup_fit_pools(const sl_plan *p, sl_residency mode, int32_t max_seqs, int32_t max_context,
                             const char *role_key, sl_engine_opts *out, sl_err *err)
{
    char help[200];
    sl_err why = {0};
    sl_status st = sl_plan_pools(p, mode, max_seqs, max_context, out, &why);
    if (st != SL_ERR_DEVICE_MEMORY) {
        if (st != SL_OK && err)
            *err = why;
        return st;
    }
    int32_t seqs = most_seqs(p, mode, max_seqs, max_context), context = longest(p, mode, 1, max_context);
    int32_t both = longest(p, mode, max_seqs, max_context);
    if (seqs)
        snprintf(help, sizeof help, "%s %d fits", role_key, seqs);
    else if (both)
        snprintf(help, sizeof help, "model.max_context %d fits", both);
    else if (context)
        snprintf(help, sizeof help, "%s 1 with model.max_context %d fits", role_key, context);
    else
        snprintf(help, sizeof help,
                 "not even one request of one page fits: lower sparse_attention.hot_rows or "
                 "give it more memory (decode.device_bytes)");
    return sl_fail(err, st, "%.300s (%s %d, context %d). What fits: %s", why.text, role_key, max_seqs,
                   max_context, help);
}
