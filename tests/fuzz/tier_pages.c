/*
 * Damaged pages of every storage tier, read by the tier itself: a file of the disk tier by its recovery and its reads, a file
 * and an object of the NIXL tier, a value and raw answers of a Redis server. The first byte of an input chooses the tier, the
 * rest is a list of changes to what the tier has stored. Whatever they are: every request ends, and a page that is given
 * out is the page that was stored.
 *
 * A change is 5 bytes and more: flags, position (2), length, and the bytes that are written there. Flags: 1 - the record ends
 * at this position; 2 - afterwards a right checksum is written, as a damaged program would. What has right checksums can be
 * a page with other contents, so those are not compared then.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/disk_format.h"
#include "kvstore/nixl_impl.h"
#include "kvstore/page_record.h"
#include "kvstore/redis_options.h"
#include "tests/unit/kvstore/nixl_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KEYS = 6, PAGE = 1000, MOST = 1 << 17, WAIT_MS = 60000 };

static uint8_t content[KEYS][PAGE], got[KEYS][PAGE];
static struct iovec from_spans[KEYS], into_spans[KEYS];
static sl_tier_page from[KEYS], into[KEYS];
static sl_key keys[KEYS];
static sl_status results[KEYS];
static char root[64];

#define NEED(x)                                                                                              \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #x, strerror(errno));                    \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* ---- requests ---- */

static void on_done(sl_tier_req *req, sl_status st)
{
    (void)st;
    ++*(int *)req->cookie;
}

static void ask(sl_tier *tier, sl_tier_op op, int first, int n)
{
    int calls = 0;
    sl_tier_req r = {.op = op,
                     .n = n,
                     .keys = keys + first,
                     .results = results + first,
                     .done = on_done,
                     .cookie = &calls};
    r.pages = (op == SL_TIER_SET ? from : into) + first;
    NEED(sl_tier_submit(tier, &r) == SL_OK);
    while (!calls) {
        struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
        int ready = poll(&p, 1, WAIT_MS);
        NEED(ready == 1 || (ready < 0 && errno == EINTR)); /* the fuzzer has a timer */
        sl_tier_poll(tier);
    }
}

static void read_all(sl_tier *tier, bool compare)
{
    memset(got, 0, sizeof got);
    ask(tier, SL_TIER_EXISTS, 0, KEYS);
    ask(tier, SL_TIER_GET, 0, KEYS);
    for (int i = 0; i < KEYS; i++)
        if (results[i] == SL_OK && compare && memcmp(got[i], content[i], PAGE) != 0)
            abort(); /* a page that was damaged has been given out */
}

static sl_tier_opts opts(const void *values, const char *directory)
{
    return (sl_tier_opts){.page_bytes = PAGE,
                          .capacity_bytes = 1 << 20,
                          .options = values,
                          .directory = directory,
                          .prefix = "f",
                          .fingerprint = {1, 2},
                          .format = {3, 4}};
}

static sl_tier *open_tier(const sl_tier_ops *ops, const sl_tier_opts *o)
{
    sl_tier *tier = NULL;
    sl_err err = {0};
    if (sl_tier_open(ops, o, &tier, &err) != SL_OK)
        fprintf(stderr, "%s\n", err.text);
    NEED(tier);
    return tier;
}

/* ---- changes ---- */

static void seal(uint8_t *bytes, size_t n, size_t block, size_t at)
{
    uint32_t crc;
    if (block + at + 4 > n)
        return;
    crc = sl_crc32c(0, bytes + block, at);
    memcpy(bytes + block + at, &crc, sizeof crc);
}

/* Changes n bytes in place; returns how many there are then. *compare: no change wrote a checksum. blocks: headers lie at multiples
 * of this. */
static size_t change(uint8_t *bytes, size_t n, size_t blocks, const uint8_t *d, size_t size, bool *compare)
{
    *compare = true;
    while (size >= 5) {
        size_t at = (size_t)(d[1] | d[2] << 8), len = (size_t)d[3] + 1;
        uint8_t flags = d[0];
        at = flags & 4 && blocks ? at % (n / blocks + 1) * blocks + (at >> 8) % 160 : at;
        at %= n ? n : 1;
        len = len < size - 4 ? len : size - 4;
        len = len < n - at ? len : n - at;
        memcpy(bytes + at, d + 4, len);
        if (flags & 2) {
            *compare = false;
            seal(bytes, n, blocks ? at / blocks * blocks : 0,
                 blocks ? 16 + 4 * (size_t)(flags >> 3) : SL_PAGE_RECORD_BYTES - 4);
        }
        if (flags & 1)
            n = at;
        d += 4 + (len ? len : 1);
        size -= 4 + (len ? len : 1);
    }
    return n;
}

/* ---- disk ---- */

static uint8_t disk_bytes[MOST], disk_now[MOST];
static size_t disk_n;
static char disk_dir[80], disk_file[100];

