/* `sluice cache … --dir`: a disk store that no worker uses. See cache.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cache.h"
#include "kvstore/disk_scan.h"

typedef struct listing {
    bool json, all; /* all: every record is printed, else the damaged ones */
    bool progress;  /* of the pages that were read, to stderr */
    uint64_t printed;
} listing;

static void print_key(sl_key k)
{
    printf("%016" PRIx64 "%016" PRIx64, k.hi, k.lo);
}

static void print_found(void *ctx, const sl_disk_found *f)
{
    listing *l = ctx;
    if (!l->all && !f->damaged)
        return;
    if (l->json) {
        printf("%s\n  {\"key\": \"", l->printed ? "," : "");
        print_key(f->record.key);
        printf("\", \"segment\": %" PRIu64 ", \"slot\": %" PRIu64 ", \"sequence\": %" PRIu64 "%s}",
               f->segment, f->slot, f->record.sequence, f->damaged ? ", \"damaged\": true" : "");
    } else {
        print_key(f->record.key);
        printf("  segment %" PRIu64 "  slot %" PRIu64 "  sequence %" PRIu64 "%s\n", f->segment, f->slot,
               f->record.sequence, f->damaged ? "  damaged" : "");
    }
    l->printed++;
}

static void print_progress(void *ctx, uint64_t done, uint64_t of)
{
    const listing *l = ctx;
    if (l->progress && (isatty(STDERR_FILENO) || done == of))
        fprintf(stderr, "%s%" PRIu64 " of %" PRIu64 " segments%s", isatty(STDERR_FILENO) ? "\r" : "", done,
                of, done == of ? "\n" : "");
}

static void print_summary(const sl_disk_scan *s, const sl_disk_scanned *r, bool json, bool pages)
{
    uint64_t room = s->n_segments * s->store.slots_per_segment;
    char fingerprint[33], damaged[32];
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64 "%016" PRIx64, s->store.fingerprint.hi,
             s->store.fingerprint.lo);
    snprintf(damaged, sizeof damaged, "%" PRIu64, r->damaged);
    if (json) {
        printf("\"version\": %d, \"file_bytes\": %" PRIu64 ", \"page_bytes\": %" PRIu64
               ", \"fingerprint\": \"%s\", \"segments\": %" PRIu64 ", \"segments_used\": %" PRIu64
               ", \"pages\": %" PRIu64 ", \"room\": %" PRIu64 ", \"stale\": %" PRIu64
               ", \"oldest_sequence\": %" PRIu64 ", \"newest_sequence\": %" PRIu64 ", \"damaged\": %s",
               SL_DISK_VERSION, s->file_bytes, s->store.page_bytes, fingerprint, s->n_segments,
               r->segments_used, r->records, room, r->stale, r->oldest, r->sequence,
               pages ? damaged : "null");
        return;
    }
    printf("store        %s, format %d\n", s->path, SL_DISK_VERSION);
    printf("model        fingerprint %s\n", fingerprint);
    printf("file         %.1f MiB, %" PRIu64 " segments of %u pages, %" PRIu64 " of them in use\n",
           (double)s->file_bytes / 1048576, s->n_segments, s->store.slots_per_segment, r->segments_used);
    printf("pages        %" PRIu64 " of %" PRIu64 ", %.1f KiB each; %.1f MiB\n", r->records, room,
           (double)s->store.page_bytes / 1024, (double)(r->records * s->store.page_bytes) / 1048576);
    printf(
        "written      %" PRIu64
        " records since the store was created, segment headers included; the oldest page has number %" PRIu64
        "\n",
        r->sequence, r->oldest);
    if (pages)
        printf("verified     %" PRIu64 " pages, %" PRIu64 " damaged\n", r->records, r->damaged);
}

/* Opens, scans, prints; the exit code. */
static int scan(const char *command, const char *dir, listing *l, bool pages)
{
    sl_err err = {0};
    sl_disk_scan s;
    sl_disk_scanned r;
    sl_status st = sl_disk_scan_open(dir, &s, &err);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    sl_disk_scan_calls calls = {.ctx = l, .found = print_found, .segment = print_progress};
    bool list = l->all || pages;
    if (l->json)
        printf(list ? "{\"records\": [" : "{");
    st = sl_disk_scan_run(&s, pages, &calls, &r, &err);
    if (l->json && list)
        printf("],\n ");
    print_summary(&s, &r, l->json, pages);
    if (l->json)
        printf("}\n");
    sl_disk_scan_close(&s);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    return r.damaged ? SL_EXIT_FAILED : SL_EXIT_OK;
}

int sl_cache_dir_stat(const char *command, const char *dir, bool json)
{
    listing l = {.json = json};
    return scan(command, dir, &l, false);
}

int sl_cache_dir_ls(const char *command, const char *dir, bool json)
{
    listing l = {.json = json, .all = true};
    return scan(command, dir, &l, false);
}

int sl_cache_dir_verify(const char *command, const char *dir, bool json)
{
    listing l = {.json = json, .progress = true};
    return scan(command, dir, &l, true);
}

int sl_cache_dir_drop(const char *command, const char *dir)
{
    sl_err err = {0};
    sl_disk_scan s;
    sl_status st = sl_disk_scan_open(dir, &s, &err); /* nothing is removed that is no store, or in use */
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    if (unlinkat(s.dir_fd, "pages.sluice", 0) != 0)
        st = sl_fail(&err, SL_ERR_IO, "%s: %s", s.path, strerror(errno));
    else
        printf("removed %s, %.1f MiB\n", s.path, (double)s.file_bytes / 1048576);
    sl_disk_scan_close(&s);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail(command, st, &err);
}
