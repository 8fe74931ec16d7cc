/*
 * Prints payloads with blocks of many kinds, and what they were made of, for another implementation of msgpack to compare
 * (tests/e2e/test_events.py). Each line: the payload in hex, a blank, then hash, parent, first, n and the n tokens, little
 * endian, in hex.
 */
#include <stdio.h>
#include <string.h>

#include "events/format.h"

static void print_hex(const sl_wr *w)
{
    for (size_t i = 0; i < w->len; i++)
        printf("%02x", w->data[i]);
}

static void sample(sl_events_form form, uint64_t hash, uint64_t parent, bool first, int32_t token, uint32_t n)
{
    static int32_t tokens[70000];
    char medium[301];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i % 2 ? token : (int32_t)(i * 7);
    memset(medium, 'm', sizeof medium);
    medium[n % 300] = 0;
    sl_wr w, of;
    sl_wr_init(&w);
    sl_wr_init(&of);
    sl_events_block b = {
        .hash = hash, .parent = parent, .first = first, .tokens = tokens, .n_tokens = n, .medium = medium};
    sl_events_write_head(&w, 1.8e9 + n, 3);
    sl_events_write_stored(&w, form, &b);
    sl_events_write_removed(&w, form, parent, "");
    sl_events_write_cleared(&w, form);
    sl_events_write_tail(&w, 0);
    sl_wr_u64(&of, hash);
    sl_wr_u64(&of, parent);
    sl_wr_u8(&of, first);
    sl_wr_u32(&of, n);
    for (uint32_t i = 0; i < n; i++)
        sl_wr_i32(&of, tokens[i]);
    print_hex(&w);
    putchar(' ');
    print_hex(&of);
    putchar('\n');
    sl_wr_free(&w);
    sl_wr_free(&of);
}

int main(int argc, char **argv)
{
    sl_events_form form = argc > 1 && !strcmp(argv[1], "array") ? SL_EVENTS_ARRAY : SL_EVENTS_MAP;
    static const uint64_t hashes[] = {0,          1,           0x7f,      0x80,
                                      0xff,       0x100,       0xffff,    0x10000,
                                      0xffffffff, 0x100000000, INT64_MAX, (uint64_t)INT64_MAX + 1,
                                      UINT64_MAX};
    static const uint32_t sizes[] = {0, 1, 15, 16, 31, 32, 64, 255, 256, 299, 65535, 65536};
    int n = sizeof hashes / sizeof *hashes;
    for (int i = 0; i < n * n; i++)
        sample(form, hashes[i % n], hashes[i / n], i % 3 == 0, (int32_t)(hashes[i % n] & INT32_MAX), 64);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        sample(form, 1, 2, false, 200000, sizes[i]);
    return 0;
}
