/* The answer of a server to `sluice cache`: what is accepted is within the bytes that came, and ends with a NUL. */
#include <stdlib.h>
#include <string.h>

#include "base/http_client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_http_answer a;
    sl_err err = {0};
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (sl_http_answer_read(text, size, &a, &err) == SL_OK &&
        (a.body != text || a.len > size || a.body[a.len] != 0 ||
         (a.len && memcmp(a.body, data + size - a.len, a.len) != 0)))
        abort();
    free(text);
    return 0;
}
