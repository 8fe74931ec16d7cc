/*
 * Writing directly into a decode worker's memory: who may write, how the right is taken back from a writer that is
 * idle, writing, stopped or dead, and that a late write never reaches pages of another request.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"
#include "worker/direct.h"

enum { BYTES = 1 << 20 };

static sl_direct_host *host;
static uint8_t *arena, desc[SL_DIRECT_DESC_MAX];
static size_t desc_len;
static int arena_fd;

static void setup(void)
{
    arena_fd = memfd_create("test-arena", MFD_CLOEXEC);
    ck_assert_int_ge(arena_fd, 0);
    ck_assert_int_eq(ftruncate(arena_fd, BYTES), 0);
    arena = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, arena_fd, 0);
    ck_assert(arena != MAP_FAILED);
    sl_err err = {0};
    ck_assert_msg(sl_direct_host_create(arena_fd, BYTES, &host, &err) == SL_OK, "%s", err.text);
}

static void teardown(void)
{
    sl_direct_host_destroy(host);
    munmap(arena, BYTES);
    close(arena_fd);
}

static int grant(pid_t pid)
{
    sl_err err = {0};
    int slot = sl_direct_grant(host, (uint32_t)pid, desc, &desc_len, &err);
    ck_assert_msg(slot >= 0, "%s", err.text);
    return slot;
}

static sl_direct *attach(void)
{
    sl_direct *d = NULL;
    sl_err err = {0};
    ck_assert_msg(sl_direct_attach(desc, desc_len, BYTES, &d, &err) == SL_OK, "%s", err.text);
    return d;
}

START_TEST(writes_arrive_until_the_right_is_taken_back)
{
    int slot = grant(getpid());
    sl_direct *d = attach();
    ck_assert_ptr_ne(sl_direct_base(d), arena);
    ck_assert(sl_direct_begin(d));
    ck_assert(sl_direct_begin(d)); /* nests */
    sl_direct_base(d)[BYTES - 1] = 77;
    sl_direct_end(d);
    ck_assert(!sl_direct_revoke(host, slot)); /* one write is still in flight */
    ck_assert(!sl_direct_begin(d));           /* and no further one may start */
    sl_direct_end(d);
    ck_assert(sl_direct_revoke(host, slot));
    ck_assert(!sl_direct_begin(d));
    ck_assert_int_eq(arena[BYTES - 1], 77);
    sl_direct_detach(d);
}
END_TEST

/* A right belongs to one connection: a new connection of the same process does not revive the old right. */
START_TEST(a_new_grant_does_not_revive_an_old_one)
{
    int first = grant(getpid());
    sl_direct *old = attach();
    ck_assert(sl_direct_revoke(host, first));
    int second = grant(getpid());
    ck_assert_int_ne(first, second);
    sl_direct *now = attach();
    ck_assert(!sl_direct_begin(old));
    ck_assert(sl_direct_begin(now));
    sl_direct_end(now);
    sl_direct_detach(old);
    sl_direct_detach(now);
}
END_TEST

/* The writer process: begins a write, reports it, waits for a byte, ends the write, and tries to begin another. */
static void writer(int tell, int wait)
{
    char c = 1;
    sl_direct *d = NULL;
    while (read(wait, &desc_len, sizeof desc_len) != (ssize_t)sizeof desc_len)
        ;
    if (read(wait, desc, desc_len) != (ssize_t)desc_len ||
        sl_direct_attach(desc, desc_len, BYTES, &d, NULL) != SL_OK || !sl_direct_begin(d) ||
        write(tell, &c, 1) != 1 || read(wait, &c, 1) != 1)
        _exit(1);
    sl_direct_base(d)[5] = 5;
    sl_direct_end(d);
    _exit(sl_direct_begin(d) ? 2 : 0);
}

static pid_t start_writer(int *slot, int *go)
{
    int tell[2], wait[2];
    char c;
    ck_assert(pipe(tell) == 0 && pipe(wait) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        sl_direct_host_destroy(NULL);
        writer(tell[1], wait[0]);
    }
    *slot = grant(pid);
    ck_assert(write(wait[1], &desc_len, sizeof desc_len) == (ssize_t)sizeof desc_len &&
              write(wait[1], desc, desc_len) == (ssize_t)desc_len);
    ck_assert_int_eq(read(tell[0], &c, 1), 1);
    *go = wait[1];
    return pid;
}

