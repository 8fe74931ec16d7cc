/*
 * Shipment of states of a model with four classes of layers (toy_layers.h): a prompt's rows, blocks and states move to a second
 * engine whose pages have another layout, from host pages or from device memory, and every further token is compared with a
 * restatement of the whole text. Every byte of a snapshot is covered by its checksum. About 1 s.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device.h"
#include "kvstore/snapshot.h"
#include "tests/unit/run_suite.h"
#include "toy_layers.h"
#include "worker/pieces.h"
#include "worker/setup_impl.h"

enum { PAGE = SL_PAGE_TOKENS, PAGES = 24, LENGTH = 300, SNAPSHOT = 2, MOST = TOY_CONTEXT / PAGE + SNAPSHOT };

static const sl_key seed = {11, 12};

static void open_fix(fix *f, sl_layout layout)
{
    fix_opts o = toy_opts();
    o.layout = layout, o.host_pages = PAGES;
    fix_open(f, &o);
    ck_assert_int_eq(sl_snapshot_pages(sl_arena_geometry(f->arena)), SNAPSHOT);
}

/* Tokens first .. end - 1 of all layers, from `from` in a's arena (or a's device memory) to `to` in b's. */
static void ship(const fix *a, const int32_t *from, const fix *b, const int32_t *to, int32_t first,
                 int32_t end, const sl_seq *on_device)
{
    static sl_device_layer layers[TOY_LAYERS];
    int32_t rows[MOST], index[MOST];
    sl_page_map m = {.local = sl_arena_geometry(a->arena),
                     .remote = sl_arena_geometry(b->arena),
                     .local_base = sl_arena_base(a->arena),
                     .remote_base = (uint64_t)(uintptr_t)sl_arena_base(b->arena),
                     .local_n = sl_arena_pages(a->arena),
                     .remote_n = sl_arena_pages(b->arena),
                     .lpages = from,
                     .rpages = (const uint32_t *)to,
                     .n_tokens = end};
    if (on_device) {
        sl_engine_device_layers(a->engine, layers);
        sl_engine_device_pages(on_device, rows, index, sl_pages_for(end));
        m.dev = layers, m.dev_rows = rows, m.dev_index = index;
    }
    for (int32_t l = 0; l < TOY_LAYERS; l++) {
        sl_pieces it;
        sl_span s;
        sl_pieces_init(&it, &m, l, first, end);
        while (sl_pieces_next(&it, &s))
            memcpy((void *)(uintptr_t)s.remote, s.local, (size_t)s.bytes);
    }
}

static void same_sums(const fix *a, const int32_t *from, const fix *b, const int32_t *to, int32_t i,
                      int32_t n)
{
    for (int32_t l = 0; l < TOY_LAYERS; l++)
        ck_assert_uint_eq(sl_arena_page_crc(a->arena, from[i], l, n),
                          sl_arena_page_crc(b->arena, to[i], l, n));
}

static void take_pages(fix *f, int32_t *pages, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        pages[i] = f->free_pages[--f->n_free];
}

static void must(sl_status st, const sl_err *err)
{
    ck_assert_msg(st == SL_OK, "%s", err->text);
}

/* A changed byte anywhere in the record or the states is found. Bytes after them have no meaning. */
static void every_byte_counts(fix *f, fix_run *r, sl_key key, const int32_t *pages)
{
    const sl_geometry *g = sl_arena_geometry(f->arena);
    const int64_t bytes = SL_SNAPSHOT_HEADER + g->state_bytes;
    sl_err err = {0};
    for (int64_t at = 0; at < bytes; at += at < 2 * SL_SNAPSHOT_HEADER ? 1 : 61) {
        uint8_t *byte;
        sl_snapshot_run(f->arena, pages, at, &byte);
        *byte ^= 4;
        if (sl_engine_seq_restore(f->engine, r->seq, key, pages, &err) != SL_ERR_CORRUPT)
            ck_abort_msg("byte %ld of %ld may be changed", (long)at, (long)bytes);
        *byte ^= 4;
    }
    const sl_key other = {key.lo ^ 1, key.hi};
    ck_assert_int_eq(sl_engine_seq_restore(f->engine, r->seq, other, pages, &err), SL_ERR_CORRUPT);
    ck_assert_msg(strstr(err.text, "after other tokens") != NULL, "%s", err.text);
}

