#include <algorithm>
#include <cstddef>

#include "backends/mpi/driver.h"
#include "util/error.h"

namespace libddp::mpi {
namespace {

constexpr std::int64_t kLookMs = 50;

}  // namespace

Pending::Pending(Driver& driver, Start start, std::shared_ptr<const void> memory)
    : driver_(&driver), batch_(std::make_shared<Batch>(std::move(start), std::move(memory))) {
    driver.post(batch_);
}

Pending& Pending::operator=(Pending&& other) noexcept {
    give_up();
    driver_ = other.driver_;
    batch_ = std::move(other.batch_);
    return *this;
}

void ask_program(const ddp_backend_host& host) {
    const bool can_ask = host.struct_size > offsetof(ddp_backend_host, interrupted) && host.interrupted;
    if (can_ask && host.interrupted(host.handle)) fail(DDP_ERROR_INTERRUPTED, "the program ended the wait");
}

void Pending::wait(const Deadline& deadline, const std::atomic<bool>& aborted, const ddp_backend_host* host) {
    const auto next_look = [&] {
        return host ? Deadline::after_ms(std::min(kLookMs, deadline.remaining_ms())) : deadline;
    };
    while (!driver_->wait(batch_, next_look(), aborted)) {
        if (aborted) fail(DDP_ERROR_ABORTED, "the group was aborted");
        if (deadline.expired()) fail(DDP_ERROR_TIMEOUT, "the operation did not finish before its timeout");
        if (host) ask_program(*host);
    }
    const BatchPtr batch = std::move(batch_);
    if (!batch->error.ok()) throw Error(batch->error);
}

void Pending::give_up() {
    if (batch_) driver_->give_up(std::move(batch_));
}

}  // namespace libddp::mpi
