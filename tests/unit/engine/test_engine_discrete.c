/*
 * The engine on a device whose memory the host cannot access and whose work completes later. The device is made of
 * the CPU backend: device memory is one mapping without access rights except while an op, copy or fill runs, so
 * that any access by the host is a fault; events need a few queries until they are done; graphs are lists of ops
 * with the parameters that they had when they were captured, and only ops, events and stream switches may be
 * captured; work that is enqueued on the side stream runs as late as possible, when the main stream waits for its
 * event. So what a GPU requires of the engine and the coordinator is tested on any machine.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "fix.h"
#include "kernels/backend_impl.h"
#include "tape.h"
#include "tests/unit/run_suite.h"

#define YARN "tests/golden/model/ds-yarn"
#define SHARE "tests/golden/model/glm-share"
#define LLAMA "tests/golden/model/llama-rope3"
#define REGION (256u << 20)

static sl_backend_desc desc;
static struct tape *recording; /* the graph being captured */
static uint8_t *region;
static size_t used;
static int depth;

static void enter(void)
{
    if (depth++ == 0)
        MUST(mprotect(region, REGION, PROT_READ | PROT_WRITE) == 0);
}

static sl_status leave(sl_status st)
{
    if (--depth == 0)
        MUST(mprotect(region, REGION, PROT_NONE) == 0);
    return st;
}

static sl_status wrap_alloc(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err)
{
    if (kind == SL_MEM_HOST)
        return sl_backend_cpu.alloc(be, kind, bytes, out, err);
    size_t need = (bytes + 255) / 256 * 256;
    MUST(need <= REGION - used);
    *out = region + used;
    used += need;
    return SL_OK;
}

static void wrap_free(sl_backend *be, sl_mem_kind kind, void *ptr)
{
    if (kind == SL_MEM_HOST)
        sl_backend_cpu.free(be, kind, ptr);
    else
        MUST((uint8_t *)ptr >= region && (uint8_t *)ptr < region + REGION);
}

static sl_status wrap_copy(sl_backend *be, void *dst, const void *src, size_t bytes, sl_err *err)
{
    MUST(!recording);
    enter();
    return leave(sl_backend_cpu.copy(be, dst, src, bytes, err));
}

static sl_status wrap_copy_2d(sl_backend *be, void *dst, size_t dp, const void *src, size_t sp, size_t width,
                              size_t rows, sl_err *err)
{
    enter();
    return leave(sl_backend_cpu.copy_2d(be, dst, dp, src, sp, width, rows, err));
}

static sl_status wrap_fill(sl_backend *be, void *dst, uint8_t byte, size_t bytes, sl_err *err)
{
    MUST(!recording);
    enter();
    return leave(sl_backend_cpu.fill(be, dst, byte, bytes, err));
}

/* ---- graphs ---- */

enum { TAPE_OPS = 1000, TAPES = 16 };

enum { STREAM_USE = SL_OP_COUNT, STREAM_WAIT, EVENT_RECORD, STAMP };

typedef struct taped {
    int op; /* an sl_op, or one of the above */
    sl_stream stream;
    sl_event *event;
    uint64_t *at;
    tape_params kept;
} taped;

typedef struct tape {
    sl_graph base;
    int n;
    taped ops[TAPE_OPS];
} tape;

static int launches, tapes;

static void keep(taped *t, sl_op op, const void *params)
{
    t->op = op;
    tape_keep(&t->kept, op, params);
}

static taped *next_place(void)
{
    MUST(recording->n < TAPE_OPS);
    return &recording->ops[recording->n++];
}

static sl_status record(sl_op op, const void *params)
{
    keep(next_place(), op, params);
    return SL_OK;
}

/* ---- streams and late events ---- */

enum { SIDE_OPS = 4 };

typedef struct late_event {
    sl_event base;
    int queries_left; /* -1: never recorded */
    int n;            /* work of the side stream that is done when the main stream waits for this event */
    taped ops[SIDE_OPS];
} late_event;

