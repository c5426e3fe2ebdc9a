// How to wait for something that nobody announces: first look again at once, then let others run, then sleep.
#pragma once

#include <chrono>
#include <thread>

namespace libddp::mpi {

class Backoff {
public:
    using Clock = std::chrono::steady_clock;

    // eager: how long to look again at once. Yielding may cost a whole time slice if another program wants the core.
    explicit Backoff(std::chrono::microseconds eager) : eager_(eager) {}

    // How long to sleep before looking again; zero: not at all.
    std::chrono::microseconds next() {
        const auto now = Clock::now();
        if (!waiting_) since_ = now;
        waiting_ = true;
        const auto waited = now - since_;
        if (waited < eager_) return {};
        if (waited < kYielding) {
            std::this_thread::yield();
            return {};
        }
        return waited < kNapping ? kNap : kLongNap;
    }
    // Something happened: the next thing may be near.
    void reset() { waiting_ = false; }

private:
    static constexpr auto kYielding = std::chrono::milliseconds(2);
    static constexpr auto kNapping = std::chrono::seconds(1);
    // Short enough that the kernel's socket buffers bridge it: MPI moves data only while it is called.
    static constexpr std::chrono::microseconds kNap{50}, kLongNap{500};

    const std::chrono::microseconds eager_;
    bool waiting_ = false;
    Clock::time_point since_;
};

}  // namespace libddp::mpi
