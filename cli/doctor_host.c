/* See doctor.h: what the kernel says of memory, limits, NUMA and the clock. */
#include "cli/doctor.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#define GIB (1024.0 * 1024.0 * 1024.0)

enum {
    FILES_NEEDED = 128,      /* base/limits.h refuses fewer */
    FILES_WISHED = 4096,     /* a router takes two descriptors for each client, a worker six for each peer */
    PROCESSES_WISHED = 1024, /* threads count as processes */
    SHM_WISHED = 256 << 20
};

const char *sl_doctor_level_name(sl_doctor_level l)
{
    return l == SL_DOCTOR_OK ? "ok" : l == SL_DOCTOR_NOTE ? "note" : "wrong";
}

void sl_doctor_add(sl_findings *f, sl_doctor_level level, const char *topic, const char *advice,
                   const char *text, ...)
{
    if (f->n == SL_FINDINGS_MAX)
        return;
    sl_finding *o = &f->v[f->n++];
    *o = (sl_finding){.level = level, .topic = topic};
    snprintf(o->advice, sizeof o->advice, "%s", advice);
    va_list args;
    va_start(args, text);
    vsnprintf(o->text, sizeof o->text, text, args);
    va_end(args);
}

bool sl_doctor_read(const sl_doctor_in *in, const char *path, char *out, size_t n)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", in->root, path);
    out[0] = 0;
    FILE *f = fopen(whole, "re");
    if (!f)
        return false;
    size_t got = fread(out, 1, n - 1, f);
    fclose(f);
    while (got > 0 && isspace((unsigned char)out[got - 1]))
        got--;
    out[got] = 0;
    return true;
}

/* A field of /proc/meminfo in bytes; 0: it is not there. */
static uint64_t meminfo(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * (strstr(name, "HugePages") ? 1 : 1024) : 0;
}

/* Bytes that a cgroup allows, UINT64_MAX: it has no limit. */
static uint64_t cgroup_bytes(const sl_doctor_in *in)
{
    char text[64];
    if (!sl_doctor_read(in, "/sys/fs/cgroup/memory.max", text, sizeof text) &&
        !sl_doctor_read(in, "/sys/fs/cgroup/memory/memory.limit_in_bytes", text, sizeof text))
        return UINT64_MAX;
    uint64_t v = strtoull(text, NULL, 10);
    return isdigit((unsigned char)text[0]) && v < UINT64_MAX / 4 ? v : UINT64_MAX;
}

/* Workers that start on one host if all ranks of cluster.roles do; at least one. */
static int workers(const sl_config *cfg)
{
    int n = 0;
    for (int i = 0; i < cfg->cluster.roles.n; i++)
        n += cfg->cluster.roles.v[i] != SL_ROLE_ROUTER;
    return n ? n : 1;
}

static void check_size(const sl_doctor_in *in, uint64_t total, sl_findings *f)
{
    const uint64_t limit = cgroup_bytes(in);
    if (limit < total)
        sl_doctor_add(f, SL_DOCTOR_NOTE, "memory",
                      "raise the limit of the container or unit if the store does not fit",
                      "the cgroup allows %.1f GiB of %.1f GiB", (double)limit / GIB, (double)total / GIB);
    if (!in->cfg)
        return;
    const uint64_t most = limit < total ? limit : total, store = in->cfg->kvstore.bytes;
    const double all = (double)store * workers(in->cfg);
    if (store > most)
        sl_doctor_add(f, SL_DOCTOR_WRONG, "memory", "lower kvstore.bytes",
                      "kvstore.bytes is %.1f GiB, and this host has %.1f GiB", (double)store / GIB,
                      (double)most / GIB);
    else if (all > 0.9 * (double)most)
        sl_doctor_add(
            f, SL_DOCTOR_NOTE, "memory", "lower kvstore.bytes, unless the workers are on several hosts",
            "the %d workers of cluster.roles have stores of %.1f GiB together, and this host has %.1f GiB",
            workers(in->cfg), all / GIB, (double)most / GIB);
}

