/* A memory plan as a table for people, and as JSON; see plan.h. */
#include "base/strbuf.h"
#include "engine/plan.h"
#include "engine/plan_group.h"

static void put_mib(sl_strbuf *sb, const char *what, uint64_t bytes)
{
    sl_sb_printf(sb, "  %-34s %12.1f MiB\n", what, (double)bytes / 1048576);
}

/* What bounds a batch: the device, the memory of the host, or, where both have room, the number of requests that the engine
 * sets memory aside for. */
static const char *limit_of(int64_t device, int64_t host, int64_t batch)
{
    return batch < device && batch < host ? "max-seqs" : host < device ? "host" : "device";
}

/* Of each mode: how many requests fit on the device, how many in the memory of the host, and which of the two is the limit. */
static void put_batches(sl_strbuf *sb, const sl_plan *p)
{
    sl_sb_printf(sb,
                 "\nrequests that fit, by device and by host memory, which a resident request takes, too\n");
    sl_sb_printf(sb, "%9s  %9s %9s %9s %-9s  %12s %9s %9s %-9s %6s\n", "context", "resident:", "host", "fit",
                 "limit", "hierarchical:", "host", "fit", "limit", "gain");
    for (int32_t i = 0; i < p->n_rows; i++) {
        const sl_plan_row *r = &p->rows[i];
        if (r->context > p->max_context) {
            sl_sb_printf(sb, "%9d  beyond the longest context\n", r->context);
            continue;
        }
        sl_sb_printf(sb, "%9d  %9lld %9lld %9lld %-9s  %13lld %9lld %9lld %-9s ", r->context,
                     (long long)r->resident_gpu, (long long)r->host_batch, (long long)r->resident_batch,
                     limit_of(r->resident_gpu, r->host_batch, r->resident_batch),
                     (long long)r->hierarchical_gpu, (long long)r->host_batch,
                     (long long)r->hierarchical_batch,
                     limit_of(r->hierarchical_gpu, r->host_batch, r->hierarchical_batch));
        if (r->resident_batch > 0)
            sl_sb_printf(sb, "%5.1fx\n", (double)r->hierarchical_batch / (double)r->resident_batch);
        else
            sl_sb_printf(sb, "%6s\n", "-");
    }
}

char *sl_plan_text(const sl_plan_in *in, const sl_plan *p)
{
    sl_strbuf sb = {0};
    sl_sb_printf(&sb, "%s, %d layers (%d with an indexer), algorithm %s\n", in->cfg->architecture,
                 in->cfg->n_layers, p->index_layers, in->algorithm->name);
    sl_sb_printf(&sb, "row %lld B, index block %lld B, page of %d tokens %lld B on the host\n",
                 (long long)p->row_bytes, (long long)p->index_block_bytes, SL_PAGE_TOKENS,
                 (long long)p->page_bytes);
    sl_sb_printf(&sb, "hot rows %d (longest selection %d), tail rows %d, longest context %d\n\n", p->hot_rows,
                 p->width, p->tail_rows, p->max_context);
    if (p->all_resident)
        sl_sb_printf(
            &sb,
            "lists of %s hold the whole context, %d tokens, and a hot buffer at most %d: all layers keep "
            "their rows on the device\n\n",
            in->algorithm->name, p->width, SL_HOT_ROWS_MAX);
    else if (p->resident_layers > 0)
        sl_sb_printf(&sb, "%d layers keep all their rows on the device\n\n", p->resident_layers);
    put_mib(&sb, "device memory", in->gpu_bytes);
    put_mib(&sb, "weights", in->weight_bytes);
    put_mib(&sb, "reserve", in->reserve_bytes);
    if (in->group)
        put_mib(&sb, "exchange buffers and windows", sl_plan_group_bytes(in));
    put_mib(&sb, "selection, tables and logits", p->fixed_bytes);
    sl_sb_printf(&sb, "    of these, %s takes %.1f MiB and logits %.1f MiB, for %d requests of %d tokens\n",
                 in->algorithm->name, (double)p->algorithm_bytes / 1048576, (double)p->logit_bytes / 1048576,
                 p->max_seqs, p->max_context);
    sl_sb_printf(&sb, "    and the scratch memory of ops %.1f MiB\n", (double)p->scratch_bytes / 1048576);
    put_mib(&sb, "left for the cache", p->cache_bytes);
    put_mib(&sb, "host memory", in->host_bytes);
    put_mib(&sb, "in addition, checksums of rows", p->row_sums_bytes);
    put_mib(&sb, "a hot slot: rows", p->hot_rows_bytes);
    put_mib(&sb, "a hot slot: metadata", p->hot_meta_bytes);
    if (p->state_device > 0) {
        put_mib(&sb, "states of a request", p->state_device);
        put_mib(&sb, "a snapshot of them on the host", p->snapshot_host);
    }
    if (p->pool_unit > 0)
        sl_sb_printf(
            &sb,
            "\nstates, hot rows and pages come from one pool, in units of %.1f MiB as requests need them: %llu units, of "
            "which up to %llu lie at edges\n",
            (double)p->pool_unit / 1048576, (unsigned long long)(p->cache_bytes / p->pool_unit),
            (unsigned long long)(p->pool_edges / p->pool_unit));
    sl_sb_printf(&sb, "\n%9s  %12s %12s %12s\n", "a request", "resident MiB", "hierarch MiB", "host MiB");
    for (int32_t i = 0; i < p->n_rows; i++)
        sl_sb_printf(&sb, "%9d  %12.1f %12.1f %12.1f\n", p->rows[i].context,
                     (double)p->rows[i].resident_bytes / 1048576,
                     (double)p->rows[i].hierarchical_bytes / 1048576,
                     (double)p->rows[i].host_bytes / 1048576);
    put_batches(&sb, p);
    if (in->group)
        sl_plan_group_text(in, p, &sb);
    return sl_sb_take(&sb);
}

