/*
 * Classes of layers: geometries of generated mixes of classes against a restatement that knows neither planes nor masks, but
 * only lists of units for each layer. In every layout the planes of all layers fill the arena without gap or overlap; page
 * and state bytes are sums over layers; the wire form gives the same geometry again, which has only one form; checksums
 * cover every byte of a layer and none of another; and geometries without further classes have the wire form, and so the
 * names of their stored pages, which they always had. About 1 s.
 */
#include <string.h>

#include "kvstore/arena.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { MIXES = 60, LAYERS = 9, PAGES = 3, MAX_UNITS = 3 };

/* What one layer has in a page, restated: for each plane the bytes of a unit with all its heads, and how many there are. */
typedef struct want_layer {
    int32_t n;
    int64_t unit[SL_CACHE_PLANES], units[SL_CACHE_PLANES];
    int64_t state;
} want_layer;

typedef struct mix {
    sl_cache_shape shape;
    sl_layer_class classes[SL_MODEL_CLASSES];
    int32_t n_classes;
    uint8_t layer_class[LAYERS];
    bool has_indexer[LAYERS];
    want_layer want[LAYERS];
} mix;

static void random_plane(sl_cache_plane *p, int c, int i, uint64_t *seed)
{
    static const int32_t units[] = {1, 4, 16, 64, 128, 256};
    *p = (sl_cache_plane){.role = SL_PLANE_BLOCKS, .heads = 1, .unit_tokens = units[rnd_below(seed, 6)]};
    snprintf(p->name, sizeof p->name, "blocks%c%c", 'a' + c, 'a' + i);
    snprintf(p->format, sizeof p->format, "f%c", 'a' + rnd_below(seed, 3));
    if (rnd_below(seed, 3) == 0)
        p->scope = SL_SCOPE_KV_HEAD, p->heads = 1 + rnd_below(seed, 3);
    p->n_parts = 1 + rnd_below(seed, 3);
    for (int32_t k = 0; k < p->n_parts; k++) {
        p->parts[k] = (sl_cache_part){.dtype = rnd_below(seed, 2) ? SL_F32 : SL_BF16,
                                      .per = (sl_part_per)rnd_below(seed, 3),
                                      .count = 1 + rnd_below(seed, 9)};
        snprintf(p->parts[k].name, sizeof p->parts[k].name, "part%c", 'a' + k);
    }
}

/* Bytes of a unit of a page, by the words of kernels/cache.h: a unit larger than a page has one segment in each. */
static int64_t unit_bytes(const sl_cache_plane *p)
{
    int64_t bytes = 0;
    for (int32_t k = 0; k < p->n_parts; k++) {
        int64_t one = p->parts[k].count * (p->parts[k].dtype == SL_F32 ? 4 : 2);
        int64_t tokens = p->unit_tokens < 64 ? p->unit_tokens : 64;
        bytes += p->parts[k].per == SL_PER_TOKEN ? tokens * one : one;
    }
    return bytes * p->heads;
}

static void want_plane(want_layer *w, const sl_cache_plane *p)
{
    w->unit[w->n] = unit_bytes(p);
    w->units[w->n++] = p->unit_tokens < 64 ? 64 / p->unit_tokens : 1;
}

static void random_class(mix *m, int c, sl_layer_kind kind, uint64_t *seed)
{
    sl_layer_class *k = &m->classes[c];
    *k = (sl_layer_class){.kind = kind};
    snprintf(k->name, sizeof k->name, "class%c", 'a' + c);
    if (kind == SL_LAYER_BLOCKS)
        k->n_planes = 1 + (c == 1 && rnd_below(seed, 2));
    for (int32_t i = 0; i < k->n_planes; i++)
        random_plane(&k->planes[i], c, i, seed);
    if (kind == SL_LAYER_RING || kind == SL_LAYER_STATE || rnd_below(seed, 3) == 0) {
        k->state = (sl_layer_state){.bytes = 1 + rnd_below(seed, 5000), .stamp = rnd(seed)};
        snprintf(k->state.format, sizeof k->state.format, "s%c", 'a' + rnd_below(seed, 3));
        if (kind != SL_LAYER_STATE && (kind == SL_LAYER_RING || rnd_below(seed, 2)))
            k->window = 1 + rnd_below(seed, 200);
    }
}

