// A block of a kernel, played by threads of the CPU.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

namespace on_cpu {

class Team {
public:
    Team(std::uint32_t rank, std::uint32_t size, std::barrier<>& barrier)
        : rank_(rank), size_(size), barrier_(barrier) {}

    std::uint32_t rank() const { return rank_; }
    std::uint32_t size() const { return size_; }
    void sync() const { barrier_.arrive_and_wait(); }
    static std::uint32_t add(std::uint32_t* to, std::uint32_t n) { return std::atomic_ref(*to).fetch_add(n); }
    static std::uint64_t add(std::uint64_t* to, std::uint64_t n) { return std::atomic_ref(*to).fetch_add(n); }
    static void mark(std::uint8_t* flag) { std::atomic_ref(*flag).store(1); }

private:
    const std::uint32_t rank_, size_;
    std::barrier<>& barrier_;
};

// Calls work(team) in so many threads, which are done when it returns. One: the calling thread.
template <class Work>
void run_team(std::uint32_t threads, const Work& work) {
    std::barrier<> barrier(threads);
    std::vector<std::jthread> others;
    for (std::uint32_t rank = 1; rank < threads; ++rank)
        others.emplace_back([&, rank] { work(Team(rank, threads, barrier)); });
    work(Team(0, threads, barrier));
}

}  // namespace on_cpu
