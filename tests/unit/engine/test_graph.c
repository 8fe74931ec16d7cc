/*
 * Shapes of decode steps and their graphs (engine/graph.h), against restatements: a shape covers its step and there are few of
 * them; a graph is found in its shape alone, lives as long as it is among the latest that were used, and is destroyed once; a step without
 * a graph borrows one at most twice as wide, but only for a while.
 */
#include <string.h>

#include "engine/graph.h"
#include "kernels/backend_impl.h"
#include "tests/unit/run_suite.h"

enum { MOST = 300, PATIENCE = 16 };

typedef struct fake {
    sl_graph base;
    int destroyed;
} fake;

static void destroy(sl_graph *g)
{
    ((fake *)g)->destroyed++;
}

static const sl_backend_desc desc = {.graph_destroy = destroy};
static sl_backend be = {.desc = &desc};
static fake made[MOST];
static sl_step_shape shapes[MOST];
static uint64_t used[MOST], now;
static int n_made;
static sl_graphs *g;

static uint32_t random_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % n;
}

static sl_graphs_opts make(uint64_t *seed)
{
    sl_graphs_opts o = {.capture = true, .max_graphs = 1 + (int32_t)random_below(seed, 12)};
    o.max_seqs = 1 + (int32_t)random_below(seed, 200), o.max_tokens = 1 + (int32_t)random_below(seed, 300);
    o.max_logits = 1 + (int32_t)random_below(seed, 300),
    o.max_context = 600 + (int32_t)random_below(seed, 9000);
    ck_assert_int_eq(sl_graphs_create(&o, &g, NULL), SL_OK);
    memset(made, 0, sizeof made);
    n_made = 0, now = 0;
    return o;
}

static int32_t min3(int32_t a, int32_t b, int32_t c)
{
    return a < b ? (a < c ? a : c) : (b < c ? b : c);
}

static bool same(const sl_step_shape *a, const sl_step_shape *b)
{
    return a->tokens == b->tokens && a->context == b->context && a->per == b->per && a->logits == b->logits &&
           a->group_tokens == b->group_tokens;
}

START_TEST(a_shape_covers_its_step)
{
    uint64_t seed = (uint64_t)_i + 1;
    const sl_graphs_opts o = make(&seed);
    for (int32_t per = 1; per <= 4; per++) {
        const int32_t cap = sl_graphs_cap(g, per);
        ck_assert_int_le(cap, min3(o.max_seqs, o.max_tokens, o.max_logits));
        ck_assert_int_le(cap * per, o.max_tokens);
        ck_assert_int_le(cap * per, o.max_logits);
        int32_t kinds = 0, before = 0;
        for (int32_t n = 1; n <= cap; n++) {
            const int32_t context = 1 + (int32_t)random_below(&seed, (uint32_t)o.max_context);
            const sl_step_shape s = sl_graphs_shape(g, n, per, context, true, 0);
            ck_assert(s.tokens >= n * per && s.tokens % per == 0 && s.tokens <= cap * per && s.per == per);
            ck_assert(s.context >= context && s.context <= o.max_context);
            ck_assert_msg(s.context <= 1024 || s.context < 2 * context, "%d for %d", s.context, context);
            ck_assert_int_ge(s.tokens, before);
            kinds += s.tokens != before, before = s.tokens;
        }
        ck_assert_int_le(kinds, 11 + cap / 8);
    }
    sl_graphs_destroy(g);
}
END_TEST

/* In a group the padded size of the largest rank decides, whatever this rank has. */
START_TEST(ranks_of_a_group_have_one_shape)
{
    uint64_t seed = (uint64_t)_i + 100;
    const sl_graphs_opts o = make(&seed);
    const int32_t cap = sl_graphs_cap(g, 1);
    for (int i = 0; i < 200; i++) {
        const int32_t largest = 1 + (int32_t)random_below(&seed, (uint32_t)o.max_tokens),
                      all = sl_graphs_pad(largest, o.max_tokens);
        const bool together = sl_graphs_together(g, all);
        ck_assert_int_eq(together, all <= sl_graphs_pad(cap, o.max_tokens));
        for (int32_t n = 1; together && n <= min3(largest, cap, cap); n += 1 + largest / 4)
            ck_assert_int_eq(sl_graphs_shape(g, n, 1, 700, true, all).tokens, all < cap ? all : cap);
    }
    ck_assert(!sl_graphs_together(g, 0));
    sl_graphs_destroy(g);
}
END_TEST

/* The number of the graph of a shape in the model, which is not destroyed; -1: there is none. */
static int find(const sl_step_shape *s)
{
    for (int i = 0; i < n_made; i++)
        if (!made[i].destroyed && same(&shapes[i], s))
            return i;
    return -1;
}

static int alive(void)
{
    int n = 0;
    for (int i = 0; i < n_made; i++)
        n += !made[i].destroyed;
    return n;
}

static int least_recent(void)
{
    int oldest = -1;
    for (int i = 0; i < n_made; i++)
        if (!made[i].destroyed && (oldest < 0 || used[i] < used[oldest]))
            oldest = i;
    return oldest;
}

