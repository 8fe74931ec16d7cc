/* See draft_state.h. */
#include "worker/draft_state.h"

#include <stdlib.h>
#include <string.h>

void sl_draft_state_free(sl_draft_state *d)
{
    free(d->bytes);
    *d = (sl_draft_state){0};
}

void sl_draft_state_take(sl_draft_state *d, const sl_runner *r, const void *seq)
{
    sl_draft_state_free(d);
    if (!r->hidden.get || !seq)
        return;
    d->bytes = malloc(r->hidden.bytes);
    if (!d->bytes || !r->hidden.get(r->impl, seq, d->bytes)) {
        sl_draft_state_free(d);
        return;
    }
    d->n = r->hidden.bytes, d->tokens = r->len(seq);
}

void sl_draft_state_set(sl_draft_state *d, sl_blob bytes, int32_t tokens)
{
    sl_draft_state_free(d);
    if (bytes.len == 0 || !(d->bytes = malloc(bytes.len)))
        return;
    memcpy(d->bytes, bytes.data, bytes.len);
    d->n = bytes.len, d->tokens = tokens;
}

void sl_draft_state_give(const sl_draft_state *d, const sl_runner *r, void *seq)
{
    if (d->n > 0 && r->hidden.set && d->n == r->hidden.bytes && d->tokens == r->len(seq))
        r->hidden.set(r->impl, seq, d->bytes);
}
