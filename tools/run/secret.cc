#include "secret.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "launch/secret_file.h"

namespace ddprun {
namespace {

constexpr std::size_t kSecretBytes = 32;

// Random bytes as hexadecimal text.
std::string make_secret() {
    std::array<unsigned char, kSecretBytes> bytes{};
    // Up to 256 bytes, getrandom gives all or nothing.
    while (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
        if (errno != EINTR)
            throw std::runtime_error(std::string("cannot make a secret: ") + std::strerror(errno));
    }
    static const char* const kDigits = "0123456789abcdef";
    std::string text;
    for (const unsigned char byte : bytes) {
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

// The option by which another ddprun takes part in the job, so that the secret must be known there.
// Empty: none does.
std::string option_that_shares(const Options& options) {
    if (options.nodes > 1) return "--nnodes " + std::to_string(options.nodes);
    if (options.store.starts_with("tcp://")) return "--store tcp://";
    return options.min_ranks && options.rendezvous ? "--rdzv with --min-ranks" : "";
}

// Empty: not set, or set to nothing.
std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

// A rank may change its folder before it reads the file.
Secret secret_in(const std::string& path, const char* source) {
    return {libddp::read_secret_file(path, source), std::filesystem::absolute(path)};
}

}  // namespace

Secret job_secret(const Options& options) {
    if (!options.secret_file.empty()) return secret_in(options.secret_file, "--secret-file");
    const std::string shares = option_that_shares(options);
    if (shares.empty() && options.store.empty()) return {make_secret(), ""};
    if (std::string secret = variable("DDP_SECRET"); !secret.empty()) return {secret, ""};
    if (const std::string path = variable("DDP_SECRET_FILE"); !path.empty())
        return secret_in(path, "DDP_SECRET_FILE");
    if (shares.empty()) return {};  // etcd and files have protection of their own
    // Ranks of several nodes must not meet in a store that anybody may enter.
    throw std::invalid_argument(
        shares +
        " needs a job secret, the same on every node: --secret-file FILE, or the variable "
        "DDP_SECRET_FILE or DDP_SECRET. Make the file with: (umask 077; head -c 32 /dev/urandom | "
        "base64 -w0 > job.secret)");
}

}  // namespace ddprun
