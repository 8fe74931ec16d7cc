/* The swap-in benchmark as a program of its own, so that a test can run a small one. */
#include "bench/swapin/swapin.h"

int main(int argc, char **argv)
{
    return sl_bench_swapin_main(argc, argv);
}
