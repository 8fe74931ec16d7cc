/*
 * The swap-in manager compared with a naive oracle, over thousands of random steps: which entry holds which token,
 * the order of victims (the LRU list by brute force, the CLOCK hand moved one entry at a time), counters, no row
 * used twice, every selected row present with the bytes of the host page, every unused entry filled with NaN.
 * Meanwhile sequences join, leave and reuse slots.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "sparse/swapin.h"
#include "tests/unit/run_suite.h"

/* ck_assert reports every success to the parent process; this is for inner loops. */
#define MUST(cond)                                                                                           \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            ck_abort_msg("%s", #cond);                                                                       \
    } while (0)

enum {
    LAYERS = 2,
    SLOTS = 3,
    SEQS = 4, /* the last one is resident */
    MAX_CTX = 512,
    PAGES = MAX_CTX / SL_PAGE_TOKENS,
    ROW = 32,
    MAX_HOT = 64,
    MAX_K = 40,
};

typedef struct shape {
    int hot_rows, tail_rows, k, steps;
    sl_evict_policy policy;
    unsigned seed;
} shape;

/* One hot slot of one layer as the oracle sees it. */
typedef struct oracle {
    int token_of[MAX_HOT];
    bool referenced[MAX_HOT];
    int order[MAX_HOT]; /* entries from least to most recent */
    int hand;
    uint64_t hits, misses, evictions, tail_hits;
} oracle;

typedef struct rig {
    shape s;
    uint64_t rng;
    sl_backend *be;
    sl_swapin *swapin;
    sl_coord_layer layers[LAYERS];
    uint8_t *host, *device[LAYERS];
    int32_t host_pages[SEQS * PAGES], row_pages[SEQS * PAGES], hot_slot[SEQS];
    int len[SEQS], uid[SEQS], uids;
    uint64_t block_misses; /* counted by block */
    oracle o[LAYERS][SLOTS];
    uint64_t layer_base[LAYERS][4]; /* of slots that were reset */
} rig;

static uint32_t next(rig *r)
{
    r->rng = r->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(r->rng >> 33);
}

static uint8_t *host_row(rig *r, int layer, int seq, int pos)
{
    const sl_host_plane *h = &r->layers[layer].host_rows;
    return h->base + r->host_pages[seq * PAGES + pos / SL_PAGE_TOKENS] * h->page_stride +
           pos % SL_PAGE_TOKENS * h->row_stride;
}

static uint8_t *device_row(rig *r, int layer, int64_t row)
{
    return r->device[layer] + row * ROW;
}

static int64_t hot_row(const rig *r, int slot, int i)
{
    const sl_row_view *v = &r->layers[0].rows;
    return v->hot_base + (int64_t)slot * (v->hot_rows + v->tail_rows) + i;
}

static void fill_row(uint8_t *row, int layer, int uid, int pos)
{
    uint32_t w[ROW / 4];
    for (int i = 0; i < ROW / 4; i++)
        w[i] = (uint32_t)(layer * 7919 + uid * 104729 + pos * 31 + i) * 2654435761u;
    memcpy(row, w, ROW);
}

static void setup(rig *r, const shape *s)
{
    *r = (rig){.s = *s, .rng = s->seed};
    sl_backend_opts bo = {.threads = 1};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &r->be, NULL), SL_OK);
    size_t page = LAYERS * SL_PAGE_TOKENS * ROW, pages = SEQS * PAGES;
    int64_t rows = PAGES * SL_PAGE_TOKENS + SLOTS * (s->hot_rows + s->tail_rows);
    r->host = calloc(pages, page);
    for (int l = 0; l < LAYERS; l++) {
        r->device[l] = calloc((size_t)rows, ROW);
        r->layers[l] = (sl_coord_layer){
            .rows = {r->device[l], ROW, PAGES * SL_PAGE_TOKENS, s->hot_rows, s->tail_rows, 0, 0},
            .host_rows = {r->host + l * SL_PAGE_TOKENS * ROW, (int64_t)page, ROW},
        };
    }
    for (int i = 0; i < SEQS * PAGES; i++) {
        r->host_pages[i] = (i * 7) % (SEQS * PAGES); /* scattered: 7 and the count are coprime */
        r->row_pages[i] = i / PAGES == SEQS - 1 ? i % PAGES : -1;
    }
    for (int q = 0; q < SEQS; q++)
        r->hot_slot[q] = -1, r->uid[q] = -1;
    sl_swapin_opts so = {.n_layers = LAYERS,
                         .layers = r->layers,
                         .hot_slots = SLOTS,
                         .max_tokens = MAX_CTX,
                         .width = s->k,
                         .policy = s->policy,
                         .poison = true,
                         .overlap_tokens = s->seed % 2 ? SEQS : 0};
    ck_assert_int_eq(sl_swapin_create(r->be, &so, &r->swapin, NULL), SL_OK);
}

