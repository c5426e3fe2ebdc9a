// The state of a hook, or of an averager, as a list of arrays, between that and the file that
// core/hook_state.h makes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ddp/types.h"
#include "device/stream.h"

namespace libddp {

class HostCopies;

class HookState {
public:
    // The keys of what a hook has left out of a parameter, and of its momentum: as many elements as
    // the parameter has, which reading checks.
    static constexpr const char *kError = "error", *kVelocity = "velocity";

    // An array that belongs to a parameter, or with param -1 to none.
    struct Array {
        std::int32_t param = -1;
        std::string key;
        ddp_dtype dtype = DDP_F32;
        std::vector<std::int64_t> shape;
        // True if every rank holds the same: then another world may go on with it.
        bool shared = false;
        const std::byte* data = nullptr;
        std::size_t bytes = 0;
        // Null: of the CPU. When it is saved: in whose order the memory of a device is that `data`
        // is. When it is loaded, where data is the host's: of the device where the parameter is.
        StreamPtr home{};
    };

    std::map<std::string, std::int64_t> numbers;
    std::vector<Array> arrays;
    // By which what is loaded comes to devices; may be null where no array has a home.
    std::shared_ptr<HostCopies> copies;
};

}  // namespace libddp
