/* See nixl_api.h. */
#include "kvstore/nixl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sl_nixl_api api;
static bool opened;

static sl_status find_all(void *library, const char *path, sl_err *err)
{
    static const struct {
        const char *name;
        size_t at;
    } functions[] = {
#define SL_NIXL_ROW(member, name, arguments) {"nixl_capi_" #name, offsetof(sl_nixl_api, member)},
        SL_NIXL_FUNCTIONS(SL_NIXL_ROW)
#undef SL_NIXL_ROW
    };
    sl_nixl_api found;
    for (size_t i = 0; i < SL_COUNT(functions); i++) {
        void *f = dlsym(library, functions[i].name);
        if (!f)
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%.200s has no function %s: it is another version of NIXL; 1.5 is known to work",
                           path, functions[i].name);
        memcpy((char *)&found + functions[i].at, &f, sizeof f);
    }
    api = found;
    return SL_OK;
}

sl_status sl_nixl_open(const char *path, const sl_nixl_api **out, sl_err *err)
{
    sl_status st = SL_OK;
    pthread_mutex_lock(&lock);
    if (!opened) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            st = sl_fail(err, SL_ERR_UNSUPPORTED, "%.400s", dlerror());
        else
            st = find_all(library, path, err);
        opened = st == SL_OK;
    }
    pthread_mutex_unlock(&lock);
    if (st == SL_OK)
        *out = &api;
    return st;
}
