/* Loaded before the C library: a machine with pages of 64 KiB, such as many ARM servers. Like Linux, it refuses to map a file from
 * the middle of a page. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kPage = 65536 };

__attribute__((visibility("default"))) void* mmap(void* address, size_t length, int protection,
                                                  int flags, int file, off_t offset) {
    if (offset % kPage != 0) {
        errno = EINVAL;
        return MAP_FAILED;
    }
    return (void*)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

__attribute__((visibility("default"))) long sysconf(int name) {
    long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? kPage : real(name);
}
