/*
 * Shipping paths: the ways in which rows reach a decode worker, one const object each, listed in path.c. The path of a
 * connection is chosen when PEER_WELCOME arrives (sl_path_choose). The configuration names a path (cluster.shipping);
 * if it says auto, the first path of the list that is `in_auto` and possible on this connection is used.
 *
 * A new path is one file with its object, one line in the list of path.c, its entry in worker/shipping.c and its line
 * in docs/protocol.md.
 *
 * Transport thread. The functions of a path are called for the connections that use it; `open` is called for those that
 * may use it.
 */
#ifndef SL_PREFILL_PATH_H
#define SL_PREFILL_PATH_H

#include "prefill/prefill_impl.h"
#include "worker/shipping.h"

struct sl_ship_path {
    const sl_shipping *way; /* its entry of the registry, with the name */
    bool needs_process;     /* PEER_HELLO must contain the process id */
    const char *reason;     /* for the log: why it can be used; NULL: because the configuration names it */
    /*
     * May be NULL. Prepares the path when the worker starts, if the configuration allows it. An error ends the start.
     */
    sl_status (*prepare)(sl_prefill *p, sl_err *err);
    /* Makes the connection ready for this path. After an error, the next path is tried; err says why. */
    sl_status (*open)(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w, sl_err *err);
    /* May be NULL. Called after the path was chosen and logged. */
    void (*opened)(sl_prefill *p, sl_decode_peer *d);
    /* True if rows that were just computed are read from device memory; else they are read from the own arena. */
    bool (*from_device)(const sl_decode_peer *d);
    /* Posts or copies the next bytes of the cursor's open layer. SL_OK: posted; SL_AGAIN: not possible now; SL_INPROGRESS: the
     * layer has ended; with any other status the shipment fails. */
    sl_status (*post)(sl_prefill *p, sl_prefill_job *j);
    /* Posts the get of this span for the chunk of the shipment, or copies it. SL_OK: posted; SL_AGAIN; other errors likewise. */
    sl_status (*get)(sl_prefill *p, sl_prefill_job *j, const sl_span *s);
    /* May be NULL. The connection is closed. True: the peer may be freed; false: sl_peer_unused() follows later. */
    bool (*close)(sl_prefill *p, sl_decode_peer *d);
};

extern const sl_ship_path sl_path_direct, sl_path_gpu, sl_path_staging;

/* Called when the worker starts, and after its threads have ended. */
sl_status sl_paths_prepare(sl_prefill *p, sl_err *err);
void sl_paths_close(sl_prefill *p);
/* SL_ERR_REFUSED when the path that the configuration names is not possible. */
sl_status sl_path_choose(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w, sl_err *err);
/* True if a path that may be chosen needs the process id in PEER_HELLO. */
bool sl_path_needs_process(const sl_prefill *p);

/* For `prepare`: fills p->dev_layers if the engine's rows are in device memory. */
sl_status sl_path_find_device_layers(sl_prefill *p, sl_err *err);

/* path_put.c: puts and gets of the transport; for the `post` and `get` of paths. */
sl_status sl_path_put(sl_prefill *p, sl_prefill_job *j);
sl_status sl_path_get(sl_prefill *p, sl_prefill_job *j, const sl_span *s);

/* path_direct.c: handles mails that come back from the copier (copier.h); ends the copier after the threads. */
typedef struct sl_copier_mail sl_copier_mail;
void sl_copies_back(sl_prefill *p, sl_copier_mail *m);
void sl_copies_destroy(sl_prefill *p);

#endif
