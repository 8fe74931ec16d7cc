/*
 * Bodies with Content-Encoding: gzip, of generated texts: every way to compress gives the text back, and whatever is cut, flipped or
 * added gives an error and never another text. Memory is counted before it is taken, and given back after every error.
 */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/hash.h"
#include "router/http/gunzip.h"
#include "tests/unit/run_suite.h"

enum { SPACE = 1 << 20, MEMBERS = 4, ROUNDS = 300, STATE = 48000, HELD = 100 };

static char text[SPACE], packed[SPACE + 4096], piece[SPACE];
static uint64_t state = 7;

static uint32_t draw(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* A budget that remembers the most that was held. */
typedef struct budget {
    sl_guard g;
    uint64_t room, peak;
} budget;

static bool hold(sl_guard *g, uint64_t bytes)
{
    budget *b = (budget *)g;
    if (bytes > b->room && bytes > g->held)
        return false;
    g->held = bytes;
    b->peak = bytes > b->peak ? bytes : b->peak;
    return true;
}

static budget budget_of(uint64_t room)
{
    return (budget){.g = {.hold = hold, .held = HELD}, .room = room};
}

/* From a text without structure to one that is one letter. */
static void make_text(size_t n)
{
    uint32_t letters = (uint32_t[]){256, 256, 20, 3, 1}[draw(5)];
    for (size_t i = 0; i < n; i++)
        text[i] = (char)draw(letters);
}

/* One member; its head has what draw() decides. */
static size_t pack(const char *from, size_t n, char *to, size_t room)
{
    static Bytef extra[300], name[] = "a name", comment[] = "a comment";
    gz_header head = {.time = draw(1u << 31), .os = (int)draw(256)};
    z_stream z = {0};
    if (draw(2)) {
        head.extra = extra;
        head.extra_len = draw(sizeof extra);
    }
    head.name = draw(2) ? name : NULL;
    head.comment = draw(2) ? comment : NULL;
    head.hcrc = (int)draw(2);
    ck_assert_int_eq(
        deflateInit2(&z, (int)draw(10), Z_DEFLATED, 9 + (int)draw(7) + 16, 1 + (int)draw(9), (int)draw(5)),
        Z_OK);
    if (draw(2))
        deflateSetHeader(&z, &head);
    z.next_in = (Bytef *)from;
    z.avail_in = (uInt)n;
    z.next_out = (Bytef *)to;
    z.avail_out = (uInt)room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return room - z.avail_out;
}

/* The text in members; where each ends in the text and in what they are packed to. */
static size_t pack_members(size_t n, unsigned members, size_t *in_text, size_t *in_packed)
{
    size_t from = 0, to = 0;
    for (unsigned i = 0; i < members; i++) {
        size_t part = i + 1 == members ? n - from : draw((uint32_t)(n - from) + 1);
        to += pack(text + from, part, packed + to, sizeof packed - to);
        from += part;
        in_text[i] = from;
        in_packed[i] = to;
    }
    return to;
}

static sl_status gunzip(const char *in, size_t n, size_t most, budget *b, char **out, size_t *len)
{
    sl_err err = {""};
    sl_status st = sl_gunzip(in, n, most, b ? &b->g : NULL, out, len, &err);
    ck_assert((st == SL_OK) == (*out != NULL) && (st == SL_OK || err.text[0]));
    if (b)
        ck_assert_uint_eq(b->g.held, HELD + (st ? 0 : *len + 1));
    return st;
}

static void expect(sl_status want, const char *in, size_t n, size_t most, uint64_t room)
{
    char *out;
    size_t len;
    budget b = budget_of(room);
    ck_assert_int_eq(gunzip(in, n, most, &b, &out, &len), want);
    free(out);
}

/* Refused, or the same text as before: what was flipped says nothing of the text. */
static void expect_no_other(size_t packed_n, size_t n)
{
    char *out;
    size_t len;
    budget b = budget_of(UINT64_MAX);
    sl_status st = gunzip(packed, packed_n, SPACE, &b, &out, &len);
    ck_assert(st == SL_ERR_INVALID || (st == SL_OK && len == n && !memcmp(out, text, n)));
    free(out);
}

START_TEST(texts_come_back)
{
    static const size_t sizes[] = {0, 1, 2, 16383, 16384, 16385, 32768, 65536, SPACE / 2};
    size_t ends[MEMBERS], packed_ends[MEMBERS];
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = (size_t)round < SL_COUNT(sizes) ? sizes[round] : draw(draw(2) ? 64 : 60000), len;
        make_text(n);
        size_t k = pack_members(n, 1 + draw(MEMBERS), ends, packed_ends);
        char *out;
        budget b = budget_of(UINT64_MAX);
        ck_assert_int_eq(gunzip(packed, k, n, &b, &out, &len), SL_OK);
        ck_assert(len == n && !memcmp(out, text, n) && !out[n]);
        ck_assert_uint_eq(b.peak, HELD + STATE + n + 1);
        free(out);
        if (n)
            expect(SL_ERR_TOO_LARGE, packed, k, n - 1, UINT64_MAX);
    }
}
END_TEST

