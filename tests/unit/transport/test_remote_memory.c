/*
 * What transport.h promises about memory, against every implementation (see test_conformance.c): puts, gets, the
 * meaning of a flush, keys and registration, and what happens when too many operations are posted.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/hash.h"
#include "tests/unit/transport/harness.h"

/* Thousands of puts of many sizes, then a flush, then a comparison with the peer's own checksum of its memory. */
START_TEST(puts_with_checksums)
{
    enum { N = 4000, BYTES = 16 << 20 };
    const variant *v = &variants[_i];
    peer p;
    client c;
    putter t;
    sl_tp_stats s;
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    putter_open(&t, &c, BYTES);
    pattern_fill(t.buf, BYTES, 1);
    size_t at = 0, step = BYTES / N;
    for (int i = 0; i < N; i++, at += step) {
        size_t cut = (size_t)i * 7 % step; /* uneven pieces */
        if (cut)
            putter_put(&t, at, cut, at);
        putter_put(&t, at + cut, step - cut, at + cut);
    }
    if (at < BYTES)
        putter_put(&t, at, BYTES - at, at);
    ck_assert_int_eq(sl_tp_flush(c.ep, client_done, &c), SL_OK);
    sl_tp_get_stats(c.tp, &s);
    int posted = c.done + (int)s.pending;
    ck_assert(client_wait(&c, &c.done, posted, 60000));
    ck_assert_int_eq(c.done_ok, posted);
    ck_assert_uint_eq(client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = BYTES}),
                      sl_crc32c(0, t.buf, BYTES));
    sl_tp_get_stats(c.tp, &s);
    ck_assert_uint_eq(s.bytes_put, BYTES);
    ck_assert_uint_eq(s.flushes, 1);
    ck_assert_uint_eq(s.failed_ops, 0);
    ck_assert_uint_eq(s.registered_bytes, BYTES);
    putter_close(&t);
    client_finish(&c, &p);
}
END_TEST

START_TEST(gets)
{
    enum { BYTES = 8 << 20 };
    const variant *v = &variants[_i];
    peer p;
    client c;
    putter t;
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    putter_open(&t, &c, BYTES);
    client_ask(&c, (peer_command){.verb = DO_FILL, .a = 100, .b = BYTES, .c = 42});
    for (size_t at = 0, n = 1; at < BYTES; at += n, n = n * 3 + 1) {
        n = n < BYTES - at ? n : BYTES - at;
        ck_assert_int_eq(
            sl_tp_get(c.ep, t.buf + at, t.mem, n, t.rkey->base + 100 + at, t.rkey, client_done, &c), SL_OK);
        ck_assert(client_wait(&c, &c.done, c.done + 1, 20000));
        ck_assert_int_eq(c.last_done, SL_OK);
    }
    ck_assert(pattern_check(t.buf, BYTES, 42));
    putter_close(&t);
    client_finish(&c, &p);
}
END_TEST

/* A flush is remote: after its completion a get, which may overtake other operations, must read what was put. */
START_TEST(flush_is_remote)
{
    enum { BYTES = 1 << 20 };
    const variant *v = &variants[_i];
    peer p;
    client c;
    putter t;
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    putter_open(&t, &c, 2 * BYTES);
    for (int round = 0; round < 50; round++) {
        int before = c.done;
        pattern_fill(t.buf, BYTES, (uint64_t)round);
        for (int i = 0; i < 4; i++)
            putter_put(&t, (size_t)i * BYTES / 4, BYTES / 4, (uint64_t)i * BYTES / 4);
        ck_assert_int_eq(sl_tp_flush(c.ep, client_done, &c), SL_OK);
        ck_assert(client_wait(&c, &c.done, before + 5, 20000));
        ck_assert_int_eq(sl_tp_get(c.ep, t.buf + BYTES, t.mem, BYTES, t.rkey->base, t.rkey, client_done, &c),
                         SL_OK);
        ck_assert(client_wait(&c, &c.done, before + 6, 20000));
        ck_assert(memcmp(t.buf, t.buf + BYTES, BYTES) == 0);
    }
    ck_assert_int_eq(c.done, c.done_ok);
    putter_close(&t);
    client_finish(&c, &p);
}
END_TEST

