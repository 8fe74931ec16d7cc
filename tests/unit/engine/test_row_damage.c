/*
 * Rows that are damaged in host memory while a hierarchical sequence runs, on tiny checkpoints: every step either has the
 * logits of an undamaged run, bit by bit, or the engine names the page, whichever bytes of a row or of a checksum have
 * changed. Without checksums the same damage changes logits, so it is the comparison that finds it. Rows are those of tokens, and
 * entries of several tokens, which are swapped in as rows are. About 2 s.
 */
#include <check.h>
#include <string.h>

#include "fix.h"
#include "kernels/rowsum.h"
#include "kvstore/snapshot.h"
#include "tests/unit/run_suite.h"

enum { PROMPT = 200, LENGTH = 226, FULL = PROMPT / SL_PAGE_TOKENS };

static const fix_opts configs[] = {
    {.dir = "tests/golden/model/ds-yarn", .rows = SL_ROW_MLA_F32, .index = SL_INDEX_PLAIN, .act = SL_F32},
    {.dir = "tests/golden/model/ds-fp8", .rows = SL_ROW_MLA_FP8, .index = SL_INDEX_OFFICIAL, .act = SL_F32},
    {.dir = "tests/golden/model/llama-odd",
     .rows = SL_ROW_GQA_F32,
     .act = SL_F32,
     .algorithm = "quest",
     .hot_rows = 64,
     .select = {.token_budget = 64, .block_tokens = 16}}, /* a list and rows for each KV head, long rows */
    {.dir = "tests/golden/model/qwen3-norms",
     .rows = SL_ROW_GQA_BF16,
     .act = SL_BF16,
     .algorithm = "quest",
     .hot_rows = 64,
     .select = {.token_budget = 64, .block_tokens = 4, .shared_lists = true}},
    {.dir = "tests/golden/model/v4-flash",
     .rows = SL_ROW_GQA_F32,
     .act = SL_F32,
     .algorithm = "dense",
     .hot_rows = 256},
};

static fix f;
static fix_text ref;
static fix_run owner, snapshot; /* snapshot: pages for the states after the prompt, if there are any */

static const sl_key any_key = {1, 2};

static bool has_states(void)
{
    return sl_engine_state_bytes(f.engine) > 0;
}

static void open_config(int i)
{
    fix_opts o = configs[i];
    o.max_seqs = 2, o.max_hot = 1, o.tail_rows = SL_PAGE_TOKENS, o.max_context = 256, o.row_sums = true,
    o.host_pages = 64;
    o.layout = (sl_layout)(i % 3);
    fix_open(&f, &o);
    fix_reference(&f, &ref, PROMPT, LENGTH, 21 + (uint64_t)i);
    owner = (fix_run){0};
    fix_text t = ref;
    fix_seq_open(&f, &owner, SL_RESIDENT, 0, LENGTH);
    fix_feed(&f, &owner, &t, PROMPT, 128);
    snapshot = (fix_run){0};
    if (has_states()) {
        fix_grow(&f, &snapshot, sl_snapshot_pages(sl_arena_geometry(f.arena)) * SL_PAGE_TOKENS);
        ck_assert_int_eq(sl_engine_seq_save(f.engine, owner.seq, any_key, snapshot.pages, NULL), SL_OK);
    }
    fix_seq_close(&f, &owner, true); /* its pages stay */
    for (int p = 0; p < FULL; p++)
        sl_row_sums_make(f.row_sums, owner.pages[p]);
}

/* ---- what is done to a page of one layer; done twice, it is undone ---- */

typedef void damage_fn(uint8_t *row, int64_t bytes);

static void first_byte(uint8_t *row, int64_t bytes)
{
    (void)bytes;
    row[0] ^= 1;
}

static void last_byte(uint8_t *row, int64_t bytes)
{
    row[bytes - 1] ^= 0x80;
}

static void one_between(uint8_t *row, int64_t bytes)
{
    row[bytes / 2 + 3] ^= 0x10;
}

static void top_bits(uint8_t *row, int64_t bytes) /* in a plain sum they would cancel */
{
    for (int64_t i = 3; i < bytes; i += 4)
        row[i] ^= 0x80;
}

static void halves_change_places(uint8_t *row, int64_t bytes)
{
    for (int64_t i = 0; i < bytes / 2; i++) {
        uint8_t a = row[i];
        row[i] = row[bytes - bytes / 2 + i], row[bytes - bytes / 2 + i] = a;
    }
}

static void every_byte(uint8_t *row, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        row[i] ^= 0xff;
}

static damage_fn *const kinds[] = {first_byte,           last_byte, one_between, top_bits,
                                   halves_change_places, every_byte};
enum { KINDS = SL_COUNT(kinds), SUMS = KINDS /* instead of the rows, their checksums */ };

