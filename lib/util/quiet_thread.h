// Threads whose exceptions do not end the host program, and that never run the host program's
// signal handlers. A signal handler of the host (a Python, a JVM) must not interrupt a thread that
// it does not know. A write to a closed socket must give EPIPE here and not SIGPIPE to the process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "util/error.h"
#include "util/interrupt.h"
#include "util/log.h"

namespace libddp {

// Blocks signals in the calling thread while it lives: a new thread inherits the mask.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t blocked;
        sigfillset(&blocked);
        // Faults of the thread itself stay deliverable, so that crash reporters of the host still
        // work.
        for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS})
            sigdelset(&blocked, fault);
        pthread_sigmask(SIG_SETMASK, &blocked, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

private:
    sigset_t before_;
};

// Throws LIMIT. owner: whose thread cannot be started.
[[noreturn]] inline void no_thread(std::string_view owner, const std::system_error& error) {
    fail(DDP_ERROR_LIMIT, owner, " cannot start a thread: ", error.code().message(),
         "; raise the limit of processes (ulimit -u) or of memory (ulimit -v)");
}

// How long a thread that could not do its work waits before it tries again.
inline constexpr std::chrono::milliseconds kBetweenTries{10};

// Runs `loop`, which returns when the thread is to end. After an exception, for want of memory as a
// rule, `loop` begins anew.
template <class Loop>
void persist(const char* name, Loop loop) {
    for (;;) {
        try {
            return loop();
        } catch (...) {
            log(LogLevel::kError, name, " tries again: ", caught().message);
        }
        std::this_thread::sleep_for(kBetweenTries);
    }
}

// An exception ends the thread and is logged. Waits for the thread then end by their timeouts.
template <class Function>
std::thread quiet_thread(Function function) {
    SignalsBlocked blocked;
    try {
        return std::thread([function = std::move(function)]() mutable {
            interrupt::never_on_this_thread();
            try {
                function();
            } catch (...) {
                log_line(LogLevel::kError, "a thread of libddp has ended: " + caught().message);
            }
        });
    } catch (const std::system_error& error) {
        no_thread("libddp", error);
    }
}

}  // namespace libddp
