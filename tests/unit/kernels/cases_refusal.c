/* Cases in which an op must refuse: bad dimensions, ids out of range, missing pages, too little room. Nothing
 * may be written. */
#include <string.h>

#include "kernels/formats.h"
#include "tests/unit/kernels/batch.h"

static void embed_id(cf_run *r, const int64_t *a)
{
    int32_t ids[3] = {0, (int32_t)a[1], 1};
    sl_embed_params p = {.tokens = 3, .dim = 4, .vocab = 5, .table_dtype = SL_F32, .act = SL_F32};

    p.ids = cf_mem(r, ids, sizeof(ids));
    p.table = cf_matrix(r, 1, 0, 5, 4, 4, SL_F32, 1);
    p.out = cf_mem(r, NULL, 48);
    cf_refused(r, SL_OP_EMBED, &p, SL_ERR_INVALID, "id");
    cf_out(r, "ids", p.ids, 1, sizeof(ids), sizeof(ids), CF_BYTES, 0);
}

static void linear_shapes(cf_run *r, const int64_t *a)
{
    sl_linear_params good = {.tokens = 2, .ld_x = 8, .ld_out = 6, .act = SL_F32, .out_dtype = SL_F32}, p;

    (void)a;
    good.w = cf_weight(r, 1, 6, 8, SL_F32);
    good.x = cf_matrix(r, 2, 0, 2, 8, 8, SL_F32, 1);
    good.out = cf_mem(r, NULL, 48);
    p = good;
    p.ld_x = 7;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_INVALID, "ld_x");
    p = good;
    p.ld_out = 5;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_INVALID, "ld_out");
    p = good;
    p.tokens = -1;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_INVALID, "tokens");
    p = good;
    p.w.dtype = SL_I32;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_UNSUPPORTED, "w");
    p = good;
    p.w.dtype = SL_F8_E4M3;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_INVALID, "scales");
    p = good;
    p.act = SL_F16;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_UNSUPPORTED, "act");
    p = good;
    p.x = NULL;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_INVALID, "x");
    p = good;
    p.out = (uint8_t *)good.out + 1;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_INVALID, "out");
    p = good;
    p.w.in = INT32_MAX;
    p.w.out = INT32_MAX;
    p.ld_x = p.ld_out = INT32_MAX;
    p.tokens = INT32_MAX;
    p.w.data = NULL;
    cf_refused(r, SL_OP_LINEAR, &p, SL_ERR_INVALID, "w");
    cf_op(r, SL_OP_LINEAR, &good);
    cf_out(r, "out", good.out, 2, 24, 24, CF_F32, 5e-6);
}

static void moe_ids(cf_run *r, const int64_t *a)
{
    int32_t ids[4] = {0, 1, 1, (int32_t)a[1]};
    sl_moe_params p = {.tokens = 2, .hidden = 8, .inter = 8, .experts = 3, .top_k = 2, .act = SL_F32};
    sl_weight *w = cf_temp(r, 3 * sizeof(*w));

    w[0] = w[1] = w[2] = cf_weight(r, 1, 8, 8, SL_F32);
    p.gate = p.up = p.down = w;
    p.x = cf_matrix(r, 2, 0, 2, 8, 8, SL_F32, 1);
    p.expert_ids = cf_mem(r, ids, sizeof(ids));
    p.weights = cf_matrix(r, 3, 0, 2, 2, 2, SL_F32, 1);
    p.out = cf_mem(r, NULL, 64);
    p.workspace_bytes = sl_moe_workspace_bytes(2, 8, 8, 3, 2);
    p.workspace = cf_mem(r, NULL, p.workspace_bytes);
    cf_refused(r, SL_OP_MOE, &p, SL_ERR_INVALID, a[1] == 1 ? "twice" : "id");
    p.workspace_bytes--;
    cf_refused(r, SL_OP_MOE, &p, SL_ERR_INVALID, "workspace_bytes");
    cf_out(r, "x", p.x, 1, 64, 64, CF_BYTES, 0);
}

/* A batch of 2 hierarchical sequences at position 99 and everything resolve needs, all valid. */
typedef struct hier {
    sl_seq_tables t;
    sl_resolve_params p;
    int32_t ids[2][8], seq[2], pos[2], pages[2][2], slot[2];
} hier;