/* The plane of a layer whose rows are fetched; -1: none. */
static int32_t fetched(int32_t layer)
{
    const sl_geometry *g = sl_arena_geometry(f.arena);
    if (sl_row_sums_layer(f.row_sums, layer))
        return SL_CACHE_ROWS;
    int32_t p = 0;
    while (!sl_geometry_has(g, layer, p) || g->shape.planes[p].role != SL_PLANE_BLOCKS)
        if (++p == g->shape.n_planes)
            return -1;
    return g->shape.planes[p].unit_tokens == 4 ? p : -1; /* the others are on the device whole */
}

/* The first layer from this one on that has such rows. */
static int32_t layer_from(int32_t layer)
{
    while (fetched(layer % f.cfg->n_layers) < 0)
        layer++;
    return layer % f.cfg->n_layers;
}

static void damage(int kind, int32_t page, int32_t layer)
{
    const sl_geometry *g = sl_arena_geometry(f.arena);
    const int32_t plane = fetched(layer);
    const sl_cache_plane *p = &g->shape.planes[plane];
    int64_t bytes = sl_cache_unit_bytes(p), n = sl_cache_page_units(p), parts = sl_rowsum_parts(bytes);
    sl_host_plane at = sl_geometry_plane(g, sl_arena_base(f.arena), sl_arena_pages(f.arena), layer, plane);
    const uint32_t *of =
        plane == SL_CACHE_ROWS ? sl_row_sums_layer(f.row_sums, layer) : sl_row_sums_blocks(f.row_sums, layer);
    ck_assert_ptr_nonnull(of);
    uint32_t *sums = (uint32_t *)(uintptr_t)of + page * n * parts;
    for (int32_t u = 0; u < n; u++) {
        if (kind == SUMS)
            sums[u * parts + u % parts] ^= 1u << u % 31 << 1;
        else
            kinds[kind](at.base + page * at.page_stride + u / p->heads * at.row_stride + u % p->heads * bytes,
                        bytes);
    }
}

/* ---- a run over it ---- */

typedef struct seen {
    int32_t n, page;
} seen;

static void found(void *ctx, int32_t page)
{
    seen *s = ctx;
    s->n++;
    s->page = page;
}

/* Decodes over the pages until the end of the text or until damage is named. Returns whether a step differed, and *s. */
static bool decode(int kind, int32_t page, int32_t layer, seen *s)
{
    fix_text t = ref;
    bool differs = false;
    memset(t.logits, 0, sizeof t.logits);
    *s = (seen){.page = -1};
    fix_seq_open(&f, &owner, SL_HIERARCHICAL, PROMPT, LENGTH);
    if (has_states())
        ck_assert_int_eq(sl_engine_seq_restore(f.engine, owner.seq, any_key, snapshot.pages, NULL), SL_OK);
    for (int32_t at = PROMPT; at < LENGTH && s->n == 0; at++) {
        if (at == PROMPT + 3 && kind >= 0)
            damage(kind, page, layer);
        fix_feed(&f, &owner, &t, at + 1, 1);
        int32_t n = sl_engine_damaged(f.engine, found, s);
        ck_assert_int_eq(n, s->n);
        differs |= n == 0 && !sl_key_eq(t.logits[at], ref.logits[at]);
    }
    fix_seq_close(&f, &owner, true);
    if (kind >= 0)
        damage(kind, page, layer);
    return differs;
}

START_TEST(no_step_from_damaged_rows)
{
    seen s;
    int named = 0;
    open_config(_i);
    ck_assert(!decode(-1, 0, 0, &s));
    ck_assert_int_eq(s.n, 0);
    for (int kind = 0; kind <= KINDS; kind++) {
        for (int32_t p = 0; p < FULL; p++) {
            int32_t page = owner.pages[p];
            if (decode(kind, page, layer_from(kind + p), &s))
                ck_abort_msg("damage %d of page %d changed logits and was not named", kind, p);
            ck_assert_int_le(s.n, 1);
            ck_assert(s.n == 0 || s.page == page);
            named += s.n;
        }
    }
    ck_assert_int_ge(named, KINDS);   /* many rows of a page are fetched in 23 steps */
    ck_assert(!decode(-1, 0, 0, &s)); /* and nothing is left of the damage */
    ck_assert_int_eq(s.n, 0);
    fix_close(&f);
}
END_TEST

/* The rows of a page that a request is to fill again have no checksums, and then the same damage is not found. */
START_TEST(without_checksums)
{
    seen s;
    int differ = 0;
    open_config(_i);
    sl_row_sums_forget(f.row_sums, owner.pages, FULL);
    for (int32_t p = 0; p < FULL; p++) {
        differ += decode(KINDS - 1, owner.pages[p], layer_from(0), &s);
        ck_assert_int_eq(s.n, 0);
    }
    ck_assert_int_ge(differ, 1);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("row_damage");
    TCase *t = tcase_create("row_damage");
    tcase_set_timeout(t, 300);
    add_variants(t, no_step_from_damaged_rows, SL_COUNT(configs));
    add_variants(t, without_checksums, SL_COUNT(configs));
    suite_add_tcase(s, t);
    return run_suite(s);
}
