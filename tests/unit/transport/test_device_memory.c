/*
 * What transport.h promises about device memory: it may be the local side of puts; all bytes arrive, namely those that
 * an event of the device's stream has covered; after a close it may be freed. Where device memory is not possible,
 * registering is refused with the reason.
 *
 * The device memory is that of a GPU where this build and machine have one, else that of the CPU backend, which only
 * loopback accepts. Prints one line per variant: "ok", "refused" or "skipped device memory, VARIANT".
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "kernels/backend.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/transport/harness.h"

enum { BYTES = 4 << 20 };

static const variant on_device[] = {
    {"loopback, threads", "loopback", NULL, false, false},
    {"ucx tcp, processes", "ucx", "tcp", true, false},
    {"ucx tcp and cuda, processes", "ucx", "tcp,cuda_copy", true, false},
    {"ucx default, processes", "ucx", NULL, true, false},
};

static bool is_loopback(const variant *v)
{
    return strcmp(v->transport, "loopback") == 0;
}

typedef struct device {
    sl_backend *be;
    uint8_t *memory, *host;
    sl_event *event;
    bool gpu;
} device;

static void device_open(device *d, bool gpu)
{
    sl_err err = {0};
    sl_backend_opts o = {.threads = 1};
    *d = (device){.host = malloc(BYTES)};
    d->gpu = gpu && sl_backend_create("cuda", &o, &d->be, &err) == SL_OK;
    sl_status st = d->gpu ? SL_OK : sl_backend_create("cpu", &o, &d->be, &err);
    ck_assert_msg(st == SL_OK && d->host, "%s", err.text);
    ck_assert_int_eq(sl_be_use_thread(d->be, &err), SL_OK);
    ck_assert_int_eq(sl_be_alloc(d->be, SL_MEM_DEVICE, BYTES, (void **)&d->memory, &err), SL_OK);
    ck_assert_int_eq(sl_event_create(d->be, &d->event, &err), SL_OK);
}

static void device_close(device *d)
{
    sl_event_destroy(d->event);
    sl_be_free(d->be, SL_MEM_DEVICE, d->memory);
    sl_backend_destroy(d->be);
    free(d->host);
}

/* Writes new bytes on the device's stream; returns when an event recorded after them has completed. */
static void device_fill(device *d, uint64_t seed)
{
    sl_err err = {0};
    pattern_fill(d->host, BYTES, seed);
    ck_assert_int_eq(sl_be_fill(d->be, d->memory, 0xee, BYTES, &err), SL_OK);
    ck_assert_int_eq(sl_be_copy(d->be, d->memory, d->host, BYTES, &err), SL_OK);
    ck_assert_int_eq(sl_event_record(d->be, d->event, &err), SL_OK);
    while (sl_event_query(d->event) == SL_INPROGRESS)
        ;
    ck_assert_int_eq(sl_event_query(d->event), SL_OK);
}

static void put_all(client *c, device *d, sl_tp_mem *mem, sl_tp_rkey *rkey)
{
    static const size_t sizes[] = {41984, 8448, 656, 1, 65024, 65025, 300000, 132, 7};
    int posted = c->done;
    for (size_t at = 0, i = 0; at < BYTES; i++) {
        size_t n = sizes[i % SL_COUNT(sizes)];
        n = n < BYTES - at ? n : BYTES - at;
        sl_status st;
        while ((st = sl_tp_put(c->ep, d->memory + at, mem, n, rkey->base + at, rkey, client_done, c)) ==
               SL_AGAIN)
            sl_tp_progress(c->tp);
        ck_assert_int_eq(st, SL_OK);
        at += n;
        posted++;
    }
    ck_assert_int_eq(sl_tp_flush(c->ep, client_done, c), SL_OK);
    ck_assert(client_wait(c, &c->done, posted + 1, 60000));
    ck_assert_int_eq(c->done, c->done_ok);
}

