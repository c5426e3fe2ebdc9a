// Calls functions when the process ends by exit(): a call of it, a return from main, or a
// language's runtime after an exception that nobody caught. They say what is still to be said. A
// process that is killed, crashes, or calls _exit calls none.
#pragma once

#include <cstdint>
#include <functional>

#include "util/deadline.h"

namespace libddp {

// While it lives, `say` is called if the process exits, with the exit status, on the thread that
// exits. It may take until the deadline, which is at_most_ms after the exit began. A forked child
// that exits says nothing: what its parent holds is not its own.
class AtExit {
public:
    using Say = std::function<void(int status, const Deadline& deadline)>;

    explicit AtExit(Say say, std::int64_t at_most_ms = 1'000);
    // Waits for the end of `say`, if the process is exiting.
    ~AtExit();
    AtExit(const AtExit&) = delete;
    AtExit& operator=(const AtExit&) = delete;

    // The functions of a process that exits run in the reverse order of their registration: those
    // of this class from now on before those that are registered already.
    static void prepare();
    // Whether a process that was prepared exits. Then a new one may come too late to be called.
    static bool exiting();

private:
    friend struct ExitList;
    const Say say_;
    const std::int64_t at_most_ms_;
};

}  // namespace libddp
