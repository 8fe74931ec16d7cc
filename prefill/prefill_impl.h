/*
 * The prefill worker's data. Every field has one owner: the engine thread, the transport thread, or it is set by
 * one before a mail and only read after it.
 *
 * A job is one PREFILL. Mails about it: NEW (transport to engine), START (engine to transport: its pages are
 * there), PULLED (to engine), LAYER (to transport, inside steps), FINISH or FAIL (to transport), STOP (to engine:
 * do not compute any further), END (to engine: nothing will touch its pages any more), RELEASE (to transport: the
 * last one; the job may be freed). Each is posted at most once per job, so the nodes lie in the job.
 */
#ifndef SL_PREFILL_PREFILL_IMPL_H
#define SL_PREFILL_PREFILL_IMPL_H

#include "base/log.h"
#include "prefill/copier.h"
#include "prefill/path.h"
#include "prefill/peer.h"
#include "prefill/prefill.h"
#include "prefill/shipment.h"

enum {
    /* transport -> engine */
    PM_NEW = 1,
    PM_PULLED,
    PM_STOP,
    PM_END,
    PM_STEP_BACK,
    PM_FLUSH_CACHE, /* sl_wmsg */
    /* checker -> engine */
    PM_CHECKED, /* sl_check */
    /* copier -> transport */
    PM_COPIED, /* sl_copier_mail */
    /* engine -> transport */
    PM_START,
    PM_LAYER,
    PM_STEP_DONE,
    PM_FINISH,
    PM_FAIL,
    PM_RELEASE,
};

enum { PAST_JOBS = 1024 };

typedef enum { JOB_QUEUED, JOB_PULLING, JOB_READY, JOB_RUNNING, JOB_FINISHED, JOB_STOPPED } job_state;

typedef struct sl_job_mail {
    sl_wmail mail;
    sl_prefill_job *job;
} sl_job_mail;

struct sl_prefill_job {
    /* constant */
    sl_wmsg *m;
    const sl_msg_prefill *msg;
    uint64_t rid, arrived_ns, deadline_ns;
    uint32_t attempt;
    uint32_t router; /* the session in which PREFILL came; rid is that router's */
    sl_job_mail m_new, m_pulled, m_stop, m_end, m_start, m_finish, m_fail, m_release;

    /* set by the engine; read by the transport thread after START */
    int32_t *own_pages;
    int32_t *dev_rows, *dev_index; /* device pages, before the first LAYER; NULL: not known */
    int32_t own_matched, pull_end; /* pages [own_matched, pull_end) are to be pulled (none when equal) */
    /* before FINISH */
    sl_msg_token first;
    uint32_t cached_tokens;
    uint64_t queue_us, compute_us;
    /* before FAIL */
    sl_status fail_status;
    bool fail_retryable;
    char fail_reason[300];

    /* engine thread alone */
    struct {
        sl_prefill_job *next, *prev;
        job_state state;
        sl_sampling sampling;
        bool has_sampling;
        sl_lease *lease;
        void *seq;
        int32_t pos, start;
        int64_t passed; /* order.h */
        uint64_t started_ns;
        int checks;      /* at the checker; they read the own pages */
        bool unverified; /* the pages of the own cache are still to be verified: FINISH waits */
        bool ended;      /* END came while checks were out */
        int32_t sealed;  /* own pages, from the first on, whose checksums are kept */
    } engine;

    bool pull_ok;     /* set by the transport thread; read by the engine after PULLED */
    sl_shipment ship; /* transport thread alone */
};

typedef struct sl_prefill_step sl_prefill_step;

typedef struct sl_layer_mail {
    sl_wmail mail;
    sl_prefill_step *step;
    int32_t layer;
} sl_layer_mail;

/* What one engine step computes; travels to the transport thread layer by layer and comes back for reuse. */
struct sl_prefill_step {
    sl_prefill_step *next;
    int32_t n;
    struct {
        sl_prefill_job *job;
        int32_t first, end;
    } item[1024];
    sl_wmail done;
    sl_layer_mail layer[];
};

struct sl_prefill {
    sl_prefill_opts o;
    const sl_geometry *geo;
    sl_worker *worker;
    sl_worker_role role; /* what it shares with decode; groups its fields by thread itself */

    /* engine thread */
    sl_prefill_job *jobs, *jobs_tail; /* FIFO */
    int32_t n_jobs, n_active;
    sl_prefill_step *free_steps, *step;
    sl_step_item *items;
    uint64_t reused, pulled; /* tokens */
    uint64_t damaged;        /* pages */

    /* transport thread */
    sl_prefill_job *ships;
    sl_ship_list runnable;
    sl_decode_peer *peers, *closed_peers; /* closed_peers: the copier still works for them */
    sl_device_layer *dev_layers;          /* [n_layers]; NULL: rows do not leave from the device. Constant */
    sl_worker_range *dev_memory;          /* of dev_layers, where rows are put from there. Constant */
    int n_dev_memory;
    sl_copier *copier;            /* NULL: no rows are copied from the device. Constant */
    sl_copier_mail *free_batches; /* for reuse */
    int64_t direct_left;          /* bytes that this turn of the loop may still copy */
    struct {
        uint64_t rid;
        uint32_t attempt, router;
    } past[PAST_JOBS]; /* attempts that are over: a second PREFILL for one would write into recycled pages */
    uint32_t next_past;

    struct {
        sl_counter *tokens, *reused_local, *reused_remote, *transfer_ok, *transfer_aborted, *transfer_failed,
            *transfer_bytes, *put_ok, *put_failed, *put_bytes, *get_ok, *get_failed, *get_bytes, *stale,
            *checksum;
        sl_gauge *running, *waiting;
        sl_histogram *chunk, *exposed;
    } c;
};

/* schedule.c, engine thread */
void sl_schedule_mail(sl_prefill *p, sl_wmail *m);
void sl_schedule_admit(sl_prefill *p);
/* The checker's answer. */
void sl_schedule_checked(sl_prefill *p, sl_check *k);
/* One step; false when there was nothing to compute. A negative status is fatal. */
bool sl_schedule_step(sl_prefill *p, sl_status *st, sl_err *err);

/* report.c, engine thread */
void sl_prefill_metrics_find(sl_prefill *p, sl_metrics *m);
void sl_prefill_load_publish(sl_prefill *p);

#endif
