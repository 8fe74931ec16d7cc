/* Conformance cases of rows: append, residency. Copies of missing ones: cases_gather.c; attention over them: cases_attn.c. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/formats.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

/* T, per, length, lora, rope, format, act, norm dtype, host, hier, tail_rows, scale of the input in 1/1000 */
static void append(cf_run *r, const int64_t *a)
{
    batch b;
    sl_kv_append_params p = {
        .lora = (int32_t)a[3], .rope = (int32_t)a[4], .eps = 1e-6f, .format = (sl_row_format)a[5]};
    size_t *dev = cf_temp(r, sizeof(size_t) * (size_t)r->n),
           *host = cf_temp(r, sizeof(size_t) * (size_t)r->n), row;
    int64_t rows;
    cf_kind kind;
    double tol;

    batch_make(r, &b, a[0], a[1], a[2], (int)a[9]);
    p.act = (sl_dtype)a[6];
    p.norm_dtype = (sl_dtype)a[7];
    p.seqs = &b.t;
    p.ld_kv = p.lora + p.rope + 2;
    row = (size_t)sl_row_bytes(p.format, p.lora, p.rope);
    p.rows = (sl_row_view){
        .row_bytes = (int64_t)row, .hot_base = b.pages * 64, .hot_rows = 5, .tail_rows = (int32_t)a[10]};
    rows = p.rows.hot_base + b.seqs * (int64_t)(p.rows.hot_rows + p.rows.tail_rows);
    p.rows.base = cf_mem(r, NULL, (size_t)rows * row);
    p.host.row_stride = (int64_t)row + 16;
    p.host.page_stride = 64 * p.host.row_stride + 48;
    p.host.base = a[8] ? cf_host_mem(r, NULL, (size_t)(b.pages * p.host.page_stride)) : NULL;
    p.kv = cf_matrix(r, 1, r->first, r->n, p.lora + p.rope, p.ld_kv, p.act, 2);
    p.norm = cf_matrix(r, 2, 0, 1, p.lora, p.lora, p.norm_dtype, (float)a[11] / 1000.0f);
    p.cos_sin = p.rope ? cf_cos_sin(r, (int32_t)a[2], p.rope) : NULL;
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at = (int64_t)batch_page(&b, b.row_pages, b.seq[i], b.pos[i]) * 64 + b.pos[i] % 64;

        if (b.hot_slot[b.seq[i]] >= 0)
            at = p.rows.hot_base + b.hot_slot[b.seq[i]] * (int64_t)(p.rows.hot_rows + p.rows.tail_rows) +
                 p.rows.hot_rows + b.pos[i] % p.rows.tail_rows;
        dev[i] = (size_t)at * row;
        host[i] = (size_t)(batch_page(&b, b.host_pages, b.seq[i], b.pos[i]) * p.host.page_stride +
                           b.pos[i] % 64 * p.host.row_stride);
    }
    cf_op(r, SL_OP_KV_APPEND, &p);
    cf_work(r, (double)r->n * ((double)(p.lora + p.rope) * (double)sl_dtype_size(p.act) + (double)row), 0,
            SL_F32, a[8] ? (double)r->n * (double)row : 0);
    kind = p.format == SL_ROW_MLA_FP8 ? CF_ROW_FP8 : p.format == SL_ROW_MLA_BF16 ? CF_BF16 : CF_F32;
    tol = kind == CF_ROW_FP8 ? (double)p.lora : p.act == SL_BF16 && kind == CF_F32 ? 8e-3 : 1e-6;
    cf_out_at(r, "row", p.rows.base, dev, row, kind, tol);
    if (a[8])
        cf_out_at(r, "host row", p.host.base, host, row, kind, tol);
    cf_out(r, "rows", p.rows.base, rows, row, row, kind, tol); /* nothing else was touched */
}

/* ---- residency ---- */

typedef struct resolve_case {
    batch b;
    sl_resolve_params p;
    int32_t slots, lists, block_log2;
    int32_t *ids; /* host, of one step */
} resolve_case;

