/*
 * Constraints of a worker's requests over the real library: whatever the threads do, and however many tokens a request has got
 * meanwhile, its mask is that of a constraint which takes the same tokens one after the other. About 0.5 s.
 */
#include <stdlib.h>
#include <string.h>

#include <check.h>

#include "base/log.h"
#include "tests/unit/llguidance.h"
#include "tests/unit/run_suite.h"
#include "worker/constraint.h"
#include "worker/mask_limit.h"
#include "worker/worker_impl.h"

enum { N = 6, LENGTH = 24, WORDS = 4096 };

static sl_tokenizer *tok;
static sl_grammars *plain; /* the reference */
static sl_constraints *cs;
static sl_mailbox *wake;
static int32_t eos;

static sl_grammars_opts opts_of(const char *library)
{
    return (sl_grammars_opts){.library = library,
                              .tokenizer = tok,
                              .dir = "models/tiny-v32",
                              .vocab = sl_tokenizer_vocab_size(tok) + 3,
                              .eos = &eos,
                              .n_eos = 1};
}

static uint64_t heavy_ns; /* for start() */

static void start(const char *library)
{
    sl_err err = {0};
    sl_constraints_opts o = {.grammars = opts_of(library), .wake = wake, .heavy_ns = heavy_ns};
    o.grammars.tokenizer = NULL; /* it loads its own */
    ck_assert_msg(sl_constraints_create(&o, &cs, &err) == SL_OK, "%s", err.text);
}

static void setup(void)
{
    sl_err err = {0};
    ck_assert_int_eq(sl_tokenizer_load("models/tiny-v32", &tok, &err), SL_OK);
    ck_assert_int_eq(sl_mailbox_create(&wake), SL_OK);
    eos = sl_tokenizer_eos(tok);
}

static void drain(void)
{
    for (sl_mail *m; (m = sl_mailbox_take(wake));) {
        ck_assert_int_eq(((sl_wmail *)m)->kind, SL_WMAIL_WAKE);
        free(m);
    }
}

static void teardown(void)
{
    sl_constraints_destroy(cs);
    sl_grammars_close(plain);
    sl_tokenizer_destroy(tok);
    drain();
    sl_mailbox_destroy(wake);
}

static sl_constraint *opened(sl_grammar_kind kind, const char *text, const int32_t *output, size_t n)
{
    sl_sampling s;
    sl_constraint *c = NULL;
    sl_sampling_default(&s);
    ck_assert_int_eq(sl_sampling_set_constraint(&s, kind, text, strlen(text)), SL_OK);
    ck_assert_int_eq(sl_constraint_open(cs, &s, output, n, &c), SL_OK);
    ck_assert_ptr_nonnull(c);
    sl_sampling_free(&s);
    return c;
}

/* As the engine thread does: it sleeps until there is news. */
static void until_ready(sl_constraint *c)
{
    while (!sl_constraint_ready(c)) {
        sl_mailbox_wait(wake, 30000);
        drain();
    }
}

static bool allowed(const uint32_t *bits, int32_t id)
{
    return bits[id / 32] >> id % 32 & 1;
}

/* The masks of c and of the reference, which has taken the same tokens, are the same. */
static sl_token_mask same(sl_constraint *c, sl_grammar *want)
{
    static uint32_t bits[WORDS];
    size_t bytes = sl_grammar_mask_words(plain) * sizeof *bits;
    sl_err err = {0};
    ck_assert_uint_le(bytes, sizeof bits);
    until_ready(c);
    ck_assert_int_eq(sl_constraint_failed(c, &err), SL_OK);
    sl_token_mask m = sl_constraint_token_mask(c);
    ck_assert_int_eq(sl_grammar_mask(want, bits, &err), SL_OK);
    ck_assert_mem_eq(m.bits, bits, bytes);
    ck_assert(m.ends == sl_grammar_must_end(want));
    return m;
}

static const struct {
    sl_grammar_kind kind;
    const char *text;
} cases[N] = {
    {SL_GRAMMAR_REGEX, "([a-e]{1,3} ?){9}!"},
    {SL_GRAMMAR_OBJECT, ""},
    {SL_GRAMMAR_SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\"]},\"minItems\":4}"},
    {SL_GRAMMAR_GBNF, "root ::= (\"yes\" | \"no\" [0-9]+ \".\")+"},
    {SL_GRAMMAR_REGEX, "(?s:.*)"},
    {SL_GRAMMAR_CHOICE, "[\"one\",\"other\"]"},
};

