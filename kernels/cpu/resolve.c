/*
 * SL_OP_RESOLVE: logical ids to physical rows, and the exact residency of hot buffers, as specified in
 * kernels/params.h.
 *
 * Lists are processed one after the other: the work is a few operations per id. Every id is checked and all misses
 * are counted before anything is changed, so a failed call leaves the hot state as it was. For the tokens of a run this
 * count is made over the union of their lists. The steps of this file: check; then for each list classify (hits are
 * stamped), find victims, re-link; then sort the miss list.
 */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "base/log.h"
#include "kernels/cpu/place.h"

#define NONE 0xffffu
#define REFERENCED 0x80000000u

enum { HITS, MISSES, EVICTIONS, TAIL_HITS, COUNTERS };

typedef struct miss {
    int64_t src;
    int32_t dst, block;
} miss;

/* One call, and one of its lists: that of one token and one KV head, or of one token alone. */
typedef struct job {
    const sl_resolve_params *p;
    sl_row_shape shape;
} job;

typedef struct list {
    int64_t row; /* of ids and phys */
    const int32_t *ids;
    int32_t n, head, seq; /* entries */
    int32_t own, last;    /* blocks of the positions of the token, and of the last token of its run */
    int32_t tail_from;    /* blocks from this one on are read from the tail */
} list;

/* One hot slot of sl_hot_state. */
typedef struct hot {
    uint16_t *slot_of, *prev, *next;
    int32_t *token_of, *cursor;
    uint32_t *stamp, *counters;
    int32_t rows;
} hot;

static hot hot_of(const sl_hot_state *s, int32_t slot, int32_t rows)
{
    hot h = {.rows = rows};

    h.slot_of = s->slot_of + (int64_t)slot * s->max_tokens;
    h.token_of = s->token_of + (int64_t)slot * rows;
    h.stamp = s->stamp + (int64_t)slot * rows;
    h.counters = s->counters + (int64_t)slot * COUNTERS;
    if (s->next && s->prev) {
        h.prev = s->prev + (int64_t)slot * (rows + 1);
        h.next = s->next + (int64_t)slot * (rows + 1);
    }
    if (s->cursor)
        h.cursor = s->cursor + slot;
    return h;
}

/* Entries of a token's list: up to the first -1. */
static int32_t list_length(const int32_t *ids, int32_t k)
{
    int32_t n = 0;

    while (n < k && ids[n] >= 0)
        n++;
    return n;
}

/* Tokens of a run from token t on, itself included. */
static int32_t run_length(const sl_seq_tables *s, int64_t t)
{
    int32_t n = 1;

    while (t + n < s->n_tokens && s->token_seq[t + n] == s->token_seq[t])
        n++;
    return n;
}

static bool begins_run(const sl_seq_tables *s, int64_t t)
{
    return t == 0 || s->token_seq[t - 1] != s->token_seq[t];
}

static list list_of(const job *j, int64_t t, int32_t head, const sl_place *at)
{
    const sl_resolve_params *p = j->p;
    list l = {.row = t * j->shape.heads + head, .head = head, .seq = at->seq};

    l.ids = p->ids + l.row * p->ld_ids;
    l.n = list_length(l.ids, p->k);
    l.own = at->pos >> p->rows.block_log2;
    l.last = l.own;
    if (p->seqs->hot_slot[at->seq] >= 0)
        l.last = p->seqs->token_pos[t + run_length(p->seqs, t) - 1] >> p->rows.block_log2;
    l.tail_from = l.last - (j->shape.tail - p->tail_spare) + 1;
    return l;
}

static bool in_tail(const list *l, int32_t id)
{
    return id >= l->tail_from;
}

static int32_t page_of(const job *j, const int32_t *table, const list *l, int32_t id)
{
    return table[(int64_t)l->seq * j->p->seqs->ld + sl_block_page(&j->shape, id)];
}

/* The state of the list's head in its hot slot. */
static hot hot_of_list(const job *j, const list *l, int32_t slot)
{
    return hot_of(&j->p->hot, slot * j->shape.heads + l->head, j->shape.hot);
}

/* ---- checks ---- */

static uint32_t check_order(const list *l)
{
    for (int32_t i = 0; i < l->n; i++)
        if (l->ids[i] > l->own || (i && l->ids[i] <= l->ids[i - 1]))
            return SL_DEVERR_SELECTION;
    return 0;
}

/* The next id of the union of the lists l[0 .. n), of which at[i] entries of list i were taken; INT32_MAX: none. */
static int32_t next_of_union(const list *l, int32_t *at, int32_t n)
{
    int32_t id = INT32_MAX;

    if (n == 1) /* the list itself: every step without drafts */
        return at[0] < l->n ? l->ids[at[0]++] : INT32_MAX;
    for (int32_t i = 0; i < n; i++)
        if (at[i] < l[i].n && l[i].ids[at[i]] < id)
            id = l[i].ids[at[i]];
    for (int32_t i = 0; i < n; i++)
        at[i] += at[i] < l[i].n && l[i].ids[at[i]] == id;
    return id;
}

