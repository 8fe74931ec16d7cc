/* Attempts that have ended (prefill/past.h), against a list of all of them: the latest SL_PAST_ATTEMPTS are known and no other. */
#include "prefill/past.h"
#include "tests/unit/run_suite.h"

enum { ATTEMPTS = 3 * SL_PAST_ATTEMPTS + 7 };

typedef struct attempt {
    uint64_t rid;
    uint32_t number, router;
} attempt;

static attempt all[ATTEMPTS];
static sl_past past;

static uint32_t random_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % n;
}

/* Whether a is among the last of the first n. */
static bool known(const attempt *a, int n)
{
    for (int i = n > SL_PAST_ATTEMPTS ? n - SL_PAST_ATTEMPTS : 0; i < n; i++)
        if (all[i].rid == a->rid && all[i].number == a->number && all[i].router == a->router)
            return true;
    return false;
}

START_TEST(the_latest_are_known)
{
    uint64_t seed = (uint64_t)_i + 1;
    past = (sl_past){0};
    for (int n = 0; n < ATTEMPTS; n++) {
        all[n] = (attempt){random_below(&seed, 900), random_below(&seed, 3), random_below(&seed, 2)};
        for (int k = 0; k < 4; k++) {
            const attempt a = k == 0            ? all[n]
                              : k == 1          ? (attempt){0}
                              : k == 2 && n > 0 ? all[random_below(&seed, (uint32_t)n)]
                                                : (attempt){random_below(&seed, 900), k == 3, 1};
            ck_assert_int_eq(sl_past_has(&past, a.router, a.rid, a.number), known(&a, n));
        }
        sl_past_add(&past, all[n].router, all[n].rid, all[n].number);
        ck_assert(sl_past_has(&past, all[n].router, all[n].rid, all[n].number));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("past");
    TCase *t = tcase_create("past");
    add_variants(t, the_latest_are_known, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
