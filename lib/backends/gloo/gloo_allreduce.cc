#include <gloo/allreduce.h>
#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <vector>

#include "backends/gloo/operations.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"

namespace libddp::gloo_tcp {
namespace {

// Gloo wants a type only for its size.
template <std::size_t kSize>
struct Element {
    char bytes[kSize];
};

// Gloo owns the buffers it is given; the mesh must know them to end waits on them.
class Tracked {
public:
    explicit Tracked(Mesh& mesh) : mesh_(mesh) {}
    ~Tracked() {
        for (Buffer* buffer : buffers_) mesh_.untrack(*buffer);
    }
    Tracked(const Tracked&) = delete;
    Tracked& operator=(const Tracked&) = delete;

    std::unique_ptr<Buffer> make(const void* memory, std::size_t size) {
        // Gloo takes inputs as non-const and does not write them.
        auto buffer = mesh_.context()->createUnboundBuffer(const_cast<void*>(memory), size);
        mesh_.track(*buffer);
        buffers_.push_back(buffer.get());
        return buffer;
    }

private:
    Mesh& mesh_;
    std::vector<Buffer*> buffers_;
};

template <std::size_t kSize>
void set_memory(::gloo::AllreduceOptions& options, const ddp_collective& c, Tracked& tracked) {
    using T = Element<kSize>;
    if (c.send != c.recv) options.setInput<T>(tracked.make(c.send, c.count * kSize));
    options.setOutput<T>(tracked.make(c.recv, c.count * kSize));
}

void set_memory(::gloo::AllreduceOptions& options, const ddp_collective& c, Tracked& tracked) {
    switch (dtype_size(c.dtype)) {
        case 1:
            return set_memory<1>(options, c, tracked);
        case 2:
            return set_memory<2>(options, c, tracked);
        case 4:
            return set_memory<4>(options, c, tracked);
        case 8:
            return set_memory<8>(options, c, tracked);
        default:
            return set_memory<16>(options, c, tracked);
    }
}

}  // namespace

void gloo_allreduce(Mesh& mesh, Watchdog& watchdog, Algorithm algorithm, const ddp_collective& c,
                    const Deadline& deadline) {
    ::gloo::AllreduceOptions options(mesh.context());
    Tracked tracked(mesh);  // gone before the options, which own the buffers
    set_memory(options, c, tracked);
    options.setReduceFunction(
        [dtype = c.dtype, op = c.op](void* out, const void* a, const void* b, std::size_t count) {
            const void* inputs[] = {a, b};
            cpu::reduce(out, inputs, 2, count, dtype, op, 1);
        });
    options.setAlgorithm(algorithm == Algorithm::kBcube
                             ? ::gloo::AllreduceOptions::Algorithm::BCUBE
                             : ::gloo::AllreduceOptions::Algorithm::RING);
    options.setTag(mesh.new_gloo_tag());
    options.setTimeout(
        std::chrono::milliseconds(std::max<std::int64_t>(1, deadline.remaining_ms())));
    watchdog.arm(deadline);
    try {
        ::gloo::allreduce(options);
    } catch (...) {
        watchdog.disarm();
        throw;
    }
    if (watchdog.disarm()) fail(DDP_ERROR_TIMEOUT, "the operation ended only after its timeout");
    // Gloo ignores that a wait was ended, and then returns as if nothing had happened.
    if (mesh.poisoned()) throw std::runtime_error("a connection broke");
}

}  // namespace libddp::gloo_tcp
