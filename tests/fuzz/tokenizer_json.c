/* A tokenizer.json of arbitrary bytes either loads or is refused with a reason; one that loads can also encode and
 * decode. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "ab  <s>\n12 \xC3\xA9\xE2\x82\xAC abab";
    sl_tokenizer *t = NULL;
    sl_err err = {{0}};
    sl_status st = sl_tokenizer_parse((const char *)data, size, "fuzz", &t, &err);
    if (st != SL_OK) {
        if (t || strncmp(err.text, "fuzz: ", 6) != 0)
            abort();
        return 0;
    }
    int32_t *ids;
    size_t n, len;
    char *back;
    if (sl_tokenizer_encode(t, text, sizeof text - 1, SL_TOK_ADD_SPECIAL, &ids, &n, &err) == SL_OK) {
        if (sl_tokenizer_decode(t, ids, n, false, &back, &len) == SL_OK)
            free(back);
        free(ids);
    }
    sl_tokenizer_destroy(t);
    return 0;
}
