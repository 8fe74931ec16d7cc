/*
 * Checker: a thread of a worker that reads pages to compute their checksums, so that neither the steps of the engine
 * nor messages wait for it. It owns the seals (kvstore/seal.h): the checksums that are kept for full pages.
 *
 *     KEEP     for pages that have arrived: compares them with the checksums of COMMIT and keeps these checksums; pages
 *              of another arena (sl_check.arena) are only compared
 *     SEAL     for pages that this worker has computed: computes the checksums of their contents and keeps them
 *     VERIFY   for pages that were sealed before: reports the pages that differ from their seals
 *     READ     returns the checksums that are kept
 *
 * Jobs are mail and begin in the order in which they were posted. SEAL or KEEP of a page is posted when the page is
 * published, so a request that finds the page in the prefix tree posts its VERIFY later, when the seal exists. A long
 * VERIFY takes turns with the other jobs, so the check of a long prefix does not delay arriving prompts.
 *
 * Rules for the poster: the pages of a job stay pinned, and are not written, until the job has come back. The poster
 * then owns the job again and frees it. With `verify` off no seals are kept: KEEP only compares, and READ computes.
 *
 * With checksums of rows (kvstore/row_sums.h), KEEP and SEAL make those of every full page of the store, before they read it
 * for the page's own checksums: of bytes that change between the two, one of them is right.
 *
 * Threads: opened, started, stopped and closed by one thread; sl_checker_post() is for the engine thread.
 */
#ifndef SL_WORKER_CHECKER_H
#define SL_WORKER_CHECKER_H

#include <pthread.h>

#include "base/config.h"
#include "kvstore/row_sums.h"
#include "kvstore/seal.h"
#include "worker/watch.h"
#include "worker/worker.h"

typedef enum { SL_CHECK_KEEP, SL_CHECK_SEAL, SL_CHECK_VERIFY, SL_CHECK_READ } sl_check_what;

typedef struct sl_check {
    sl_wmail mail;
    sl_check_what what;
    void *owner; /* the poster's */
    int tag;     /* the poster's */
    sl_wmsg *m;  /* the message that led to the job, or NULL; freed with the job */

    int32_t n_pages;
    /* SEAL */
    /* > 0: the pages are those of a snapshot (kvstore/snapshot.h) after this number of tokens. Its states are in them; the
     * checker writes its record, with this key, before it seals them. */
    int32_t snapshot_tokens;
    sl_key snapshot_key;
    /* KEEP */
    const sl_arena *arena;  /* of the pages; NULL: that of the store */
    const uint32_t *expect; /* [n_pages][layers], inside m */
    int32_t last_tokens;    /* tokens in the last page but `whole`; it is kept only when it is full */
    int32_t whole;          /* pages after that one, which are full */
    bool compare;
    size_t bad; /* out: number of checksums that differ; if any differs, none is kept */
    /* VERIFY */
    bool sampled;
    int32_t done;
    /* KEEP, VERIFY */
    int32_t n_damaged; /* out: damaged[0..n_damaged) page numbers, in the order of `pages` */
    int32_t *damaged;
    /* READ */
    uint32_t *crc; /* out: [n_pages][layers] */
    size_t n_crc;  /* out: 0 when one of the pages has no seal */

    int32_t pages[];
} sl_check;

typedef struct sl_checker {
    const sl_arena *arena;
    sl_mailbox *inbox, *back;
    int back_kind;
    sl_seals *seals;   /* of the checker thread; NULL as long as the checker is open if verify is off */
    sl_row_sums *rows; /* borrowed; NULL: rows have no checksums */
    sl_cfg_verify verify;
    pthread_t thread;
    bool runs;
    sl_wmail stop;
    sl_watch watch;
} sl_checker;

/*
 * c must be zeroed. Jobs come back to the mailbox `back` as mail of this kind. SL_ERR_NO_MEMORY. sl_checker_close()
 * must be called after a failure, too.
 */
sl_status sl_checker_open(sl_checker *c, const sl_arena *arena, sl_row_sums *rows, sl_cfg_verify verify,
                          sl_mailbox *back, int back_kind);
sl_status sl_checker_start(sl_checker *c, sl_err *err);
/* Ends the thread. Every posted job comes back; a VERIFY may come back before it has read all its pages. */
void sl_checker_stop(sl_checker *c);
void sl_checker_close(sl_checker *c);

static inline bool sl_checker_seals(const sl_checker *c)
{
    return c->seals != NULL;
}

/* Makes a job for these pages; copies their numbers. NULL: out of memory. sl_check_free() frees it with its message. */
sl_check *sl_check_new(sl_check_what what, const int32_t *pages, int32_t n_pages, void *owner);
void sl_check_free(sl_check *k);
void sl_checker_post(sl_checker *c, sl_check *k);

/*
 * The work that the thread does in one turn of a job. True when the job is finished; else it needs another turn, after
 * those of the other jobs. Public for tests without the thread.
 */
bool sl_checker_work(sl_checker *c, sl_check *k);

#endif
