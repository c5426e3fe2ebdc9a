// The door to NCCL: the table of C functions that libddp finds in libddp-cuda.so.
#include "ddp/backend.h"

#include "backends/common/adapter.h"
#include "backends/nccl/transport.h"
#include "device/cuda/check.h"

namespace libddp::cuda {
namespace {

using Adapter = backend::Adapter<Transport>;

ddp_status allocate(void* handle, std::size_t bytes, ddp_device device, void** memory, ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { *memory = Adapter::of(handle).allocate(bytes, device); });
}

void deallocate(void* handle, void* memory) {
    ddp_backend_failure ignored{};
    Adapter::guarded(&ignored, [&] { Adapter::of(handle).deallocate(memory); });
}

ddp_status check_enqueued(void* handle, ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { Adapter::of(handle).check_enqueued(); });
}

constexpr ddp_backend kBackend = {
    sizeof(ddp_backend),
    DDP_BACKEND_ABI_VERSION,
    0,
    "nccl",
    Adapter::create,
    Adapter::destroy,
    Adapter::capabilities,
    Adapter::abort,
    Adapter::run,
    nullptr,  // libddp compares ranks over the host
    allocate,
    deallocate,
    nullptr,  // nobody waits in run() anyway
    check_enqueued,
};

}  // namespace
}  // namespace libddp::cuda

extern "C" DDP_API const ddp_backend* ddp_backend_entry(void) {
    return &libddp::cuda::kBackend;
}

extern "C" DDP_API ddp_status ddp_backend_usable(ddp_backend_failure* failure) {
    return libddp::cuda::Adapter::guarded(failure, [] {
        libddp::cuda::device_count();
        libddp::cuda::nccl();
    });
}
