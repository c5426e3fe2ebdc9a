#include "util/descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "util/error.h"

namespace libddp {

bool lacks_descriptors(int error) {
    return error == EMFILE || error == ENFILE;
}

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

void cannot_start(std::string_view owner, int error, ddp_status otherwise) {
    const bool too_many = lacks_descriptors(error);
    fail(too_many ? DDP_ERROR_LIMIT : otherwise, owner, " cannot start: ", std::generic_category().message(error),
         too_many ? kRaiseOpenFiles : "");
}

}  // namespace libddp
