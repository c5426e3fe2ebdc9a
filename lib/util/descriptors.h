// File descriptors: who closes them, and what happens when there are too few, also to a library
// below us that does not do without in good order.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cstddef>
#include <string_view>
#include <utility>

#include "ddp/status.h"

namespace libddp {

// Closes what it holds. A negative one stands for none.
class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor() { reset(); }
    Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) reset(other.release());
        return *this;
    }

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    int release() { return std::exchange(fd_, -1); }
    void reset(int fd = -1);

private:
    int fd_;
};

// Whether an errno value says that the process, or the machine, has no descriptor left.
bool lacks_descriptors(int error);
// The remedy, for the end of a message.
inline constexpr const char* kRaiseOpenFiles = "; raise the limit of open files (ulimit -n)";

// Throws LIMIT unless the process can open this many more, as far as that can be told. Takes one
// while it counts, so that other threads hardly notice; they may take what it has counted, which
// leaves a small window. owner: "the store client", for the message.
void require_descriptors(std::size_t count, std::string_view owner);

// Opens 0, 1 and 2 where the program has closed them. A socket of libddp would have such a number
// otherwise: what anybody logs would go to other ranks, and libuv ends the process when it closes
// one.
void occupy_standard_descriptors();

// Throws what an errno value means for `owner`, which cannot start: LIMIT for want of descriptors.
[[noreturn]] void cannot_start(std::string_view owner, int error,
                               ddp_status otherwise = DDP_ERROR_IO);

// Writing without signals. A write beyond the limit of file sizes (RLIMIT_FSIZE) raises SIGXFSZ and
// one to a pipe that nobody reads SIGPIPE, and either would end the host program; here they are the
// errors EFBIG and EPIPE.

// Holds these signals back from the calling thread while it lives, and takes away what its writes
// have raised. The process's handlers stay as they are.
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
