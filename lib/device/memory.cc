#include "device/memory.h"

#include <cstdlib>
#include <cstring>

#include "util/error.h"

namespace libddp {

std::shared_ptr<std::byte> allocate_zeroed(std::size_t bytes) {
    const std::size_t size = align_up(bytes > 0 ? bytes : 1);
    void* memory = size >= bytes ? std::aligned_alloc(kAlignment, size) : nullptr;
    if (!memory) fail(DDP_ERROR_OUT_OF_MEMORY, "no memory for ", bytes, " bytes");
    std::memset(memory, 0, size);
    return {static_cast<std::byte*>(memory), [](std::byte* m) { std::free(m); }};
}

}  // namespace libddp
