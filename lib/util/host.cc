#include "util/host.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "util/descriptors.h"
#include "util/error.h"
#include "util/text.h"

namespace libddp {

std::string host_id() {
    if (const char* given = std::getenv("DDP_HOST_ID")) return str("given ", given);
    std::string boot;
    errno = 0;
    if (!std::getline(FileIn("/proc/sys/kernel/random/boot_id"), boot)) {
        if (lacks_descriptors(errno)) cannot_start("the search for ranks of this host", errno);
        fail(DDP_ERROR_UNSUPPORTED,
             "/proc/sys/kernel/random/boot_id cannot be read: is /proc mounted? Set DDP_HOST_ID to "
             "the same text on all ranks of a host, or choose backend tcp");
    }
    char name[64];
    const auto length = readlink("/proc/self/ns/net", name, sizeof name);
    if (length <= 0)
        fail(DDP_ERROR_UNSUPPORTED,
             "/proc/self/ns/net cannot be read: is /proc mounted? Set DDP_HOST_ID to the same text "
             "on all ranks of a host, or choose backend tcp");
    return boot + " " + std::string(name, static_cast<std::size_t>(length));
}

std::string host_and_port(const std::string& host, int port) {
    const bool v6 = host.find(':') != std::string::npos;
    return str(v6 ? "[" : "", host, v6 ? "]" : "", ":", port);
}

std::string host_name() {
    char name[64] = "host";
    gethostname(name, sizeof name - 1);
    return name;
}

std::optional<ProcessState> process_state(std::int32_t pid) {
    std::string text;
    std::getline(FileIn(str("/proc/", pid, "/stat")), text);
    const std::size_t name_end = text.rfind(')');  // the name itself may hold anything
    if (name_end == std::string::npos || name_end + 2 >= text.size()) return std::nullopt;
    std::size_t at = name_end;
    for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
    if (at == std::string::npos) return std::nullopt;
    return ProcessState{text[name_end + 2], std::strtoull(text.c_str() + at, nullptr, 10)};
}

}  // namespace libddp
