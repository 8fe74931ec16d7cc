/*
 * Keys of former versions, and what replaces each: a configuration that still has one is refused with that text.
 */
#include <string.h>

#include "base/config_impl.h"

static const struct {
    const char *key, *instead;
} gone[] = {
    {"kvstore.verify_checksums", "kvstore.verify says what is compared"},
};

const char *sl_cfg_gone(const char *key)
{
    for (size_t i = 0; i < SL_COUNT(gone); i++)
        if (!strcmp(gone[i].key, key))
            return gone[i].instead;
    return NULL;
}
