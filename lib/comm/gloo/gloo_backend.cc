#include "comm/gloo/gloo_backend.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "comm/gloo/signals.h"
#include "comm/gloo/transport.h"
#include "util/error.h"

namespace libddp {
namespace {

using gloo_tcp::SigpipeGuard;
using gloo_tcp::Transport;

// An abort may come from any thread while another destroys the transport. It works on a reference of its own, or finds
// nothing.
class LiveTransports {
public:
    void* add(std::shared_ptr<Transport> transport) {
        void* handle = transport.get();
        const std::lock_guard lock(mutex_);
        transports_.emplace(handle, std::move(transport));
        return handle;
    }
    std::shared_ptr<Transport> find(void* handle) {
        const std::lock_guard lock(mutex_);
        const auto it = transports_.find(handle);
        return it == transports_.end() ? nullptr : it->second;
    }
    std::shared_ptr<Transport> take(void* handle) {
        const std::lock_guard lock(mutex_);
        const auto node = transports_.extract(handle);
        return node.empty() ? nullptr : std::move(node.mapped());
    }

private:
    std::mutex mutex_;
    std::map<void*, std::shared_ptr<Transport>> transports_;
};

LiveTransports& live_transports() {
    // Never destroyed: an abort may come from another thread while the process exits.
    static LiveTransports& transports = *new LiveTransports;
    return transports;
}

ddp_status report(const ErrorInfo& info, ddp_backend_failure* failure) {
    failure->rank = info.rank;
    const std::size_t size = std::min(info.message.size(), sizeof failure->message - 1);
    std::memcpy(failure->message, info.message.data(), size);
    failure->message[size] = '\0';
    return info.code;
}

// Where exceptions become statuses, and SIGPIPE stays inside.
template <class Call>
ddp_status guarded(ddp_backend_failure* failure, Call call) noexcept {
    const SigpipeGuard guard;
    try {
        call();
        return DDP_OK;
    } catch (const Error& error) {
        return report(error.info(), failure);
    } catch (const std::bad_alloc&) {
        return report({DDP_ERROR_OUT_OF_MEMORY, "out of memory"}, failure);
    } catch (const std::exception& error) {
        return report({DDP_ERROR_INTERNAL, str("", error.what())}, failure);
    }
}

Transport& as_transport(void* handle) {
    return *static_cast<Transport*>(handle);
}

ddp_status create(const ddp_backend_host* host, void** transport, ddp_backend_failure* failure) {
    return guarded(failure, [&] { *transport = live_transports().add(std::make_shared<Transport>(*host)); });
}

void destroy(void* handle) {
    const SigpipeGuard guard;
    live_transports().take(handle).reset();
}

std::uint32_t capabilities(void* handle) {
    return as_transport(handle).capabilities();
}

void abort(void* handle) {
    const SigpipeGuard guard;
    if (const auto transport = live_transports().find(handle)) transport->abort();
}

ddp_status run(void* handle, const ddp_collective* collective, ddp_backend_failure* failure) {
    return guarded(failure, [&] { as_transport(handle).run(*collective); });
}

ddp_status match(void* handle, const void* mine, void* theirs, std::size_t size, std::int64_t timeout_ms,
                 std::int32_t* rank, ddp_backend_failure* failure) {
    const ddp_status status = guarded(failure, [&] { as_transport(handle).match(mine, theirs, size, timeout_ms); });
    if (status == DDP_ERROR_MISMATCH) *rank = failure->rank;
    return status;
}

constexpr ddp_backend kBackend = {
    sizeof(ddp_backend),
    DDP_BACKEND_ABI_VERSION,
    0,
    "gloo",
    create,
    destroy,
    capabilities,
    abort,
    run,
    match,
    nullptr,  // buckets are ordinary memory: the kernel copies them into sockets from anywhere
    nullptr,
};

}  // namespace

const ddp_backend* gloo_backend() {
    return &kBackend;
}

}  // namespace libddp
