#include "backends/shm/shm_backend.h"

#include "backends/common/adapter.h"
#include "backends/shm/transport.h"

namespace libddp {
namespace {

using Adapter = backend::Adapter<shm::Transport>;

ddp_status allocate(void* handle, std::size_t bytes, ddp_device, void** memory, ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { *memory = Adapter::of(handle).allocate(bytes); });
}

void deallocate(void* handle, void* memory) {
    ddp_backend_failure ignored{};
    Adapter::guarded(&ignored, [&] { Adapter::of(handle).deallocate(memory); });
}

ddp_status ready(void* handle, const ddp_collective* collective, std::int64_t patience_ns, std::int32_t* all_here,
                 ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { *all_here = Adapter::of(handle).ready(*collective, patience_ns); });
}

constexpr ddp_backend kBackend = {
    sizeof(ddp_backend),
    DDP_BACKEND_ABI_VERSION,
    0,
    "shm",
    Adapter::create,
    Adapter::destroy,
    Adapter::capabilities,
    Adapter::abort,
    Adapter::run,
    nullptr,  // run() compares
    allocate,
    deallocate,
    ready,
    nullptr,
};

}  // namespace

const ddp_backend* shm_backend() {
    return &kBackend;
}

}  // namespace libddp
