/*
 * Steps in flight: requests of every way to choose tokens run through steps that are submitted before the tokens of the step
 * before are known, with joins, pauses, spills, ends that are learnt one step late, and cancellations. Some may choose only
 * tokens that follow from their last one, as under a constraint. Tokens, log-probabilities and full pages have the bits of the
 * same request alone, in steps that are waited for. On the CPU, where a step is
 * computed when it is submitted, and on a device that computes as late as it may (late.h). Then what fails.
 *
 * Cost: 3 s of a core.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "fix.h"
#include "kernels/backend_impl.h"
#include "late.h"
#include "tests/unit/run_suite.h"

enum { REQUESTS = 12, SLOTS = 5, PROMPT = 70, MOST = 92, CONTEXT = 192, LAYERS = 16, WORDS = 4096 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 100 };
#else
enum { STEPS = 500 }; /* of each kind */
#endif

#define LLAMA "tests/golden/model/llama-rope3"
static const fix_opts kinds[] = {
    {.dir = "tests/golden/model/ds-yarn", .graphs = SL_GRAPHS_PAD},
    {.dir = "tests/golden/model/ds-yarn", .wrap = late_wrap, .graphs = SL_GRAPHS_PAD, .groups = 2},
    {.dir = LLAMA,
     .rows = SL_ROW_GQA_BF16,
     .act = SL_BF16,
     .algorithm = "quest",
     .hot_rows = 64,
     .select = {.token_budget = 64, .block_tokens = 16},
     .wrap = late_wrap},
    {.dir = LLAMA,
     .rows = SL_ROW_GQA_BF16,
     .act = SL_BF16,
     .algorithm = "snapkv",
     .hot_rows = 84,
     .select = {.prompt_budget = 64, .window = 16, .output_tokens = 20},
     .wrap = late_wrap},
    {.dir = LLAMA,
     .rows = SL_ROW_GQA_BF16,
     .act = SL_BF16,
     .algorithm = "cluster_kv",
     .hot_rows = 64,
     .select = {.token_budget = 48, .niter = 3, .cluster_tokens = 4, .cluster_window = 16, .window_nlist = 3},
     .wrap = late_wrap},
};

/* The tokens of a request, and how many of them are known. */
typedef struct text {
    int32_t ids[CONTEXT], n;
} text;

/* What a mask is asked with. */
typedef struct asked {
    const text *of;
    int32_t length; /* of the text whose next token is chosen */
    bool late;      /* the last token of that was not known when the step was submitted */
} asked;

/* A request, and what it must produce. */
typedef struct request {
    sl_sampling how;
    bool masked;
    int32_t prompt[PROMPT], most;
    sl_sampled out[MOST];
    int32_t n; /* to its end */
    uint32_t crc[CONTEXT / SL_PAGE_TOKENS][LAYERS];
} request;

/* A request in a slot. */
typedef struct live {
    text known;       /* first member */
    const request *r; /* NULL: the slot is free */
    fix_run run;
    int flying; /* steps in flight that compute it */
    bool ended;
} live;

/* A step in flight. */
typedef struct flight {
    sl_step_item items[SLOTS];
    sl_step_sample want[SLOTS];
    asked masks[SLOTS];
    live *who[SLOTS];
    int n;
    uint64_t began_ns;
} flight;

static fix f;
static request requests[REQUESTS];
static live slots[SLOTS];
static flight flights[SL_STEPS_IN_FLIGHT];
static int oldest, n_flying;
static uint64_t seed;
static bool steady; /* no request pauses */
static bool lazy;   /* what is open stays so */
static struct {
    int steps, dropped, followed, waited, spilled, late;
} seen;

static uint32_t pick(uint32_t n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) % n;
}

/* Greedy, plain, cuts, penalties, everything, min_tokens and bias, log-probabilities. */
static void make_parameters(sl_sampling *s, int i)
{
    static const sl_logit_bias bias[] = {{3, 4.5f}, {7, -100}, {11, 2}};
    static const int32_t stops[] = {5, 6};
    sl_sampling_default(s);
    s->seed = 1000 + (uint64_t)i;
    s->n_logprobs = i % 3 == 2 ? 5 : i % 3 - 1;
    s->temperature = i % 9 == 0 ? 0 : 0.9f;
    s->top_p = i % 2 ? 0.9f : 1;
    s->top_k = i % 9 == 2 ? 40 : 0;
    s->min_p = i % 9 == 3 ? 0.01f : 0;
    s->frequency_penalty = i % 9 == 4 ? 0.4f : 0;
    s->presence_penalty = i % 9 == 5 ? 0.3f : 0;
    s->repetition_penalty = i % 9 == 6 ? 1.2f : 1;
    s->min_tokens = i % 9 == 7 ? 20 : 0;
    if (i % 9 >= 7)
        ck_assert_int_eq(sl_sampling_set_bias(s, bias, 3), SL_OK);
    if (i % 9 == 7)
        ck_assert_int_eq(sl_sampling_set_stop_ids(s, stops, 2), SL_OK);
}

