// Marks what the CPU and a GPU both run, so that it is written once and gives the same bits.
//
// Some of it is the work of cooperating threads, which share memory and wait for each other: those
// of a block of a kernel. It is written for any class with the members of BlockThreads and any
// number of threads, in plain C++. The CPU does it with a single thread. A test plays a block with
// threads of the CPU, where a sanitizer sees races.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define LIBDDP_EVERYWHERE __host__ __device__ inline
#define LIBDDP_COOPERATIVE __device__ inline
#else
#define LIBDDP_EVERYWHERE inline
#define LIBDDP_COOPERATIVE inline
#endif

namespace libddp::cuda {

#if defined(__CUDACC__)
class BlockThreads {
public:
    __device__ std::uint32_t index() const { return threadIdx.x; }
    __device__ std::uint32_t size() const { return blockDim.x; }
    // All threads of the block have come here, and see what the others have written.
    __device__ void sync() const { __syncthreads(); }
    // Adds to a number that others add to at the same time, and returns what was there before.
    __device__ static std::uint32_t add(std::uint32_t* to, std::uint32_t n) {
        return atomicAdd(to, n);
    }
    __device__ static std::uint64_t add(std::uint64_t* to, std::uint64_t n) {
        static_assert(sizeof(unsigned long long) == sizeof n);
        return atomicAdd(reinterpret_cast<unsigned long long*>(to), n);
    }
    // Makes it 1, which others may do at the same time.
    __device__ static void mark(std::uint8_t* flag) {
        *static_cast<volatile std::uint8_t*>(flag) = 1;
    }
};
#endif

}  // namespace libddp::cuda