static void never_within(int slot, int ms)
{
    for (int i = 0; i < ms; i += 5) {
        ck_assert_msg(!sl_direct_revoke(host, slot), "the right was given back while a write was in flight");
        usleep(5000);
    }
}

static void soon(int slot)
{
    for (int i = 0; i < 2000 && !sl_direct_revoke(host, slot); i++) {
        ck_assert_int_lt(i, 1999);
        usleep(5000);
    }
}

START_TEST(a_killed_writer)
{
    int slot, go;
    pid_t pid = start_writer(&slot, &go);
    never_within(slot, 50);
    kill(pid, SIGKILL);
    soon(slot);
    waitpid(pid, NULL, 0);
    ck_assert_int_eq(grant(getpid()), slot); /* it did not detach, but its process has ended */
}
END_TEST

START_TEST(a_stopped_writer)
{
    int slot, go, status;
    pid_t pid = start_writer(&slot, &go);
    kill(pid, SIGSTOP);
    never_within(slot, 200);
    ck_assert_int_eq(write(go, "x", 1), 1);
    never_within(slot, 50);
    ck_assert_int_eq(arena[5], 0);
    kill(pid, SIGCONT);
    soon(slot);
    ck_assert_int_eq(arena[5], 5); /* the write in flight has landed before, not after */
    waitpid(pid, &status, 0);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "it could write again: %d", status);
}
END_TEST

START_TEST(what_cannot_be_attached)
{
    sl_direct *d = NULL;
    sl_err err = {0};
    grant(getpid());
    for (size_t n = 0; n < desc_len; n++)
        ck_assert_int_eq(sl_direct_attach(desc, n, BYTES, &d, &err), SL_ERR_CORRUPT);
    ck_assert_int_eq(sl_direct_attach(desc, desc_len, BYTES - 1, &d, &err), SL_ERR_UNSUPPORTED);
    for (size_t i = 0; i < desc_len; i++) { /* any other process, descriptor, entry, grant or random number */
        desc[i] ^= 0x40;
        sl_status st = sl_direct_attach(desc, desc_len, BYTES, &d, &err);
        desc[i] ^= 0x40;
        ck_assert_msg(st == SL_ERR_UNSUPPORTED, "byte %zu: %s", i, sl_status_name(st));
        ck_assert_uint_gt(strlen(err.text), 10);
    }
    ck_assert_int_eq(sl_direct_grant(host, 0, desc, &desc_len, &err), SL_ERR_PEER);
    ck_assert_int_eq(sl_direct_grant(host, INT32_MAX, desc, &desc_len, &err), SL_ERR_PEER);
}
END_TEST

START_TEST(entries_run_out)
{
    sl_err err = {0};
    for (int i = 0; i < SL_DIRECT_SLOTS; i++)
        grant(getpid());
    ck_assert_int_eq(sl_direct_grant(host, (uint32_t)getpid(), desc, &desc_len, &err), SL_ERR_EXHAUSTED);
}
END_TEST

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* A process that continues to live loses its connection repeatedly. Whether it detaches before or after the owner takes
 * the right back, or has never attached, neither an entry nor a descriptor is lost. */
START_TEST(lost_connections_of_a_living_process)
{
    int files = open_files();
    for (int i = 0; i < 600; i++) {
        int slot = grant(getpid());
        sl_direct *d = i % 3 ? attach() : NULL;
        if (d) {
            ck_assert(sl_direct_begin(d));
            sl_direct_base(d)[0] = (uint8_t)i;
            sl_direct_end(d);
            ck_assert_int_eq(arena[0], (uint8_t)i);
        }
        if (i % 3 == 1)
            sl_direct_detach(d);
        ck_assert(sl_direct_revoke(host, slot));
        if (i % 3 == 2)
            sl_direct_detach(d);
    }
    ck_assert_int_le(open_files(), files + 1); /* the last one detached after the right was taken back */
}
END_TEST

