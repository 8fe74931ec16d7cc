/* Implementation of profile.h. */
#include "sparse/profile.h"

#include <stddef.h>
#include <string.h>

static const char *const names[] = {"keep85", "layered", "random", "keep70", "keep95", "keep98", NULL};

const char *const *sl_coord_profile_names(void)
{
    return names;
}

int sl_coord_profile_find(const char *name)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

uint32_t sl_coord_profile_keep(sl_profile p, int32_t layer, int32_t layers)
{
    static const uint32_t same[] = {[SL_PROFILE_KEEP85] = 55706,
                                    [SL_PROFILE_RANDOM] = 0,
                                    [SL_PROFILE_KEEP70] = 45875,
                                    [SL_PROFILE_KEEP95] = 62259,
                                    [SL_PROFILE_KEEP98] = 64225};
    if (p != SL_PROFILE_LAYERED)
        return same[p];
    /* These are published figures of V3.2: 1.5 % in the first layers, 35 to 50 % and up to 80 % in the others. */
    if (layer < 3)
        return 983;
    int32_t rest = layers > 4 ? layers - 4 : 1;
    return 22938 + (uint32_t)(29491 * (int64_t)(layer - 3) / rest);
}
