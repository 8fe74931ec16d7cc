/* See swap_counts.h. Readings arrive in the order in which they were enqueued, because they are copies of one stream. */
#include "sparse/swap_counts.h"

#include <stdlib.h>
#include <string.h>

typedef struct reading {
    uint8_t *landing; /* host memory that the device writes */
    sl_event *arrived;
    int32_t reset; /* the slot whose counters are zero after this reading, SL_SWAP_ALL, or -1 */
} reading;

struct sl_swap_counts {
    sl_backend *be;
    sl_swap_counts_opts o;
    reading ring[SL_SWAP_READINGS];
    int32_t first, pending; /* readings in flight: ring[first], and those after it */
    uint32_t *seen;         /* [layers][slots][lists][counters] at the last reading */
    uint64_t *layer_sum;    /* [layers][counters] */
    uint64_t *slot_sum;     /* [slots][counters] */
    uint64_t taken_ns, waited_ns;
};

static size_t cells_of(const sl_swap_counts_opts *o)
{
    return (size_t)o->layers * (size_t)o->slots * (size_t)o->lists * SL_SWAP_COUNTERS;
}

uint64_t sl_swap_counts_bytes(const sl_swap_counts_opts *o)
{
    return (uint64_t)cells_of(o) * 4 + (uint64_t)o->clocks * sizeof(sl_swap_clock);
}

static sl_status make_ring(sl_swap_counts *c, sl_err *err)
{
    for (int32_t i = 0; i < SL_SWAP_READINGS; i++) {
        SL_TRY(
            sl_be_alloc(c->be, SL_MEM_HOST, sl_swap_counts_bytes(&c->o), (void **)&c->ring[i].landing, err));
        SL_TRY(sl_event_create(c->be, &c->ring[i].arrived, err));
    }
    return SL_OK;
}

sl_status sl_swap_counts_create(sl_backend *be, const sl_swap_counts_opts *o, sl_swap_counts **out,
                                sl_err *err)
{
    sl_swap_counts *c = calloc(1, sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "swap-in counters: out of memory");
    c->be = be, c->o = *o;
    c->seen = calloc(cells_of(o) + 1, 4);
    c->layer_sum = calloc((size_t)o->layers * SL_SWAP_COUNTERS + 1, 8);
    c->slot_sum = calloc((size_t)o->slots * SL_SWAP_COUNTERS + 1, 8);
    sl_status st = c->seen && c->layer_sum && c->slot_sum
                       ? make_ring(c, err)
                       : sl_fail(err, SL_ERR_NO_MEMORY, "swap-in counters: out of memory");
    if (st != SL_OK) {
        sl_swap_counts_destroy(c);
        return st;
    }
    *out = c;
    return SL_OK;
}

void sl_swap_counts_destroy(sl_swap_counts *c)
{
    if (!c)
        return;
    for (int32_t i = 0; i < SL_SWAP_READINGS; i++) {
        sl_event_destroy(c->ring[i].arrived);
        sl_be_free(c->be, SL_MEM_HOST, c->ring[i].landing);
    }
    free(c->slot_sum);
    free(c->layer_sum);
    free(c->seen);
    free(c);
}

/* The device's counters of a slot are zero after the reading that was taken in last. */
static void count_from_zero(sl_swap_counts *c, int32_t slot)
{
    const size_t of_slot = (size_t)c->o.lists * SL_SWAP_COUNTERS, slots = (size_t)c->o.slots;
    for (size_t l = 0; l < (size_t)c->o.layers; l++)
        memset(c->seen + (l * slots + (size_t)slot) * of_slot, 0, of_slot * 4);
}

static void take_in(sl_swap_counts *c)
{
    const reading *r = &c->ring[c->first];
    const size_t slots = (size_t)c->o.slots, lists = (size_t)c->o.lists, cells = cells_of(&c->o);
    const uint32_t *now = (const void *)r->landing;
    for (size_t i = 0; i < cells; i++) {
        uint32_t d = now[i] - c->seen[i];
        c->seen[i] = now[i];
        c->layer_sum[i / (slots * lists * SL_SWAP_COUNTERS) * SL_SWAP_COUNTERS + i % SL_SWAP_COUNTERS] += d;
        c->slot_sum[i / (lists * SL_SWAP_COUNTERS) % slots * SL_SWAP_COUNTERS + i % SL_SWAP_COUNTERS] += d;
    }
    const sl_swap_clock *clock = (const void *)(r->landing + cells * 4);
    c->taken_ns = c->waited_ns = 0;
    for (int64_t i = 0; i < c->o.clocks; i++)
        c->taken_ns += clock[i].taken, c->waited_ns += clock[i].waited;
    if (r->reset == SL_SWAP_ALL)
        memset(c->seen, 0, cells * 4);
    if (r->reset >= 0) {
        count_from_zero(c, r->reset);
        memset(c->slot_sum + (size_t)r->reset * SL_SWAP_COUNTERS, 0, SL_SWAP_COUNTERS * 8);
    }
    c->first = (c->first + 1) % SL_SWAP_READINGS;
    c->pending--;
}

/* Those that are there; all of them after the device has been waited for. */
static void take_in_arrived(sl_swap_counts *c)
{
    while (c->pending > 0 && sl_event_query(c->ring[c->first].arrived) == SL_OK)
        take_in(c);
}

static sl_status wait_for_all(sl_swap_counts *c, sl_err *err)
{
    SL_TRY(sl_be_sync(c->be, err));
    while (c->pending > 0)
        take_in(c);
    return SL_OK;
}

sl_status sl_swap_counts_mark(sl_swap_counts *c, int32_t slot, sl_err *err)
{
    take_in_arrived(c);
    if (c->pending == SL_SWAP_READINGS)
        SL_TRY(wait_for_all(c, err));
    reading *r = &c->ring[(c->first + c->pending) % SL_SWAP_READINGS];
    SL_TRY(sl_be_copy(c->be, r->landing, c->o.device, sl_swap_counts_bytes(&c->o), err));
    SL_TRY(sl_event_record(c->be, r->arrived, err));
    r->reset = slot;
    c->pending++;
    return SL_OK;
}

sl_status sl_swap_counts_peek(sl_swap_counts *c, sl_err *err)
{
    take_in_arrived(c);
    if (c->pending == 0)
        SL_TRY(sl_swap_counts_mark(c, -1, err));
    take_in_arrived(c); /* a backend that copies at once */
    return SL_OK;
}

sl_status sl_swap_counts_settle(sl_swap_counts *c, sl_err *err)
{
    SL_TRY(sl_swap_counts_mark(c, -1, err));
    return wait_for_all(c, err);
}

static sl_coord_counters counters_of(const uint64_t *c)
{
    return (sl_coord_counters){.hits = c[0], .misses = c[1], .evictions = c[2], .tail_hits = c[3]};
}

sl_coord_counters sl_swap_counts_layer(const sl_swap_counts *c, int32_t layer)
{
    return counters_of(c->layer_sum + (size_t)layer * SL_SWAP_COUNTERS);
}

sl_coord_counters sl_swap_counts_slot(const sl_swap_counts *c, int32_t slot)
{
    return counters_of(c->slot_sum + (size_t)slot * SL_SWAP_COUNTERS);
}

void sl_swap_counts_times(const sl_swap_counts *c, uint64_t *taken_ns, uint64_t *waited_ns)
{
    *taken_ns = c->taken_ns, *waited_ns = c->waited_ns;
}
