// Finds the program before n ranks fail to.
#pragma once

#include <string>

#include "environment.h"

namespace ddprun {

struct ProgramCheck {
    int status = 0;  // 0: it is there. 127: not found. 126: it may not be run.
    std::string sentence;
};

// Looks as execvp will: along the PATH that the ranks will have, or at the path itself if it has a
// slash.
ProgramCheck check_program_file(const std::string& program, const Variables& extra);

}  // namespace ddprun
