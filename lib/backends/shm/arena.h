// Memory for gradients that all processes of a host see: this rank's own blocks, and those of the
// others as they are met.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "backends/shm/segment.h"
#include "util/mutex.h"

namespace libddp::shm {

// Where something lies, in terms that hold in every process. bytes == 0: in memory that is not
// shared.
struct Location {
    std::uint64_t block;   // offset of its block in the segment
    std::uint64_t bytes;   // of the block
    std::uint64_t within;  // offset in the block
    bool shared() const { return bytes != 0; }
};

// In shared memory, one for each rank: the blocks that it has freed, so that others unmap them.
class FreedBlocks {
public:
    // One thread at a time.
    void add(std::uint64_t block) {
        const std::uint64_t count = count_.load(std::memory_order_relaxed);
        // A reader that finds this block in the place of an older one then sees the count, too.
        blocks_[count % kRemembered].store(block, std::memory_order_release);
        count_.store(count + 1, std::memory_order_release);
    }
    // Calls gone(block) for those after the first `seen`, and adds them to `seen`. False: there
    // were too many to tell all of them.
    template <class Gone>
    bool follow(std::uint64_t& seen, Gone gone) const {
        const std::uint64_t first = seen;
        seen = count_.load(std::memory_order_acquire);  // the blocks before it are there
        if (seen == first) return true;
        if (seen - first >= kRemembered) return false;
        for (std::uint64_t n = first; n < seen; ++n)
            gone(blocks_[n % kRemembered].load(std::memory_order_relaxed));
        // Pairs with the release of a block: whether one was overwritten before it was read.
        std::atomic_thread_fence(std::memory_order_acquire);
        return count_.load(std::memory_order_relaxed) - first < kRemembered;
    }

private:
    static constexpr std::size_t kRemembered = 64;

    std::atomic<std::uint64_t> count_;
    std::atomic<std::uint64_t> blocks_[kRemembered];  // number n at n % kRemembered
};

class Arena {
public:
    // This rank's blocks lie between `begin` and `end` of the segment.
    Arena(Segment& segment, std::uint64_t begin, std::uint64_t end, FreedBlocks& freed, int ranks)
        : segment_(segment), freed_(freed), others_(static_cast<std::size_t>(ranks)) {
        free_.emplace(begin, end);
    }

    // Zeroed, page-aligned. Any thread.
    void* allocate(std::size_t bytes);
    // Throws INVALID_ARGUMENT for memory that is not of allocate().
    void deallocate(void* memory);
    // A collective has failed. A rank that sleeps in it may still write into the blocks of its
    // message, so their places are used no more. Any thread. Relaxed: the program frees such a
    // block only when it has learnt of the failure.
    void stop_reuse() { reuse_.store(false, std::memory_order_relaxed); }

    // Where this memory lies, if all of it is in one of this rank's blocks. Any thread.
    Location locate(const void* memory, std::size_t bytes) const;

    // The address in this process of a location that a rank has told: of its own blocks the one of
    // allocate(), as a second mapping would cost page tables and count as resident again. Null if
    // the location does not hold that many bytes, is not aligned, or gives a block another size
    // than one since follow() did. One thread at a time calls this function and the next.
    std::byte* reach(int rank, const Location& location, std::size_t bytes,
                     std::size_t alignment = 1);
    // Before each collective: nothing is in use here. Unmaps what that rank has freed meanwhile.
    void follow(int rank, const FreedBlocks& freed);

private:
    struct Block {
        std::uint64_t offset;
        Mapping mapping;
    };
    struct Reached {
        Mapping mapping;
        std::uint64_t round = 0;  // when it was last reached
    };
    struct Other {
        std::uint64_t round = 1;                            // of follow()
        std::unordered_map<std::uint64_t, Reached> blocks;  // by offset
        // how many of its freed blocks are unmapped
        std::uint64_t freed = 0;
    };

    // The mapping of the block in which the location lies; null: that has another size.
    const Mapping* mapping_of(int rank, const Location& location);
    std::uint64_t take_place(std::size_t size) DDP_REQUIRES(mutex_);
    void give_back_place(std::uint64_t offset, std::size_t size) DDP_REQUIRES(mutex_);

    Segment& segment_;
    mutable Mutex mutex_;
    std::map<std::uint64_t, std::uint64_t> free_ DDP_GUARDED_BY(mutex_);  // places: begin and end
    std::atomic<bool> reuse_{true};
    std::map<const std::byte*, Block> own_ DDP_GUARDED_BY(mutex_);  // by address
    // of those, by offset
    std::unordered_map<std::uint64_t, const Mapping*> own_at_ DDP_GUARDED_BY(mutex_);
    FreedBlocks& freed_ DDP_GUARDED_BY(mutex_);
    std::vector<Other> others_;
};

}  // namespace libddp::shm
