// Keeping Gloo's signals out of the program that links libddp.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>

namespace libddp::gloo_tcp {

// Gloo writes to sockets without MSG_NOSIGNAL, so a peer that went away raises SIGPIPE in the
// thread that writes. While a guard lives, the signal stays pending instead; the guard then
// swallows the one it caused and leaves an older one alone.
class SigpipeGuard {
public:
    SigpipeGuard() {
        sigset_t pending;
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        sigset_t pipe = only_sigpipe();
        pthread_sigmask(SIG_BLOCK, &pipe, &old_mask_);
    }
    ~SigpipeGuard() {
        if (!was_pending_) {
            const sigset_t pipe = only_sigpipe();
            const timespec now{};
            sigtimedwait(&pipe, nullptr, &now);
        }
        pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
    }
    SigpipeGuard(const SigpipeGuard&) = delete;
    SigpipeGuard& operator=(const SigpipeGuard&) = delete;

private:
    static sigset_t only_sigpipe() {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGPIPE);
        return set;
    }

    sigset_t old_mask_;
    bool was_pending_;
};

}  // namespace libddp::gloo_tcp