/* hot_rows and tail_rows are those of one head. c->slots becomes the number of states, one per slot and head. */
static void make_hot(cf_run *r, resolve_case *c, int32_t hot_rows, int32_t tail_rows, int32_t max_tokens,
                     sl_evict_policy policy)
{
    sl_hot_state *h = &c->p.hot;
    c->slots *= c->lists;
    size_t slots = (size_t)c->slots, rows = (size_t)hot_rows;
    sl_hot_reset_params reset = {.slot = -1, .hot_slots = c->slots, .hot_rows = hot_rows};

    c->p.rows = (sl_row_view){.row_bytes = 16,
                              .hot_base = c->b.pages * (64 >> c->block_log2) * c->lists,
                              .hot_rows = hot_rows * c->lists,
                              .tail_rows = tail_rows * c->lists,
                              .heads = c->lists > 1 ? c->lists : 0,
                              .block_log2 = c->block_log2};
    c->p.rows.base = cf_mem(r, NULL, 16);
    h->max_tokens = max_tokens;
    h->slot_of = cf_mem(r, NULL, 2 * slots * (size_t)max_tokens);
    h->token_of = cf_mem(r, NULL, 4 * slots * rows);
    h->stamp = cf_mem(r, NULL, 4 * slots * rows);
    h->counters = cf_mem(r, NULL, 16 * slots);
    if (policy == SL_EVICT_LRU) {
        h->prev = cf_mem(r, NULL, 2 * slots * (rows + 1));
        h->next = cf_mem(r, NULL, 2 * slots * (rows + 1));
    } else {
        h->cursor = cf_mem(r, NULL, 4 * slots);
    }
    reset.hot = *h;
    cf_op(r, SL_OP_HOT_RESET, &reset);
}

static int by_id(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : *(const int32_t *)a > *(const int32_t *)b;
}

/* k distinct ascending ids in 0..pos: half of them from a window that moves slowly (hits), half from anywhere, and
 * always the newest. */
static void choose_ids(int32_t *ids, int32_t k, int32_t ld, int32_t pos, int64_t seq, int64_t step)
{
    int32_t n = 0;

    for (int32_t i = 0; i < ld; i++)
        ids[i] = -1;
    if (pos < k) {
        for (int32_t i = 0; i <= pos; i++)
            ids[i] = i;
        return;
    }
    for (int64_t i = 0; n < k; i++) {
        uint64_t h = cf_hash(900 + (uint32_t)seq, (i % 3 ? step / 4 : step) * 100000 + i);
        int32_t id = i == 0 ? pos : (int32_t)(h % (uint64_t)(pos + 1));
        bool twice = false;

        for (int32_t j = 0; j < n; j++)
            twice |= ids[j] == id;
        if (!twice)
            ids[n++] = id;
    }
    qsort(ids, (size_t)k, 4, by_id);
}

/* Positions advance during the case, so every page exists. shared: all sequences have sequence 1's host pages, so
 * that different misses have equal sources. */
static void all_pages(cf_run *r, resolve_case *c, bool shared)
{
    batch *b = &c->b;
    int64_t n = b->seqs * b->ld;

    for (int64_t s = 0; shared && s < b->seqs; s++)
        memcpy(b->host_pages + s * b->ld, b->host_pages + b->ld, 4 * (size_t)b->ld);
    for (int64_t i = 0; i < n; i++) {
        /* as batch_make() numbers the others: no page belongs to two positions */
        if (b->row_pages[i] < 0)
            b->row_pages[i] = (int32_t)((b->pages + 1 - (i ^ 1)) % b->pages);
        if (b->host_pages[i] < 0)
            b->host_pages[i] = (int32_t)(b->pages - 1 - (i ^ 1));
    }
    cf_put(r, (void *)(uintptr_t)b->t.host_pages, b->host_pages, 4 * (size_t)n);
    cf_put(r, (void *)(uintptr_t)b->t.row_pages, b->row_pages, 4 * (size_t)n);
}

