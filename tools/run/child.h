// The process that ddprun starts in place of a rank's program: ddprun itself, which prepares the
// process and then becomes the program. libuv has no hook between fork and exec.
#pragma once

#include <sys/resource.h>

#include <string>
#include <vector>

namespace ddprun {

// Descriptor on which the child tells its parent why the program could not be run: an errno as an
// int.
inline constexpr int kReportDescriptor = 3;
// Descriptor on which the child tells the guard its process group, before its program can start
// processes in it.
inline constexpr int kGuardDescriptor = 4;

// The arguments of the process to start, for a rank that runs `program`.
std::vector<std::string> child_arguments(const std::vector<std::string>& program,
                                         rlim_t open_files);

bool is_child_mode(int argc, char** argv);
// Returns only if the program could not be run: the exit status, 127 if it was not found, else 126.
int run_child(int argc, char** argv);

// Lets ddprun hold the pipes of many ranks. Returns the limit before, which the ranks get.
rlim_t raise_open_files();

}  // namespace ddprun
