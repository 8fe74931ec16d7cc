/* A libcuda.so.1 that is an old driver: enough of one for the CUDA runtime to refuse it. */
int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);

int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}

int cuDriverGetVersion(int *version)
{
    *version = 12020;
    return 0;
}
