// One group over NCCL.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "backends/common/failure.h"
#include "backends/nccl/communicator.h"
#include "backends/nccl/settings.h"
#include "ddp/backend.h"

namespace libddp::cuda {

// A rank may have parameters on several devices. Its first collective on a device connects that with the device that each
// other rank uses in the same collective.
class NcclTransport {
public:
    explicit NcclTransport(const ddp_backend_host& host);

    std::uint32_t capabilities() const;
    void run(const ddp_collective& collective);
    void check_enqueued();
    void abort();

    // Null where NCCL has no better memory than anybody.
    void* allocate(std::size_t bytes, const ddp_device& device);
    void deallocate(void* memory);

private:
    struct Registered {
        std::shared_ptr<Communicator> communicator;
        void* handle;  // null: not registered
    };

    void dispatch(const ddp_collective& collective, const Deadline& deadline);
    std::shared_ptr<Communicator> on(int device, const Deadline& deadline);
    std::shared_ptr<Communicator> find(int device);

    const ddp_backend_host& host_;
    const Settings settings_;
    backend::Failure failure_;
    std::mutex creating_;  // held while a communicator is created, and so for long
    std::mutex mutex_;     // guards what follows
    std::map<int, std::shared_ptr<Communicator>> communicators_;
    std::map<void*, Registered> registered_;
};

}  // namespace libddp::cuda
