/* Reads /proc/meminfo and the memory controller: cgroup v2, else v1, at the root that a container sees. */
#include "kvstore/sysmem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The number in a file with one number; UINT64_MAX: there is no such file, or it says "max". */
static uint64_t number_in(const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    char line[64] = "";
    char *end = line;
    uint64_t v = UINT64_MAX;
    if (fgets(line, sizeof line, f))
        v = strtoull(line, &end, 10);
    fclose(f);
    return end == line ? UINT64_MAX : v;
}

static uint64_t meminfo_kib(const char *key)
{
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return UINT64_MAX;
    char line[128];
    uint64_t v = UINT64_MAX;
    size_t n = strlen(key);
    while (v == UINT64_MAX && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) == 0 && line[n] == ':')
            v = strtoull(line + n + 1, NULL, 10);
    }
    fclose(f);
    return v;
}

static uint64_t left(uint64_t limit, uint64_t used)
{
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    return used < limit ? limit - used : 0;
}

/* Bytes of a "key value" line of memory.stat; 0 when absent. */
static uint64_t stat_bytes(const char *path, const char *key)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    char line[128];
    uint64_t v = 0;
    size_t n = strlen(key);
    while (!v && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) == 0 && line[n] == ' ')
            v = strtoull(line + n + 1, NULL, 10);
    }
    fclose(f);
    return v;
}

/* The page cache counts as used, but the kernel drops it when memory is needed; so it is added. */
static uint64_t cgroup_left(void)
{
    uint64_t v2 = left(number_in("/sys/fs/cgroup/memory.max"), number_in("/sys/fs/cgroup/memory.current"));
    if (v2 != UINT64_MAX)
        return v2 + stat_bytes("/sys/fs/cgroup/memory.stat", "inactive_file");
    uint64_t v1 = left(number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
                       number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes"));
    if (v1 != UINT64_MAX)
        return v1 + stat_bytes("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file");
    return UINT64_MAX;
}

uint64_t sl_sysmem_available(void)
{
    uint64_t kib = meminfo_kib("MemAvailable");
    uint64_t host = kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024;
    uint64_t group = cgroup_left();
    return group < host ? group : host;
}

/* The inode of the process's pid namespace: a container has its own. */
uint64_t sl_sysmem_space(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

uint64_t sl_sysmem_huge_free(void)
{
    uint64_t n = number_in("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    return n == UINT64_MAX ? 0 : n;
}
