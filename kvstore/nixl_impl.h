/*
 * The NIXL tier's object, shared by its parts: nixl_api.c (the library), nixl_files.c (names, eviction and leases
 * in a directory), nixl_transfer.c (queries and transfers of NIXL), nixl_io.c (the thread), tier_nixl.c (the
 * owner's side, open and close). No other file includes it.
 */
#ifndef SL_KVSTORE_NIXL_IMPL_H
#define SL_KVSTORE_NIXL_IMPL_H

#include "kvstore/nixl_api.h"
#include "kvstore/page_record.h"
#include "kvstore/tier_thread.h"

enum {
    SL_NIXL_DEPTH = 64,       /* transfers in flight, at most */
    SL_NIXL_BATCH = 64,       /* keys of one query */
    SL_NIXL_FORGOTTEN = 4096, /* objects that are not offered any more, though they cannot be deleted */
    SL_NIXL_ALIGN = 4096,     /* of staging buffers and of records in files, so that O_DIRECT is possible */
    SL_NIXL_PATH_BYTES = 1024,
    SL_NIXL_NAME_BYTES = 128,   /* of a file in its directory, also of a temporary one */
    SL_NIXL_RELEASES = 1 << 16, /* leases that wait for their end; others end by time */
};

enum { SL_NIXL_PARAMETERS = 16 };

typedef struct sl_nixl_options {
    sl_tier_common common;
    char backend[64];   /* NIXL's plug-in: POSIX, GDS, GDS_MT (files), OBJ (objects) */
    char library[1024]; /* libnixl_capi.so: a path, or a name for the system's search */
    struct {
        int n;
        char v[SL_NIXL_PARAMETERS][SL_OPTION_ITEM_BYTES]; /* of the plug-in, "KEY=VALUE" */
    } parameters;
    char path[512];
} sl_nixl_options;

/* A transfer. */
typedef struct sl_nixl_op {
    bool used, write, given_up; /* given_up: its room and its temporary file are gone */
    sl_tier_req *req;
    int32_t i;
    sl_key key; /* of req */
    int fd;     /* files; else -1 */
    uint64_t start_ns;
    uint8_t *buffer;
    char temporary[SL_NIXL_NAME_BYTES]; /* files: the name until the record is complete */
    nixl_regions *regions;
    bool registered;
    nixl_segments *local, *remote;
    nixl_transfer *transfer;
} sl_nixl_op;

/* A key of an exists or a remove. */
typedef struct sl_nixl_question {
    sl_tier_req *req;
    int32_t i;
    sl_key key;
    bool remove, there;
    uint32_t lease_ms;
} sl_nixl_question;

/* The pages of all users of a directory, bounded by the file system's own times: a page's time of change is when it was last
 * used, or in the future when its lease ends. */
typedef struct sl_nixl_files {
    char directory[512], stem[SL_PAGE_NAME_BYTES]; /* the stem is a directory in it */
    uint64_t capacity, used; /* used: as of the last list, and what was written since then */
    uint64_t pending;        /* of writes that have room and are not committed */
    size_t record_bytes;     /* of a file */
    uint64_t number;         /* of temporary files */
    bool direct;             /* O_DIRECT is possible */
} sl_nixl_files;

typedef struct sl_nixl_tier {
    sl_tier base;
    sl_tier_thread th;
    sl_tier_opts o;
    const sl_nixl_api *api;
    nixl_agent *agent;
    nixl_backend *backend;
    nixl_options *options; /* names the back end */
    nixl_regions *staging_regions;
    char agent_name[64], backend_name[32];
    char prefix[SL_PAGE_NAME_BYTES]; /* objects: of their names */
    bool objects;
    sl_nixl_files files;
    uint8_t *staging;
    sl_nixl_op ops[SL_NIXL_DEPTH];
    int32_t depth, in_flight, writes_in_flight;
    sl_nixl_question questions[SL_NIXL_BATCH];
    int32_t n_questions, n_answered;
    sl_key forgotten[SL_NIXL_FORGOTTEN];
    struct sl_nixl_tier *next_left; /* of those that were closed with transfers in flight */

    /* With th.lock. */
    sl_tier_stats st;
    int32_t failures; /* transfers since the last success */
    char why[160];
    uint64_t oldest_ns; /* when the oldest transfer in flight began; 0: none */
    sl_key *released;   /* keys whose leases have to end */
    int32_t n_released, released_cap;
    bool away; /* the thread is inside of a call that can hang, and touches nothing of the owner */
    bool left; /* the owner has ended what was in flight: the thread ends as soon as it is not away */
} sl_nixl_tier;

