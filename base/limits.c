/* See limits.h. */
#include "base/limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * Without any peer a decode worker has about 45 descriptors open, a prefill worker 40, a router 43, most of which are
 * UCX's; each connection to another process takes up to six.
 */
enum { DESCRIPTORS_NEEDED = 128 };

/* Reserved by threads (stacks, and 64 MiB for the allocator of each), shared memory of UCX, requests. */
static const size_t SPACE_NEEDED = 768u << 20;

void sl_process_raise_descriptors(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur >= lim.rlim_max)
        return;
    lim.rlim_cur = lim.rlim_max;
    setrlimit(RLIMIT_NOFILE, &lim);
}

sl_status sl_process_check_descriptors(sl_err *err)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur >= DESCRIPTORS_NEEDED)
        return SL_OK;
    return sl_fail(err, SL_ERR_EXHAUSTED,
                   "the limit of open files (ulimit -n) is %" PRIu64
                   ", and a process of a cluster needs at least %d",
                   (uint64_t)lim.rlim_cur, DESCRIPTORS_NEEDED);
}

/* Address space in use, in bytes; 0 when it cannot be read. */
static uint64_t used_space(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    uint64_t pages = 0;
    if (f && fscanf(f, "%" SCNu64, &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

sl_status sl_process_check_address_space(sl_err *err)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_AS, &lim) || lim.rlim_cur == RLIM_INFINITY)
        return SL_OK;
    void *p = mmap(NULL, SPACE_NEEDED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) {
        munmap(p, SPACE_NEEDED);
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_EXHAUSTED,
                   "the limit of address space (ulimit -v) is %" PRIu64
                   " MiB, of which this process uses %" PRIu64
                   " MiB; it needs %zu MiB more: raise the limit, or bound memory by a cgroup instead",
                   (uint64_t)lim.rlim_cur >> 20, used_space() >> 20, SPACE_NEEDED >> 20);
}