/* A third of all tokens, which the last one decides: the mask of another text, or of this one a token earlier, is another one. */
static sl_token_mask mask_of(void *ctx)
{
    static uint32_t bits[WORDS];
    const asked *a = ctx;
    MUST(sl_sample_mask_words(f.cfg->vocab_size) <= WORDS);
    /* the last token of one that has ended will never be known */
    MUST(a->of->n == a->length || (a->late && ((const live *)(const void *)a->of)->ended));
    memset(bits, 0, sizeof bits);
    for (int32_t i = 0; i < f.cfg->vocab_size; i++)
        if ((i + a->of->ids[a->of->n - 1]) % 3 == 0)
            bits[i / 32] |= 1u << i % 32;
    seen.late += a->late;
    return (sl_token_mask){bits, false};
}

/* A stop that follows from the token alone, as a stop token does. */
static bool ends(const request *r, int32_t id, int32_t produced)
{
    return produced >= r->most || id % 31 == 7;
}

static sl_history history_of(const int32_t *ids, int32_t n)
{
    return (sl_history){ids, PROMPT, ids + PROMPT, (size_t)(n - PROMPT)};
}

static uint32_t crc_of(const fix_run *run, int32_t page, int32_t layer)
{
    return sl_arena_page_crc(f.arena, run->pages[page], layer, SL_PAGE_TOKENS);
}

/* The request alone, in steps that are waited for. */
static void make_reference(request *r)
{
    fix_run run = {0};
    text t = {.n = PROMPT};
    int32_t *const ids = t.ids;
    sl_err err = {0};
    memcpy(ids, r->prompt, sizeof r->prompt);
    fix_prompt_open(&f, &run, SL_RESIDENT, 0, PROMPT, PROMPT);
    do {
        int32_t from = sl_engine_seq_len(run.seq);
        asked mask = {.of = &t, .length = t.n};
        sl_step_sample want = {.sampling = &r->how, .history = history_of(ids, t.n)};
        sl_step_item it = {.seq = run.seq, .tokens = ids + from, .n_tokens = t.n - from, .sample = &want};
        want.mask = r->masked ? mask_of : NULL, want.mask_ctx = &mask;
        fix_grow(&f, &run, t.n);
        ck_assert_msg(sl_engine_step(f.engine, &it, 1, NULL, &err) == SL_OK, "%s", err.text);
        MUST(want.out.fault == 0);
        r->out[r->n++] = want.out;
        ids[t.n++] = want.out.id;
    } while (!ends(r, ids[t.n - 1], r->n));
    for (int32_t p = 0; p < (t.n - 1) / SL_PAGE_TOKENS; p++)
        for (int32_t l = 0; l < f.cfg->n_layers; l++)
            r->crc[p][l] = crc_of(&run, p, l);
    fix_seq_close(&f, &run, false);
}

static void start(const fix_opts *kind)
{
    fix_opts o = *kind;
    o.max_seqs = SLOTS + 1, o.max_hot = SLOTS, o.max_context = CONTEXT, o.tail_rows = 3;
    o.max_tokens = SLOTS * PROMPT;
    fix_open(&f, &o);
    MUST(f.cfg->n_layers <= LAYERS);
    memset(requests, 0, sizeof requests);
    memset(slots, 0, sizeof slots);
    memset(&seen, 0, sizeof seen);
    oldest = n_flying = 0;
    seed = 7, steady = lazy = false;
    for (int i = 0; i < REQUESTS; i++) {
        make_parameters(&requests[i].how, i);
        requests[i].masked = i == 6 || i >= 9;
        requests[i].most = 20 + 6 * i;
        for (int32_t k = 0; k < PROMPT; k++)
            requests[i].prompt[k] = (int32_t)pick((uint32_t)f.cfg->vocab_size);
        make_reference(&requests[i]);
    }
}

static void stop(void)
{
    for (int i = 0; i < REQUESTS; i++)
        sl_sampling_free(&requests[i].how);
    fix_close(&f);
}

