#include "backends/hierarchical/hierarchical_backend.h"

#include "backends/common/adapter.h"
#include "backends/hierarchical/transport.h"

namespace libddp {
namespace {

using Adapter = backend::Adapter<hierarchical::Transport>;

ddp_status allocate(void* handle, std::size_t bytes, ddp_device, void** memory, ddp_backend_failure* failure) {
    return Adapter::guarded(failure, [&] { *memory = Adapter::of(handle).allocate(bytes); });
}

void deallocate(void* handle, void* memory) {
    ddp_backend_failure ignored{};
    Adapter::guarded(&ignored, [&] { Adapter::of(handle).deallocate(memory); });
}

constexpr ddp_backend kBackend = {
    sizeof(ddp_backend),
    DDP_BACKEND_ABI_VERSION,
    0,
    "hierarchical",
    Adapter::create,
    Adapter::destroy,
    Adapter::capabilities,
    Adapter::abort,
    Adapter::run,
    nullptr,  // run() compares
    allocate,
    deallocate,
    nullptr,  // the wire takes longer than handing over
    nullptr,
};

}  // namespace

const ddp_backend* hierarchical_backend() {
    return &kBackend;
}

}  // namespace libddp