/* The lists of the n tokens of a run, of one head; they are in order. */
static uint32_t check_hot(const job *j, const list *l, int32_t n, int64_t *misses)
{
    const sl_resolve_params *p = j->p;
    int32_t slot = p->seqs->hot_slot[l->seq], at[SL_RUN_TOKENS_MAX] = {0};
    int64_t used = 0;

    if (p->rows.hot_rows < 1 || j->shape.tail - p->tail_spare < 1)
        return SL_DEVERR_HOT_CAPACITY;
    if (*p->step == 0 || (p->policy == SL_EVICT_CLOCK && *p->step >= REFERENCED))
        return SL_DEVERR_STEP;
    if (l->last >= p->hot.max_tokens)
        return SL_DEVERR_POS;
    if (sl_hot_row(&p->rows, slot, p->rows.hot_rows + (int64_t)p->rows.tail_rows) > INT32_MAX)
        return SL_DEVERR_HOT_CAPACITY;
    hot h = hot_of_list(j, l, slot);

    for (int32_t id; (id = next_of_union(l, at, n)) != INT32_MAX;) {
        if (in_tail(l, id))
            break;
        used++;
        if (h.slot_of[id] != NONE)
            continue;
        if (page_of(j, p->seqs->host_pages, l, id) < 0)
            return SL_DEVERR_PAGE;
        ++*misses;
    }
    return used > j->shape.hot ? SL_DEVERR_HOT_CAPACITY : 0;
}

static uint32_t check_resident(const job *j, const list *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        int64_t row =
            sl_pool_row(&j->shape, page_of(j, j->p->seqs->row_pages, l, l->ids[i]), l->ids[i], l->head);

        if (row < 0)
            return SL_DEVERR_PAGE;
        if (row > INT32_MAX)
            return SL_DEVERR_POS;
    }
    return 0;
}

/* A run that begins at token t, and all of its heads. */
static uint32_t check_run(const job *j, int64_t t, int64_t *misses)
{
    const sl_seq_tables *s = j->p->seqs;
    int32_t n = run_length(s, t);
    list l[SL_RUN_TOKENS_MAX];
    uint32_t bad = 0;

    if (n > SL_RUN_TOKENS_MAX || (n > 1 && j->p->block_need))
        return SL_DEVERR_MULTI_TOKEN;
    for (int32_t head = 0; head < j->shape.heads && !bad; head++) {
        for (int32_t i = 0; i < n && !bad; i++) {
            sl_place at;

            bad = sl_place_of(s, t + i, &at);
            if (bad)
                return bad;
            l[i] = list_of(j, t + i, head, &at);
            bad = check_order(&l[i]);
        }
        bad = bad ? bad : check_hot(j, l, n, misses);
    }
    return bad;
}

static uint32_t check_token(const job *j, int64_t t, int64_t *misses)
{
    const sl_seq_tables *s = j->p->seqs;
    sl_place at;
    uint32_t bad = sl_place_of(s, t, &at);

    if (bad)
        return bad == SL_PLACE_NONE ? 0 : bad;
    if (s->hot_slot[at.seq] >= 0)
        return begins_run(s, t) ? check_run(j, t, misses) : 0;
    for (int32_t head = 0; head < j->shape.heads && !bad; head++) {
        list l = list_of(j, t, head, &at);

        bad = check_order(&l);
        bad = bad ? bad : check_resident(j, &l);
    }
    return bad;
}

/* ---- residency ---- */

static void to_most_recent(hot *h, uint32_t i)
{
    uint32_t end = (uint32_t)h->rows;

    h->next[h->prev[i]] = h->next[i];
    h->prev[h->next[i]] = h->prev[i];
    h->prev[i] = h->prev[end];
    h->next[i] = (uint16_t)end;
    h->next[h->prev[end]] = (uint16_t)i;
    h->prev[end] = (uint16_t)i;
}

/* The next victim; *walk is the position in the list (lru) or the hand (clock). Entries in use carry this step's
 * mark. */
static uint32_t victim(hot *h, sl_evict_policy policy, uint32_t mark, uint32_t *walk)
{
    uint32_t i;

    if (policy == SL_EVICT_LRU) {
        for (i = *walk; h->stamp[i] == mark;)
            i = h->next[i];
        *walk = h->next[i];
        return i;
    }
    for (;;) {
        i = *walk;
        *walk = i + 1 == (uint32_t)h->rows ? 0 : i + 1;
        if (h->stamp[i] == mark)
            continue;
        if (!(h->stamp[i] & REFERENCED))
            return i;
        h->stamp[i] &= ~REFERENCED;
    }
}

