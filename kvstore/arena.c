/*
 * The arena: one anonymous mapping. Its size is compared with the memory of the machine before the memory is used; then
 * it is populated and, where this is allowed, locked, so that no page fault occurs after start.
 *
 * A shared arena is a memfd mapped with MAP_SHARED; transparent huge pages then depend on the kernel's shmem_enabled.
 *
 * Explicit huge pages (MAP_HUGETLB) are used when enough are free, else transparent ones are advised. The arena is
 * bound after it is mapped and before it is populated, because populating decides the node of a page. The arena does
 * not register its memory with a device or a NIC; the owners of those do.
 */
#include "kvstore/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/sysmem.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { HUGE_PAGE = 2 << 20 };

typedef enum { PAGES_NORMAL, PAGES_THP, PAGES_HUGETLB } page_kind;

struct sl_arena {
    sl_geometry geo;
    uint8_t *base;
    uint64_t bytes;  /* of all pages */
    uint64_t mapped; /* rounded up to the page size in use */
    int32_t n_pages;
    page_kind kind;
    int node; /* to which it is bound, or -1 */
    int fd;   /* the memfd of a shared arena, or -1 */
    bool locked;
    char text[200];
};

static uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static sl_status check_free(const sl_arena *a, int numa_node, sl_err *err)
{
    uint64_t available = sl_sysmem_available();
    if (a->mapped > available)
        return sl_fail(
            err, SL_ERR_NO_MEMORY,
            "the host store asks for %.0f MiB but this machine (or its cgroup) has %.0f MiB available; "
            "lower kvstore.bytes",
            mib(a->mapped), mib(available));
    if (numa_node < 0)
        return SL_OK;
    if (numa_available() < 0 || numa_node > numa_max_node())
        return sl_fail(err, SL_ERR_INVALID, "NUMA node %d does not exist on this machine (%d nodes)",
                       numa_node, numa_available() < 0 ? 1 : numa_max_node() + 1);
    long long node_free = 0;
    long long size = numa_node_size64(numa_node, &node_free);
    /* The free memory of a node excludes the page cache, which the kernel can drop; so its size is the bound. */
    if (size > 0 && a->mapped > (uint64_t)size)
        return sl_fail(
            err, SL_ERR_NO_MEMORY,
            "the host store asks for %.0f MiB but NUMA node %d has %.0f MiB; lower kvstore.bytes or set "
            "the NUMA node to -1",
            mib(a->mapped), numa_node, mib((uint64_t)size));
    return SL_OK;
}

/* Makes and maps the memfd of a shared arena; huge: with 2 MiB pages. NULL: errno has the reason. */
static void *map_shared(sl_arena *a, uint64_t bytes, bool huge)
{
    int fd = memfd_create("sluice-arena", MFD_CLOEXEC | (huge ? MFD_HUGETLB | (21u << MAP_HUGE_SHIFT) : 0));
    if (fd < 0)
        return NULL;
    void *p = ftruncate(fd, (off_t)bytes) == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                                               : MAP_FAILED;
    if (p == MAP_FAILED) {
        int cause = errno;
        close(fd);
        errno = cause;
        return NULL;
    }
    a->fd = fd;
    return p;
}

