// The connections between this rank and all others, and the primitive operations on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "ddp/backend.h"
#include "util/deadline.h"
#include "util/mutex.h"

namespace gloo {
class Context;
namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport
}  // namespace gloo

namespace libddp::gloo_tcp {

using Buffer = ::gloo::transport::UnboundBuffer;

class Mesh;

// Ends the mesh's interest in a buffer, then deletes it.
struct BufferDeleter {
    Mesh* mesh = nullptr;
    void operator()(Buffer* buffer) const;
};
using BufferPtr = std::unique_ptr<Buffer, BufferDeleter>;

class Mesh {
public:
    // Listens on `address` and connects with every rank before the deadline. number: of this mesh
    // among those between these ranks.
    Mesh(const ddp_backend_host& host, const std::string& address, const Deadline& deadline,
         int number = 0);
    ~Mesh();
    Mesh(const Mesh&) = delete;
    Mesh& operator=(const Mesh&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    const std::shared_ptr<::gloo::Context>& context() const { return context_; }

    // Memory that Gloo may send from or receive into. Several operations may be under way on one
    // buffer, in each direction; waits count completions and do not say which one completed, except
    // that operations with one peer and tag are in order.
    BufferPtr buffer(void* memory, std::size_t size);
    BufferPtr buffer(const void* memory, std::size_t size);

    // For a buffer that this object did not make: waits on it end when the mesh is poisoned.
    // Between the two calls it must live.
    void track(Buffer& buffer);
    void untrack(Buffer& buffer);

    // A tag that nothing used before. Gloo corrupts data when operations under way share one.
    std::uint64_t new_tag() { return kOwnTags | next_tag_++; }
    // The same for Gloo's own collectives, which take 32 bits.
    std::uint32_t new_gloo_tag() { return next_gloo_tag_++; }

    // Closes every connection and makes every operation under way on this rank throw. Any thread,
    // any number of times; returns when it is done. Peers notice at once.
    void poison();
    bool poisoned() const { return poisoned_; }
    // From now on the other mesh, which must live as long, is poisoned with this one. Before
    // anything is poisoned.
    void also_poison(Mesh& other) { others_.push_back(&other); }
    // Ends one wait in each direction on every buffer.
    void end_waits();

private:
    class LoopTicker;

    // Gloo's own collectives keep tags below 0x09 in the upper byte.
    static constexpr std::uint64_t kOwnTags = std::uint64_t{0x40} << 56;

    void time_out_one_receive(int peer);

    const int rank_;
    const int size_;
    std::uint64_t next_tag_ = 0;
    std::uint32_t next_gloo_tag_ = 0;
    std::shared_ptr<::gloo::transport::Device> device_;
    std::unique_ptr<LoopTicker> ticker_;
    std::shared_ptr<::gloo::Context> context_;
    Mutex poison_mutex_;
    std::atomic<bool> poisoned_{false};
    std::vector<Mesh*> others_;
    Mutex buffers_mutex_;
    std::unordered_set<Buffer*> buffers_ DDP_GUARDED_BY(buffers_mutex_);
};

// Wait for one completion. They throw what Gloo throws when the deadline passes or a connection
// breaks; either way this rank's connections are then of no more use.
void wait_recv(Buffer& buffer, const Deadline& deadline);
void wait_send(Buffer& buffer, const Deadline& deadline);

}  // namespace libddp::gloo_tcp
