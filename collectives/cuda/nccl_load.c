/* See nccl_load.h. */
#include "collectives/cuda/nccl_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static sl_nccl nccl;
static uint32_t version;
static sl_status loaded;
static sl_err why;

static void *library;

static sl_status find(const char *name, void *out)
{
    void *f = dlsym(library, name);

    if (!f)
        return sl_fail(&why, SL_ERR_UNSUPPORTED, "comm: libnccl.so.2 has no %s", name);
    *(void **)out = f;
    return SL_OK;
}

static sl_status find_all(void)
{
    SL_TRY(find("ncclGetVersion", &nccl.get_version));
    SL_TRY(find("ncclGetUniqueId", &nccl.get_unique_id));
    SL_TRY(find("ncclCommInitRankConfig", &nccl.comm_init));
    SL_TRY(find("ncclCommRevoke", &nccl.comm_revoke));
    SL_TRY(find("ncclCommAbort", &nccl.comm_abort));
    SL_TRY(find("ncclCommGetAsyncError", &nccl.comm_async_error));
    SL_TRY(find("ncclAllGather", &nccl.all_gather));
    SL_TRY(find("ncclBroadcast", &nccl.broadcast));
    SL_TRY(find("ncclAlltoAll", &nccl.all_to_all));
    SL_TRY(find("ncclGroupStart", &nccl.group_start));
    SL_TRY(find("ncclGroupEnd", &nccl.group_end));
    SL_TRY(find("ncclGetErrorString", &nccl.error_string));
    return find("ncclGetLastError", &nccl.last_error);
}

static sl_status load(void)
{
    int v = 0;

    setenv("NCCL_NVLS_ENABLE", "0", 1);
    library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return sl_fail(&why, SL_ERR_UNSUPPORTED, "comm: groups of GPUs need NCCL: %s", dlerror());
    SL_TRY(find("ncclGetVersion", &nccl.get_version));
    if (nccl.get_version(&v) != ncclSuccess)
        return sl_fail(&why, SL_ERR_UNSUPPORTED, "comm: libnccl.so.2 does not tell its version");
    if (v / 10000 != NCCL_MAJOR || v < NCCL_VERSION_CODE)
        return sl_fail(
            &why, SL_ERR_UNSUPPORTED,
            "comm: libnccl.so.2 is %d.%d.%d, this program was built for %d.%d.%d and needs that version or a "
            "newer one of the same major version",
            v / 10000, v / 100 % 100, v % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    SL_TRY(find_all());
    version = (uint32_t)v;
    return SL_OK;
}

static void load_once(void)
{
    loaded = load();
}

sl_status sl_nccl_load(const sl_nccl **out, sl_err *err)
{
    pthread_once(&once, load_once);
    if (loaded != SL_OK)
        return sl_fail(err, loaded, "%s", why.text);
    *out = &nccl;
    return SL_OK;
}

sl_status sl_nccl_version(uint32_t *out, sl_err *err)
{
    const sl_nccl *ignored;

    SL_TRY(sl_nccl_load(&ignored, err));
    *out = version;
    return SL_OK;
}
