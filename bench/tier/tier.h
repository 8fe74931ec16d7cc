/*
 * Benchmark of storage tiers. Disk: bandwidth of storing and reading pages, compared with a plain io_uring loop and with fio
 * on the same file system, with the same block size and depth, in the same run. The three alternate, and the median of
 * the repeats is printed. Prints CSV, one line per page size and direction:
 *
 *   page_bytes,direction,depth,tier_mib_s,plain_mib_s,fio_mib_s,tier_to_plain,tier_to_fio
 *
 * --tier redis compares the Redis tier with a plain loop of SET and GET on one connection to the same server
 * (--address), and --tier nixl the NIXL tier (POSIX, --library) with --depth threads that pwrite and pread one file
 * of O_DIRECT for each page. Then the columns are
 *
 *   page_bytes,direction,depth,tier_mib_s,plain_mib_s,tier_to_plain
 *
 * The bandwidth of the tier counts the pages, without their headers. fio_mib_s is 0 when fio is not installed or
 * failed. All pages are read back and compared. It makes a directory of its own in --directory and removes it.
 */
#ifndef SL_BENCH_TIER_TIER_H
#define SL_BENCH_TIER_TIER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns an exit code of base/args.h; 77 when the machine or the file system cannot run the tier. */
int sl_bench_tier_main(int argc, char **argv);

/* MiB/s of writing (reads: of reading) count blocks of n bytes of the file `path`, depth of them in flight. Negative:
 * it failed. A plain loop with registered buffers, and fio. Writing creates the file and allocates it first. */
double sl_bench_tier_plain(const char *path, bool reads, size_t n, int32_t count, int32_t depth);
double sl_bench_tier_fio(const char *path, bool reads, size_t n, int32_t count, int32_t depth);
/* Likewise with one file for each block, by `depth` threads; reading needs files that were written. And their end. */
double sl_bench_tier_files(const char *directory, bool reads, size_t n, int32_t count, int32_t depth);
void sl_bench_tier_files_remove(const char *directory, int32_t count);
/* Likewise with SET and GET of values of n bytes, `depth` of them pipelined on one connection. Reading removes them at its end. */
double sl_bench_tier_redis(const char *address, bool reads, size_t n, int32_t count, int32_t depth);

#endif
