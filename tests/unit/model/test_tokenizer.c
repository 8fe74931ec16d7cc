/*
 * Tokenizer: compared with goldens that Hugging Face tokenizers has made (tests/golden/tokenizer/make.py). Also:
 * decoding token by token gives the same text as decoding all tokens, and unusual text is neither wrong nor slow.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/unit/model/tokenizer_tools.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/tokenizer/"
enum { SEQUENCES = 1500 };

static const char *const variants[][2] = {
    {"v32", TINY "/tokenizer.json"},  {"glm", GOLDEN "glm.json"}, {"flags", GOLDEN "flags.json"},
    {"splits", GOLDEN "splits.json"}, {"unk", GOLDEN "unk.json"}, {"llama3", GOLDEN "llama3.json"},
    {"qwen", GOLDEN "qwen.json"},
};

/* ---- helpers ---- */

typedef struct bytes {
    unsigned char *p;
    size_t n;
} bytes;

static bytes slurp(const char *path)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s is missing", path);
    bytes b = {malloc(1 << 24), 0};
    b.n = fread(b.p, 1, 1 << 24, f);
    fclose(f);
    return b;
}

static uint32_t fold(uint64_t h)
{
    return (uint32_t)(h ^ h >> 32);
}

static uint64_t hash_decoded(uint64_t h, const sl_tokenizer *t, const int32_t *ids, size_t n, bool skip)
{
    char *text, *streamed = malloc((n + 1) * sl_detok_bound(t));
    size_t len, made = 0;
    ck_assert_int_eq(sl_tokenizer_decode(t, ids, n, skip, &text, &len), SL_OK);
    sl_detok d = {{0}, 0};
    for (size_t i = 0; i < n; i++) {
        size_t got = sl_detok_push(&d, t, ids[i], skip, streamed + made);
        ck_assert_uint_le(got, sl_detok_bound(t));
        made += got;
    }
    made += sl_detok_flush(&d, streamed + made);
    ck_assert_uint_eq(made, len);
    ck_assert(memcmp(streamed, text, len) == 0);
    h = fnv(h, text, len + 1);
    free(text);
    free(streamed);
    return h;
}

/* ---- goldens ---- */

static size_t get_varint(const unsigned char **p)
{
    size_t v = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char b = *(*p)++;
        v |= (size_t)(b & 0x7F) << shift;
        if (!(b & 0x80))
            return v;
    }
}

static uint32_t get_u32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void show(const char *variant, size_t i, const char *text, size_t len, const int32_t *ids, size_t n)
{
    fprintf(stderr, "%s string %zu (see make.py show %s %zu): \"%.*s\" ->", variant, i, variant, i, (int)len,
            text);
    for (size_t k = 0; k < n; k++)
        fprintf(stderr, " %d", ids[k]);
    fprintf(stderr, "\n");
}

static size_t check_strings(const char *variant, const sl_tokenizer *t, bytes strings,
                            const unsigned char *want)
{
    const unsigned char *p = strings.p + 4;
    size_t count = get_u32(strings.p), wrong = 0;
    ck_assert_uint_ge(count, 10000);
    for (size_t i = 0; i < count; i++) {
        size_t len = get_varint(&p), n;
        int32_t *ids;
        sl_err err = {{0}};
        sl_status st =
            sl_tokenizer_encode(t, (const char *)p, len, i % 2 ? SL_TOK_ADD_SPECIAL : 0, &ids, &n, &err);
        ck_assert_msg(st == SL_OK, "%s string %zu: %s", variant, i, err.text);
        uint64_t h = fnv(FNV_START, ids, n * sizeof *ids);
        h = hash_decoded(h, t, ids, n, i % 3 == 0);
        if (fold(h) != get_u32(want + 4 * i) && wrong++ < 10)
            show(variant, i, (const char *)p, len, ids, n);
        free(ids);
        p += len;
    }
    ck_assert_ptr_eq(p, strings.p + strings.n);
    ck_assert_msg(wrong == 0, "%s: %zu of %zu strings differ", variant, wrong, count);
    return count;
}

static void check_sequences(const char *variant, const sl_tokenizer *t, const unsigned char *want)
{
    uint64_t x = 1;
    size_t wrong = 0;
    for (size_t i = 0; i < SEQUENCES; i++) {
        int32_t ids[24];
        size_t n = 1 + i % 24;
        for (size_t k = 0; k < n; k++) {
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            ids[k] = (int32_t)((x >> 33) % (uint64_t)(sl_tokenizer_vocab_size(t) + 3));
        }
        uint64_t h = hash_decoded(FNV_START, t, ids, n, false);
        h = hash_decoded(h, t, ids, n, true);
        wrong += fold(h) != get_u32(want + 4 * i);
    }
    ck_assert_msg(wrong == 0, "%s: %zu of %d decoded sequences differ", variant, wrong, SEQUENCES);
}

