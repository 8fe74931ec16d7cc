/*
 * pull_rate [PAGES [ROUNDS]]: how fast a decode worker reads pages from another one's host store, with all threads of both
 * workers (decode/pages/pull.h), next to the transport's own gets and memcpy in the same run. Prints one line of CSV.
 *
 * Everything runs in one process, as in the unit tests, with the page of DeepSeek V3.2 in fp8 (61 layers, about 3 MiB) and a
 * runner without a model. The workers and the yardstick use UCX. The rate of the workers is bytes / time in which gets were
 * in flight. `reserve` is PAGES / (time from RESERVE to RESERVED): with the question for the lease, the reading of the kept
 * checksums at the owner, and their comparison here.
 */
#include <poll.h>
#include <stdio.h>

#include "tests/unit/worker/cluster.h"

enum { LAYERS = 61, OP = 1 << 20, WINDOW = 64 };

static cluster c;

static sl_geometry v32(void)
{
    bool has_indexer[LAYERS];
    memset(has_indexer, true, sizeof has_indexer);
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_FP8),
                       .index_format = SL_INDEX_OFFICIAL,
                       .latent = 512,
                       .rope = 64,
                       .index_dim = 128};
    sl_cache_shape shape;
    sl_geometry g;
    sl_geometry_opts o = {
        .fingerprint = {1, 2}, .shape = &shape, .n_layers = LAYERS, .has_indexer = has_indexer};
    SL_CHECK(sl_cache_shape_make(&d, &shape, NULL) == SL_OK && sl_geometry_make(&o, &g, NULL) == SL_OK,
             "geometry");
    return g;
}

/* ---- the yardstick: gets of OP bytes with WINDOW in flight, from an instance on another thread ---- */

typedef struct side {
    sl_transport *tp;
    sl_tp_ep *ep;
    sl_tp_mem *mem;
    uint8_t *bytes;
    size_t n;
    char address[SL_TP_ADDRESS_MAX];
    uint8_t key[SL_TP_RKEY_MAX];
    size_t key_len;
    _Atomic int ready, stop;
    bool up;
    int in_flight;
} side;

static void on_connected(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)ep;
    SL_CHECK(st == SL_OK, "connect: %s", why);
    ((side *)arg)->up = true;
}

static void on_accepted(void *arg, sl_tp_ep *ep, const char *address)
{
    (void)arg;
    (void)ep;
    (void)address;
}

static void turn(side *s)
{
    while (sl_tp_progress(s->tp) > 0)
        ;
    if (sl_tp_arm(s->tp) == SL_OK)
        poll(&(struct pollfd){.fd = sl_tp_event_fd(s->tp), .events = POLLIN}, 1, 10);
}

static void open_side(side *s, unsigned access)
{
    sl_err err = {0};
    sl_tp_options o = sl_tp_options_default();
    o.events = (sl_tp_events){.arg = s, .accepted = on_accepted, .connected = on_connected};
    SL_CHECK(sl_transport_create("ucx", &o, &s->tp, &err) == SL_OK, "%s", err.text);
    s->bytes = malloc(s->n);
    memset(s->bytes, 1, s->n);
    SL_CHECK(sl_tp_mem_register(s->tp, s->bytes, s->n, SL_TP_HOST, access, &s->mem, &err) == SL_OK, "%s",
             err.text);
}

static void *serve(void *arg)
{
    side *s = arg;
    sl_err err = {0};
    open_side(s, SL_TP_LOCAL | SL_TP_REMOTE_READ | SL_TP_REMOTE_WRITE);
    SL_CHECK(sl_tp_listen(s->tp, "127.0.0.1", 0, s->address, sizeof s->address, &err) == SL_OK, "%s",
             err.text);
    SL_CHECK(sl_tp_rkey_pack(s->mem, s->key, sizeof s->key, &s->key_len) == SL_OK, "key");
    atomic_store(&s->ready, 1);
    while (!atomic_load(&s->stop))
        turn(s);
    sl_tp_destroy(s->tp);
    free(s->bytes);
    return NULL;
}

static void on_got(void *cookie, sl_status st)
{
    SL_CHECK(st == SL_OK, "get");
    ((side *)cookie)->in_flight--;
}

