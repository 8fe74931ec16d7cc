/* See nixl_rig.h. */
#include "tests/unit/kvstore/nixl_rig.h"

#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

const char *nixl_rig_library(const char **why)
{
    static char path[512];
    const char *named = getenv("SL_NIXL_LIBRARY");
    glob_t found;
    *why = NULL;
    if (named && named[0])
        return named;
    if (!path[0] && glob(".venv/lib/python3*/site-packages/.nixl_cu*.mesonpy.libs/libnixl_capi.so", 0, NULL,
                         &found) == 0) {
        snprintf(path, sizeof path, "%s", found.gl_pathv[0]);
        globfree(&found);
    }
    if (!path[0])
        *why = "no libnixl_capi.so: neither SL_NIXL_LIBRARY nor in .venv (scripts/install-deps --nixl)";
    return path[0] ? path : NULL;
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
