/*
 * The prefill worker's data. Every field has one owner: the engine thread ("e"), the transport thread ("t"),
 * or it is set by one before a mail and only read after it.
 *
 * A job is one PREFILL. Mails about it: NEW (t->e), START (e->t: pages are there), PULLED (t->e), LAYER
 * (e->t, inside steps), FINISH or FAIL (e->t), STOP (t->e: do not compute any further), END (t->e: nothing
 * will touch its pages any more), RELEASE (e->t: the last one; the job may be freed). Each is posted at most
 * once per job, so the nodes live in the job.
 */
#ifndef SL_PREFILL_PREFILL_IMPL_H
#define SL_PREFILL_PREFILL_IMPL_H

#include "base/log.h"
#include "prefill/copier.h"
#include "prefill/pieces.h"
#include "prefill/prefill.h"
#include "worker/direct.h"

enum {
    /* transport -> engine */
    PM_NEW = 1,
    PM_PULLED,
    PM_STOP,
    PM_END,
    PM_STEP_BACK,
    PM_FLUSH_CACHE, /* sl_wmsg */
    PM_DRAIN,       /* sl_wmsg */
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

/* WAITING: no peer yet. DRAINING: it ends early, posted operations are outstanding. OVER: END was posted. */
typedef enum { SHIP_WAITING, SHIP_PULLING, SHIP_OPEN, SHIP_DRAINING, SHIP_OVER } ship_state;

typedef struct sl_pjob sl_pjob;
typedef struct sl_dpeer sl_dpeer;

typedef struct sl_jmail {
    sl_wmail mail;
    sl_pjob *job;
} sl_jmail;

/* Tokens [first, end) of a layer are in the arena; layer -1: all layers. */
typedef struct sl_piece {
    int32_t layer, first, end;
} sl_piece;

struct sl_pjob {
    /* constant */
    sl_wmsg *m;
    const sl_msg_prefill *msg;
    uint64_t rid, arrived_ns, deadline_ns;
    uint32_t attempt;
    sl_jmail m_new, m_pulled, m_stop, m_end, m_start, m_finish, m_fail, m_release;

    /* engine; read by transport after START */
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
    /* engine alone */
    struct {
        sl_pjob *next, *prev;
        job_state state;
        sl_sampling sampling;
        bool has_sampling, counted;
        sl_lease *lease;
        void *seq;
        int32_t pos, start;
        uint64_t started_ns;
    } e;

    /* transport; read by the engine after PULLED */
    bool pull_ok;
    /* transport alone */
    struct {
        sl_prefill *owner;
        sl_pjob *next, *prev;
        ship_state state;
        sl_dpeer *peer;
        sl_piece *queue;
        size_t q_head, q_len, q_cap;
        sl_pieces it;
        sl_page_map map;
        bool it_active, it_device, started, finishing, flush_posted, flush_done,
            dirty; /* dirty: posted since the last flush */
        int32_t it_layer, it_end_layer, it_first,
            it_end; /* layers [it_layer, it_end_layer) of the piece are left */
        uint32_t in_flight;
        uint32_t *crc;
        uint64_t bytes, finish_ns;
        bool aborted, asked, answered_ask, retryable;
        sl_status status;
        char reason[300];
        sl_span held; /* refused for lack of room, goes first */
        uint64_t drain_deadline_ns;
    } t;
};

struct sl_dpeer {
    sl_dpeer *next;
    sl_wep *ep;
    char address[128];
    uint32_t worker_id;
    uint64_t epoch, hello_deadline_ns, progress_ns;
    bool up, closing;
    sl_tp_rkey *rkey;
    uint64_t base;
    int64_t n_pages;
    sl_geometry geo;
    uint32_t in_flight;
    sl_direct *direct; /* its arena, mapped here; NULL: by the transport */
    bool registered;   /* with the device: the copier may write there */
    bool gpu;          /* rows are put from device memory */
    int32_t batches;   /* mails about it at the copier */
};

typedef struct sl_pstep sl_pstep;

typedef struct sl_layer_mail {
    sl_wmail mail;
    sl_pstep *step;
    int32_t layer;
} sl_layer_mail;

/* What one engine step computes; travels to the transport thread layer by layer and comes back for reuse. */
struct sl_pstep {
    sl_pstep *next;
    int32_t n;
    struct {
        sl_pjob *job;
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
    sl_pjob *jobs, *jobs_tail; /* FIFO */
    int32_t n_jobs, n_active;
    sl_pstep *free_steps, *step;
    sl_step_item *items;
    uint64_t reused, pulled; /* tokens */