static void hier_make(cf_run *r, hier *h)
{
    sl_hot_reset_params reset = {.slot = -1, .hot_slots = 2, .hot_rows = 6};
    const uint32_t one = 1;

    memset(h, 0, sizeof(*h));
    for (int s = 0; s < 2; s++) {
        h->seq[s] = s;
        h->pos[s] = 99;
        h->slot[s] = s;
        for (int i = 0; i < 2; i++)
            h->pages[s][i] = 2 * s + i;
        for (int i = 0; i < 8; i++)
            h->ids[s][i] = i < 6 ? 10 * i : -1;
    }
    h->t = (sl_seq_tables){.n_tokens = 2, .n_seqs = 2, .ld = 2};
    h->t.token_seq = cf_mem(r, h->seq, sizeof(h->seq));
    h->t.token_pos = cf_mem(r, h->pos, sizeof(h->pos));
    h->t.host_pages = cf_mem(r, h->pages, sizeof(h->pages));
    h->t.row_pages = cf_mem(r, h->pages, sizeof(h->pages));
    h->t.index_pages = cf_mem(r, h->pages, sizeof(h->pages));
    h->t.hot_slot = cf_mem(r, h->slot, sizeof(h->slot));
    h->p = (sl_resolve_params){.seqs = &h->t, .miss_cap = 12, .k = 8, .ld_ids = 8, .policy = SL_EVICT_LRU};
    h->p.step = cf_mem(r, &one, 4);
    h->p.rows = (sl_row_view){.base = cf_mem(r, NULL, 16), .row_bytes = 16, .hot_rows = 6, .tail_rows = 2};
    h->p.hot.max_tokens = 128;
    h->p.hot.slot_of = cf_mem(r, NULL, 2 * 2 * 128);
    h->p.hot.token_of = cf_mem(r, NULL, 4 * 2 * 6);
    h->p.hot.stamp = cf_mem(r, NULL, 4 * 2 * 6);
    h->p.hot.counters = cf_mem(r, NULL, 32);
    h->p.hot.prev = cf_mem(r, NULL, 2 * 2 * 7);
    h->p.hot.next = cf_mem(r, NULL, 2 * 2 * 7);
    h->p.hot.cursor = cf_mem(r, NULL, 8);
    h->p.ids = cf_mem(r, h->ids, sizeof(h->ids));
    h->p.phys = cf_mem(r, NULL, sizeof(h->ids));
    h->p.miss_src = cf_mem(r, NULL, 8 * 12);
    h->p.miss_dst = cf_mem(r, NULL, 4 * 12);
    h->p.miss_count = cf_mem(r, NULL, 4);
    reset.hot = h->p.hot;
    cf_op(r, SL_OP_HOT_RESET, &reset);
}

#define UNCONST(p) ((void *)(uintptr_t)(p))

/* What the refusal of a resolve that was spoiled in one way says, by the number of the way. */
static const struct {
    sl_status st;
    const char *field;
} resolve_says[] = {
    {SL_ERR_INVALID, "ascending"}, {SL_ERR_INVALID, "0..pos"},     {SL_ERR_UNSUPPORTED, "several tokens"},
    {SL_ERR_INVALID, "page"},      {SL_ERR_EXHAUSTED, "hot_rows"}, {SL_ERR_EXHAUSTED, "miss_cap"},
    {SL_ERR_INVALID, "sequence"},  {SL_ERR_INVALID, "position"},   {SL_ERR_INVALID, "position"},
    {SL_ERR_INVALID, "step"},      {SL_ERR_INVALID, "step"},       {SL_ERR_UNSUPPORTED, "hot_rows"},
    {SL_ERR_INVALID, "tail_rows"}, {SL_ERR_EXHAUSTED, "hot_rows"}, {SL_ERR_INVALID, "tail_spare"},
    {SL_ERR_INVALID, "ld_ids"},
};

/* The lists, tokens and pages that the op reads on the device. */
static void spoil_data(cf_run *r, hier *h, int64_t way)
{
    switch (way) {
    case 0:
        h->ids[1][2] = 10;
        break;
    case 1:
        h->ids[1][5] = 100;
        break;
    case 2: /* a run of two waits for blocks */
        h->seq[1] = 0;
        h->pos[0] = 98;
        h->p.block_need = cf_mem(r, NULL, 8);
        h->p.block_done = cf_mem(r, NULL, 8);
        h->p.miss_block = cf_mem(r, NULL, 4 * 12);
        h->p.ld_blocks = 1;
        break;
    case 3:
        h->pages[1][0] = -1;
        break;
    case 4:
        h->ids[0][6] = 60;
        break;
    case 6:
        h->seq[1] = 2;
        break;
    case 7:
        h->pos[1] = 128;
        break;
    case 13: /* the union of two lists is longer than a list may be */
        h->seq[1] = 0;
        h->pos[0] = 98;
        h->ids[1][3] = 31;
        break;
    default: /* its parameters are */
        break;
    }
}

