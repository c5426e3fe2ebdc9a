// NCCL, opened when it is first used: the module loads without it, and a process has one NCCL, also
// beside PyTorch's.
#pragma once

#include <nccl.h>

namespace libddp::cuda {

// Functions of NCCL that are used here. Each is called like the one of the same name.
// clang-format off
#define LIBDDP_NCCL_FUNCTIONS(X) \
    X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) \
    X(ncclCommInitRankConfig) X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommGetAsyncError) \
    X(ncclMemAlloc) X(ncclMemFree) X(ncclCommRegister) X(ncclCommDeregister) \
    X(ncclAllReduce) X(ncclBroadcast) X(ncclAllGather) X(ncclReduceScatter) X(ncclReduce) \
    X(ncclSend) X(ncclRecv) X(ncclGroupStart) X(ncclGroupEnd)
// clang-format on

struct Nccl {
#define LIBDDP_NCCL_MEMBER(name) decltype(&::name) name = nullptr;
    LIBDDP_NCCL_FUNCTIONS(LIBDDP_NCCL_MEMBER)
#undef LIBDDP_NCCL_MEMBER
    int version = 0;  // 22809 is 2.28.9
};

// Throws UNAVAILABLE, saying why: libnccl.so.2 does not load, or is too old.
const Nccl& nccl();

// Throws UNAVAILABLE for anything but success; the reason is NCCL's own words. comm may be null.
void check(ncclResult_t result, const char* call, ncclComm_t comm);

}  // namespace libddp::cuda
