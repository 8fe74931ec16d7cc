/*
 * Residency of hot slots, and the copies of missing rows; see swapin.h.
 *
 * All layers' state is one allocation, carved per layer; the counters of all layers are adjacent so that one
 * copy reads them (swap_counts.h).
 */
#include "sparse/swapin.h"

#include <stdlib.h>

#include "sparse/swap_counts.h"

enum {
    COUNTERS = SL_SWAP_COUNTERS,
    ALIGN = 256,
    STEP_WORD = 32, /* after the groups' miss counts */
    STEP_COPIES = 4 /* more than the steps in flight, and a power of two */
};
/* stamps of the clock policy are below this; at the limit all hot rows are forgotten */
#define STEP_LIMIT (1u << 31)

struct sl_swapin {
    sl_backend *be;
    sl_swapin_opts o;
    int32_t slots;
    int32_t lists;      /* of a slot: list l of slot s is entry s * lists + l of the arrays of sl_hot_state */
    sl_hot_state *hot;  /* [n_layers] */
    uint8_t *state;     /* device: all layers' maps and lists */
    uint32_t *counters; /* device [n_layers][slots][lists][4]; followed by, and read together with: */
    sl_swap_clock *clock;   /* device [n_layers][groups] */
    uint64_t *reached;      /* device [n_layers][groups] */
    sl_swap_counts *counts; /* NULL without slots */
    int64_t *miss_src;
    int32_t *miss_dst, *miss_count, miss_cap; /* of every group, contiguous; caps of one */
    int32_t groups, group;
    int32_t *miss_block, *block_need, *block_done; /* overlap: [miss_cap], [overlap_tokens][blocks] */
    uint8_t *poison_page;                          /* testing: a page of rows of NaN on the device */
    uint32_t step;                                 /* of the running step */
    /* The same, where the ops read it, and where copies start, which may be late: [STEP_COPIES]. */
    uint32_t *step_dev, *step_host;
    uint64_t device_bytes;
    sl_event *forked, **arrived;              /* of gathers on the side stream: their start; [groups] end */
    bool async, grouped, rows_free, counting; /* counting: the last resolve counted blocks */
    bool several;
};