/* Class 0 has rows of tokens; the others are of any kind, as their layers are. */
static void random_mix(mix *m, uint64_t seed)
{
    const sl_cache_dims d = {
        .rows = sl_row_format_of(SL_ROW_MLA_F32), .latent = 4, .rope = 2, .index_dim = 4};
    memset(m, 0, sizeof *m);
    ck_assert_int_eq(sl_cache_shape_make(&d, &m->shape, NULL), SL_OK);
    m->n_classes = 1 + rnd_below(&seed, SL_MODEL_CLASSES);
    for (int c = 0; c < m->n_classes; c++)
        random_class(m, c, c ? (sl_layer_kind)rnd_below(&seed, 4) : SL_LAYER_TOKENS, &seed);
    for (int l = 0; l < LAYERS; l++) {
        const int c = l ? rnd_below(&seed, m->n_classes) : 0;
        const sl_layer_class *k = &m->classes[c];
        want_layer *w = &m->want[l];
        m->layer_class[l] = (uint8_t)c;
        m->has_indexer[l] = l == 0 || rnd_below(&seed, 2);
        w->state = k->state.bytes;
        if (k->kind == SL_LAYER_TOKENS) {
            w->unit[w->n] = 4 * (4 + 2), w->units[w->n++] = 64;
            if (m->has_indexer[l])
                w->unit[w->n] = 64 * 4 * 4, w->units[w->n++] = 1;
        }
        for (int32_t p = 0; p < k->n_planes; p++)
            want_plane(w, &k->planes[p]);
    }
}

static sl_geometry_opts opts_of(const mix *m, sl_layout layout)
{
    return (sl_geometry_opts){.fingerprint = {3, 4},
                              .layout = layout,
                              .shape = &m->shape,
                              .n_layers = LAYERS,
                              .has_indexer = m->has_indexer,
                              .classes = m->classes,
                              .n_classes = m->n_classes,
                              .layer_class = m->layer_class};
}

static sl_geometry make(const mix *m, sl_layout layout)
{
    sl_geometry g;
    sl_err err = {0};
    const sl_geometry_opts o = opts_of(m, layout);
    ck_assert_msg(sl_geometry_make(&o, &g, &err) == SL_OK, "%s", err.text);
    return g;
}

static void check_sums(const mix *m, const sl_geometry *g)
{
    int64_t page = 0, state = 0;
    for (int l = 0; l < LAYERS; l++) {
        int64_t layer = 0;
        for (int p = 0; p < m->want[l].n; p++)
            layer += m->want[l].unit[p] * m->want[l].units[p];
        ck_assert_int_eq(sl_geometry_layer_bytes(g, l), layer);
        ck_assert_int_eq(sl_geometry_class_of(g, l)->state.bytes, m->want[l].state);
        page += layer, state += m->want[l].state;
    }
    ck_assert_int_eq(g->page_bytes, page);
    ck_assert_int_eq(g->state_bytes, state);
}

/* Marks each byte of the planes with its layer; planes and units that the restatement does not have are refused. */
static void mark_layers(const mix *m, const sl_geometry *g, uint8_t *map, int64_t size)
{
    for (int l = 0; l < LAYERS; l++) {
        int n = 0;
        for (int p = 0; p < g->shape.n_planes; p++) {
            const sl_host_plane at = sl_geometry_plane(g, map, PAGES, l, p);
            if (!at.base)
                continue;
            if (n == m->want[l].n)
                ck_abort_msg("layer %d has plane %s", l, g->shape.planes[p].name);
            for (int64_t u = 0; u < PAGES * m->want[l].units[n]; u++)
                for (int64_t b = 0; b < m->want[l].unit[n]; b++) {
                    const int64_t of = m->want[l].units[n];
                    const int64_t i = at.base - map + u / of * at.page_stride + u % of * at.row_stride + b;
                    if (i < 0 || i >= size || map[i])
                        ck_abort_msg("layer %d, plane %d: byte %ld of %ld", l, p, (long)i, (long)size);
                    map[i] = (uint8_t)(l + 1);
                }
            n++;
        }
        ck_assert_int_eq(n, m->want[l].n);
    }
    for (int64_t i = 0; i < size; i++)
        if (!map[i])
            ck_abort_msg("byte %ld is in no plane", (long)i);
}

