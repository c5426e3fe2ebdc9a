#include "backends/gloo/gloo_backend.h"

#include "backends/common/adapter.h"
#include "backends/gloo/signals.h"
#include "backends/gloo/transport.h"

namespace libddp {
namespace {

// SIGPIPE stays inside every call.
using Adapter = backend::Adapter<gloo_tcp::Transport, gloo_tcp::SigpipeGuard>;

ddp_status match(void* handle, const void* mine, void* theirs, std::size_t size, std::int64_t timeout_ms,
                 std::int32_t* rank, ddp_backend_failure* failure) {
    const ddp_status status =
        Adapter::guarded(failure, [&] { Adapter::of(handle).match(mine, theirs, size, timeout_ms); });
    if (status == DDP_ERROR_MISMATCH) *rank = failure->rank;
    return status;
}

constexpr ddp_backend kBackend = {
    sizeof(ddp_backend),
    DDP_BACKEND_ABI_VERSION,
    0,
    "gloo",
    Adapter::create,
    Adapter::destroy,
    Adapter::capabilities,
    Adapter::abort,
    Adapter::run,
    match,
    nullptr,  // buckets are ordinary memory: the kernel copies them into sockets from anywhere
    nullptr,
    nullptr,  // what takes a round trip is no work for the thread that computes
    nullptr,
};

}  // namespace

const ddp_backend* gloo_backend() {
    return &kBackend;
}

void check_gloo_options(const ddp_backend_host& host) {
    gloo_tcp::read_settings(host);
}

}  // namespace libddp
