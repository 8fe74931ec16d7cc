/* Output of `sluice bench decode`: the facts of the machine, CSV, a table for human readers, and the profile by op. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "bench/decode/decode.h"
#include "kernels/cache.h"

const char *const sl_bench_mode_names[] = {"resident", "hierarchical", "free_rows", "first_resident",
                                           "checked",  "in_turn",      "dense",     NULL};
static double gib(uint64_t bytes)
{
    return (double)bytes / (1 << 30);
}

void sl_bench_decode_print_facts(FILE *out, const sl_bench_decode *b)
{
    struct utsname u;
    uname(&u);
    const sl_model_config *cfg = &b->local.checkpoint.cfg;
    int32_t ranks = b->o.group > 1 ? b->o.group : b->o.ranks;
    char experts[96] = "";
    if (cfg->moe.n_routed > 0)
        snprintf(experts, sizeof experts, ", rank 1 of %d (%d of %d experts)", ranks,
                 cfg->moe.n_routed / ranks, cfg->moe.n_routed);
    fprintf(out, "# %s; host %s %s\n", sl_backend_describe(b->local.be), u.sysname, u.release);
    fprintf(out, "# model %s: %d layers%s, %.1f GiB of random weights made in %.1f s\n", b->o.model,
            cfg->n_layers, experts, gib(sl_model_weight_bytes(b->local.model)), b->local.load_s);
    fprintf(out, "# algorithm %s: host store %s; populated %.1f s, filled %.1f s, pinned %.1f s\n",
            b->local.algorithm->name, sl_arena_describe(b->host.arena), b->host.populate_s, b->host.fill_s,
            b->host.pin_s);
    for (int i = 0; i < b->o.selection.n; i++)
        if (b->o.selection.text[i])
            fprintf(out, "# %s %s\n", b->o.selection.option[i]->name, b->o.selection.text[i]);
    fprintf(out, "# victim policy %s\n", sl_evict_policy_name(b->policy));
    if (b->o.draft >= 0)
        fprintf(
            out,
            "# drafts: %d tokens of the MTP layer for each step, which is in the number of layers; synthetic acceptance %.2f %.2f "
            "%.2f %.2f, drawn from a seed; tokens are chosen on the device\n",
            b->o.draft, b->o.accept[0], b->o.accept[1], b->o.accept[2], b->o.accept[3]);
    fprintf(out, "# device bytes for the cache in every mode: %.2f GiB\n", gib(b->kv_bytes));
    fprintf(
        out,
        "# step: host clock around a whole engine step, %s and %s the exchange between ranks; median of %d after %d warm-up "
        "steps\n",
        b->o.draft < 0 ? "including the logits' copy to the host, without sampling"
                       : "with drafting and the choice of tokens on the device",
        b->o.group > 1 ? "with" : "without", b->o.steps, b->o.warmup);
}

void sl_bench_decode_print_csv_head(FILE *out)
{
    fprintf(
        out,
        "rows,context,mode,profile,batch,gpu_batch,host_sets,hot_rows,resident_layers,step_ms,"
        "min_ms,max_ms,mean_ms,tokens_per_s,misses,hits,tail_hits,swap_ms,exposed_ms,kv_gib,kv_used_gib,engine_gib,"
        "algorithm,select_ms,attend_ms,"
        "pairs_least,pairs_most,pairs_mean,with_exchange_by_this,tokens_a_step,draft_ms\n");
}

void sl_bench_decode_print_csv(FILE *out, const sl_bench_decode_result *r)
{
    bool resident = sl_bench_on_device(r->mode);
    fprintf(
        out,
        "%s,%d,%s,%s,%d,%d,%d,%d,%d,%.3f,%.3f,%.3f,%.3f,%.1f,%.1f,%.1f,%.1f,%.3f,%.3f,%.3f,%.3f,%.3f,%s,%.3f,%.3f,%d,%d,%.2f,%.4f,%.3f,%.3f\n",
        sl_row_format_name(r->rows), r->context, sl_bench_mode_names[r->mode],
        resident ? "any" : sl_coord_profile_names()[r->profile], r->batch, r->gpu_batch, r->host_sets,
        r->hot_rows, r->resident_layers, r->step_ms, r->min_ms, r->max_ms, r->mean_ms, r->tokens_s, r->misses,
        r->hits, r->tail_hits, r->swap_ms, r->exposed_ms, gib(r->kv_bytes), gib(r->kv_used),
        gib(r->device_bytes), r->algorithm, r->select_ms, r->attend_ms, r->pairs_least, r->pairs_most,
        r->pairs_mean, r->exchange_ratio, r->tokens_step, r->draft_ms);
}

void sl_bench_decode_print_row(FILE *out, const sl_bench_decode_result *r)
{
    bool resident = sl_bench_on_device(r->mode);
    fprintf(out,
            "%-8s %7d  %-12s %-8s batch %3d of %3d%s  step %8.3f ms  %8.1f tokens/s  misses %6.1f  swap "
            "%6.2f ms, exposed %6.2f  %s\n",
            sl_row_format_name(r->rows), r->context, sl_bench_mode_names[r->mode],
            resident ? "any" : sl_coord_profile_names()[r->profile], r->batch, r->gpu_batch,
            r->host_sets < r->batch ? " (shared host pages)" : "", r->step_ms, r->tokens_s, r->misses,
            r->swap_ms, r->exposed_ms, r->algorithm);
    if (r->tokens_step > 0)
        fprintf(out, "  %.3f tokens of a request in a step, as drawn; %.3f ms of the step is drafting\n",
                r->tokens_step, r->draft_ms);
    if (r->pairs_most > 0)
        fprintf(
            out,
            "  tokens of an expert of this rank, in a layer: %d to %d, mean %.2f; %.2f %% of the experts have none, %.2f %% "
            "more than a tile of 32\n",
            r->pairs_least, r->pairs_most, r->pairs_mean, 100 * r->pairs_none, 100 * r->pairs_over);
    if (r->exchange_ratio > 0)
        fprintf(out, "  the step with the exchange takes %.4f of this time\n", r->exchange_ratio);
}

static int by_op(const void *a, const void *b)
{
    const sl_op_time *x = a, *y = b;
    return x->op != y->op       ? (int)x->op - (int)y->op
           : x->rows != y->rows ? (x->rows > y->rows) - (x->rows < y->rows)
                                : (x->cols > y->cols) - (x->cols < y->cols);
}

void sl_bench_decode_print_ops(FILE *out, const sl_bench_decode_result *r)
{
    sl_op_time *v = malloc(sizeof *v * (size_t)(r->n_ops + 1));
    int32_t *count = calloc((size_t)r->n_ops + 1, sizeof *count), n = 0;
    double total = 0;
    if (!v || !count || r->n_ops == 0)
        goto done;
    memcpy(v, r->ops, sizeof *v * (size_t)r->n_ops);
    qsort(v, (size_t)r->n_ops, sizeof *v, by_op);
    for (int32_t i = 0; i < r->n_ops; i++) {
        total += v[i].ns;
        if (n > 0 && by_op(&v[n - 1], &v[i]) == 0) {
            v[n - 1].ns += v[i].ns;
            count[n - 1]++;
        } else {
            v[n] = v[i];
            count[n++] = 1;
        }
    }
    fprintf(out, "  %-14s %-14s %8s %10s %10s %7s\n", "op", "shape", "calls", "us each", "ms/step", "share");
    for (int32_t pass = 0; pass < n; pass++) {
        int32_t best = 0;
        for (int32_t i = 1; i < n; i++)
            if (v[i].ns > v[best].ns)
                best = i;
        char shape[32] = "";
        if (v[best].rows)
            snprintf(shape, sizeof shape, "%dx%d", v[best].rows, v[best].cols);
        fprintf(out, "  %-14s %-14s %8d %10.2f %10.3f %6.1f%%\n", sl_op_name(v[best].op), shape, count[best],
                v[best].ns / count[best] / 1e3, v[best].ns / 1e6, 100 * v[best].ns / total);
        v[best].ns = -1;
    }
    fprintf(out, "  %-14s %-14s %8d %10s %10.3f\n", "all", "", r->n_ops, "", total / 1e6);
done:
    free(count);
    free(v);
}
