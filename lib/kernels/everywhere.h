// Marks what the CPU and a GPU both run, so that it is written once and gives the same bits.
#pragma once

#if defined(__CUDACC__)
#define LIBDDP_EVERYWHERE __host__ __device__ inline
// For functions of a team of threads (kernels/cuda/team.h), which on a GPU wait for each other.
#define LIBDDP_TEAMWORK __device__ inline
#else
#define LIBDDP_EVERYWHERE inline
#define LIBDDP_TEAMWORK inline
#endif