static int pending_queries, stream_waits;
static int unwaited; /* ops on the side stream whose event the main stream has not waited for */
static sl_stream selected;
static taped on_side[SIDE_OPS]; /* enqueued on the side stream since its last event */
static int n_on_side;

static sl_status run_now(sl_backend *be, sl_op op, const void *params, sl_err *err)
{
    if (selected == SL_STREAM_SIDE) {
        MUST(n_on_side < SIDE_OPS);
        keep(&on_side[n_on_side++], op, params);
        return SL_OK;
    }
    enter();
    return leave(sl_backend_cpu.ops[op]->run(be, params, err));
}

static sl_status late_create(sl_backend *be, sl_event **out, sl_err *err)
{
    (void)err;
    late_event *e = calloc(1, sizeof *e);
    e->base.be = be;
    e->queries_left = -1;
    *out = &e->base;
    return SL_OK;
}

static void late_destroy(sl_event *ev)
{
    MUST(((late_event *)ev)->n == 0);
    free(ev);
}

static void record_now(late_event *e)
{
    e->queries_left = 3;
    if (selected == SL_STREAM_MAIN)
        return;
    MUST(e->n == 0); /* the main stream has waited for the event's last use */
    memcpy(e->ops, on_side, sizeof on_side);
    e->n = n_on_side;
    unwaited += n_on_side;
    n_on_side = 0;
}

static sl_status wait_now(sl_backend *be, late_event *e, sl_err *err)
{
    sl_status st = SL_OK;
    if (selected == SL_STREAM_SIDE)
        return SL_OK; /* the main stream's work is done at once */
    MUST(e->queries_left >= 0);
    stream_waits++;
    for (int i = 0; i < e->n && st == SL_OK; i++)
        st = run_now(be, (sl_op)e->ops[i].op, e->ops[i].kept.params, err);
    unwaited -= e->n;
    e->n = 0;
    return st;
}

static void stamp_now(uint64_t *at)
{
    enter();
    *at = sl_now_ns();
    (void)leave(SL_OK);
}

static sl_status late_record(sl_backend *be, sl_event *ev, sl_err *err)
{
    (void)be, (void)err;
    if (recording)
        *next_place() = (taped){.op = EVENT_RECORD, .event = ev};
    else
        record_now((late_event *)ev);
    return SL_OK;
}

static sl_status late_query(sl_event *ev)
{
    late_event *e = (late_event *)ev;
    MUST(e->queries_left >= 0); /* asked about an event that was never recorded */
    if (e->queries_left == 0)
        return SL_OK;
    e->queries_left--;
    pending_queries++;
    return SL_INPROGRESS;
}

static void stream_use(sl_backend *be, sl_stream stream)
{
    (void)be;
    if (recording)
        *next_place() = (taped){.op = STREAM_USE, .stream = stream};
    else
        selected = stream;
}

static sl_status stream_wait(sl_backend *be, sl_event *ev, sl_err *err)
{
    if (!recording)
        return wait_now(be, (late_event *)ev, err);
    *next_place() = (taped){.op = STREAM_WAIT, .event = ev};
    return SL_OK;
}

static sl_status stamp(sl_backend *be, uint64_t *at, sl_err *err)
{
    (void)be, (void)err;
    if (recording)
        *next_place() = (taped){.op = STAMP, .at = at};
    else
        stamp_now(at);
    return SL_OK;
}

static sl_status wrap_sync(sl_backend *be, sl_err *err)
{
    MUST(selected == SL_STREAM_MAIN && n_on_side == 0 && unwaited == 0);
    return sl_backend_cpu.sync(be, err);
}

static sl_status replay(sl_backend *be, const taped *o, sl_err *err)
{
    switch (o->op) {
    case STREAM_USE:
        selected = o->stream;
        return SL_OK;
    case STREAM_WAIT:
        return wait_now(be, (late_event *)o->event, err);
    case EVENT_RECORD:
        record_now((late_event *)o->event);
        return SL_OK;
    case STAMP:
        stamp_now(o->at);
        return SL_OK;
    default:
        return run_now(be, (sl_op)o->op, o->kept.params, err);
    }
}

