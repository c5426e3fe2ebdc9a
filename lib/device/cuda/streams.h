// Streams and events: functions of ddp_device_module.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device_module.h"

namespace libddp::cuda {

ddp_status stream_create(std::int32_t device, void** stream, ddp_device_failure* failure);
void stream_destroy(std::int32_t device, void* stream);
ddp_status stream_capturing(std::int32_t device, void* stream, std::int32_t* capturing, ddp_device_failure* failure);
ddp_status event_create(std::int32_t device, void** event, ddp_device_failure* failure);
void event_destroy(std::int32_t device, void* event);
ddp_status event_record(std::int32_t device, void* event, void* stream, ddp_device_failure* failure);
ddp_status stream_wait(std::int32_t device, void* stream, void* event, ddp_device_failure* failure);
ddp_status event_query(std::int32_t device, void* event, std::int32_t* done, ddp_device_failure* failure);
ddp_status event_wait(std::int32_t device, void* event, std::int64_t timeout_ns, std::int32_t* done,
                      ddp_device_failure* failure);

}  // namespace libddp::cuda
