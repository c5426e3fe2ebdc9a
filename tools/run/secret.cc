#include "secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace ddprun {
namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr std::size_t kLargestFile = 4096;
constexpr std::size_t kShortestGoodSecret = 16;

std::string trim(const std::string& text) {
    const char* const kSpace = " \t\r\n";
    const std::size_t first = text.find_first_not_of(kSpace);
    if (first == std::string::npos) return "";
    return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// An open file; closes it.
class File {
public:
    explicit File(const std::string& path) : descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
    ~File() {
        if (descriptor >= 0) close(descriptor);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    const int descriptor;
};

}  // namespace

std::string make_secret() {
    std::array<unsigned char, kSecretBytes> bytes{};
    // Up to 256 bytes, getrandom gives all or nothing.
    while (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
        if (errno != EINTR) throw std::runtime_error(std::string("cannot make a secret: ") + std::strerror(errno));
    }
    static const char* const kDigits = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : bytes) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

std::string read_secret(const std::string& path, std::string& warning) {
    const File file(path);
    struct stat facts {};
    std::string text(kLargestFile + 1, '\0');
    const ssize_t size = fstat(file.descriptor, &facts) == 0 ? read(file.descriptor, text.data(), text.size()) : -1;
    if (size < 0) throw std::runtime_error("--secret-file: cannot read " + path + ": " + std::strerror(errno));
    if (static_cast<std::size_t>(size) > kLargestFile) {
        throw std::runtime_error("--secret-file: " + path + " has more than " + std::to_string(kLargestFile) +
                                 " bytes");
    }
    text = trim(text.substr(0, static_cast<std::size_t>(size)));
    if (text.empty()) throw std::runtime_error("--secret-file: " + path + " is empty");
    if (text.find('\0') != std::string::npos) throw std::runtime_error("--secret-file: " + path + " is not text");
    if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        warning = "warning: other users may read the secret in " + path + " (chmod 600 it)";
    } else if (text.size() < kShortestGoodSecret) {
        warning = "warning: the secret in " + path + " is short; 16 characters or more are hard to guess";
    }
    return text;
}

}  // namespace ddprun