static sl_status tape_begin(sl_backend *be, sl_err *err)
{
    (void)err;
    MUST(!recording);
    recording = calloc(1, sizeof *recording);
    recording->base.be = be;
    return SL_OK;
}

static sl_status tape_end(sl_backend *be, sl_graph **out, sl_err *err)
{
    (void)be, (void)err;
    MUST(recording && recording->n > 0);
    *out = &recording->base;
    recording = NULL;
    tapes++;
    return SL_OK;
}

static sl_status tape_launch(sl_backend *be, sl_graph *graph, sl_err *err)
{
    tape *t = (tape *)graph;
    sl_status st = SL_OK;
    launches++;
    for (int i = 0; i < t->n && st == SL_OK; i++)
        st = replay(be, &t->ops[i], err);
    return st;
}

static void tape_destroy(sl_graph *graph)
{
    tapes--;
    free(graph);
}

/* ---- ops ---- */

#define OP(name)                                                                                             \
    static sl_status run_##name(sl_backend *be, const void *params, sl_err *err)                             \
    {                                                                                                        \
        return recording ? record(name, params) : run_now(be, name, params, err);                            \
    }
#define OPS(X)                                                                                               \
    X(SL_OP_EMBED)                                                                                           \
    X(SL_OP_RMSNORM)                                                                                         \
    X(SL_OP_LINEAR)                                                                                          \
    X(SL_OP_Q_ABSORB)                                                                                        \
    X(SL_OP_V_UP)                                                                                            \
    X(SL_OP_KV_APPEND)                                                                                       \
    X(SL_OP_INDEX_APPEND)                                                                                    \
    X(SL_OP_INDEX_QUERY)                                                                                     \
    X(SL_OP_INDEX_SCORES)                                                                                    \
    X(SL_OP_TOPK)                                                                                            \
    X(SL_OP_RESOLVE)                                                                                         \
    X(SL_OP_GATHER)                                                                                          \
    X(SL_OP_HOT_RESET)                                                                                       \
    X(SL_OP_SPARSE_ATTN)                                                                                     \
    X(SL_OP_GQA_QUERY)                                                                                       \
    X(SL_OP_GQA_APPEND)                                                                                      \
    X(SL_OP_GQA_ATTN)                                                                                        \
    X(SL_OP_BOUNDS_APPEND)                                                                                   \
    X(SL_OP_BOUNDS_SCORES)                                                                                   \
    X(SL_OP_KMEANS)                                                                                          \
    X(SL_OP_CLUSTER_LISTS)                                                                                   \
    X(SL_OP_CODES)                                                                                           \
    X(SL_OP_CODE_SCORES)                                                                                     \
    X(SL_OP_KEPT_STORE)                                                                                      \
    X(SL_OP_WINDOW_VOTES)                                                                                    \
    X(SL_OP_KEPT_LISTS)                                                                                      \
    X(SL_OP_RETAINED_APPEND)                                                                                 \
    X(SL_OP_RETAINED_SCORES)                                                                                 \
    X(SL_OP_RETAINED_LISTS)                                                                                  \
    X(SL_OP_SILU_MUL)                                                                                        \
    X(SL_OP_MOE_ROUTE)                                                                                       \
    X(SL_OP_MOE)                                                                                             \
    X(SL_OP_ADD)                                                                                             \
    X(SL_OP_PICK)
OPS(OP)

