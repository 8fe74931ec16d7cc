/*
 * JSON input and the writer in Python's format: what parses is written, and the written text parses to an equal value.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_err err = {0};
    json_t *v, *again;
    if (sl_json_parse((const char *)data, size, "fuzz", &v, &err)) {
        if (!err.text[0])
            abort();
        return 0;
    }
    char *text = sl_chat_json_dumps(v);
    if (!text || sl_json_parse(text, strlen(text), "again", &again, &err) || !json_equal(v, again))
        abort();
    int64_t i;
    const char *s;
    (void)sl_json_opt_int(v, "fuzz", "a", 0, 10, &i, &err);
    (void)sl_json_get_string(v, "fuzz", "b", &s, &err);
    free(text);
    json_decref(v);
    json_decref(again);
    return 0;
}