START_TEST(planes_of_all_classes_tile_the_arena)
{
    mix m;
    random_mix(&m, (uint64_t)_i);
    for (int layout = 0; layout < 3; layout++) {
        const sl_geometry g = make(&m, (sl_layout)layout);
        const int64_t size = PAGES * g.page_bytes;
        uint8_t *map = calloc((size_t)size, 1);
        check_sums(&m, &g);
        mark_layers(&m, &g, map, size);
        free(map);
    }
}
END_TEST

START_TEST(wire_form_of_classes)
{
    mix m;
    random_mix(&m, (uint64_t)_i);
    const sl_geometry g = make(&m, (sl_layout)(_i % 3));
    sl_geometry back;
    sl_err err = {0};
    sl_wr w;
    sl_wr_init(&w);
    sl_geometry_write(&g, &w);
    ck_assert_msg(sl_geometry_read(w.data, w.len, &back, &err) == SL_OK, "%s", err.text);
    ck_assert_mem_eq(&back, &g, sizeof g);
    ck_assert_int_eq(sl_geometry_compatible(&g, &back, &err), SL_OK);
    for (size_t n = 0; n < w.len; n += 7) {
        uint8_t *copy = malloc(n ? n : 1); /* of its own, so that a sanitizer sees a read beyond the end */
        memcpy(copy, w.data, n);
        ck_assert_int_eq(sl_geometry_read(copy, n, &back, &err), SL_ERR_CORRUPT);
        free(copy);
    }
    /* What is accepted after a change says so itself: it is another geometry, whose only form are these bytes. */
    for (size_t i = 0; i < w.len; i++) {
        sl_wr again;
        w.data[i] ^= (uint8_t)(1u << (i % 8));
        sl_wr_init(&again);
        if (sl_geometry_read(w.data, w.len, &back, &err) == SL_OK) {
            sl_geometry_write(&back, &again);
            if (again.len != w.len || memcmp(again.data, w.data, w.len) != 0 ||
                memcmp(&back, &g, sizeof g) == 0)
                ck_abort_msg("mix %d: byte %zu may be changed", _i, i);
        }
        sl_wr_free(&again);
        w.data[i] ^= (uint8_t)(1u << (i % 8));
    }
    sl_wr_free(&w);
}
END_TEST

