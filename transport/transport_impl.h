/*
 * For implementers of the transport interface: options, operation records, the descriptor that wakes the
 * owner.
 *
 * An implementation embeds sl_transport, sl_tp_ep, sl_tp_mem and sl_tp_rkey as first members, fills one const
 * sl_transport_ops and adds it to the table in transport.c. transport.h says what every implementation must
 * guarantee; test_conformance.c, test_remote_memory.c and test_endings.c in tests/unit/transport check it. Nothing
 * here is shared between threads.
 */
#ifndef SL_TRANSPORT_TRANSPORT_IMPL_H
#define SL_TRANSPORT_TRANSPORT_IMPL_H

#include <sys/socket.h>

#include "transport/transport.h"

extern const sl_transport_ops sl_transport_loopback;
extern const sl_transport_ops sl_transport_ucx;

/* Deep copy with defaults filled in; free with sl_tp_options_free. Errors: NO_MEMORY. */
sl_status sl_tp_options_copy(sl_tp_options *dst, const sl_tp_options *src);
void sl_tp_options_free(sl_tp_options *opts);

typedef enum { SL_TP_OP_PUT, SL_TP_OP_GET, SL_TP_OP_FLUSH, SL_TP_OP_SEND, SL_TP_OP_CONTROL } sl_tp_op_kind;

/* One posted operation, from post until `done` has run. */
typedef struct sl_tp_op {
    struct sl_tp_op *next;
    sl_tp_ep *ep;
    sl_tp_done_fn *done;
    void *cookie;
    size_t bytes;
    sl_tp_op_kind kind;
    sl_status status;
    bool device; /* local is device memory */
    /* For implementations that copy the bytes themselves. */
    uint8_t *local;
    uint64_t remote, key;
    size_t moved;
    uint32_t wire;
    uint8_t *header; /* SL_TP_OP_HEADER bytes, only of sends and controls */
    uint8_t *sealed; /* the message as it is sent, when it is encrypted; freed with the operation */
} sl_tp_op;

#define SL_TP_OP_HEADER (SL_TP_AM_HEADER_MAX + 16)

/* Grows in chunks and never shrinks, so that steady traffic does not allocate. */
typedef struct sl_tp_op_pool {
    sl_tp_op *free_plain, *free_header;
    void **chunks;
    size_t n_chunks;
} sl_tp_op_pool;

/* NULL when out of memory. All fields are zero except header. */
sl_tp_op *sl_tp_op_get(sl_tp_op_pool *pool, bool with_header);
void sl_tp_op_put(sl_tp_op_pool *pool, sl_tp_op *op);
void sl_tp_op_pool_free(sl_tp_op_pool *pool);

/* FIFO of operations through op->next. */
typedef struct sl_tp_op_queue {
    sl_tp_op *head, **tail;
} sl_tp_op_queue;

static inline void sl_tp_op_queue_init(sl_tp_op_queue *q)
{
    q->head = NULL;
    q->tail = &q->head;
}

static inline void sl_tp_op_queue_push(sl_tp_op_queue *q, sl_tp_op *op)
{
    op->next = NULL;
    *q->tail = op;
    q->tail = &op->next;
}

static inline sl_tp_op *sl_tp_op_queue_pop(sl_tp_op_queue *q)
{
    sl_tp_op *op = q->head;
    if (op && !(q->head = op->next))
        q->tail = &q->head;
    return op;
}

/* Adds a completed operation to the statistics. */
void sl_tp_stats_done(sl_tp_stats *stats, const sl_tp_op *op);

/* True when [p, p+n) lies inside [base, base+bytes); never overflows; n = 0 is outside. */
static inline bool sl_tp_in_range(uint64_t p, uint64_t n, uint64_t base, uint64_t bytes)
{
    return n > 0 && p >= base && n <= bytes && p - base <= bytes - n;
}

/* An epoll descriptor that contains a timer; sl_tp_event_fd() returns it. */
typedef struct sl_tp_waker {
    int epoll_fd, timer_fd;
    uint64_t armed_ns; /* the timer's deadline; 0: off */
} sl_tp_waker;

sl_status sl_tp_waker_init(sl_tp_waker *w, sl_err *err);
sl_status sl_tp_waker_add(sl_tp_waker *w, int fd, sl_err *err);
void sl_tp_waker_remove(sl_tp_waker *w, int fd);
/* Sets the timer to an absolute sl_now_ns() time; 0 turns it off. */
void sl_tp_waker_arm(sl_tp_waker *w, uint64_t deadline_ns);
void sl_tp_waker_fini(sl_tp_waker *w);

/*
 * Resolves host:port (numeric or name) to an address to connect to or, with passive, to bind. A name blocks as long as
 * the name server does (lookup.h does not). Errors: INVALID.
 */
sl_status sl_tp_resolve(const char *host, uint16_t port, bool passive, struct sockaddr_storage *out,
                        socklen_t *len, sl_err *err);
/* The same without names, which never blocks; false: host is not a numeric address. */
bool sl_tp_resolve_numeric(const char *host, uint16_t port, struct sockaddr_storage *out, socklen_t *len);
/* "host:port" of a socket address. */
void sl_tp_address_text(const struct sockaddr_storage *sa, char *text, size_t cap);
/* Replaces an any-address by the family's first non-loopback address of this host, or by loopback if none. */
void sl_tp_address_concrete(struct sockaddr_storage *sa);

#endif