/* Also between members, where the bytes that are left are a whole body, with a part of the text. */
START_TEST(cut_anywhere)
{
    size_t ends[MEMBERS], packed_ends[MEMBERS];
    for (int round = 0; round < 10; round++) {
        size_t n = draw(400), len;
        unsigned members = 1 + draw(MEMBERS), whole = 0;
        make_text(n);
        size_t k = pack_members(n, members, ends, packed_ends);
        for (size_t cut = 0; cut < k; cut++) {
            if (cut != packed_ends[whole]) {
                expect(SL_ERR_INVALID, packed, cut, SPACE, UINT64_MAX);
                continue;
            }
            char *out;
            ck_assert_int_eq(gunzip(packed, cut, SPACE, NULL, &out, &len), SL_OK);
            ck_assert(len == ends[whole] && !memcmp(out, text, len));
            free(out);
            whole++;
        }
    }
}
END_TEST

START_TEST(flipped_anywhere)
{
    size_t ends[MEMBERS], packed_ends[MEMBERS];
    for (int round = 0; round < 10; round++) {
        size_t n = draw(200);
        make_text(n);
        size_t k = pack_members(n, 1 + draw(MEMBERS), ends, packed_ends);
        for (size_t bit = 0; bit < 8 * k; bit++) {
            packed[bit / 8] = (char)(packed[bit / 8] ^ 1 << bit % 8);
            expect_no_other(k, n);
            packed[bit / 8] = (char)(packed[bit / 8] ^ 1 << bit % 8);
        }
        /* The checksum and the length of the last member: each bit of them counts. */
        for (size_t bit = 8 * (k - 8); bit < 8 * k; bit++) {
            packed[bit / 8] = (char)(packed[bit / 8] ^ 1 << bit % 8);
            expect(SL_ERR_INVALID, packed, k, SPACE, UINT64_MAX);
            packed[bit / 8] = (char)(packed[bit / 8] ^ 1 << bit % 8);
        }
    }
}
END_TEST

START_TEST(bytes_after_the_end)
{
    size_t ends[MEMBERS], packed_ends[MEMBERS];
    for (int round = 0; round < ROUNDS; round++) {
        size_t n = draw(200), more = 1 + draw(40);
        make_text(n);
        size_t k = pack_members(n, 1 + draw(MEMBERS), ends, packed_ends);
        for (size_t i = 0; i < more; i++)
            packed[k + i] = (char)(round % 4 ? draw(256) : 0);
        packed[k] = (char)(packed[k] == 0x1f ? 0 : packed[k]);
        expect(SL_ERR_INVALID, packed, k + more, SPACE, UINT64_MAX);
    }
}
END_TEST

START_TEST(other_formats)
{
    uLongf n = sizeof packed;
    make_text(1000);
    ck_assert_int_eq(compress((Bytef *)packed, &n, (Bytef *)text, 1000),
                     Z_OK); /* zlib's own, which HTTP calls deflate */
    expect(SL_ERR_INVALID, packed, n, SPACE, UINT64_MAX);
    expect(SL_ERR_INVALID, packed + 2, n - 6, SPACE, UINT64_MAX); /* without head and end */
    expect(SL_ERR_INVALID, "{\"model\":\"m\"}", 13, SPACE, UINT64_MAX);
    expect(SL_ERR_INVALID, "", 0, SPACE, UINT64_MAX);
}
END_TEST

/* A thousand bytes for each that is sent, in one member and in many: no memory is taken for what is over the limit. */
START_TEST(bombs_take_no_memory)
{
    memset(text, 0, sizeof text);
    size_t one = pack(text, SPACE, piece, sizeof piece), n = 0;
    while (n + one <= sizeof packed && n < 64 * one) {
        memcpy(packed + n, piece, one);
        n += one;
    }
    for (size_t most = 1; most <= SPACE; most *= 2) {
        char *out;
        size_t len;
        budget b = budget_of(UINT64_MAX);
        ck_assert_int_eq(gunzip(packed, n, most, &b, &out, &len), SL_ERR_TOO_LARGE);
        ck_assert_uint_eq(b.peak, HELD + STATE);
    }
}
END_TEST

START_TEST(budgets_and_leaving)
{
    size_t n = 1000;
    make_text(n);
    size_t k = pack(text, n, packed, sizeof packed);
    expect(SL_ERR_EXHAUSTED, packed, k, n, HELD + STATE - 1);
    expect(SL_ERR_EXHAUSTED, packed, k, n, HELD + STATE + n);
    expect(SL_OK, packed, k, n, HELD + STATE + n + 1);
    budget b = budget_of(UINT64_MAX);
    char *out;
    size_t len;
    sl_guard_stop(&b.g);
    ck_assert_int_eq(gunzip(packed, k, n, &b, &out, &len), SL_ERR_CANCELLED);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gunzip");
    TCase *c = tcase_create("gunzip");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, texts_come_back);
    tcase_add_test(c, cut_anywhere);
    tcase_add_test(c, flipped_anywhere);
    tcase_add_test(c, bytes_after_the_end);
    tcase_add_test(c, other_formats);
    tcase_add_test(c, bombs_take_no_memory);
    tcase_add_test(c, budgets_and_leaving);
    suite_add_tcase(s, c);
    return run_suite(s);
}
