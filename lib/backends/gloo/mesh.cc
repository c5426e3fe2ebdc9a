#include "backends/gloo/mesh.h"

#include <gloo/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <stdexcept>

#include "backends/gloo/connect.h"
#include "backends/gloo/signals.h"
#include "util/descriptors.h"

namespace libddp::gloo_tcp {
namespace {

// Never 0, which means "for ever" to Gloo.
std::chrono::milliseconds remaining(const Deadline& deadline) {
    return std::chrono::milliseconds(std::max<std::int64_t>(1, deadline.remaining_ms()));
}

}  // namespace

// Closing a connection from outside the loop's thread waits for the loop's next iteration, which
// comes with the next event or after 10 ms: for 16 peers too long to keep the promise that an abort
// takes less than 100 ms. While this handler's descriptor is readable, the loop iterates without
// pause.
class Mesh::LoopTicker final : private ::gloo::transport::tcp::Handler {
public:
    explicit LoopTicker(const std::shared_ptr<::gloo::transport::Device>& device);
    ~LoopTicker() override;
    LoopTicker(const LoopTicker&) = delete;
    LoopTicker& operator=(const LoopTicker&) = delete;

    class Ticking {
    public:
        explicit Ticking(LoopTicker& ticker) : ticker_(ticker) { ticker_.start(); }
        ~Ticking() { ticker_.stop(); }
        Ticking(const Ticking&) = delete;
        Ticking& operator=(const Ticking&) = delete;

    private:
        LoopTicker& ticker_;
    };

private:
    void handleEvents(int events) override;
    void start();
    void stop();

    // null if the device is of another kind
    std::shared_ptr<::gloo::transport::tcp::Device> device_;
    const Descriptor event_;
};

Mesh::LoopTicker::LoopTicker(const std::shared_ptr<::gloo::transport::Device>& device)
    : device_(std::dynamic_pointer_cast<::gloo::transport::tcp::Device>(device)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) cannot_start("Gloo", errno);
    if (device_) device_->registerDescriptor(event_.get(), EPOLLIN, this);
}

Mesh::LoopTicker::~LoopTicker() {
    if (device_) device_->unregisterDescriptor(event_.get(), this);
}

// Nothing to do: that the loop has iterated is all.
void Mesh::LoopTicker::handleEvents(int) {}

void Mesh::LoopTicker::start() {
    eventfd_write(event_.get(), 1);
}

void Mesh::LoopTicker::stop() {
    eventfd_t value = 0;
    eventfd_read(event_.get(), &value);
}

Mesh::Mesh(const ddp_backend_host& host, const std::string& address, const Deadline& deadline,
           int number)
    : rank_(host.rank),
      size_(host.world_size),
      device_(create_device(address)),
      ticker_(std::make_unique<LoopTicker>(device_)),
      context_(connect_all(host, device_, deadline, number)) {}

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
    const Lock lock(buffers_mutex_);
    buffers_.insert(&buffer);
}

void Mesh::untrack(Buffer& buffer) {
    const Lock lock(buffers_mutex_);
    buffers_.erase(&buffer);
}

void Mesh::end_waits() {
    const Lock lock(buffers_mutex_);
    for (Buffer* buffer : buffers_) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
    }
}

// A receive that times out is what makes Gloo break every pair of a context and wake every
// operation on it. closeConnections() would close the sockets, but leave local operations asleep;
// and it resets connections, which throws away what a peer has yet to receive of an operation that
// is complete here.
void Mesh::poison() {
    const SigpipeGuard guard;
    const Lock lock(poison_mutex_);
    if (poisoned_) return;
    poisoned_ = true;
    const LoopTicker::Ticking ticking(*ticker_);
    // The receive only times out on a pair that is whole; so when a peer is gone, the next one has
    // to do. Once one has timed out all pairs are broken, and the others throw at once.
    for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) time_out_one_receive(peer);
    // Gloo forgets a send whose write fails on the loop's thread: nothing but this ends the wait
    // for it.
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
