/*
 * What prompts keep, as the metadata of pages (kernels/window.h). A task is one list of one token of the step; most tokens
 * neither begin a page nor end a prompt.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/place.h"
#include "kernels/window.h"

/* Whether the prompt ends after token t, in the same page, with a token of this step, which then writes the unit. */
static bool ends_later(const sl_kept_store_params *p, int64_t t, const sl_place *at)
{
    const sl_seq_tables *s = p->seqs;
    const int32_t last = p->prompts[2 * (int64_t)at->seq] - 1;
    const int64_t other = t + last - at->pos;

    return last > at->pos && last / SL_PAGE_TOKENS == at->pos / SL_PAGE_TOKENS && other < s->n_tokens &&
           s->token_seq[other] == at->seq && s->token_pos[other] == last;
}

/* Fills a unit of zeros. False: the kept tokens do not ascend, or do not fit. */
static bool put_gaps(const sl_kept_store_params *p, const int32_t *header, const int32_t *kept, uint8_t *unit)
{
    const int32_t room = (p->unit_bytes - SL_KEPT_HEADER) / 2;
    uint8_t *gaps = unit + SL_KEPT_HEADER;
    int32_t at = 0, next = 0;

    memcpy(unit, header, SL_KEPT_HEADER);
    for (int32_t i = 0; i < header[1]; i++) {
        int32_t gap = kept[i] - next;

        if (gap < 0)
            return false;
        for (; gap >= SL_KEPT_SKIP && at < room; gap -= SL_KEPT_SKIP)
            memset(gaps + 2 * (int64_t)at++, 0xff, 2);
        if (at >= room)
            return false;
        const uint16_t g = (uint16_t)gap;
        memcpy(gaps + 2 * (int64_t)at++, &g, 2);
        next = kept[i] + 1;
    }
    return true;
}

static uint32_t store(const void *arg, int64_t i, void *own)
{
    const sl_kept_store_params *p = arg;
    const int64_t t = i / p->lists, list = i % p->lists;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    (void)own;
    if (bad)
        return bad;
    const int32_t *header = p->prompts + 2 * (int64_t)at.seq;
    const bool ends = at.pos == header[0] - 1, begins = at.pos % SL_PAGE_TOKENS == 0;
    if (!ends && (!begins || ends_later(p, t, &at)))
        return 0;
    const int32_t page = p->seqs->host_pages[at.entry];
    if (page < 0)
        return SL_DEVERR_PAGE;
    uint8_t *unit = p->host.base + page * p->host.page_stride + list * p->unit_bytes;
    memset(unit, 0, (size_t)p->unit_bytes);
    if (!ends)
        return 0;
    if (header[1] > p->ld_kept ||
        !put_gaps(p, header, p->kept + ((int64_t)at.seq * p->lists + list) * p->ld_kept, unit))
        return SL_DEVERR_SELECTION;
    return 0;
}

static sl_status run_kept_store(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kept_store_params *p = params;
    return sl_cpu_run(be, "kept_store", 0, (int64_t)p->seqs->n_tokens * p->lists, 10, store, p, err);
}

const sl_op_impl sl_cpu_kept_store = {.run = run_kept_store};
