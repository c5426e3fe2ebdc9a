#include "backends/mpi/check.h"

#include <string>

#include "util/error.h"

namespace libddp::mpi {

void check(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int size = 0;
    if (MPI_Error_string(code, text, &size) != MPI_SUCCESS) size = 0;
    fail(DDP_ERROR_UNAVAILABLE, call, " failed: ", std::string(text, static_cast<std::size_t>(size)));
}

void require_running() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized)
        fail(DDP_ERROR_INVALID_STATE,
             "the program has called MPI_Finalize; create and use groups of the backend mpi before that");
}

}  // namespace libddp::mpi