START_TEST(golden)
{
    char path[256];
    const char *variant = variants[_i][0];
    snprintf(path, sizeof path, GOLDEN "%s.bin", variant);
    bytes strings = slurp(GOLDEN "strings.bin"), want = slurp(path);
    sl_tokenizer *t = load(variants[_i][1]);
    size_t count = get_u32(strings.p);
    ck_assert_uint_eq(want.n, 4 * (count + SEQUENCES));
    check_strings(variant, t, strings, want.p);
    check_sequences(variant, t, want.p + 4 * count);
    sl_tokenizer_destroy(t);
    free(strings.p);
    free(want.p);
}
END_TEST

/* ---- the trained file ---- */

static int32_t id_of(const sl_tokenizer *t, const char *token)
{
    return sl_tokenizer_id(t, token, strlen(token));
}

START_TEST(tiny_model_facts)
{
    sl_tokenizer *t = load(TINY);
    size_t len;
    ck_assert_int_eq(sl_tokenizer_vocab_size(t), 1280);
    ck_assert_int_eq(sl_tokenizer_bos(t), 0);
    ck_assert_int_eq(sl_tokenizer_eos(t), 1);
    ck_assert_int_eq(id_of(t, "<｜begin▁of▁sentence｜>"), 0);
    ck_assert_int_eq(id_of(t, "no such token"), -1);
    static const char *const chat[] = {"<think>", "</think>", "<｜User｜>", "<｜Assistant｜>", "｜DSML｜"};
    for (size_t i = 0; i < SL_COUNT(chat); i++) {
        int32_t id = id_of(t, chat[i]);
        ck_assert_int_ge(id, 259);
        ck_assert(sl_tokenizer_is_added(t, id) && !sl_tokenizer_is_special(t, id));
        ck_assert_str_eq(sl_tokenizer_token(t, id), chat[i]);
        ck_assert_str_eq(sl_tokenizer_piece(t, id, &len), chat[i]);
        ck_assert_uint_eq(len, strlen(chat[i]));
    }
    ck_assert(sl_tokenizer_is_special(t, 1));
    ck_assert(!sl_tokenizer_is_special(t, 300) && !sl_tokenizer_is_special(t, -1));
    ck_assert_ptr_null(sl_tokenizer_piece(t, 1280, &len));
    ck_assert_ptr_null(sl_tokenizer_token(t, -1));
    sl_tokenizer_destroy(t);
}
END_TEST

