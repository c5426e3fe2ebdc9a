// The state of a hook as a list of arrays, between the hook and the file that core/hook_state.h makes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ddp/types.h"

namespace libddp {

class HookState {
public:
    // The key of what a hook has left out of a parameter: as many elements as that has, which reading checks.
    static constexpr const char* kError = "error";

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
        std::shared_ptr<const std::byte> memory{};  // what `data` is part of, where it must be kept
    };

    std::map<std::string, std::int64_t> numbers;
    std::vector<Array> arrays;
};

}  // namespace libddp
