/*
 * Counters of the device, read by a host that does not wait, compared with sums that are made when the work is enqueued: random
 * counting, slots that begin again, readings that overtake each other's resets, a ring that is full, counters that wrap around. On the
 * CPU, where a reading is there at once, and on a device that computes as late as it may.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "sparse/swap_counts.h"
#include "tests/unit/engine/fix.h"
#include "tests/unit/engine/late.h"
#include "tests/unit/run_suite.h"

enum { LAYERS = 3, SLOTS = 4, LISTS = 2, N = SL_SWAP_COUNTERS, CLOCKS = 2, STEPS = 3000 };
#define CELLS (LAYERS * SLOTS * LISTS * N)

typedef struct image {
    uint32_t cell[LAYERS][SLOTS][LISTS][N];
    sl_swap_clock clock[CLOCKS];
} image;

typedef struct sums {
    uint64_t layer[LAYERS][N], slot[SLOTS][N], taken;
} sums;

typedef struct rig {
    sl_backend *be;
    image *device, now;
    sums here; /* what has been enqueued so far */
    sl_swap_counts *counts;
    uint64_t rng;
} rig;

static uint32_t next(rig *r)
{
    r->rng = r->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(r->rng >> 33);
}

static void send(rig *r)
{
    image copy = r->now; /* on the stack: the device reads it when this is called */
    MUST(sl_be_copy(r->be, r->device, &copy, sizeof copy, NULL) == SL_OK);
}

static void count(rig *r)
{
    int l = (int)(next(r) % LAYERS), s = (int)(next(r) % SLOTS), k = (int)(next(r) % N);
    uint32_t by = next(r) % 8 == 0 ? 0x70000000u : next(r) % 100;
    r->now.cell[l][s][next(r) % LISTS][k] += by;
    r->here.layer[l][k] += by;
    r->here.slot[s][k] += by;
    r->now.clock[next(r) % CLOCKS].taken += by;
    r->here.taken += by;
    send(r);
}

/* A slot gets another request; -2: the steps' stamps begin again. */
static void reset(rig *r, int32_t slot)
{
    MUST(sl_swap_counts_mark(r->counts, slot, NULL) == SL_OK);
    for (int l = 0; l < LAYERS; l++)
        for (int s = 0; s < SLOTS; s++)
            if (s == slot || slot == SL_SWAP_ALL)
                memset(r->now.cell[l][s], 0, sizeof r->now.cell[l][s]);
    if (slot >= 0)
        memset(r->here.slot[slot], 0, sizeof r->here.slot[slot]);
    send(r);
}

static bool equal(const uint64_t *want, sl_coord_counters got)
{
    return want[0] == got.hits && want[1] == got.misses && want[2] == got.evictions &&
           want[3] == got.tail_hits;
}

static void compare(rig *r, const sums *want)
{
    uint64_t taken, waited;
    for (int l = 0; l < LAYERS; l++)
        MUST(equal(want->layer[l], sl_swap_counts_layer(r->counts, l)));
    for (int s = 0; s < SLOTS; s++)
        MUST(equal(want->slot[s], sl_swap_counts_slot(r->counts, s)));
    sl_swap_counts_times(r->counts, &taken, &waited);
    MUST(taken == want->taken && waited == 0);
}

static void open_rig(rig *r, bool late, unsigned seed)
{
    *r = (rig){.rng = seed};
    MUST(sl_backend_create("cpu", &(sl_backend_opts){.threads = 1}, &r->be, NULL) == SL_OK);
    if (late)
        late_wrap(r->be);
    MUST(sl_be_alloc(r->be, SL_MEM_DEVICE, sizeof *r->device, (void **)&r->device, NULL) == SL_OK);
    send(r);
    sl_swap_counts_opts o = {.device = &r->device->cell[0][0][0][0],
                             .layers = LAYERS,
                             .slots = SLOTS,
                             .lists = LISTS,
                             .clocks = CLOCKS};
    MUST(sl_swap_counts_bytes(&o) == sizeof(image));
    MUST(sl_swap_counts_create(r->be, &o, &r->counts, NULL) == SL_OK);
}

static void close_rig(rig *r)
{
    sl_swap_counts_destroy(r->counts);
    sl_be_free(r->be, SL_MEM_DEVICE, r->device);
    sl_backend_destroy(r->be);
}

START_TEST(nothing_is_lost)
{
    rig r;
    open_rig(&r, _i % 2, (unsigned)_i + 1);
    for (int i = 0; i < STEPS; i++)
        switch (next(&r) % 16) {
        case 0:
            MUST(sl_swap_counts_settle(r.counts, NULL) == SL_OK);
            compare(&r, &r.here);
            break;
        case 1:
        case 2:
            reset(&r, (int32_t)(next(&r) % SLOTS));
            break;
        case 3:
            if (next(&r) % 8 == 0)
                reset(&r, SL_SWAP_ALL);
            break;
        case 4: /* more than the ring holds */
            for (uint32_t n = next(&r) % (2 * SL_SWAP_READINGS); n > 0; n--)
                reset(&r, (int32_t)(next(&r) % SLOTS));
            break;
        case 5:
            MUST(sl_swap_counts_peek(r.counts, NULL) == SL_OK);
            break;
        default:
            count(&r);
        }
    close_rig(&r);
}
END_TEST

START_TEST(peek_gives_the_last_reading_and_does_not_wait)
{
    rig r;
    open_rig(&r, true, 7);
    for (int i = 0; i < 200; i++) {
        MUST(sl_swap_counts_peek(r.counts, NULL) == SL_OK); /* takes in the one before */
        MUST(sl_swap_counts_settle(r.counts, NULL) == SL_OK);
        sums then = r.here;
        reset(&r, -1); /* a reading, and nothing after it is zero */
        for (int n = 0; n < 5; n++)
            count(&r);
        int waiting = late_waiting();
        MUST(waiting >= 5);
        MUST(sl_swap_counts_peek(r.counts, NULL) == SL_OK);
        MUST(late_waiting() >= 5); /* what was counted after the reading still waits */
        compare(&r, &then);
    }
    close_rig(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sparse/swap_counts");
    TCase *c = tcase_create("swap_counts");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, nothing_is_lost, 0, 8);
    tcase_add_test(c, peek_gives_the_last_reading_and_does_not_wait);
    suite_add_tcase(s, c);
    return run_suite(s);
}
