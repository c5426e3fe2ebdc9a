// Batches of calls of MPI, and the waits for them.
#include "backends/mpi/driver.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "util/error.h"

namespace libddp::mpi {
namespace {

constexpr std::int64_t kLookMs = 50;

template <class Body>
void noting_errors(Batch& batch, Body body) noexcept {
    try {
        require_running();
        body();
    } catch (...) {
        batch.error = caught();
    }
}

}  // namespace

void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int size = 0;
    if (MPI_Error_string(code, text, &size) != MPI_SUCCESS) size = 0;
    fail(DDP_ERROR_UNAVAILABLE, call,
         " failed: ", std::string(text, static_cast<std::size_t>(size)));
}

void require_running() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized)
        fail(DDP_ERROR_INVALID_STATE,
             "the program has called MPI_Finalize; create and use groups of the backend mpi before "
             "that");
}

bool begin(Batch& batch) noexcept {
    noting_errors(batch, [&] { batch.start(batch.requests); });
    return batch.error.ok();
}

bool belongs_to_mpi(const Batch& batch) {
    return !batch.error.ok() && !batch.requests.empty();
}

bool poll(Batch& batch) noexcept {
    if (batch.requests.empty()) return true;
    int complete = 0;
    noting_errors(batch, [&] {
        batch.statuses.resize(batch.requests.size());
        const int code = MPI_Testall(static_cast<int>(batch.requests.size()), batch.requests.data(),
                                     &complete, batch.statuses.data());
        if (code == MPI_ERR_IN_STATUS)
            for (const MPI_Status& status : batch.statuses)
                if (status.MPI_ERROR != MPI_ERR_PENDING)
                    check(status.MPI_ERROR, "an operation of MPI");
        check(code, "MPI_Testall");
    });
    return complete || !batch.error.ok();
}

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
    const bool can_ask =
        host.struct_size > offsetof(ddp_backend_host, interrupted) && host.interrupted;
    if (can_ask && host.interrupted(host.handle))
        fail(DDP_ERROR_INTERRUPTED, "the program ended the wait");
}

void Pending::wait(const Deadline& deadline, const std::atomic<bool>& aborted,
                   const ddp_backend_host* host) {
    const auto next_look = [&] {
        return host ? Deadline::after_ms(std::min(kLookMs, deadline.remaining_ms())) : deadline;
    };
    while (!driver_->wait(batch_, next_look(), aborted)) {
        if (aborted) fail(DDP_ERROR_ABORTED, "the group was aborted");
        if (deadline.expired())
            fail(DDP_ERROR_TIMEOUT, "the operation did not finish before its timeout");
        if (host) ask_program(*host);
    }
    const BatchPtr batch = std::move(batch_);
    if (!batch->error.ok()) throw Error(batch->error);
}

void Pending::give_up() {
    if (batch_) driver_->give_up(std::move(batch_));
}

}  // namespace libddp::mpi
