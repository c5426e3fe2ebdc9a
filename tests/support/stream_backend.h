// A backend that takes memory of the fake devices only, and enqueues: "streams". Ranks are threads
// of one process. An operation that it enqueues meets the other ranks on the stream itself, as
// NCCL's kernels do.
#pragma once

#include <functional>

#include "ddp/status.h"

// Registers it once; call it before creating groups.
void register_stream_backend();
// From now on its `check` returns this in every group that exists.
void fail_stream_backend(ddp_status status);
// From now on nobody returns from its `run` before the group is aborted, until this is called with
// false.
void hold_stream_backend(bool held);
// From now on its `abort` calls this first, with the rank. Null: nothing.
void on_stream_backend_abort(std::function<void(int rank)> call);
// How often its `run` was called, ever.
long stream_backend_runs();
// The same, by threads of the program's.
long stream_backend_runs_on_callers();
