// From a transport written as a C++ class to the C functions of ddp_backend.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "ddp/backend.h"
#include "util/error.h"

namespace libddp::backend {

struct NoGuard {};

// BackendTransport: a constructor from ddp_backend_host, run(collective), abort() from any thread, capabilities().
// Whatever it throws becomes a status. Guard: lives on the stack of every call.
template <class BackendTransport, class Guard = NoGuard>
class Adapter {
public:
    static ddp_status create(const ddp_backend_host* host, void** transport, ddp_backend_failure* failure) noexcept {
        return guarded(failure, [&] { *transport = live().add(std::make_shared<BackendTransport>(*host)); });
    }

    static void destroy(void* handle) {
        [[maybe_unused]] const Guard guard;
        live().take(handle).reset();
    }

    static std::uint32_t capabilities(void* handle) { return of(handle).capabilities(); }

    static void abort(void* handle) {
        [[maybe_unused]] const Guard guard;
        if (const auto transport = live().find(handle)) transport->abort();
    }

    static ddp_status run(void* handle, const ddp_collective* collective, ddp_backend_failure* failure) noexcept {
        return guarded(failure, [&] { of(handle).run(*collective); });
    }

    // For transports that have leave().
    static void leave(void* handle) {
        [[maybe_unused]] const Guard guard;
        of(handle).leave();
    }

    // Calls with the same translation of errors, for what only some backends have.
    template <class Call>
    static ddp_status guarded(ddp_backend_failure* failure, Call call) noexcept {
        [[maybe_unused]] const Guard guard;
        try {
            call();
            return DDP_OK;
        } catch (...) {
            return report(caught(), failure);
        }
    }

    static BackendTransport& of(void* handle) { return *static_cast<BackendTransport*>(handle); }

private:
    // An abort may come from any thread while another destroys the transport. It works on a reference of its own, or
    // finds nothing.
    class LiveTransports {
    public:
        void* add(std::shared_ptr<BackendTransport> transport) {
            void* handle = transport.get();
            const std::lock_guard lock(mutex_);
            transports_.emplace(handle, std::move(transport));
            return handle;
        }
        std::shared_ptr<BackendTransport> find(void* handle) {
            const std::lock_guard lock(mutex_);
            const auto it = transports_.find(handle);
            return it == transports_.end() ? nullptr : it->second;
        }
        std::shared_ptr<BackendTransport> take(void* handle) {
            const std::lock_guard lock(mutex_);
            const auto node = transports_.extract(handle);
            return node.empty() ? nullptr : std::move(node.mapped());
        }

    private:
        std::mutex mutex_;
        std::map<void*, std::shared_ptr<BackendTransport>> transports_;
    };

    static LiveTransports& live() {
        // Never destroyed: an abort may come from another thread while the process exits.
        static LiveTransports& transports = *new LiveTransports;
        return transports;
    }

    static ddp_status report(const ErrorInfo& info, ddp_backend_failure* failure) {
        failure->rank = info.rank;
        const std::size_t size = std::min(info.message.size(), sizeof failure->message - 1);
        std::memcpy(failure->message, info.message.data(), size);
        failure->message[size] = '\0';
        return info.code;
    }
};

}  // namespace libddp::backend
