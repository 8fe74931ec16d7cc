/* The publisher of a build without libzmq: it says so. */
#include "events/events_impl.h"

sl_status sl_publisher_open(const sl_events_opts *o, sl_events_shared *shared, sl_publisher **out,
                            sl_err *err)
{
    (void)o;
    (void)shared;
    *out = NULL;
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "events.zmq.endpoint: this program was built without libzmq (install libzmq3-dev and build again)");
}

void sl_publisher_close(sl_publisher *p)
{
    (void)p;
}
