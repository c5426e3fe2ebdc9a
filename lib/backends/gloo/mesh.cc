#include "backends/gloo/mesh.h"

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>

#include "backends/gloo/connect.h"
#include "backends/gloo/loop_ticker.h"
#include "backends/gloo/signals.h"

namespace libddp::gloo_tcp {
namespace {

// Never 0, which means "for ever" to Gloo.
std::chrono::milliseconds remaining(const Deadline& deadline) {
    return std::chrono::milliseconds(std::max<std::int64_t>(1, deadline.remaining_ms()));
}

}  // namespace

Mesh::Mesh(const ddp_backend_host& host, const std::string& address, const Deadline& deadline, int lane)
    : rank_(host.rank),
      size_(host.world_size),
      device_(create_device(address)),
      ticker_(std::make_unique<LoopTicker>(device_)),
      context_(connect_all(host, device_, deadline, lane)) {}

Mesh::~Mesh() {
    poison();
}

BufferPtr Mesh::buffer(void* memory, std::size_t size) {
    BufferPtr made(context_->createUnboundBuffer(memory, size).release(), BufferDeleter{this});
    track(*made);
    return made;
}

BufferPtr Mesh::buffer(const void* memory, std::size_t size) {
    return buffer(const_cast<void*>(memory), size);  // one type serves both directions
}

void BufferDeleter::operator()(Buffer* buffer) const {
    mesh->untrack(*buffer);
    delete buffer;
}

void Mesh::track(Buffer& buffer) {
    const std::lock_guard lock(buffers_mutex_);
    buffers_.insert(&buffer);
}

void Mesh::untrack(Buffer& buffer) {
    const std::lock_guard lock(buffers_mutex_);
    buffers_.erase(&buffer);
}

void Mesh::end_waits() {
    const std::lock_guard lock(buffers_mutex_);
    for (Buffer* buffer : buffers_) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
    }
}

// A receive that times out is what makes Gloo break every pair of a context and wake every operation on it.
// closeConnections() would close the sockets, but leave local operations asleep; and it resets connections, which
// throws away what a peer has yet to receive of an operation that is complete here.
void Mesh::poison() {
    const SigpipeGuard guard;
    const std::lock_guard lock(poison_mutex_);
    if (poisoned_) return;
    poisoned_ = true;
    const LoopTicker::Ticking ticking(*ticker_);
    // The receive only times out on a pair that is whole; so when a peer is gone, the next one has to do. Once one has
    // timed out all pairs are broken, and the others throw at once.
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) time_out_one_receive(peer);
    // Gloo forgets a send whose write fails on the loop's thread: nothing but this ends the wait for it.
    end_waits();
    for (Mesh* other : others_) other->poison();
}

void Mesh::time_out_one_receive(int peer) {
    static constexpr std::uint64_t kUnusedTag = kOwnTags | (std::uint64_t{1} << 48);
    try {
        char nothing = 0;
        const auto receive = context_->createUnboundBuffer(&nothing, 1);
        receive->recv(peer, kUnusedTag, 0, 1);
        receive->waitRecv(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
        // That is the purpose.
    }
}

void wait_recv(Buffer& buffer, const Deadline& deadline) {
    if (!buffer.waitRecv(remaining(deadline))) throw std::runtime_error("a connection broke");
}

void wait_send(Buffer& buffer, const Deadline& deadline) {
    if (!buffer.waitSend(remaining(deadline))) throw std::runtime_error("a connection broke");
}

}  // namespace libddp::gloo_tcp