static void spoil_params(sl_resolve_params *p, uint32_t *step, int64_t way)
{
    if (way == 5)
        p->miss_cap = 11;
    if (way == 8)
        p->hot.max_tokens = 99;
    if (way == 9)
        *step = 0;
    if (way == 10) {
        p->policy = SL_EVICT_CLOCK;
        *step = 1u << 31;
    }
    if (way == 11)
        p->rows.hot_rows = SL_HOT_ROWS_MAX + 1;
    if (way == 12)
        p->rows.tail_rows = 0;
    if (way == 14)
        p->tail_spare = 2;
    if (way == 15)
        p->ld_ids = 7;
}

/* T = 1, way */
static void resolve(cf_run *r, const int64_t *a)
{
    hier h;
    const int64_t way = a[1];
    uint32_t step = 1;

    hier_make(r, &h);
    spoil_data(r, &h, way);
    spoil_params(&h.p, &step, way);
    cf_put(r, UNCONST(h.p.ids), h.ids, sizeof(h.ids));
    cf_put(r, UNCONST(h.p.step), &step, 4);
    cf_put(r, UNCONST(h.t.token_seq), h.seq, sizeof(h.seq));
    cf_put(r, UNCONST(h.t.token_pos), h.pos, sizeof(h.pos));
    cf_put(r, UNCONST(h.t.host_pages), h.pages, sizeof(h.pages));
    cf_refused(r, SL_OP_RESOLVE, &h.p, resolve_says[way].st, resolve_says[way].field);
    cf_out(r, "ids", h.p.ids, 1, sizeof(h.ids), sizeof(h.ids), CF_BYTES, 0);
}

/* T = 1, what: the ops that write rows and keys where the tables say. */
static void tables(cf_run *r, const int64_t *a)
{
    hier h;
    sl_kv_append_params kv = {
        .ld_kv = 4, .lora = 4, .eps = 1e-6f, .format = SL_ROW_MLA_F32, .act = SL_F32, .norm_dtype = SL_F32};
    sl_index_append_params key = {
        .ld_k = 4, .dim = 4, .eps = 1e-6f, .format = SL_INDEX_PLAIN, .act = SL_F32, .norm_dtype = SL_F32};
    sl_index_scores_params sc = {
        .heads = 1, .dim = 4, .ld_scores = 128, .token_count = 2, .format = SL_INDEX_PLAIN};
    int32_t minus[2] = {-1, -1};

    hier_make(r, &h);
    kv.kv = key.k = cf_matrix(r, 1, 0, 2, 4, 4, SL_F32, 1);
    kv.norm = key.norm_weight = key.norm_bias = cf_matrix(r, 2, 0, 1, 4, 4, SL_F32, 1);
    kv.seqs = key.seqs = sc.seqs = &h.t;
    kv.rows = (sl_row_view){.row_bytes = 16, .hot_base = 4 * 64, .hot_rows = 6, .tail_rows = 2};
    kv.rows.base = cf_mem(r, NULL, 16 * (4 * 64 + 2 * 8));
    key.index_page_stride = sc.index_page_stride = 64 * 16;
    sc.index_base = key.index_base = cf_mem(r, NULL, 4 * 64 * 16);
    sc.q = cf_matrix(r, 3, 0, 2, 4, 4, SL_F32, 1);
    sc.weights = cf_matrix(r, 3, 0, 2, 1, 1, SL_F32, 1);
    sc.scores = cf_mem(r, NULL, 4 * 2 * 128);
    switch (a[1]) {
    case 0:
        h.pos[1] = 128;
        cf_put(r, UNCONST(h.t.token_pos), h.pos, sizeof(h.pos));
        cf_refused(r, SL_OP_KV_APPEND, &kv, SL_ERR_INVALID, "position");
        cf_refused(r, SL_OP_INDEX_APPEND, &key, SL_ERR_INVALID, "position");
        cf_refused(r, SL_OP_INDEX_SCORES, &sc, SL_ERR_INVALID, "position");
        break;
    case 1:
        h.seq[0] = -2; /* -1 is padding */
        cf_put(r, UNCONST(h.t.token_seq), h.seq, sizeof(h.seq));
        cf_refused(r, SL_OP_KV_APPEND, &kv, SL_ERR_INVALID, "sequence");
        cf_refused(r, SL_OP_INDEX_APPEND, &key, SL_ERR_INVALID, "sequence");
        cf_refused(r, SL_OP_INDEX_SCORES, &sc, SL_ERR_INVALID, "sequence");
        break;
    case 2:
        h.pages[1][1] = -1;
        cf_put(r, UNCONST(h.t.row_pages), h.pages, sizeof(h.pages));
        cf_put(r, UNCONST(h.t.index_pages), h.pages, sizeof(h.pages));
        cf_put(r, UNCONST(h.t.hot_slot), minus, sizeof(minus));
        cf_refused(r, SL_OP_KV_APPEND, &kv, SL_ERR_INVALID, "page");
        cf_refused(r, SL_OP_INDEX_APPEND, &key, SL_ERR_INVALID, "page");
        cf_refused(r, SL_OP_INDEX_SCORES, &sc, SL_ERR_INVALID, "page");
        break;
    case 3:
        sc.ld_scores = 99;
        cf_refused(r, SL_OP_INDEX_SCORES, &sc, SL_ERR_INVALID, "position");
        sc.token_first = 1;
        cf_refused(r, SL_OP_INDEX_SCORES, &sc, SL_ERR_INVALID, "token_count");
        break;
    default:
        kv.rows.row_bytes = 20;
        cf_refused(r, SL_OP_KV_APPEND, &kv, SL_ERR_INVALID, "row_bytes");
        key.format = SL_INDEX_OFFICIAL;
        key.dim = key.ld_k = 12;
        cf_refused(r, SL_OP_INDEX_APPEND, &key, SL_ERR_UNSUPPORTED, "dim");
        key.dim = 3;
        key.format = SL_INDEX_PLAIN;
        key.index_page_stride = 64;
        cf_refused(r, SL_OP_INDEX_APPEND, &key, SL_ERR_INVALID, "index_page_stride");
    }
    cf_out(r, "q", sc.q, 1, 32, 32, CF_BYTES, 0);
}

