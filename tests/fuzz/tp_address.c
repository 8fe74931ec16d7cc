/* Address text and packed remote keys: arbitrary bytes are accepted, or refused with a reason; what is accepted is
 * within bounds. */
#include <stdlib.h>
#include <string.h>

#include "transport/rkey.h"
#include "transport/transport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char host[32];
    uint16_t port;
    sl_err err = {0};
    sl_tp_rkey_view view;
    char *text = strndup((const char *)data, size);
    if (!text)
        return 0;
    if (sl_tp_address_parse(text, host, sizeof host, &port, &err) != SL_OK ? !err.text[0]
                                                                           : strlen(host) >= sizeof host)
        abort();
    free(text);
    if (sl_tp_rkey_unwrap(data, size, &view, &err) == SL_OK) {
        const uint8_t *blob = view.blob;
        if (blob < data || blob + view.blob_bytes > data + size || view.base + view.bytes < view.base)
            abort();
    }
    return 0;
}
