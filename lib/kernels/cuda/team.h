// The threads of one block of a kernel, which share memory and wait for each other. What they do together is written for any
// class with these members and any number of threads, in plain C++: a test plays a block with threads of the CPU, where a
// sanitizer sees races, or with a single one.
#pragma once

#include <cstdint>

#include "kernels/everywhere.h"

namespace libddp::cuda {

#if defined(__CUDACC__)
class BlockTeam {
public:
    __device__ std::uint32_t rank() const { return threadIdx.x; }
    __device__ std::uint32_t size() const { return blockDim.x; }
    // All threads of the team have come here, and see what the others have written.
    __device__ void sync() const { __syncthreads(); }
    // Adds to a number that others add to at the same time, and returns what was there before.
    __device__ static std::uint32_t add(std::uint32_t* to, std::uint32_t n) { return atomicAdd(to, n); }
    __device__ static std::uint64_t add(std::uint64_t* to, std::uint64_t n) {
        static_assert(sizeof(unsigned long long) == sizeof n);
        return atomicAdd(reinterpret_cast<unsigned long long*>(to), n);
    }
    // Makes it 1, which others may do at the same time.
    __device__ static void mark(std::uint8_t* flag) { *static_cast<volatile std::uint8_t*>(flag) = 1; }
};
#endif

}  // namespace libddp::cuda
