/* See stall.h. */
#include "worker/stall.h"

static const double NS_PER_MS = 1e6, SMOOTHING = 32, LEAST_SHARE = 0.1;

int32_t sl_stall_bound_ms(int32_t max_stall_ms, bool host)
{
    return max_stall_ms >= 0 ? max_stall_ms : host ? 10 : 50;
}

void sl_stall_decoded(sl_stall *s, int32_t decoding, double ns)
{
    double token_ns = ns / decoding;
    s->token_ns += s->token_ns > 0 ? (token_ns - s->token_ns) / SMOOTHING : token_ns;
}

double sl_stall_of_prompts(const sl_stall *s, int32_t decoding, double ns)
{
    double prompts = ns - decoding * s->token_ns;
    return prompts > ns * LEAST_SHARE ? prompts : ns * LEAST_SHARE;
}

double sl_stall_max_ns(int32_t bound_ms, int32_t decoding)
{
    return decoding ? bound_ms * NS_PER_MS : 0;
}