static const cf_case cases[] = {
    {SL_OP_EMBED, "refuses id = vocab", embed_id, {1, 5}, 0},
    {SL_OP_EMBED, "refuses a negative id", embed_id, {1, -1}, 0},
    {SL_OP_LINEAR, "refuses bad shapes", linear_shapes, {1}, 0},
    {SL_OP_MOE, "refuses an expert out of range", moe_ids, {1, 3}, 0},
    {SL_OP_RESOLVE, "refuses unsorted ids", resolve, {1, 0}, 0},
    {SL_OP_RESOLVE, "refuses ids after pos", resolve, {1, 1}, 0},
    {SL_OP_RESOLVE, "refuses a run that waits for blocks", resolve, {1, 2}, 0},
    {SL_OP_RESOLVE, "refuses a missing host page", resolve, {1, 3}, 0},
    {SL_OP_RESOLVE, "refuses a small hot buffer", resolve, {1, 4}, 0},
    {SL_OP_RESOLVE, "refuses a small miss list", resolve, {1, 5}, 0},
    {SL_OP_RESOLVE, "refuses a foreign sequence", resolve, {1, 6}, 0},
    {SL_OP_RESOLVE, "refuses a position beyond the table", resolve, {1, 7}, 0},
    {SL_OP_RESOLVE, "refuses a position beyond max_tokens", resolve, {1, 8}, 0},
    {SL_OP_RESOLVE, "refuses step 0", resolve, {1, 9}, 0},
    {SL_OP_RESOLVE, "refuses a worn-out clock", resolve, {1, 10}, 0},
    {SL_OP_RESOLVE, "refuses 65535 hot rows", resolve, {1, 11}, 0},
    {SL_OP_RESOLVE, "refuses an empty tail", resolve, {1, 12}, 0},
    {SL_OP_RESOLVE, "refuses a run longer than hot_rows", resolve, {1, 13}, 0},
    {SL_OP_RESOLVE, "refuses a spare tail", resolve, {1, 14}, 0},
    {SL_OP_RESOLVE, "refuses ld_ids < k", resolve, {1, 15}, 0},
    {SL_OP_KV_APPEND, "refuses positions beyond the table", tables, {1, 0}, 0},
    {SL_OP_KV_APPEND, "refuses a foreign sequence", tables, {1, 1}, 0},
    {SL_OP_KV_APPEND, "refuses missing pages", tables, {1, 2}, 0},
    {SL_OP_INDEX_SCORES, "refuses too few scores", tables, {1, 3}, 0},
    {SL_OP_KV_APPEND, "refuses bad strides", tables, {1, 4}, 0},
};

const cf_table cf_refusal_cases = {cases, SL_COUNT(cases)};