static uint64_t align_up(uint64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int32_t lists_of(const sl_swapin_opts *o)
{
    return o->lists > 1 ? o->lists : 1;
}

/* Hot rows of one list of a slot. */
static int32_t hot_rows_of(const sl_swapin_opts *o, int32_t layer)
{
    const sl_coord_layer *l = &o->layers[layer];
    return l->resident ? 0 : l->rows.hot_rows / lists_of(o);
}

/* Bytes of one layer's maps and lists. */
static uint64_t layer_bytes(const sl_swapin_opts *o, uint64_t slots, int32_t layer)
{
    const uint64_t hot_rows = (uint64_t)hot_rows_of(o, layer), n = slots * (uint64_t)lists_of(o);
    if (hot_rows == 0)
        return 0;
    return align_up(n * (uint64_t)sl_blocks_for(o->max_tokens, o->block_log2) * 2) +
           2 * align_up(n * hot_rows * 4) + 2 * align_up(n * (hot_rows + 1) * 2) + align_up(n * 4);
}

/* Bytes of the counters, the clocks and the times of waits; and of the part of them that the host reads. */
static uint64_t counter_bytes(const sl_swapin_opts *o)
{
    return (uint64_t)o->n_layers * (uint64_t)o->hot_slots * (uint64_t)lists_of(o) * COUNTERS * 4;
}

static uint64_t clocks_of(const sl_swapin_opts *o)
{
    return (uint64_t)o->n_layers * (uint64_t)(o->groups > 0 ? o->groups : 1);
}

static uint64_t read_bytes(const sl_swapin_opts *o)
{
    return counter_bytes(o) + clocks_of(o) * sizeof(sl_swap_clock);
}

/* Entries of a group's miss list for one list of a slot. */
static int32_t misses_of(const sl_swapin_opts *o)
{
    return o->of_run > o->width ? o->of_run : o->width;
}

void sl_swapin_plan_bytes(const sl_swapin_opts *o, uint64_t *per_slot, uint64_t *fixed)
{
    *per_slot = (uint64_t)lists_of(o) *
                ((uint64_t)o->n_layers * COUNTERS * 4 +
                 (uint64_t)misses_of(o) *
                     ((o->groups > 1 ? (uint64_t)o->groups : 1) * 12 + (o->overlap_tokens > 0 ? 4 : 0)));
    for (int32_t l = 0; l < o->n_layers; l++)
        *per_slot += layer_bytes(o, 1, l);
    *fixed = 7 * ALIGN + clocks_of(o) * (sizeof(sl_swap_clock) + 8) +
             (uint64_t)o->overlap_tokens * (uint64_t)sl_list_blocks(o->width) * 8;
}

static uint8_t *take(uint8_t **at, uint64_t bytes)
{
    uint8_t *p = *at;
    *at += align_up(bytes);
    return p;
}

static void carve(sl_swapin *s)
{
    const uint64_t n = (uint64_t)s->slots * (uint64_t)s->lists;
    const int32_t blocks = sl_blocks_for(s->o.max_tokens, s->o.block_log2);
    uint8_t *at = s->state;
    for (int32_t l = 0; l < s->o.n_layers; l++) {
        sl_hot_state *hot = &s->hot[l];
        uint64_t h = (uint64_t)hot_rows_of(&s->o, l);
        if (h == 0)
            continue;
        hot->slot_of = (uint16_t *)(void *)take(&at, n * (uint64_t)blocks * 2);
        hot->token_of = (int32_t *)(void *)take(&at, n * h * 4);
        hot->stamp = (uint32_t *)(void *)take(&at, n * h * 4);
        hot->prev = (uint16_t *)(void *)take(&at, n * (h + 1) * 2);
        hot->next = (uint16_t *)(void *)take(&at, n * (h + 1) * 2);
        hot->cursor = (int32_t *)(void *)take(&at, n * 4);
        hot->counters = s->counters + (size_t)l * n * COUNTERS;
        hot->max_tokens = blocks;
    }
}

static sl_status device_alloc(sl_swapin *s, uint64_t bytes, void **out, sl_err *err)
{
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, bytes, out, err));
    s->device_bytes += bytes;
    return SL_OK;
}

static sl_status alloc_blocks(sl_swapin *s, sl_err *err)
{
    uint64_t cells = (uint64_t)s->o.overlap_tokens * (uint64_t)sl_list_blocks(s->o.width);
    if (cells == 0)
        return SL_OK;
    SL_TRY(device_alloc(s, (uint64_t)s->miss_cap * 4 + 4, (void **)&s->miss_block, err));
    SL_TRY(device_alloc(s, cells * 8, (void **)&s->block_need, err));
    s->block_done = s->block_need + cells;
    return SL_OK;
}

static sl_status alloc_counters(sl_swapin *s, sl_err *err)
{
    uint64_t bytes = read_bytes(&s->o) + clocks_of(&s->o) * 8;
    SL_TRY(device_alloc(s, bytes, (void **)&s->counters, err));
    s->clock = (sl_swap_clock *)(void *)((uint8_t *)s->counters + counter_bytes(&s->o));
    s->reached = (uint64_t *)(void *)(s->clock + clocks_of(&s->o));
    SL_TRY(sl_be_fill(s->be, s->counters, 0, bytes, err)); /* resident layers are never reset */
    sl_swap_counts_opts o = {.device = s->counters,
                             .layers = s->o.n_layers,
                             .slots = s->slots,
                             .lists = s->lists,
                             .clocks = (int64_t)clocks_of(&s->o)};
    return sl_swap_counts_create(s->be, &o, &s->counts, err);
}

