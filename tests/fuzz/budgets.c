/* Arbitrary bytes as a file of budgets by layer and KV head: a refusal names the text and has a reason, and of what is accepted every
 * share is a length. */
#include <stdlib.h>
#include <string.h>

#include "sparse/budgets.h"

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
    sl_budgets *b = NULL;
    sl_err err = {""};
    if (sl_budgets_parse((const char *)data, size, "fuzz", &m, &b, &err)) {
        if (b || strncmp(err.text, "fuzz", 4) != 0)
            abort();
        return 0;
    }
    if (b->n_layers != m.n_layers || b->kv_heads != m.kv_heads)
        abort();
    for (int32_t l = 0; l < b->n_layers; l++)
        for (int32_t h = 0; h < b->kv_heads; h++) {
            const int32_t n = sl_budgets_units(b, l, h, 1000, 2);
            if (!(b->share[l * b->kv_heads + h] >= 0) || n < 2 || n > sl_budgets_longest(b, -1, 1000, 2))
                abort();
        }
    sl_budgets_free(b);
    return 0;
}
