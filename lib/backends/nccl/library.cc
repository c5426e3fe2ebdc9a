#include "backends/nccl/library.h"

#include <dlfcn.h>

#include "backends/nccl/rank_gpu.h"
#include "util/error.h"

namespace libddp::cuda {
namespace {

constexpr const char* kFile = "libnccl.so.2";
constexpr int kOldest = NCCL_VERSION(2, 19, 0);

Nccl open() {
    void* library = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fail(DDP_ERROR_UNAVAILABLE, "the backend nccl needs ", kFile, ", which does not load (",
             dlerror(), "); install NCCL, or add its folder to LD_LIBRARY_PATH");
    Nccl nccl;
    const auto find = [&](const char* name) {
        void* function = dlsym(library, name);
        if (!function)
            fail(DDP_ERROR_UNAVAILABLE, "the backend nccl needs NCCL ", nccl_version_text(kOldest),
                 " or newer; ", kFile, " has no ", name);
        return function;
    };
#define LIBDDP_NCCL_FIND(name) nccl.name = reinterpret_cast<decltype(&::name)>(find(#name));
    LIBDDP_NCCL_FUNCTIONS(LIBDDP_NCCL_FIND)
#undef LIBDDP_NCCL_FIND
    nccl.ncclGetVersion(&nccl.version);
    if (nccl.version < kOldest)
        fail(DDP_ERROR_UNAVAILABLE, "the backend nccl needs NCCL ", nccl_version_text(kOldest),
             " or newer; ", kFile, " is ", nccl_version_text(nccl.version));
    return nccl;
}

}  // namespace

const Nccl& nccl() {
    // Tried again if it failed: the program may have loaded it meanwhile.
    static const Nccl opened = open();
    return opened;
}

void check(ncclResult_t result, const char* call, ncclComm_t comm) {
    if (result == ncclSuccess) return;
    const char* detail = nccl().ncclGetLastError(comm);
    fail(DDP_ERROR_UNAVAILABLE, call, " failed: ", nccl().ncclGetErrorString(result),
         detail && *detail ? str(" (", detail, ")") : "");
}

}  // namespace libddp::cuda