START_TEST(shipment)
{
    static const int32_t prompts[] = {150, 128, 63, 200, 1, 65};
    const int32_t n = prompts[_i % 6], held = sl_pages_for(n);
    const bool device = _i % 2;
    fix a, b;
    fix_run ra = {0}, rb = {0};
    toy_text t;
    sl_err err = {0};
    int32_t from[MOST], to[MOST];
    toy_make_text(&t, n, LENGTH, (uint64_t)_i);
    const sl_key key = sl_snapshot_key(seed, t.ids, n);
    open_fix(&a, (sl_layout)(_i % 3));
    open_fix(&b, (sl_layout)((_i / 2 + 1) % 3));

    fix_seq_open(&a, &ra, SL_RESIDENT, 0, n);
    toy_feed(&a, &ra, &t, n, 37);
    memcpy(from, ra.pages, sizeof *from * (size_t)held);
    take_pages(&a, from + held, SNAPSHOT);
    must(sl_engine_seq_save(a.engine, ra.seq, key, from + held, &err), &err);

    fix_grow(&b, &rb, LENGTH);
    memcpy(to, rb.pages, sizeof *to * (size_t)held);
    take_pages(&b, to + held, SNAPSHOT);
    ship(&a, from, &b, to, 0, n, device ? ra.seq : NULL);
    ship(&a, from, &b, to, held * PAGE, (held + SNAPSHOT) * PAGE, NULL);
    for (int32_t i = 0; i < held + SNAPSHOT; i++)
        same_sums(&a, from, &b, to, i, i == held - 1 ? n - i * PAGE : PAGE);
    fix_seq_close(&a, &ra, false);

    fix_seq_open(&b, &rb, _i % 3 ? SL_HIERARCHICAL : SL_RESIDENT, n, LENGTH);
    sl_step_item it = {.seq = rb.seq, .tokens = t.ids + n, .n_tokens = 1, .want_logits = 1};
    ck_assert_int_eq(sl_engine_step(b.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    every_byte_counts(&b, &rb, key, to + held);
    ck_assert_int_eq(sl_engine_step(b.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    must(sl_engine_seq_restore(b.engine, rb.seq, key, to + held, &err), &err);
    toy_feed(&b, &rb, &t, LENGTH, 1);
    fix_seq_close(&b, &rb, false);
    fix_close(&a);
    fix_close(&b);
}
END_TEST

/* A store must hold a request with its two snapshots. */
START_TEST(stores_hold_snapshots)
{
    fix f;
    open_fix(&f, SL_LAYOUT_PAGE_FIRST);
    const sl_geometry *g = sl_arena_geometry(f.arena);
    for (int32_t n = 1; n <= 1000; n += 37) {
        sl_err err = {0};
        const int32_t pages = (n + PAGE - 1) / PAGE + (n > PAGE ? 2 : 1) * SNAPSHOT;
        const uint64_t bytes = (uint64_t)(pages * g->page_bytes);
        ck_assert_int_eq(sl_setup_check_store(bytes, g, n, n, &err), SL_OK);
        ck_assert_int_eq(sl_setup_check_store(bytes - 1, g, n, n, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, "with the snapshots of its states") != NULL, "%s", err.text);
    }
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("state_shipment");
    TCase *t = tcase_create("state_shipment");
    tcase_add_unchecked_fixture(t, toy_setup, toy_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, shipment, 0, 12);
    tcase_add_test(t, stores_hold_snapshots);
    suite_add_tcase(s, t);
    return run_suite(s);
}
