#include "util/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace libddp {
namespace {

[[noreturn]] void cannot_write(const std::string& path, const char* why) {
    throw std::runtime_error("cannot write " + path + ": " + why);
}

// The owner of files that this process makes beside this one. On a file system of another machine
// root may be nobody.
uid_t owner_beside(const std::string& path) {
    std::string probe = path + ".XXXXXX";
    const Descriptor file(mkostemp(probe.data(), O_CLOEXEC));
    if (file) unlink(probe.c_str());
    struct stat facts {};
    return file && fstat(file.get(), &facts) == 0 ? facts.st_uid : geteuid();
}

bool is_of_this_user(const std::string& path, uid_t owner) {
    return owner == geteuid() || owner == owner_beside(path);
}

}  // namespace

Descriptor open_private_file(const std::string& path, int flags) {
    constexpr mode_t kOfItsUser = 0600;
    // O_NONBLOCK matters for pipes only: opening one would wait for its reader.
    constexpr int kAlways = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    Descriptor file(open(path.c_str(), flags | kAlways, kOfItsUser));
    if (!file && errno == ELOOP) cannot_write(path, "it is a symbolic link; remove it");
    struct stat facts {};
    if (!file || fstat(file.get(), &facts) != 0) cannot_write(path, std::strerror(errno));
    if (!S_ISREG(facts.st_mode) || facts.st_nlink > 1 || !is_of_this_user(path, facts.st_uid))
        cannot_write(path, "what is there is no file of this user alone; remove it");
    // One that was there before may have been open to others.
    if (fchmod(file.get(), kOfItsUser) != 0) cannot_write(path, std::strerror(errno));
    return file;
}

int write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = write(fd, bytes.data(), bytes.size());
        if (count < 0 && errno != EINTR) return errno;
        if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return 0;
}

void write_private_file(const std::string& path, int flags, std::string_view text) {
    const Descriptor file = open_private_file(path, flags);
    if (const int error = write_all(file.get(), text); error != 0)
        cannot_write(path, std::strerror(error));
}

}  // namespace libddp
