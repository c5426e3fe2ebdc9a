// Which device the calling thread works on. A device's primary context is pushed and popped, because going back by cudaSetDevice
// would begin to use the device that a fresh thread has by default, GPU 0: some hundred MB of it for every rank, or an
// error where a GPU may have one process only.
#pragma once

namespace libddp::cuda {

// Makes a device the calling thread's current one while it lives. Throws INVALID_ARGUMENT if there is no such device.
class OnDevice {
public:
    explicit OnDevice(int device);
    ~OnDevice();
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
};

// For calls that need some device, whichever: one that libddp uses already, if there is one.
class OnSomeDevice {
public:
    OnSomeDevice();
    ~OnSomeDevice();
    OnSomeDevice(const OnSomeDevice&) = delete;
    OnSomeDevice& operator=(const OnSomeDevice&) = delete;
    // Whether libddp uses a device.
    explicit operator bool() const { return pushed_; }

private:
    bool pushed_ = false;
};

}  // namespace libddp::cuda
