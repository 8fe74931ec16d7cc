/*
 * Several messages as one: what is read is what was added, in its order; one message alone is sent in its own form; no cut, and no
 * changed byte, is read beyond its end.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/msg_batch.h"
#include "tests/unit/run_suite.h"

enum { MANY = 300 };

static sl_msg tokens(uint64_t i, sl_msg_token *t)
{
    sl_msg m = {.type = i % 3 ? SL_MSG_TOKENS : SL_MSG_DRAINED};
    *t = (sl_msg_token){.id = (int32_t)i * 7};
    if (m.type == SL_MSG_DRAINED)
        m.id = (sl_msg_id){i + 1, 3};
    else
        m.tokens = (sl_msg_tokens){.rid = i + 1, .attempt = 3, .first_index = 9, .tokens = t, .n_tokens = 1};
    return m;
}

static sl_msg_bytes batch_of(uint64_t n)
{
    sl_msg_batch b = {0};
    for (uint64_t i = 0; i < n; i++) {
        sl_msg_token t;
        sl_msg m = tokens(i, &t);
        ck_assert(sl_msg_batch_add(&b, &m));
    }
    sl_msg_bytes bytes = sl_msg_batch_take(&b);
    ck_assert_uint_eq(b.n, 0);
    ck_assert_ptr_null(b.w.data);
    return bytes;
}

START_TEST(what_is_read_is_what_was_added)
{
    for (uint64_t n = 2; n < MANY; n += n / 2) {
        sl_msg_bytes bytes = batch_of(n);
        sl_rd r;
        const uint8_t *data;
        size_t len;
        uint64_t i = 0;
        ck_assert_uint_eq(bytes.id, SL_MSG_BATCH);
        ck_assert_int_eq(sl_msg_batch_open(bytes.data, bytes.n, &r, NULL, NULL), SL_OK);
        for (; sl_msg_batch_next(&r, &data, &len); i++) {
            sl_msg m;
            sl_msg_token t;
            sl_msg want = tokens(i, &t);
            ck_assert_int_eq(sl_msg_decode(data, len, &m, NULL), SL_OK);
            ck_assert_int_eq(m.type, want.type);
            ck_assert_uint_eq(m.type == SL_MSG_TOKENS ? m.tokens.rid : m.id.rid, i + 1);
            if (m.type == SL_MSG_TOKENS)
                ck_assert_int_eq(m.tokens.tokens[0].id, t.id);
            sl_msg_free(&m);
        }
        ck_assert_uint_eq(i, n);
        ck_assert_int_eq(sl_rd_done(&r), SL_OK);
        free(bytes.data);
    }
}
END_TEST

/* A time is said with every batch, also with one message. */
START_TEST(a_time_comes_with_the_messages)
{
    sl_msg_token t;
    sl_msg m = tokens(4, &t);
    const sl_stamp since = {77, 123456789012345};
    sl_msg_batch b = {.since = since};
    for (int round = 0; round < 3; round++) {
        sl_rd r;
        sl_stamp got = {0};
        const uint8_t *data;
        size_t len;
        int n = 0;
        for (int i = 0; i <= round; i++)
            ck_assert(sl_msg_batch_add(&b, &m));
        sl_msg_bytes bytes = sl_msg_batch_take(&b);
        ck_assert_uint_eq(bytes.id, SL_MSG_BATCH);
        ck_assert_uint_eq(bytes.since_ns, since.ns);
        ck_assert_int_eq(sl_msg_batch_open(bytes.data, bytes.n, &r, &got, NULL), SL_OK);
        ck_assert(got.clock == since.clock && got.ns == since.ns);
        while (sl_msg_batch_next(&r, &data, &len))
            n++;
        ck_assert_int_eq(n, round + 1);
        free(bytes.data);
    }
}
END_TEST

/* Made anew with SL_UPDATE_REFERENCE=1, from the repository's root. */
START_TEST(the_seed_of_the_fuzzer_is_a_batch)
{
    static const char path[] = "tests/fuzz/corpus/msg/batch";
    static uint8_t bytes[1 << 16];
    sl_msg_bytes b = batch_of(4);
    FILE *f = fopen(path, getenv("SL_UPDATE_REFERENCE") ? "w+" : "r");
    ck_assert_ptr_nonnull(f);
    if (getenv("SL_UPDATE_REFERENCE")) {
        ck_assert_uint_eq(fwrite(b.data, 1, b.n, f), b.n);
        rewind(f);
    }
    ck_assert_uint_eq(fread(bytes, 1, sizeof bytes, f), b.n);
    ck_assert_msg(memcmp(bytes, b.data, b.n) == 0, "%s is stale", path);
    fclose(f);
    free(b.data);
}
END_TEST

START_TEST(one_message_is_sent_in_its_own_form)
{
    sl_msg_token t;
    sl_msg m = tokens(4, &t);
    sl_wr w;
    sl_wr_init(&w);
    sl_msg_encode(&m, &w);
    sl_msg_batch b = {0};
    ck_assert(sl_msg_batch_add(&b, &m));
    sl_msg_bytes bytes = sl_msg_batch_take(&b);
    ck_assert_uint_eq(bytes.id, SL_MSG_TOKENS);
    ck_assert_uint_eq(bytes.n, w.len);
    ck_assert_mem_eq(bytes.data, w.data, w.len);
    free(bytes.data);
    sl_wr_free(&w);
    sl_msg_batch_free(&b);
}
END_TEST

/* Messages that are read completely before the damage are right; the number of all is bounded by the bytes. */
static void read_damaged(const uint8_t *bytes, size_t n)
{
    sl_rd r;
    const uint8_t *data;
    size_t len, left = n;
    uint8_t *exact = malloc(n + 1); /* a sanitizer sees a read after its end */
    memcpy(exact, bytes, n);
    if (sl_msg_batch_open(exact, n, &r, NULL, NULL) == SL_OK) {
        while (sl_msg_batch_next(&r, &data, &len)) {
            sl_msg m;
            ck_assert_uint_lt(len, left);
            left -= len + 4;
            if (sl_msg_decode(data, len, &m, NULL) == SL_OK)
                sl_msg_free(&m);
        }
    }
    free(exact);
}

START_TEST(damaged_batches_end)
{
    sl_msg_bytes b = batch_of(5);
    sl_rd r;
    const uint8_t *data;
    size_t len;
    for (size_t n = 0; n < b.n; n++) {
        read_damaged(b.data, n);
        bool whole = sl_msg_batch_open(b.data, n, &r, NULL, NULL) == SL_OK;
        while (whole && sl_msg_batch_next(&r, &data, &len))
            ;
        for (int bit = 0; bit < 8; bit++) {
            b.data[n] ^= (uint8_t)(1 << bit);
            read_damaged(b.data, b.n);
            b.data[n] ^= (uint8_t)(1 << bit);
        }
    }
    /* A batch in a batch is no message. */
    sl_msg m;
    ck_assert_int_eq(sl_msg_decode(b.data, b.n, &m, NULL), SL_ERR_CORRUPT);
    free(b.data);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("msg_batch");
    TCase *t = tcase_create("batch");
    tcase_add_test(t, what_is_read_is_what_was_added);
    tcase_add_test(t, a_time_comes_with_the_messages);
    tcase_add_test(t, the_seed_of_the_fuzzer_is_a_batch);
    tcase_add_test(t, one_message_is_sent_in_its_own_form);
    tcase_add_test(t, damaged_batches_end);
    suite_add_tcase(s, t);
    return run_suite(s);
}
