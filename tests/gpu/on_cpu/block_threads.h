// A block of a kernel, played by threads of the CPU.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

namespace on_cpu {

class BlockThreads {
public:
    BlockThreads(std::uint32_t index, std::uint32_t size, std::barrier<>& barrier)
        : index_(index), size_(size), barrier_(barrier) {}

    std::uint32_t index() const { return index_; }
    std::uint32_t size() const { return size_; }
    void sync() const { barrier_.arrive_and_wait(); }
    static std::uint32_t add(std::uint32_t* to, std::uint32_t n) {
        return std::atomic_ref(*to).fetch_add(n);
    }
    static std::uint64_t add(std::uint64_t* to, std::uint64_t n) {
        return std::atomic_ref(*to).fetch_add(n);
    }
    static void mark(std::uint8_t* flag) { std::atomic_ref(*flag).store(1); }

private:
    const std::uint32_t index_, size_;
    std::barrier<>& barrier_;
};

// Calls work(BlockThreads) in so many threads, which are done when it returns. One: the calling
// thread.
template <class Work>
void play_block(std::uint32_t count, const Work& work) {
    std::barrier<> barrier(count);
    std::vector<std::jthread> others;
    for (std::uint32_t index = 1; index < count; ++index)
        others.emplace_back([&, index] { work(BlockThreads(index, count, barrier)); });
    work(BlockThreads(0, count, barrier));
}

}  // namespace on_cpu
