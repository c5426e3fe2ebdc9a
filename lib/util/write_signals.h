// Writing without signals. A write beyond the limit of file sizes (RLIMIT_FSIZE) raises SIGXFSZ and one to a pipe that
// nobody reads SIGPIPE, and either would end the host program; here they are the errors EFBIG and EPIPE.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>

namespace libddp {

// Holds these signals back from the calling thread while it lives, and takes away what its writes have raised. The
// process's handlers stay as they are.
class WriteSignalsHeld {
public:
    WriteSignalsHeld() {
        sigset_t pending;
        sigpending(&pending);
        sigemptyset(&ours_);
        // One that is due already belongs to somebody else, and is delivered later.
        for (int number : {SIGXFSZ, SIGPIPE})
            if (sigismember(&pending, number) == 0) sigaddset(&ours_, number);
        pthread_sigmask(SIG_BLOCK, &ours_, &before_);
    }
    ~WriteSignalsHeld() {
        const timespec at_once{};
        while (sigtimedwait(&ours_, nullptr, &at_once) > 0) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    WriteSignalsHeld(const WriteSignalsHeld&) = delete;
    WriteSignalsHeld& operator=(const WriteSignalsHeld&) = delete;

private:
    sigset_t ours_;
    sigset_t before_;
};

}  // namespace libddp