static void replace(hot *h, uint32_t i, int32_t token, uint32_t mark)
{
    if (h->token_of[i] >= 0) {
        h->slot_of[h->token_of[i]] = NONE;
        h->counters[EVICTIONS]++;
    }
    h->token_of[i] = token;
    h->slot_of[token] = (uint16_t)i;
    h->stamp[i] = mark;
    h->counters[MISSES]++;
}

/* The stamp of an entry in use. */
static uint32_t mark_of(const sl_resolve_params *p)
{
    return p->policy == SL_EVICT_CLOCK ? *p->step | REFERENCED : *p->step;
}

/* All hot rows that the lists of the run which begins at token t select are in use. */
static void mark_run(const job *j, int64_t t, const sl_place *first)
{
    const sl_resolve_params *p = j->p;
    const int32_t slot = p->seqs->hot_slot[first->seq], n = run_length(p->seqs, t);
    sl_place at = *first;

    for (int32_t u = 0; n > 1 && u < n; u++, at.pos++)
        for (int32_t head = 0; head < j->shape.heads; head++) {
            list l = list_of(j, t + u, head, &at);
            hot h = hot_of_list(j, &l, slot);

            for (int32_t i = 0; i < l.n && !in_tail(&l, l.ids[i]); i++)
                if (h.slot_of[l.ids[i]] != NONE)
                    h.stamp[h.slot_of[l.ids[i]]] = mark_of(p);
        }
}

static void resolve_hot(const job *j, const list *l, int32_t *phys, miss *missing, int64_t *misses)
{
    const sl_resolve_params *p = j->p;
    const int32_t *ids = l->ids, n = l->n, slot = p->seqs->hot_slot[l->seq];
    int64_t first = sl_hot_row(&p->rows, slot, (int64_t)l->head * j->shape.hot);
    hot h = hot_of_list(j, l, slot);
    uint32_t mark = mark_of(p), walk;

    for (int32_t i = 0; i < n; i++) {
        if (in_tail(l, ids[i])) {
            phys[i] = (int32_t)sl_tail_row(&p->rows, &j->shape, slot, ids[i], l->head);
            h.counters[TAIL_HITS]++;
        } else if (h.slot_of[ids[i]] != NONE) {
            h.stamp[h.slot_of[ids[i]]] = mark;
            h.counters[HITS]++;
        }
    }
    walk = p->policy == SL_EVICT_LRU ? h.next[h.rows] : (uint32_t)*h.cursor;
    for (int32_t i = 0; i < n && !in_tail(l, ids[i]); i++) {
        uint32_t row = h.slot_of[ids[i]];

        if (row == NONE) {
            miss *m = &missing[(*misses)++];

            row = victim(&h, p->policy, mark, &walk);
            replace(&h, row, ids[i], mark);
            m->src = sl_pool_row(&j->shape, page_of(j, p->seqs->host_pages, l, ids[i]), ids[i], l->head);
            m->dst = (int32_t)(first + row);
            m->block = (int32_t)(l->row * p->ld_blocks + i / SL_PAGE_TOKENS);
            if (p->block_need)
                p->block_need[m->block]++;
        }
        phys[i] = (int32_t)(first + row);
    }
    if (p->policy == SL_EVICT_CLOCK)
        *h.cursor = (int32_t)walk;
    else
        for (int32_t i = 0; i < n && !in_tail(l, ids[i]); i++)
            to_most_recent(&h, h.slot_of[ids[i]]);
}

static void resolve_list(const job *j, const list *l, miss *missing, int64_t *misses)
{
    const sl_seq_tables *s = j->p->seqs;
    int32_t *phys = j->p->phys + l->row * j->p->ld_ids;

    if (l->n > 0 && s->hot_slot[l->seq] >= 0)
        resolve_hot(j, l, phys, missing, misses);
    else
        for (int32_t i = 0; i < l->n; i++)
            phys[i] =
                (int32_t)sl_pool_row(&j->shape, page_of(j, s->row_pages, l, l->ids[i]), l->ids[i], l->head);
    for (int32_t i = l->n; i < j->p->ld_ids; i++)
        phys[i] = -1;
}

static void resolve_token(const job *j, int64_t t, miss *missing, int64_t *misses)
{
    sl_place at = {0};
    bool padding = sl_place_of(j->p->seqs, t, &at) != 0; /* check_token has passed */

    if (!padding && j->p->seqs->hot_slot[at.seq] >= 0 && begins_run(j->p->seqs, t))
        mark_run(j, t, &at);
    for (int32_t head = 0; head < j->shape.heads; head++) {
        list l = list_of(j, t, head, &at);

        l.n = padding ? 0 : l.n;
        resolve_list(j, &l, missing, misses);
    }
}