/* A fenced entry is not given to another writer while the former writer is attached, because that could take the new
 * writer's right for its own. */
START_TEST(an_attached_writer_keeps_its_entry)
{
    int slot[SL_DIRECT_SLOTS];
    sl_err err = {0};
    slot[0] = grant(getpid());
    sl_direct *d = attach();
    for (int i = 1; i < SL_DIRECT_SLOTS; i++)
        slot[i] = grant(getpid());
    ck_assert(sl_direct_revoke(host, slot[0]));
    ck_assert_int_eq(sl_direct_grant(host, (uint32_t)getpid(), desc, &desc_len, &err), SL_ERR_EXHAUSTED);
    ck_assert(!sl_direct_begin(d));
    sl_direct_detach(d);
    ck_assert_int_eq(grant(getpid()), slot[0]);
}
END_TEST

/* A descriptor that was withdrawn cannot be attached, also when its entry serves another grant by then. */
START_TEST(a_late_attach)
{
    uint8_t old[SL_DIRECT_DESC_MAX];
    sl_direct *d = NULL;
    sl_err err = {0};
    int slot = grant(getpid());
    size_t n = desc_len;
    memcpy(old, desc, n);
    ck_assert(sl_direct_revoke(host, slot));
    ck_assert_int_eq(sl_direct_attach(old, n, BYTES, &d, &err), SL_ERR_UNSUPPORTED);
    ck_assert_int_eq(grant(getpid()), slot);
    ck_assert_int_eq(sl_direct_attach(old, n, BYTES, &d, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "taken back") != NULL, "%s", err.text);
    d = attach();
    ck_assert(sl_direct_begin(d));
    sl_direct_end(d);
    sl_direct_detach(d);
}
END_TEST

/* ---- in a cluster ---- */

static cluster c;
static _Atomic int copies, release_it, stuck;

/* The third copy of the first worker waits until the test lets it continue. */
static void hang_in_third(void *arg)
{
    const cworker *w = arg;
    if (w->index != 0 || atomic_fetch_add(&copies, 1) != 2)
        return;
    atomic_store(&stuck, 1);
    while (!atomic_load(&release_it))
        usleep(1000);
}

static bool is_stuck(cluster *cl)
{
    (void)cl;
    return atomic_load(&stuck);
}

static bool second_was_refused(cluster *cl)
{
    return cl->req[1].exhausted > 0;
}

static bool second_is_done(cluster *cl)
{
    return cl->req[1].state == REQ_DONE;
}

/* A writer that hangs between taking the right and writing: its connection is closed, its request has ended, and
 * its pages stay in quarantine until it has written. Then another request gets them, undamaged. */
START_TEST(late_write_meets_nobody)
{
    cluster_opts o = cluster_defaults();
    o.shipping = &sl_shipping_direct;
    o.n_prefill = 2;
    o.decode_pages = 12;
    o.chunk_tokens = 64;
    o.times.quarantine_ms = 150;
    o.direct_hook = hang_in_third;
    cluster_start(&c, &o);
    creq *a = cluster_ask(&c, 600, 10, 1);
    a->prefill = 0;
    cluster_until(&c, is_stuck, 10, "a copy hangs");
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort = (sl_msg_abort){a->rid, a->attempt, SL_ERR_PEER};
    cluster_send(cluster_worker(&c, SL_ROLE_DECODE, 0), &m);
    a->state = REQ_ABORTED;
    a->attempt += 1000; /* so that the test ignores later messages about this attempt */
    creq *b = cluster_ask(&c, 600, 10, 2);
    b->prefill = 1;
    b->max_attempts = 1;
    cluster_run_ms(&c, 900); /* six times the time of fencing a writer of the other path */
    ck_assert_msg(b->n_tokens == b->n_prompt && b->state != REQ_DONE,
                  "it got pages that the writer may still write");
    cluster_until(&c, second_was_refused, 10, "the second request to be refused pages");
    atomic_store(&release_it, 1);
    cluster_until(&c, second_is_done, 20, "the second request");
    cluster_check_stream(&c, b);
    ck_assert_int_eq(b->attempts, 0);
    cluster_stop(&c);
}
END_TEST

static uint64_t last_prefill_epoch;

