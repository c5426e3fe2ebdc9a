#include "write_text.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "util/descriptors.h"
#include "util/private_file.h"

namespace libddp {
namespace {

void check(const std::string& place, int error) {
    if (error != 0)
        throw std::system_error(error, std::generic_category(), "cannot write " + place);
}

// Standard output belongs to the shell, too, and somebody may have made it non-blocking.
int write_patiently(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = write(fd, bytes.data(), bytes.size());
        if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
        if (count >= 0 || errno == EINTR) continue;
        if (errno != EAGAIN) return errno;
        pollfd state{fd, POLLOUT, 0};
        poll(&state, 1, -1);
    }
    return 0;
}

}  // namespace

void write_file(const std::string& path, std::string_view text) {
    const WriteSignalsHeld held;
    Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    check(path, file ? write_all(file.get(), text) : errno);
    // A file system of another machine may find only now that its disk is full.
    check(path, close(file.release()) == 0 || errno == EINTR ? 0 : errno);
}

void write_output(std::string_view text) {
    const WriteSignalsHeld held;
    check("standard output", write_patiently(STDOUT_FILENO, text));
}

}  // namespace libddp
