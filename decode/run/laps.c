/* See laps.h. */
#include "decode/run/laps.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

static const uint64_t LATE_NS = 3000000, PAUSE_NS = 1000000000;
static const char *const names[SL_LAPS] = {"other", "admit", "pages", "items", "submit", "wait", "results"};

void sl_laps_mark(sl_laps *l, sl_lap lap)
{
    const uint64_t now = sl_now_ns();
    l->ns[lap] += l->at_ns ? now - l->at_ns : 0;
    l->at_ns = now;
}

static void log_late(const sl_laps *l, uint64_t late_ns)
{
    char text[24 * SL_LAPS];
    int n = 0;
    for (int i = 0; i < SL_LAPS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %s_us=%lu", names[i],
                      (unsigned long)(l->ns[i] / 1000));
    sl_log(SL_LOG_INFO, "decode", "late_tokens", "us=%lu%s", (unsigned long)(late_ns / 1000), text);
}

bool sl_laps_late(const sl_laps *l, uint64_t ended_ns)
{
    return l->at_ns > ended_ns && l->at_ns - ended_ns > LATE_NS &&
           (!l->logged_ns || l->at_ns - l->logged_ns >= PAUSE_NS);
}

void sl_laps_sent(sl_laps *l, uint64_t ended_ns)
{
    sl_laps_mark(l, SL_LAP_RESULTS);
    if (sl_laps_late(l, ended_ns)) {
        log_late(l, l->at_ns - ended_ns);
        l->logged_ns = l->at_ns;
    }
    memset(l->ns, 0, sizeof l->ns);
}