static void teardown(rig *r)
{
    sl_swapin_destroy(r->swapin);
    sl_backend_destroy(r->be);
    for (int l = 0; l < LAYERS; l++)
        free(r->device[l]);
    free(r->host);
}

/* ---- oracle ---- */

static void oracle_reset(rig *r, int slot)
{
    for (int l = 0; l < LAYERS; l++) {
        oracle *o = &r->o[l][slot];
        uint64_t c[4] = {o->hits, o->misses, o->evictions, o->tail_hits};
        for (int i = 0; i < 4; i++)
            r->layer_base[l][i] += c[i];
        *o = (oracle){0};
        for (int i = 0; i < r->s.hot_rows; i++)
            o->token_of[i] = -1, o->order[i] = i;
    }
}

static int oracle_find(const oracle *o, int n, int token)
{
    for (int i = 0; i < n; i++)
        if (o->token_of[i] == token)
            return i;
    return -1;
}

static bool contains(const int *v, int n, int x)
{
    for (int i = 0; i < n; i++)
        if (v[i] == x)
            return true;
    return false;
}

/* Moves an entry to the most recent end. */
static void oracle_touch(oracle *o, int n, int entry)
{
    int at = 0;
    while (o->order[at] != entry)
        at++;
    for (; at + 1 < n; at++)
        o->order[at] = o->order[at + 1];
    o->order[n - 1] = entry;
}

static int oracle_victim(oracle *o, int n, sl_evict_policy policy, const int *used, int n_used)
{
    if (policy == SL_EVICT_LRU) {
        for (int i = 0; i < n; i++)
            if (!contains(used, n_used, o->order[i]))
                return o->order[i];
        ck_abort_msg("no victim");
    }
    for (;;) {
        int i = o->hand;
        o->hand = (o->hand + 1) % n;
        if (contains(used, n_used, i))
            continue;
        if (!o->referenced[i])
            return i;
        o->referenced[i] = false;
    }
}

/* Plays one list; expect[i] is the row each id must have. */
static void oracle_play(rig *r, int layer, int slot, const int32_t *ids, int n, int pos, int64_t *expect)
{
    oracle *o = &r->o[layer][slot];
    int used[MAX_HOT], n_used = 0, hot = r->s.hot_rows, order[MAX_K];
    for (int i = 0; i < n; i++) {
        int e = oracle_find(o, hot, ids[i]);
        if (ids[i] <= pos - r->s.tail_rows && e >= 0) {
            used[n_used++] = e;
            o->referenced[e] = true;
            o->hits++;
        }
    }
    for (int i = 0; i < n; i++) {
        if (ids[i] > pos - r->s.tail_rows) {
            expect[i] = hot_row(r, slot, hot + ids[i] % r->s.tail_rows);
            o->tail_hits++;
            continue;
        }
        int e = oracle_find(o, hot, ids[i]);
        if (e < 0) {
            e = oracle_victim(o, hot, r->s.policy, used, n_used);
            o->evictions += o->token_of[e] >= 0;
            o->misses++;
            o->token_of[e] = ids[i];
            o->referenced[e] = true;
            used[n_used++] = e;
        }
        expect[i] = hot_row(r, slot, e);
        order[i] = e;
    }
    for (int i = 0; i < n && ids[i] <= pos - r->s.tail_rows; i++)
        oracle_touch(o, hot, order[i]);
}

/* ---- checks after a layer ---- */

static bool all_bytes(const uint8_t *p, uint8_t b)
{
    for (int i = 0; i < ROW; i++)
        if (p[i] != b)
            return false;
    return true;
}

