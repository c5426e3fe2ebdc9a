#include "modules/mpi/driver.h"

namespace libddp::mpi {

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

void Pending::wait(const Deadline& deadline, const std::atomic<bool>& aborted) {
    if (!driver_->wait(batch_, deadline, aborted)) {
        if (aborted) fail(DDP_ERROR_ABORTED, "the group was aborted");
        fail(DDP_ERROR_TIMEOUT, "the operation did not finish before its timeout");
    }
    const BatchPtr batch = std::move(batch_);
    if (!batch->error.ok()) throw Error(batch->error);
}

void Pending::give_up() {
    if (batch_) driver_->give_up(std::move(batch_));
}

}  // namespace libddp::mpi
