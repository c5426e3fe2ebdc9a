#include "launch/user_secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <vector>

#include "launch/secret_file.h"
#include "util/descriptors.h"
#include "util/error.h"
#include "util/private_file.h"
#include "util/random.h"

namespace libddp {
namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr const char* kSource = "the secret of this user";

std::string why_of(int error) {
    return std::generic_category().message(error);
}

std::vector<std::string> candidates(const GetEnv& get) {
    std::vector<std::string> folders;
    const std::string runtime = get("XDG_RUNTIME_DIR").value_or("");
    if (runtime.starts_with('/')) folders.push_back(runtime + "/libddp");
    for (const char* shared : {"/tmp", "/dev/shm"})
        folders.push_back(str(shared, "/libddp-", geteuid()));
    return folders;
}

// Makes the folder if it is not there. Why it is not this user's alone; "" if it is. Others can
// write to the folder above, so what stands there may be theirs, or a link of theirs.
std::string folder_fault(const std::string& path) {
    constexpr mode_t kOfItsUser = 0700;
    if (mkdir(path.c_str(), kOfItsUser) != 0 && errno != EEXIST) return why_of(errno);
    struct stat facts {};
    if (lstat(path.c_str(), &facts) != 0) return why_of(errno);
    if (!S_ISDIR(facts.st_mode)) return "is not a folder";
    return private_file_fault(geteuid(), facts.st_uid, facts.st_mode);
}

// Puts a new secret there, whole, unless another process was faster. Returns 0 or an errno.
int make_secret(const std::string& path) {
    std::string beside = path + ".XXXXXX";
    const Descriptor file(mkostemp(beside.data(), O_CLOEXEC));  // with mode 0600
    if (!file) return errno;
    int error = write_all(file.get(), random_text(kSecretBytes) + "\n");
    if (error == 0 && link(beside.c_str(), path.c_str()) != 0 && errno != EEXIST) error = errno;
    unlink(beside.c_str());
    return error;
}

}  // namespace

std::string user_secret(const GetEnv& get) {
    std::string faults;
    for (const auto& folder : candidates(get)) {
        std::string fault = folder_fault(folder);
        const std::string path = folder + "/secret";
        if (fault.empty() && access(path.c_str(), F_OK) != 0)
            if (const int error = make_secret(path); error != 0)
                fault = str("cannot hold a file: ", why_of(error));
        if (fault.empty()) return read_secret_file(path, kSource);
        faults += str(faults.empty() ? "" : "; ", folder, " ", fault);
    }
    fail(
        DDP_ERROR_PERMISSION_DENIED,
        "no folder can keep a secret of this user, by which ranks on one machine know each other: ",
        faults,
        ". Set XDG_RUNTIME_DIR to a folder of this user with mode 0700, or DDP_SECRET_FILE or "
        "DDP_SECRET for every rank. DDP_INSECURE=1 does without a secret. See docs/ddprun.md, "
        "\"The job secret\"");
}

}  // namespace libddp
