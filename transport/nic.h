/*
 * Facts about NICs: the RDMA devices of this host, their NUMA nodes, and which are nearest to a given node.
 * Reads libibverbs and sysfs; opens devices only to query ports. Queries only, any thread, no state is kept.
 */
#ifndef SL_TRANSPORT_NIC_H
#define SL_TRANSPORT_NIC_H

#include "base/status.h"

#define SL_NIC_MAX 64

typedef enum { SL_NIC_INFINIBAND, SL_NIC_ETHERNET, SL_NIC_OTHER } sl_nic_link;

/* One port of one RDMA device. */
typedef struct sl_nic {
    char device[64]; /* "mlx5_0" */
    char netdev[32]; /* "eth2"; empty without an attached network interface */
    int port;        /* from 1 */
    bool active;
    sl_nic_link link;
    int numa_node; /* -1: unknown */
    double gbps;   /* active width x speed, 10^9 bits per second; 0: unknown */
} sl_nic;

/* Fills out with up to cap ports; *n gets the number. A host without RDMA has 0 ports and is SL_OK. */
sl_status sl_nic_list(sl_nic *out, size_t cap, size_t *n, sl_err *err);

/*
 * Writes the active ports nearest to node as "mlx5_0:1,mlx5_1:1" (the form of sl_tp_options.net_devices):
 * those on the node; if none, the closest by NUMA distance; node -1 or unknown: all active ones. Empty text
 * when there are none.
 */
sl_status sl_nic_nearest(const sl_nic *nics, size_t n, int node, char *text, size_t cap);

/* Writes one line for the log: every port with state, link and NUMA node. */
void sl_nic_describe(const sl_nic *nics, size_t n, char *text, size_t cap);

#endif