static void check_huge_pages(const sl_doctor_in *in, const char *text, sl_findings *f)
{
    char mode[128];
    const uint64_t n = meminfo(text, "HugePages_Free:"), size = meminfo(text, "Hugepagesize:");
    if (n)
        sl_doctor_add(f, SL_DOCTOR_OK, "huge pages", "", "%" PRIu64 " of %.0f MiB are free", n,
                      (double)size / 1048576);
    sl_doctor_read(in, "/sys/kernel/mm/transparent_hugepage/enabled", mode, sizeof mode);
    if (n || strstr(mode, "[always]") || strstr(mode, "[madvise]"))
        sl_doctor_add(f, SL_DOCTOR_OK, "huge pages", "", "transparent huge pages: %s",
                      mode[0] ? mode : "unknown");
    else
        sl_doctor_add(
            f, SL_DOCTOR_NOTE, "huge pages",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or reserve them: sysctl vm.nr_hugepages=N",
            "none are reserved, and transparent ones are %s: the store uses pages of 4 KiB",
            mode[0] ? mode : "not there");
}

void sl_doctor_memory(const sl_doctor_in *in, sl_findings *f)
{
    char text[8192];
    if (!sl_doctor_read(in, "/proc/meminfo", text, sizeof text)) {
        sl_doctor_add(f, SL_DOCTOR_NOTE, "memory", "mount /proc", "/proc/meminfo cannot be read");
        return;
    }
    const uint64_t total = meminfo(text, "MemTotal:"), left = meminfo(text, "MemAvailable:");
    sl_doctor_add(f, SL_DOCTOR_OK, "memory", "", "%.1f GiB, of which %.1f GiB are available",
                  (double)total / GIB, (double)left / GIB);
    check_size(in, total, f);
    check_huge_pages(in, text, f);
    if (meminfo(text, "SwapTotal:"))
        sl_doctor_add(
            f, SL_DOCTOR_NOTE, "swap", "swapoff -a, or let the store be locked (kvstore.lock and ulimit -l)",
            "%.1f GiB of swap are on: pages of the store that are not locked may be written to disk",
            (double)meminfo(text, "SwapTotal:") / GIB);
}

static void check_limits(const sl_doctor_in *in, sl_findings *f)
{
    char lock[64] = "unlimited";
    if (in->memory_lock != UINT64_MAX)
        snprintf(lock, sizeof lock, "%.1f MiB", (double)in->memory_lock / 1048576);
    const bool small = in->cfg ? in->memory_lock < in->cfg->kvstore.bytes : in->memory_lock < (1ull << 30);
    const bool must = in->cfg && in->cfg->kvstore.lock == SL_CFG_TRI_ON;
    sl_doctor_add(
        f,
        !small ? SL_DOCTOR_OK
        : must ? SL_DOCTOR_WRONG
               : SL_DOCTOR_NOTE,
        "limits",
        small ? "ulimit -l unlimited, LimitMEMLOCK=infinity in a unit, --ulimit memlock=-1 of a container"
              : "",
        "locked memory (ulimit -l): %s%s", lock,
        small ? "; the store cannot be locked, and RDMA cannot register it" : "");
    if (in->open_files == UINT64_MAX)
        sl_doctor_add(f, SL_DOCTOR_OK, "limits", "", "open files (ulimit -n): unlimited");
    else
        sl_doctor_add(f,
                      in->open_files < FILES_NEEDED   ? SL_DOCTOR_WRONG
                      : in->open_files < FILES_WISHED ? SL_DOCTOR_NOTE
                                                      : SL_DOCTOR_OK,
                      "limits",
                      in->open_files < FILES_WISHED ? "ulimit -n 65536, LimitNOFILE=65536 in a unit" : "",
                      "open files (ulimit -n): %" PRIu64 "%s", in->open_files,
                      in->open_files < FILES_NEEDED   ? "; a process needs 128"
                      : in->open_files < FILES_WISHED ? "; the router lowers router.max_connections to them"
                                                      : "");
    if (in->processes < PROCESSES_WISHED)
        sl_doctor_add(f, SL_DOCTOR_NOTE, "limits", "ulimit -u 4096, TasksMax=4096 in a unit",
                      "threads and processes (ulimit -u): %" PRIu64, in->processes);
}

static int numa_nodes(const sl_doctor_in *in)
{
    char path[512];
    snprintf(path, sizeof path, "%s/sys/devices/system/node", in->root);
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += strncmp(e->d_name, "node", 4) == 0 && isdigit((unsigned char)e->d_name[4]);
    if (d)
        closedir(d);
    return n;
}

static void check_numa(const sl_doctor_in *in, sl_findings *f)
{
    char balancing[16];
    const int n = numa_nodes(in);
    sl_doctor_add(f, SL_DOCTOR_OK, "NUMA", "", "%d node%s%s", n ? n : 1, n > 1 ? "s" : "",
                  n > 1 ? "; stores are bound to the node of the nearest NIC" : "");
    if (n > 1 && sl_doctor_read(in, "/proc/sys/kernel/numa_balancing", balancing, sizeof balancing) &&
        balancing[0] != '0')
        sl_doctor_add(f, SL_DOCTOR_NOTE, "NUMA", "sysctl kernel.numa_balancing=0",
                      "the kernel moves pages between nodes, which stops threads that read them");
}

