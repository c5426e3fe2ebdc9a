#include "backends/mpi/batch.h"

#include "backends/mpi/process.h"

namespace libddp::mpi {
namespace {

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
        const int code = MPI_Testall(static_cast<int>(batch.requests.size()), batch.requests.data(), &complete,
                                     batch.statuses.data());
        if (code == MPI_ERR_IN_STATUS)
            for (const MPI_Status& status : batch.statuses)
                if (status.MPI_ERROR != MPI_ERR_PENDING) check(status.MPI_ERROR, "an operation of MPI");
        check(code, "MPI_Testall");
    });
    return complete || !batch.error.ok();
}

}  // namespace libddp::mpi