static void check_state(rig *r, int layer, int seq)
{
    int slot = r->hot_slot[seq], n = r->s.hot_rows;
    const sl_hot_state *h = sl_swapin_state(r->swapin, layer);
    const oracle *o = &r->o[layer][slot];
    const int32_t *token_of = h->token_of + (int64_t)slot * n;
    const uint16_t *slot_of = h->slot_of + (int64_t)slot * MAX_CTX;
    int held = 0;
    for (int i = 0; i < n; i++) {
        MUST(token_of[i] == o->token_of[i]);
        const uint8_t *row = device_row(r, layer, hot_row(r, slot, i));
        if (token_of[i] < 0) {
            MUST(all_bytes(row, 0xff));
            continue;
        }
        held++;
        MUST(slot_of[token_of[i]] == i);
        MUST(memcmp(row, host_row(r, layer, seq, token_of[i]), ROW) == 0);
    }
    for (int t = 0; t < MAX_CTX; t++)
        held -= slot_of[t] != 0xffff;
    MUST(held == 0);
    if (r->s.policy == SL_EVICT_CLOCK) {
        MUST(h->cursor[slot] == o->hand);
        return;
    }
    const uint16_t *follow = h->next + (int64_t)slot * (n + 1), *back = h->prev + (int64_t)slot * (n + 1);
    for (int i = 0, e = follow[n]; i < n; i++, e = follow[e]) {
        MUST(e == o->order[i]);
        MUST(back[follow[e]] == e);
    }
}

static void check_counters(rig *r)
{
    sl_coord_counters layers[LAYERS], one;
    for (int s = 0; s < SLOTS; s++) {
        MUST(sl_swapin_counters(r->swapin, layers, s, &one, NULL) == SL_OK);
        sl_coord_counters want = {0};
        for (int l = 0; l < LAYERS; l++) {
            want.hits += r->o[l][s].hits, want.misses += r->o[l][s].misses;
            want.evictions += r->o[l][s].evictions, want.tail_hits += r->o[l][s].tail_hits;
        }
        MUST(one.hits == want.hits && one.misses == want.misses && one.evictions == want.evictions &&
             one.tail_hits == want.tail_hits);
    }
    uint64_t misses = 0;
    for (int l = 0; l < LAYERS; l++)
        misses += layers[l].misses;
    MUST(r->block_misses == (r->s.seed % 2 ? misses : 0));
    for (int l = 0; l < LAYERS; l++) {
        uint64_t c[4];
        memcpy(c, r->layer_base[l], sizeof c);
        for (int s = 0; s < SLOTS; s++) {
            const oracle *o = &r->o[l][s];
            c[0] += o->hits, c[1] += o->misses, c[2] += o->evictions, c[3] += o->tail_hits;
        }
        MUST(layers[l].hits == c[0] && layers[l].misses == c[1] && layers[l].evictions == c[2] &&
             layers[l].tail_hits == c[3]);
    }
}

/* ---- steps ---- */

/* An ascending selection of up to k of 0..pos with some locality: half of the ids change only slowly with the position.
 */
static int choose(rig *r, int pos, int32_t *ids)
{
    bool in[MAX_CTX] = {false};
    int n = pos + 1 < r->s.k ? pos + 1 : r->s.k, have = 0;
    in[pos] = true, have = 1;
    while (have < n) {
        int t = have % 2 ? (int)(next(r) % (unsigned)(pos + 1))
                         : (int)((unsigned)(pos / 8 * 13 + have * 17) % (unsigned)(pos + 1));
        if (in[t])
            t = (int)(next(r) % (unsigned)(pos + 1));
        have += !in[t];
        in[t] = true;
    }
    int k = 0;
    for (int t = 0; t <= pos; t++)
        if (in[t])
            ids[k++] = t;
    return k;
}

/* Appends one token of every open sequence: host row, and tail or pool row. */
static void append(rig *r, int seq)
{
    int pos = r->len[seq];
    for (int l = 0; l < LAYERS; l++) {
        fill_row(host_row(r, l, seq, pos), l, r->uid[seq], pos);
        int64_t row = r->hot_slot[seq] < 0
                          ? (int64_t)r->row_pages[seq * PAGES + pos / SL_PAGE_TOKENS] * SL_PAGE_TOKENS +
                                pos % SL_PAGE_TOKENS
                          : hot_row(r, r->hot_slot[seq], r->s.hot_rows + pos % r->s.tail_rows);
        memcpy(device_row(r, l, row), host_row(r, l, seq, pos), ROW);
    }
}

static void check_rows(rig *r, int layer, int seq, const int32_t *ids, const int32_t *phys, int n)
{
    for (int i = 0; i < n; i++) {
        MUST(phys[i] >= 0);
        for (int j = 0; j < i; j++)
            MUST(phys[i] != phys[j]);
        MUST(memcmp(device_row(r, layer, phys[i]), host_row(r, layer, seq, ids[i]), ROW) == 0);
    }
    for (int i = n; i < r->s.k; i++)
        MUST(phys[i] == -1);
}

