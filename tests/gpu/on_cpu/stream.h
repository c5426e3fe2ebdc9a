// The streams of CUDA's runtime, played by those of the fake devices.
#pragma once

#include "support/fake_device/stream.h"

namespace on_cpu {

// The legacy default stream for null; there is one for all devices. The calling thread's for the
// handle of cudaStreamPerThread.
fake::Stream& stream_of(void* stream);

}  // namespace on_cpu
