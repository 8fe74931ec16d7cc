/*
 * What the disk tier does at open: it reads the header of every segment and of every record in segments that are in
 * use, many at a time. Pages are not read, except those of the last writes: only they can be incomplete after kill -9,
 * because a record that was complete has been followed by others. What a failing device or a loss of power has damaged
 * is found by the checksum when the page is read.
 */
#include <stdlib.h>
#include <unistd.h>

#include "kvstore/disk_impl.h"

enum { DEPTH = 64 };

typedef struct scan {
    const sl_disk_file *f;
    sl_disk_index *ix;
    bool *valid; /* [n_segments] the segment header is good */
    uint64_t max_sequence;
    sl_uring ring;
    uint8_t *blocks; /* [DEPTH][SL_DISK_BLOCK] */
    uint64_t item[DEPTH];
} scan;

static void visit_segment(scan *s, uint64_t i, const uint8_t *block)
{
    sl_disk_segment g;
    if (sl_disk_segment_read(block, &g) != SL_OK || g.store_id != s->f->store.id || g.index != i)
        return;
    s->valid[i] = true;
    sl_disk_index_own(s->ix, i, g.generation, g.tenant);
    uint64_t last = g.sequence > g.generation ? g.sequence : g.generation;
    if (s->max_sequence < last)
        s->max_sequence = last;
}

static void visit_slot(scan *s, uint64_t i, const uint8_t *block)
{
    sl_disk_record r;
    if (sl_disk_record_read(block, &r) != SL_OK)
        return;
    if (!sl_disk_record_fits(&r, &s->f->store, i, s->ix->segs[i / s->f->store.slots_per_segment].generation))
        return;
    sl_disk_index_adopt(s->ix, (int64_t)i, r.key, r.sequence);
    if (s->max_sequence < r.sequence)
        s->max_sequence = r.sequence;
}

static void start(scan *s, int b, uint64_t item, uint64_t offset)
{
    struct io_uring_sqe *e = sl_uring_prepare(&s->ring);
    s->item[b] = item;
    e->opcode = IORING_OP_READ;
    e->fd = s->f->fd;
    e->off = offset;
    e->addr = (uintptr_t)(s->blocks + (size_t)b * SL_DISK_BLOCK);
    e->len = SL_DISK_BLOCK;
    e->user_data = (uint64_t)b;
}

/* The next item from *i on that is to be read, and its place; false: none. */
static bool next_item(const scan *s, bool slots, uint64_t *i, uint64_t *offset)
{
    const sl_disk_store *st = &s->f->store;
    if (!slots) {
        *offset = sl_disk_segment_at(st, *i);
        return *i < s->f->n_segments;
    }
    while (*i < s->ix->n_slots && !s->valid[*i / st->slots_per_segment])
        *i += st->slots_per_segment - *i % st->slots_per_segment;
    *offset = sl_disk_slot_at(st, *i);
    return *i < s->ix->n_slots;
}

/* One pass over all segment headers or all record headers. A block that cannot be read counts as empty. */
static sl_status pass(scan *s, bool slots)
{
    uint64_t i = 0, offset, b;
    int in_flight = 0;
    for (; in_flight < DEPTH && next_item(s, slots, &i, &offset); i++)
        start(s, in_flight++, i, offset);
    while (in_flight) {
        int32_t res;
        SL_TRY(sl_uring_enter(&s->ring, true));
        while (sl_uring_next(&s->ring, &b, &res)) {
            if (res == SL_DISK_BLOCK)
                (slots ? visit_slot : visit_segment)(s, s->item[b], s->blocks + b * SL_DISK_BLOCK);
            in_flight--;
            if (next_item(s, slots, &i, &offset)) {
                start(s, (int)b, i++, offset);
                in_flight++;
            }
        }
    }
    return SL_OK;
}

static bool is_complete(const scan *s, uint64_t slot, uint8_t *buffer)
{
    const sl_disk_store *st = &s->f->store;
    uint64_t n = sl_disk_slot_bytes(st);
    sl_disk_record r;
    return pread(s->f->fd, buffer, n, (off_t)sl_disk_slot_at(st, slot)) == (ssize_t)n &&
           sl_disk_record_read(buffer, &r) == SL_OK &&
           sl_crc32c(0, buffer + SL_DISK_BLOCK, st->page_bytes) == r.crc;
}

static sl_status check_last(scan *s, uint64_t window, uint64_t *damaged)
{
    uint8_t *buffer = aligned_alloc(SL_DISK_BLOCK, sl_disk_slot_bytes(&s->f->store));
    if (!buffer)
        return SL_ERR_NO_MEMORY;
    for (uint64_t i = 0; i < s->ix->n_slots; i++) {
        const sl_disk_slot *slot = &s->ix->slots[i];
        if (slot->state != SL_SLOT_STORED || slot->used + window < s->max_sequence ||
            is_complete(s, i, buffer))
            continue;
        sl_disk_index_drop(s->ix, (int64_t)i);
        (*damaged)++;
    }
    free(buffer);
    return SL_OK;
}

static sl_status run(scan *s, uint64_t window, sl_disk_recovered *out)
{
    SL_TRY(pass(s, false));
    SL_TRY(pass(s, true));
    out->damaged = 0;
    out->sequence = s->max_sequence + 1;
    sl_disk_index_trim(s->ix);
    return check_last(s, window, &out->damaged);
}

sl_status sl_disk_recover(const sl_disk_file *f, uint64_t window, sl_disk_index *ix, sl_disk_recovered *out,
                          sl_err *err)
{
    scan s = {.f = f, .ix = ix};
    SL_TRY(sl_uring_open(&s.ring, DEPTH, err));
    s.valid = calloc(f->n_segments, sizeof *s.valid);
    s.blocks = aligned_alloc(SL_DISK_BLOCK, (size_t)DEPTH * SL_DISK_BLOCK);
    sl_status st = s.valid && s.blocks ? run(&s, window, out) : SL_ERR_NO_MEMORY;
    sl_uring_close(&s.ring); /* before the blocks: an operation may be in flight after a failure */
    free(s.valid);
    free(s.blocks);
    return st == SL_OK ? st : sl_fail(err, st, "tier disk: %s: recovery: %s", f->path, sl_status_name(st));
}
