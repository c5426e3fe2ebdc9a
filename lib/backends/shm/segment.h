// Memory that processes share: a file without a name, which goes when the last of them has gone,
// however that ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "util/descriptors.h"

namespace libddp::shm {

// A part of a segment in this process's memory.
class Mapping {
public:
    Mapping() = default;
    Mapping(int fd, std::uint64_t offset, std::size_t bytes);
    ~Mapping();
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;

    std::byte* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

class Segment {
public:
    // A new one, empty. It can grow, but never shrink: touching memory beyond its end would kill a
    // process by SIGBUS. Throws LIMIT, UNSUPPORTED.
    Segment();
    // One that another process made. Takes the descriptor over. Throws PERMISSION_DENIED if it can
    // shrink.
    explicit Segment(int fd);

    int fd() const { return fd_.get(); }
    // Sets memory aside, zeroed, so that using it later cannot fail. Throws OUT_OF_MEMORY.
    void reserve(std::uint64_t offset, std::size_t bytes);
    // Gives it back. The part reads as zeros wherever it is still mapped; false if the kernel
    // cannot do that.
    bool release(std::uint64_t offset, std::size_t bytes) noexcept;
    // offset: a multiple of page_size(). Throws OUT_OF_MEMORY, and RANK_FAILED if the segment does
    // not reach that far.
    Mapping map(std::uint64_t offset, std::size_t bytes) const;

private:
    Descriptor fd_;
};

std::size_t page_size();
std::size_t whole_pages(std::size_t bytes);

}  // namespace libddp::shm
