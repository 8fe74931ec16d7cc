/* Arbitrary bytes in the pages of a snapshot: only the undamaged snapshot of the right tokens is accepted, and what is
 * accepted is what would be written. */
#include <stdlib.h>
#include <string.h>

#include "kvstore/snapshot.h"
#include "tests/unit/kvstore/mla_geometry.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAGES = 4, STATE = 300 };

static sl_arena *make_arena(void)
{
    const sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_BF16), .latent = 1, .rope = 2};
    const sl_layer_class classes[2] = {
        {.name = "tokens", .kind = SL_LAYER_TOKENS},
        {.name = "state", .kind = SL_LAYER_STATE, .state = {.format = "s", .bytes = STATE}}};
    static const uint8_t of[2] = {0, 1};
    sl_cache_shape shape;
    sl_geometry g;
    sl_arena *a = NULL;
    const sl_geometry_opts o = {
        .shape = &shape, .n_layers = 2, .classes = classes, .n_classes = 2, .layer_class = of};
    SL_CHECK(sl_cache_shape_make(&d, &shape, NULL) == SL_OK, "shape");
    SL_CHECK(sl_geometry_make(&o, &g, NULL) == SL_OK, "geometry");
    const sl_arena_opts ao = {
        .bytes = (uint64_t)(PAGES * g.page_bytes), .huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    SL_CHECK(sl_arena_create(&g, &ao, &a, NULL) == SL_OK, "arena");
    return a;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static sl_arena *a;
    static const int32_t pages[PAGES] = {2, 0, 3, 1};
    const sl_key key = {5, 6};
    if (!a)
        a = make_arena();
    const int64_t bytes = SL_SNAPSHOT_HEADER + STATE;
    uint8_t before[SL_SNAPSHOT_HEADER + STATE] = {0};
    memcpy(before, data, size < sizeof before ? size : sizeof before);
    if (size > 1 && data[0] & 1) /* a record that fits the states, of which one byte is changed */
        memset(before, 0, SL_SNAPSHOT_HEADER);
    for (int64_t i = 0; i < bytes; i++) {
        uint8_t *at;
        sl_snapshot_run(a, pages, i, &at);
        *at = before[i];
    }
    if (size > 1 && data[0] & 1) {
        uint8_t *at;
        sl_snapshot_seal(a, pages, 7, key);
        if (sl_snapshot_check(a, pages, 7, key, NULL) != SL_OK)
            abort();
        sl_snapshot_run(a, pages, data[1] * (int64_t)size % bytes, &at);
        *at ^= data[0];
        if (sl_snapshot_check(a, pages, 7, key, NULL) == SL_OK)
            abort();
        return 0;
    }
    if (sl_snapshot_check(a, pages, 7, key, NULL) != SL_OK)
        return 0;
    sl_snapshot_seal(a, pages, 7, key);
    for (int64_t i = 0; i < bytes; i++) {
        uint8_t *at;
        sl_snapshot_run(a, pages, i, &at);
        if (*at != before[i])
            abort();
    }
    return 0;
}
