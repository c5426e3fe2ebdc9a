// A rank that follows the freed blocks of another one hears of each of them, or that it may have
// missed some. No block is told before it was freed.
//
// with lib/backends/shm/arena.h: kRemembered = 64 => kRemembered = 2
// weaken lib/backends/shm/arena.h: store(block, std::memory_order_release) => store(block, std::memory_order_relaxed)
// weaken lib/backends/shm/arena.h: count_.store(count + 1, std::memory_order_release) => count_.store(count + 1, std::memory_order_relaxed)
// weaken lib/backends/shm/arena.h: seen = count_.load(std::memory_order_acquire) => seen = count_.load(std::memory_order_relaxed)
// weaken lib/backends/shm/arena.h: std::atomic_thread_fence(std::memory_order_acquire); => nothing
// weaken lib/backends/shm/arena.h: return count_.load(std::memory_order_relaxed) - first < kRemembered; => return true;
// weaken lib/backends/shm/arena.h: count_.load(std::memory_order_relaxed) - first < kRemembered => count_.load(std::memory_order_relaxed) - first <= kRemembered
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "checker.h"

namespace libddp::shm {

// from lib/backends/shm/arena.h: FreedBlocks

namespace {

constexpr std::uint64_t kBlocks = 4;

FreedBlocks freed;
bool freed_at[kBlocks + 1];  // plain: whoever hears of a block sees what was written before

void* free_blocks(void*) {
    for (std::uint64_t block = 1; block <= kBlocks; ++block) {
        freed_at[block] = true;
        freed.add(block);
    }
    return nullptr;
}

void* follow(void*) {
    std::uint64_t seen = 0;
    for (int round = 0; round < 2; ++round) {
        bool heard[kBlocks + 1];
        for (bool& one : heard) one = false;
        const std::uint64_t before = seen;
        if (!freed.follow(seen, [&](std::uint64_t block) { heard[block] = true; })) continue;
        ALWAYS(!heard[0]);
        for (std::uint64_t block = before + 1; block <= seen; ++block) {
            ALWAYS(heard[block]);
            ALWAYS(freed_at[block]);
        }
    }
    return nullptr;
}

}  // namespace
}  // namespace libddp::shm

int main() {
    using namespace libddp;
    model::start(shm::free_blocks, 0);
    model::start(shm::follow, 0);
    return 0;
}
