/* Reference of the ops on residency (ref.h): the state of the hot buffers, which rows are replaced, and which are
 * fetched. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/kernels/ref.h"

/* Plain arrays instead of linked lists: order[] is the LRU list from least to most recent. */
static void read_order(const uint16_t *next, int32_t rows, int32_t *order)
{
    int32_t at = next[rows];

    for (int32_t i = 0; i < rows; i++, at = next[at])
        order[i] = at;
}

static void write_order(uint16_t *prev, uint16_t *next, int32_t rows, const int32_t *order)
{
    for (int32_t i = -1; i < rows; i++) {
        int32_t a = i < 0 ? rows : order[i], b = i + 1 == rows ? rows : order[i + 1];

        next[a] = (uint16_t)b;
        prev[b] = (uint16_t)a;
    }
}

typedef struct hot_slot {
    uint16_t *slot_of, *prev, *next;
    int32_t *token_of, *cursor, rows;
    uint32_t *stamp, *counters;
} hot_slot;

static hot_slot slot_at(const sl_hot_state *h, int64_t slot, int32_t rows)
{
    hot_slot s = {
        .slot_of = h->slot_of + slot * h->max_tokens, .token_of = h->token_of + slot * rows, .rows = rows};

    s.stamp = h->stamp + slot * rows;
    s.counters = h->counters + slot * 4;
    s.prev = h->prev ? h->prev + slot * (rows + 1) : NULL;
    s.next = h->next ? h->next + slot * (rows + 1) : NULL;
    s.cursor = h->cursor ? h->cursor + slot : NULL;
    return s;
}

void ref_hot_reset(const void *params)
{
    const sl_hot_reset_params *p = params;

    for (int32_t slot = 0; slot < p->hot_slots; slot++) {
        hot_slot s = slot_at(&p->hot, slot, p->hot_rows);
        int32_t *order = malloc(4 * (size_t)p->hot_rows);

        if (p->slot < 0 || p->slot == slot) {
            for (int32_t i = 0; i < p->hot.max_tokens; i++)
                s.slot_of[i] = 0xffff;
            for (int32_t i = 0; i < p->hot_rows; i++) {
                s.token_of[i] = -1;
                s.stamp[i] = 0;
                order[i] = i;
            }
            memset(s.counters, 0, 16);
            if (s.next)
                write_order(s.prev, s.next, p->hot_rows, order);
            if (s.cursor)
                *s.cursor = 0;
        }
        free(order);
    }
}

/* Victims in order, according to kernels/params.h; for clock by its parallel description, not by moving the hand. */
static void choose_lru(const hot_slot *s, uint32_t step, int32_t n, int32_t *victims)
{
    int32_t *order = malloc(4 * (size_t)s->rows), found = 0;

    read_order(s->next, s->rows, order);
    for (int32_t i = 0; i < s->rows && found < n; i++)
        if (s->stamp[order[i]] != step)
            victims[found++] = order[i];
    free(order);
}

static void choose_clock(hot_slot *s, uint32_t mark, int32_t n, int32_t *victims)
{
    int32_t found = 0, passed = s->rows, second = 0, hand = *s->cursor;

    for (int32_t i = 0; i < s->rows && found < n; i++) {
        int32_t at = (hand + i) % s->rows;

        if (s->stamp[at] != mark && !(s->stamp[at] >> 31)) {
            victims[found++] = at;
            if (found == n)
                passed = i + 1;
        }
    }
    if (n == 0)
        passed = 0;
    if (found < n)
        for (int32_t i = 0; i < s->rows && found < n; i++) {
            int32_t at = (hand + i) % s->rows;

            if (s->stamp[at] != mark && s->stamp[at] >> 31) {
                victims[found++] = at;
                second = i + 1;
            }
        }
    for (int32_t i = 0; i < passed; i++) {
        int32_t at = (hand + i) % s->rows;

        if (s->stamp[at] != mark)
            s->stamp[at] &= 0x7fffffffu;
    }
    *s->cursor = (hand + (second ? second : passed)) % s->rows;
}

/* A list: heads * t + head. Its ids are blocks of `block` tokens. */
typedef struct ref_list {
    int64_t heads, head, block, last, seq, row; /* last: block of the last token of the run */
    const int32_t *ids;
    int32_t *phys;
} ref_list;

static ref_list list_at(const sl_resolve_params *p, int64_t t, int64_t head)
{
    ref_list l = {.heads = p->rows.heads ? p->rows.heads : 1, .head = head, .block = 1};

    for (int32_t i = 0; i < p->rows.block_log2; i++)
        l.block *= 2;
    l.seq = p->seqs->token_seq[t];
    int64_t end = t;
    while (end + 1 < p->seqs->n_tokens && p->seqs->token_seq[end + 1] == l.seq)
        end++;
    l.last = p->seqs->token_pos[end] / l.block;
    l.row = t * l.heads + head;
    l.ids = p->ids + l.row * p->ld_ids;
    l.phys = p->phys + l.row * p->ld_ids;
    return l;
}

