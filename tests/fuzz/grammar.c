/* A GBNF grammar, or with an odd first byte a list of choices, made of arbitrary bytes: the result is Lark or a reason, its length is
 * bounded by that of the input, and it contains no line that the input's form cannot have made. */
#include <stdlib.h>
#include <string.h>

#include "model/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *out = NULL;
    sl_err err = {{0}};
    if (size < 1)
        return 0;
    sl_grammar_kind kind = data[0] & 1 ? SL_GRAMMAR_CHOICE : SL_GRAMMAR_GBNF;
    sl_status st = sl_grammar_lark(kind, (const char *)data + 1, size - 1, &out, &err);
    if ((st == SL_OK) != (out != NULL) || (st != SL_OK && !err.text[0]))
        abort();
    if (out && strlen(out) > 12 * size + 64)
        abort();
    free(out);
    return 0;
}
