#include "backends/gloo/loop_ticker.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

namespace libddp::gloo_tcp {

LoopTicker::LoopTicker(const std::shared_ptr<::gloo::transport::Device>& device)
    : device_(std::dynamic_pointer_cast<::gloo::transport::tcp::Device>(device)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) cannot_start("Gloo", errno);
    if (device_) device_->registerDescriptor(event_.get(), EPOLLIN, this);
}

LoopTicker::~LoopTicker() {
    if (device_) device_->unregisterDescriptor(event_.get(), this);
}

// Nothing to do: that the loop turned is all.
void LoopTicker::handleEvents(int) {}

void LoopTicker::start() {
    eventfd_write(event_.get(), 1);
}

void LoopTicker::stop() {
    eventfd_t value = 0;
    eventfd_read(event_.get(), &value);
}

}  // namespace libddp::gloo_tcp