static void resolve_params(cf_run *r, resolve_case *c, int32_t k, sl_evict_policy policy)
{
    sl_resolve_params *p = &c->p;
    int64_t lists = r->n * c->lists;
    size_t blocks;

    p->seqs = &c->b.t;
    p->k = k;
    p->ld_ids = k + 3;
    p->miss_cap = (int32_t)lists * k;
    p->policy = policy;
    c->ids = cf_temp(r, 4 * (size_t)(lists * p->ld_ids));
    p->ids = cf_mem(r, c->ids, 4 * (size_t)(lists * p->ld_ids));
    p->phys = cf_mem(r, NULL, 4 * (size_t)(lists * p->ld_ids));
    p->miss_src = cf_mem(r, NULL, 8 * (size_t)p->miss_cap);
    p->miss_dst = cf_mem(r, NULL, 4 * (size_t)p->miss_cap);
    p->miss_count = cf_mem(r, NULL, 4);
    p->step = cf_mem(r, NULL, 4);
    p->ld_blocks = sl_list_blocks(k) + 1;
    blocks = (size_t)(lists * p->ld_blocks);
    p->block_need = cf_mem(r, NULL, 4 * blocks);
    p->block_done = cf_mem(r, NULL, 4 * blocks);
    p->miss_block = cf_mem(r, NULL, 4 * (size_t)p->miss_cap);
}

/*
 * Appends the miss list to the log, list by list, and returns the log's new end. The backend chooses the
 * order of lists in the miss list, but the rows of each list ascend. scratch: 16 bytes per entry.
 */
static int32_t *log_misses(cf_run *r, const resolve_case *c, int32_t count, int64_t *src, int32_t *log)
{
    const sl_resolve_params *p = &c->p;
    int32_t *dst = (int32_t *)(src + p->miss_cap), *block = dst + p->miss_cap, *end = log;

    cf_get(r, src, p->miss_src, 8 * (size_t)count);
    cf_get(r, dst, p->miss_dst, 4 * (size_t)count);
    cf_get(r, block, p->miss_block, 4 * (size_t)count);
    for (int64_t t = 0; t < r->n * c->lists; t++) {
        int64_t last = -1;

        for (int32_t i = 0; i < count; i++) {
            if (block[i] / p->ld_blocks != t)
                continue;
            if (src[i] <= last)
                cf_fail(r, "miss_src of list %d is not ascending at %d", (int)t, i);
            last = src[i];
            *end++ = (int32_t)src[i];
            *end++ = dst[i];
            *end++ = block[i];
        }
    }
    if (end - log != 3 * (int64_t)count)
        cf_fail(r, "some of %d misses are of no list", count);
    return log + 3 * count;
}

/* Appends the results of a step to the log; returns the log's new end. */
static int32_t *log_step(cf_run *r, const resolve_case *c, int64_t *scratch, int32_t *log)
{
    const sl_resolve_params *p = &c->p;
    const int64_t lists = r->n * c->lists;
    size_t blocks = (size_t)(lists * p->ld_blocks);
    int32_t count = 0;

    cf_get(r, log, p->phys, 4 * (size_t)(lists * p->ld_ids));
    log += lists * p->ld_ids;
    cf_get(r, &count, p->miss_count, 4);
    if (r->st == SL_OK && (count < 0 || count > p->miss_cap))
        cf_fail(r, "miss_count is %d of at most %d", count, p->miss_cap);
    if (r->st != SL_OK)
        return log;
    *log++ = count;
    log = log_misses(r, c, count, scratch, log);
    if (!p->block_need)
        return log;
    cf_get(r, log, p->block_need, 4 * blocks);
    cf_get(r, log + blocks, p->block_done, 4 * blocks);
    return log + 2 * blocks;
}

