/*
 * Checker: a thread of a worker that reads pages to compute their checksums, so that neither the steps of the engine
 * nor messages wait for it. It owns the seals (kvstore/seal.h): the checksums that are kept for full pages.
 *
 *     KEEP     pages that have arrived: compares them with the checksums of COMMIT, and keeps these
 *     SEAL     pages that this worker has computed: keeps the checksums of their contents
 *     VERIFY   pages that were sealed before: reports those that differ from their seals
 *     READ     answers the checksums that are kept
 *
 * Jobs are mail. They are begun in the order in which they were posted. A page is published and its SEAL or KEEP is
 * posted at the same time, so a request that finds the page in the prefix tree posts its VERIFY later, and the seal is
 * there. A long VERIFY takes turns with the other jobs, so the check of a long prefix does not delay arriving prompts.
 *
 * Rules for the poster: the pages of a job stay pinned and unwritten until the job is back; the job is then the
 * poster's, which frees it. With `verify` off no seals are kept: KEEP only compares, and READ computes.
 *
 * Threads: opened, started, stopped and closed by one thread; sl_checker_post() is for the engine thread.
 */
#ifndef SL_WORKER_CHECKER_H
#define SL_WORKER_CHECKER_H

#include <pthread.h>

#include "base/config.h"
#include "kvstore/seal.h"
#include "worker/worker.h"

typedef enum { SL_CHECK_KEEP, SL_CHECK_SEAL, SL_CHECK_VERIFY, SL_CHECK_READ } sl_check_what;

typedef struct sl_check {
    sl_wmail mail;
    sl_check_what what;
    void *owner; /* the poster's */
    int tag;     /* the poster's */
    sl_wmsg *m;  /* the message that asked; freed with the job. NULL: none */

    int32_t n_pages;
    /* KEEP */
    const uint32_t *expect; /* [n_pages][layers], inside m */
    int32_t last_tokens;    /* tokens in the last page; it is kept only when it is full */
    bool compare;
    size_t bad; /* out: checksums that differ; then nothing is kept */
    /* VERIFY */
    bool sampled;
    int32_t done, n_damaged; /* out: damaged[0..n_damaged) page numbers */
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
    sl_seals *seals; /* the checker thread's; NULL: verify is off. Whether it is NULL is constant */
    sl_cfg_verify verify;
    pthread_t thread;
    bool runs;
    sl_wmail stop;
} sl_checker;

/* Zeroed c. Jobs go back to `back` as mail of this kind. SL_ERR_NO_MEMORY. sl_checker_close() follows in any case. */
sl_status sl_checker_open(sl_checker *c, const sl_arena *arena, sl_cfg_verify verify, sl_mailbox *back,
                          int back_kind);
sl_status sl_checker_start(sl_checker *c, sl_err *err);
/* Every job that was posted goes back, a VERIFY perhaps before it has read all its pages. */
void sl_checker_stop(sl_checker *c);
void sl_checker_close(sl_checker *c);

static inline bool sl_checker_seals(const sl_checker *c)
{
    return c->seals != NULL;
}

/* A job about these pages, which are copied. NULL: out of memory. sl_check_free() releases it with its message. */
sl_check *sl_check_new(sl_check_what what, const int32_t *pages, int32_t n_pages, void *owner);
void sl_check_free(sl_check *k);
void sl_checker_post(sl_checker *c, sl_check *k);

/* The thread's work on one job; true when it is finished, else it comes next after the others. For tests without the
 * thread. */
bool sl_checker_work(sl_checker *c, sl_check *k);

#endif
