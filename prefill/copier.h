/*
 * Copier: a thread with its own backend instance, which copies rows from the device directly into the memory of decode
 * workers while the engine computes. The instance has its own stream, which the copy engine of the device serves;
 * neither this stream nor that of the engine waits for the other.
 *
 * Its requests are mails: register a mapped arena with the device, copy a batch, release an arena. When a request is
 * done, its mail is posted back to the worker's transport thread (PM_COPIED). The poster of a batch has the right to
 * write (worker/direct.h) until the batch has come back.
 *
 * Lifetime: created before the worker starts, stopped before the worker stops, destroyed after that.
 */
#ifndef SL_PREFILL_COPIER_H
#define SL_PREFILL_COPIER_H

#include "kernels/backend.h"
#include "worker/pieces.h"
#include "worker/direct.h"
#include "worker/watch.h"
#include "worker/worker.h"

enum { SL_COPIES = 64 };

typedef enum { SL_COPIER_REGISTER, SL_COPIER_COPY, SL_COPIER_LET_GO, SL_COPIER_STOP } sl_copier_what;

/* n pieces of `bytes` each. On both sides, each piece begins one pitch after the piece before it. */
typedef struct sl_copy {
    uint8_t *dst;
    const uint8_t *src;
    size_t bytes, n, dst_pitch, src_pitch;
    bool device;   /* src is device memory */
    int32_t plane; /* and of this plane's pool */
} sl_copy;

typedef struct sl_copier_mail {
    sl_wmail mail;
    sl_copier_what what;
    sl_worker *worker;           /* whose transport thread gets the mail back */
    struct sl_prefill_job *job;  /* for the poster; COPY only */
    struct sl_decode_peer *peer; /* for the poster */
    sl_direct *direct;           /* REGISTER, LET_GO: detached by the copier */
    sl_status status;            /* answer */
    char why[200];
    uint64_t total; /* bytes of all copies */
    int n;
    sl_copy copy[SL_COPIES];
} sl_copier_mail;

typedef struct sl_copier sl_copier;

/*
 * kind: the kind of the mails that come back. The thread opens the backend when the first mail arrives; if that fails,
 * every mail comes back with the reason.
 */
sl_status sl_copier_create(const char *backend, const sl_backend_opts *opts, int kind, sl_copier **out,
                           sl_err *err);
void sl_copier_post(sl_copier *c, sl_copier_mail *m);
/* Since its last turn, while a batch waits (worker/watch.h). Any thread; c may be NULL. */
uint32_t sl_copier_age_ms(const sl_copier *c, uint64_t now_ns);
/* Finishes what was posted before, then ends the thread. */
void sl_copier_stop(sl_copier *c);
/* To be called after stop. Mails that were posted after it are passed to `drop`. c may be NULL. */
void sl_copier_destroy(sl_copier *c, void (*drop)(void *arg, sl_copier_mail *m), void *arg);

/*
 * Adds a span; all of a batch are of one layer. Spans at a constant pitch on both sides, with the local side in the same memory
 * (sl_pieces_same_memory()), become one strided copy.
 * there: the address at which the remote side of the span is mapped. False: the batch is full.
 */
bool sl_copier_add(sl_copier_mail *m, const sl_span *s, uint8_t *there);
/* Enqueues the copies of a batch on the stream of be. The copier's thread calls it; `sluice bench ship` does, too. */
sl_status sl_copier_enqueue(sl_backend *be, const sl_copier_mail *m, sl_err *err);

#endif
