// A second way between the same ranks, for a part of a long message.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backends/gloo/mesh.h"
#include "backends/gloo/operations.h"
#include "ddp/backend.h"
#include "device/scratch.h"
#include "util/deadline.h"
#include "util/mutex.h"

namespace libddp::gloo_tcp {

// One mesh has one thread that moves bytes and one that reduces. While they wait for the peer's,
// the processors idle and the wire is empty. A side mesh has connections and both threads of its
// own.
class SideMesh {
public:
    // Poisons `main` when its part of an operation fails, and is poisoned with it. Both live until
    // the operation ends.
    SideMesh(const ddp_backend_host& host, const std::string& address, const Deadline& deadline,
             int number, Mesh& main);
    ~SideMesh();
    SideMesh(const SideMesh&) = delete;
    SideMesh& operator=(const SideMesh&) = delete;

    // Allreduces a part on the thread of this mesh.
    void start(const ddp_collective& part, const Deadline& deadline);
    // Waits for it, and throws what it threw.
    void finish();

private:
    void loop();
    void stop();
    std::exception_ptr run(const ddp_collective& part, const Deadline& deadline);

    Mesh& main_;
    Mesh mesh_;
    ScratchMemory memory_;
    Mutex mutex_;
    Condition changed_;
    const ddp_collective* part_ DDP_GUARDED_BY(mutex_) = nullptr;  // null: nothing to do
    const Deadline* deadline_ DDP_GUARDED_BY(mutex_) = nullptr;
    std::exception_ptr error_ DDP_GUARDED_BY(mutex_);
    bool stop_ DDP_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

using SideMeshes = std::vector<std::unique_ptr<SideMesh>>;

// direct_allreduce, with a long message divided among the main mesh and the side meshes.
void allreduce_over_meshes(Mesh& main, ScratchMemory& memory, const SideMeshes& sides,
                           const ddp_collective& c, const Deadline& deadline);

}  // namespace libddp::gloo_tcp
