// One communicator of NCCL: this rank's device and those of the others.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "backends/nccl/library.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::cuda {

class Communicator {
public:
    // Waits, 10 s at most, for communicators of this process that are ending. Then meets the other
    // ranks, which create theirs with the same `number`, and waits for them until the deadline.
    // `look` throws when there is a reason to stop waiting; it is called again and again by every
    // function that waits.
    Communicator(const ddp_backend_host& host, int number, int device, const Deadline& deadline,
                 std::function<void()> look);
    // Ends it, in the background if that takes long. Does not wait for other ranks.
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    int device() const { return device_; }
    // Whether two ranks use one GPU.
    bool shares_gpu() const { return shares_gpu_; }

    // An operation is about to become part of a graph. NCCL ends no communicator as long as there is
    // such a graph, so from now on nobody waits for the end.
    void note_graph();

    // Calls functions of NCCL, whose result `calls` returns, and waits until NCCL has enqueued what
    // they ask for. Throws. On the thread whose current device is this one's. name: for messages.
    void enqueue(const char* name, const Deadline& deadline,
                 const std::function<ncclResult_t(ncclComm_t)>& calls);
    // Throws what has gone wrong in operations that are enqueued, or in the connections. Does not
    // wait. Any thread.
    void check_enqueued();
    // Ends what is enqueued, in the background; returns at once. Any thread, any number of times.
    void abort();

private:
    struct Shared;

    void meet(const ddp_backend_host& host, int number, const Deadline& deadline, ncclUniqueId& id);
    void settle(ncclResult_t result, const char* name, const Deadline& deadline);
    void end(bool abort);

    const int device_;
    bool shares_gpu_ = false;
    const std::function<void()> look_;
    const std::shared_ptr<Shared> shared_;  // with the thread that ends it
};

}  // namespace libddp::cuda