static void wrap(sl_backend *be)
{
    region = mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(region != MAP_FAILED);
    used = 0;
    desc = sl_backend_cpu;
    desc.row_align = SL_ROW_ALIGN;
    desc.alloc = wrap_alloc, desc.free = wrap_free;
    desc.copy = wrap_copy, desc.copy_2d = wrap_copy_2d, desc.fill = wrap_fill;
    desc.event_create = late_create, desc.event_destroy = late_destroy;
    desc.event_record = late_record, desc.event_query = late_query;
    desc.capture_begin = tape_begin, desc.capture_end = tape_end;
    desc.stream_use = stream_use, desc.stream_wait = stream_wait, desc.stamp = stamp;
    desc.sync = wrap_sync;
    desc.graph_launch = tape_launch, desc.graph_destroy = tape_destroy;
    static sl_op_impl impls[SL_OP_COUNT];
#define ROW(name)                                                                                            \
    impls[name] = (sl_op_impl){.run = run_##name, .supports = sl_backend_cpu.ops[name]->supports};           \
    desc.ops[name] = &impls[name];
    OPS(ROW)
    be->desc = &desc;
    be->caps = SL_BE_ASYNC | SL_BE_GRAPHS;
}

static fix f;
static fix_text ref, text;

/* WHOLE: hot rows for a whole context. From SELECTS_ONCE on, kinds that select at the end of a prompt. */
enum { KINDS = 10, SELECTS_ONCE = 6, WHOLE = 300 };

/* Latent rows with and without shared lists, then grouped-query attention: lists per KV head of blocks and of tokens,
 * lists by position, no lists at all where sequences are resident, and lists of what a prompt keeps, and lists by clusters and by
 * codes, some of which are made when a request is longer than its prompt. */
static fix_opts kind_of(int i)
{
    fix_opts o = {.dir = YARN};
    if (i == 1)
        o.dir = SHARE, o.rows = SL_ROW_MLA_FP8, o.index = SL_INDEX_OFFICIAL;
    if (i < 2)
        return o;
    o = (fix_opts){
        .dir = LLAMA, .rows = SL_ROW_GQA_BF16, .act = SL_BF16, .algorithm = "quest", .hot_rows = 64};
    o.select = (select_params){.token_budget = 64, .block_tokens = i == 2 ? 16 : 1};
    if (i == 4)
        o.algorithm = "streaming_llm", o.hot_rows = 44,
        o.gates = (sl_gates){.sink_tokens = 4, .recent_tokens = 40};
    if (i == 5)
        o.algorithm = "skip_softmax", o.hot_rows = WHOLE, o.select.skip_factor = 60;
    if (i >= SELECTS_ONCE)
        o.select = (select_params){.prompt_budget = 64, .window = 16};
    if (i == 6)
        o.algorithm = "snapkv", o.hot_rows = 84, o.select.output_tokens = 20;
    if (i == 7)
        o.algorithm = "rocket_kv", o.hot_rows = 40, o.select.retained_page = 4, o.select.top_pages = 10;
    if (i >= 8)
        o.select = (select_params){.token_budget = 48, .niter = 3};
    if (i == 8)
        o.algorithm = "cluster_kv", o.hot_rows = 64, o.select.cluster_tokens = 4,
        o.select.cluster_window = 16, o.select.window_nlist = 3;
    if (i == 9)
        o.algorithm = "pq_cache", o.hot_rows = 48, o.select.n_subbits = 3, o.select.recent_ratio = 0.25f;
    return o;
}

typedef struct watch {
    int32_t next;
} watch;

static void on_layer(void *ctx, int32_t layer)
{
    watch *w = ctx;
    MUST(layer == w->next);
    w->next++;
}

START_TEST(same_bits_without_shared_memory)
{
    fix_opts o = kind_of(_i);
    o.max_hot = 1, o.tail_rows = 3, o.max_context = WHOLE;
    fix_open(&f, &o);
    fix_reference(&f, &ref, 150, 220, 21);
    fix_close(&f);

    o.wrap = wrap;
    fix_open(&f, &o);
    fix_run r = {0};
    const int32_t from =
        _i >= SELECTS_ONCE ? 150 : 149; /* the prompt must be complete before it is spilled */
    text = ref, text.n = from + 1;
    memset(text.logits, 0, sizeof text.logits);
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, 150, 150);
    fix_feed(&f, &r, &text, 100, 40);
    fix_seq_close(&f, &r, true); /* prefix reuse: copies to the device */
    fix_prompt_open(&f, &r, SL_RESIDENT, 100, 150, 150);
    fix_feed(&f, &r, &text, from, 30);
    sl_err err = {0};
    ck_assert_msg(sl_engine_seq_spill(f.engine, r.seq, &err) == SL_OK, "%s", err.text);
    fix_greedy(&f, &r, &text, 190);
    fix_seq_close(&f, &r, true); /* what was selected at the prompt's end is in the pages */
    fix_prompt_open(&f, &r, SL_HIERARCHICAL, 189, 220, 150);
    fix_greedy(&f, &r, &text, 220);
    for (int32_t i = from; i < 220; i++)
        MUST(text.ids[i] == ref.ids[i] && sl_key_eq(text.logits[i], ref.logits[i]));
    sl_engine_stats s;
    sl_engine_stats_get(f.engine, &s);
    ck_assert_uint_gt(s.misses, 0);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* Batches of every size while sequences join, leave and grow into longer contexts, with fewer graphs than
 * shapes. */
START_TEST(graphs_have_the_bits_of_single_ops)
{
    enum { N = 6, FROM = 40, TO = 70 };
    static fix_text want[N], got[N];
    fix_opts o = kind_of(_i);
    o.max_seqs = o.max_hot = N, o.tail_rows = 3, o.max_context = 1300;
    if (o.hot_rows == WHOLE)
        o.hot_rows = o.max_context;
    fix_open(&f, &o);
    for (int i = 0; i < N; i++)
        fix_reference(&f, &want[i], i == 2 ? 1000 : FROM + 3 * i, i == 2 ? 1000 + TO - FROM : TO + 3 * i,
                      30 + (uint64_t)i);
    fix_close(&f);

    o.wrap = wrap, o.max_graphs = 4, o.groups = _i == 1 ? 3 : 1;
    fix_open(&f, &o);
    int made = 0;
    fix_run r[N] = {0};
    launches = stream_waits = 0;
    for (int i = 0; i < N; i++)
        got[i] = want[i], got[i].n = 0;
    for (int s = 0; s < TO - FROM - 1; s++) {
        sl_step_item items[N];
        int who[N], n = 0;
        for (int i = 0; i < N; i++) {
            int32_t prompt = i == 2 ? 1000 : FROM + 3 * i;
            if (!r[i].seq && s / 3 >= i) { /* they join one after the other */
                fix_prompt_open(&f, &r[i], SL_RESIDENT, 0, prompt, prompt);
                fix_feed(&f, &r[i], &got[i], prompt, 128);
                if (i % 2 == 0)
                    ck_assert_int_eq(sl_engine_seq_spill(f.engine, r[i].seq, NULL), SL_OK);
            }
            if (!r[i].seq || (s + i) % 5 == 0)
                continue;
            int32_t at = sl_engine_seq_len(r[i].seq);
            fix_grow(&f, &r[i], at + 1);
            who[n] = i;
            items[n++] = (sl_step_item){
                .seq = r[i].seq, .tokens = want[i].ids + at, .n_tokens = 1, .want_logits = (s + i) % 4 != 0};
        }
        if (n == 0)
            continue;
        sl_err err = {0};
        ck_assert_msg(sl_engine_step(f.engine, items, n, NULL, &err) == SL_OK, "%s", err.text);
        for (int k = 0; k < n; k++) {
            int32_t at = sl_engine_seq_len(r[who[k]].seq) - 1;
            MUST(!items[k].logits == !items[k].want_logits);
            if (items[k].logits && !sl_key_eq(fix_hash(&f, items[k].logits), want[who[k]].logits[at]))
                ck_abort_msg("sequence %d differs at %d, batch of %d", who[k], at, n);
        }
        made = made > tapes ? made : tapes;
    }
    sl_engine_stats st;
    sl_engine_stats_get(f.engine, &st);
    ck_assert_int_eq(made, 4); /* never more than allowed, so graphs were replaced */
    ck_assert_uint_gt(st.graph_captures, 4);
    ck_assert_uint_eq(st.graph_steps, (uint64_t)launches);
    ck_assert_int_gt(launches, 10);
    ck_assert(_i == 1 ? stream_waits > 100 : stream_waits == 0);
    /* by the device's clock; here a gather on the side stream runs when the main stream waits for it */
    ck_assert(st.swap_ns > 0 && st.swap_exposed_ns > 0 && st.swap_ns >= st.swap_exposed_ns);
    ck_assert(st.swap_ns < st.step_ns && st.attend_ns == 0);
    ck_assert_uint_ge(st.decode_steps, st.graph_steps);
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
    ck_assert_int_eq(tapes, 0);
}
END_TEST

/* Decode steps of 1 to 3 tokens of each sequence, of which the last ones may be wrong and are taken back: as graphs that
 * are launched again with other runs, and with hot rows in groups. */
START_TEST(graphs_of_several_tokens)
{
    enum { N = 4, FROM = 40, TO = 90, MOST = 3 };
    static fix_text want[N];
    fix_opts o = kind_of(_i);
    const int32_t block = _i == 2 ? 16 : 1, spare = (MOST - 1 + block - 1) / block;
    o.max_seqs = o.max_hot = N, o.tail_rows = (2 * spare + 1) * block, o.max_context = 700;
    o.hot_rows = o.hot_rows == WHOLE ? o.max_context : o.hot_rows ? MOST * o.hot_rows : MOST * 16;
    fix_open(&f, &o);
    for (int i = 0; i < N; i++)
        fix_reference(&f, &want[i], FROM + 3 * i, TO + 3 * i, 60 + (uint64_t)i);
    fix_close(&f);

    o.wrap = wrap, o.item_tokens = MOST, o.groups = _i == 1 ? 3 : 1;
    fix_open(&f, &o);
    fix_run r[N] = {0};
    int again = 0; /* steps of several tokens of a sequence that were one launch */
    launches = stream_waits = 0;
    for (int i = 0; i < N; i++) {
        text = want[i], text.n = 0;
        fix_prompt_open(&f, &r[i], SL_RESIDENT, 0, FROM + 3 * i, FROM + 3 * i);
        fix_feed(&f, &r[i], &text, FROM + 3 * i, 128);
        if (i % 2 == 0)
            ck_assert_int_eq(sl_engine_seq_spill(f.engine, r[i].seq, NULL), SL_OK);
    }
    for (int s = 0; s < 40; s++) {
        sl_step_item items[N];
        int32_t tokens[N][MOST], right[N];
        int who[N], n = 0, before = launches;
        for (int i = 0; i < N; i++) {
            /* shapes of as many tokens: four sequences of one, and two of two */
            const int32_t at = sl_engine_seq_len(r[i].seq),
                          count = s % 4 > 1 ? 1 + (s / 2 + i) % MOST : 1 + s % 4;
            if (at + count > TO + 3 * i || (s % 4 > 1 && (s + i) % 5 == 0) || (s % 4 == 1 && i > 1))
                continue;
            right[n] = (s + i) % 3 ? (count + 1) / 2 : count;
            for (int32_t k = 0; k < count; k++)
                tokens[n][k] = (want[i].ids[at + k] + (k < right[n] ? 0 : 1 + s)) % f.cfg->vocab_size;
            fix_grow(&f, &r[i], at + count);
            who[n] = i;
            items[n] =
                (sl_step_item){.seq = r[i].seq, .tokens = tokens[n], .n_tokens = count, .want_logits = count};
            n++;
        }
        if (n == 0)
            continue;
        sl_err err = {0};
        ck_assert_msg(sl_engine_step(f.engine, items, n, NULL, &err) == SL_OK, "%s", err.text);
        bool several = false;
        for (int k = 0; k < n; k++) {
            const int32_t at = sl_engine_seq_len(r[who[k]].seq) - items[k].n_tokens;
            several |= items[k].n_tokens > 1;
            for (int32_t j = 0; j < right[k]; j++)
                if (!sl_key_eq(fix_hash(&f, items[k].logits + (int64_t)j * f.cfg->vocab_size),
                               want[who[k]].logits[at + j]))
                    ck_abort_msg("sequence %d differs at %d, token %d of %d", who[k], at + j, j,
                                 items[k].n_tokens);
            ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r[who[k]].seq, at + right[k], NULL), SL_OK);
        }
        again += several && launches > before;
    }
    ck_assert_int_gt(again, 5);
    ck_assert(_i == 1 ? stream_waits > 30 : stream_waits == 0);
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}
END_TEST

