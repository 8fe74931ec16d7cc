/* transport_bench: `sluice bench transport` as a separate program, for the comparison script tests/bench/transport. */
#include "base/log.h"
#include "bench/transport/transport.h"

int main(int argc, char **argv)
{
    sl_log_init(SL_LOG_WARN, false, "bench");
    return sl_bench_transport_main(argc, argv);
}
