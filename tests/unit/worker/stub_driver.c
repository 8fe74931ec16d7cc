/* A libcuda.so.1 that is an old driver: enough of one for the CUDA runtime to refuse it. SL_STUB_DRIVER:
 * another version, 0 as where there is none. */
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
