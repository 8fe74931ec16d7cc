/*
 * Rows that differ from their checksums when they are fetched (kernels/rowsum.h). The device marks their pages in a bitmap and
 * sets a word in host memory; the host looks at that word after a step, so a step without damage costs it one load.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/blocks.h"

sl_status sl_marks_init(sl_engine *e, sl_err *err)
{
    const sl_row_sums *sums = e->o.row_sums;
    if (!sums || e->o.max_hot_seqs == 0)
        return SL_OK;
    sl_marks *m = &e->marks;
    m->bytes = sl_row_marks_bytes(sl_arena_pages(e->arena));
    SL_TRY(sl_be_host_register(e->be, sl_row_sums_base(sums), sl_row_sums_size(sums), err));
    m->registered = true;
    SL_TRY(sl_dmem_alloc(e->mem, m->bytes, (void **)&m->device, err));
    SL_TRY(sl_be_alloc(e->be, SL_MEM_HOST, m->bytes, (void **)&m->host, err));
    SL_TRY(sl_be_alloc(e->be, SL_MEM_HOST, sizeof *m->any, (void **)&m->any, err));
    __atomic_store_n(m->any, 0, __ATOMIC_RELAXED);
    SL_TRY(sl_be_fill(e->be, m->device, 0, m->bytes, err));
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        e->layers[l].check = (sl_row_check){sl_row_sums_layer(sums, l), m->device, m->any};
        if (e->blocks) /* whose swap-in reads it with each gather */
            e->blocks->layers[l].check = (sl_row_check){sl_row_sums_blocks(sums, l), m->device, m->any};
    }
    return SL_OK;
}

void sl_marks_fini(sl_engine *e)
{
    sl_marks *m = &e->marks;
    sl_be_free(e->be, SL_MEM_HOST, m->any);
    sl_be_free(e->be, SL_MEM_HOST, m->host);
    sl_be_free(e->be, SL_MEM_DEVICE, m->device);
    if (m->registered)
        sl_be_host_unregister(e->be, sl_row_sums_base(e->o.row_sums));
}

/* What cannot be read counts as damage of every page: no token may pass because the device fails just now. */
static void read_marks(sl_engine *e)
{
    sl_marks *m = &e->marks;
    if (sl_be_copy(e->be, m->host, m->device, m->bytes, NULL) == SL_OK && sl_be_sync(e->be, NULL) == SL_OK)
        return;
    memset(m->host, 0xff, m->bytes);
}

int32_t sl_engine_damaged(sl_engine *e, void (*found)(void *ctx, int32_t page), void *ctx)
{
    sl_marks *m = &e->marks;
    int32_t n = 0;
    if (!m->any || !__atomic_load_n(m->any, __ATOMIC_RELAXED))
        return 0;
    read_marks(e);
    __atomic_store_n(m->any, 0, __ATOMIC_RELAXED);
    if (sl_be_fill(e->be, m->device, 0, m->bytes, NULL) != SL_OK)
        sl_log(SL_LOG_WARN, "engine", "marks", "cannot clear the marks of damaged pages");
    for (int32_t p = 0; p < sl_arena_pages(e->arena); p++) {
        if (m->host[p / 32] >> p % 32 & 1)
            found(ctx, p), n++;
    }
    return n;
}
