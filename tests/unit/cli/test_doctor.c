/* What `sluice doctor` says of hosts that are made up: files below a directory of their own, and limits that are given. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/doctor.h"
#include "tests/unit/run_suite.h"

static char root[] = "/tmp/sluice-doctor-XXXXXX";
static sl_config cfg;
static sl_findings found;
static sl_doctor_in in;

/* Writes root/path and the folders above it. */
static void file(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    for (char *p = whole + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(whole, 0755);
    }
    FILE *f = fopen(whole, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

/* A host on which everything is as it should be. */
static void good_host(void)
{
    file("/proc/meminfo",
         "MemTotal:       67108864 kB\nMemAvailable:   60000000 kB\nSwapTotal:             0 kB\n"
         "HugePages_Total:       0\nHugePages_Free:        0\nHugepagesize:       2048 kB\n");
    file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    file("/sys/devices/system/node/node0/cpulist", "0-15\n");
    file("/sys/devices/system/node/node1/cpulist", "16-31\n");
    file("/proc/sys/kernel/numa_balancing", "0\n");
    file("/proc/sys/kernel/yama/ptrace_scope", "0\n");
    file("/proc/sys/vm/overcommit_memory", "0\n");
    file("/proc/sys/kernel/io_uring_disabled", "0\n");
    file("/sys/fs/cgroup/cpu.max", "max 100000\n");
    file("/sys/fs/cgroup/memory.max", "max\n");
    file("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    file("/dev/shm/x", "");
    file("/proc/driver/nvidia/version",
         "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n");
    sl_config_init(&cfg);
    ck_assert_int_eq(sl_config_finish(&cfg, NULL), SL_OK);
    cfg.kvstore.bytes = 8ull << 30;
    in = (sl_doctor_in){root, &cfg, UINT64_MAX, 65536, UINT64_MAX};
}

static void look(void)
{
    found.n = 0;
    sl_doctor_memory(&in, &found);
    sl_doctor_kernel(&in, &found);
    sl_doctor_clock(&in, &found);
    sl_doctor_device(&in, &found);
}

/* The finding of this level whose text has `part`. */
static const sl_finding *finding(sl_doctor_level level, const char *part)
{
    for (size_t i = 0; i < found.n; i++)
        if (found.v[i].level == level && strstr(found.v[i].text, part))
            return &found.v[i];
    ck_abort_msg("no %s with \"%s\"", sl_doctor_level_name(level), part);
}

START_TEST(a_good_host)
{
    look();
    for (size_t i = 0; i < found.n; i++)
        ck_assert_msg(found.v[i].level == SL_DOCTOR_OK && !found.v[i].advice[0], "%s: %s", found.v[i].topic,
                      found.v[i].text);
    finding(SL_DOCTOR_OK, "64.0 GiB");
    finding(SL_DOCTOR_OK, "2 nodes");
    finding(SL_DOCTOR_OK, "NVIDIA 535.183.01");
}
END_TEST

/* One thing of the good host is changed; it must be found, with the words of an advice. */
static const struct {
    const char *path, *text;
    sl_doctor_level level;
    const char *part, *advice;
} faults[] = {
    {"/proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 4000000 kB\n", SL_DOCTOR_WRONG,
     "kvstore.bytes is 8.0 GiB", "lower kvstore.bytes"},
    {"/sys/fs/cgroup/memory.max", "2147483648\n", SL_DOCTOR_WRONG, "this host has 2.0 GiB",
     "lower kvstore.bytes"},
    {"/proc/meminfo", "MemTotal: 67108864 kB\nSwapTotal: 1048576 kB\n", SL_DOCTOR_NOTE, "1.0 GiB of swap",
     "swapoff"},
    {"/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n", SL_DOCTOR_NOTE,
     "pages of 4 KiB", "vm.nr_hugepages"},
    {"/proc/sys/kernel/numa_balancing", "1\n", SL_DOCTOR_NOTE, "between nodes", "numa_balancing=0"},
    {"/proc/sys/kernel/yama/ptrace_scope", "1\n", SL_DOCTOR_NOTE, "ptrace_scope is 1", "ptrace_scope=0"},
    {"/proc/sys/vm/overcommit_memory", "2\n", SL_DOCTOR_NOTE, "overcommit_memory is 2",
     "overcommit_memory=0"},
    {"/proc/sys/kernel/io_uring_disabled", "2\n", SL_DOCTOR_NOTE, "io_uring is switched off",
     "io_uring_disabled=0"},
    {"/sys/fs/cgroup/cpu.max", "100000 100000\n", SL_DOCTOR_NOTE, "1.0 CPUs", "two CPUs"},
    {"/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n", SL_DOCTOR_NOTE, "hpet",
     "clocksource=tsc"},
};

START_TEST(each_fault_is_found)
{
    file(faults[_i].path, faults[_i].text);
    look();
    const sl_finding *f = finding(faults[_i].level, faults[_i].part);
    ck_assert_msg(strstr(f->advice, faults[_i].advice) != NULL, "%s", f->advice);
}
END_TEST

START_TEST(limits)
{
    in.memory_lock = 8 << 20;
    look();
    finding(SL_DOCTOR_NOTE, "8.0 MiB; the store cannot be locked");
    cfg.kvstore.lock = SL_CFG_TRI_ON;
    in.open_files = 100;
    in.processes = 100;
    look();
    ck_assert_ptr_nonnull(strstr(finding(SL_DOCTOR_WRONG, "8.0 MiB")->advice, "LimitMEMLOCK"));
    ck_assert_ptr_nonnull(strstr(finding(SL_DOCTOR_WRONG, "a process needs 128")->advice, "LimitNOFILE"));
    finding(SL_DOCTOR_NOTE, "ulimit -u");
}
END_TEST

/* The driver is missed only by a configuration that uses it; a host of which nothing can be read is no reason to fail. */
START_TEST(without_files)
{
    sl_doctor_in empty = {"/tmp/sluice-doctor-of-nothing", NULL, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    in = empty;
    look();
    finding(SL_DOCTOR_NOTE, "no NVIDIA driver");
    finding(SL_DOCTOR_WRONG, "/dev/shm is not there");
    in.cfg = &cfg;
    snprintf(cfg.backend.name, sizeof cfg.backend.name, "cuda");
    look();
    finding(SL_DOCTOR_WRONG, "no NVIDIA driver");
}
END_TEST

int main(void)
{
    if (!mkdtemp(root))
        return EXIT_FAILURE;
    Suite *s = suite_create("doctor");
    TCase *c = tcase_create("doctor");
    tcase_add_checked_fixture(c, good_host, NULL);
    tcase_add_test(c, a_good_host);
    tcase_add_loop_test(c, each_fault_is_found, 0, (int)SL_COUNT(faults));
    tcase_add_test(c, limits);
    tcase_add_test(c, without_files);
    suite_add_tcase(s, c);
    int result = run_suite(s);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command) ? EXIT_FAILURE : result;
}
