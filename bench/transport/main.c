/* transport_bench: the core of `sluice bench transport` as a program of its own, for the comparison script.
 */
#include "base/log.h"
#include "bench/transport/transport.h"

int main(int argc, char **argv)
{
    sl_log_init(SL_LOG_WARN, false, "bench");
    return sl_bench_transport_main(argc, argv);
}