/* Memory for the hot slots: residency state, counters, miss lists. */
static sl_status alloc_slots(sl_swapin *s, sl_err *err)
{
    const uint64_t misses = (uint64_t)s->groups * (uint64_t)s->miss_cap;
    uint64_t state = ALIGN; /* more than zero bytes, even if every layer is resident */
    for (int32_t l = 0; l < s->o.n_layers; l++)
        state += layer_bytes(&s->o, (uint64_t)s->slots, l);
    SL_TRY(device_alloc(s, state, (void **)&s->state, err));
    SL_TRY(alloc_counters(s, err));
    SL_TRY(device_alloc(s, misses * 8 + 8, (void **)&s->miss_src, err));
    SL_TRY(device_alloc(s, misses * 4 + 4, (void **)&s->miss_dst, err));
    return alloc_blocks(s, err);
}

static sl_status alloc_poison(sl_swapin *s, sl_err *err)
{
    int64_t row = 0; /* the first layers may have no rows */
    for (int32_t l = 0; l < s->o.n_layers; l++)
        row = s->o.layers[l].rows.row_bytes > row ? s->o.layers[l].rows.row_bytes : row;
    size_t page = (size_t)(SL_PAGE_TOKENS >> s->o.block_log2) * (size_t)s->lists * (size_t)row;
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, page, (void **)&s->poison_page, err));
    return sl_be_fill(s->be, s->poison_page, 0xff, page, err);
}

static sl_status alloc_all(sl_swapin *s, sl_err *err)
{
    s->hot = calloc((size_t)s->o.n_layers, sizeof *s->hot);
    if (!s->hot)
        return sl_fail(err, SL_ERR_NO_MEMORY, "swap-in manager: out of memory");
    SL_TRY(device_alloc(s, ALIGN, (void **)&s->miss_count, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_HOST, 4 * STEP_COPIES, (void **)&s->step_host, err));
    s->step_dev = (uint32_t *)s->miss_count + STEP_WORD;
    if (s->slots == 0)
        return SL_OK;
    SL_TRY(alloc_slots(s, err));
    return s->o.poison ? alloc_poison(s, err) : SL_OK;
}

/* Rows of a slot in one layer become NaN in every row format: bytes 0xff. The tail only when it is forgotten
 * too. */
static sl_status poison_slot(sl_swapin *s, int32_t layer, int32_t slot, bool tail, sl_err *err)
{
    const sl_row_view *v = &s->o.layers[layer].rows;
    int64_t per = v->hot_rows + v->tail_rows, first = v->hot_base + slot * per, n = tail ? per : v->hot_rows;
    return sl_be_fill(s->be, v->base + first * v->row_bytes, 0xff, (size_t)(n * v->row_bytes), err);
}

static sl_status reset_layer(sl_swapin *s, int32_t layer, int32_t slot, sl_err *err)
{
    int32_t hot_rows = hot_rows_of(&s->o, layer);
    if (hot_rows == 0)
        return SL_OK;
    sl_hot_reset_params p = {.hot = s->hot[layer], .hot_slots = s->slots * s->lists, .hot_rows = hot_rows};
    for (int32_t i = 0; i < s->lists; i++) {
        p.slot = slot * s->lists + i;
        SL_TRY(sl_be_run(s->be, SL_OP_HOT_RESET, &p, err));
    }
    return SL_OK;
}

/* Of a slot that a sequence has: the contents of its rows do not count any more. */
static sl_status reset_slot(sl_swapin *s, int32_t layer, int32_t slot, bool tail, sl_err *err)
{
    SL_TRY(reset_layer(s, layer, slot, err));
    return s->o.poison && hot_rows_of(&s->o, layer) > 0 ? poison_slot(s, layer, slot, tail, err) : SL_OK;
}

