/* `sluice bench decode` as a separate program, which does not link the transports and protocols that `sluice` links. */
#include "bench/decode/decode.h"

int main(int argc, char **argv)
{
    return sl_bench_decode_main(argc, argv);
}
