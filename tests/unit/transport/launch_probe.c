/*
 * launch_probe DIR: a rank for test_launch. It determines its rank, receives rank 0's blob and leaves MPI. Then it
 * runs until the file DIR/stop exists, or until SIGTERM or SIGINT asks it to drain; it exits with 0 in both cases.
 * It writes its progress to DIR/rank.N.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport/launch/launch.h"

static volatile sig_atomic_t asked;

static void on_signal(int sig)
{
    asked = sig;
}

static void note(const char *dir, int rank, const char *what)
{
    char path[512];
    snprintf(path, sizeof path, "%s/rank.%d", dir, rank);
    FILE *f = fopen(path, "a");
    if (!f)
        return;
    fprintf(f, "%s\n", what);
    fclose(f);
}

int main(int argc, char **argv)
{
    sl_launch l;
    sl_err err = {0};
    char blob[64] = "", text[512], stop[512];
    if (argc < 2 || sl_launch_init(&argc, &argv, &l, &err) != SL_OK) {
        fprintf(stderr, "launch_probe: %s\n", err.text);
        return 2;
    }
    const char *dir = argv[1];
    if (l.rank == 0)
        snprintf(blob, sizeof blob, "10.1.2.3:4567");
    if (sl_launch_bcast(&l, 0, blob, sizeof blob, &err) != SL_OK)
        return 3;
    sl_launch_leave(&l);
    sl_launch_leave(&l);
    if (l.rank >= 0 && sl_launch_bcast(&l, 0, blob, sizeof blob, &err) != SL_ERR_INVALID)
        return 4;
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    snprintf(text, sizeof text, "up pid=%d rank=%d size=%d local=%d/%d host=%s blob=%s", getpid(), l.rank,
             l.size, l.local_rank, l.local_size, l.host, blob);
    note(dir, l.rank, text);
    snprintf(stop, sizeof stop, "%s/stop", dir);
    for (int i = 0; i < 600 && !asked && access(stop, F_OK) != 0; i++)
        usleep(50000);
    snprintf(text, sizeof text, "end signal=%d", (int)asked);
    note(dir, l.rank, text);
    return 0;
}
