/* Delays fsync and fdatasync by as many seconds as the file of CHAOS_SLOW_DISK says, while there is one: a disk under load. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int delayed(const char *name, int descriptor) {
    const char *path = getenv("CHAOS_SLOW_DISK");
    FILE *file = path ? fopen(path, "re") : NULL;
    double seconds = 0;
    if (file) {
        if (fscanf(file, "%lf", &seconds) == 1 && seconds > 0) {
            struct timespec pause = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
            nanosleep(&pause, NULL);
        }
        fclose(file);
    }
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(descriptor);
}

int fsync(int descriptor) { return delayed("fsync", descriptor); }
int fdatasync(int descriptor) { return delayed("fdatasync", descriptor); }