static void on_capture(void *ctx, int32_t n, int32_t of)
{
    int32_t *seen = ctx;
    ck_assert_int_eq(n, *seen + 1);
    ck_assert_int_le(n, of);
    *seen = n;
}

/* Capturing ahead changes no cache, and then no step is run op by op. */
START_TEST(graphs_can_be_captured_ahead)
{
    fix_opts o = {
        .dir = YARN, .max_seqs = 3, .max_hot = 1, .tail_rows = 3, .max_context = 1300, .wrap = wrap};
    fix_open(&f, &o);
    fix_run r = {0};
    int32_t seen = 0;
    sl_engine_stats a, b;
    fix_prompt(&f, &text, 40, 5);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 60);
    fix_feed(&f, &r, &text, 39, 40);
    ck_assert_int_eq(sl_engine_capture(f.engine, 100, 1300, on_capture, &seen, NULL), SL_OK);
    sl_engine_stats_get(f.engine, &a);
    ck_assert_int_eq(seen, 6); /* batches of 1, 2, 3 up to 1024 and up to 1300 tokens */
    ck_assert_uint_eq(a.graph_captures, 6);
    ck_assert_uint_eq(a.hits + a.misses + a.tail_hits, 0);
    fix_greedy(&f, &r, &text, 60);
    ref = text, ref.n = 40;
    sl_engine_stats_get(f.engine, &b);
    ck_assert_uint_eq(b.graph_captures, 6);
    ck_assert_uint_eq(b.graph_steps, b.decode_steps - a.decode_steps);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    o.wrap = NULL;
    fix_open(&f, &o);
    r = (fix_run){0};
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 60);
    fix_greedy(&f, &r, &ref, 60);
    for (int32_t i = 39; i < 60; i++)
        MUST(ref.ids[i] == text.ids[i]);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

