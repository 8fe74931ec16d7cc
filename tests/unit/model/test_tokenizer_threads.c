/* Several threads use one tokenizer at the same time and get the same ids. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/model/tokenizer_tools.h"
#include "tests/unit/run_suite.h"

static void *encode_many(void *arg)
{
    const sl_tokenizer *t = arg;
    uint64_t h = FNV_START;
    for (int i = 0; i < 200; i++) {
        int32_t *ids;
        size_t n;
        char text[64];
        int len = snprintf(text, sizeof text, "shared %d tokenizer, 敏捷 <think> %d", i, i * 7919);
        if (sl_tokenizer_encode(t, text, (size_t)len, 0, &ids, &n, NULL) != SL_OK)
            return NULL;
        h = fnv(h, ids, n * sizeof *ids);
        free(ids);
    }
    uint64_t *out = malloc(sizeof *out);
    *out = h;
    return out;
}

START_TEST(threads_share_one)
{
    sl_tokenizer *t = load(TINY);
    pthread_t th[4];
    uint64_t *h[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&th[i], NULL, encode_many, t), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(th[i], (void **)&h[i]);
    for (int i = 0; i < 4; i++) {
        ck_assert_ptr_nonnull(h[i]);
        ck_assert_uint_eq(*h[i], *h[0]);
    }
    for (int i = 0; i < 4; i++)
        free(h[i]);
    sl_tokenizer_destroy(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer_threads");
    TCase *c = tcase_create("threads");
    tcase_set_timeout(c, 280);
    tcase_add_test(c, threads_share_one);
    suite_add_tcase(s, c);
    return run_suite(s);
}