static void *map(sl_arena *a, uint64_t bytes, bool huge, bool shared)
{
    if (shared)
        return map_shared(a, bytes, huge);
    int flags = huge ? MAP_HUGETLB | (21 << MAP_HUGE_SHIFT) : 0;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static sl_status map_arena(sl_arena *a, const sl_arena_opts *o, sl_err *err)
{
    if (o->huge_pages != SL_OFF && a->bytes >= HUGE_PAGE) {
        uint64_t bytes = round_up(a->bytes, HUGE_PAGE);
        a->base = map(a, bytes, true, o->shared);
        if (a->base) {
            a->mapped = bytes;
            a->kind = PAGES_HUGETLB;
            return SL_OK;
        }
    }
    if (o->huge_pages == SL_ON)
        return sl_fail(err, SL_ERR_NO_MEMORY,
                       "%.0f MiB of 2 MiB huge pages are not free (%" PRIu64 " are); raise vm.nr_hugepages",
                       mib(a->bytes), sl_sysmem_huge_free());
    /* map() aligns the address, so that the first byte can lie in a transparent huge page */
    uint64_t bytes = round_up(a->bytes, 4096);
    a->base = map(a, bytes, false, o->shared);
    if (!a->base)
        return sl_fail(err, SL_ERR_NO_MEMORY,
                       "cannot map %.0f MiB for the host store: %s; lower kvstore.bytes", mib(bytes),
                       strerror(errno));
    a->mapped = bytes;
    int advice = o->huge_pages == SL_OFF ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
    a->kind = madvise(a->base, bytes, advice) == 0 && o->huge_pages != SL_OFF && bytes >= HUGE_PAGE
                  ? PAGES_THP
                  : PAGES_NORMAL;
    return SL_OK;
}

static sl_status bind_arena(sl_arena *a, int node, sl_err *err)
{
    a->node = -1;
    if (node < 0)
        return SL_OK;
    unsigned long mask[16] = {0};
    size_t bits = 8 * sizeof mask[0];
    if ((size_t)node >= bits * SL_COUNT(mask))
        return sl_fail(err, SL_ERR_INVALID, "NUMA node %d is too large", node);
    mask[(size_t)node / bits] |= 1ul << ((size_t)node % bits);
    if (mbind(a->base, a->mapped, MPOL_BIND, mask, bits * SL_COUNT(mask), 0) == 0) {
        a->node = node;
        return SL_OK;
    }
    if (errno == EPERM || errno == ENOSYS) { /* containers often forbid it: memory is slower */
        sl_log(SL_LOG_WARN, "kvstore", "not_bound", "node=%d reason=\"%s\"", node, strerror(errno));
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INVALID, "cannot bind the host store to NUMA node %d: %s", node,
                   strerror(errno));
}

static sl_status populate(sl_arena *a, sl_err *err)
{
    if (madvise(a->base, a->mapped, MADV_POPULATE_WRITE) == 0)
        return SL_OK;
    if (errno != EINVAL && errno != ENOSYS)
        return sl_fail(err, SL_ERR_NO_MEMORY,
                       "cannot populate %.0f MiB for the host store: %s; lower kvstore.bytes", mib(a->mapped),
                       strerror(errno));
    for (uint64_t at = 0; at < a->mapped; at += 4096) /* kernels before 5.14 */
        *(volatile uint8_t *)(a->base + at) = 0;
    return SL_OK;
}

static sl_status lock_arena(sl_arena *a, sl_switch lock, sl_err *err)
{
    a->locked = false;
    if (lock == SL_OFF)
        return SL_OK;
    if (mlock(a->base, a->mapped) == 0) {
        a->locked = true;
        return SL_OK;
    }
    int cause = errno;
    struct rlimit rl = {0};
    getrlimit(RLIMIT_MEMLOCK, &rl);
    if (lock == SL_ON)
        return sl_fail(
            err, SL_ERR_NO_MEMORY,
            "kvstore.lock is on but locking %.0f MiB failed: %s (RLIMIT_MEMLOCK is %.0f MiB); raise "
            "`ulimit -l` or set kvstore.lock to auto",
            mib(a->mapped), strerror(cause), mib(rl.rlim_cur));
    sl_log(SL_LOG_INFO, "kvstore", "not_locked", "mib=%.0f memlock_limit_mib=%.0f reason=\"%s\"",
           mib(a->mapped), mib(rl.rlim_cur), strerror(cause));
    return SL_OK;
}

static void describe(sl_arena *a)
{
    static const char *const kinds[] = {"4K pages", "transparent huge pages", "huge pages 2M"};
    char node[32] = "no numa binding";
    if (a->node >= 0)
        snprintf(node, sizeof node, "numa node %d", a->node);
    snprintf(a->text, sizeof a->text, "%.1f MiB, %d pages of %.1f KiB, %s, %s, %s, %s%s", mib(a->bytes),
             a->n_pages, (double)a->geo.page_bytes / 1024, sl_layout_name(a->geo.layout), kinds[a->kind],
             node, a->locked ? "locked" : "not locked", a->fd >= 0 ? ", shared" : "");
}

/* Addresses without memory. */
static sl_status reserve_addresses(sl_arena *a, sl_err *err)
{
    void *p = mmap(NULL, a->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot reserve %.0f MiB of addresses: %s", mib(a->bytes),
                       strerror(errno));
    a->base = p;
    a->mapped = a->bytes;
    a->node = -1;
    return SL_OK;
}

static sl_status acquire(sl_arena *a, const sl_arena_opts *opts, sl_err *err)
{
    if (opts->no_memory)
        return reserve_addresses(a, err);
    SL_TRY(check_free(a, opts->numa_node, err));
    SL_TRY(map_arena(a, opts, err));
    SL_TRY(bind_arena(a, opts->numa_node, err));
    SL_TRY(populate(a, err));
    return lock_arena(a, opts->lock, err);
}

sl_status sl_arena_create(const sl_geometry *g, const sl_arena_opts *opts, sl_arena **out, sl_err *err)
{
    if (g->page_bytes <= 0)
        return sl_fail(err, SL_ERR_INVALID, "geometry is not finished");
    uint64_t n = opts->bytes / (uint64_t)g->page_bytes;
    if (n < 1 || n > INT32_MAX)
        return sl_fail(err, SL_ERR_INVALID,
                       "kvstore.bytes %" PRIu64 " holds %" PRIu64 " pages of %" PRId64
                       " bytes; 1..%d are possible",
                       opts->bytes, n, g->page_bytes, INT32_MAX);
    sl_arena *a = calloc(1, sizeof *a);
    if (!a)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    a->geo = *g;
    a->fd = -1;
    a->n_pages = (int32_t)n;
    a->bytes = n * (uint64_t)g->page_bytes;
    a->mapped = a->bytes;
    sl_status st = acquire(a, opts, err);
    if (st != SL_OK) {
        sl_arena_destroy(a);
        return st;
    }
    describe(a);
    *out = a;
    return SL_OK;
}

void sl_arena_destroy(sl_arena *a)
{
    if (!a)
        return;
    if (a->base)
        munmap(a->base, a->mapped);
    if (a->fd >= 0)
        close(a->fd);
    free(a);
}

const sl_geometry *sl_arena_geometry(const sl_arena *a)
{
    return &a->geo;
}

uint8_t *sl_arena_base(const sl_arena *a)
{
    return a->base;
}

uint64_t sl_arena_bytes(const sl_arena *a)
{
    return a->bytes;
}

int32_t sl_arena_pages(const sl_arena *a)
{
    return a->n_pages;
}

int sl_arena_fd(const sl_arena *a)
{
    return a->fd;
}

const char *sl_arena_describe(const sl_arena *a)
{
    return a->text;
}

static uint32_t plane_crc(const sl_arena *a, int32_t page, int32_t layer, int32_t plane, int32_t n_tokens,
                          uint32_t crc)
{
    const sl_cache_plane *p = &a->geo.shape.planes[plane];
    sl_host_plane at = sl_geometry_plane(&a->geo, a->base, a->n_pages, layer, plane);
    const uint8_t *first = at.base + page * at.page_stride;
    int64_t unit = sl_cache_unit_bytes(p);
    sl_unit_walk w;
    sl_unit_run r;
    sl_unit_walk_init(&w, p, 0, n_tokens, true, at.row_stride == p->heads * unit);
    while (sl_unit_walk_next(&w, &r))
        crc = sl_crc32c(crc, first + r.unit * at.row_stride + r.head * unit + r.at, (size_t)r.bytes);
    return crc;
}

uint32_t sl_arena_page_crc(const sl_arena *a, int32_t page, int32_t layer, int32_t n_tokens)
{
    const sl_geometry *g = &a->geo;
    SL_CHECK(page >= 0 && page < a->n_pages && layer >= 0 && layer < g->n_layers, "page %d layer %d", page,
             layer);
    SL_CHECK(n_tokens >= 0 && n_tokens <= SL_PAGE_TOKENS, "%d tokens", n_tokens);
    uint32_t crc = 0;
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        if (sl_geometry_has(g, layer, p))
            crc = plane_crc(a, page, layer, p, n_tokens, crc);
    return crc;
}

int32_t sl_arena_n_spans(const sl_arena *a)
{
    int32_t n = 0;
    if (a->geo.layout != SL_LAYOUT_LAYER_FIRST)
        return 1;
    for (int32_t l = 0; l < a->geo.n_layers; l++)
        for (int32_t p = 0; p < a->geo.shape.n_planes; p++)
            n += sl_geometry_has(&a->geo, l, p);
    return n;
}

void sl_arena_spans(const sl_arena *a, int32_t page, struct iovec *out)
{
    const sl_geometry *g = &a->geo;
    SL_CHECK(page >= 0 && page < a->n_pages, "page %d", page);
    if (g->layout != SL_LAYOUT_LAYER_FIRST) {
        *out = (struct iovec){a->base + page * g->page_bytes, (size_t)g->page_bytes};
        return;
    }
    for (int32_t l = 0; l < g->n_layers; l++) {
        for (int32_t p = 0; p < g->shape.n_planes; p++) {
            if (!sl_geometry_has(g, l, p))
                continue;
            sl_host_plane at = sl_geometry_plane(g, a->base, a->n_pages, l, p);
            *out++ = (struct iovec){at.base + page * at.page_stride, (size_t)at.page_stride};
        }
    }
}

int32_t sl_arena_page_at(const sl_arena *a, const uint8_t *address)
{
    int64_t stride = a->geo.page_bytes;
    for (int32_t l = 0, found = 0; a->geo.layout == SL_LAYOUT_LAYER_FIRST && !found && l < a->geo.n_layers;
         l++)
        for (int32_t p = 0; !found && p < a->geo.shape.n_planes; p++)
            if (sl_geometry_has(&a->geo, l, p))
                stride = sl_cache_page_bytes(&a->geo.shape.planes[p]), found = 1;
    const int64_t at = address - a->base;
    return at >= 0 && at % stride == 0 && at / stride < a->n_pages ? (int32_t)(at / stride) : -1;
}