    /* transport thread */
    sl_pjob *ships;
    sl_dpeer *peers, *gone;      /* gone: closed, batches on their way */
    sl_device_layer *dev_layers; /* [n_layers]; NULL: rows do not leave from the device. Constant */
    sl_worker_range *dev_memory; /* of dev_layers, where rows are put from there. Constant */
    int n_dev_memory;
    sl_copier *copier; /* NULL: no rows are copied from the device. Constant */
    sl_copier_mail *free_batches;
    int64_t direct_left; /* bytes that this turn of the loop may still copy */
    struct {
        uint64_t rid;
        uint32_t attempt;
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
void sl_pengine_mail(sl_prefill *p, sl_wmail *m);
void sl_pengine_admit(sl_prefill *p);
/* One step; false when there was nothing to compute. A negative status is fatal. */
bool sl_pengine_step(sl_prefill *p, sl_status *st, sl_err *err);

/* report.c, engine thread */
void sl_pengine_find_metrics(sl_prefill *p, sl_metrics *m);
void sl_pengine_publish_load(sl_prefill *p);

/* ship.c, transport thread */
void sl_ship_new(sl_prefill *p, sl_wmsg *m);
void sl_ship_mail(sl_prefill *p, sl_wmail *m);
void sl_ship_peer_up(sl_prefill *p, sl_pjob *j);
void sl_ship_pages_crc(sl_prefill *p, const sl_msg_pages_crc *m);
void sl_ship_router_down(sl_prefill *p);
uint64_t sl_ship_tick(sl_prefill *p, uint64_t now);
void sl_ship_free(sl_prefill *p, sl_pjob *j);
sl_pjob *sl_ship_find(sl_prefill *p, uint64_t rid, uint32_t attempt);
void sl_ship_tell_engine(sl_prefill *p, sl_jmail *m);

/* ship_end.c, transport thread */
void sl_ship_abort(sl_prefill *p, uint64_t rid, uint32_t attempt);
/* Ends it early: nothing more is posted; FAILED follows when it has drained (unless it was aborted). */
void sl_ship_fail(sl_prefill *p, sl_pjob *j, sl_status st, bool retryable, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Takes the next thing that can happen for this job. */
void sl_ship_settle(sl_prefill *p, sl_pjob *j);
/* One operation of the job has completed, in whatever way. */
void sl_ship_completed(sl_pjob *j);

static inline bool sl_ship_ending(const sl_pjob *j)
{
    return j->t.state == SHIP_DRAINING || j->t.state == SHIP_OVER;
}

/* ship_post.c, transport thread */
/* Posts what fits; true when something was posted. */
bool sl_ship_pump(sl_prefill *p);

/* direct.c, transport thread */
/* Decides the path of a new connection: maps the peer's arena when it offers that and it is wanted.
 * SL_ERR_REFUSED when only direct will do and it cannot be. */
sl_status sl_path_choose(sl_prefill *p, sl_dpeer *d, const sl_msg_peer_welcome *w, sl_err *err);
/* Lets go of the mapping, now or when the last batch is back, and frees d; it is in no list any more. */
void sl_path_release(sl_prefill *p, sl_dpeer *d);
/* After the threads have ended: everything that is left. */
void sl_path_destroy(sl_prefill *p);
/* Posts a batch of the current piece to the copier. SL_INPROGRESS: the piece has nothing left. SL_AGAIN. */
sl_status sl_copies_post(sl_prefill *p, sl_pjob *j);
void sl_copies_back(sl_prefill *p, sl_copier_mail *m);
/* Copies one span, from or to the mapped arena. SL_AGAIN: enough for this turn. SL_ERR_PEER: the decode
 * worker has taken the right to write back. */
sl_status sl_direct_copy(sl_prefill *p, sl_pjob *j, const sl_span *s, bool pull);

/* dpeer.c, transport thread */
sl_dpeer *sl_dpeer_get(sl_prefill *p, const sl_msg_prefill *m, sl_err *err);
void sl_dpeer_connected(sl_prefill *p, sl_wep *ep, sl_status st, const char *why);
void sl_dpeer_msg(sl_prefill *p, sl_wep *ep, sl_wmsg *m);
void sl_dpeer_failed(sl_prefill *p, sl_wep *ep, sl_status st, const char *why);
void sl_dpeer_closed(sl_prefill *p, sl_wep *ep);
/* Fails every job on it and closes by force. */
void sl_dpeer_drop(sl_prefill *p, sl_dpeer *d, sl_status st, const char *why);
uint64_t sl_dpeer_tick(sl_prefill *p, uint64_t now);

#endif
