/* See meeting.h. A rank that waits looks at the page every 200 us. */
#include "bench/meeting.h"

#include <unistd.h>

#include "base/log.h"

sl_status sl_meeting_enter(const sl_comm_opts *o, sl_backend *be, sl_meeting *m, sl_comm **out, sl_err *err)
{
    uint64_t end = sl_now_ns() + o->deadline_ms * 1000000ull;

    if (o->rank == 0) {
        SL_TRY(sl_comm_found(be, o, &m->invite, out, err));
        atomic_store(&m->invited, 1);
        return SL_OK;
    }
    while (!atomic_load(&m->invited)) {
        if (sl_now_ns() > end)
            return sl_fail(err, SL_ERR_TIMEOUT, "rank 0 founded no group within %d s",
                           (int)(o->deadline_ms / 1000));
        usleep(200);
    }
    return sl_comm_join(be, o, &m->invite, out, err);
}