static void resolve_outs(cf_run *r, const resolve_case *c, size_t hot_rows)
{
    const sl_resolve_params *p = &c->p;
    size_t slots_row = 2 * (size_t)p->hot.max_tokens, list_row = 2 * (hot_rows + 1);

    cf_out(r, "slot_of", p->hot.slot_of, c->slots, slots_row, slots_row, CF_BYTES, 0);
    cf_out(r, "token_of", p->hot.token_of, c->slots, 4 * hot_rows, 4 * hot_rows, CF_BYTES, 0);
    cf_out(r, "stamp", p->hot.stamp, c->slots, 4 * hot_rows, 4 * hot_rows, CF_BYTES, 0);
    cf_out(r, "counters", p->hot.counters, c->slots, 16, 16, CF_BYTES, 0);
    if (p->policy == SL_EVICT_LRU) {
        cf_out(r, "prev", p->hot.prev, c->slots, list_row, list_row, CF_BYTES, 0);
        cf_out(r, "next", p->hot.next, c->slots, list_row, list_row, CF_BYTES, 0);
    } else {
        cf_out(r, "cursor", p->hot.cursor, 1, 4 * (size_t)c->slots, 4 * (size_t)c->slots, CF_BYTES, 0);
    }
}

/* The lists of one token. In a run every second token has the list of the first one, except for the newest entry, so
 * that rows which were missing are used again; the lists of the others overlap with it in part. */
static void choose_lists(const resolve_case *c, int32_t ld, const int32_t *pos, int64_t token, int64_t per,
                         int64_t step)
{
    const int64_t in_run = token % per, first = token - in_run, k = ld - 3;

    for (int64_t l = 0; l < c->lists; l++) {
        int32_t *ids = c->ids + (token * c->lists + l) * ld, own = pos[token] >> c->block_log2;

        choose_ids(ids, (int32_t)k, ld, pos[first] >> c->block_log2, first * c->lists + l,
                   in_run % 2 ? step : step + 97 * in_run);
        if (ids[k - 1] >= 0)
            ids[k - 1] = own;
    }
}

/* S, length, k, hot_rows, tail_rows, steps, policy, hier (1 half, 2 all), shared pages, lists per token (0: 1), log2 of
 * a block's tokens, tokens of a run (0: 1), tail_spare; S counts tokens */
static void resolve(cf_run *r, const int64_t *a)
{
    resolve_case c = {.lists = a[9] ? (int32_t)a[9] : 1, .block_log2 = (int32_t)a[10]};
    int32_t k = (int32_t)a[2], ld = k + 3, *log, *end, *pos = cf_temp(r, 4 * (size_t)r->n);
    int64_t lists = r->n * c.lists, per = a[11] ? a[11] : 1;
    size_t per_step;
    uint32_t now;
    int64_t *src;

    const int64_t longest = a[1] + (a[5] + 1) * per;
    batch_make(r, &c.b, a[0], per, longest, (int)a[7]);
    c.slots = (int32_t)c.b.seqs;
    make_hot(r, &c, (int32_t)a[3], (int32_t)a[4], sl_blocks_for((int32_t)longest, c.block_log2),
             (sl_evict_policy)a[6]);
    all_pages(r, &c, a[8] != 0);
    resolve_params(r, &c, k, (sl_evict_policy)a[6]);
    c.p.tail_spare = (int32_t)a[12];
    if (per >
        1) /* then attention does not wait for blocks, but who missed which row is compared all the same */
        c.p.block_need = c.p.block_done = NULL;
    per_step = (size_t)(lists * ld) + 1 + (size_t)c.p.miss_cap * 4 + 2 * (size_t)(lists * c.p.ld_blocks);
    log = end = cf_temp(r, 4 * per_step * (size_t)a[5]);
    src = cf_temp(r, 16 * (size_t)c.p.miss_cap);
    for (int64_t step = 1; step <= a[5] && r->st == SL_OK; step++) {
        for (int64_t s = 0; s < r->n; s++) {
            /* every sixth step a position jumps back: another request took the slot */
            const int64_t first = c.b.pos[s - s % per] % a[1];
            pos[s] = (int32_t)(first + step * per + s % per);
            choose_lists(&c, ld, pos, s, per, step);
        }
        now = (uint32_t)step;
        cf_put(r, (void *)(uintptr_t)c.p.step, &now, 4);
        cf_put(r, (void *)(uintptr_t)c.p.ids, c.ids, 4 * (size_t)(lists * ld));
        cf_put(r, (void *)(uintptr_t)c.b.t.token_pos, pos, 4 * (size_t)r->n);
        cf_op(r, SL_OP_RESOLVE, &c.p);
        end = log_step(r, &c, src, end);
        if (r->st != SL_OK)
            return;
    }
    cf_out(r, "steps", cf_mem(r, log, 4 * (size_t)(end - log)), 1, 4 * (size_t)(end - log),
           4 * (size_t)(end - log), CF_BYTES, 0);
    resolve_outs(r, &c, (size_t)a[3]);
}

