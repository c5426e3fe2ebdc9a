// A backend's C functions as an object: owns one transport, translates its failures into errors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ddp/backend.h"
#include "rendezvous/store.h"
#include "util/error.h"
#include "util/mutex.h"

namespace libddp {

class Transport {
public:
    struct Setup {
        std::shared_ptr<Store> store;  // null when alone
        std::string prefix;
        std::string group_name;
        std::string options;
        std::int32_t rank = 0;
        std::int32_t world = 1;
        std::int64_t timeout_ms = 0;
        std::uint32_t flags = 0;
        // why a wait in the store should end early; ok: it should not
        std::function<ErrorInfo()> verdict;
    };

    // Connects. backend: null takes what suits the ranks' hosts. Throws.
    Transport(const ddp_backend* backend, Setup setup);
    ~Transport();
    Transport(const Transport&) = delete;
    Transport& operator=(const Transport&) = delete;

    const char* name() const { return backend_->name; }
    bool has(std::uint32_t capability) const { return (capabilities_ & capability) != 0; }
    void abort() { backend_->abort(transport_); }
    // The last call but for deallocate(). The other ranks hear that this rank has gone, although
    // memory may keep the transport.
    void leave();

    void run(const ddp_collective& collective);
    // Whether the backend has an opinion on where a collective should run.
    bool has_ready() const;
    // True: run it at once, on this thread. See ddp_backend.ready.
    bool ready(const ddp_collective& collective, std::int64_t patience_ns);
    // Compares signatures. Returns true if equal; otherwise the other rank and what it is about to
    // do.
    bool match(const void* mine, void* theirs, std::size_t size, std::int64_t timeout_ms,
               std::int32_t* rank);
    bool has_memory() const { return backend_->allocate != nullptr; }
    void* allocate(std::size_t bytes,
                   const ddp_device& device);  // null if the backend has no memory of its own
    // Throws what has gone wrong in operations that are enqueued on a device.
    void check_enqueued();
    void deallocate(void* memory);

private:
    struct Host;

    void choose();

    void run_in_parts(ddp_collective collective);
    void run_and_take(ddp_collective collective);
    void run_by_broadcasts(ddp_collective collective);
    bool match_by_allgather(const void* mine, void* theirs, std::size_t size,
                            std::int64_t timeout_ms, std::int32_t* rank);
    void check(ddp_status status, const ddp_backend_failure& failure, std::string_view call,
               const char* what) const;

    const ddp_backend* backend_;
    const Setup setup_;
    std::unique_ptr<Host> host_;
    void* transport_ = nullptr;
    std::uint32_t capabilities_ = 0;
    Mutex memory_mutex_;
};

}  // namespace libddp
