/*
 * Launch under mpirun. MPI is called only when the environment shows that a launcher started this process. So a worker
 * that joins by address never starts a singleton MPI, which would start helper processes and may refuse to run as root.
 */
#include "transport/launch/launch.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <mpi.h>

bool sl_launch_detect(void)
{
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < SL_COUNT(marks); i++)
        if (getenv(marks[i]))
            return true;
    return false;
}

/*
 * The launcher of this host (mpirun, or its daemon) is the parent of this process. If it dies without ending its
 * children (SIGKILL, out of memory), no other process would end this one. So the kernel is asked to send SIGTERM in
 * that case; the process then drains.
 */
static void follow_launcher(pid_t launcher)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != launcher) /* it died before the kernel was asked */
        raise(SIGTERM);
}

static void read_ranks(sl_launch *l)
{
    MPI_Comm local;
    MPI_Comm_rank(MPI_COMM_WORLD, &l->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l->size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &l->local_rank);
    MPI_Comm_size(local, &l->local_size);
    MPI_Comm_free(&local);
}

sl_status sl_launch_init(int *argc, char ***argv, sl_launch *out, sl_err *err)
{
    sl_launch l = {.rank = -1, .size = 1, .local_rank = -1, .local_size = 1};
    if (gethostname(l.host, sizeof l.host - 1) != 0)
        memcpy(l.host, "unknown", sizeof "unknown");
    if (sl_launch_detect()) {
        int given = 0;
        follow_launcher(getppid());
        if (MPI_Init_thread(argc, argv, MPI_THREAD_SINGLE, &given) != MPI_SUCCESS)
            return sl_fail(err, SL_ERR_IO, "MPI_Init failed");
        l.in_mpi = true;
        read_ranks(&l);
    }
    *out = l;
    return SL_OK;
}

sl_status sl_launch_bcast(sl_launch *l, int root, void *buf, size_t n, sl_err *err)
{
    if (l->rank < 0)
        return SL_OK;
    if (!l->in_mpi)
        return sl_fail(err, SL_ERR_INVALID, "broadcast after leaving MPI");
    if (n > SL_LAUNCH_BLOB_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "broadcast of %zu bytes, at most %d", n, SL_LAUNCH_BLOB_MAX);
    if (root < 0 || root >= l->size)
        return sl_fail(err, SL_ERR_INVALID, "broadcast from rank %d of %d", root, l->size);
    if (MPI_Bcast(buf, (int)n, MPI_BYTE, root, MPI_COMM_WORLD) != MPI_SUCCESS)
        return sl_fail(err, SL_ERR_IO, "MPI_Bcast from rank %d failed", root);
    return SL_OK;
}

void sl_launch_leave(sl_launch *l)
{
    if (!l->in_mpi)
        return;
    l->in_mpi = false;
    MPI_Finalize();
}
