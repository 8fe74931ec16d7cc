/* By the first byte a GBNF grammar, a list of choices, or structural tags, made of arbitrary bytes: the result is Lark or a reason, its length is
 * bounded by that of the input, and it contains no line that the input's form cannot have made. */
#include <stdlib.h>
#include <string.h>

#include "model/grammar/follow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *out = NULL;
    sl_err err = {{0}};
    if (size < 1)
        return 0;
    const char *text = (const char *)data + 1;
    const bool tags = (data[0] & 3) == 2;
    sl_grammar_kind kind = data[0] & 1 ? SL_GRAMMAR_CHOICE : SL_GRAMMAR_GBNF;
    sl_status st = tags ? sl_grammar_tags(text, size - 1, &out, &err)
                        : sl_grammar_lark(kind, text, size - 1, &out, &err);
    if ((st == SL_OK) != (out != NULL) || (st != SL_OK && !err.text[0]))
        abort();
    if (out &&
        strlen(out) > 12 * size + (tags ? 64 << 10 : 64)) /* of a tag: the bound of blanks, names of rules */
        abort();
    free(out);
    return 0;
}
