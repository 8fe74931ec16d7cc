/*
 * `sluice bench prefill` as a separate program, which does not link the transports and protocols that `sluice` links.
 */
#include "bench/prefill/prefill.h"

int main(int argc, char **argv)
{
    return sl_bench_prefill_main(argc, argv);
}
