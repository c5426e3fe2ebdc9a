// Devices other than the CPU: which there are, and what kind of memory a pointer names. stream.h
// has the operations on one.
//
// Nothing here is on the way of a gradient in CPU memory.
#pragma once

#include <cstdint>
#include <string>

#include "device/device_module.h"

namespace libddp {

inline bool is_cpu(const ddp_device& device) {
    return device.kind == DDP_DEVICE_CPU;
}
inline bool same_device(const ddp_device& a, const ddp_device& b) {
    return a.kind == b.kind && a.index == b.index;
}

// "cuda:1", or "cpu".
std::string device_name(const ddp_device& device);

// Loads the module of a kind of device other than the CPU, at the first call. Throws UNSUPPORTED,
// saying where it looked for the module and why it cannot be used.
const ddp_device_module& device_module(ddp_device_kind kind);

// Another function that the module of this kind exports. Throws as device_module().
void* device_module_entry(ddp_device_kind kind, const char* entry);

// How many there are; the CPU is one. Throws UNAVAILABLE with the reason if there is none, or
// UNSUPPORTED without a module.
std::int32_t device_count(ddp_device_kind kind);
// Throws as device_count(), or UNSUPPORTED, unless there is this device. `what` begins the message.
void require_device(const ddp_device& device, const std::string& what);

// Which device a pointer belongs to: the CPU unless a module that is loaded knows better.
ddp_device device_of(const void* pointer);

// Calls a function of a module; what it returns becomes an error "cuda:1, WHAT: ...".
template <class Function, class... Arguments>
void call_device(const ddp_device& device, const char* what, Function function,
                 Arguments... arguments);
[[noreturn]] void fail_device(const ddp_device& device, const char* what, ddp_status status,
                              const ddp_device_failure& failure);

template <class Function, class... Arguments>
void call_device(const ddp_device& device, const char* what, Function function,
                 Arguments... arguments) {
    ddp_device_failure failure;
    failure.message[0] = '\0';
    const ddp_status status = function(arguments..., &failure);
    if (status != DDP_OK) fail_device(device, what, status, failure);
}

}  // namespace libddp
