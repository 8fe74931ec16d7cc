/*
 * The NIXL tier's object, shared by its parts: nixl_api.c (the library), nixl_files.c (names, eviction and leases in a
 * directory), nixl_io.c (the thread), tier_nixl.c (the owner's side, open and close). No other file includes it.
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
};

/* A transfer. */
typedef struct sl_nixl_op {
    bool used, write, given_up; /* given_up: its room and its temporary file are gone */
    sl_tier_req *req;
    int32_t i;
    int fd; /* files; else -1 */
    uint64_t start_ns;
    uint8_t *buffer;
    char temporary[SL_NIXL_PATH_BYTES]; /* files: the name until the record is complete */
    nixl_regions *regions;
    bool registered;
    nixl_segments *local, *remote;
    nixl_transfer *transfer;
} sl_nixl_op;

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
    sl_key forgotten[SL_NIXL_FORGOTTEN];

    /* With th.lock. */
    sl_tier_stats st;
    int32_t failures; /* transfers since the last success */
    char why[160];
    uint64_t oldest_ns; /* when the oldest transfer in flight began; 0: none */
} sl_nixl_tier;

/* nixl_files.c; any thread. */
sl_status sl_nixl_files_open(sl_nixl_files *f, const sl_tier_opts *o, const char *prefix, sl_err *err);
void sl_nixl_file_path(const sl_nixl_files *f, sl_key key, char out[SL_NIXL_PATH_BYTES]);
/* Whether the page is there with its whole length; marks it as used now, or, with a lease, until its end. */
bool sl_nixl_file_touch(const sl_nixl_files *f, sl_key key, uint32_t lease_ms);
/* Ends its lease. */
void sl_nixl_file_release(const sl_nixl_files *f, sl_key key);
/* SL_ERR_NOT_FOUND, SL_ERR_CORRUPT: of another length; SL_ERR_IO with errno. */
sl_status sl_nixl_file_read(sl_nixl_files *f, sl_key key, int *fd);
/* A file with a temporary name. SL_ERR_IO with errno. */
sl_status sl_nixl_file_create(sl_nixl_files *f, sl_key key, char temporary[SL_NIXL_PATH_BYTES], int *fd);
/* Gives it its name, if it is complete; else it is removed. Ends what make_room began. */
sl_status sl_nixl_file_commit(sl_nixl_files *f, sl_key key, const char *temporary, int fd);
bool sl_nixl_file_remove(sl_nixl_files *f, sl_key key);
/* Removes files that were not used for the longest time until one more record fits, which then has room until it is committed or
 * given up. False: everything is leased. */
bool sl_nixl_files_make_room(sl_nixl_files *f, uint64_t *evicted);
/* A write that had room was not committed. temporary: its file, "" when there is none. */
void sl_nixl_file_give_up(sl_nixl_files *f, const char *temporary);

/* nixl_io.c */
void *sl_nixl_main(void *tier);

#endif
