/*
 * The identity of a worker: its name, and the contents and geometry of its pages.
 *
 * The identity that processes compare before pages move between them (fingerprint and geometry) is computed here from a
 * configuration and from headers and samples of a checkpoint; no weights are loaded and no device is opened. So the
 * router knows the identity that its workers must have before the first one joins. Any thread.
 */
#ifndef SL_WORKER_IDENTITY_H
#define SL_WORKER_IDENTITY_H

#include "base/config.h"
#include "base/msg.h"

#define SL_WORKER_NAME_MAX 64

/*
 * "decode@node-7/4711": role, host and process id. The host is the first label of the host's name, its last 40
 * characters where it is longer. In a container, whose process ids begin at 1, the process id is followed by the
 * identity of its pid namespace, so that two containers of one host that share the host's name have different names.
 */
void sl_worker_default_name(sl_role role, char out[SL_WORKER_NAME_MAX]);

/* The keys of a role that say how its workers form groups: NAME.ranks, NAME.group_address. */
int sl_worker_group_ranks(const sl_cfg_cluster *c, sl_role role);
const char *sl_worker_group_address(const sl_cfg_cluster *c, sl_role role);

typedef struct sl_worker_identity {
    sl_identity id;                   /* its geometry points into bytes */
    sl_wr bytes;                      /* owned */
    const char *row_format, *indexer; /* names of the formats, constant */
    /* of rank 0 of a group: the fingerprint of the checkpoint, and the prints that the ranks must have */
    sl_key whole, prints[SL_MSG_MAX_RANKS];
} sl_worker_identity;

/*
 * The identity that a worker of this configuration has; the layout in it is page_first. Reads the headers of the
 * checkpoint and at most 68 KiB of each tensor. Errors: SL_ERR_NOT_FOUND (model.path holds no weights), those of the
 * checkpoint, SL_ERR_INVALID (a format that is unknown). *out must not move until it is freed.
 */
sl_status sl_worker_identity_read(const sl_config *cfg, sl_worker_identity *out, sl_err *err);
/*
 * The identity by which a rank joins its group: its fingerprint is the print of what the rank loads (model/model.h), and
 * the one in the geometry is 0. Rank 0 also gets `whole` and `prints`; it alone reads samples of all tensors, the others
 * of their own. Errors as above; SL_ERR_INVALID: more ranks than routed experts.
 */
sl_status sl_worker_identity_of_rank(const sl_config *cfg, int32_t rank, int32_t ranks,
                                     sl_worker_identity *out, sl_err *err);
/* id may be zeroed. */
void sl_worker_identity_free(sl_worker_identity *id);

#endif
