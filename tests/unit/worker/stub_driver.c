/* A stub of libcuda.so.1 that behaves like an old driver, so that the CUDA runtime refuses it. SL_STUB_DRIVER sets
 * another version; 0 behaves as if there were no driver. */
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);

int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

int cuDriverGetVersion(int *version)
{
    const char *other = getenv("SL_STUB_DRIVER");
    *version = other ? (int)strtol(other, NULL, 10) : 12020;
    return 0;
}
