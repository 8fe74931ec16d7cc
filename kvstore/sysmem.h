/*
 * The memory of the machine: how much this process may still use, and free huge pages. Reads /proc and the cgroup;
 * changes nothing. Any thread.
 */
#ifndef SL_KVSTORE_SYSMEM_H
#define SL_KVSTORE_SYSMEM_H

#include "base/status.h"

/* Bytes that can still be allocated without swapping: the smaller of MemAvailable and what the cgroup leaves.
 * UINT64_MAX: unknown. */
uint64_t sl_sysmem_available(void);
/* A number that is equal in processes of this host that have the same limit of memory, and differs in other containers. */
uint64_t sl_sysmem_space(void);
/* Number of free 2 MiB huge pages; 0 when there are none or it is unknown. */
uint64_t sl_sysmem_huge_free(void);

#endif