/* Several requests at once, which get one or several tokens between two masks, are closed while a thread works for them, and are opened
 * again with the tokens so far. */
START_TEST(masks_follow_the_tokens)
{
    int32_t text[N][LENGTH];
    size_t n[N] = {0};
    sl_constraint *c[N];
    sl_grammar *want[N];
    sl_err err = {0};
    sl_grammars_opts o = opts_of(llguidance_library());
    ck_assert_int_eq(sl_grammars_open(&o, &plain, &err), SL_OK);
    start(llguidance_library());
    for (int i = 0; i < N; i++) {
        ck_assert_int_eq(
            sl_grammar_open(plain, cases[i].kind, cases[i].text, strlen(cases[i].text), &want[i], &err),
            SL_OK);
        c[i] = opened(cases[i].kind, cases[i].text, NULL, 0);
    }
    srand(3);
    for (int turn = 0; turn < 3 * LENGTH; turn++) {
        int i = turn % N;
        sl_token_mask m = same(c[i], want[i]);
        int32_t id = rand() % sl_tokenizer_vocab_size(tok);
        while (!allowed(m.bits, id))
            id = (id + 1) % sl_tokenizer_vocab_size(tok);
        if (m.ends || id == eos || n[i] == LENGTH)
            continue;
        text[i][n[i]++] = id;
        ck_assert_int_eq(sl_grammar_take(want[i], &id, 1, &err), SL_OK);
        sl_constraint_follow(c[i], text[i], n[i]);
        if (turn % 7 == 3) {
            sl_constraint_close(c[i]);
            c[i] = opened(cases[i].kind, cases[i].text, text[i], n[i]);
        }
    }
    for (int i = 0; i < N; i++) {
        same(c[i], want[i]);
        sl_grammar_close(want[i]);
        if (i % 2) /* the others are closed with the worker */
            sl_constraint_close(c[i]);
    }
}
END_TEST

START_TEST(no_constraint_and_failures)
{
    sl_err err = {0};
    sl_sampling s;
    sl_constraint *c = NULL;
    start(llguidance_library());
    sl_sampling_default(&s);
    ck_assert_int_eq(sl_constraint_open(cs, &s, NULL, 0, &c), SL_OK);
    ck_assert_ptr_null(c);
    ck_assert(sl_constraint_ready(NULL));
    ck_assert_int_eq(sl_constraint_failed(NULL, &err), SL_OK);
    sl_constraint_follow(NULL, NULL, 0);
    sl_constraint_close(NULL);

    c = opened(SL_GRAMMAR_REGEX, "(a", NULL, 0);
    until_ready(c);
    ck_assert_int_eq(sl_constraint_failed(c, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "regex"));
    ck_assert_ptr_null(sl_constraint_token_mask(c).bits);
    sl_constraint_close(c);

    int32_t wrong = sl_tokenizer_id(tok, "z", 1);
    c = opened(SL_GRAMMAR_REGEX, "[ab]+", &wrong, 1); /* tokens that it does not allow */
    until_ready(c);
    ck_assert_int_eq(sl_constraint_failed(c, &err), SL_ERR_INVALID);
    sl_constraint_close(c);
    for (int i = 0; i < 20; i++) /* before, while and after it is compiled */
        sl_constraint_close(opened(SL_GRAMMAR_REGEX, "[ab]+", NULL, 0));
}
END_TEST

/* However many long texts wait to be compiled, a short one waits for the one that is being compiled. */
START_TEST(a_short_text_is_compiled_before_long_ones)
{
    enum { LONG = 12, PARTS = 2500 };
    static char text[LONG][PARTS * 8 + 32];
    sl_constraint *c[LONG];
    start(llguidance_library());
    for (int i = 0; i < LONG; i++) {
        size_t n = (size_t)snprintf(text[i], sizeof text[i], "root ::= \"b%d\"", i);
        for (int k = 0; k < PARTS; k++)
            n += (size_t)snprintf(text[i] + n, sizeof text[i] - n, "|\"a%d\"", k);
        c[i] = opened(SL_GRAMMAR_GBNF, text[i], NULL, 0);
    }
    sl_constraint *shorter = opened(SL_GRAMMAR_REGEX, "[ab]+", NULL, 0);
    until_ready(shorter);
    int ready = 0;
    for (int i = 0; i < LONG; i++)
        ready += sl_constraint_ready(c[i]);
    ck_assert_msg(ready < LONG, "all long texts were compiled before the short one");
    for (int i = 0; i < LONG; i++)
        until_ready(c[i]); /* they are compiled in the end */
}
END_TEST

