/*
 * For LD_PRELOAD, in test_disk_hangs.py: a disk whose reads the kernel never ends. When the file $HANG_DISK appears, every descriptor
 * of a file named "pages" becomes a pipe into which no process writes. The program's own code and its io_uring are as they are.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DESCRIPTORS = 1024 };

static void *watch(void *trigger)
{
    int ends[2];
    while (access(trigger, F_OK) != 0)
        usleep(10000);
    if (pipe(ends) != 0)
        abort();
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        char link[64], path[1024];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = 0;
        const char *name = strrchr(path, '/');
        if (name && !strcmp(name, "/pages"))
            dup2(ends[0], fd);
    }
    unlink(trigger); /* it hangs now */
    return NULL;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;
    char *trigger = getenv("HANG_DISK");
    if (trigger && pthread_create(&thread, NULL, watch, trigger) != 0)
        abort();
}
