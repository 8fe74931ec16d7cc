/*
 * Queues of linked elements against an array: random operations, and every element comes out once and in its order. The moments of
 * clock.h.
 */
#include <check.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/list.h"
#include "tests/unit/run_suite.h"

typedef struct item {
    int value;
    struct item *next;
} item;

/* What the queue must have: values[from..to). */
static void same(const item *at, const int *values, int from, int to)
{
    for (int i = from; i < to; i++, at = at->next)
        ck_assert(at && at->value == values[i]);
    ck_assert_ptr_null(at);
}

START_TEST(as_an_array)
{
    enum { STEPS = 3000 };
    static item items[STEPS];
    static int values[STEPS];
    SL_LIST(item) queue;
    int from = 0, to = 0;
    unsigned seed = 7;
    sl_list_init(&queue);
    for (int step = 0; step < STEPS; step++) {
        const int what = rand_r(&seed) % 16;
        if (what == 0) { /* all at once, as a poll takes what is complete */
            const item *all = queue.head;
            sl_list_init(&queue);
            same(all, values, from, to);
            from = to;
        } else if (what < 8 && from < to) {
            ck_assert_int_eq(queue.head->value, values[from++]);
            sl_list_pop(&queue);
        } else {
            items[to] = (item){.value = values[to] = step, .next = &items[0]};
            sl_list_push(&queue, &items[to]);
            to++;
        }
        same(queue.head, values, from, to);
    }
    ck_assert_int_gt(from, STEPS / 4);
}
END_TEST

START_TEST(moments)
{
    static const uint64_t after[] = {0, 1, 999999999, 1000000000, 3600000000001};
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        const uint64_t least = sl_wall_ns() + after[i];
        const struct timespec t = sl_wall_after(after[i]);
        const uint64_t at = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec,
                       most = sl_wall_ns() + after[i];
        ck_assert(t.tv_nsec >= 0 && t.tv_nsec < 1000000000 && least <= at && at <= most);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("list");
    TCase *t = tcase_create("list");
    tcase_add_test(t, as_an_array);
    tcase_add_test(t, moments);
    suite_add_tcase(s, t);
    return run_suite(s);
}
