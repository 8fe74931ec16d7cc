/*
 * Who shares pages with whom: domains and seeds by themselves, their cache, and the seeds that requests of the router
 * carry.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "tests/unit/router/harness.h"

static harness h;

static void setup(void)
{
    h_init(&h);
}

static void teardown(void)
{
    h_close(&h);
}

/* ---- domains ---- */

static sl_key seed_of(sl_share how, const char *tenant, const char *salt)
{
    sl_share_domain d;
    ck_assert(sl_share_domain_of(how, tenant, salt, strlen(salt), &d));
    return sl_share_seed((sl_key){5, 6}, &d);
}

static bool same(sl_share how, const char *tenant_a, const char *salt_a, const char *tenant_b,
                 const char *salt_b)
{
    return sl_key_eq(seed_of(how, tenant_a, salt_a), seed_of(how, tenant_b, salt_b));
}

START_TEST(all_share_by_salt)
{
    ck_assert(same(SL_SHARE_ALL, "alice", "", "bob", ""));
    ck_assert(same(SL_SHARE_ALL, "alice", "x", "bob", "x"));
    ck_assert(!same(SL_SHARE_ALL, "alice", "x", "alice", ""));
    ck_assert(!same(SL_SHARE_ALL, "alice", "x", "alice", "y"));
}
END_TEST

START_TEST(tenants_share_with_themselves)
{
    ck_assert(same(SL_SHARE_TENANT, "alice", "", "alice", ""));
    ck_assert(same(SL_SHARE_TENANT, "", "", "", "")); /* callers that are no tenant */
    ck_assert(!same(SL_SHARE_TENANT, "alice", "", "bob", ""));
    ck_assert(!same(SL_SHARE_TENANT, "alice", "", "", ""));
    ck_assert(!same(SL_SHARE_TENANT, "alice", "x", "bob", "x"));
    ck_assert(!same(SL_SHARE_TENANT, "alice", "x", "alice", "y"));
}
END_TEST

/* A client chooses its salt: none makes it somebody else. */
START_TEST(a_salt_does_not_imitate_a_tenant)
{
    ck_assert(!same(SL_SHARE_TENANT, "alice", "", "", "alice"));
    ck_assert(!same(SL_SHARE_TENANT, "al", "ice", "alice", ""));
    ck_assert(!same(SL_SHARE_TENANT, "a", "bob", "ab", "ob"));
    ck_assert(!sl_key_eq(seed_of(SL_SHARE_ALL, "", ""), seed_of(SL_SHARE_TENANT, "", "")));
}
END_TEST

START_TEST(none_is_never_the_same)
{
    ck_assert(!same(SL_SHARE_NONE, "alice", "", "alice", ""));
    ck_assert(!same(SL_SHARE_NONE, "alice", "x", "alice", "x"));
}
END_TEST

START_TEST(seeds_depend_on_the_model)
{
    sl_share_domain d;
    ck_assert(sl_share_domain_of(SL_SHARE_ALL, "", "", 0, &d));
    sl_key a = sl_share_seed((sl_key){1, 2}, &d), b = sl_share_seed((sl_key){2, 1}, &d);
    ck_assert(!sl_key_eq(a, b));
    ck_assert(a.lo | a.hi);
}
END_TEST

/* ---- the cache ---- */

static sl_key find(sl_share_cache *c, sl_share how, const char *tenant, const char *salt, sl_key fingerprint)
{
    sl_share_domain d;
    sl_key seed;
    ck_assert(sl_router_share_find(c, how, tenant, salt, strlen(salt), fingerprint, &d, &seed));
    ck_assert(sl_key_eq(seed, sl_share_seed(fingerprint, &d)));
    return seed;
}

/* Far more tenants than the cache has slots, in turns with other salts, modes and models: every answer is the one that
 * is computed without a cache. */
START_TEST(the_cache_gives_nobody_anothers_seed)
{
    enum { TENANTS = 5 * SL_SHARE_CACHED, ROUNDS = 3 };
    const sl_key models[] = {{5, 6}, {5, 7}, {6, 5}};
    sl_share_cache *c = calloc(1, sizeof *c);
    for (int i = 0; i < ROUNDS * TENANTS; i++) {
        char tenant[SL_CLIENT_MAX];
        sl_share_domain d;
        sl_key model = models[i / 7 % 3];
        snprintf(tenant, sizeof tenant, "tenant-%d", i * 31 % TENANTS);
        for (sl_share how = SL_SHARE_ALL; how <= SL_SHARE_TENANT; how++) {
            const char *salts[] = {"", "x", tenant};
            for (int k = 0; k < 3; k++) {
                ck_assert(sl_share_domain_of(how, tenant, salts[k], strlen(salts[k]), &d));
                ck_assert(sl_key_eq(find(c, how, tenant, salts[k], model), sl_share_seed(model, &d)));
            }
        }
    }
    free(c);
}
END_TEST

