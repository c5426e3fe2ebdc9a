// Files that are the business of their user alone, in folders to which others may write.
#pragma once

#include <string>
#include <string_view>

#include "util/descriptors.h"

namespace libddp {

// Opens a file for writing, which only its user can read from then on, and makes it if it is not
// there. Another user who can write to the folder must not choose what is overwritten: a symbolic
// link is refused, and what is no file of this user alone. Where the file system gives all that
// this process makes to another user, as NFS does with files of root, that user's files are this
// one's. flags: O_APPEND, or O_EXCL for a new file. Throws std::runtime_error.
Descriptor open_private_file(const std::string& path, int flags);

// Writes all of it. Returns 0 or an errno.
int write_all(int fd, std::string_view bytes);

// Opens such a file and writes the text. Throws std::runtime_error.
void write_private_file(const std::string& path, int flags, std::string_view text);

}  // namespace libddp
