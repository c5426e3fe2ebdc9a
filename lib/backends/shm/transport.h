// One rank's end of a group whose ranks all run on one host.
#pragma once

#include <cstdint>
#include <memory>

#include "backends/shm/team.h"
#include "ddp/backend.h"

namespace libddp::shm {

// The first failure ends the transport: every later call throws the same error.
class ShmTransport {
public:
    explicit ShmTransport(const ddp_backend_host& host);

    std::uint32_t capabilities() const;
    void run(const ddp_collective& c);
    bool ready(const ddp_collective& c, std::int64_t patience_ns);
    void abort();  // any thread
    void leave();
    void* allocate(std::size_t bytes, ddp_device) {
        return team_ ? team_->arena().allocate(bytes) : nullptr;
    }
    void deallocate(void* memory) { team_->arena().deallocate(memory); }

private:
    template <class Operation>
    void guarded(Operation operation);

    backend::Failure failure_;
    std::unique_ptr<Team> team_;  // null in a world of one
};

}  // namespace libddp::shm

namespace libddp {

// The built-in backend "shm": ranks of one host, through memory that they share.
const ddp_backend* shm_backend();

}  // namespace libddp
