// Reads a job secret from a file, and says who else may read a file. ddprun reads its --secret-file
// in the same way.
#pragma once

#include <sys/types.h>

#include <string>

namespace libddp {

// The text of the file without white space around it. `source` names the file's origin in errors,
// such as "DDP_SECRET_FILE". Throws Error: INVALID_ARGUMENT (no such file, not a regular file,
// empty, not text, more than 4,096 bytes), PERMISSION_DENIED (secret_file_fault, or the system
// refuses access).
std::string read_secret_file(const std::string& path, const std::string& source);

// Why others than `user` may read or change a file with this owner and mode; "" if nobody else may.
std::string private_file_fault(uid_t user, uid_t owner, mode_t mode);

// Why a process of `user` must not take its secret from a file with this owner and mode; "" if it
// may. Only `user` and root may own the file. Nobody else may have access, with one exception: the
// group of a file of root may read it. Kubernetes mounts the secrets of a pod with an fsGroup like
// that.
std::string secret_file_fault(uid_t user, uid_t owner, mode_t mode);

}  // namespace libddp