/* Row of a block in its page of a table: of the pool, or of the host. */
static int64_t row_in_pages(const sl_resolve_params *p, const ref_list *l, const int32_t *table, int64_t id)
{
    int64_t blocks = 64 / l->block;

    return (ref_page_of(table, p->seqs, l->seq, id * l->block) * blocks + id % blocks) * l->heads + l->head;
}

static void resolve_hot(const sl_resolve_params *p, const ref_list *l, int64_t *src, int32_t *dst,
                        int64_t *misses)
{
    const sl_seq_tables *q = p->seqs;
    int64_t slot = q->hot_slot[l->seq];
    int32_t hot_rows = p->rows.hot_rows / (int32_t)l->heads,
            tail_rows = p->rows.tail_rows / (int32_t)l->heads;
    int64_t base = p->rows.hot_base + slot * (p->rows.hot_rows + p->rows.tail_rows);
    int64_t mine = base + l->head * hot_rows;
    hot_slot s = slot_at(&p->hot, slot * l->heads + l->head, hot_rows);
    bool lru = p->policy == SL_EVICT_LRU;
    uint32_t mark = lru ? *p->step : *p->step | 1u << 31;
    int32_t *victims = malloc(4 * (size_t)p->k), *used = malloc(4 * (size_t)p->k), missing = 0, next = 0,
            n_used = 0;

    for (int32_t i = 0; i < p->k && l->ids[i] >= 0; i++) {
        int32_t id = l->ids[i];

        if (id > l->last - tail_rows + p->tail_spare)
            s.counters[3]++;
        else if (s.slot_of[id] == 0xffff)
            missing++;
        else {
            s.counters[0]++;
            s.stamp[s.slot_of[id]] = mark;
        }
    }
    if (lru)
        choose_lru(&s, mark, missing, victims);
    else
        choose_clock(&s, mark, missing, victims);
    for (int32_t i = 0; i < p->k && l->ids[i] >= 0; i++) {
        int32_t id = l->ids[i];

        if (id > l->last - tail_rows + p->tail_spare) {
            l->phys[i] = (int32_t)(base + p->rows.hot_rows + id % tail_rows * l->heads + l->head);
            continue;
        }
        if (s.slot_of[id] == 0xffff) {
            int32_t v = victims[next++];

            s.counters[1]++;
            if (s.token_of[v] >= 0) {
                s.counters[2]++;
                s.slot_of[s.token_of[v]] = 0xffff;
            }
            s.token_of[v] = id;
            s.slot_of[id] = (uint16_t)v;
            s.stamp[v] = mark;
            src[*misses] = row_in_pages(p, l, q->host_pages, id);
            if (p->block_need)
                p->block_need[l->row * p->ld_blocks + i / 64]++;
            if (p->miss_block)
                p->miss_block[*misses] = (int32_t)(l->row * p->ld_blocks + i / 64);
            dst[(*misses)++] = (int32_t)(mine + v);
        }
        used[n_used++] = s.slot_of[id];
        l->phys[i] = (int32_t)(mine + s.slot_of[id]);
    }
    if (lru) {
        int32_t *order = malloc(4 * (size_t)s.rows), *after = malloc(4 * (size_t)s.rows), n = 0;

        read_order(s.next, s.rows, order);
        for (int32_t i = 0; i < s.rows; i++) {
            bool of_list = false;

            for (int32_t j = 0; j < n_used; j++)
                of_list |= used[j] == order[i];
            if (!of_list)
                after[n++] = order[i];
        }
        for (int32_t i = 0; i < n_used; i++)
            after[n++] = used[i];
        write_order(s.prev, s.next, s.rows, after);
        free(order);
        free(after);
    }
    free(victims);
    free(used);
}

/* All hot rows that the lists of a run select, of every head, are in use before its first list is resolved. */
static void mark_run(const sl_resolve_params *p, int64_t first)
{
    const sl_seq_tables *q = p->seqs;
    const int64_t heads = p->rows.heads ? p->rows.heads : 1;
    const int32_t hot_rows = p->rows.hot_rows / (int32_t)heads, tail = p->rows.tail_rows / (int32_t)heads;
    const uint32_t mark = p->policy == SL_EVICT_LRU ? *p->step : *p->step | 1u << 31;

    for (int64_t t = first; t < q->n_tokens && q->token_seq[t] == q->token_seq[first]; t++)
        for (int64_t h = 0; h < heads; h++) {
            ref_list l = list_at(p, t, h);
            hot_slot s = slot_at(&p->hot, q->hot_slot[l.seq] * heads + h, hot_rows);

            for (int32_t i = 0; i < p->k && l.ids[i] >= 0; i++)
                if (l.ids[i] <= l.last - tail + p->tail_spare && s.slot_of[l.ids[i]] != 0xffff)
                    s.stamp[s.slot_of[l.ids[i]]] = mark;
        }
}

