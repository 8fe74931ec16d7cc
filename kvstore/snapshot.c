/* See snapshot.h. Record: magic (8), version (4), tokens (4), key (16), bytes of the states (8), their CRC32C (4), zeros, and
 * in the last 4 bytes the CRC32C of all before them. All numbers are little-endian. */
#include "kvstore/snapshot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/le.h"
#include "kvstore/page_key.h"

#define MAGIC 0x70616e5374536c53u /* "SlStSnap" */
enum { VERSION = 1, KEY_AT = 16, BYTES_AT = 32, STATES_CRC_AT = 40, CRC_AT = SL_SNAPSHOT_HEADER - 4 };

const char *const sl_snapshot_event_names[SL_SNAPSHOT_EVENTS] = {"made", "kept", "restored", "damaged"};

int32_t sl_snapshot_pages(const sl_geometry *g)
{
    if (g->state_bytes == 0)
        return 0;
    return (int32_t)((SL_SNAPSHOT_HEADER + g->state_bytes + g->page_bytes - 1) / g->page_bytes);
}

sl_snapshot_places sl_snapshot_place(int32_t snapshot, int32_t n_tokens, int32_t matched)
{
    const int32_t pages = (n_tokens + SL_KEY_PAGE_TOKENS - 1) / SL_KEY_PAGE_TOKENS;
    sl_snapshot_places p = {
        .pages = pages, .end = -1, .kept = -1, .prefix = -1, .written = pages, .n = pages};
    if (snapshot == 0)
        return p;
    const int32_t full = n_tokens > 0 ? (n_tokens - 1) / SL_KEY_PAGE_TOKENS : 0;
    p.end = pages;
    p.written = pages + snapshot;
    if (full > matched) {
        p.kept = p.written;
        p.kept_tokens = full * SL_KEY_PAGE_TOKENS;
        p.written += snapshot;
    }
    p.n = p.written;
    if (matched > 0) {
        p.prefix = p.n;
        p.n += snapshot;
    }
    return p;
}

int32_t sl_snapshot_stop(int32_t snapshot, int32_t n_tokens, int32_t pos)
{
    if (snapshot == 0)
        return n_tokens;
    const int32_t every = sl_snapshot_distance(snapshot) * SL_KEY_PAGE_TOKENS;
    const int32_t full = (n_tokens - 1) / SL_KEY_PAGE_TOKENS * SL_KEY_PAGE_TOKENS;
    const int32_t next = pos / every * every + every;
    return pos >= full ? n_tokens : next < full ? next : full;
}

sl_key sl_snapshot_key(sl_key seed, const int32_t *tokens, int32_t n)
{
    int32_t i = 0;
    for (; i + SL_KEY_PAGE_TOKENS <= n; i += SL_KEY_PAGE_TOKENS)
        seed = sl_page_key(seed, tokens + i);
    return i < n ? sl_hash_chain(seed, tokens + i, (size_t)(n - i) * sizeof *tokens) : seed;
}

void sl_snapshot_tokens(int32_t n, int32_t *out)
{
    for (int32_t i = 0; i < n * SL_KEY_PAGE_TOKENS; i++)
        out[i] = -1 - i / SL_KEY_PAGE_TOKENS;
}

sl_key sl_snapshot_page_key(sl_key key, int32_t n)
{
    int32_t tokens[SL_KEY_PAGE_TOKENS];
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < SL_KEY_PAGE_TOKENS; k++)
            tokens[k] = -1 - i;
        key = sl_page_key(key, tokens);
    }
    return key;
}

int32_t sl_snapshot_find(const sl_store *s, const sl_geometry *g, sl_key seed, const int32_t *tokens,
                         int32_t n)
{
    const int32_t of = sl_snapshot_pages(g);
    int32_t found = 0;
    sl_key key = seed;
    if (of == 0)
        return 0;
    for (int32_t end = SL_KEY_PAGE_TOKENS; end < n; end += SL_KEY_PAGE_TOKENS) {
        key = sl_page_key(key, tokens + end - SL_KEY_PAGE_TOKENS);
        if (!sl_store_has_key(s, seed, key))
            break;
        if (sl_store_has_key(s, seed, sl_snapshot_page_key(key, of)))
            found = end;
    }
    return found;
}