static void check_shm(const sl_doctor_in *in, sl_findings *f)
{
    char path[512];
    struct statvfs fs;
    snprintf(path, sizeof path, "%s/dev/shm", in->root);
    if (statvfs(path, &fs)) {
        sl_doctor_add(f, SL_DOCTOR_WRONG, "shared memory", "mount -t tmpfs tmpfs /dev/shm",
                      "/dev/shm is not there: processes of one host cannot exchange messages");
        return;
    }
    const double size = (double)fs.f_blocks * (double)fs.f_frsize,
                 left = (double)fs.f_bavail * (double)fs.f_frsize;
    const bool small = left < SHM_WISHED;
    sl_doctor_add(
        f, small ? SL_DOCTOR_NOTE : SL_DOCTOR_OK, "shared memory",
        small
            ? "docker run --shm-size 1g, an emptyDir of medium Memory at /dev/shm, or: mount -o remount,size=1g "
              "/dev/shm"
            : "",
        "/dev/shm: %.0f MiB of %.0f MiB are free%s", left / 1048576, size / 1048576,
        small ? "; messages of UCX within a host take it, and a process that finds it full ends" : "");
}

static void check_cpus(const sl_doctor_in *in, sl_findings *f)
{
    char quota[64];
    long long used = 0, period = 0;
    if (sl_doctor_read(in, "/sys/fs/cgroup/cpu.max", quota, sizeof quota) &&
        sscanf(quota, "%lld %lld", &used, &period) == 2 && period > 0)
        sl_doctor_add(f, used < 2 * period ? SL_DOCTOR_NOTE : SL_DOCTOR_OK, "CPU",
                      used < 2 * period ? "give the container two CPUs or more" : "",
                      "the cgroup allows %.1f CPUs; what exceeds them waits, and heartbeats with it",
                      (double)used / (double)period);
}

void sl_doctor_kernel(const sl_doctor_in *in, sl_findings *f)
{
    char text[64];
    check_limits(in, f);
    check_shm(in, f);
    check_numa(in, f);
    check_cpus(in, f);
    if (sl_doctor_read(in, "/proc/sys/vm/overcommit_memory", text, sizeof text) && text[0] == '2')
        sl_doctor_add(f, SL_DOCTOR_NOTE, "memory", "sysctl vm.overcommit_memory=0",
                      "vm.overcommit_memory is 2: address space that is only reserved counts as used");
    if (sl_doctor_read(in, "/proc/sys/kernel/io_uring_disabled", text, sizeof text) && text[0] != '0')
        sl_doctor_add(f, in->cfg ? SL_DOCTOR_NOTE : SL_DOCTOR_OK, "disk", "sysctl kernel.io_uring_disabled=0",
                      "io_uring is switched off, which the disk tier uses");
    if (sl_doctor_read(in, "/proc/sys/kernel/yama/ptrace_scope", text, sizeof text) && text[0] != '0')
        sl_doctor_add(
            f, SL_DOCTOR_NOTE, "shared memory", "sysctl kernel.yama.ptrace_scope=0",
            "kernel.yama.ptrace_scope is %s: UCX copies large messages between processes of a host twice",
            text);
}

void sl_doctor_clock(const sl_doctor_in *in, sl_findings *f)
{
    char source[64];
    struct timex t = {0};
    if (sl_doctor_read(in, "/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
                       sizeof source)) {
        const bool slow = !strcmp(source, "hpet") || !strcmp(source, "acpi_pm") || !strcmp(source, "jiffies");
        sl_doctor_add(f, slow ? SL_DOCTOR_NOTE : SL_DOCTOR_OK, "clock",
                      slow ? "boot with clocksource=tsc, if the CPU's is stable" : "",
                      "the clock source is %s%s", source, slow ? ", which takes microseconds to read" : "");
    }
    if (in->root[0])
        return;
    if (adjtimex(&t) < 0 || t.status & STA_UNSYNC)
        sl_doctor_add(
            f, SL_DOCTOR_NOTE, "clock", "run chrony or systemd-timesyncd",
            "is not synchronised: times in logs and traces of several hosts cannot be compared, and certificates "
            "may be refused");
    else
        sl_doctor_add(f, SL_DOCTOR_OK, "clock", "", "is synchronised, to %.1f ms", (double)t.maxerror / 1000);
}