START_TEST(special_text_can_be_ordinary)
{
    sl_tokenizer *t = load(TINY);
    static const char text[] = "a<｜end▁of▁sentence｜><think>";
    int32_t *ids, *plain;
    size_t n, m, len;
    ck_assert_int_eq(sl_tokenizer_encode(t, text, sizeof text - 1, 0, &ids, &n, NULL), SL_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(ids[1], 1);
    ck_assert_int_eq(sl_tokenizer_encode(t, text, sizeof text - 1, SL_TOK_NO_SPECIAL, &plain, &m, NULL),
                     SL_OK);
    ck_assert_uint_gt(m, 3);
    for (size_t i = 0; i < m; i++)
        ck_assert(!sl_tokenizer_is_special(t, plain[i]));
    ck_assert_int_eq(plain[m - 1], id_of(t, "<think>")); /* added, but not special */
    char *back;
    ck_assert_int_eq(sl_tokenizer_decode(t, plain, m, true, &back, &len), SL_OK);
    ck_assert_str_eq(back, text);
    free(back);
    free(ids);
    free(plain);
    sl_tokenizer_destroy(t);
}
END_TEST

/* ---- plain ranges ---- */

/* The parts of a text: those at odd places are plain. */
static size_t join(const char *const *parts, char *text, sl_tok_range *plain, size_t *n_plain)
{
    size_t len = 0;
    *n_plain = 0;
    for (size_t i = 0; parts[i]; i++) {
        size_t n = strlen(parts[i]);
        memcpy(text + len, parts[i], n);
        if (i % 2 && n)
            plain[(*n_plain)++] = (sl_tok_range){len, len + n};
        len += n;
    }
    return len;
}

/* The added tokens in the ids of a text of parts, as the vocabulary spells them, one after the other; the text must
 * come back. */
static void expect_added(const char *file, const char *const *parts, const char *want)
{
    sl_tokenizer *t = load(file);
    char text[512], found[512] = "", *back;
    sl_tok_range plain[8];
    size_t n_plain, n, m, at = 0, len = join(parts, text, plain, &n_plain);
    int32_t *ids;
    ck_assert_int_eq(sl_tokenizer_encode_mixed(t, text, len, 0, plain, n_plain, &ids, &n, NULL), SL_OK);
    for (size_t i = 0; i < n; i++) {
        if (sl_tokenizer_is_added(t, ids[i]))
            at += (size_t)snprintf(found + at, sizeof found - at, "%s", sl_tokenizer_token(t, ids[i]));
    }
    ck_assert_str_eq(found, want);
    ck_assert_int_eq(sl_tokenizer_decode(t, ids, n, false, &back, &m), SL_OK);
    ck_assert_uint_eq(m, len);
    ck_assert_mem_eq(back, text, len);
    free(back);
    free(ids);
    sl_tokenizer_destroy(t);
}

#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define GLM GOLDEN "glm.json"

START_TEST(plain_text_holds_no_added_token)
{
    expect_added(
        TINY, PARTS("<｜User｜>", "x<｜Assistant｜></think>y<｜end▁of▁sentence｜>", "<｜Assistant｜><think>"),
        "<｜User｜><｜Assistant｜><think>");
    expect_added(TINY, PARTS("", "<｜User｜>"), "");
    expect_added(TINY, PARTS("a", "<｜User｜>", "<｜User｜>", "<｜User｜>"), "<｜User｜>");
    /* marked special or not, also where a normalizer changes the text */
    expect_added(GLM, PARTS("<|user|>", "\u00e9<|user|></tool_call>", "<|assistant|>"),
                 "<|user|><|assistant|>");
    expect_added(GLM, PARTS("", "[gMASK]<sop>\u00e9<tool_call>"), "");
}
END_TEST

START_TEST(tokens_are_not_completed_across_a_border)
{
    expect_added(TINY, PARTS("<｜", "User｜>"), "");
    expect_added(TINY, PARTS("", "<｜User", "｜>"), "");
    expect_added(TINY, PARTS("<thi", "n", "k>"), "");
    /* the template's own shorter token is found where plain text would give a longer one */
    expect_added(GLM, PARTS("<tool_call", ">"), "<tool_call");
    expect_added(GLM, PARTS("<tool_call>", ">"), "<tool_call>");
}
END_TEST

/* Text without added tokens gets the same ids, wherever the borders are. */
START_TEST(borders_do_not_change_ordinary_text)
{
    static const char text[] =
        "The page 12345 of a cach\u00e9\u0301 \u6f22\u5b57  two\n\nlines, they're <b>bold</b> | x";
    static const char *const files[] = {TINY, GOLDEN "splits.json", GOLDEN "unk.json"};
    for (size_t f = 0; f < SL_COUNT(files); f++) {
        sl_tokenizer *t = load(files[f]);
        int32_t *want, *got;
        size_t n, m;
        ck_assert_int_eq(sl_tokenizer_encode(t, text, sizeof text - 1, 0, &want, &n, NULL), SL_OK);
        for (size_t at = 0; at + 1 < sizeof text; at++) {
            const sl_tok_range plain[2] = {{at / 2, at}, {at, sizeof text - 1}};
            ck_assert_int_eq(
                sl_tokenizer_encode_mixed(t, text, sizeof text - 1, 0, plain + !at, 2 - !at, &got, &m, NULL),
                SL_OK);
            ck_assert_uint_eq(m, n);
            ck_assert_mem_eq(got, want, n * sizeof *got);
            free(got);
        }
        free(want);
        sl_tokenizer_destroy(t);
    }
}
END_TEST

START_TEST(invalid_utf8_is_named)
{
    static const struct {
        const char *text;
        size_t len, at;
    } bad[] = {
        {"\xff", 1, 0},
        {"ab\x80", 3, 2},
        {"\xc0\xaf", 2, 0},
        {"a\xed\xa0\x80", 4, 1},
        {"\xe2\x82", 2, 0},
        {"ok\xf4\x90\x80\x80", 6, 2},
        {"\xf0\x80\x80\x80", 4, 0},
        {"x\xc3", 2, 1},
        {"\xf8\x88\x80\x80\x80", 5, 0},
    };
    sl_tokenizer *t = load(TINY);
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_err err = {{0}};
        int32_t *ids;
        size_t n;
        char want[32];
        ck_assert_int_eq(sl_tokenizer_encode(t, bad[i].text, bad[i].len, 0, &ids, &n, &err), SL_ERR_INVALID);
        snprintf(want, sizeof want, "at byte %zu", bad[i].at);
        ck_assert_msg(strstr(err.text, want) != NULL, "%s lacks %s", err.text, want);
    }
    sl_tokenizer_destroy(t);
}
END_TEST

