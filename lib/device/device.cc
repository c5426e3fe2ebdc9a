#include "device/device.h"

#include <array>
#include <atomic>
#include <cstring>

#include "util/error.h"
#include "util/module.h"
#include "util/mutex.h"

namespace libddp {
namespace {

constexpr std::array<const char*, 2> kNames{"cpu", "cuda"};

const char* kind_name(ddp_device_kind kind) {
    return kind >= 0 && static_cast<std::size_t>(kind) < kNames.size()
               ? kNames[static_cast<std::size_t>(kind)]
               : "?";
}

// By kind; null: not loaded. A pointer releases the module that its entry has made.
std::array<std::atomic<const ddp_device_module*>, kNames.size()> loaded;

// A module of another build might lack functions, or understand them otherwise.
std::string fault_of(const ddp_device_module* module, ddp_device_kind kind) {
    if (!module) return "ddp_device_entry returned NULL";
    if (module->struct_size != sizeof(ddp_device_module) ||
        std::strcmp(module->build, build_identity()) != 0)
        return str("it is of libddp ", module->build, "; this is ", build_identity());
    if (module->kind != kind) return str("it is for devices of kind ", module->kind);
    return {};
}

[[noreturn]] void refuse_module(ddp_device_kind kind, const std::string& why) {
    fail(DDP_ERROR_UNSUPPORTED, "memory of the device kind ", kind_name(kind),
         " needs the module libddp-", kind_name(kind), ".so: ", why,
         how_to_get_module(kind_name(kind)));
}

const ddp_device_module& load(ddp_device_kind kind) {
    static Mutex mutex;
    const Lock lock(mutex);
    auto& slot = loaded[static_cast<std::size_t>(kind)];
    if (const auto* module = slot.load(std::memory_order_acquire)) return *module;
    const ddp_device_module* module =
        reinterpret_cast<ddp_device_entry_fn*>(device_module_entry(kind, "ddp_device_entry"))();
    if (const std::string why = fault_of(module, kind); !why.empty()) refuse_module(kind, why);
    slot.store(module, std::memory_order_release);
    return *module;
}

}  // namespace

std::string device_name(const ddp_device& device) {
    return is_cpu(device) && device.index == 0 ? "cpu"
                                               : str(kind_name(device.kind), ":", device.index);
}

const ddp_device_module& device_module(ddp_device_kind kind) {
    if (kind <= DDP_DEVICE_CPU || static_cast<std::size_t>(kind) >= kNames.size())
        fail(DDP_ERROR_UNSUPPORTED, "device kind ", kind, " is unknown (see types.h)");
    const auto* module = loaded[static_cast<std::size_t>(kind)].load(std::memory_order_acquire);
    return module ? *module : load(kind);
}

void* device_module_entry(ddp_device_kind kind, const char* entry) {
    std::string why;
    void* function = load_module_entry(kind_name(kind), entry, &why);
    if (!function) refuse_module(kind, why);
    return function;
}

std::int32_t device_count(ddp_device_kind kind) {
    if (kind == DDP_DEVICE_CPU) return 1;
    std::int32_t count = 0;
    call_device({kind, 0}, "counting devices", device_module(kind).count, &count);
    return count;
}

void require_device(const ddp_device& device, const std::string& what) {
    std::int32_t count = 0;
    try {
        count = device_count(device.kind);
    } catch (const Error& error) {
        fail(error.info().code, what, ": device: ", error.info().message);
    }
    if (device.index < 0 || device.index >= count)
        fail(DDP_ERROR_UNSUPPORTED, what, ": there is no device ", device_name(device), "; there ",
             count == 1 ? "is " : "are ", count, " of this kind, counted from 0");
}

ddp_device device_of(const void* pointer) {
    for (auto& slot : loaded)
        if (const auto* module = slot.load(std::memory_order_acquire)) {
            ddp_device device{DDP_DEVICE_CPU, 0};
            call_device({module->kind, 0}, "asking whose memory this is", module->device_of,
                        pointer, &device);
            if (!is_cpu(device)) return device;
        }
    return {DDP_DEVICE_CPU, 0};
}

void fail_device(const ddp_device& device, const char* what, ddp_status status,
                 const ddp_device_failure& failure) {
    fail(status, device_name(device), ", ", what, ": ", failure.message);
}

}  // namespace libddp
