/* Quotas of tenants on the disk: the index of the disk tier, and the tier over restarts, with other rules than before and with
 * segment headers that were written before segments had tenants. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kvstore/disk_format.h"
#include "kvstore/disk_index.h"
#include "kvstore/tier.h"
#include "tests/unit/kvstore/quota_rules.h"

/* ---- the index of the disk tier ---- */

enum { SLOTS = 4 };
static sl_disk_index ix;
static uint64_t batch, generation;

static void open_index(int segments, const sl_quota_opts *quota)
{
    sl_disk_store s = {.id = 1, .page_bytes = 100, .slots_per_segment = SLOTS};
    batch = generation = 1;
    ck_assert_int_eq(sl_disk_index_init(&ix, &s, (uint64_t)segments, quota), SL_OK);
}

static bool put(uint64_t tenant, uint64_t key)
{
    int64_t slot = sl_disk_index_claim(&ix, (sl_key){key, 1}, tenant, ++batch);
    if (slot < 0) {
        int64_t s = sl_disk_index_recycle(&ix, tenant, batch, 1, ++generation);
        if (s < 0)
            return false;
        sl_disk_index_open(&ix, s);
        slot = sl_disk_index_claim(&ix, (sl_key){key, 1}, tenant, batch);
    }
    ck_assert_int_ge(slot, 0);
    sl_disk_index_publish(&ix, slot);
    return true;
}

static int found(uint64_t from, int n)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += sl_disk_index_find(&ix, (sl_key){from + (uint64_t)i, 1}) >= 0;
    return k;
}

START_TEST(disk_shares_and_limits)
{
    sl_quota_opts o = RULES(0, 1, "quiet share=0.25", "batch limit=0.125", "never limit=0");
    open_index(16, &o);
    for (uint64_t i = 0; i < 16; i++) /* exactly its share: four segments */
        ck_assert(put(1, 1000 + i));
    for (uint64_t i = 0; i < 200; i++) {
        ck_assert(put(7, 2000 + i));
        ck_assert(put(2, 3000 + i));
    }
    ck_assert(!put(3, 4000));
    ck_assert_int_eq(found(1000, 16), 16);
    ck_assert_int_eq(found(3000, 200), 2 * SLOTS);
    ck_assert_int_eq(found(2000, 200), 10 * SLOTS);
    ck_assert_int_eq((int)ix.quota.uses[2].pages, 16);
    ck_assert_uint_gt(ix.quota.uses[3].evicted[SL_QUOTA_LIMIT], 0);
    for (uint64_t i = 16; i < 40; i++) /* above its share it takes from whoever is above his */
        ck_assert(put(1, 1000 + i));
    for (uint64_t i = 0; i < 400; i++)
        ck_assert(put(7, 5000 + i));
    ck_assert_int_eq(found(1000, 40), 16);
    sl_disk_index_free(&ix);
}
END_TEST

/* What a tenant has was used lately, and is in a segment that is not full: it is not the first to go. */
START_TEST(a_segment_that_is_not_full_is_not_older)
{
    sl_quota_opts o = {.limit = 1};
    open_index(16, &o);
    for (uint64_t i = 0; i < 60; i++)
        ck_assert(put(7, 2000 + i));
    ck_assert(put(8, 1000));
    for (uint64_t i = 60; i < 80; i++)
        ck_assert(put(7, 2000 + i));
    ck_assert_int_eq(found(1000, 1), 1);
    for (uint64_t i = 80; i < 180; i++)
        ck_assert(put(7, 2000 + i));
    ck_assert_int_eq(found(1000, 1), 0); /* but it ages */
    sl_disk_index_free(&ix);
}
END_TEST

/* ---- the disk tier over restarts ---- */

enum { BYTES = 10000, KEYS = 40, SEGMENT = 4096 + SLOTS * 4 * 4096 };

static char directory[64];
static sl_tier *tier;
static int aged;

static void on_aged(void *ctx, double unused_s, double age_s)
{
    (void)ctx;
    ck_assert(unused_s >= 0 && age_s >= unused_s);
    __atomic_add_fetch(&aged, 1, __ATOMIC_RELAXED);
}

static void open_tier(const sl_quota_opts *quota)
{
    sl_err err = {0};
    sl_tier_opts o = {.page_bytes = BYTES,
                      .capacity_bytes = 4096 + 8ull * SEGMENT,
                      .segment_bytes = SEGMENT,
                      .directory = directory,
                      .fingerprint = {1, 2},
                      .format = {3, 4},
                      .quota = quota,
                      .aged = on_aged};
    ck_assert_msg(sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err) == SL_OK, "%s", err.text);
}

static void on_done(sl_tier_req *r, sl_status st)
{
    *(bool *)r->cookie = st == SL_OK;
}