/* nixl_files.c; any thread. */
sl_status sl_nixl_files_open(sl_nixl_files *f, const sl_tier_opts *o, const char *prefix, sl_err *err);
/* Where its file is, for people and tests: this program opens no file by such a path. */
void sl_nixl_file_path(const sl_nixl_files *f, sl_key key, char out[SL_NIXL_PATH_BYTES]);
/* Whether the page is there with its whole length; marks it as used now, or, with a lease, until its end. */
bool sl_nixl_file_touch(const sl_nixl_files *f, sl_key key, uint32_t lease_ms);
/* Ends its lease. */
void sl_nixl_file_release(const sl_nixl_files *f, sl_key key);
/* SL_ERR_NOT_FOUND, SL_ERR_CORRUPT: a link, no file, or of another length; SL_ERR_IO with errno. */
sl_status sl_nixl_file_read(sl_nixl_files *f, sl_key key, int *fd);
/* A file with a temporary name. SL_ERR_IO with errno. */
sl_status sl_nixl_file_create(sl_nixl_files *f, sl_key key, char temporary[SL_NIXL_NAME_BYTES], int *fd);
/* Gives it its name, if it is complete; else it is removed. Ends what make_room began. */
sl_status sl_nixl_file_commit(sl_nixl_files *f, sl_key key, const char *temporary, int fd);
bool sl_nixl_file_remove(sl_nixl_files *f, sl_key key);
/* Changes the byte at this offset, for tests of what finds it. */
bool sl_nixl_file_damage(const sl_nixl_files *f, sl_key key, uint64_t at);
/* Removes files that were not used for the longest time until one more record fits, which then has room until it is committed or
 * given up. False: everything is leased. */
bool sl_nixl_files_make_room(sl_nixl_files *f, uint64_t *evicted);
/* A write that had room was not committed. temporary: its file, "" when there is none. */
void sl_nixl_file_give_up(sl_nixl_files *f, const char *temporary);

/* nixl_transfer.c; for the thread, or before it has begun. Bytes of a record, and of a transfer: records in files
 * are filled up to whole blocks. */
size_t sl_nixl_record_bytes(const sl_nixl_tier *t);
size_t sl_nixl_transfer_bytes(const sl_nixl_tier *t);
/* Asks NIXL which of these objects exist, and sets `there`. False: it failed; they may be there, but cannot be read now. */
bool sl_nixl_query(const sl_nixl_tier *t, sl_nixl_question *q, int32_t n);
/* Registers the file or object of op->key and begins the transfer of op->buffer. False: NIXL refused; end it all the same. */
bool sl_nixl_transfer_begin(const sl_nixl_tier *t, sl_nixl_op *op);
/* Gives back what the transfer has, and closes its file. */
void sl_nixl_transfer_end(const sl_nixl_tier *t, sl_nixl_op *op);
/*
 * Whether the store of objects can be used: stores and reads one object, whose key is zero and which is no page. NIXL creates a back
 * end without a question to the store, so without this wrong credentials would be found by the first request. SL_ERR_REFUSED.
 */
sl_status sl_nixl_probe(sl_nixl_tier *t, sl_err *err);

/* nixl_io.c */
void *sl_nixl_main(void *tier);

#endif