START_TEST(checksums_cover_every_layer)
{
    mix m;
    uint64_t seed = (uint64_t)_i;
    random_mix(&m, seed);
    const sl_geometry g = make(&m, (sl_layout)(_i % 3));
    const int64_t size = PAGES * g.page_bytes;
    sl_arena *a = NULL;
    sl_err err = {0};
    sl_arena_opts o = {.bytes = (uint64_t)size, .huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    ck_assert_msg(sl_arena_create(&g, &o, &a, &err) == SL_OK, "%s", err.text);
    uint8_t *base = sl_arena_base(a), *map = calloc((size_t)size, 1);
    mark_layers(&m, &g, map, size);
    for (int64_t i = 0; i < size; i++)
        base[i] = (uint8_t)rnd(&seed);
    uint32_t before[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        before[l] = sl_arena_page_crc(a, 1, l, SL_PAGE_TOKENS);
    for (int k = 0; k < 300; k++) {
        const int64_t at = (int64_t)(rnd(&seed) % (uint64_t)size);
        bool of_page = false, other = false;
        base[at] ^= 0x40;
        for (int l = 0; l < LAYERS; l++) {
            const bool differs = sl_arena_page_crc(a, 1, l, SL_PAGE_TOKENS) != before[l];
            of_page |= differs && l + 1 == map[at];
            other |= differs && l + 1 != map[at];
        }
        base[at] ^= 0x40;
        bool inside = g.layout != SL_LAYOUT_LAYER_FIRST && at / g.page_bytes == 1;
        struct iovec *spans = calloc((size_t)sl_arena_n_spans(a), sizeof *spans);
        sl_arena_spans(a, 1, spans);
        for (int32_t i = 0; i < sl_arena_n_spans(a); i++)
            inside |= base + at >= (uint8_t *)spans[i].iov_base &&
                      base + at < (uint8_t *)spans[i].iov_base + spans[i].iov_len;
        const uint8_t *first = spans[0].iov_base;
        free(spans);
        if (sl_arena_page_at(a, first) != 1 || sl_arena_page_at(a, first + 1) != -1 ||
            sl_arena_page_at(a, base - 1) != -1 || sl_arena_page_at(a, base + size) == 0)
            ck_abort_msg("mix %d: the first span of a page is not found", _i);
        if (other || of_page != inside)
            ck_abort_msg("mix %d: byte %ld of layer %d", _i, (long)at, map[at] - 1);
    }
    free(map);
    sl_arena_destroy(a);
}
END_TEST

/* The names under which pages are stored are hashes of the wire form: they were these before there were classes. */
START_TEST(stored_pages_keep_their_names)
{
    static const uint64_t of_pages[4][2] = {{0x6ea7bf43493e55d3, 0x639d9cf74fc0ec5d},
                                            {0x03e8c11e32930cd4, 0xfcf56e8b1068f3be},
                                            {0xa1dcbe25d29cf8e7, 0x0f689b00ba9b8efb},
                                            {0x8bdf0beb396141c0, 0x1e76926b6de8400c}};
    static const uint64_t of_heads[4][2] = {{0x8041aa4ec40dcbe3, 0xb5c1332bb71b5a82},
                                            {0xccd467b05de3de6c, 0x29e9a3027f3790f5},
                                            {0x092dce77f77fa885, 0x9d00d1c658a283e6},
                                            {0x7565d4146691b653, 0x18c8620c400de1c2}};
    for (int i = 0; i < 12; i++) {
        const int indexers = i % 4;
        const sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_FP8),
                                 .index_format = SL_INDEX_OFFICIAL,
                                 .latent = 128,
                                 .rope = 16,
                                 .index_dim = indexers ? 32 : 0};
        bool has[5];
        for (int l = 0; l < 5; l++)
            has[l] = l % 3 < indexers;
        sl_cache_shape shape;
        sl_geometry g;
        sl_key key;
        const sl_geometry_opts o = {.fingerprint = {3, 4},
                                    .layout = (sl_layout)(i / 4),
                                    .shape = &shape,
                                    .n_layers = 5,
                                    .has_indexer = has};
        ck_assert_int_eq(sl_cache_shape_make(&d, &shape, NULL), SL_OK);
        ck_assert_int_eq(sl_geometry_make(&o, &g, NULL), SL_OK);
        ck_assert(sl_geometry_format(&g, &key));
        const uint64_t *want = i / 4 == SL_LAYOUT_PAGE_HEAD ? of_heads[indexers] : of_pages[indexers];
        ck_assert_uint_eq(key.hi, want[0]);
        ck_assert_uint_eq(key.lo, want[1]);
        ck_assert_int_eq(g.n_classes, indexers == 0 || indexers == 3 ? 1 : 2);
    }
}
END_TEST

/* A form with classes that say no more than planes is refused: stored pages would have two names. */
START_TEST(one_form_alone)
{
    static const bool all[2] = {true, true};
    const sl_geometry g =
        mla_geometry((sl_key){3, 4}, SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_F32, SL_INDEX_PLAIN, 2, all);
    sl_geometry back;
    sl_err err = {0};
    for (int other = 0; other < 2; other++) {
        sl_wr w;
        sl_wr_init(&w);
        sl_geometry_write(&g, &w);
        w.data[0] = 3;                             /* the version */
        w.data[w.len - 1] = w.data[w.len - 2] = 0; /* the class of each layer, in place of its planes */
        sl_wr_u8(&w, 1);
        sl_wr_str(&w, other ? "other" : "tokens");
        sl_wr_u8(&w, SL_LAYER_TOKENS);
        sl_wr_u8(&w, 3); /* rows and index keys */
        sl_wr_i32(&w, 0);
        sl_wr_str(&w, "");
        sl_wr_u64(&w, 0);
        sl_wr_u64(&w, 0);
        ck_assert_int_eq(sl_geometry_read(w.data, w.len, &back, &err), other ? SL_OK : SL_ERR_CORRUPT);
        if (!other)
            ck_assert_msg(strstr(err.text, "say no more than planes") != NULL, "%s", err.text);
        sl_wr_free(&w);
    }
}
END_TEST