/* Timing: every step has other ids, all of which were prepared before. */
#define SETS 16
#define MOST_STEPS 4096
static const int32_t *set_ids[SETS];
static const uint32_t *steps; /* device: 1, 2, .. */

static void next_set(void *params, int i)
{
    sl_resolve_params *p = params;

    p->step = steps + 1 + i % MOST_STEPS;
    p->ids = set_ids[i % SETS];
}

/* S, length, k, hot_rows, tail_rows, n: one of n ids of a step is new (0: none), policy */
static void resolve_perf(cf_run *r, const int64_t *a)
{
    resolve_case c = {.lists = 1};
    int32_t k = (int32_t)a[2];
    uint32_t counters[4], *count_up = cf_temp(r, 4 * (MOST_STEPS + 1));

    for (uint32_t i = 0; i <= MOST_STEPS; i++)
        count_up[i] = i + 1;
    batch_make(r, &c.b, a[0], 1, a[1], 2);
    for (int64_t s = 0; s < r->n; s++)
        c.b.pos[s] = (int32_t)a[1] - 1;
    cf_put(r, (void *)(uintptr_t)c.b.t.token_pos, c.b.pos, 4 * (size_t)r->n);
    for (int64_t i = 0; i < c.b.seqs * c.b.ld; i++)
        c.b.host_pages[i] = (int32_t)(i % c.b.pages);
    cf_put(r, (void *)(uintptr_t)c.b.t.host_pages, c.b.host_pages, 4 * (size_t)(c.b.seqs * c.b.ld));
    c.slots = (int32_t)c.b.seqs;
    make_hot(r, &c, (int32_t)a[3], (int32_t)a[4], (int32_t)a[1], (sl_evict_policy)a[6]);
    c.ids = cf_temp(r, 4 * (size_t)(r->n * k));
    for (int i = 0; i < SETS; i++) {
        for (int64_t s = 0; s < r->n; s++)
            for (int32_t j = 0; j < k; j++) {
                int64_t span = a[1] / k,
                        h = (int64_t)(cf_hash((uint32_t)s, a[5] == 0 || j % a[5] ? j : j + 100000 * (i + 1)) %
                                      (uint64_t)span);

                c.ids[s * k + j] = (int32_t)(j * span + h);
            }
        set_ids[i] = cf_mem(r, c.ids, 4 * (size_t)(r->n * k));
    }
    c.p.seqs = &c.b.t;
    c.p.k = c.p.ld_ids = k;
    c.p.miss_cap = (int32_t)r->n * k;
    c.p.policy = (sl_evict_policy)a[6];
    c.p.ids = set_ids[0];
    steps = cf_mem(r, count_up, 4 * (MOST_STEPS + 1));
    c.p.step = steps;
    c.p.phys = cf_mem(r, NULL, 4 * (size_t)(r->n * k));
    c.p.miss_src = cf_mem(r, NULL, 8 * (size_t)c.p.miss_cap);
    c.p.miss_dst = cf_mem(r, NULL, 4 * (size_t)c.p.miss_cap);
    c.p.miss_count = cf_mem(r, NULL, 4);
    if (a[5])
        cf_op_steps(r, SL_OP_RESOLVE, &c.p, next_set);
    else
        cf_op(r, SL_OP_RESOLVE, &c.p); /* hits only: the same step is repeated, as a graph */
    cf_get(r, counters, c.p.hot.counters, 16);
    /* ids, phys, the direct map and a stamp per id; a miss also moves its maps and its place in the list. */
    cf_work(r, (double)r->n * (double)k * 14 + (a[5] ? (double)r->n * (double)k / (double)a[5] * 40 : 0), 0,
            SL_F32, 0);
}

