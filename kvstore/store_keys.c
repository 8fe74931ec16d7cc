/*
 * Leases by key. Another worker that wants pages knows their keys but not where they begin in the tree: it may have the
 * pages before them itself. A key is the hash of the whole chain, so one page has one place in the tree; the parents and the
 * seed are compared all the same, so that nothing is leased by a collision of two keys.
 */
#include <stdlib.h>

#include "kvstore/store_impl.h"

/* The page of the tree with this key and seed; parent: its parent, or ANY. */
enum { ANY = -2 };

static int32_t find(const sl_store *s, sl_key seed, sl_key key, int32_t parent)
{
    for (uint32_t i = sl_store_slot(s, key); s->table[i] != NONE; i = (i + 1) & s->mask) {
        const sl_node *n = &s->nodes[s->table[i]];
        if (sl_key_eq(n->key, key) && sl_key_eq(n->seed, seed) && (parent == ANY || n->parent == parent))
            return s->table[i];
    }
    return NONE;
}

bool sl_store_has_key(const sl_store *s, sl_key seed, sl_key key)
{
    return find(s, seed, key, ANY) != NONE;
}

sl_status sl_store_lease_keys(sl_store *s, sl_key seed, const sl_key *keys, int32_t n, int32_t *first,
                              sl_lease **out)
{
    SL_CHECK(n > 0, "%d keys", n);
    int32_t at = find(s, seed, keys[0], ANY), depth = 0;
    if (at == NONE)
        return SL_ERR_NOT_FOUND;
    for (int32_t p = s->nodes[at].parent; p != NONE; p = s->nodes[p].parent)
        depth++;
    int32_t *path = malloc((size_t)(depth + n) * sizeof *path), found = 0;
    if (!path)
        return SL_ERR_NO_MEMORY;
    for (int32_t p = s->nodes[at].parent, i = depth; p != NONE; p = s->nodes[p].parent)
        path[--i] = p;
    for (; at != NONE; at = found < n ? find(s, seed, keys[found], path[depth + found - 1]) : NONE)
        path[depth + found++] = at;
    sl_status st = sl_store_lease_path(s, path, depth + found, out);
    free(path);
    *first = depth;
    return st;
}
