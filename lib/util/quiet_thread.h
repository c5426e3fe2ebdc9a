// Threads that never run the host program's signal handlers. A signal handler of the host (a Python, a JVM) must not
// interrupt a thread that it does not know, and a write to a closed socket must give EPIPE here and not SIGPIPE to the
// process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace libddp {

// Blocks signals in the calling thread while it lives: a new thread inherits the mask.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t blocked;
        sigfillset(&blocked);
        // Faults of the thread itself stay deliverable, so that crash reporters of the host still work.
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, fault);
        pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

template <class Function>
std::thread quiet_thread(Function function) {
    SignalsBlocked blocked;
    return std::thread(std::move(function));
}

}  // namespace libddp
