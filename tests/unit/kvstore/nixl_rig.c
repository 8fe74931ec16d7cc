/* See nixl_rig.h. */
#include "tests/unit/kvstore/nixl_rig.h"

#include <dlfcn.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *nixl_rig_library(void)
{
    static char path[512];
    const char *named = getenv("SL_NIXL_LIBRARY");
    glob_t found;
    if (named && named[0])
        return named;
    if (!path[0] && glob(".venv/lib/python3*/site-packages/.nixl_cu*.mesonpy.libs/libnixl_capi.so", 0, NULL,
                         &found) == 0) {
        snprintf(path, sizeof path, "%s", found.gl_pathv[0]);
        globfree(&found);
    }
    if (!path[0]) {
        printf(
            "nixl: with the test double, because there is no libnixl_capi.so (scripts/install-deps --nixl)\n");
        snprintf(path, sizeof path, "%s", fake_nixl_path());
    }
    return path;
}

const char *fake_nixl_path(void)
{
    const char *moved = getenv("SL_FAKE_NIXL_LIBRARY"); /* on a machine that did not build it */
    return moved && moved[0] ? moved : SL_FAKE_NIXL;
}

fake_nixl_faults *fake_nixl(void)
{
    typedef fake_nixl_faults *find_fn(void);
    find_fn *find;
    void *library = dlopen(fake_nixl_path(), RTLD_NOW);
    void *f = library ? dlsym(library, "fake_nixl_in_library") : NULL;
    if (!f) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    memcpy(&find, &f, sizeof find);
    return find();
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    remove(path);
    return 0;
}

void nixl_rig_remove(const char *directory)
{
    nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