/* Names that differ in their last byte only, and names that are too long for an entry. */
START_TEST(the_cache_compares_whole_names)
{
    sl_share_cache *c = calloc(1, sizeof *c);
    char a[2 * SL_CLIENT_MAX + 1], b[2 * SL_CLIENT_MAX + 1];
    const sl_key model = {5, 6};
    for (size_t n = SL_CLIENT_MAX - 3; n < sizeof a; n++) {
        memset(a, 'n', n);
        memset(b, 'n', n);
        a[n] = b[n] = 0;
        b[n - 1] = 'm';
        sl_key of_a = find(c, SL_SHARE_TENANT, a, "", model), of_b = find(c, SL_SHARE_TENANT, b, "", model);
        ck_assert(!sl_key_eq(of_a, of_b));
        ck_assert(sl_key_eq(find(c, SL_SHARE_TENANT, a, "", model), of_a));
        ck_assert(sl_key_eq(of_a, seed_of(SL_SHARE_TENANT, a, "")));
    }
    free(c);
}
END_TEST

START_TEST(the_cache_keeps_nothing_of_those_who_share_with_nobody)
{
    sl_share_cache *c = calloc(1, sizeof *c);
    const sl_key model = {5, 6};
    sl_key first = find(c, SL_SHARE_NONE, "alice", "", model);
    ck_assert(!sl_key_eq(first, find(c, SL_SHARE_NONE, "alice", "", model)));
    ck_assert(!sl_key_eq(find(c, SL_SHARE_ALL, "", "", model), find(c, SL_SHARE_NONE, "", "", model)));
    ck_assert(!sl_key_eq(find(c, SL_SHARE_TENANT, "", "", model), find(c, SL_SHARE_ALL, "", "", model)));
    free(c);
}
END_TEST

/* ---- requests ---- */

/* The seed of a request of this caller, which has ended and is released. */
static sl_key ask(const char *tenant, const char *salt)
{
    client c = {0};
    sl_request_spec s;
    sl_err err = {""};
    h_spec(&s, 200, 4);
    s.tenant = *tenant != 0;
    sl_copy_text(s.client, sizeof s.client, s.tenant ? tenant : "192.0.2.1");
    if (*salt)
        ck_assert_int_eq(sl_request_spec_set_salt(&s, "cache_salt", salt, strlen(salt), &err), SL_OK);
    h_submit(&h, &c, &s);
    sl_key seed = h_request(&c, 0)->keys.seed;
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].status, SL_OK);
    h_check_stream(&h, &c.s[0], 200, 4);
    h_release(&h, &c, 1000);
    return seed;
}

/* Pages of the prompt of ask() that the decode worker would reuse, by what it has reported. */
static size_t known(sl_key seed)
{
    sl_request_spec s;
    sl_key keys[3];
    h_spec(&s, 200, 4);
    sl_page_keys(seed, s.prompts->ids, 200, keys);
    sl_request_spec_free(&s);
    const sl_member *w = sl_member_find(h.r, sl_mock_count(h.w[1])->worker_id);
    return sl_directory_lookup(h.r->directory, keys, 3)[w->place].host;
}

START_TEST(workers_are_told_the_seed)
{
    static const struct {
        sl_share how;
        bool salts, tenants, twice; /* whether another salt, another tenant, and the same call again share */
    } modes[] = {{SL_SHARE_ALL, false, true, true},
                 {SL_SHARE_TENANT, false, false, true},
                 {SL_SHARE_NONE, false, false, false}};
    h.o.placement.share = modes[_i].how;
    h_open_cluster(&h, 1, 1);
    sl_key alice = ask("alice", ""), again = ask("alice", ""), bob = ask("bob", ""),
           salted = ask("alice", "x"), nobody = ask("", "");
    ck_assert_int_eq(sl_key_eq(alice, again), modes[_i].twice);
    ck_assert_int_eq(sl_key_eq(alice, bob), modes[_i].tenants);
    ck_assert_int_eq(sl_key_eq(alice, nobody), modes[_i].tenants);
    ck_assert_int_eq(sl_key_eq(alice, salted), modes[_i].salts);
    ck_assert_uint_eq(known(alice), 3); /* the mock has computed its keys from the seed of RESERVE */
    ck_assert_uint_eq(known(bob), 3);
    ck_assert_uint_eq(known((sl_key){1, 1}), 0);
}
END_TEST

/* Retracted, or failed and tried again: the pages of the first attempt are found, also when nothing else shares. */
START_TEST(attempts_keep_the_seed)
{
    h.o.placement.share = SL_SHARE_NONE;
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->retract_at = 3;
    client c = {0};
    h_ask(&h, &c, 200, 8);
    sl_key seed = h_request(&c, 0)->keys.seed;
    H_UNTIL(&h, h_request(&c, 0)->attempt.n == 2, 2000);
    ck_assert(sl_key_eq(h_request(&c, 0)->keys.seed, seed));
    h_expect(&h, &c, 200, 8, 2000);
    h_release(&h, &c, 1000);
    ck_assert_uint_eq(known(seed), 3);
}
END_TEST

