/* See damage.h. */
#include "decode/pages/damage.h"

#include <stdlib.h>

typedef struct found {
    int32_t page, dropped;
} found;

struct sl_damage {
    const sl_pages_env *e;
    sl_damage_stats st;
    found *queue; /* [pages of the store]; a page is there once */
    int32_t n, taken;
};

sl_damage *sl_damage_new(const sl_pages_env *e)
{
    sl_damage *g = calloc(1, sizeof *g);
    found *queue = g ? malloc((size_t)sl_arena_pages(e->arena) * sizeof *queue) : NULL;
    if (!queue) {
        free(g);
        return NULL;
    }
    *g = (sl_damage){.e = e, .queue = queue};
    return g;
}

void sl_damage_free(sl_damage *g)
{
    if (!g)
        return;
    free(g->queue);
    free(g);
}

static void add(sl_damage *g, int32_t page, int32_t dropped)
{
    for (int32_t i = 0; i < g->n; i++) {
        if (g->queue[i].page == page) {
            g->queue[i].dropped += dropped;
            return;
        }
    }
    g->queue[g->n++] = (found){page, dropped};
}

void sl_damage_of_lease(sl_damage *g, const sl_check *k, sl_lease *lease)
{
    for (int32_t i = 0; i < k->n_damaged; i++) {
        int32_t at = sl_lease_index_of(lease, k->damaged[i]);
        g->st.reused++;
        add(g, k->damaged[i], at < 0 ? 0 : sl_lease_drop(lease, at));
    }
}

void sl_damage_of_page(sl_damage *g, int32_t page, sl_key seed, sl_key key)
{
    sl_lease *l = NULL;
    int32_t first, dropped = 0;
    g->st.verified++;
    if (sl_store_lease_keys(g->e->store, seed, &key, 1, &first, &l) == SL_OK &&
        sl_lease_pages(l)[first] == page)
        dropped = sl_lease_drop(l, first);
    sl_lease_release(l, true);
    add(g, page, dropped);
}

bool sl_damage_next(sl_damage *g, int32_t *page, int32_t *dropped)
{
    if (g->taken == g->n) {
        g->taken = g->n = 0;
        return false;
    }
    *page = g->queue[g->taken].page;
    *dropped = g->queue[g->taken++].dropped;
    return true;
}

void sl_damage_stats_get(const sl_damage *g, sl_damage_stats *out)
{
    *out = g->st;
}
