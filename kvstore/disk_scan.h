/*
 * Reads a store of the disk tier that no worker uses: what it is, which pages it has, and whether they are undamaged. For
 * tools; it never writes, and opens no store that a worker has open.
 *
 * One thread. A scan owns two descriptors and a buffer of one page.
 */
#ifndef SL_KVSTORE_DISK_SCAN_H
#define SL_KVSTORE_DISK_SCAN_H

#include "kvstore/disk_format.h"

typedef struct sl_disk_scan {
    int dir_fd, fd; /* dir_fd holds a lock that keeps workers out meanwhile */
    sl_disk_store store;
    uint64_t n_segments, file_bytes;
    uint8_t *slot; /* of sl_disk_slot_bytes() */
    char path[512];
} sl_disk_scan;

typedef struct sl_disk_found {
    uint64_t segment, slot;
    sl_disk_record record;
    bool damaged; /* only with pages: the page is short or its checksum is another one */
} sl_disk_found;

typedef struct sl_disk_scanned {
    uint64_t segments_used; /* with a good header */
    uint64_t records, damaged;
    uint64_t stale;    /* records of an earlier generation of their segment, which do not count */
    uint64_t sequence; /* of the newest record: pages ever written */
    uint64_t oldest;   /* sequence of the oldest record that counts */
} sl_disk_scanned;

/* SL_ERR_NOT_FOUND, SL_ERR_IO; SL_ERR_REFUSED: a worker uses it, or this is no store of this format. Names the path. */
sl_status sl_disk_scan_open(const char *directory, sl_disk_scan *out, sl_err *err);
void sl_disk_scan_close(sl_disk_scan *s);

/*
 * Visits every record that counts, in the order of the file. pages: reads the pages too and compares their checksums. found
 * and segment (after each segment, for progress) may be NULL. SL_ERR_IO: a block could not be read; err names its offset.
 */
typedef struct sl_disk_scan_calls {
    void *ctx;
    void (*found)(void *ctx, const sl_disk_found *f);
    void (*segment)(void *ctx, uint64_t done, uint64_t of);
} sl_disk_scan_calls;

sl_status sl_disk_scan_run(sl_disk_scan *s, bool pages, const sl_disk_scan_calls *calls, sl_disk_scanned *out,
                           sl_err *err);

#endif