START_TEST(layers_are_reported_in_order_when_done)
{
    fix_opts o = {.dir = YARN, .max_context = 300, .wrap = wrap};
    fix_open(&f, &o);
    fix_run r = {0};
    fix_prompt(&f, &text, 200, 22);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 200);
    for (int32_t at = 0; at < 200; at += 50) {
        watch w = {0};
        sl_step_hooks hooks = {&w, on_layer};
        sl_step_item it = {.seq = r.seq, .tokens = text.ids + at, .n_tokens = 50};
        pending_queries = 0;
        ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, &hooks, NULL), SL_OK);
        ck_assert_int_eq(w.next, f.cfg->n_layers);
        ck_assert_int_eq(pending_queries, 3 * f.cfg->n_layers); /* each was waited for */
    }
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/discrete");
    TCase *c = tcase_create("discrete");
    tcase_set_timeout(c, 100);
    add_variants(c, same_bits_without_shared_memory, KINDS);
    tcase_add_test(c, layers_are_reported_in_order_when_done);
    add_variants(c, graphs_have_the_bits_of_single_ops, KINDS);
    add_variants(c, graphs_of_several_tokens, KINDS);
    tcase_add_test(c, graphs_can_be_captured_ahead);
    suite_add_tcase(s, c);
    return run_suite(s);
}