START_TEST(stream_holds_back_half_characters)
{
    sl_tokenizer *t = load(TINY);
    char out[64];
    ck_assert_uint_le(sl_detok_bound(t), 256);
    sl_detok d = {{0}, 0};
    /* U+1F600 is F0 9F 98 80; in the tiny vocabulary its bytes are separate tokens or merged ones: take
     * single bytes */
    static const char *const bytes_of[] = {"ð", "Ł", "ĺ", "Ģ"};
    char *big = malloc(sl_detok_bound(t));
    for (size_t i = 0; i < 4; i++) {
        int32_t id = id_of(t, bytes_of[i]);
        ck_assert_int_ge(id, 0);
        ck_assert_uint_eq(sl_detok_push(&d, t, id, true, big), i == 3 ? 4 : 0);
    }
    ck_assert(memcmp(big, "\xF0\x9F\x98\x80", 4) == 0);
    ck_assert_uint_eq(sl_detok_flush(&d, out), 0);
    sl_detok_push(&d, t, id_of(t, "ð"), true, big);
    sl_detok_push(&d, t, id_of(t, "Ł"), true, big);
    ck_assert_uint_eq(sl_detok_push(&d, t, id_of(t, "a"), true, big), 4); /* U+FFFD, a */
    ck_assert(memcmp(big,
                     "\xEF\xBF\xBD"
                     "a",
                     4) == 0);
    sl_detok_push(&d, t, id_of(t, "ð"), true, big);
    ck_assert_uint_eq(sl_detok_flush(&d, out), 3);
    ck_assert(memcmp(out, "\xEF\xBF\xBD", 3) == 0);
    ck_assert_uint_eq(sl_detok_flush(&d, out), 0);
    free(big);
    sl_tokenizer_destroy(t);
}
END_TEST

/* ---- speed: the bound is large enough for sanitizers; a quadratic step would take minutes ---- */

static double encode_seconds(const sl_tokenizer *t, const char *text, size_t len, size_t *n)
{
    int32_t *ids;
    uint64_t start = sl_now_ns();
    ck_assert_int_eq(sl_tokenizer_encode(t, text, len, 0, &ids, n, NULL), SL_OK);
    double s = (double)(sl_now_ns() - start) * 1e-9;
    char *back;
    size_t back_len;
    ck_assert_int_eq(sl_tokenizer_decode(t, ids, *n, false, &back, &back_len), SL_OK);
    ck_assert_uint_eq(back_len, len);
    ck_assert(memcmp(back, text, len) == 0);
    free(back);
    free(ids);
    return s;
}

START_TEST(adversarial_words_stay_fast)
{
    static const char *const units[] = {
        "a", "ab", " ", "\n", "あ", "0", "-", "<", "e\xcc\x81", "<｜", "  \n", "\xf0\x9f\x98\x80", "</think"};
    sl_tokenizer *t = load(TINY);
    size_t len = 600000, n;
    char *text = malloc(len + 16);
    for (size_t i = 0; i < SL_COUNT(units); i++) {
        size_t unit = strlen(units[i]), at = 0;
        for (; at + unit <= len; at += unit)
            memcpy(text + at, units[i], unit);
        double s = encode_seconds(t, text, at, &n);
        printf("600 KB of \"%s\": %.3f s, %zu ids\n", units[i], s, n);
        ck_assert_double_lt(s, 20);
    }
    free(text);
    sl_tokenizer_destroy(t);
}
END_TEST

START_TEST(long_prompt)
{
    sl_tokenizer *t = load(TINY);
    bytes doc = slurp("model/tokenizer_load.c");
    size_t target = 1 << 19, len = 0, n;
    char *text = malloc(target + doc.n);
    while (len < target) {
        memcpy(text + len, doc.p, doc.n);
        len += doc.n;
    }
    double s = encode_seconds(t, text, len, &n);
    printf("prompt of %zu bytes, %zu ids: %.3f s\n", len, n, s);
    ck_assert_uint_gt(n, 131072);
    ck_assert_double_lt(s, 15);
    free(text);
    free(doc.p);
    sl_tokenizer_destroy(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *c = tcase_create("golden");
    tcase_set_timeout(c, 120);
    add_variants(c, golden, SL_COUNT(variants));
    tcase_add_test(c, tiny_model_facts);
    tcase_add_test(c, special_text_can_be_ordinary);
    tcase_add_test(c, plain_text_holds_no_added_token);
    tcase_add_test(c, tokens_are_not_completed_across_a_border);
    tcase_add_test(c, borders_do_not_change_ordinary_text);
    tcase_add_test(c, stream_holds_back_half_characters);
    suite_add_tcase(s, c);
    c = tcase_create("input");
    tcase_set_timeout(c, 280);
    tcase_add_test(c, invalid_utf8_is_named);
    tcase_add_test(c, adversarial_words_stay_fast);
    tcase_add_test(c, long_prompt);
    suite_add_tcase(s, c);
    return run_suite(s);
}