/* ---- leases ---- */

/* tokens[n], and those of a snapshot of this number of pages. NULL: out of memory. */
static int32_t *with_snapshot(const int32_t *tokens, int32_t n, int32_t snapshot)
{
    int32_t *all = malloc((size_t)(n + snapshot * SL_KEY_PAGE_TOKENS) * sizeof *all);
    if (!all)
        return NULL;
    memcpy(all, tokens, (size_t)n * sizeof *all);
    sl_snapshot_tokens(snapshot, all + n);
    return all;
}

sl_status sl_snapshot_lease(sl_store *s, int32_t snapshot, uint64_t tenant, sl_key seed,
                            const int32_t *tokens, int32_t n, sl_lease **out)
{
    const int32_t pages = n / SL_KEY_PAGE_TOKENS + snapshot;
    int32_t *all = with_snapshot(tokens, n, snapshot);
    sl_lease *l = NULL;
    if (!all)
        return SL_ERR_NO_MEMORY;
    const bool here = sl_store_match_pages(s, seed, all, pages) == pages;
    const sl_status st = here ? sl_store_lease_pages(s, tenant, seed, all, pages, &l) : SL_ERR_NOT_FOUND;
    free(all);
    if (st == SL_OK)
        *out = l;
    return st;
}

sl_status sl_snapshot_room(sl_store *s, int32_t snapshot, uint64_t tenant, sl_key seed, sl_lease **out)
{
    return sl_store_lease_private(s, tenant, seed, snapshot, out);
}

bool sl_snapshot_publish(sl_lease *l, const sl_lease *of, const int32_t *tokens, int32_t n)
{
    const int32_t pages = n / SL_KEY_PAGE_TOKENS, snapshot = sl_lease_n_pages(l);
    int32_t *all = with_snapshot(tokens, n, snapshot);
    const bool follows = all && sl_lease_follow(l, of, pages) == SL_OK;
    if (follows)
        sl_lease_publish(l, all, n + snapshot * SL_KEY_PAGE_TOKENS);
    free(all);
    sl_lease_release(l, true);
    return follows;
}

/* ---- places ---- */

/* The order of bytes in a page is the same in every layout, because pages move between them: layer by layer, plane by plane,
 * unit by unit. With page_first that is the order in memory; with page_head only the bytes of a unit lie together. */
int64_t sl_snapshot_run(const sl_arena *a, const int32_t *pages, int64_t at, uint8_t **out)
{
    const sl_geometry *g = sl_arena_geometry(a);
    const int32_t page = pages[at / g->page_bytes];
    int64_t left = at % g->page_bytes;
    SL_CHECK(page >= 0 && page < sl_arena_pages(a), "page %d", page);
    if (g->layout == SL_LAYOUT_PAGE_FIRST) {
        *out = sl_arena_base(a) + page * g->page_bytes + left;
        return g->page_bytes - left;
    }
    for (int32_t l = 0; l < g->n_layers; l++) {
        for (int32_t p = 0; p < g->shape.n_planes; p++) {
            const int64_t bytes = sl_geometry_has(g, l, p) ? sl_cache_page_bytes(&g->shape.planes[p]) : 0;
            if (left >= bytes) {
                left -= bytes;
                continue;
            }
            const sl_host_plane h = sl_geometry_plane(g, sl_arena_base(a), sl_arena_pages(a), l, p);
            const int64_t unit = g->shape.planes[p].heads * sl_cache_unit_bytes(&g->shape.planes[p]);
            const int64_t run = h.row_stride == unit ? bytes : unit;
            *out = h.base + page * h.page_stride + left / run * h.row_stride + left % run;
            return run - left % run;
        }
    }
    SL_CHECK(false, "byte %" PRId64 " of pages of %" PRId64, at, g->page_bytes);
    return 0;
}