/* ---- miss list ---- */

enum { DIGIT = 11, FEW = 32 };

static void sort_few(miss *a, int64_t n)
{
    for (int64_t i = 1; i < n; i++) {
        miss m = a[i];
        int64_t at = i;

        for (; at > 0 && a[at - 1].src > m.src; at--)
            a[at] = a[at - 1];
        a[at] = m;
    }
}

static int digit(const miss *m, int shift)
{
    return (int)(m->src >> shift & ((1 << DIGIT) - 1));
}

/* Stable sort by src, which is never negative, digit by digit; returns where the result is (a or b). */
static miss *sort_misses(miss *a, miss *b, int64_t n)
{
    int64_t all = 0;

    if (n <= FEW) {
        sort_few(a, n);
        return a;
    }
    for (int64_t i = 0; i < n; i++)
        all |= a[i].src;
    for (int shift = 0; shift < 63 && all >> shift; shift += DIGIT) {
        int64_t begins[(1 << DIGIT) + 1] = {0};

        for (int64_t i = 0; i < n; i++)
            begins[digit(&a[i], shift) + 1]++;
        for (int d = 0; d < 1 << DIGIT; d++)
            begins[d + 1] += begins[d];
        for (int64_t i = 0; i < n; i++)
            b[begins[digit(&a[i], shift)]++] = a[i];
        miss *swap = a;

        a = b;
        b = swap;
    }
    return a;
}

static sl_status run_resolve(sl_backend *be, const void *params, sl_err *err)
{
    const sl_resolve_params *p = params;
    job j = {.p = p, .shape = sl_row_shape_of(&p->rows)};
    int64_t misses = 0, count = 0;
    miss *missing;
    void *mem;

    for (int64_t t = 0; t < p->seqs->n_tokens; t++) {
        uint32_t bad = check_token(&j, t, &misses);

        if (bad)
            return sl_deverr(bad, "resolve", err);
    }
    if (misses > p->miss_cap)
        return sl_deverr(SL_DEVERR_MISS_CAPACITY, "resolve", err);
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_X, 2 * sizeof(miss) * (size_t)(misses + 1), &mem, err));
    missing = mem;
    if (p->block_need) {
        size_t blocks = (size_t)p->seqs->n_tokens * (size_t)j.shape.heads * (size_t)p->ld_blocks;

        memset(p->block_need, 0, sizeof(int32_t) * blocks);
        memset(p->block_done, 0, sizeof(int32_t) * blocks);
    }
    for (int64_t t = 0; t < p->seqs->n_tokens; t++)
        resolve_token(&j, t, missing, &count);
    missing = sort_misses(missing, missing + misses, misses);
    for (int64_t i = 0; i < misses; i++) {
        p->miss_src[i] = missing[i].src;
        p->miss_dst[i] = missing[i].dst;
        if (p->miss_block)
            p->miss_block[i] = missing[i].block;
    }
    *p->miss_count = (int32_t)misses;
    if (p->clock)
        p->clock->asked = sl_now_ns();
    return SL_OK;
}

const sl_op_impl sl_cpu_resolve = {.run = run_resolve};

/* ---- reset ---- */

static void reset_slot(const sl_hot_state *s, int32_t slot, int32_t rows)
{
    hot h = hot_of(s, slot, rows);

    memset(h.slot_of, 0xff, sizeof(uint16_t) * (size_t)s->max_tokens);
    memset(h.token_of, 0xff, sizeof(int32_t) * (size_t)rows);
    memset(h.stamp, 0, sizeof(uint32_t) * (size_t)rows);
    memset(h.counters, 0, sizeof(uint32_t) * COUNTERS);
    if (h.cursor)
        *h.cursor = 0;
    if (!h.next)
        return;
    for (int32_t i = 0; i <= rows; i++) { /* a ring: sentinel, 0, 1, … rows - 1 */
        h.next[i] = (uint16_t)(i == rows ? 0 : i + 1);
        h.prev[i] = (uint16_t)(i == 0 ? rows : i - 1);
    }
}

static sl_status run_hot_reset(sl_backend *be, const void *params, sl_err *err)
{
    const sl_hot_reset_params *p = params;

    (void)be;
    (void)err;
    if (p->slot >= 0)
        reset_slot(&p->hot, p->slot, p->hot_rows);
    else
        for (int32_t s = 0; s < p->hot_slots; s++)
            reset_slot(&p->hot, s, p->hot_rows);
    return SL_OK;
}

const sl_op_impl sl_cpu_hot_reset = {.run = run_hot_reset};
