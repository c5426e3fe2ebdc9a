// File descriptors: who closes them, and what happens when there are too few, also to a library below us that does not do
// without in good order.
#pragma once

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
// What helps then: the end of a message.
inline constexpr const char* kRaiseOpenFiles = "; raise the limit of open files (ulimit -n)";

// Throws LIMIT unless the process can open this many more, as far as that can be told. Takes one while it counts, so that other
// threads hardly notice; they may take what it has counted, which leaves a small window. owner: "the store client", for the message.
void require_descriptors(std::size_t count, std::string_view owner);

// Throws what an errno value means for `owner`, which cannot start: LIMIT for want of descriptors.
[[noreturn]] void cannot_start(std::string_view owner, int error, ddp_status otherwise = DDP_ERROR_IO);

}  // namespace libddp