/* ---- the overlapped loop ---- */

static void close_live(live *v)
{
    /* The last token has no row, and what was computed for it, one step too late, is in no full page. */
    int32_t rows = sl_engine_seq_len(v->run.seq);
    rows = rows < v->known.n ? rows : v->known.n - 1;
    for (int32_t p = 0; p < rows / SL_PAGE_TOKENS; p++)
        for (int32_t l = 0; l < f.cfg->n_layers; l++)
            MUST(crc_of(&v->run, p, l) == v->r->crc[p][l]);
    fix_seq_close(&f, &v->run, false);
    *v = (live){0};
}

static void join(live *v)
{
    *v = (live){.r = &requests[pick(REQUESTS)], .known.n = PROMPT};
    memcpy(v->known.ids, v->r->prompt, sizeof v->r->prompt);
    fix_prompt_open(&f, &v->run, SL_RESIDENT, 0, PROMPT, PROMPT);
}

/* Puts the slot's next token into the step, if it has one and can. */
static void put(flight *t, live *v)
{
    int32_t count = v->known.n - PROMPT + v->flying; /* tokens that are produced, or being computed */
    if (!v->r || v->ended || count >= v->r->most || (!steady && pick(9) == 0))
        return;
    sl_step_sample *w = &t->want[t->n];
    *w =
        (sl_step_sample){.sampling = &v->r->how, .history = history_of(v->known.ids, v->known.n + v->flying)};
    sl_step_item it = {.seq = v->run.seq, .sample = w, .n_tokens = 1, .follows = v->flying > 0};
    t->masks[t->n] = (asked){&v->known, v->known.n + v->flying, it.follows};
    w->mask = v->r->masked ? mask_of : NULL, w->mask_ctx = &t->masks[t->n];
    if (!it.follows) {
        it.tokens = v->known.ids + sl_engine_seq_len(v->run.seq);
        it.n_tokens = v->known.n - sl_engine_seq_len(v->run.seq);
    } else if (!sl_engine_can_follow(f.engine, &it)) {
        seen.waited++;
        return;
    }
    fix_grow(&f, &v->run, v->known.n + v->flying);
    seen.followed += it.follows;
    t->items[t->n] = it;
    t->who[t->n++] = v;
    v->flying++;
}

/* If the step in flight waits for tokens of the one before, it has them now. */
static void choose(void)
{
    sl_err err = {0};
    ck_assert_msg(sl_engine_choose(f.engine, &err) == SL_OK, "%s", err.text);
}

static void submit(void)
{
    flight *t = &flights[(oldest + n_flying) % SL_STEPS_IN_FLIGHT];
    sl_err err = {0};
    t->n = 0;
    choose();
    for (int i = 0; i < SLOTS; i++)
        put(t, &slots[i]);
    if (t->n == 0)
        return;
    t->began_ns = sl_now_ns();
    ck_assert_msg(sl_engine_submit(f.engine, t->items, t->n, NULL, &err) == SL_OK, "%s", err.text);
    seen.steps++;
    n_flying++;
}

static void take(live *v, const sl_step_sample *w)
{
    v->flying--;
    seen.dropped += v->ended;
    if (v->ended)
        return;
    int32_t k = v->known.n - PROMPT;
    if (memcmp(&w->out, &v->r->out[k], sizeof w->out) != 0)
        ck_abort_msg("request %d: token %d is %d, alone it is %d", (int)(v->r - requests), k, w->out.id,
                     v->r->out[k].id);
    v->known.ids[v->known.n++] = w->out.id;
    v->ended = ends(v->r, w->out.id, k + 1);
}

static void collect(void)
{
    flight *t = &flights[oldest];
    sl_err err = {0};
    ck_assert_msg(sl_engine_collect(f.engine, &err) == SL_OK, "%s", err.text);
    const uint64_t ended =
        sl_engine_ended_ns(f.engine); /* also by the clock of the late device, which is another one */
    ck_assert(ended > t->began_ns && ended <= sl_now_ns());
    oldest = (oldest + 1) % SL_STEPS_IN_FLIGHT;
    n_flying--;
    for (int i = 0; i < t->n; i++)
        take(t->who[i], &t->want[i]);
    if (!lazy && pick(3)) /* else before the next step, or when this one is collected */
        choose();
}

