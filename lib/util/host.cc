#include "util/host.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "util/descriptors.h"
#include "util/error.h"

namespace libddp {

std::string host_id() {
    if (const char* given = std::getenv("DDP_HOST_ID")) return str("given ", given);
    std::string boot;
    errno = 0;
    if (!std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot)) {
        if (lacks_descriptors(errno)) cannot_start("the search for ranks of this host", errno);
        fail(DDP_ERROR_UNSUPPORTED, "/proc/sys/kernel/random/boot_id cannot be read: is /proc mounted?");
    }
    char name[64];
    const auto length = readlink("/proc/self/ns/net", name, sizeof name);
    if (length <= 0) fail(DDP_ERROR_UNSUPPORTED, "/proc/self/ns/net cannot be read: is /proc mounted?");
    return boot + " " + std::string(name, static_cast<std::size_t>(length));
}

}  // namespace libddp
