#include "util/descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <system_error>

#include "util/error.h"

namespace libddp {

void Descriptor::reset(int fd) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
}

bool lacks_descriptors(int error) {
    return error == EMFILE || error == ENFILE;
}

void require_descriptors(std::size_t count, std::string_view owner) {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    // Linux 6.2 and newer say how many there are, those above a lowered limit included. Looking at
    // each takes long where there are thousands.
    struct stat known {};
    if (stat("/proc/self/fd", &known) == 0 && known.st_size > 0 && count <= limit.rlim_cur &&
        static_cast<rlim_t>(known.st_size) <= limit.rlim_cur - count)
        return;
    // Not with opendir: ThreadSanitizer does not see that call, and takes what had the number
    // before for this folder.
    Descriptor folder(open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder) {
        if (lacks_descriptors(errno)) cannot_start(owner, errno);
        return;
    }
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(folder.get()), closedir);
    if (!entries) return;
    folder.release();
    rlim_t used = 0;
    while (const dirent* entry = readdir(entries.get())) {
        if (entry->d_name[0] == '.') continue;
        const long fd = std::strtol(entry->d_name, nullptr, 10);
        // Where the limit was lowered, some are above it.
        if (fd != dirfd(entries.get()) && static_cast<rlim_t>(fd) < limit.rlim_cur) ++used;
    }
    if (count > limit.rlim_cur - used) cannot_start(owner, EMFILE);
}

void occupy_standard_descriptors() {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        // The lowest that is free: this one. A folder can be neither read nor written.
        // NOLINT: left open, also for children
        if (open("/dev/null", O_RDWR) < 0) open("/", O_RDONLY | O_DIRECTORY);
    }
}

void cannot_start(std::string_view owner, int error, ddp_status otherwise) {
    const bool too_many = lacks_descriptors(error);
    fail(too_many ? DDP_ERROR_LIMIT : otherwise, owner,
         " cannot start: ", std::generic_category().message(error),
         too_many ? kRaiseOpenFiles : "");
}

}  // namespace libddp
