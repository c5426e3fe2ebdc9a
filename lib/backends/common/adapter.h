// From a transport written as a C++ class to the C functions of ddp_backend.
#pragma once

#include <map>
#include <memory>

#include "ddp/backend.h"
#include "util/boundary.h"
#include "util/mutex.h"

namespace libddp::backend {

struct NoGuard {};

// BackendTransport: a constructor from ddp_backend_host, run(collective), abort() from any thread,
// capabilities(). It may have match(), allocate() and deallocate(), ready(), check_enqueued() and
// leave(). Whatever it throws becomes a status. Guard: lives on the stack of every call.
template <class BackendTransport, class Guard = NoGuard>
class Adapter {
public:
    static constexpr ddp_backend table(const char* name) {
        ddp_backend table{};
        table.struct_size = sizeof table;
        table.abi_version = DDP_BACKEND_ABI_VERSION;
        table.name = name;
        table.create = [](const ddp_backend_host* host, void** transport,
                          ddp_backend_failure* failure) {
            return guarded(failure, [&] {
                *transport = live().add(std::make_shared<BackendTransport>(*host));
            });
        };
        table.destroy = [](void* handle) {
            [[maybe_unused]] const Guard guard;
            live().take(handle).reset();
        };
        table.capabilities = [](void* handle) { return of(handle).capabilities(); };
        table.abort = [](void* handle) {
            [[maybe_unused]] const Guard guard;
            if (const auto transport = live().find(handle)) transport->abort();
        };
        table.run = run;
        if constexpr (requires { &BackendTransport::match; })
            table.match = [](void* handle, const void* mine, void* theirs, std::size_t size,
                             std::int64_t timeout_ms, std::int32_t* rank,
                             ddp_backend_failure* failure) {
                const ddp_status status =
                    guarded(failure, [&] { of(handle).match(mine, theirs, size, timeout_ms); });
                if (status == DDP_ERROR_MISMATCH) *rank = failure->rank;
                return status;
            };
        if constexpr (requires { &BackendTransport::allocate; }) {
            table.allocate = [](void* handle, std::size_t bytes, ddp_device device, void** memory,
                                ddp_backend_failure* failure) {
                return guarded(failure, [&] { *memory = of(handle).allocate(bytes, device); });
            };
            table.deallocate = [](void* handle, void* memory) {
                ddp_backend_failure ignored{};
                guarded(&ignored, [&] { of(handle).deallocate(memory); });
            };
        }
        if constexpr (requires { &BackendTransport::ready; })
            table.ready = [](void* handle, const ddp_collective* collective,
                             std::int64_t patience_ns, std::int32_t* all_here,
                             ddp_backend_failure* failure) {
                return guarded(failure,
                               [&] { *all_here = of(handle).ready(*collective, patience_ns); });
            };
        if constexpr (requires { &BackendTransport::check_enqueued; })
            table.check = [](void* handle, ddp_backend_failure* failure) {
                return guarded(failure, [&] { of(handle).check_enqueued(); });
            };
        if constexpr (requires { &BackendTransport::leave; })
            table.leave = [](void* handle) {
                [[maybe_unused]] const Guard guard;
                of(handle).leave();
            };
        return table;
    }

    // A call whose errors become a status.
    template <class Call>
    static ddp_status guarded(ddp_backend_failure* failure, Call call) noexcept {
        [[maybe_unused]] const Guard guard;
        return at_boundary(failure, call);
    }

private:
    static BackendTransport& of(void* handle) { return *static_cast<BackendTransport*>(handle); }

    static ddp_status run(void* handle, const ddp_collective* collective,
                          ddp_backend_failure* failure) {
        return guarded(failure, [&] { of(handle).run(*collective); });
    }

    // An abort may come from any thread while another destroys the transport. It works on a
    // reference of its own, or finds nothing.
    class LiveTransports {
    public:
        void* add(std::shared_ptr<BackendTransport> transport) {
            void* handle = transport.get();
            const Lock lock(mutex_);
            transports_.emplace(handle, std::move(transport));
            return handle;
        }
        std::shared_ptr<BackendTransport> find(void* handle) {
            const Lock lock(mutex_);
            const auto it = transports_.find(handle);
            return it == transports_.end() ? nullptr : it->second;
        }
        std::shared_ptr<BackendTransport> take(void* handle) {
            const Lock lock(mutex_);
            const auto node = transports_.extract(handle);
            return node.empty() ? nullptr : std::move(node.mapped());
        }

    private:
        Mutex mutex_;
        std::map<void*, std::shared_ptr<BackendTransport>> transports_ DDP_GUARDED_BY(mutex_);
    };

    static LiveTransports& live() {
        // Never destroyed: an abort may come from another thread while the process exits.
        static LiveTransports& transports = *new LiveTransports;
        return transports;
    }
};

}  // namespace libddp::backend
