// Terms of norms of results on devices. A device counts them in the order of its streams, and they
// come to pinned memory of the host when the step ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/model.h"
#include "device/scratch.h"
#include "hooks/bucket.h"
#include "kernels/arithmetic.h"
#include "kernels/on_device.h"

namespace libddp {

class DeviceNorms {
public:
    static constexpr std::size_t kKinds = 3;

    // For all parameters, on every device of the model.
    explicit DeviceNorms(const Model& model);
    ~DeviceNorms();
    DeviceNorms(const DeviceNorms&) = delete;
    DeviceNorms& operator=(const DeviceNorms&) = delete;

    // A result of `count` elements on the bucket's device, after what is on its stream.
    struct Result {
        std::int32_t param;
        const void* numbers;
        std::size_t count;
    };
    // These enqueue. A bucket's results, whose type is dtype, of one kind after another:
    void count(const ddp_bucket& bucket, const std::vector<Result>& results, ddp_dtype dtype,
               cpu::NormKind kind);
    // Everything to the host.
    void bring();
    // Once the device has come to that point.
    double terms(std::int32_t param, cpu::NormKind kind) const;

private:
    struct OnDevice {
        StreamPtr stream;                        // that fills and empties buckets
        std::shared_ptr<std::byte> there, here;  // kKinds numbers for each parameter
        ScratchMemory scratch;
        EventPtr brought;
    };

    OnDevice& of(const ddp_device& device) const;
    static std::size_t place(std::int32_t param, cpu::NormKind kind) {
        return kKinds * static_cast<std::size_t>(param) + static_cast<std::size_t>(kind);
    }

    const Model& model_;
    std::vector<std::unique_ptr<OnDevice>> devices_;
};

}  // namespace libddp