/* CRC32C of bytes [at, end) of the snapshot. */
static uint32_t crc_of(const sl_arena *a, const int32_t *pages, int64_t at, int64_t end)
{
    uint32_t crc = 0;
    while (at < end) {
        uint8_t *run;
        int64_t n = sl_snapshot_run(a, pages, at, &run);
        n = n < end - at ? n : end - at;
        crc = sl_crc32c(crc, run, (size_t)n);
        at += n;
    }
    return crc;
}

/* Copies n bytes from `from` to the snapshot (NULL: zeros), or with `to` from it. */
static void move(const sl_arena *a, const int32_t *pages, int64_t at, int64_t n, const uint8_t *from,
                 uint8_t *to)
{
    while (n > 0) {
        uint8_t *run;
        int64_t m = sl_snapshot_run(a, pages, at, &run);
        m = m < n ? m : n;
        if (to)
            memcpy(to, run, (size_t)m), to += m;
        else if (from)
            memcpy(run, from, (size_t)m), from += m;
        else
            memset(run, 0, (size_t)m);
        at += m, n -= m;
    }
}

void sl_snapshot_seal(const sl_arena *a, const int32_t *pages, int32_t tokens, sl_key key)
{
    const sl_geometry *g = sl_arena_geometry(a);
    const int64_t end = SL_SNAPSHOT_HEADER + g->state_bytes;
    uint8_t h[SL_SNAPSHOT_HEADER] = {0};
    move(a, pages, end, sl_snapshot_pages(g) * g->page_bytes - end, NULL, NULL);
    sl_le_put(h, MAGIC, 8);
    sl_le_put(h + 8, VERSION, 4);
    sl_le_put(h + 12, (uint32_t)tokens, 4);
    sl_le_put(h + KEY_AT, key.lo, 8);
    sl_le_put(h + KEY_AT + 8, key.hi, 8);
    sl_le_put(h + BYTES_AT, (uint64_t)g->state_bytes, 8);
    sl_le_put(h + STATES_CRC_AT, crc_of(a, pages, SL_SNAPSHOT_HEADER, end), 4);
    sl_le_put(h + CRC_AT, sl_crc32c(0, h, CRC_AT), 4);
    move(a, pages, 0, sizeof h, h, NULL);
}

sl_status sl_snapshot_check(const sl_arena *a, const int32_t *pages, int32_t tokens, sl_key key, sl_err *err)
{
    const sl_geometry *g = sl_arena_geometry(a);
    uint8_t h[SL_SNAPSHOT_HEADER];
    move(a, pages, 0, sizeof h, NULL, h);
    if (sl_le_take(h, 8) != MAGIC || sl_le_take(h + 8, 4) != VERSION ||
        sl_le_take(h + CRC_AT, 4) != sl_crc32c(0, h, CRC_AT))
        return sl_fail(err, SL_ERR_CORRUPT, "snapshot: its pages do not begin with an undamaged record");
    if (sl_le_take(h + 12, 4) != (uint32_t)tokens || sl_le_take(h + BYTES_AT, 8) != (uint64_t)g->state_bytes)
        return sl_fail(err, SL_ERR_CORRUPT,
                       "snapshot: %u tokens and states of %" PRIu64 " bytes, wanted are %d and %" PRId64,
                       (unsigned)sl_le_take(h + 12, 4), sl_le_take(h + BYTES_AT, 8), tokens, g->state_bytes);
    if (sl_le_take(h + KEY_AT, 8) != key.lo || sl_le_take(h + KEY_AT + 8, 8) != key.hi)
        return sl_fail(err, SL_ERR_CORRUPT, "snapshot: it was made after other tokens");
    if (sl_le_take(h + STATES_CRC_AT, 4) !=
        crc_of(a, pages, SL_SNAPSHOT_HEADER, SL_SNAPSHOT_HEADER + g->state_bytes))
        return sl_fail(err, SL_ERR_CORRUPT, "snapshot: the states are damaged");
    return SL_OK;
}
