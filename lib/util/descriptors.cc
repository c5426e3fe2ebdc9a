#include "util/descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "util/error.h"

namespace libddp {

void require_descriptors(std::size_t count, std::string_view owner) {
    std::vector<int> spare;
    spare.reserve(count);
    int error = 0;
    while (spare.size() < count && error == 0) {
        const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            error = errno;
        else
            spare.push_back(fd);
    }
    for (int fd : spare) close(fd);
    if (error != 0) cannot_start(owner, error);
}

void cannot_start(std::string_view owner, int error) {
    const bool too_many = error == EMFILE || error == ENFILE;
    fail(too_many ? DDP_ERROR_LIMIT : DDP_ERROR_IO, owner, " cannot start: ", std::generic_category().message(error),
         too_many ? "; raise the limit of open files (ulimit -n)" : "");
}

}  // namespace libddp
