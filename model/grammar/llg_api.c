/* See llg_api.h: finds and opens the library. */
#include "model/grammar/llg_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sl_llg_api api;
static bool opened;

static sl_status find_all(void *library, const char *path, sl_err *err)
{
    static const struct {
        const char *name;
        size_t at;
    } functions[] = {
#define SL_LLG_ROW(member, result, parameters) {"llg_" #member, offsetof(sl_llg_api, member)},
        SL_LLG_FUNCTIONS(SL_LLG_ROW)
#undef SL_LLG_ROW
    };
    sl_llg_api found;
    for (size_t i = 0; i < SL_COUNT(functions); i++) {
        void *f = dlsym(library, functions[i].name);
        if (!f)
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "%.200s has no function %s: it is another version of llguidance; 1.9 is known to work", path,
                functions[i].name);
        memcpy((char *)&found + functions[i].at, &f, sizeof f);
    }
    const char *version = found.get_version();
    if (!version || strncmp(version, "llguidance@1.", 13) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%.200s says that it is %.60s, want llguidance 1.x", path,
                       version ? version : "nothing");
    api = found;
    return SL_OK;
}

/* The file of the Python package refers to symbols of the interpreter. They must exist, and none is ever called. */
static void *open_with_python(const char *path)
{
    static const char *const names[] = {"libpython3.11.so.1.0", "libpython3.12.so.1.0",
                                        "libpython3.13.so.1.0", "libpython3.so"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        if (!dlopen(names[i], RTLD_LAZY | RTLD_GLOBAL))
            continue;
        void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
        if (library)
            return library;
    }
    return NULL;
}

static sl_status open_library(const char *path, sl_err *err)
{
    char why[300];
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library)
        return find_all(library, path, err);
    const char *reason = dlerror();
    snprintf(why, sizeof why, "%s", reason ? reason : "no reason given");
    bool python = strstr(why, "undefined symbol: Py") || strstr(why, "undefined symbol: _Py");
    if (python && (library = open_with_python(path)))
        return find_all(library, path, err);
    return sl_fail(err, SL_ERR_UNSUPPORTED, "no llguidance: %.300s%s", why,
                   python ? " (the package libpython3.11 has it)" : "");
}

sl_status sl_llg_open(const char *path, const sl_llg_api **out, sl_err *err)
{
    sl_status st = SL_OK;
    if (!path)
        path = getenv("SL_LLGUIDANCE");
    pthread_mutex_lock(&lock);
    if (!opened)
        st = open_library(path && *path ? path : "libllguidance.so", err);
    opened |= st == SL_OK;
    pthread_mutex_unlock(&lock);
    if (st == SL_OK)
        *out = &api;
    return st;
}