static bool workers_are_back(cluster *cl)
{
    const cworker *p = cluster_worker(cl, SL_ROLE_PREFILL, 0), *d = cluster_worker(cl, SL_ROLE_DECODE, 0);
    return p->id && d->id && p->epoch != last_prefill_epoch;
}

/* The connection between two living processes is lost 600 times, as when the router restarts. The rows are still
 * written directly, and no other path is allowed (cluster.shipping is direct). */
START_TEST(ships_after_600_lost_connections)
{
    cluster_opts o = cluster_defaults();
    o.shipping = &sl_shipping_direct;
    cluster_start(&c, &o);
    for (int i = 0; i < 600; i++) {
        creq *r = cluster_ask(&c, 5, 1, (uint64_t)i);
        r->max_attempts = 3;
        cluster_until(&c, cluster_idle, 20, "request ends");
        ck_assert_msg(r->state == REQ_DONE, "after %d connections: %s", i, r->reason);
        if (i % 100 == 99)
            cluster_check_stream(&c, r);
        last_prefill_epoch = cluster_worker(&c, SL_ROLE_PREFILL, 0)->epoch;
        cluster_cut_all(&c);
        cluster_until(&c, workers_are_back, 20, "workers come back");
    }
    cluster_stop(&c);
}
END_TEST

START_TEST(refused_at_start)
{
    cluster_opts o = cluster_defaults();
    sl_geometry g;
    sl_cache_dims dims = {.rows = sl_row_format_of(SL_ROW_MLA_FP8), .latent = 128, .rope = 16};
    sl_cache_shape shape;
    sl_geometry_opts go = {.fingerprint = {1, 2}, .shape = &shape, .n_layers = 2};
    sl_arena_opts ao = {.bytes = 1 << 20, .lock = SL_OFF, .numa_node = -1};
    sl_arena *a = NULL;
    sl_err err = {0};
    ck_assert_int_eq(sl_cache_shape_make(&dims, &shape, &err), SL_OK);
    ck_assert_int_eq(sl_geometry_make(&go, &g, &err), SL_OK);
    ck_assert_int_eq(sl_arena_create(&g, &ao, &a, &err), SL_OK);
    sl_runner none = {.vocab = 8, .n_layers = 2, .max_context = 64, .max_step_tokens = 64};
    sl_worker_role_opts role = {
        .worker = {.transport = "loopback", .fabric = "none", .routers = {"r:1"}, .n_routers = 1},
        .name = "w",
        .model = "m",
        .cluster_tag = "t",
        .metrics_address = "",
        .runner = &none,
        .arena = a};
    sl_decode_opts d = {.role = role, .max_batch = 1, .shipping = &sl_shipping_direct};
    sl_decode *decode = NULL;
    ck_assert_int_eq(sl_decode_create(&d, &decode, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "not shared memory") != NULL, "%s", err.text);
    sl_prefill_opts p = {.role = role, .chunk_tokens = 64, .max_requests = 1, .shipping = &sl_shipping_gpu};
    sl_prefill *prefill = NULL;
    ck_assert_int_eq(sl_prefill_create(&p, &prefill, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "not in a device's memory") != NULL, "%s", err.text);
    /* UCX over TCP only: however UCX was built, it may not use CUDA. */
    fake_opts fo = {.vocab = 8, .max_seqs = 1, .max_context = 64};
    fake_runner *fake = fake_create(a, &fo);
    sl_runner runner = fake_runner_of(fake);
    runner.max_step_tokens = 64;
    p.role.runner = &runner;
    p.role.worker.transport = "ucx";
    p.role.worker.tls = "tcp";
    p.role.worker.numa_node = -1;
    ck_assert_int_eq(sl_prefill_create(&p, &prefill, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "cannot move GPU memory") && strstr(err.text, "cluster.tls"), "%s",
                  err.text);
    fake_destroy(fake);
    sl_arena_destroy(a);
    (void)o;
}
END_TEST

/* Only the prefill worker is configured for `direct`, and the decode worker does not offer it: requests fail with the
 * reason, and no other path is used. */