/* Sets or looks for n pages of a tenant from this key on, one by one; returns how many succeeded. */
static int ask(sl_tier_op op, uint64_t tenant, uint64_t from, int n)
{
    static uint8_t content[BYTES];
    struct iovec span = {content, BYTES};
    sl_tier_page page = {&span, 1};
    int ok = 0;
    for (int i = 0; i < n; i++) {
        bool done = false;
        sl_key key = {from + (uint64_t)i, from};
        sl_status result;
        sl_tier_req r = {.op = op,
                         .n = 1,
                         .keys = &key,
                         .pages = &page,
                         .tenants = &tenant,
                         .results = &result,
                         .done = on_done,
                         .cookie = &done};
        ck_assert_int_eq(sl_tier_submit(tier, &r), SL_OK);
        while (!done) {
            struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
            ck_assert_int_eq(poll(&p, 1, 20000), 1);
            sl_tier_poll(tier);
        }
        ok += result == SL_OK;
    }
    return ok;
}

static int64_t pages_of(const char *name)
{
    sl_quota_use u[2 + SL_QUOTA_RULES];
    int n = sl_tier_quota_uses(tier, u);
    for (int i = 0; i < n; i++)
        if (!strcmp(u[i].name, name))
            return u[i].pages;
    return -1;
}

START_TEST(a_restart_keeps_the_tenants)
{
    char file[128];
    sl_quota_opts o = RULES(0, 1, "quiet share=0.25"), less = RULES(0, 1, "quiet limit=0.125"),
                  unnamed = {.share = 0.25, .limit = 1};
    snprintf(directory, sizeof directory, "build/quota-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(file, sizeof file, "%s/pages.sluice", directory);
    aged = 0;
    open_tier(&o);
    ck_assert_int_eq(ask(SL_TIER_SET, 1, 100, 8), 8);
    ck_assert_int_eq(ask(SL_TIER_SET, 7, 200, 30), 30);
    ck_assert_int_eq(pages_of("quiet"), 8);
    sl_tier_close(tier);
    open_tier(&o); /* it knows whose they are */
    ck_assert_int_eq(pages_of("quiet"), 8);
    ck_assert_int_eq(ask(SL_TIER_SET, 7, 300, 40), 40);
    ck_assert_int_eq(ask(SL_TIER_EXISTS, 1, 100, 8), 8);
    ck_assert_int_gt(aged, 30);
    sl_tier_close(tier);
    open_tier(&unnamed); /* no rule names it now: it is a tenant like others */
    ck_assert_int_eq(pages_of("quiet"), -1);
    ck_assert_int_eq(ask(SL_TIER_SET, 7, 400, 40), 40);
    ck_assert_int_eq(ask(SL_TIER_EXISTS, 1, 100, 8), 8);
    sl_tier_close(tier);
    open_tier(&less); /* one segment at most: the older one is given up at once */
    ck_assert_int_eq(pages_of("quiet"), 4);
    ck_assert_int_eq(ask(SL_TIER_EXISTS, 1, 104, 0) + ask(SL_TIER_EXISTS, 1, 100, 8), 4);
    sl_tier_close(tier);
    open_tier(NULL); /* and without quotas no tenant is protected */
    ck_assert_int_eq(ask(SL_TIER_SET, 7, 500, 40), 40);
    ck_assert_int_eq(ask(SL_TIER_EXISTS, 1, 100, 8), 0);
    sl_tier_close(tier);
    unlink(file);
    ck_assert_int_eq(rmdir(directory), 0);
}
END_TEST

/* A segment that a program without tenants has written has none, and a damaged number is none. */
START_TEST(a_segment_header_without_a_tenant)
{
    uint8_t block[SL_DISK_BLOCK];
    sl_disk_segment g = {.store_id = 1, .index = 2, .generation = 3, .sequence = 4, .tenant = 5}, out;
    sl_disk_segment_write(&g, block);
    ck_assert_int_eq(sl_disk_segment_read(block, &out), SL_OK);
    ck_assert_uint_eq(out.tenant, 5);
    for (int b = 52; b < 64; b++) {
        block[b] ^= 1;
        ck_assert_int_eq(sl_disk_segment_read(block, &out), SL_OK);
        ck_assert_uint_eq(out.tenant, 0);
        ck_assert_uint_eq(out.sequence, 4);
        block[b] ^= 1;
    }
    memset(block + 52, 0, 12);
    ck_assert_int_eq(sl_disk_segment_read(block, &out), SL_OK);
    ck_assert_uint_eq(out.tenant, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("disk_quota");
    TCase *c = tcase_create("disk_quota");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, disk_shares_and_limits);
    tcase_add_test(c, a_segment_that_is_not_full_is_not_older);
    tcase_add_test(c, a_restart_keeps_the_tenants);
    tcase_add_test(c, a_segment_header_without_a_tenant);
    suite_add_tcase(s, c);
    return run_suite(s);
}
