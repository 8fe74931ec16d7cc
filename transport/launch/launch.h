/*
 * Launch: learns this process's rank from mpirun, broadcasts one small message, and leaves MPI again.
 *
 *     sl_launch_init(&argc, &argv, &l, err);       // MPI_Init under mpirun; without mpirun nothing
 *     sl_launch_bcast(&l, 0, blob, sizeof blob);   // for example the address of the router, from its rank
 *     sl_launch_leave(&l);                         // MPI_Finalize; MPI is never called again
 *
 * After sl_launch_leave() the process is an ordinary one: peers communicate over transport/, and the death of
 * a rank does not end the others if the job was started with `mpirun --enable-recovery` (README.md in this
 * folder says what was tried, and what mpirun itself returns). Call all three on the main thread, before
 * other threads start.
 */
#ifndef SL_TRANSPORT_LAUNCH_LAUNCH_H
#define SL_TRANSPORT_LAUNCH_LAUNCH_H

#include "base/status.h"

#define SL_LAUNCH_BLOB_MAX 4096

typedef struct sl_launch {
    int rank, size;             /* -1 and 1 without mpirun */
    int local_rank, local_size; /* among the ranks of this host: picks the GPU; -1 and 1 without mpirun */
    char host[256];
    bool in_mpi; /* between init and leave, under mpirun */
} sl_launch;

/*
 * True when the environment says that mpirun (or another PMIx launcher) started this process; calls no MPI.
 */
bool sl_launch_detect(void);

/*
 * Fills *out. Under mpirun it calls MPI_Init, and from then on this process gets SIGTERM when the launcher
 * that started it dies. argc and argv are those of main, or NULL. Errors: IO (MPI failed).
 */
sl_status sl_launch_init(int *argc, char ***argv, sl_launch *out, sl_err *err);

/*
 * Collective among the ranks: copies n bytes from root's buf to the buf of every rank. It waits for the root,
 * so the root should listen first and load its model later. Without mpirun it does nothing. Errors:
 * TOO_LARGE, INVALID (root, or after leave), IO.
 */
sl_status sl_launch_bcast(sl_launch *l, int root, void *buf, size_t n, sl_err *err);

/*
 * Finalizes MPI; waits until every rank has called it. Without mpirun, or when called again, it does nothing.
 */
void sl_launch_leave(sl_launch *l);

#endif
