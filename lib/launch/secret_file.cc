#include "launch/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "util/descriptors.h"
#include "util/error.h"

namespace libddp {
namespace {

constexpr std::size_t kLargestFile = 4096;

[[noreturn]] void cannot_read(const std::string& path, const std::string& source) {
    const int reason = errno;
    const bool refused = reason == EACCES || reason == EPERM;
    fail(refused ? DDP_ERROR_PERMISSION_DENIED : DDP_ERROR_INVALID_ARGUMENT, source,
         ": cannot read ", path, ": ", std::generic_category().message(reason));
}

// At most one byte more than a secret may have.
std::string read_all(int descriptor, const std::string& path, const std::string& source) {
    std::string text(kLargestFile + 1, '\0');
    std::size_t size = 0;
    while (size < text.size()) {
        const ssize_t count = read(descriptor, text.data() + size, text.size() - size);
        if (count == 0) break;
        if (count > 0)
            size += static_cast<std::size_t>(count);
        else if (errno != EINTR)
            cannot_read(path, source);
    }
    text.resize(size);
    return text;
}

std::string trimmed(const std::string& text) {
    const char* const kSpace = " \t\r\n";
    const std::size_t first = text.find_first_not_of(kSpace);
    if (first == std::string::npos) return "";
    return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

}  // namespace

std::string private_file_fault(uid_t user, uid_t owner, mode_t mode) {
    if (owner != user) return str("belongs to another user (uid ", owner, ")");
    if ((mode & S_IRWXO) != 0) return "is open to other users: chmod 600 it";
    if ((mode & S_IRWXG) != 0) return "is open to its group: chmod 600 it";
    return "";
}

std::string secret_file_fault(uid_t user, uid_t owner, mode_t mode) {
    constexpr mode_t kReadByGroup = S_IRGRP;
    return owner == 0 ? private_file_fault(0, 0, mode & ~kReadByGroup)
                      : private_file_fault(user, owner, mode);
}

std::string read_secret_file(const std::string& path, const std::string& source) {
    // Symbolic links are followed: Kubernetes mounts a secret as a chain of links. A pipe without a
    // writer must not hold the process up before fstat tells that it is one.
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat facts {};
    if (!file || fstat(file.get(), &facts) != 0) cannot_read(path, source);
    if (!S_ISREG(facts.st_mode))
        fail(DDP_ERROR_INVALID_ARGUMENT, source, ": ", path, " is not a regular file");
    const std::string fault = secret_file_fault(geteuid(), facts.st_uid, facts.st_mode);
    if (!fault.empty()) fail(DDP_ERROR_PERMISSION_DENIED, source, ": ", path, " ", fault);
    const std::string text = read_all(file.get(), path, source);
    if (text.size() > kLargestFile)
        fail(DDP_ERROR_INVALID_ARGUMENT, source, ": ", path, " has more than ", kLargestFile,
             " bytes");
    std::string secret = trimmed(text);
    if (secret.empty()) fail(DDP_ERROR_INVALID_ARGUMENT, source, ": ", path, " is empty");
    if (secret.find('\0') != std::string::npos)
        fail(DDP_ERROR_INVALID_ARGUMENT, source, ": ", path, " is not text: it holds a NUL byte");
    return secret;
}

}  // namespace libddp