/* One gather of a measurement that resolve began at `asked`; returns what the gather adds to the sums. */
static sl_swap_clock clocked(cf_run *r, sl_gather_params *p, uint64_t asked, uint64_t reached,
                             uint64_t in_front)
{
    sl_swap_clock c = {.asked = asked, .begun = UINT64_MAX}, front = {.ended = in_front};

    cf_put(r, p->clock, &c, sizeof c);
    if (p->reached)
        cf_put(r, (void *)(uintptr_t)p->reached, &reached, 8);
    if (p->in_front)
        cf_put(r, (void *)(uintptr_t)p->in_front, &front, sizeof front);
    cf_op(r, SL_OP_GATHER, p);
    cf_get(r, &c, p->clock, sizeof c);
    return c;
}

/* n rows. How long the gather took, and how long the stream waited for it, for every time at which the stream can
 * reach its wait. */
static void gather_clock(cf_run *r, const int64_t *a)
{
    const uint64_t late = UINT64_MAX / 2;
    sl_gather_params p = {.miss_cap = (int32_t)a[0], .rows = {.row_bytes = 656, .hot_rows = (int32_t)a[0]}};
    int32_t count = (int32_t)a[0], *dst = cf_temp(r, 4 * (size_t)a[0]), ok[5] = {1, 1, 1, 1, 1};
    int64_t *src = cf_temp(r, 8 * (size_t)a[0]);
    uint64_t *reached = cf_mem(r, NULL, 8);
    sl_swap_clock c;

    for (int32_t i = 0; i < count; i++)
        src[i] = dst[i] = i;
    p.host = (sl_host_plane){.row_stride = 656, .page_stride = 64 * 656};
    p.host.base = cf_host_mem(r, NULL, (size_t)(a[0] + 64) * 656);
    p.rows.base = cf_mem(r, NULL, (size_t)a[0] * 656);
    p.miss_src = cf_mem(r, src, 8 * (size_t)a[0]);
    p.miss_dst = cf_mem(r, dst, 4 * (size_t)a[0]);
    p.miss_count = cf_mem(r, &count, 4);
    p.clock = cf_mem(r, NULL, sizeof *p.clock);
    c = clocked(r, &p, 1, 0, 0); /* the stream waits during the whole gather */
    ok[0] = !r->be || (c.ended >= c.begun && c.taken == c.ended - c.begun && c.waited == c.taken);
    p.reached = reached;
    /* the stream has not reached its wait; 999 is from an earlier measurement */
    c = clocked(r, &p, 1000, 999, 0);
    ok[1] = !r->be || (c.taken == c.ended - c.begun && c.waited == 0);
    c = clocked(r, &p, 1000, 2000, 0); /* long before the gather began */
    ok[2] = !r->be || (c.waited == c.ended - 2000 && c.taken == c.waited);
    p.in_front = cf_mem(r, NULL, sizeof *p.clock);
    c = clocked(r, &p, 1000, 2000, 5000); /* the wait for the previous gather does not count for this one */
    ok[3] = !r->be || c.waited == c.ended - 5000;
    c = clocked(r, &p, 1000, late, 5000); /* the stream reached its wait after the gather's end */
    ok[4] = !r->be || (c.waited == 0 && c.taken == c.ended - c.begun);
    cf_out(r, "clock", cf_mem(r, ok, sizeof ok), 5, 4, 4, CF_BYTES, 0);
}