static sl_tier_opts disk_opts(void)
{
    sl_tier_opts o = opts(NULL, disk_dir);
    o.segment_bytes = SL_DISK_BLOCK + 4 * 2 * SL_DISK_BLOCK;
    o.capacity_bytes = SL_DISK_BLOCK + 3 * o.segment_bytes;
    return o;
}

static void begin_disk(void)
{
    snprintf(disk_dir, sizeof disk_dir, "%s/disk", root);
    snprintf(disk_file, sizeof disk_file, "%s/pages.sluice", disk_dir);
    NEED(mkdir(disk_dir, 0700) == 0);
    sl_tier_opts o = disk_opts();
    sl_tier *tier = open_tier(&sl_tier_disk_ops, &o);
    ask(tier, SL_TIER_SET, 0, KEYS);
    sl_tier_close(tier);
    int fd = open(disk_file, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, disk_bytes, MOST);
    NEED(n > 0 && n < MOST);
    disk_n = (size_t)n;
    close(fd);
}

static void run_disk(const uint8_t *d, size_t size)
{
    bool compare;
    char aside[100];
    sl_tier *tier;
    sl_err err = {0};
    memcpy(disk_now, disk_bytes, disk_n);
    size_t n = change(disk_now, disk_n, SL_DISK_BLOCK, d, size, &compare);
    int fd = open(disk_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    NEED(fd >= 0 && write(fd, disk_now, n) == (ssize_t)n);
    close(fd);
    sl_tier_opts o = disk_opts();
    if (sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err) == SL_OK) {
        read_all(tier, compare);
        ask(tier, SL_TIER_SET, 0, KEYS); /* and it still works */
        read_all(tier, compare);
        sl_tier_close(tier);
    } else if (!err.text[0]) {
        abort(); /* refused without a reason */
    }
    snprintf(aside, sizeof aside, "%s/pages.damaged", disk_dir);
    unlink(aside);
}

/* ---- NIXL ---- */

static const uint8_t *spoil_d;
static size_t spoil_n;
static bool spoil_compare;

static void spoil(uint8_t *bytes, size_t n)
{
    change(bytes, n, 0, spoil_d, spoil_n, &spoil_compare);
}

static sl_tier_values nixl_values(const char *backend)
{
    sl_tier_values v;
    const sl_options *t = sl_tier_nixl_ops.options;
    sl_options_default(t, v.bytes);
    NEED(sl_options_set(t, v.bytes, "library", fake_nixl_path(), NULL) == SL_OK);
    NEED(sl_options_set(t, v.bytes, "backend", backend, NULL) == SL_OK);
    return v;
}

static void run_nixl_file(const uint8_t *d, size_t size)
{
    static sl_tier *tier;
    static uint8_t record[8192];
    char path[SL_NIXL_PATH_BYTES];
    bool compare;
    if (!tier) {
        sl_tier_values v = nixl_values("POSIX");
        snprintf(path, sizeof path, "%s/nixl", root);
        NEED(mkdir(path, 0700) == 0);
        sl_tier_opts o = opts(&v, path);
        tier = open_tier(&sl_tier_nixl_ops, &o);
    }
    sl_nixl_tier *t = (sl_nixl_tier *)tier;
    ask(tier, SL_TIER_REMOVE, 0, KEYS);
    ask(tier, SL_TIER_SET, 0, KEYS);
    sl_nixl_file_path(&t->files, keys[0], path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, record, sizeof record) : -1;
    NEED(n > 0);
    size_t now = change(record, (size_t)n, 0, d, size, &compare);
    NEED(pwrite(fd, record, now, 0) == (ssize_t)now && ftruncate(fd, (off_t)now) == 0);
    close(fd);
    read_all(tier, compare);
}

static void run_object(const uint8_t *d, size_t size)
{
    static sl_tier *tier;
    if (!tier) {
        sl_tier_values v = nixl_values("OBJ");
        sl_tier_opts o = opts(&v, NULL);
        o.capacity_bytes = 0;
        tier = open_tier(&sl_tier_nixl_ops, &o);
    }
    ask(tier, SL_TIER_SET, 0, KEYS);
    spoil_d = d, spoil_n = size, spoil_compare = true;
    fake_nixl()->read = spoil;
    read_all(tier, false);
    for (int i = 0; i < KEYS; i++)
        if (results[i] == SL_OK && spoil_compare && memcmp(got[i], content[i], PAGE) != 0)
            abort();
    fake_nixl()->read = NULL;
}

/* ---- Redis ---- */

#ifdef SL_HAVE_HIREDIS
static struct {
    int listener;
    const uint8_t *answer; /* to the first GET of a connection, which then ends where `raw` */
    size_t n;
    bool raw;
    atomic_bool stop;
} redis;

static void put(int fd, const void *p, size_t n)
{
    (void)!send(fd, p, n, MSG_NOSIGNAL);
}

