// Makes Gloo's event loop turn at once.
#pragma once

#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>

#include <memory>

#include "util/descriptors.h"

namespace libddp::gloo_tcp {

// Closing a connection from outside the loop's thread waits for the loop's next turn, which comes with the next event
// or after 10 ms: for 16 peers too long to keep the promise that an abort takes less than 100 ms. While this handler's
// descriptor is readable, the loop turns without pause.
class LoopTicker final : private ::gloo::transport::tcp::Handler {
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

    std::shared_ptr<::gloo::transport::tcp::Device> device_;  // null if the device is of another kind
    const Descriptor event_;
};

}  // namespace libddp::gloo_tcp