/* Reads the capability, and checks that it is true. */
static bool possible(client *c, const variant *v, void *memory)
{
    sl_tp_info info;
    sl_tp_mem *mem;
    sl_err err = {0};
    sl_tp_query(c->tp, &info);
    if (info.device_memory) {
        ck_assert_str_eq(info.no_device_memory, "");
        return true;
    }
    ck_assert_uint_gt(strlen(info.no_device_memory), 0);
    ck_assert_int_eq(sl_tp_mem_register(c->tp, memory, BYTES, SL_TP_DEVICE, SL_TP_LOCAL, &mem, &err),
                     SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, info.no_device_memory) != NULL, "%s", err.text);
    printf("refused device memory, %s: %s\n", v->name, err.text);
    fflush(stdout);
    return false;
}

/* Host memory declared as a GPU's is refused; otherwise a GPU copy would be given an address of the CPU. */
static void host_is_no_device(client *c, const variant *v)
{
    static uint8_t mine[4096];
    sl_tp_mem *mem;
    sl_err err = {0};
    if (is_loopback(v))
        return;
    ck_assert_int_eq(sl_tp_mem_register(c->tp, mine, sizeof mine, SL_TP_DEVICE, SL_TP_LOCAL, &mem, &err),
                     SL_ERR_UNSUPPORTED);
}

START_TEST(device_memory)
{
    const variant *v = &on_device[_i];
    bool unified = is_loopback(v);
    peer p;
    client c;
    device d;
    sl_tp_mem *mem;
    sl_tp_stats s;
    sl_err err = {0};
    peer_start(&p, v);
    client_open(&c, v);
    device_open(&d, !unified);
    client_connect(&c, &p);
    if (!possible(&c, v, d.memory)) {
        client_finish(&c, &p);
        device_close(&d);
        return;
    }
    host_is_no_device(&c, v);
    if (!unified && !d.gpu) {
        printf("skipped device memory, %s: this build or machine has no GPU\n", v->name);
        client_finish(&c, &p);
        device_close(&d);
        return;
    }
    sl_status st = sl_tp_mem_register(c.tp, d.memory, BYTES, SL_TP_DEVICE, SL_TP_LOCAL, &mem, &err);
    ck_assert_msg(st == SL_OK, "%s", err.text);
    sl_tp_rkey *rkey = client_key(&c);
    ck_assert_int_eq(sl_tp_put(c.ep, d.memory + 1, mem, BYTES, rkey->base, rkey, NULL, NULL), SL_ERR_INVALID);
    for (uint64_t round = 1; round <= 5; round++) {
        device_fill(&d, round);
        put_all(&c, &d, mem, rkey);
        ck_assert_uint_eq(client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = BYTES}),
                          sl_crc32c(0, d.host, BYTES));
    }
    sl_tp_get_stats(c.tp, &s);
    ck_assert_uint_eq(s.device_bytes_put, 5ull * BYTES);
    /* A force close with puts in flight: after it, no operation reads the memory. */
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(sl_tp_put(c.ep, d.memory, mem, BYTES, rkey->base, rkey, client_done, &c), SL_OK);
    sl_tp_rkey_release(rkey);
    sl_tp_close(c.ep, SL_TP_CLOSE_FORCE);
    ck_assert(client_wait(&c, &c.closed, 1, 10000));
    sl_tp_get_stats(c.tp, &s);
    ck_assert_uint_eq(s.pending, 0);
    sl_tp_mem_deregister(mem);
    device_close(&d);
    client_connect(&c, &p);
    client_finish(&c, &p);
    printf("ok device memory, %s: %s\n", v->name, unified ? "the CPU's" : "a GPU's");
    fflush(stdout);
}
END_TEST

int main(void)
{
    sl_log_init(SL_LOG_WARN, false, "test");
    signal(SIGPIPE, SIG_IGN);
    Suite *s = suite_create("device_memory");
    TCase *t = tcase_create("device_memory");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, device_memory, 0, SL_COUNT(on_device));
    suite_add_tcase(s, t);
    return run_suite(s);
}
