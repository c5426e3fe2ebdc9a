/* Loaded before the C library: a machine with 2,000 processors. Like Linux, it refuses a set that
 * is too small for them. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <string.h>

enum { kProcessors = 2000 };

__attribute__((visibility("default"))) int sched_getaffinity(pid_t pid, size_t bytes,
                                                             cpu_set_t* set) {
    (void)pid;
    if (bytes * 8 < kProcessors) {
        errno = EINVAL;
        return -1;
    }
    memset(set, 0, bytes);
    for (size_t processor = 0; processor < kProcessors; ++processor)
        CPU_SET_S(processor, bytes, set);
    return 0;
}