START_TEST(refused_at_connection)
{
    cluster_opts o = cluster_defaults();
    o.shipping = &sl_shipping_direct;
    o.decode_ships_by_staging = true;
    cluster_start(&c, &o);
    creq *a = cluster_ask(&c, 100, 10, 1);
    a->max_attempts = 2;
    cluster_until(&c, cluster_idle, 20, "request fails");
    ck_assert_int_eq(a->state, REQ_FAILED);
    ck_assert_msg(strstr(a->reason, "not possible") != NULL, "%s", a->reason);
    cluster_stop(&c);
}
END_TEST

static uint64_t bytes_wanted;

/* The worker's hook tells the number, in the turn after the one that made it. */
static bool bytes_are_put(cluster *cl)
{
    return atomic_load(&cluster_worker(cl, SL_ROLE_PREFILL, 0)->device_bytes_put) >= bytes_wanted;
}

/* Rows of new tokens are put from the device, and only those: the second request's prefix is in the cache. */
START_TEST(puts_from_the_device)
{
    cluster_opts o = cluster_defaults();
    o.shipping = &sl_shipping_gpu;
    o.n_decode = 2;
    o.prefill_layout = SL_LAYOUT_LAYER_FIRST;
    cluster_start(&c, &o);
    creq *a = cluster_ask(&c, 600, 10, 1);
    a->decode = 0;
    cluster_until(&c, cluster_idle, 20, "request ends");
    cluster_check_stream(&c, a);
    cworker *p = cluster_worker(&c, SL_ROLE_PREFILL, 0);
    const sl_geometry *g = sl_arena_geometry(p->arena);
    uint64_t token = 0;
    for (int l = 0; l < g->n_layers; l++)
        token += (uint64_t)sl_geometry_row_bytes(g) + (sl_geometry_has(g, l, 1) ? 32u + 4u : 0);
    bytes_wanted = 600 * token;
    cluster_until(&c, bytes_are_put, 10, "every row to be put");
    uint64_t first = atomic_load(&p->device_bytes_put);
    ck_assert_uint_eq(first, 600 * token);
    creq *b = cluster_ask(&c, 600, 10, 1); /* the same text, to a worker that has none of its pages */
    b->decode = 1;
    cluster_until(&c, cluster_idle, 20, "request ends");
    cluster_check_stream(&c, b);
    bytes_wanted = first + (600 - 9 * 64) * token;
    cluster_until(&c, bytes_are_put, 10, "every row to be put");
    ck_assert_uint_eq(atomic_load(&p->device_bytes_put) - first, (600 - 9 * 64) * token);
    cluster_stop(&c);
}
END_TEST

START_TEST(auto_takes_what_there_is)
{
    cluster_opts o = cluster_defaults();
    o.shipping = NULL;
    o.decode_ships_by_staging = true;
    cluster_start(&c, &o);
    creq *a = cluster_ask(&c, 300, 20, 1);
    cluster_until(&c, cluster_idle, 20, "request ends");
    ck_assert_int_eq(a->state, REQ_DONE);
    cluster_check_stream(&c, a);
    cluster_stop(&c);
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("direct");
    TCase *t = tcase_create("right");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, writes_arrive_until_the_right_is_taken_back);
    tcase_add_test(t, a_new_grant_does_not_revive_an_old_one);
    tcase_add_test(t, a_killed_writer);
    tcase_add_test(t, a_stopped_writer);
    tcase_add_test(t, what_cannot_be_attached);
    tcase_add_test(t, entries_run_out);
    tcase_add_test(t, lost_connections_of_a_living_process);
    tcase_add_test(t, an_attached_writer_keeps_its_entry);
    tcase_add_test(t, a_late_attach);
    tcase_set_timeout(t, 60);
    suite_add_tcase(s, t);
    t = tcase_create("cluster");
    tcase_add_test(t, late_write_meets_nobody);
    tcase_add_test(t, ships_after_600_lost_connections);
    tcase_add_test(t, refused_at_start);
    tcase_add_test(t, refused_at_connection);
    tcase_add_test(t, puts_from_the_device);
    tcase_add_test(t, auto_takes_what_there_is);
    tcase_set_timeout(t, 120);
    suite_add_tcase(s, t);
    return run_suite(s);
}