#define F SL_F32
#define B SL_BF16
#define RF SL_ROW_MLA_F32
#define RB SL_ROW_MLA_BF16
#define R8 SL_ROW_MLA_FP8
#define LRU SL_EVICT_LRU
#define CLOCK SL_EVICT_CLOCK
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_KV_APPEND, "T=1 lora=1 rope=0 f32", append, {1, 1, 1, 1, 0, RF, F, F, 0, 0, 1, 1500}, CF_SPLIT},
    {SL_OP_KV_APPEND, "T=12 lora=128 rope=16 f32", append, {12, 3, 200, 128, 16, RF, F, F, 1, 1, 4, 1500}, CF_SPLIT},
    {SL_OP_KV_APPEND, "T=8 lora=37 rope=6 bf16 rows", append, {8, 1, 300, 37, 6, RB, B, B, 1, 1, 64, 1500}, CF_SPLIT},
    {SL_OP_KV_APPEND, "T=12 lora=512 rope=64 fp8 rows", append, {12, 1, 300, 512, 64, R8, B, B, 1, 1, 64, 1500}, CF_SPLIT},
    {SL_OP_KV_APPEND, "T=6 lora=200 rope=16 fp8 rows f32", append, {6, 2, 300, 200, 16, R8, F, F, 1, 1, 2, 1500}, CF_SPLIT},
    {SL_OP_KV_APPEND, "T=9 lora=512 rope=64 fp8 tiny values", append, {9, 1, 300, 512, 64, R8, B, F, 0, 2, 8, 5}, CF_SPLIT},
    {SL_OP_KV_APPEND, "T=90 lora=64 rope=8 tail overrun", append, {90, 45, 130, 64, 8, RF, F, F, 1, 2, 16, 1500}, 0},
    {SL_OP_KV_APPEND, "T=64 lora=512 rope=64 fp8 rows", append, {64, 1, 1024, 512, 64, R8, B, B, 1, 2, 64, 1500}, CF_PERF_ONLY},

    {SL_OP_RESOLVE, "S=4 k=8 hot=8 tail=2 lru", resolve, {4, 100, 8, 8, 2, 60, LRU, 1, 0}, 0},
    {SL_OP_RESOLVE, "S=4 k=8 hot=8 tail=2 clock", resolve, {4, 100, 8, 8, 2, 60, CLOCK, 1, 0}, 0},
    {SL_OP_RESOLVE, "S=3 k=16 hot=40 tail=1 lru shared", resolve, {3, 300, 16, 40, 1, 80, LRU, 2, 1}, 0},
    {SL_OP_RESOLVE, "S=3 k=16 hot=40 tail=1 clock shared", resolve, {3, 300, 16, 40, 1, 80, CLOCK, 2, 1}, 0},
    {SL_OP_RESOLVE, "S=2 k=64 hot=100 tail=64 lru", resolve, {2, 500, 64, 100, 64, 60, LRU, 2, 0}, 0},
    {SL_OP_RESOLVE, "S=2 k=64 hot=100 tail=64 clock", resolve, {2, 500, 64, 100, 64, 60, CLOCK, 2, 0}, 0},
    {SL_OP_RESOLVE, "S=1 k=1 hot=1 tail=1 lru", resolve, {1, 5, 1, 1, 1, 30, LRU, 2, 0}, 0},
    {SL_OP_RESOLVE, "S=3 k=33 resident", resolve, {3, 300, 33, 40, 1, 3, LRU, 0, 0}, 0},
    {SL_OP_RESOLVE, "S=4 k=8 hot=9 tail=2 lists=3 lru", resolve, {4, 100, 8, 9, 2, 60, LRU, 1, 0, 3, 0}, 0},
    {SL_OP_RESOLVE, "S=3 k=6 hot=7 tail=2 lists=2 blocks lru", resolve, {3, 700, 6, 7, 2, 90, LRU, 2, 1, 2, 4}, 0},
    {SL_OP_RESOLVE, "S=4 k=70 hot=90 tail=3 lists=4 blocks clock", resolve, {4, 900, 70, 90, 3, 60, CLOCK, 1, 0, 4, 2}, 0},
    {SL_OP_RESOLVE, "S=6 runs of 3 k=8 hot=24 lru", resolve, {6, 100, 8, 24, 5, 60, LRU, 2, 0, 0, 0, 3, 2}, 0},
    {SL_OP_RESOLVE, "S=6 runs of 3 k=8 hot=24 clock", resolve, {6, 100, 8, 24, 5, 60, CLOCK, 1, 0, 0, 0, 3, 2}, 0},
    {SL_OP_RESOLVE, "S=10 runs of 5 k=40 hot=230 clock", resolve, {10, 900, 40, 230, 9, 60, CLOCK, 2, 0, 0, 0, 5, 4}, 0},
    {SL_OP_RESOLVE, "S=4 runs of 2 k=33 hot=70 resident", resolve, {4, 300, 33, 70, 3, 3, LRU, 0, 0, 0, 0, 2, 1}, 0},
    {SL_OP_RESOLVE, "S=8 runs of 4 k=6 hot=25 tail=3 lists=2 blocks lru", resolve, {8, 700, 6, 25, 3, 60, LRU, 2, 0, 2, 4, 4, 1}, 0},
    {SL_OP_RESOLVE, "S=32 runs of 16 k=70 hot=1130 tail=33 lists=4 clock", resolve, {32, 900, 70, 1130, 33, 12, CLOCK, 1, 0, 4, 0, 16, 15}, 0},
    {SL_OP_RESOLVE, "S=2 k=5 hot=5 tail=1 blocks of 64", resolve, {2, 900, 5, 5, 1, 90, CLOCK, 1, 0, 0, 6}, 0},
    {SL_OP_RESOLVE, "S=2 k=200 hot=1500 tail=3 lists=3 clock", resolve, {2, 3000, 200, 1500, 3, 20, CLOCK, 2, 0, 3, 0}, 0},
    {SL_OP_RESOLVE, "S=2 k=1100 hot=1200 tail=3 lists=2 clock", resolve, {2, 3000, 1100, 1200, 3, 12, CLOCK, 1, 0, 2, 0}, 0},
    {SL_OP_RESOLVE, "S=4 k=900 hot=1000 tail=64 lru", resolve, {4, 6000, 900, 1000, 64, 3, LRU, 2, 0}, 0},
    {SL_OP_RESOLVE, "S=2 k=5000 resident", resolve, {2, 6000, 5000, 1, 1, 2, LRU, 0, 0}, 0},
    {SL_OP_RESOLVE, "S=20 k=2048 no miss", resolve_perf, {20, 65536, 2048, 6144, 64, 0, CLOCK}, CF_PERF_ONLY},
    {SL_OP_RESOLVE, "S=8 k=2048 third new", resolve_perf, {8, 65536, 2048, 6144, 64, 3, CLOCK}, CF_PERF_ONLY},
    {SL_OP_RESOLVE, "S=20 k=2048 20th new", resolve_perf, {20, 65536, 2048, 6144, 64, 20, CLOCK}, CF_PERF_ONLY},
    {SL_OP_RESOLVE, "S=20 k=2048 third new", resolve_perf, {20, 65536, 2048, 6144, 64, 3, CLOCK}, CF_PERF_ONLY},
    {SL_OP_RESOLVE, "S=20 k=2048 third new lru", resolve_perf, {20, 65536, 2048, 6144, 64, 3, LRU}, CF_PERF_ONLY},

    {SL_OP_GATHER, "n=300 clock", gather_clock, {300}, 0},
};
/* clang-format on */

const cf_table cf_cache_cases = {cases, SL_COUNT(cases)};