/* Between two steps, also while they are in flight. */
static void shake(live *v)
{
    if (!v->r && pick(4) == 0)
        join(v);
    if (v->r && pick(60) == 0)
        v->ended = true; /* cancelled */
    if (v->r && sl_engine_seq_len(v->run.seq) >= PROMPT && pick(15) == 0)
        seen.spilled += sl_engine_seq_spill(f.engine, v->run.seq, NULL) == SL_OK;
    if (v->r && v->ended && v->flying == 0)
        close_live(v);
}

START_TEST(steps_in_flight_have_the_bits_of_steps_alone)
{
    start(&kinds[_i]);
    while (seen.steps < STEPS) {
        for (int i = 0; i < SLOTS; i++)
            shake(&slots[i]);
        if (n_flying < SL_STEPS_IN_FLIGHT)
            submit();
        if (n_flying == SL_STEPS_IN_FLIGHT || (n_flying > 0 && pick(5) == 0))
            collect();
    }
    while (n_flying > 0)
        collect();
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].r)
            close_live(&slots[i]);
    ck_assert_int_gt(seen.dropped, STEPS / 40);
    ck_assert_int_gt(seen.followed, STEPS);
    ck_assert_int_gt(seen.spilled, STEPS / 50);
    ck_assert_int_gt(seen.late, STEPS / 4);
    ck_assert_int_eq(f.n_free, sl_arena_pages(f.arena));
    stop();
}
END_TEST

/* ---- failures ---- */

/* A request that is long enough, with penalties or with masks, up to step `fail`, which is in flight then. */
static void run_alone(int fail, bool masked)
{
    live *v = &slots[0];
    const request *r = &requests[masked ? 9 : 4], *last = masked ? requests + REQUESTS - 1 : requests + 5;
    while (r->n < 25 && r < last)
        r++;
    MUST(r->n >= 25 && r->masked == masked);
    steady = true;
    *v = (live){.r = r, .known.n = PROMPT};
    memcpy(v->known.ids, r->prompt, sizeof r->prompt);
    fix_prompt_open(&f, &v->run, SL_RESIDENT, 0, PROMPT, PROMPT);
    for (int s = 0;; s++) {
        submit();
        if (s == fail)
            return;
        if (n_flying == SL_STEPS_IN_FLIGHT)
            collect();
    }
}

/* The sampling op of a step fails on the device while the next step is in flight: neither exists, and the request continues
 * from the tokens that the host has. */
START_TEST(a_failed_choice_takes_back_what_is_in_flight)
{
    sl_err err = {0};
    start(&kinds[1]);
    run_alone(6, false);
    live *v = &slots[0];
    MUST(n_flying == SL_STEPS_IN_FLIGHT && v->flying == 2);
    late_fail(SL_OP_SAMPLE, 1);
    ck_assert_int_eq(sl_engine_collect(f.engine, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "fault"));
    ck_assert_int_eq(sl_engine_in_flight(f.engine), 0);
    ck_assert_int_eq(sl_engine_seq_len(v->run.seq), v->known.n - 1);
    ck_assert_int_eq(sl_engine_collect(f.engine, &err), SL_ERR_INVALID);
    n_flying = 0, v->flying = 0;
    for (int s = 0; s < 10; s++) { /* the rows that it has are right */
        submit();
        if (n_flying == SL_STEPS_IN_FLIGHT)
            collect();
    }
    while (n_flying > 0)
        collect();
    close_live(v);
    stop();
}
END_TEST

static int fail_in;

static sl_status failing_sample(sl_backend *be, const void *params, sl_err *err)
{
    if (fail_in > 0 && --fail_in == 0)
        return sl_fail(err, SL_ERR_INTERNAL, "this choice fails");
    return sl_backend_cpu.ops[SL_OP_SAMPLE]->run(be, params, err);
}

static void failing_wrap(sl_backend *be)
{
    static sl_backend_desc desc;
    static sl_op_impl impl;
    desc = sl_backend_cpu;
    impl = (sl_op_impl){.run = failing_sample, .supports = sl_backend_cpu.ops[SL_OP_SAMPLE]->supports};
    desc.ops[SL_OP_SAMPLE] = &impl;
    be->desc = &desc;
}

