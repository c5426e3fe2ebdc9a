// A second way between the same ranks, for a part of a long message.
#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backends/gloo/mesh.h"
#include "backends/gloo/operations.h"
#include "ddp/backend.h"
#include "util/deadline.h"

namespace libddp::gloo_tcp {

// One mesh has one thread that moves bytes and one that reduces. While they wait for the peer's, the processors idle and
// the wire is empty. A side mesh has connections and both threads of its own.
class SideMesh {
public:
    // Poisons `main` when its part of an operation fails, and is poisoned with it. Both live until the operation ends.
    SideMesh(const ddp_backend_host& host, const std::string& address, const Deadline& deadline, int number,
             Mesh& main);
    ~SideMesh();
    SideMesh(const SideMesh&) = delete;
    SideMesh& operator=(const SideMesh&) = delete;

    // Allreduces a part on the thread of this mesh.
    void start(const ddp_collective& part, const Deadline& deadline);
    // Waits for it, and throws what it threw.
    void finish();

private:
    void loop(const std::stop_token& stop);
    std::exception_ptr run(const ddp_collective& part, const Deadline& deadline);

    Mesh& main_;
    Mesh mesh_;
    backend::ReceiveMemory memory_;
    std::mutex mutex_;
    std::condition_variable_any changed_;
    const ddp_collective* part_ = nullptr;  // null: nothing to do
    const Deadline* deadline_ = nullptr;
    std::exception_ptr error_;
    std::jthread thread_;
};

using SideMeshes = std::vector<std::unique_ptr<SideMesh>>;

// direct_allreduce, with a long message divided among the main mesh and the side meshes.
void allreduce_over_meshes(Mesh& main, backend::ReceiveMemory& memory, const SideMeshes& sides, const ddp_collective& c,
                           const Deadline& deadline);

}  // namespace libddp::gloo_tcp
