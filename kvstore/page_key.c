/* Tokens are hashed as little-endian int32, the representation on every supported machine. */
#include "kvstore/page_key.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "page keys hash native integers");

sl_key sl_page_key(sl_key prev, const int32_t *tokens)
{
    return sl_hash_chain(prev, tokens, SL_KEY_PAGE_TOKENS * sizeof *tokens);
}

size_t sl_page_keys(sl_key seed, const int32_t *tokens, size_t n, sl_key *out)
{
    size_t pages = n / SL_KEY_PAGE_TOKENS;
    for (size_t i = 0; i < pages; i++)
        seed = out[i] = sl_page_key(seed, tokens + i * SL_KEY_PAGE_TOKENS);
    return pages;
}
