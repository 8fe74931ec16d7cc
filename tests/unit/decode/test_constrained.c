/*
 * Requests under constraints in one batch with others: while two steps are in flight a constraint holds back its own request
 * alone, each gets the tokens that it gets alone, in steps that are waited for, and a mask is asked for when the tokens from which
 * it follows are known. The constraints are doubles, of which the test says how quick they are.
 */
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

enum { REQUESTS = 4, PROMPT = 70, MOST = 40, KINDS = 24 };

/* ---- the double of worker/constraint.c ---- */

struct sl_constraint {
    int32_t output[256];
    size_t n;
    uint32_t bits; /* DD_VOCAB < 32 */
    bool late;     /* it does not keep up */
    int unready;   /* how often it says that it is not ready, after each token */
    int asked;     /* how often it has said so */
};
_Static_assert(DD_VOCAB < 32, "a mask is one word");

static bool constrain; /* the next requests */
static bool late;
static int unready, open_constraints;

sl_status sl_constraints_create(const sl_constraints_opts *opts, sl_constraints **out, sl_err *err)
{
    (void)opts;
    (void)err;
    *out = NULL;
    return SL_OK;
}

void sl_constraints_destroy(sl_constraints *cs)
{
    (void)cs;
}

void sl_constraints_stepped(sl_constraints *cs, uint64_t step_ns)
{
    (void)cs;
    (void)step_ns;
}

sl_status sl_constraint_open(sl_constraints *cs, const sl_sampling *s, const int32_t *output, size_t n,
                             sl_constraint **out)
{
    (void)cs;
    (void)s;
    *out = NULL;
    if (!constrain)
        return SL_OK;
    *out = calloc(1, sizeof **out);
    (*out)->late = late, (*out)->unready = unready;
    open_constraints++;
    sl_constraint_follow(*out, output, n);
    return SL_OK;
}

void sl_constraint_close(sl_constraint *c)
{
    open_constraints -= c != NULL;
    free(c);
}

void sl_constraint_follow(sl_constraint *c, const int32_t *output, size_t n)
{
    if (!c || n <= c->n)
        return;
    ck_assert_uint_le(n, SL_COUNT(c->output));
    ck_assert(n == 0 || memcmp(c->output, output, c->n * sizeof *output) == 0);
    memcpy(c->output, output, n * sizeof *output);
    c->n = n;
    c->asked = 0;
}

bool sl_constraint_ready(sl_constraint *c)
{
    return !c || c->asked++ >= c->unready;
}

bool sl_constraint_keeps_up(sl_constraint *c)
{
    return !c || !c->late;
}

sl_status sl_constraint_failed(sl_constraint *c, sl_err *err)
{
    (void)c;
    (void)err;
    return SL_OK;
}

/* A third of the tokens, which the output decides. */
static bool allows(const int32_t *output, size_t n, int32_t id)
{
    int32_t sum = (int32_t)n;
    for (size_t i = 0; i < n; i++)
        sum += output[i];
    return (id + sum) % 3 == 0;
}

static sl_token_mask mask_of(void *ctx)
{
    sl_constraint *c = ctx;
    c->bits = 0;
    for (int32_t i = 0; i < DD_VOCAB; i++)
        c->bits |= (uint32_t)allows(c->output, c->n, i) << i;
    return (sl_token_mask){&c->bits, false};
}

void sl_constraint_apply(sl_constraint *c, sl_step_sample *w)
{
    w->mask = c ? mask_of : NULL;
    w->mask_ctx = c;
}

/* ---- batches ---- */

static decode_double x;

typedef struct stream {
    int32_t ids[MOST];
    int n;
} stream;

static void open_double(bool overlaps)
{
    dd_opts o = dd_defaults();
    o.overlaps = overlaps;
    o.max_batch = REQUESTS, o.max_waiting = REQUESTS, o.pages = 24;
    dd_open(&x, &o);
}

static bool is_constrained(int kind, int i)
{
    return (kind >> i) & 1;
}

static void begin(int kind, int i)
{
    constrain = is_constrained(kind, i);
    dd_verified(&x, (uint64_t)i + 1, PROMPT, MOST - 5 * i, i + 1);
    constrain = false;
}

