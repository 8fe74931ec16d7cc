/*
 * The disk tier's object, shared by its parts: disk_file.c (directory and file), disk_recover.c (scan at open),
 * disk_io.c (the thread), tier_disk.c (the owner's side, open and close). Tests use the hooks; no other file includes this.
 */
#ifndef SL_KVSTORE_DISK_IMPL_H
#define SL_KVSTORE_DISK_IMPL_H

#include <pthread.h>

#include "base/list.h"
#include "kvstore/disk_index.h"
#include "kvstore/tier.h"
#include "kvstore/uring.h"

enum { SL_DISK_MAX_DEPTH = 64 };

typedef enum {
    SL_DISK_READ,    /* a record, for a get */
    SL_DISK_WRITE,   /* a record, for a set */
    SL_DISK_ERASE,   /* zeros over the header of a record, for a remove */
    SL_DISK_SEGMENT, /* a segment header, before the segment is filled again */
} sl_disk_op_kind;

/* For tests: NULL members are not called. All run on the thread that does the step. */
typedef struct sl_disk_hooks {
    void *ctx;
    /* Before a write is given to the kernel (its blocks are ready), and after it is complete but before its effect. */
    void (*before)(void *ctx, sl_disk_op_kind kind, int fd, uint64_t offset, const uint8_t *bytes, size_t n);
    void (*after)(void *ctx, sl_disk_op_kind kind);
    int32_t (*result)(void *ctx, sl_disk_op_kind kind,
                      int32_t res);                 /* instead of the kernel's: bytes or -errno */
    int (*open_errno)(void *ctx, const char *step); /* "open", "fallocate": not 0 instead of success */
} sl_disk_hooks;

/* Read at open. NULL, except in tests. */
extern const sl_disk_hooks *sl_disk_test_hooks;

/* The open file. */
typedef struct sl_disk_file {
    int dir_fd, fd; /* dir_fd holds the lock of the directory */
    sl_disk_store store;
    uint64_t n_segments;
    char path[512];
    bool set_aside; /* the file that was there could not be used, and was renamed */
} sl_disk_file;

/* Opens or creates the store in o->directory, at the size of o->capacity_bytes. A file that is no store which
 * this program can read is renamed and replaced. Changes nothing when it refuses. */
sl_status sl_disk_file_open(const sl_tier_opts *o, sl_disk_file *out, sl_err *err);
void sl_disk_file_close(sl_disk_file *f);

typedef struct sl_disk_recovered {
    uint64_t sequence; /* larger than that of every record */
    uint64_t damaged;  /* records of the last writes that were not complete */
} sl_disk_recovered;

/* Reads every header and fills the index, which is empty. The pages of the last `window` records are read and checked,
 * because their writes can have been in flight when the process was killed. */
sl_status sl_disk_recover(const sl_disk_file *f, uint64_t window, sl_disk_index *ix, sl_disk_recovered *out,
                          sl_err *err);

/* A failed direction stops after this many failures without a success; it is tried again after SL_DISK_PROBE_NS. */
enum { SL_DISK_WRITE_FAILURES = 3, SL_DISK_READ_FAILURES = 8 };
#define SL_DISK_PROBE_NS 5000000000ull

/* Requests in their order, linked by `next`. */
typedef SL_LIST(sl_tier_req) sl_disk_queue;

/* Pages that have left the tier by themselves, until poll reports them. */
typedef struct sl_disk_gone {
    struct {
        sl_key key;
        uint64_t after; /* requests that were complete before it left */
    } * v;
    size_t n, cap;
} sl_disk_gone;

/* An operation in flight. */
typedef struct sl_disk_op {
    sl_disk_op_kind kind;
    bool used;
    sl_tier_req *req;      /* NULL for a segment */
    int32_t i;             /* key of req */
    int64_t slot;          /* segment number for a segment */
    sl_disk_record record; /* of a write */
    uint64_t start_ns;
    uint8_t *buffer;
} sl_disk_op;

/* One direction of the device. */
typedef struct sl_disk_direction {
    int32_t failures; /* since the last success */
    uint64_t probe_ns;
    char why[128];
} sl_disk_direction;

typedef struct sl_disk_tier {
    sl_tier base;
    struct sl_disk_tier *next_left; /* tiers whose device did not end in time; they are kept */
    sl_disk_file file;
    sl_disk_index index;
    sl_disk_hooks hooks;
    sl_uring ring;
    uint8_t *staging;
    sl_disk_op ops[SL_DISK_MAX_DEPTH];
    int32_t depth;
    uint64_t window, slow_ns, slot_bytes;
    bool second_use, fixed; /* fixed: the staging buffers are registered */
    bool wake_armed;        /* the thread's */

    pthread_t thread;
    int wake, event; /* eventfds: to the thread, to the owner */
    pthread_mutex_t lock;
    sl_disk_queue gets, sets, done; /* sets: removes too */
    uint64_t completed, reported;   /* requests that were complete, and those whose done has run */
    sl_disk_gone gone;
    void (*evicted)(void *ctx, const sl_key *keys, int32_t n);
    void *evicted_ctx;
    void (*aged)(void *ctx, double unused_s, double age_s);
    void *aged_ctx;
    bool stopping;
    bool waiting; /* the thread is in the kernel, and touches no request before it has the lock again */
    /* the owner has ended every request, because the kernel does not; the thread touches nothing more */
    bool abandoned;
    int32_t in_flight, writes_in_flight;
    bool opening; /* a segment header is in flight */
    uint64_t sequence, batch;
    sl_disk_direction reads, writes;
    sl_tier_stats st;
} sl_disk_tier;

/* The request is complete: the owner's next poll calls its done. With the lock. */
void sl_disk_complete(sl_disk_tier *t, sl_tier_req *r);
/* A stored page is given up. With the lock. */
void sl_disk_gone_add(sl_disk_tier *t, sl_key key);
/* A key ends without an operation; the remaining ones are cancelled. With the lock. */
void sl_disk_skip(sl_tier_req *r, sl_status st);
void sl_disk_cancel_rest(sl_tier_req *r);
/* The device does not end what has begun: every request ends, with SL_ERR_IO or SL_ERR_CANCELLED, and the thread, which is waiting,
 * does nothing more. With the lock. Returns the number of operations in flight. */
int32_t sl_disk_abandon(sl_disk_tier *t);
/* The thread: runs until t->stopping and nothing is left. */
void *sl_disk_io_main(void *tier);

/* Whether a record that was read from this slot belongs there. */
static inline bool sl_disk_record_fits(const sl_disk_record *r, const sl_disk_store *s, uint64_t slot,
                                       uint64_t generation)
{
    return r->store_id == s->id && r->slot == slot && r->generation == generation &&
           r->length == s->page_bytes && sl_key_eq(r->fingerprint, s->fingerprint) &&
           sl_key_eq(r->format, s->format);
}

#endif
