/*
 * Shipping paths: the ways in which rows reach a decode worker, one const object each, listed in path.c. The
 * path of a connection is decided when PEER_WELCOME comes (sl_path_choose): the configuration names one
 * (cluster.shipping), or says auto; then the first of the list that is `in_auto` and possible here is taken.
 *
 * A new path is one file with its object, one line in path.c's list, its entry in worker/shipping.c and its line
 * in docs/protocol.md.
 *
 * Transport thread; a path's functions are called for connections that have chosen it (open: that may choose it).
 */
#ifndef SL_PREFILL_PATH_H
#define SL_PREFILL_PATH_H

#include "prefill/peer.h"
#include "worker/shipping.h"

struct sl_ship_path {
    const sl_shipping *way; /* its entry of the registry: the name, and whether `auto` may take it */
    bool needs_process;     /* PEER_HELLO must say which process this is */
    const char *reason;     /* for the log, why it can be used; NULL: because the configuration says so */
    /* NULL, or: makes what the path needs when the worker starts; called when the configuration may choose it. An
     * error ends the start. */
    sl_status (*prepare)(sl_prefill *p, sl_err *err);
    /* Makes the connection ready for this path. Any error, with its reason: the next path is tried. */
    sl_status (*open)(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w, sl_err *err);
    /* NULL, or: after the path was chosen and logged. */
    void (*opened)(sl_prefill *p, sl_decode_peer *d);
    /* Whether rows that were just computed leave from device memory; else from the own arena. */
    bool (*from_device)(const sl_decode_peer *d);
    /* Posts or copies what comes next of the cursor's open layer, in the direction of the state (PULLING: get).
     * SL_OK; SL_AGAIN: not now; SL_INPROGRESS: the layer has ended; else the shipment fails. */
    sl_status (*post)(sl_prefill *p, sl_prefill_job *j);
    /* NULL, or: the connection is closed. True when the peer may be freed; false: sl_peer_unused follows. */
    bool (*close)(sl_prefill *p, sl_decode_peer *d);
};

extern const sl_ship_path sl_path_direct, sl_path_gpu, sl_path_staging;

/* At the worker's start and after its threads have ended. */
sl_status sl_paths_prepare(sl_prefill *p, sl_err *err);
void sl_paths_close(sl_prefill *p);
/* SL_ERR_REFUSED when the path that the configuration names is not possible. */
sl_status sl_path_choose(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w, sl_err *err);
/* Whether PEER_HELLO says which process this is: a path that may be chosen needs it. */
bool sl_path_needs_process(const sl_prefill *p);

/* For `prepare`: fills p->dev_layers, when the engine's rows are in device memory. */
sl_status sl_path_find_device_layers(sl_prefill *p, sl_err *err);

/* path_put.c: by puts and gets of the transport; for paths. */
sl_status sl_path_put(sl_prefill *p, sl_prefill_job *j);

/* path_direct.c: what the copier gives back (copier.h), and the copier's end after the threads have ended. */
typedef struct sl_copier_mail sl_copier_mail;
void sl_copies_back(sl_prefill *p, sl_copier_mail *m);
void sl_copies_destroy(sl_prefill *p);

#endif
