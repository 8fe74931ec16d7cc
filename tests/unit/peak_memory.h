/* What a test process has in memory, and at most since a moment. */
#ifndef SL_TESTS_UNIT_PEAK_MEMORY_H
#define SL_TESTS_UNIT_PEAK_MEMORY_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* KiB of this line of /proc/self/status. */
static inline long status_kib(const char *line)
{
    char text[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(text, sizeof text, f))
        if (!strncmp(text, line, strlen(line)))
            kib = strtol(text + strlen(line) + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

/* What the process has in memory at most from now on is what VmHWM says; false: this system cannot begin anew. */
static inline bool forget_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    bool ok = f && fputs("5", f) >= 0;
    return f && fclose(f) == 0 && ok;
}

#endif