/* The rows of a slot without a sequence may have no memory now (engine/device_pool.h), so they are left as they are. */
static sl_status reset_all(sl_swapin *s, sl_err *err)
{
    for (int32_t l = 0; l < s->o.n_layers; l++)
        for (int32_t slot = 0; slot < s->slots; slot++)
            SL_TRY(reset_layer(s, l, slot, err));
    return SL_OK;
}

static sl_status create_events(sl_swapin *s, sl_err *err)
{
    s->arrived = calloc((size_t)s->groups, sizeof(*s->arrived));
    if (!s->arrived)
        return sl_fail(err, SL_ERR_NO_MEMORY, "swap-in manager: out of memory");
    SL_TRY(sl_event_create(s->be, &s->forked, err));
    for (int32_t g = 0; g < s->groups; g++)
        SL_TRY(sl_event_create(s->be, &s->arrived[g], err));
    return SL_OK;
}

static sl_status make_parts(sl_swapin *s, sl_err *err)
{
    SL_TRY(alloc_all(s, err));
    SL_TRY(create_events(s, err));
    if (s->slots == 0)
        return SL_OK;
    carve(s);
    return reset_all(s, err);
}

sl_status sl_swapin_create(sl_backend *be, const sl_swapin_opts *opts, sl_swapin **out, sl_err *err)
{
    sl_swapin *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "swap-in manager: out of memory");
    s->be = be;
    s->o = *opts;
    s->slots = opts->hot_slots;
    s->lists = lists_of(opts);
    s->miss_cap = s->slots * s->lists * misses_of(opts);
    s->groups = opts->groups > 0 ? opts->groups : 1;
    s->async = (sl_backend_caps(be) & SL_BE_ASYNC) != 0;
    sl_status st = make_parts(s, err);
    if (st != SL_OK)
        goto destroy;
    *out = s;
    return SL_OK;
destroy:
    sl_swapin_destroy(s);
    return st;
}

void sl_swapin_destroy(sl_swapin *s)
{
    if (!s)
        return;
    for (int32_t g = 0; s->arrived && g < s->groups; g++)
        sl_event_destroy(s->arrived[g]);
    free(s->arrived);
    sl_event_destroy(s->forked);
    sl_be_free(s->be, SL_MEM_HOST, s->step_host);
    sl_swap_counts_destroy(s->counts);
    sl_be_free(s->be, SL_MEM_DEVICE, s->poison_page);
    sl_be_free(s->be, SL_MEM_DEVICE, s->miss_count);
    sl_be_free(s->be, SL_MEM_DEVICE, s->block_need);
    sl_be_free(s->be, SL_MEM_DEVICE, s->miss_block);
    sl_be_free(s->be, SL_MEM_DEVICE, s->miss_dst);
    sl_be_free(s->be, SL_MEM_DEVICE, s->miss_src);
    sl_be_free(s->be, SL_MEM_DEVICE, s->counters);
    sl_be_free(s->be, SL_MEM_DEVICE, s->state);
    free(s->hot);
    free(s);
}

uint64_t sl_swapin_device_bytes(const sl_swapin *s)
{
    return s->device_bytes;
}

const sl_hot_state *sl_swapin_state(const sl_swapin *s, int32_t layer)
{
    return &s->hot[layer];
}

sl_status sl_swapin_reset(sl_swapin *s, int32_t slot, bool tail, sl_err *err)
{
    SL_CHECK(slot >= 0 && slot < s->o.hot_slots, "hot slot %d", slot);
    SL_TRY(sl_swap_counts_mark(s->counts, slot, err));
    for (int32_t l = 0; l < s->o.n_layers; l++)
        SL_TRY(reset_slot(s, l, slot, tail, err));
    return SL_OK;
}

/* Stamps restart from the beginning, so all hot rows are forgotten. */
static sl_status restart_stamps(sl_swapin *s, sl_err *err)
{
    s->step = 0;
    if (s->slots == 0)
        return SL_OK;
    SL_TRY(sl_swap_counts_mark(s->counts, SL_SWAP_ALL, err));
    return reset_all(s, err);
}

