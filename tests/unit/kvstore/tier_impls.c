/* See tier_impls.h. */
#include "tests/unit/kvstore/tier_impls.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/kvstore/nixl_rig.h"
#include "tests/unit/kvstore/redis_rig.h"
#include "tests/unit/kvstore/test_kvstore.h"

static const sl_tier_ops *impls[8];
static int n_impls;
static redis_rig *redis;

int tier_impls_find(void)
{
    for (size_t i = 0; sl_tier_at(i); i++) {
        const char *why = NULL;
        if (strcmp(sl_tier_at(i)->name, "redis") == 0)
            redis = redis_rig_start(REDIS_RIG_LRU, &why);
        if (why)
            printf("SKIP %s: %s\n", sl_tier_at(i)->name, why);
        else
            impls[n_impls++] = sl_tier_at(i);
    }
    return n_impls;
}

const sl_tier_ops *tier_impl(int i)
{
    return impls[i];
}

static void set_option(const sl_options *table, sl_tier_values *v, const char *name, const char *text)
{
    ck_assert_int_eq(sl_options_set(table, v->bytes, name, text, NULL), SL_OK);
}

/* The store is shared by all tests, so each open tier has names of its own. */
static void open_redis(const sl_tier_ops *ops, sl_tier_opts *o)
{
    static sl_tier_values values;
    static char prefix[24];
    static int opened;
    snprintf(prefix, sizeof prefix, "t%d.%d", (int)getpid(), opened++);
    sl_options_default(ops->options, values.bytes);
    set_option(ops->options, &values, "address", redis_rig_address(redis));
    o->options = &values;
    o->prefix = prefix;
}

static void open_nixl(const sl_tier_ops *ops, sl_tier_opts *o)
{
    static sl_tier_values values;
    sl_options_default(ops->options, values.bytes);
    set_option(ops->options, &values, "library", nixl_rig_library());
    set_option(ops->options, &values, "backend", "POSIX");
    o->capacity_bytes = 4 * TIER_KEYS * 2 * 4096;
    o->directory = tier_directory();
    o->options = &values;
    o->prefix = "t";
}

static void open_disk(const sl_tier_ops *ops, sl_tier_opts *o)
{
    (void)ops;
    o->capacity_bytes = 4096 + TIER_PAGES * 3 * 4096;
    o->segment_bytes = 3 * 4096;
    o->directory = tier_directory();
}

static void open_sized(const sl_tier_ops *ops, sl_tier_opts *o)
{
    (void)ops;
    o->capacity_bytes = TIER_PAGES * TIER_PAGE_BYTES + TIER_PAGE_BYTES / 2;
}

static const struct {
    const char *name;
    void (*fill)(const sl_tier_ops *ops, sl_tier_opts *o);
} OPENED[] = {{"memory", open_sized}, {"disk", open_disk}, {"redis", open_redis}, {"nixl", open_nixl}};

sl_tier_opts tier_impl_options(const sl_tier_ops *ops)
{
    sl_tier_opts o = {.page_bytes = TIER_PAGE_BYTES, .fingerprint = {1, 2}, .format = {3, 4}};
    size_t i = 0;
    while (i < SL_COUNT(OPENED) && strcmp(OPENED[i].name, ops->name) != 0)
        i++;
    ck_assert_msg(i < SL_COUNT(OPENED), "tier %s: OPENED in tier_impls.c does not say how it is opened",
                  ops->name);
    OPENED[i].fill(ops, &o);
    return o;
}

void tier_impl_folder(const sl_tier_ops *ops)
{
    if (strcmp(ops->name, "nixl") == 0)
        mkdir(tier_directory(), 0700); /* an earlier close of this test has removed it */
    if (ops->persistent) {
        remove_tier_directory();
        ck_assert_int_eq(mkdir(tier_directory(), 0700), 0);
    }
}

void tier_impl_remove(const sl_tier_ops *ops)
{
    if (strcmp(ops->name, "nixl") == 0)
        nixl_rig_remove(tier_directory());
    if (ops->persistent)
        remove_tier_directory();
}

void tier_impls_stop(void)
{
    redis_rig_stop(redis);
}
