/* See drawn.h. */
#include "base/drawn.h"

#include <stdlib.h>
#include <string.h>

sl_status sl_drawn_accept(const char *text, char between, double accept[SL_DRAWN_DRAFTS], sl_err *err)
{
    const char *at = text;
    double last = 1;
    int k = 0;
    for (bool more = true; more; k++) {
        char *end;
        double v = strtod(at, &end);
        if (end == at || !(v >= 0 && v <= last) || k == SL_DRAWN_DRAFTS || (*end && *end != between))
            return sl_fail(err, SL_ERR_INVALID,
                           "%.100s is not a list of at most %d numbers from 1 to 0 that do not rise", text,
                           SL_DRAWN_DRAFTS);
        accept[k] = last = v;
        more = *end == between;
        at = end + 1;
    }
    for (; k < SL_DRAWN_DRAFTS; k++)
        accept[k] = 0;
    return SL_OK;
}

sl_status sl_drawn_parse(const char *text, sl_drawn *out, sl_err *err)
{
    const size_t n = strcspn(text, "/");
    *out = (sl_drawn){.drafts = text[n] == '/'};
    if (n == 0 || n >= sizeof out->profile)
        return sl_fail(err, SL_ERR_INVALID, "bench.selection: %.100s does not begin with a profile", text);
    memcpy(out->profile, text, n);
    sl_status st = out->drafts ? sl_drawn_accept(text + n + 1, '/', out->accept, err) : SL_OK;
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "bench.selection");
}

int sl_drawn_standing(const double accept[SL_DRAWN_DRAFTS], int n, double u)
{
    int k = 0;
    while (k < n && k < SL_DRAWN_DRAFTS && u < accept[k])
        k++;
    return k;
}
