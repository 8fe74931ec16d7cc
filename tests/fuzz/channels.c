/*
 * Arbitrary bytes as a file of calibrated channels: a refusal names the text and has a reason, and of what is accepted every
 * list has distinct channels of the head.
 */
#include <stdlib.h>
#include <string.h>

#include "sparse/channels.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const sl_algo_model m = {.architecture = "LlamaForCausalLM",
                             .n_layers = 2,
                             .n_heads = 4,
                             .kv_heads = 2,
                             .head_dim = 4,
                             .hidden_size = 16,
                             .vocab_size = 100};
    sl_channels *c = NULL;
    sl_err err = {""};
    if (sl_channels_parse((const char *)data, size, "fuzz", &m, &c, &err)) {
        if (c || strncmp(err.text, "fuzz", 4) != 0)
            abort();
        return 0;
    }
    if (c->count < 1 || c->count > m.head_dim || c->n_layers != m.n_layers || c->kv_heads != m.kv_heads)
        abort();
    for (int32_t h = 0; h < c->n_layers * c->kv_heads; h++) {
        unsigned seen = 0;
        for (int32_t i = 0; i < c->count; i++) {
            int32_t ch = c->of[h * c->count + i];
            if (ch < 0 || ch >= m.head_dim || seen >> ch & 1)
                abort();
            seen |= 1u << ch;
        }
    }
    sl_channels_free(c);
    return 0;
}
