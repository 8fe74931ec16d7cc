/*
 * Byte-pair merges of one piece: always the pair with the lowest rank, and of equal ranks the leftmost, until no pair
 * can be merged.
 *
 * For a short piece the rank of every neighbouring pair is kept in an array, which is scanned for the smallest; for a
 * long piece a heap is used, so that no text costs more than O(n log n). In a long text, the ids of words that occur
 * again come from a small direct-mapped cache.
 */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer_impl.h"

enum {
    SHORT_PIECE = 48,
    CACHE_SLOTS = 4096,
    CACHE_KEY = 32,
    CACHE_IDS = 8,
    NO_PAIR = -1,
    MERGES_PER_LOOK = 4096
};

typedef struct tk_symbol {
    int32_t id;
    int32_t prev, next; /* -1 = none */
    uint32_t rank;      /* of the pair with the next symbol; UINT32_MAX = no merge (short pieces) */
    int32_t merged;     /* the id that this pair becomes */
    bool dead;
} tk_symbol;

typedef struct tk_cand {
    uint64_t order; /* rank << 32 | position: the smallest is merged first */
    int32_t merged;
} tk_cand;

typedef struct tk_cache {
    struct {
        unsigned char key[CACHE_KEY];
        uint8_t n_key, n_ids;
        int32_t ids[CACHE_IDS];
    } slot[CACHE_SLOTS];
} tk_cache;

/* ---- tables ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

bool tk_merges_reserve(tk_merges *m, size_t n)
{
    size_t slots = 16;
    while (slots < n * 2)
        slots *= 2;
    m->slots = malloc(slots * sizeof *m->slots);
    if (!m->slots)
        return false;
    for (size_t i = 0; i < slots; i++)
        m->slots[i] = (tk_merge){.pair = UINT64_MAX};
    m->mask = slots - 1;
    return true;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void tk_merges_set(tk_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t pair = pair_of(left, right);
    size_t at = mix(pair) & m->mask;
    while (m->slots[at].pair != UINT64_MAX && m->slots[at].pair != pair)
        at = (at + 1) & m->mask;
    m->n += m->slots[at].pair == UINT64_MAX;
    m->slots[at] = (tk_merge){pair, rank, id};
}

static const tk_merge *find_merge(const tk_merges *m, int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right);
    for (size_t at = mix(pair) & m->mask;; at = (at + 1) & m->mask) {
        if (m->slots[at].pair == pair)
            return &m->slots[at];
        if (m->slots[at].pair == UINT64_MAX)
            return NULL;
    }
}

/* ---- symbols of a piece ---- */

static tk_symbol *add_symbol(tk_work *w, int32_t *n, int32_t id)
{
    tk_symbol *s = &w->symbols[*n];
    *s = (tk_symbol){.id = id, .prev = *n - 1, .next = *n + 1};
    ++*n;
    return s;
}

/* Bytes to ids. A byte without a token becomes the unknown token, or is dropped if there is none; if unknown tokens are
 * fused, a run of such bytes becomes one of them. */
static int32_t load_symbols(tk_work *w, const unsigned char *piece, size_t len)
{
    const sl_tokenizer *t = w->t;
    int32_t n = 0;
    bool in_unk = false;
    for (size_t i = 0; i < len; i++) {
        int32_t id = t->byte_id[piece[i]];
        if (id >= 0) {
            add_symbol(w, &n, id);
            in_unk = false;
        } else if (t->unk >= 0 && !(in_unk && t->fuse_unk)) {
            add_symbol(w, &n, t->unk);
            in_unk = true;
        }
    }
    if (n)
        w->symbols[n - 1].next = -1;
    return n;
}

/* Joins symbol i with its successor. */
static void merge_at(tk_symbol *s, int32_t i, int32_t merged)
{
    int32_t right = s[i].next;
    s[i].id = merged;
    s[i].next = s[right].next;
    s[right].dead = true;
    if (s[right].next >= 0)
        s[s[right].next].prev = i;
}

/* ---- short pieces ---- */

static void rank_pair(const tk_merges *m, tk_symbol *s, int32_t i)
{
    s[i].rank = UINT32_MAX;
    if (s[i].next < 0)
        return;
    const tk_merge *found = find_merge(m, s[i].id, s[s[i].next].id);
    if (found) {
        s[i].rank = found->rank;
        s[i].merged = found->id;
    }
}

static void merge_short(const tk_merges *m, tk_symbol *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        rank_pair(m, s, i);
    for (;;) {
        int32_t best = NO_PAIR;
        uint32_t rank = UINT32_MAX;
        for (int32_t i = 0; i >= 0; i = s[i].next) {
            if (s[i].rank < rank) {
                rank = s[i].rank;
                best = i;
            }
        }
        if (best == NO_PAIR)
            return;
        merge_at(s, best, s[best].merged);
        rank_pair(m, s, best);
        if (s[best].prev >= 0)
            rank_pair(m, s, s[best].prev);
    }
}

/* ---- long pieces ---- */

static bool heap_push(tk_work *w, uint32_t rank, int32_t pos, int32_t merged)
{
    if (w->n_heap == w->cap_heap &&
        sl_guard_grow(w->guard, (void **)&w->heap, &w->cap_heap, w->n_heap + 1, sizeof *w->heap, NULL))
        return false;
    size_t at = w->n_heap++;
    tk_cand c = {(uint64_t)rank << 32 | (uint32_t)pos, merged};
    while (at > 0 && w->heap[(at - 1) / 2].order > c.order) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = c;
    return true;
}