static double plain_gets(size_t bytes)
{
    static side there, here;
    pthread_t t;
    sl_err err = {0};
    sl_tp_rkey *key;
    there.n = here.n = bytes;
    pthread_create(&t, NULL, serve, &there);
    while (!atomic_load(&there.ready))
        poll(NULL, 0, 1);
    open_side(&here, SL_TP_LOCAL);
    SL_CHECK(sl_tp_connect(here.tp, there.address, &here.ep, &err) == SL_OK, "%s", err.text);
    while (!here.up)
        turn(&here);
    SL_CHECK(sl_tp_rkey_unpack(here.ep, there.key, there.key_len, &key, &err) == SL_OK, "%s", err.text);
    uint64_t from = 0;
    for (int round = 0; round < 2; round++) { /* the first one warms up */
        from = sl_now_ns();
        for (size_t at = 0; at < bytes || here.in_flight;) {
            size_t n = bytes - at < OP ? bytes - at : OP;
            if (at < bytes && here.in_flight < WINDOW) {
                SL_CHECK(sl_tp_get(here.ep, here.bytes + at, here.mem, n, key->base + at, key, on_got,
                                   &here) == SL_OK,
                         "post");
                here.in_flight++;
                at += n;
            } else {
                turn(&here);
            }
        }
    }
    double rate = (double)bytes * 1e9 / (double)(sl_now_ns() - from);
    sl_tp_rkey_release(key);
    sl_tp_destroy(here.tp);
    free(here.bytes);
    atomic_store(&there.stop, 1);
    pthread_join(t, NULL);
    return rate;
}

static double copies(size_t bytes)
{
    uint8_t *a = malloc(bytes), *b = malloc(bytes);
    memset(a, 1, bytes);
    memset(b, 2, bytes);
    uint64_t from = sl_now_ns();
    memcpy(b, a, bytes);
    double rate = (double)bytes * 1e9 / (double)(sl_now_ns() - from);
    SL_CHECK(b[bytes / 2] == 1, "copy");
    free(a);
    free(b);
    return rate;
}

/* ---- the workers ---- */

static bool reserved(cluster *cl)
{
    return cl->req[cl->n_req - 1].state >= REQ_PREFILLING;
}

static double pull(int n, uint64_t seed)
{
    creq *a = cluster_ask(&c, n * SL_PAGE_TOKENS + 1, 1, seed);
    a->decode = 0;
    cluster_finish(&c, 200);
    uint64_t from = sl_now_ns();
    creq *r = cluster_ask(&c, n * SL_PAGE_TOKENS + 1, 1, seed);
    r->decode = 1;
    r->source = 0;
    r->source_pages = n;
    cluster_until(&c, reserved, 60, "RESERVED");
    double s = (double)(sl_now_ns() - from) / 1e9;
    cluster_finish(&c, 200);
    SL_CHECK(r->matched_pages == (uint32_t)n, "%u of %d pages were pulled", r->matched_pages, n);
    return s;
}

static int pages = 64, rounds = 3;

/* The cluster of the unit tests runs inside of a test only. */
START_TEST(measure)
{
    cluster_opts o = cluster_defaults();
    o.transport = "ucx";
    o.shipping = &sl_shipping_staging;
    o.n_decode = 2;
    o.pull = true;
    o.no_prefill_cache = true;
    o.times.pull_timeout_ms = 60000;
    o.geometry = v32();
    o.chunk_tokens = 1024;
    o.max_context = pages * SL_PAGE_TOKENS + 64;
    o.prefill_pages = pages + 8;
    o.decode_pages = 4 * (pages + 4); /* a quarter is lent */
    cluster_start(&c, &o);
    pull(2, 1); /* makes the connection */
    double seconds = 0;
    for (int i = 0; i < rounds; i++)
        seconds += pull(pages, 2 + (uint64_t)i);
    cluster_stop(&c);
    double pulled = (double)c.pull_bytes * 1e9 / (double)c.pull_ns,
           bytes = (double)pages * (double)o.geometry.page_bytes;
    double gets = plain_gets((size_t)bytes), copy = copies((size_t)bytes);
    printf(
        "pages,page_bytes,pull_gb_s,reserve_gb_s,get_gb_s,memcpy_gb_s,pull_to_get\n%d,%ld,%.3f,%.3f,%.3f,%.3f,%.3f\n",
        pages, (long)o.geometry.page_bytes, pulled / 1e9, bytes * rounds / seconds / 1e9, gets / 1e9,
        copy / 1e9, pulled / gets);
}
END_TEST

int main(int argc, char **argv)
{
    pages = argc > 1 ? (int)strtol(argv[1], NULL, 10) : pages;
    rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : rounds;
    Suite *s = suite_create("pull_rate");
    TCase *t = tcase_create("pull_rate");
    tcase_add_test(t, measure);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_MINIMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
