/* The swap-in benchmark as a separate program, so that a test can run it with small sizes. */
#include "bench/swapin/swapin.h"

int main(int argc, char **argv)
{
    return sl_bench_swapin_main(argc, argv);
}
