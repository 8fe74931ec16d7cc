/* See checker.h. */
#include "worker/checker.h"

#include <stdlib.h>
#include <string.h>

#include "kvstore/snapshot.h"

enum { TURN_BYTES = 32 << 20 /* bytes that a VERIFY reads before the other jobs get a turn */ };

sl_check *sl_check_new(sl_check_what what, const int32_t *pages, int32_t n_pages, void *owner)
{
    size_t n = (size_t)n_pages;
    sl_check *k = calloc(1, sizeof *k + 2 * n * sizeof *pages);
    if (!k)
        return NULL;
    k->what = what;
    k->owner = owner;
    k->n_pages = n_pages;
    k->last_tokens = SL_PAGE_TOKENS;
    k->damaged = k->pages + n;
    memcpy(k->pages, pages, n * sizeof *pages);
    return k;
}

void sl_check_free(sl_check *k)
{
    if (!k)
        return;
    sl_wmsg_free(k->m);
    free(k->crc);
    free(k);
}

void sl_checker_post(sl_checker *c, sl_check *k)
{
    sl_watch_post(&c->watch);
    sl_mailbox_post(c->inbox, &k->mail.link);
}

/* ---- the jobs ---- */

static void make_row_sums(sl_checker *c, const sl_check *k, int32_t n)
{
    for (int32_t i = 0; c->rows && !k->arena && i < n; i++)
        sl_row_sums_make(c->rows, k->pages[i]);
}

static void keep(sl_checker *c, sl_check *k)
{
    const sl_arena *arena = k->arena ? k->arena : c->arena;
    int32_t layers = sl_arena_geometry(arena)->n_layers;
    int32_t part = k->last_tokens < SL_PAGE_TOKENS ? k->n_pages - 1 - k->whole : k->n_pages;
    make_row_sums(c, k, part);
    for (int32_t i = 0; k->compare && i < k->n_pages; i++) {
        int32_t n = i == part ? k->last_tokens : SL_PAGE_TOKENS;
        size_t before = k->bad;
        for (int32_t l = 0; l < layers; l++)
            k->bad += sl_arena_page_crc(arena, k->pages[i], l, n) != k->expect[i * layers + l];
        if (k->bad > before)
            k->damaged[k->n_damaged++] = k->pages[i];
    }
    for (int32_t i = 0; c->seals && !k->arena && !k->bad && i < k->n_pages; i++)
        if (i != part)
            sl_seals_keep(c->seals, k->pages[i], k->expect + i * layers);
}

static void seal(sl_checker *c, const sl_check *k)
{
    if (k->snapshot_tokens)
        sl_snapshot_seal(c->arena, k->pages, k->snapshot_tokens, k->snapshot_key);
    make_row_sums(c, k, k->n_pages);
    for (int32_t i = 0; c->seals && i < k->n_pages; i++)
        sl_seals_make(c->seals, k->pages[i]);
}

static bool verify(sl_checker *c, sl_check *k)
{
    int64_t bytes = sl_arena_geometry(c->arena)->page_bytes, left = TURN_BYTES;
    if (!c->seals)
        return true;
    while (k->done < k->n_pages && left > 0) {
        int32_t page = k->pages[k->done++];
        if (sl_seals_verify(c->seals, page, k->sampled))
            k->damaged[k->n_damaged++] = page;
        left -= k->sampled ? bytes / SL_SEAL_SAMPLE : bytes;
    }
    return k->done == k->n_pages;
}

static void read_kept(sl_checker *c, sl_check *k)
{
    size_t layers = (size_t)sl_arena_geometry(c->arena)->n_layers;
    k->crc = malloc((size_t)k->n_pages * layers * sizeof *k->crc + 1);
    if (!k->crc)
        return;
    for (int32_t i = 0; i < k->n_pages; i++) {
        uint32_t *out = k->crc + (size_t)i * layers;
        const uint32_t *kept = c->seals ? sl_seals_get(c->seals, k->pages[i]) : NULL;
        if (kept)
            memcpy(out, kept, layers * sizeof *out);
        else if (c->seals)
            return;
        for (size_t l = 0; !kept && l < layers; l++)
            out[l] = sl_arena_page_crc(c->arena, k->pages[i], (int32_t)l, SL_PAGE_TOKENS);
    }
    k->n_crc = (size_t)k->n_pages * layers;
}

bool sl_checker_work(sl_checker *c, sl_check *k)
{
    switch (k->what) {
    case SL_CHECK_KEEP:
        keep(c, k);
        return true;
    case SL_CHECK_SEAL:
        seal(c, k);
        return true;
    case SL_CHECK_VERIFY:
        return verify(c, k);
    case SL_CHECK_READ:
        read_kept(c, k);
        return true;
    }
    return true;
}

/* ---- the thread ---- */

/* The thread ends when it was told to stop and no job is left; after the order to stop, a VERIFY gets one turn only. */
static void *checker_main(void *arg)
{
    sl_checker *c = arg;
    bool stopping = false;
    for (;;) {
        sl_wmail *m = (sl_wmail *)sl_mailbox_take(c->inbox);
        if (!m && stopping)
            return NULL;
        if (!m) {
            sl_mailbox_wait(c->inbox, -1);
        } else if (m == &c->stop) {
            stopping = true;
        } else {
            bool finished = sl_checker_work(c, (sl_check *)m) || stopping;
            sl_watch_turn(&c->watch);
            if (finished)
                sl_watch_back(&c->watch);
            m->kind = c->back_kind;
            sl_mailbox_post(finished ? c->back : c->inbox, &m->link);
        }
    }
}

sl_status sl_checker_open(sl_checker *c, const sl_arena *arena, sl_row_sums *rows, sl_cfg_verify verify,
                          sl_mailbox *back, int back_kind)
{
    c->arena = arena;
    c->rows = rows;
    c->verify = verify;
    c->back = back;
    c->back_kind = back_kind;
    SL_TRY(sl_mailbox_create(&c->inbox));
    return verify == SL_CFG_VERIFY_OFF ? SL_OK : sl_seals_create(arena, &c->seals);
}

sl_status sl_checker_start(sl_checker *c, sl_err *err)
{
    if (pthread_create(&c->thread, NULL, checker_main, c) != 0)
        return sl_fail(err, SL_ERR_IO, "cannot start the checker thread");
    c->runs = true;
    return SL_OK;
}

void sl_checker_stop(sl_checker *c)
{
    if (!c->runs)
        return;
    sl_mailbox_post(c->inbox, &c->stop.link);
    pthread_join(c->thread, NULL);
    c->runs = false;
}

void sl_checker_close(sl_checker *c)
{
    sl_checker_stop(c);
    sl_mailbox_destroy(c->inbox);
    sl_seals_destroy(c->seals);
    c->inbox = NULL;
    c->seals = NULL;
}