static tk_cand heap_pop(tk_work *w)
{
    tk_cand top = w->heap[0], last = w->heap[--w->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= w->n_heap)
            break;
        if (child + 1 < w->n_heap && w->heap[child + 1].order < w->heap[child].order)
            child++;
        if (w->heap[child].order >= last.order)
            break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = last;
    return top;
}

static bool push_pair(tk_work *w, int32_t i)
{
    const tk_symbol *s = w->symbols;
    if (i < 0 || s[i].next < 0)
        return true;
    const tk_merge *m = find_merge(&w->t->merges, s[i].id, s[s[i].next].id);
    return !m || heap_push(w, m->rank, i, m->id);
}

static sl_status merge_long(tk_work *w, int32_t n)
{
    tk_symbol *s = w->symbols;
    w->n_heap = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i % MERGES_PER_LOOK == 0)
            SL_TRY(sl_guard_check(w->guard, w->err));
        if (!push_pair(w, i))
            return SL_ERR_NO_MEMORY;
    }
    for (uint32_t k = 1; w->n_heap; k++) {
        if (k % MERGES_PER_LOOK == 0)
            SL_TRY(sl_guard_check(w->guard, w->err));
        tk_cand top = heap_pop(w);
        int32_t i = (int32_t)(uint32_t)top.order;
        if (s[i].dead || s[i].next < 0)
            continue;
        const tk_merge *m = find_merge(&w->t->merges, s[i].id, s[s[i].next].id);
        if (!m || m->id != top.merged)
            continue; /* the entry is out of date: one of its symbols has been merged since */
        merge_at(s, i, top.merged);
        if (!push_pair(w, s[i].prev) || !push_pair(w, i))
            return SL_ERR_NO_MEMORY;
    }
    return SL_OK;
}

static sl_status merge_piece(tk_work *w, const unsigned char *piece, size_t len)
{
    if (sl_guard_grow(w->guard, (void **)&w->symbols, &w->cap_symbols, len, sizeof *w->symbols, NULL))
        return SL_ERR_NO_MEMORY;
    int32_t n = load_symbols(w, piece, len);
    if (n == 0)
        return SL_OK;
    if (n <= SHORT_PIECE)
        merge_short(&w->t->merges, w->symbols, n);
    else
        SL_TRY(merge_long(w, n));
    for (int32_t i = 0; i >= 0; i = w->symbols[i].next) {
        if (!tk_ids_push(&w->ids, w->symbols[i].id))
            return SL_ERR_NO_MEMORY;
    }
    return SL_OK;
}

/* ---- cache ---- */

static size_t cache_slot(const unsigned char *piece, size_t len)
{
    uint64_t h = len;
    for (size_t i = 0; i < len; i++)
        h = (h ^ piece[i]) * 0x100000001B3ull;
    return mix(h) % CACHE_SLOTS;
}

sl_status tk_bpe_piece(tk_work *w, const char *text, size_t len)
{
    const unsigned char *piece = (const unsigned char *)text;
    if (w->t->ignore_merges) {
        int32_t id = tk_map_get(&w->t->by_bytes, text, len);
        const tk_token *tok = id >= 0 ? &w->t->tokens[id] : NULL;
        bool refused = tok && w->n_plain && (tok->flags & TK_ADDED) && !tk_is_blank(tok);
        if (tok && !refused)
            return tk_ids_push(&w->ids, id) ? SL_OK : SL_ERR_NO_MEMORY;
    }
    if (len == 0 || len > CACHE_KEY || !w->cache)
        return merge_piece(w, piece, len);
    size_t slot = cache_slot(piece, len), before = w->ids.n;
    if (w->cache->slot[slot].n_key == len && memcmp(w->cache->slot[slot].key, piece, len) == 0) {
        for (size_t i = 0; i < w->cache->slot[slot].n_ids; i++) {
            if (!tk_ids_push(&w->ids, w->cache->slot[slot].ids[i]))
                return SL_ERR_NO_MEMORY;
        }
        return SL_OK;
    }
    sl_status st = merge_piece(w, piece, len);
    size_t n = w->ids.n - before;
    if (st == SL_OK && n <= CACHE_IDS) {
        memcpy(w->cache->slot[slot].key, piece, len);
        w->cache->slot[slot].n_key = (uint8_t)len;
        w->cache->slot[slot].n_ids = (uint8_t)n;
        for (size_t i = 0; i < n; i++)
            w->cache->slot[slot].ids[i] = w->ids.v[before + i];
    }
    return st;
}

void tk_work_cache(tk_work *w, size_t text_len)
{
    /* For a short text, clearing the table would cost more than the cache saves. */
    if (text_len > 64u << 10)
        w->cache =
            sl_guard_take(w->guard, sizeof *w->cache, NULL)
                ? NULL
                : calloc(1, sizeof *w->cache); /* without it encoding is slower, the ids are the same */
}

void tk_work_free(tk_work *w)
{
    if (w->region)
        onig_region_free(w->region, 1);
    if (w->match_param)
        onig_free_match_param(w->match_param);
    free(w->ids.v);
    free(w->a.v);
    free(w->b.v);
    free(w->matches.v);
    free(w->buf);
    free(w->buf2);
    free(w->symbols);
    free(w->heap);
    free(w->cache);
}