/* It fails when the step is submitted: that step is not in flight, the one before is. */
START_TEST(a_choice_that_cannot_be_enqueued_is_this_steps_failure)
{
    fix_opts o = kinds[0];
    sl_err err = {0};
    o.wrap = failing_wrap;
    fail_in = 0;
    start(&o);
    run_alone(5, false);
    live *v = &slots[0];
    MUST(n_flying == 2);
    collect();
    sl_step_sample w = {.sampling = &v->r->how, .history = history_of(v->known.ids, v->known.n + 1)};
    sl_step_item it = {.seq = v->run.seq, .n_tokens = 1, .follows = true, .sample = &w};
    fix_grow(&f, &v->run, v->known.n + 1);
    fail_in = 1;
    ck_assert_int_eq(sl_engine_submit(f.engine, &it, 1, NULL, &err), SL_ERR_INTERNAL);
    ck_assert_str_eq(err.text, "this choice fails");
    ck_assert_int_eq(sl_engine_in_flight(f.engine), 1);
    ck_assert_int_eq(sl_engine_seq_len(v->run.seq), v->known.n);
    collect();
    for (int s = 0; s < 8; s++) {
        submit();
        if (n_flying == SL_STEPS_IN_FLIGHT)
            collect();
    }
    while (n_flying > 0)
        collect();
    close_live(v);
    stop();
}
END_TEST

/* A step that waits for tokens of the step before: nothing comes between, and when it cannot choose, it was not computed. */
START_TEST(an_open_step_chooses_or_never_was)
{
    fix_opts o = kinds[0];
    sl_err err = {0};
    o.wrap = failing_wrap;
    fail_in = 0;
    start(&o);
    lazy = true;
    run_alone(5, true);
    live *v = &slots[0];
    MUST(n_flying == 2 && flights[(oldest + 1) % 2].masks[0].late);
    ck_assert_int_eq(sl_engine_choose(f.engine, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "not collected"));
    collect();
    sl_step_sample w = {.sampling = &v->r->how, .history = history_of(v->known.ids, v->known.n + 1)};
    sl_step_item it = {.seq = v->run.seq, .n_tokens = 1, .follows = true, .sample = &w};
    fix_grow(&f, &v->run, v->known.n + 1);
    ck_assert(!sl_engine_can_follow(f.engine, &it));
    ck_assert_int_eq(sl_engine_submit(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "not chosen"));
    fail_in = 1;
    ck_assert_int_eq(sl_engine_choose(f.engine, &err), SL_ERR_INTERNAL);
    ck_assert_str_eq(err.text, "this choice fails");
    ck_assert_int_eq(sl_engine_in_flight(f.engine), 0);
    ck_assert_int_eq(sl_engine_seq_len(v->run.seq), v->known.n - 1);
    n_flying = 0, v->flying = 0;
    for (int s = 0; s < 8; s++) {
        submit();
        if (n_flying == SL_STEPS_IN_FLIGHT)
            collect();
    }
    while (n_flying > 0)
        collect();
    close_live(v);
    stop();
}
END_TEST

START_TEST(wrong_calls_are_refused)
{
    sl_err err = {0};
    start(&kinds[1]);
    run_alone(6, false);
    live *v = &slots[0];
    sl_step_sample w = {.sampling = &v->r->how, .history = history_of(v->known.ids, v->known.n + 2)};
    sl_step_item it = {.seq = v->run.seq, .n_tokens = 1, .follows = true, .sample = &w};
    ck_assert_int_eq(sl_engine_submit(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "in flight"));
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, v->run.seq, v->known.n, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "not collected"));
    while (n_flying > 0)
        collect();
    w.history = history_of(v->known.ids, v->known.n);
    it.want_logits = 1; /* nothing is in flight that it could follow */
    ck_assert(!sl_engine_can_follow(f.engine, &it));
    ck_assert_int_eq(sl_engine_submit(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "follows"));
    it.follows = false, it.tokens = v->known.ids + v->known.n - 1;
    ck_assert_int_eq(sl_engine_submit(f.engine, &it, 1, NULL, &err), SL_OK);
    ck_assert_int_eq(sl_engine_submit(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "logits"));
    ck_assert_int_eq(sl_engine_collect(f.engine, &err), SL_OK);
    MUST(it.logits && memcmp(&w.out, &v->r->out[v->known.n - PROMPT], sizeof w.out) == 0);
    close_live(v);
    stop();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/flight");
    TCase *c = tcase_create("flight");
    tcase_set_timeout(c, 600);
    tcase_add_loop_test(c, steps_in_flight_have_the_bits_of_steps_alone, 0, (int)SL_COUNT(kinds));
    tcase_add_test(c, a_failed_choice_takes_back_what_is_in_flight);
    tcase_add_test(c, a_choice_that_cannot_be_enqueued_is_this_steps_failure);
    tcase_add_test(c, an_open_step_chooses_or_never_was);
    tcase_add_test(c, wrong_calls_are_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
