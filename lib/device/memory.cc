#include "device/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "util/error.h"

namespace libddp {
namespace {

// From this size on memory is pages of its own: they are zero, count only once they are used, and
// do not keep malloc from giving back what lies below them.
constexpr std::size_t kMapped = std::size_t{1} << 20;

}  // namespace

std::shared_ptr<std::byte> allocate_zeroed(std::size_t bytes) {
    const std::size_t size = align_up(bytes > 0 ? bytes : 1);
    const auto require = [bytes](void* memory) {
        if (!memory) fail(DDP_ERROR_OUT_OF_MEMORY, "no memory for ", bytes, " bytes");
    };
    if (size >= kMapped && size >= bytes) {
        void* pages =
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        require(pages == MAP_FAILED ? nullptr : pages);
        return {static_cast<std::byte*>(pages), [size](std::byte* m) { munmap(m, size); }};
    }
    void* memory = size >= bytes ? std::aligned_alloc(kAlignment, size) : nullptr;
    require(memory);
    std::memset(memory, 0, size);
    return {static_cast<std::byte*>(memory), [](std::byte* m) { std::free(m); }};
}

}  // namespace libddp