/* However many masks of heavy constraints wait, a quick one waits for none of them. Other work on this machine can delay the test by more
 * than they take, so it is tried a few times. */
START_TEST(a_quick_mask_waits_for_no_heavy_one)
{
    enum { HEAVY_ONES = 24, TRIES = 4 };
    sl_constraint *c[HEAVY_ONES];
    int32_t a = sl_tokenizer_id(tok, "a", 1), output[1 + TRIES], ready = HEAVY_ONES;
    for (int i = 0; i <= TRIES; i++)
        output[i] = a;
    heavy_ns = 300000; /* a mask of these takes 1.5 ms */
    start(llguidance_library());
    for (int i = 0; i < HEAVY_ONES; i++)
        c[i] = opened(SL_GRAMMAR_REGEX, "a{18000}", NULL, 0);
    sl_constraint *quick = opened(SL_GRAMMAR_REGEX, "[ab]+", NULL, 0);
    for (int t = 0; t <= TRIES && ready == HEAVY_ONES; t++) {
        until_ready(quick);
        for (int i = 0; i < HEAVY_ONES; i++)
            until_ready(c[i]);
        for (int i = 0; i < HEAVY_ONES; i++)
            sl_constraint_follow(c[i], output, (size_t)t + 1);
        sl_constraint_follow(quick, output, (size_t)t + 1);
        ck_assert_ptr_nonnull(sl_constraint_token_mask(quick).bits);
        ready = 0;
        for (int i = 0; i < HEAVY_ONES; i++)
            ready += t ? sl_constraint_ready(c[i])
                       : 1; /* the first masks after the compiling show that they are heavy */
    }
    ck_assert_msg(ready < HEAVY_ONES, "all heavy masks were made before the quick one");
    for (int i = 0; i < HEAVY_ONES; i++) {
        until_ready(c[i]);
        ck_assert_int_eq(sl_constraint_failed(c[i], NULL), SL_OK);
        ck_assert(!sl_constraint_keeps_up(c[i]));
    }
}
END_TEST

/* Whatever steps and waiting were: the limit stays between the least and half of the last step; steps that wait for masks bring it down
 * to the least within a few steps, and quick ones bring it up again. */
START_TEST(the_limit_of_a_mask_follows_what_steps_wait)
{
    uint64_t limit = SL_MASK_LIMIT_LEAST_NS;
    srand(1 + (unsigned)_i);
    for (int round = 0; round < 50; round++) {
        const uint64_t step = 1000ull * (uint64_t)(1 + rand() % 200000), least = SL_MASK_LIMIT_LEAST_NS;
        const uint64_t most = step / 2 > least ? step / 2 : least;
        for (int i = rand() % 30; i > 0; i--) {
            limit = sl_mask_limit(limit, step, (uint64_t)rand() % (step + 1));
            ck_assert(limit >= least && limit <= most);
        }
        int n = 0;
        for (; limit > least || n < 1; n++)
            limit = sl_mask_limit(limit, step, step - step / 8);
        ck_assert_int_le(n, 7);
        for (n = 0; limit < most; n++)
            limit = sl_mask_limit(limit, step, step / 3);
        ck_assert_int_le(n, 20);
        ck_assert_uint_eq(limit, most);
    }
}
END_TEST

START_TEST(without_the_library_constraints_fail_by_name)
{
    sl_err err = {0};
    start("/nowhere/libllguidance.so");
    sl_constraint *c = opened(SL_GRAMMAR_OBJECT, "", NULL, 0);
    until_ready(c);
    ck_assert_int_eq(sl_constraint_failed(c, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "llguidance"));
    sl_constraint_close(c);
}
END_TEST

int main(void)
{
    sl_log_init(SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("worker/constraint");
    TCase *t = tcase_create("constraint");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, the_limit_of_a_mask_follows_what_steps_wait, 0, 4);
    tcase_add_test(t, without_the_library_constraints_fail_by_name);
    if (llguidance_library() || getenv("SL_LLGUIDANCE")) {
        tcase_add_test(t, masks_follow_the_tokens);
        tcase_add_test(t, no_constraint_and_failures);
        tcase_add_test(t, a_short_text_is_compiled_before_long_ones);
        tcase_add_test(t, a_quick_mask_waits_for_no_heavy_one);
    } else {
        printf("skipped: masks and failures; there is no llguidance, scripts/install-deps installs it\n");
    }
    suite_add_tcase(s, t);
    return run_suite(s);
}