char *sl_plan_json(const sl_plan_in *in, const sl_plan *p)
{
    sl_strbuf sb = {0};
    sl_sb_printf(
        &sb,
        "{\"row_bytes\": %lld, \"index_block_bytes\": %lld, \"page_bytes\": %lld, \"width\": %d, "
        "\"hot_rows\": %d, "
        "\"tail_rows\": %d, \"max_context\": %d, \"gpu_bytes\": %llu, \"weight_bytes\": %llu, "
        "\"reserve_bytes\": %llu, \"pool_unit\": %llu, \"state_bytes\": %llu, \"fixed_bytes\": %llu, \"algorithm_bytes\": %llu, \"logit_bytes\": %llu, "
        "\"max_seqs\": %d, \"cache_bytes\": %llu, \"host_bytes\": %llu, "
        "\"host_pages\": %lld, \"resident_layers\": %d, \"hot_rows_bytes\": %llu, \"hot_meta_bytes\": %llu, "
        "\"contexts\": [",
        (long long)p->row_bytes, (long long)p->index_block_bytes, (long long)p->page_bytes, p->width,
        p->hot_rows, p->tail_rows, p->max_context, (unsigned long long)in->gpu_bytes,
        (unsigned long long)in->weight_bytes, (unsigned long long)in->reserve_bytes,
        (unsigned long long)p->pool_unit, (unsigned long long)p->state_device,
        (unsigned long long)p->fixed_bytes, (unsigned long long)p->algorithm_bytes,
        (unsigned long long)p->logit_bytes, p->max_seqs, (unsigned long long)p->cache_bytes,
        (unsigned long long)in->host_bytes, (long long)p->host_pages, p->resident_layers,
        (unsigned long long)p->hot_rows_bytes, (unsigned long long)p->hot_meta_bytes);
    for (int32_t i = 0; i < p->n_rows; i++) {
        const sl_plan_row *r = &p->rows[i];
        sl_sb_printf(&sb,
                     "%s{\"context\": %d, \"resident_bytes\": %llu, \"hierarchical_bytes\": %llu, "
                     "\"host_bytes\": %llu, "
                     "\"resident_batch\": %lld, \"hierarchical_batch\": %lld, \"host_batch\": %lld, "
                     "\"resident_device\": %lld, \"hierarchical_device\": %lld, \"resident_limit\": \"%s\", "
                     "\"hierarchical_limit\": \"%s\"}",
                     i ? ", " : "", r->context, (unsigned long long)r->resident_bytes,
                     (unsigned long long)r->hierarchical_bytes, (unsigned long long)r->host_bytes,
                     (long long)r->resident_batch, (long long)r->hierarchical_batch, (long long)r->host_batch,
                     (long long)r->resident_gpu, (long long)r->hierarchical_gpu,
                     limit_of(r->resident_gpu, r->host_batch, r->resident_batch),
                     limit_of(r->hierarchical_gpu, r->host_batch, r->hierarchical_batch));
    }
    sl_sb_str(&sb, "]");
    if (in->group) {
        sl_sb_str(&sb, ", ");
        sl_plan_group_json(in, p, &sb);
    }
    sl_sb_str(&sb, "}\n");
    return sl_sb_take(&sb);
}