/* What the request has got. A ticket keeps its tokens until it is gone. */
static void read_stream(int i, stream *s)
{
    const sl_ticket *t = dd_ticket(&x, (uint64_t)i + 1);
    if (!t)
        return;
    s->n = t->n_tokens - t->n_prompt;
    memcpy(s->ids, t->tokens + t->n_prompt, (size_t)s->n * sizeof *s->ids);
}

static void turn(void)
{
    ck_assert_int_eq(dd_step(&x, &(bool){false}), SL_OK);
}

/* All but the last token of each, which is said when the ticket is gone. */
static void run_all(int kind, stream *out)
{
    for (int i = 0; i < REQUESTS; i++)
        begin(kind, i);
    for (int n = 0; n < 4 * MOST && dd_tickets(&x) > 0; n++) {
        turn();
        for (int i = 0; i < REQUESTS; i++)
            read_stream(i, &out[i]);
    }
    ck_assert_int_eq(dd_tickets(&x), 0);
    ck_assert_int_eq(open_constraints, 0);
    dd_close(&x);
}

/* Every set of constrained requests, quick, slow and not ready at times, with one step in flight and with two. */
START_TEST(tokens_are_those_of_one_step_at_a_time)
{
    stream alone[REQUESTS] = {0}, mixed[REQUESTS] = {0};
    const int kind = _i % 16;
    late = false, unready = 0;
    open_double(false);
    run_all(kind, alone);
    late = _i >= 16, unready = _i >= 16 ? _i % 3 : 0;
    open_double(true);
    run_all(kind, mixed);
    for (int i = 0; i < REQUESTS; i++) {
        ck_assert_int_ge(alone[i].n, MOST - 5 * i - 1);
        ck_assert_int_ge(mixed[i].n, MOST - 5 * i - 1);
        for (int k = 0; k < mixed[i].n && k < alone[i].n; k++) {
            ck_assert_msg(mixed[i].ids[k] == alone[i].ids[k], "kind %d: token %d of request %d", _i, k, i);
            if (is_constrained(kind, i) && k) /* the first one is the writer's */
                ck_assert(allows(mixed[i].ids, (size_t)k, mixed[i].ids[k]));
        }
    }
}
END_TEST

static int produced(int i)
{
    const sl_ticket *t = dd_ticket(&x, (uint64_t)i + 1);
    return t->n_tokens - t->n_prompt;
}

static void end_all(void)
{
    for (int i = 0; i < REQUESTS; i++)
        if (dd_ticket(&x, (uint64_t)i + 1))
            dd_abort(&x, (uint64_t)i + 1, SL_ERR_CANCELLED);
    turn();
    turn();
    ck_assert_int_eq(dd_tickets(&x), 0);
    dd_close(&x);
}

/* A constraint that keeps up is in every step, and two of them stay in flight. */
START_TEST(a_quick_constraint_is_in_every_step)
{
    late = false, unready = 0;
    open_double(true);
    for (int i = 0; i < 2; i++)
        begin(2, i); /* request 1 */
    turn();
    for (int n = 1; n <= 20; n++) {
        ck_assert_int_eq(x.d->run->n_flights, 1);
        turn();
        ck_assert_int_eq(produced(0), 1 + n);
        ck_assert_int_eq(produced(1), 1 + n);
    }
    end_all();
}
END_TEST

/* One that does not is in every second step, or in fewer if its mask takes longer still: it alone waits. */
START_TEST(a_slow_constraint_waits_alone)
{
    late = true, unready = _i;
    open_double(true);
    for (int i = 0; i < 3; i++)
        begin(2, i);
    turn();
    for (int n = 1; n <= 24; n++) {
        ck_assert_int_eq(x.d->run->n_flights, 1);
        turn();
        ck_assert_int_eq(produced(0), 1 + n);
        ck_assert_int_eq(produced(2), 1 + n);
    }
    ck_assert_int_ge(produced(1), 1 + 24 / (2 + _i) - 1);
    ck_assert_int_le(produced(1), 1 + 24 / (2 + _i) + 1);
    end_all();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("constrained");
    TCase *t = tcase_create("constrained");
    tcase_add_loop_test(t, tokens_are_those_of_one_step_at_a_time, 0, KINDS + 8);
    tcase_add_test(t, a_quick_constraint_is_in_every_step);
    tcase_add_loop_test(t, a_slow_constraint_waits_alone, 0, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
