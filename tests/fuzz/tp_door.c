/*
 * The greeting at the door: an arbitrary input, of which many prefixes are tried, is incomplete, a whole message, or
 * foreign. No input is two of these, a foreign prefix stays foreign when it grows, and a whole message is written as
 * the same bytes. Half of the inputs receive a correct header first, so that the bodies are reached.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "transport/ucx/door_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t *bytes, size_t n)
{
    ux_door_msg m;
    uint8_t again[UX_DOOR_MAX];
    bool foreign = false;
    for (size_t i = 0, step; i <= n; i += step) {
        step = i == n ? 1 : i / 8 + 1 < n - i ? i / 8 + 1 : n - i; /* the last prefix is the whole input */
        const char *why = NULL;
        uint8_t *cut = malloc(i ? i : 1); /* an exact copy: the sanitizer detects a read after byte i */
        if (!cut)
            return;
        memcpy(cut, bytes, i);
        ux_door_parsed parsed = ux_door_parse(cut, i, &m, &why);
        free(cut);
        if ((foreign && parsed != UX_DOOR_FOREIGN) || (parsed == UX_DOOR_FOREIGN && (!why || !*why)) ||
            (parsed == UX_DOOR_MORE && i >= UX_DOOR_MAX))
            abort();
        foreign = parsed == UX_DOOR_FOREIGN;
        if (parsed == UX_DOOR_WHOLE && m.version == UX_DOOR_VERSION &&
            (strlen(m.text) >= sizeof m.text || ux_door_write(&m, again) != i ||
             memcmp(again, bytes, i) != 0))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t made[UX_DOOR_MAX + 8];
    if (size > 2 * UX_DOOR_MAX)
        size = 2 * UX_DOOR_MAX;
    check(data, size);
    if (size < 4 || size > UX_DOOR_BODY_MAX)
        return 0;
    const ux_door_msg m = {.version = data[0] & 1 ? UX_DOOR_VERSION : data[1], .kind = data[2] & 7};
    ux_door_write(&m, made);
    memcpy(made + UX_DOOR_HEADER, data, size);
    made[12] = (uint8_t)size;
    uint32_t crc = sl_crc32c(sl_crc32c(0, made, 16), made + UX_DOOR_HEADER, size);
    for (int i = 0; i < 4; i++)
        made[16 + i] = (uint8_t)(crc >> (8 * i));
    check(made, UX_DOOR_HEADER + size + (data[3] & 7));
    return 0;
}
