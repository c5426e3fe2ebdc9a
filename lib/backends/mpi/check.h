// Return codes of MPI as errors.
#pragma once

#include <mpi.h>

namespace libddp::mpi {

// Throws UNAVAILABLE with MPI's own words, unless `code` says success.
void check(int code, const char* call);

// Throws INVALID_STATE if MPI has been finalized: the program may do that although groups still use it, and any other call
// would then end the process.
void require_running();

}  // namespace libddp::mpi