sl_status sl_swapin_step(sl_swapin *s, bool several, sl_err *err)
{
    s->several = several;
    if (s->step + 1 >= STEP_LIMIT)
        SL_TRY(restart_stamps(s, err));
    uint32_t *from = &s->step_host[++s->step % STEP_COPIES];
    *from = s->step;
    return s->slots > 0 ? sl_be_copy(s->be, s->step_dev, from, 4, err) : SL_OK;
}

void sl_swapin_several(sl_swapin *s, bool several)
{
    s->several = several;
}

/* True when blocks are counted for this call of resolve, and so for the gather that follows. */
static bool overlaps(const sl_swapin *s, int32_t layer, int32_t tokens, int32_t k)
{
    return !s->several && tokens <= s->o.overlap_tokens && k <= s->o.width && !s->rows_free &&
           hot_rows_of(&s->o, layer) > 0;
}

bool sl_swapin_overlap(const sl_swapin *s, int32_t layer, int32_t tokens, int32_t k, sl_sparse_attn_params *p)
{
    if (s->grouped || !overlaps(s, layer, tokens, k))
        return false;
    p->block_need = s->block_need, p->block_done = s->block_done, p->ld_blocks = sl_list_blocks(s->o.width);
    return true;
}

static sl_swap_clock *clock_of(const sl_swapin *s, int32_t layer)
{
    return s->clock ? s->clock + layer * s->groups + s->group : NULL;
}

sl_status sl_swapin_resolve(sl_swapin *s, int32_t layer, const sl_seq_tables *seqs, const int32_t *ids,
                            int32_t *phys, int32_t k, sl_err *err)
{
    sl_resolve_params p = {
        .ids = ids,
        .phys = phys,
        .seqs = seqs,
        .rows = s->o.layers[layer].rows,
        .hot = s->hot[layer], /* all NULL without hot rows */
        .miss_src = s->miss_src + (int64_t)s->group * s->miss_cap,
        .miss_dst = s->miss_dst + (int64_t)s->group * s->miss_cap,
        .miss_count = s->miss_count + s->group,
        .miss_cap = s->miss_cap,
        .k = k,
        .ld_ids = k,
        .tail_spare = s->o.spare,
        .step = s->step_dev,
        .policy = s->o.policy,
        .clock = clock_of(s, layer),
    };
    s->counting = !s->grouped && overlaps(s, layer, seqs->n_tokens, k);
    if (s->counting) {
        p.block_need = s->block_need, p.block_done = s->block_done, p.miss_block = s->miss_block;
        p.ld_blocks = sl_list_blocks(s->o.width);
    }
    return sl_be_run(s->be, SL_OP_RESOLVE, &p, err);
}

static sl_gather_params gather_params(const sl_swapin *s, int32_t layer)
{
    return (sl_gather_params){
        .rows = s->o.layers[layer].rows,
        .host = s->o.layers[layer].host_rows,
        .miss_src = s->miss_src + (int64_t)s->group * s->miss_cap,
        .miss_dst = s->miss_dst + (int64_t)s->group * s->miss_cap,
        .miss_count = s->miss_count + s->group,
        .miss_cap = s->miss_cap,
        .check = s->o.layers[layer].check,
    };
}

/*
 * Testing: rows that will be replaced become NaN first, so that a row which gather does not copy is noticed. This is
 * a gather itself, from one page of NaN in place of every host page, so that the host does not wait for the miss list.
 */
static sl_status poison_victims(sl_swapin *s, int32_t layer, sl_err *err)
{
    sl_gather_params p = gather_params(s, layer);
    p.host = (sl_host_plane){.base = s->poison_page, .row_stride = s->lists * p.rows.row_bytes};
    p.check = (sl_row_check){0};
    return sl_be_run(s->be, SL_OP_GATHER, &p, err);
}

