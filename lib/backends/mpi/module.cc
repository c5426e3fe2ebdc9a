// The module's door: the table of C functions that libddp finds in libddp-mpi.so.
#include "backends/common/adapter.h"
#include "backends/mpi/transport.h"
#include "ddp/backend.h"

namespace {

using Adapter = libddp::backend::Adapter<libddp::mpi::Transport>;

constexpr ddp_backend kBackend = {
    sizeof(ddp_backend),
    DDP_BACKEND_ABI_VERSION,
    0,
    "mpi",
    Adapter::create,
    Adapter::destroy,
    Adapter::capabilities,
    Adapter::abort,
    Adapter::run,
    nullptr,  // libddp compares signatures with an allgather
    nullptr,  // buckets are ordinary memory: data goes through staging anyway
    nullptr,
    nullptr,  // what takes a round trip is no work for the thread that computes
    nullptr,
};

}  // namespace

extern "C" DDP_API const ddp_backend* ddp_backend_entry(void) {
    return &kBackend;
}