START_TEST(choices_of_a_call_share)
{
    h.o.placement.share = SL_SHARE_NONE;
    h_open_cluster(&h, 1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 200, 4);
    s.n = 3;
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert(sl_key_eq(h_request(&c, 0)->keys.seed, h_request(&c, 2)->keys.seed));
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(salts_have_bounds)
{
    h_open_cluster(&h, 1, 1);
    static char text[SL_CACHE_SALT_MAX + 1];
    sl_request_spec s;
    sl_err err = {""};
    h_spec(&s, 10, 1);
    ck_assert_int_eq(sl_request_spec_set_salt(&s, "cache_salt", text, 0, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_request_spec_set_salt(&s, "cache_salt", text, sizeof text, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "cache_salt"));
    ck_assert_int_eq(sl_request_spec_set_salt(&s, "cache_salt", text, SL_CACHE_SALT_MAX, &err), SL_OK);
    sl_request_spec_free(&s);
    ck_assert_uint_eq(s.n_cache_salt, 0);
}
END_TEST

/* ---- events ---- */

START_TEST(events_need_admins_where_clients_are_kept_apart)
{
    h_open_cluster(&h, 1, 1);
    sl_err err = {""};
    for (int how = SL_SHARE_ALL; how <= SL_SHARE_NONE; how++) {
        h.r->o.placement.share = (sl_share)how;
        h.r->o.front.keys_file = NULL;
        ck_assert_int_eq(sl_kv_may_subscribe(h.r, &err), how == SL_SHARE_ALL ? SL_OK : SL_ERR_UNSUPPORTED);
        h.r->o.front.keys_file = "keys";
        ck_assert_int_eq(sl_kv_may_subscribe(h.r, &err), SL_OK);
    }
    h.r->o.front.keys_file = NULL;
}
END_TEST

/* What subscribers get of the pages that ask() made: [0] with their tokens, [1] without. */
static void read_pages(sl_kv_cursor *c, int pages[2])
{
    const sl_kv_batch *b;
    sl_kv_batch gap;
    pages[0] = pages[1] = 0;
    while ((b = sl_kv_read(h.r, c, &gap))) {
        for (size_t i = 0; i < b->n_stored * SL_KEY_PAGE_TOKENS; i++) {
            bool withheld = b->tokens[i] == SL_KV_WITHHELD;
            ck_assert_int_eq(withheld,
                             b->tokens[i / SL_KEY_PAGE_TOKENS * SL_KEY_PAGE_TOKENS] == SL_KV_WITHHELD);
            pages[withheld] += i % SL_KEY_PAGE_TOKENS == 0;
        }
    }
}

/* Where every caller may subscribe, what a client has sent with a salt stays with it; the pages of others are not
 * affected, also when they continue pages that were reported before. */
START_TEST(events_do_not_show_salted_tokens_to_everybody)
{
    h_open_cluster(&h, 1, 1);
    sl_kv_cursor c = sl_kv_subscribe(h.r, 0);
    int pages[2];
    ask("", "a salt");
    read_pages(&c, pages);
    ck_assert(pages[0] == 0 && pages[1] == 3);
    ask("", "");
    read_pages(&c, pages);
    ck_assert(pages[0] == 3 && pages[1] == 0);
    client longer = {0};
    h_ask(&h, &longer, 400, 4); /* its first three pages are those of ask() */
    h_expect(&h, &longer, 400, 4, 2000);
    h_release(&h, &longer, 1000);
    read_pages(&c, pages);
    ck_assert(pages[0] >= 3 && pages[1] == 0);
    h.r->o.front.keys_file = "keys"; /* subscribers are admins */
    ask("", "another salt");
    read_pages(&c, pages);
    ck_assert(pages[0] == 3 && pages[1] == 0);
    h.r->o.front.keys_file = NULL;
}
END_TEST

int main(void)
{
    const h_case cases[] = {{all_share_by_salt, 0},
                            {tenants_share_with_themselves, 0},
                            {a_salt_does_not_imitate_a_tenant, 0},
                            {none_is_never_the_same, 0},
                            {seeds_depend_on_the_model, 0},
                            {the_cache_gives_nobody_anothers_seed, 0},
                            {the_cache_compares_whole_names, 0},
                            {the_cache_keeps_nothing_of_those_who_share_with_nobody, 0},
                            {workers_are_told_the_seed, 3},
                            {attempts_keep_the_seed, 0},
                            {choices_of_a_call_share, 0},
                            {salts_have_bounds, 0},
                            {events_need_admins_where_clients_are_kept_apart, 0},
                            {events_do_not_show_salted_tokens_to_everybody, 0}};
    return h_main("share", setup, teardown, cases, SL_COUNT(cases));
}