START_TEST(bad_ranges_and_keys)
{
    const variant *v = &variants[_i];
    peer p;
    client c;
    putter t;
    sl_tp_rkey *k;
    sl_err err = {0};
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    putter_open(&t, &c, 4096);
    uint64_t base = t.rkey->base;
    ck_assert_int_eq(sl_tp_put(c.ep, t.buf, t.mem, 0, base, t.rkey, NULL, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_put(c.ep, t.buf, t.mem, 4097, base, t.rkey, NULL, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_put(c.ep, t.buf + 1, t.mem, 4096, base, t.rkey, NULL, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_put(c.ep, t.buf, t.mem, 4096, base - 1, t.rkey, NULL, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_put(c.ep, t.buf, t.mem, 4096, base + PEER_ARENA - 4095, t.rkey, NULL, NULL),
                     SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_put(c.ep, t.buf, t.mem, 4096, UINT64_MAX - 10, t.rkey, NULL, NULL),
                     SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_get(c.ep, t.buf, t.mem, 4096, base - 1, t.rkey, NULL, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_rkey_unpack(c.ep, "garbage", 7, &k, &err), SL_ERR_CORRUPT);
    ck_assert_uint_gt(strlen(err.text), 0);
    ck_assert_int_eq(sl_tp_rkey_unpack(c.ep, c.key_bytes, 0, &k, &err), SL_ERR_CORRUPT);
    ck_assert_int_eq(sl_tp_rkey_unpack(c.ep, c.key_bytes, c.key_len - 1, &k, &err), SL_ERR_CORRUPT);
    ck_assert_int_eq(sl_tp_mem_register(c.tp, NULL, 0, SL_TP_HOST, SL_TP_LOCAL, &t.mem, &err),
                     SL_ERR_INVALID);
    putter_close(&t);
    client_finish(&c, &p);
}
END_TEST

START_TEST(register_large)
{
    const variant *v = &variants[_i];
    const size_t bytes = (size_t)512 << 20;
    client c;
    sl_tp_mem *mem;
    sl_tp_stats s;
    sl_err err = {0};
    uint8_t key[SL_TP_RKEY_MAX];
    size_t n;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(p, MAP_FAILED);
    client_open(&c, v);
    for (int i = 0; i < 3; i++) {
        sl_status st = sl_tp_mem_register(c.tp, p, bytes, SL_TP_HOST, SL_TP_REMOTE_WRITE, &mem, &err);
        ck_assert_msg(st == SL_OK, "%s", err.text);
        sl_tp_get_stats(c.tp, &s);
        ck_assert_uint_eq(s.registered_bytes, bytes);
        ck_assert_int_eq(sl_tp_rkey_pack(mem, key, sizeof key, &n), SL_OK);
        ck_assert_int_eq(sl_tp_rkey_pack(mem, key, 3, &n), SL_ERR_TOO_LARGE);
        sl_tp_mem_deregister(mem);
    }
    sl_tp_get_stats(c.tp, &s);
    ck_assert_uint_eq(s.registered_bytes, 0);
    client_close(&c);
    munmap(p, bytes);
}
END_TEST

START_TEST(backpressure)
{
    const variant *v = &variants[_i];
    peer p;
    client c;
    putter t;
    int posted = 0;
    sl_status st;
    sl_tp_options o = sl_tp_options_default();
    o.tls = v->tls;
    o.max_pending = 8;
    peer_start(&p, v);
    client_open_with(&c, v, o);
    client_connect(&c, &p);
    putter_open(&t, &c, 1 << 20);
    while ((st = sl_tp_put(c.ep, t.buf, t.mem, 1 << 20, t.rkey->base, t.rkey, client_done, &c)) == SL_OK)
        posted++;
    ck_assert_int_eq(st, SL_AGAIN);
    ck_assert_int_gt(posted, 0);
    ck_assert_int_le(posted, 8);
    ck_assert(client_wait(&c, &c.done, posted, 20000));
    putter_put(&t, 0, 4096, 0);
    ck_assert(client_wait(&c, &c.done, posted + 1, 20000));
    putter_close(&t);
    client_finish(&c, &p);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("memory");
    tcase_add_loop_test(t, puts_with_checksums, 0, n_variants);
    tcase_add_loop_test(t, gets, 0, n_variants);
    tcase_add_loop_test(t, flush_is_remote, 0, n_variants);
    tcase_add_loop_test(t, bad_ranges_and_keys, 0, n_variants);
    tcase_add_loop_test(t, register_large, 0, n_variants);
    tcase_add_loop_test(t, backpressure, 0, n_variants);
    return harness_run("transport_remote_memory", t);
}