static void redis_answers(int fd, const char *in)
{
    static const char info[] = "$47\r\nused_memory:1\r\nmaxmemory:9\r\nmaxmemory_policy:\r\n\r\n";
    static const char mode[] = "$17\r\ncluster_enabled:0\r\n";
    char head[32];
    for (const char *p = in; (p = strchr(p, '*')); p++) {
        const char *end = strchr(p + 1, '*');
        char command[256];
        snprintf(command, sizeof command, "%.*s", end ? (int)(end - p) : 200, p);
        if (strstr(command, "memory"))
            put(fd, info, sizeof info - 1);
        else if (strstr(command, "INFO"))
            put(fd, mode, sizeof mode - 1);
        else if (strstr(command, "GET") && redis.raw)
            put(fd, redis.answer, redis.n);
        else if (strstr(command, "GET")) {
            put(fd, head, (size_t)snprintf(head, sizeof head, "$%zu\r\n", redis.n));
            put(fd, redis.answer, redis.n);
            put(fd, "\r\n", 2);
        } else {
            put(fd, head, (size_t)snprintf(head, sizeof head, ":%d\r\n", SL_PAGE_RECORD_BYTES + PAGE));
        }
        if (redis.raw && strstr(command, "GET"))
            shutdown(fd, SHUT_RDWR);
    }
}

static void *redis_main(void *arg)
{
    int fd = -1;
    (void)arg;
    while (!redis.stop) {
        struct pollfd p[2] = {{.fd = redis.listener, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
        char in[1 << 14];
        if (poll(p, 2, 1) <= 0)
            continue;
        if (p[1].revents) {
            ssize_t n = recv(fd, in, sizeof in - 1, 0);
            in[n > 0 ? n : 0] = '\0';
            redis_answers(fd, in);
            if (n <= 0) {
                close(fd);
                fd = -1;
            }
        }
        if (p[0].revents && fd < 0)
            fd = accept(redis.listener, NULL, NULL);
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

/* The record of the first key as value, or raw bytes as the answer. */
static void run_redis(const uint8_t *d, size_t size, bool raw)
{
    static uint8_t record[SL_PAGE_RECORD_BYTES + PAGE];
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char address[128];
    bool compare = true;
    pthread_t thread;
    sl_tier_values v;
    sl_tier_opts o = opts(&v, NULL);
    sl_page_record r = sl_page_record_of(&from[0], keys[0], &o);
    sl_page_record_write(&r, record);
    memcpy(record + SL_PAGE_RECORD_BYTES, content[0], PAGE);
    redis.raw = raw;
    redis.answer = raw ? d : record;
    redis.n = raw ? size : change(record, sizeof record, 0, d, size, &compare);
    redis.stop = false;
    snprintf(at.sun_path, sizeof at.sun_path, "%s/redis", root);
    snprintf(address, sizeof address, "unix:%s", at.sun_path);
    redis.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    NEED(bind(redis.listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(redis.listener, 4) == 0);
    NEED(pthread_create(&thread, NULL, redis_main, NULL) == 0);
    const sl_tier_ops *ops = sl_tier_find("redis");
    sl_options_default(ops->options, v.bytes);
    NEED(sl_options_set(ops->options, v.bytes, "address", address, NULL) == SL_OK);
    sl_tier *tier = open_tier(ops, &o);
    read_all(tier, compare);
    sl_tier_close(tier);
    redis.stop = true;
    pthread_join(thread, NULL);
    close(redis.listener);
    unlink(at.sun_path);
}
#endif

/* ---- all ---- */

static void remove_root(void)
{
    nixl_rig_remove(root);
}

static void begin(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(root, sizeof root, "%.40s/pages-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
    NEED(mkdtemp(root));
    atexit(remove_root);
    sl_log_init(SL_LOG_ERROR, false, "fuzz");
    for (int i = 0; i < KEYS; i++) {
        keys[i] = (sl_key){(uint64_t)i * 77 + 1, (uint64_t)i * 99 + 5};
        for (int b = 0; b < PAGE; b++)
            content[i][b] = (uint8_t)(i * 31 + b * 7 + 1);
        from_spans[i] = (struct iovec){content[i], PAGE};
        into_spans[i] = (struct iovec){got[i], PAGE};
        from[i] = (sl_tier_page){&from_spans[i], 1};
        into[i] = (sl_tier_page){&into_spans[i], 1};
    }
    begin_disk();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size || size > 8192)
        return 0;
    if (!root[0])
        begin();
    switch (data[0] % 5) {
    case 0:
        run_disk(data + 1, size - 1);
        break;
    case 1:
        run_nixl_file(data + 1, size - 1);
        break;
    case 2:
        run_object(data + 1, size - 1);
        break;
    default:
#ifdef SL_HAVE_HIREDIS
        run_redis(data + 1, size - 1, data[0] % 5 == 4);
#endif
        break;
    }
    return 0;
}