static void add(const sl_graphs_opts *o, const sl_step_shape *s)
{
    const int before = alive(), gone = before == o->max_graphs ? least_recent() : -1;
    made[n_made].base.be = &be;
    shapes[n_made] = *s, used[n_made] = ++now;
    sl_graphs_add(g, s, &made[n_made].base);
    n_made++;
    for (int i = 0; i < n_made; i++)
        ck_assert_int_le(made[i].destroyed, 1);
    ck_assert_int_eq(alive(), gone >= 0 ? before : before + 1);
    ck_assert(gone < 0 || made[gone].destroyed == 1);
}

START_TEST(graphs_match_a_model)
{
    uint64_t seed = (uint64_t)_i + 200;
    const sl_graphs_opts o = make(&seed);
    for (int i = 0; i < 400 && n_made < MOST; i++) {
        const int32_t n = 1 + (int32_t)random_below(&seed, (uint32_t)sl_graphs_cap(g, 1)),
                      context = 1 + (int32_t)random_below(&seed, (uint32_t)o.max_context);
        const sl_step_shape s = sl_graphs_shape(g, n, 1, context, random_below(&seed, 2), 0);
        const int k = find(&s);
        ck_assert_ptr_eq(sl_graphs_find(g, &s), k >= 0 ? &made[k].base : NULL);
        if (k >= 0)
            used[k] = ++now;
        else if (random_below(&seed, 2))
            add(&o, &s);
    }
    ck_assert_int_le(alive(), o.max_graphs);
    sl_graphs_clear(g);
    ck_assert_int_eq(alive(), 0);
    sl_graphs_destroy(g);
    for (int i = 0; i < n_made; i++)
        ck_assert_int_eq(made[i].destroyed, 1);
}
END_TEST

/* Whether graph i may serve a step of shape s that has none. */
static bool serves(int i, const sl_step_shape *s)
{
    const sl_step_shape *w = &shapes[i];
    return !made[i].destroyed && w->logits == s->logits && w->tokens >= s->tokens &&
           w->tokens <= 2 * s->tokens && w->context >= s->context && w->context <= 2 * s->context;
}

START_TEST(a_wider_graph_is_borrowed_for_a_while)
{
    uint64_t seed = (uint64_t)_i + 300;
    const sl_graphs_opts o = make(&seed);
    int borrowed = 0;
    for (int i = 0; i < 60; i++) {
        const int32_t n = 1 + (int32_t)random_below(&seed, (uint32_t)sl_graphs_cap(g, 1)),
                      context = 1 + (int32_t)random_below(&seed, (uint32_t)o.max_context);
        const sl_step_shape own = sl_graphs_shape(g, n, 1, context, true, 0);
        bool any = false;
        for (int k = 0; k < n_made; k++)
            any = any || serves(k, &own);
        for (int step = 1; find(&own) < 0 && step <= PATIENCE + 1; step++) {
            sl_step_shape s = own;
            sl_graphs_choose(g, &s);
            ck_assert_int_eq(!same(&s, &own), any && step <= PATIENCE);
            ck_assert(same(&s, &own) || serves(find(&s), &own));
            for (int k = 0; k < n_made && !same(&s, &own); k++)
                ck_assert(!serves(k, &own) || shapes[k].tokens > s.tokens ||
                          (shapes[k].tokens == s.tokens && shapes[k].context >= s.context));
            borrowed += !same(&s, &own);
        }
        if (find(&own) < 0)
            add(&o, &own);
    }
    ck_assert(borrowed > 0 || o.max_graphs < 4 || sl_graphs_cap(g, 1) < 4);
    sl_graphs_destroy(g);
}
END_TEST

START_TEST(what_is_due_is_taken_once)
{
    uint64_t seed = 5;
    sl_step_shape got;
    make(&seed);
    ck_assert(!sl_graphs_is_due(g) && !sl_graphs_take_due(g, &got));
    const sl_step_shape a = sl_graphs_shape(g, 1, 1, 10, true, 0),
                        b = sl_graphs_shape(g, 2, 1, 2000, false, 0);
    sl_graphs_want(g, &a);
    sl_graphs_want(g, &b);
    ck_assert(sl_graphs_is_due(g) && sl_graphs_take_due(g, &got) && same(&got, &b));
    ck_assert(!sl_graphs_is_due(g) && !sl_graphs_take_due(g, &got));
    sl_graphs_want(g, &a);
    sl_graphs_clear(g);
    ck_assert(!sl_graphs_is_due(g));
    ck_assert(sl_graphs_captures(g));
    sl_graphs_give_up(g);
    ck_assert(!sl_graphs_captures(g));
    sl_graphs_destroy(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("graph");
    TCase *t = tcase_create("graph");
    add_variants(t, a_shape_covers_its_step, 12);
    add_variants(t, ranks_of_a_group_have_one_shape, 12);
    add_variants(t, graphs_match_a_model, 24);
    add_variants(t, a_wider_graph_is_borrowed_for_a_while, 24);
    tcase_add_test(t, what_is_due_is_taken_once);
    suite_add_tcase(s, t);
    return run_suite(s);
}
