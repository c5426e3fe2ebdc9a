#include "backends/gloo/side_mesh.h"

#include <algorithm>
#include <utility>

#include "kernels/dtype.h"
#include "util/quiet_thread.h"

namespace libddp::gloo_tcp {
namespace {

// A mesh that has less than this for each peer costs more than it brings.
constexpr std::size_t kLeastSlice = std::size_t{256} << 10;
// Parts begin where a cache line does, whatever the type.
constexpr std::size_t kUnit = 64;

ddp_collective part_of(const ddp_collective& c, std::size_t begin, std::size_t count) {
    ddp_collective part = c;
    const std::size_t offset = begin * dtype_size(c.dtype);
    part.send = static_cast<const char*>(c.send) + offset;
    part.recv = static_cast<char*>(c.recv) + offset;
    part.count = count;
    return part;
}

}  // namespace

SideMesh::SideMesh(const ddp_backend_host& host, const std::string& address,
                   const Deadline& deadline, int number, Mesh& main)
    : main_(main), mesh_(host, address, deadline, number) {
    thread_ = quiet_thread([this] { loop(); });
    try {
        main_.also_poison(mesh_);
    } catch (...) {
        stop();
        throw;
    }
}

// Later the main mesh would poison what is no more.
SideMesh::~SideMesh() {
    main_.poison();
    stop();
}

void SideMesh::stop() {
    {
        const Lock lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void SideMesh::start(const ddp_collective& part, const Deadline& deadline) {
    {
        const Lock lock(mutex_);
        part_ = &part;
        deadline_ = &deadline;
    }
    changed_.notify_all();
}

void SideMesh::finish() {
    Lock lock(mutex_);
    changed_.wait(lock, [this]() DDP_REQUIRES(mutex_) { return part_ == nullptr; });
    if (const auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void SideMesh::loop() {
    Lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this]() DDP_REQUIRES(mutex_) { return part_ != nullptr || stop_; });
        if (part_ == nullptr) return;
        const ddp_collective& part = *part_;
        const Deadline& deadline = *deadline_;
        lock.unlock();
        std::exception_ptr error = run(part, deadline);
        lock.lock();
        error_ = std::move(error);
        part_ = nullptr;
        changed_.notify_all();
    }
}

std::exception_ptr SideMesh::run(const ddp_collective& part, const Deadline& deadline) {
    try {
        direct_allreduce(mesh_, memory_, part, deadline);
        return nullptr;
    } catch (...) {
        // The other parts would wait for ranks that wait for this one.
        main_.poison();
        return std::current_exception();
    }
}

void allreduce_over_meshes(Mesh& main, ScratchMemory& memory, const SideMeshes& sides,
                           const ddp_collective& c, const Deadline& deadline) {
    const std::size_t slice = c.count / static_cast<std::size_t>(main.size()) * dtype_size(c.dtype);
    const std::size_t meshes = std::clamp<std::size_t>(slice / kLeastSlice, 1, sides.size() + 1);
    if (meshes == 1) return direct_allreduce(main, memory, c, deadline);

    const std::size_t even = ((c.count + meshes - 1) / meshes + kUnit - 1) / kUnit * kUnit;
    std::vector<ddp_collective> parts;
    for (std::size_t begin = 0; begin < c.count; begin += even)
        parts.push_back(part_of(c, begin, std::min(even, c.count - begin)));
    for (std::size_t i = 1; i < parts.size(); ++i) sides[i - 1]->start(parts[i], deadline);

    std::exception_ptr error;
    try {
        direct_allreduce(main, memory, parts[0], deadline);
    } catch (...) {
        error = std::current_exception();
        main.poison();
    }
    // Nothing of this operation may touch the caller's memory when it returns.
    for (std::size_t i = 1; i < parts.size(); ++i) try {
            sides[i - 1]->finish();
        } catch (...) {
            if (!error) error = std::current_exception();
        }
    if (error) std::rethrow_exception(error);
}

}  // namespace libddp::gloo_tcp