/* Attention concurrently with the gather: every block of every list has received its missing rows. */
static void check_blocks(rig *r, int layer, const int *seqs, int n_seqs)
{
    sl_sparse_attn_params p = {0};
    bool on = sl_swapin_overlap(r->swapin, layer, n_seqs, r->s.k, &p);
    MUST(on == (r->s.seed % 2 != 0));
    for (int i = 0; on && i < n_seqs; i++)
        for (int b = 0; b < p.ld_blocks; b++) {
            int32_t need = p.block_need[i * p.ld_blocks + b];
            MUST(need == p.block_done[i * p.ld_blocks + b] && need <= SL_PAGE_TOKENS);
            MUST(need == 0 || r->hot_slot[seqs[i]] >= 0);
            r->block_misses += (uint64_t)need;
        }
}

static void run_layer(rig *r, int layer, const int *seqs, int n_seqs)
{
    int32_t token_seq[SEQS], token_pos[SEQS], ids[SEQS * MAX_K], phys[SEQS * MAX_K], count[SEQS];
    int64_t expect[MAX_K];
    const int k = r->s.k;
    memset(ids, 0xff, sizeof ids);
    for (int i = 0; i < n_seqs; i++) {
        token_seq[i] = seqs[i], token_pos[i] = r->len[seqs[i]];
        count[i] = choose(r, token_pos[i], ids + i * k);
    }
    sl_seq_tables t = {n_seqs,        SEQS,          PAGES,        token_seq,   token_pos,
                       r->host_pages, r->host_pages, r->row_pages, r->hot_slot, NULL};
    MUST(sl_swapin_resolve(r->swapin, layer, &t, ids, phys, k, NULL) == SL_OK);
    MUST(sl_swapin_gather(r->swapin, layer, NULL) == SL_OK);
    check_blocks(r, layer, seqs, n_seqs);
    for (int i = 0; i < n_seqs; i++) {
        check_rows(r, layer, seqs[i], ids + i * k, phys + i * k, count[i]);
        if (r->hot_slot[seqs[i]] < 0)
            continue;
        oracle_play(r, layer, r->hot_slot[seqs[i]], ids + i * k, count[i], token_pos[i], expect);
        for (int j = 0; j < count[i]; j++)
            MUST(phys[i * k + j] == expect[j]);
        check_state(r, layer, seqs[i]);
    }
}

static void join(rig *r, int seq)
{
    r->uid[seq] = r->uids++;
    r->len[seq] = 0;
    r->hot_slot[seq] = seq == SEQS - 1 ? -1 : seq;
    if (r->hot_slot[seq] < 0)
        return;
    MUST(sl_swapin_reset(r->swapin, r->hot_slot[seq], true, NULL) == SL_OK);
    oracle_reset(r, r->hot_slot[seq]);
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < r->s.hot_rows + r->s.tail_rows; i++)
            MUST(all_bytes(device_row(r, l, hot_row(r, r->hot_slot[seq], i)), 0xff));
}

START_TEST(swapin_follows_oracle)
{
    static const shape shapes[] = {
        {16, 4, 16, 3000, SL_EVICT_LRU, 1},  {16, 4, 16, 3000, SL_EVICT_CLOCK, 2},
        {40, 1, 12, 3000, SL_EVICT_LRU, 3},  {40, 1, 12, 3000, SL_EVICT_CLOCK, 4},
        {64, 70, 40, 2000, SL_EVICT_LRU, 5}, {41, 64, 40, 2000, SL_EVICT_CLOCK, 6},
        {1, 1, 1, 1500, SL_EVICT_LRU, 7},    {1, 1, 1, 1500, SL_EVICT_CLOCK, 8},
    };
    static rig r;
    setup(&r, &shapes[_i]);
    for (int s = 0; s < SLOTS; s++)
        oracle_reset(&r, s);
    for (int step = 0; step < r.s.steps; step++) {
        int seqs[SEQS], n = 0;
        for (int q = 0; q < SEQS; q++) {
            if (r.uid[q] < 0 || r.len[q] == MAX_CTX || next(&r) % 150 == 0)
                join(&r, q);
            if (next(&r) % 8) { /* sometimes a sequence does not take part in a step */
                seqs[n++] = q;
                append(&r, q);
            }
        }
        ck_assert_int_eq(sl_swapin_step(r.swapin, false, NULL), SL_OK);
        for (int l = 0; l < LAYERS && n > 0; l++)
            run_layer(&r, l, seqs, n);
        for (int i = 0; i < n; i++)
            r.len[seqs[i]]++;
        if (step % 97 == 0)
            check_counters(&r);
    }
    check_counters(&r);
    teardown(&r);
}
END_TEST

