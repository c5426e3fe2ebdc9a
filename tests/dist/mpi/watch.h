// Sees every call of MPI that the backend makes in this process: the program defines these
// functions itself, so that the module's calls come here first, and passes them on (MPI's profiling
// interface).
#pragma once

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace watch {

// Which calls are wrong.
enum class Rule {
    kNone,
    kCallersOnly,  // outside Inside, and two at a time
    kOneThread     // on more than one thread, or on the thread that says so
};
void expect(Rule rule);

// This thread is inside a call of libddp that may wait.
class Inside {
public:
    Inside();
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
};

// The program is inside MPI itself.
class OwnCall {
public:
    OwnCall();
    ~OwnCall();
    OwnCall(const OwnCall&) = delete;
    OwnCall& operator=(const OwnCall&) = delete;
};

std::size_t calls();
// The complaint since expect(), "" if there is none.
std::string complaint();

}  // namespace watch