/* Each change of a description that cannot be, and what the refusal names. */
static const char *spoil(mix *m, int i)
{
    sl_layer_class *k = m->classes;
    switch (i) {
    case 0:
        return k[0].name[0] = 0, "no name";
    case 1:
        return k[2].state.bytes = 0, "state of 0 bytes";
    case 2:
        return k[2].state.bytes = SL_STATE_BYTES_MAX + 1ll, "bytes, 1..";
    case 3:
        return k[2].state.format[0] = 0, "has a format";
    case 4:
        return k[2].window = 5, "ring of 5 tokens";
    case 5:
        return k[3].window = 0, "ring of 0 tokens";
    case 6:
        return k[1].n_planes = 0, "0 planes";
    case 7:
        return k[2].n_planes = 1, "1 planes";
    case 8:
        return k[1].planes[0].role = SL_PLANE_META, "holds no blocks";
    case 9:
        return k[1].planes[0].indexed_only = true, "every layer of its class";
    case 10:
        return snprintf(k[1].planes[0].name, SL_CACHE_NAME, "rows"), "exists twice";
    case 11:
        return k[1].planes[0].unit_tokens = 48, "unit of 48 tokens";
    case 12:
        return m->layer_class[3] = 4, "layer 3: class 4 of 4";
    case 13:
        return k[0].kind = (sl_layer_kind)4, "kind 4 is unknown";
    case 14:
        return m->n_classes = SL_MODEL_CLASSES + 1, "classes are stated";
    case 15:
        return memset(m->layer_class, 2, sizeof m->layer_class), "no layer has rows";
    default:
        return NULL;
    }
}

static void four_kinds(mix *m)
{
    uint64_t seed = 5;
    random_mix(m, 1);
    m->n_classes = SL_MODEL_CLASSES;
    for (int c = 0; c < SL_MODEL_CLASSES; c++)
        random_class(m, c, (sl_layer_kind)((c == 3 ? 2 : c == 2 ? 3 : c)), &seed);
    for (int l = 0; l < LAYERS; l++)
        m->layer_class[l] = (uint8_t)(l % SL_MODEL_CLASSES);
}

START_TEST(what_cannot_be_is_refused_by_name)
{
    mix m;
    sl_geometry g;
    for (int i = 0;; i++) {
        sl_err err = {0};
        four_kinds(&m);
        sl_geometry_opts o = opts_of(&m, SL_LAYOUT_PAGE_FIRST);
        ck_assert_int_eq(sl_geometry_make(&o, &g, &err), SL_OK);
        const char *says = spoil(&m, i);
        if (!says)
            break;
        o = opts_of(&m, SL_LAYOUT_PAGE_FIRST);
        ck_assert_int_eq(sl_geometry_make(&o, &g, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, says) != NULL, "%d: %s", i, err.text);
    }
}
END_TEST

START_TEST(differences_between_classes_are_named)
{
    static const char *const says[] = {"layer 3: state differs",
                                       "layer 3: state differs",
                                       "layer 3: format of the state",
                                       "layer 3: kind of layer",
                                       "unit_tokens",
                                       "layer 0: cache plane"};
    for (int i = 0; i < (int)SL_COUNT(says); i++) {
        mix m;
        sl_err err = {0};
        four_kinds(&m);
        const sl_geometry a = make(&m, SL_LAYOUT_PAGE_FIRST);
        m.classes[3].state.bytes += i == 0;
        m.classes[3].window += i == 1;
        m.classes[3].state.format[0] ^= i == 2;
        if (i == 3)
            m.classes[3].kind = SL_LAYER_STATE, m.classes[3].window = 0;
        if (i == 4)
            m.classes[1].planes[0].unit_tokens = m.classes[1].planes[0].unit_tokens == 4 ? 16 : 4;
        m.has_indexer[0] ^= i == 5;
        const sl_geometry b = make(&m, SL_LAYOUT_PAGE_FIRST);
        ck_assert_int_eq(sl_geometry_compatible(&a, &b, &err), SL_ERR_REFUSED);
        ck_assert_msg(strstr(err.text, says[i]) != NULL, "%s: %s", says[i], err.text);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("layers");
    TCase *t = tcase_create("layers");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, planes_of_all_classes_tile_the_arena, 0, MIXES);
    tcase_add_loop_test(t, wire_form_of_classes, 0, MIXES);
    tcase_add_loop_test(t, checksums_cover_every_layer, 0, MIXES / 3);
    tcase_add_test(t, stored_pages_keep_their_names);
    tcase_add_test(t, one_form_alone);
    tcase_add_test(t, what_cannot_be_is_refused_by_name);
    tcase_add_test(t, differences_between_classes_are_named);
    suite_add_tcase(s, t);
    return run_suite(s);
}