START_TEST(without_hot_slots)
{
    sl_backend *be;
    sl_backend_opts bo = {.threads = 1};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, NULL), SL_OK);
    uint8_t rows[SL_PAGE_TOKENS * ROW] = {0};
    sl_coord_layer layer = {.rows = {rows, ROW, SL_PAGE_TOKENS, 0, 0, 0, 0}};
    sl_swapin_opts so = {.n_layers = 1,
                         .layers = &layer,
                         .max_tokens = MAX_CTX,
                         .width = 8,
                         .policy = SL_EVICT_LRU,
                         .poison = true};
    sl_swapin *s;
    ck_assert_int_eq(sl_swapin_create(be, &so, &s, NULL), SL_OK);
    ck_assert_int_eq(sl_swapin_step(s, false, NULL), SL_OK);
    int32_t zero = 0, pos = 5, none = -1, ids[8] = {0, 2, 5, -1, -1, -1, -1, -1}, phys[8];
    sl_seq_tables t = {1, 1, 1, &zero, &pos, &zero, &zero, &zero, &none, NULL};
    ck_assert_int_eq(sl_swapin_resolve(s, 0, &t, ids, phys, 8, NULL), SL_OK);
    ck_assert_int_eq(sl_swapin_gather(s, 0, NULL), SL_OK);
    ck_assert_mem_eq(phys, ids, sizeof ids);
    sl_coord_counters c;
    ck_assert_int_eq(sl_swapin_counters(s, &c, -1, NULL, NULL), SL_OK);
    ck_assert_uint_eq(c.hits + c.misses + c.tail_hits + c.evictions, 0);
    int32_t slot = 0;
    sl_err err = {0};
    t.hot_slot = &slot; /* a hierarchical sequence where there are no hot slots is an error, never a guess */
    ck_assert_int_lt(sl_swapin_resolve(s, 0, &t, ids, phys, 8, &err), 0);
    ck_assert_str_ne(err.text, "");
    sl_swapin_destroy(s);
    sl_backend_destroy(be);
}
END_TEST

START_TEST(planned_bytes_are_allocated_bytes)
{
    sl_backend *be;
    sl_backend_opts bo = {.threads = 1};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, NULL), SL_OK);
    uint8_t *rows = calloc(8 * (64 + 8), ROW);
    const int32_t heads = _i == 2 ? 4 : 0;
    sl_coord_layer layers[3] = {{.rows = {rows, ROW, 0, 64, 8, heads, heads}},
                                {.resident = true, .rows = {rows, ROW, 0, 0, 8, heads, heads}},
                                {.rows = {rows, ROW, 0, 48, 8, heads, heads}}};
    sl_swapin_opts so = {.n_layers = 3,
                         .layers = layers,
                         .hot_slots = 8,
                         .max_tokens = 4096,
                         .width = heads ? 8 : 32,
                         .policy = SL_EVICT_LRU,
                         .poison = false,
                         .groups = _i ? 3 : 0,
                         .overlap_tokens = _i == 1 ? 5 : 0,
                         .lists = heads,
                         .block_log2 = heads};
    sl_swapin *s;
    ck_assert_int_eq(sl_swapin_create(be, &so, &s, NULL), SL_OK);
    uint64_t per, fixed;
    sl_swapin_plan_bytes(&so, &per, &fixed);
    ck_assert_ptr_null(sl_swapin_state(s, 1)->slot_of); /* nothing is kept for a resident layer */
    ck_assert_uint_ge(8 * per + fixed, sl_swapin_device_bytes(s));
    ck_assert_uint_le(8 * per,
                      sl_swapin_device_bytes(s) + 8 * 2 * 6 * 256); /* alignment of each slot's share */
    sl_swapin_destroy(s);
    sl_backend_destroy(be);
    free(rows);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sparse/swapin");
    TCase *c = tcase_create("swapin");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, swapin_follows_oracle, 0, 8);
    tcase_add_test(c, without_hot_slots);
    tcase_add_loop_test(c, planned_bytes_are_allocated_bytes, 0, 3);
    suite_add_tcase(s, c);
    return run_suite(s);
}