void ref_resolve(const void *params)
{
    const sl_resolve_params *p = params;
    const sl_seq_tables *s = p->seqs;
    int64_t misses = 0;

    for (int64_t row = 0, heads = p->rows.heads ? p->rows.heads : 1; row < s->n_tokens * heads; row++) {
        ref_list l = list_at(p, row / heads, row % heads);

        for (int32_t i = 0; i < p->ld_ids; i++)
            l.phys[i] = -1;
        for (int32_t b = 0; p->block_need && b < p->ld_blocks; b++)
            p->block_need[row * p->ld_blocks + b] = p->block_done[row * p->ld_blocks + b] = 0;
        if (s->hot_slot[l.seq] >= 0) {
            if (l.head == 0 && (row < heads || s->token_seq[row / heads - 1] != l.seq))
                mark_run(p, row / heads);
            resolve_hot(p, &l, p->miss_src, p->miss_dst, &misses);
            continue;
        }
        for (int32_t i = 0; i < p->k && l.ids[i] >= 0; i++)
            l.phys[i] = (int32_t)row_in_pages(p, &l, s->row_pages, l.ids[i]);
    }
    for (int64_t i = 1; i < misses; i++) /* stable insertion sort */
        for (int64_t j = i; j > 0 && p->miss_src[j - 1] > p->miss_src[j]; j--) {
            int64_t src = p->miss_src[j];
            int32_t dst = p->miss_dst[j];

            if (p->miss_block) {
                int32_t block = p->miss_block[j];

                p->miss_block[j] = p->miss_block[j - 1];
                p->miss_block[j - 1] = block;
            }
            p->miss_src[j] = p->miss_src[j - 1];
            p->miss_dst[j] = p->miss_dst[j - 1];
            p->miss_src[j - 1] = src;
            p->miss_dst[j - 1] = dst;
        }
    *p->miss_count = (int32_t)misses;
}

/* The checksum as the comment of kernels/rowsum.h says it, word by word. */
static uint32_t row_sum(const uint8_t *at, int64_t bytes)
{
    static const uint32_t key[] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    uint32_t sum = 0;
    for (uint32_t i = 0; i * 16 < bytes; i++) {
        uint64_t x = 0, w[4] = {0};
        for (int k = 0; k < 16 && i * 16 + k < bytes; k++)
            w[k / 4] |= (uint64_t)at[i * 16 + k] << k % 4 * 8;
        for (int k = 0; k < 4; k++)
            w[k] = (w[k] + key[k] + (uint64_t)i * 0x9e3779b1) & 0xffffffff;
        x = w[0] * w[1] + w[2] * w[3];
        sum += (uint32_t)(x ^ x >> 32);
    }
    return sum ? sum : 1;
}

static void ref_check_row(const sl_gather_params *p, int64_t src, int64_t page)
{
    const int64_t bytes = p->rows.row_bytes, parts = (bytes + 2047) / 2048;
    const uint8_t *row = p->host.base + page * p->host.page_stride;
    int64_t heads = p->rows.heads ? p->rows.heads : 1, blocks = 64 / ((int64_t)1 << p->rows.block_log2);
    row += src / heads % blocks * p->host.row_stride + src % heads * bytes;
    for (int64_t k = 0; k < parts; k++) {
        uint32_t want = p->check.sums[src * parts + k];
        if (!want || want == row_sum(row + k * 2048, bytes - k * 2048 < 2048 ? bytes - k * 2048 : 2048))
            continue;
        p->check.pages[page / 32] |= 1u << page % 32;
        *p->check.any = 1;
    }
}

void ref_gather(const void *params)
{
    const sl_gather_params *p = params; /* the clock is ignored, because times cannot be compared */
    int64_t heads = p->rows.heads ? p->rows.heads : 1, blocks = 64 / ((int64_t)1 << p->rows.block_log2);

    for (int32_t i = 0; i < *p->miss_count && i < p->miss_cap; i++) {
        if (p->block_done)
            p->block_done[p->miss_block[i]]++;
        if (p->check.sums)
            ref_check_row(p, p->miss_src[i], p->miss_src[i] / heads / blocks);
        memcpy(p->rows.base + p->miss_dst[i] * p->rows.row_bytes,
               p->host.base + p->miss_src[i] / heads / blocks * p->host.page_stride +
                   p->miss_src[i] / heads % blocks * p->host.row_stride +
                   p->miss_src[i] % heads * p->rows.row_bytes,
               (size_t)p->rows.row_bytes);
    }
}