void sl_swapin_group(sl_swapin *s, int32_t group)
{
    SL_CHECK(group >= -1 && group < s->groups, "group %d of %d", group, s->groups);
    s->grouped = group >= 0;
    s->group = group >= 0 ? group : 0;
}

/* Where the device records the time at which the main stream reached its wait for that group's gather; NULL:
 * nowhere. */
static uint64_t *reached_of(const sl_swapin *s, int32_t layer, int32_t group)
{
    return s->async && s->reached ? s->reached + layer * s->groups + group : NULL;
}

sl_status sl_swapin_gather(sl_swapin *s, int32_t layer, sl_err *err)
{
    if (s->o.hot_slots == 0 || hot_rows_of(&s->o, layer) == 0 || s->rows_free)
        return SL_OK;
    if (s->o.poison)
        SL_TRY(poison_victims(s, layer, err));
    sl_gather_params p = gather_params(s, layer);
    if (s->counting)
        p.miss_block = s->miss_block, p.block_done = s->block_done;
    p.clock = clock_of(s, layer);
    if (s->grouped)
        p.reached = reached_of(s, layer, s->group);
    if (s->group > 0)
        p.in_front = p.clock - 1;
    return sl_be_run(s->be, SL_OP_GATHER, &p, err);
}

/* On the side stream: the gather begins when the main stream has reached the point that forked marks. */
static sl_status wait_and_gather(sl_swapin *s, int32_t layer, sl_err *err)
{
    SL_TRY(sl_be_stream_wait(s->be, s->forked, err));
    return sl_swapin_gather(s, layer, err);
}

sl_status sl_swapin_gather_aside(sl_swapin *s, int32_t layer, sl_err *err)
{
    SL_TRY(sl_event_record(s->be, s->forked, err));
    sl_be_stream_use(s->be, SL_STREAM_SIDE);
    sl_status st = wait_and_gather(s, layer, err);
    sl_status end = sl_event_record(s->be, s->arrived[s->group], st == SL_OK ? err : NULL);
    sl_be_stream_use(s->be, SL_STREAM_MAIN);
    return st != SL_OK ? st : end;
}

sl_status sl_swapin_wait(sl_swapin *s, int32_t layer, int32_t group, sl_err *err)
{
    uint64_t *reached = reached_of(s, layer, group);
    sl_status st = reached ? sl_be_stamp(s->be, reached, err) : SL_OK;
    sl_status wait = sl_be_stream_wait(s->be, s->arrived[group], st == SL_OK ? err : NULL);
    return st != SL_OK ? st : wait;
}

void sl_swapin_rows_free(sl_swapin *s, bool on)
{
    s->rows_free = on;
}

void sl_swapin_times(const sl_swapin *s, uint64_t *taken_ns, uint64_t *waited_ns)
{
    *taken_ns = *waited_ns = 0;
    if (s->counts)
        sl_swap_counts_times(s->counts, taken_ns, waited_ns);
}

static void sums_of_layers(const sl_swapin *s, sl_coord_counters *layers)
{
    for (int32_t l = 0; l < s->o.n_layers; l++)
        layers[l] = s->counts ? sl_swap_counts_layer(s->counts, l) : (sl_coord_counters){0};
}

sl_status sl_swapin_counters(sl_swapin *s, sl_coord_counters *layers, int32_t slot,
                             sl_coord_counters *of_slot, sl_err *err)
{
    if (s->counts)
        SL_TRY(sl_swap_counts_settle(s->counts, err));
    if (layers)
        sums_of_layers(s, layers);
    if (of_slot)
        *of_slot = s->counts && slot >= 0 ? sl_swap_counts_slot(s->counts, slot) : (sl_coord_counters){0};
    return SL_OK;
}

sl_status sl_swapin_peek(sl_swapin *s, sl_coord_counters *layers, sl_err *err)
{
    if (s->counts)
        SL_TRY(sl_swap_counts_peek(s->counts, err));
    sums_of_layers(s, layers);
    return SL_OK;
}
