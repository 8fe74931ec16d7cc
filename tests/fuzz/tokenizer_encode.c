/*
 * Arbitrary text, valid UTF-8 or not, through the tiny model's tokenizer: no crash, invalid text is refused, valid
 * text is the same after encoding and decoding, and streaming decoding equals decoding in one call. Run it from the
 * repository's root.
 */
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"
#include "model/tokenizer_utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_stream(const sl_tokenizer *t, const int32_t *ids, size_t n, const char *want, size_t len)
{
    char *out = malloc((n + 1) * sl_detok_bound(t));
    sl_detok d = {{0}, 0};
    size_t made = 0;
    for (size_t i = 0; i < n; i++)
        made += sl_detok_push(&d, t, ids[i], false, out + made);
    made += sl_detok_flush(&d, out + made);
    if (made != len || memcmp(out, want, len) != 0)
        abort();
    free(out);
}

/* The whole text plain: it comes back, and no token is an added one. The second half plain: no crash. */
static void check_plain(const sl_tokenizer *t, const char *text, size_t size)
{
    const sl_tok_range all = {0, size}, half = {size / 2, size};
    int32_t *ids;
    size_t n, len;
    char *back;
    if (sl_tokenizer_encode_mixed(t, text, size, 0, &all, 1, &ids, &n, NULL) != SL_OK)
        abort();
    for (size_t i = 0; i < n; i++) {
        if (sl_tokenizer_is_added(t, ids[i]))
            abort();
    }
    if (sl_tokenizer_decode(t, ids, n, false, &back, &len) != SL_OK || len != size || memcmp(back, text, len))
        abort();
    free(back);
    free(ids);
    if (sl_tokenizer_encode_mixed(t, text, size, 0, &half, size > 0, &ids, &n, NULL) != SL_OK)
        abort();
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static sl_tokenizer *t;
    if (!t && sl_tokenizer_load("models/tiny-v32", &t, NULL) != SL_OK)
        abort();
    const char *text = (const char *)data;
    int32_t *ids;
    size_t n, len;
    char *back;
    bool valid = sl_utf8_valid_len(text, size) == size;
    sl_status st = sl_tokenizer_encode(t, text, size, 0, &ids, &n, NULL);
    if ((st == SL_OK) != valid)
        abort();
    if (!valid)
        return 0;
    if (sl_tokenizer_decode(t, ids, n, false, &back, &len) != SL_OK || len != size ||
        memcmp(back, text, len) != 0)
        abort();
    check_stream(t, ids, n, back, len);
    check_plain(t, text, size);
    free(back);
    free(ids);
    return 0;
}
