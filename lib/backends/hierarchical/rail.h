// A rank's connection to the ranks with the same place on the other hosts: a group of another
// backend.
#pragma once

#include <string>

#include "backends/common/topology.h"
#include "ddp/backend.h"

namespace libddp::hierarchical {

class Rail {
public:
    // number: this rank's place on its host. Connects; throws Error.
    Rail(const ddp_backend_host& host, const ddp_backend* backend,
         const backend::Topology& topology, int number);
    ~Rail();
    Rail(const Rail&) = delete;
    Rail& operator=(const Rail&) = delete;

    std::uint32_t capabilities() const { return backend_->capabilities(transport_); }
    // Compares what the hosts are about to do, if `c` says with what, and gathers what it carries.
    // Throws MISMATCH with the other rank.
    void match(const ddp_collective& c) const;
    // After match(). root: a host.
    void run(ddp_collective c) const;
    void abort() const { backend_->abort(transport_); }

private:
    static ddp_status store_set(void* self, const char* key, const void* value, std::size_t size,
                                ddp_backend_failure* failure);
    static ddp_status store_get(void* self, const char* key, std::int64_t timeout_ms, void** value,
                                std::size_t* size, ddp_backend_failure* failure);
    static ddp_status store_delete(void* self, const char* key, ddp_backend_failure* failure);
    static std::int32_t interrupted(void* self);
    static void write_log(void* self, std::int32_t level, const char* message);
    void check(ddp_status status, const ddp_backend_failure& failure) const;

    const ddp_backend_host& outer_;
    const ddp_backend* const backend_;
    const backend::Topology& topology_;
    const int number_;
    const std::string prefix_;
    ddp_backend_host host_{};
    void* transport_ = nullptr;
};

}  // namespace libddp::hierarchical
