// Guards of libddp in a program that forks, or that cancels threads.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace libddp {

// exit() finds functions of libddp even when the program has unloaded what libddp is a part of.
void stay_loaded();

namespace detail {
// How often this process and its ancestors were forked, as far as libddp was loaded. Only a child's
// first thread changes it, so every access is relaxed.
extern std::atomic<std::uint32_t> forks;
// From now on a child counts.
void count_forks();
}  // namespace detail

// Part of what only the process can use that made it: its threads and connections do not go to a
// forked child.
class Origin {
public:
    Origin() {
        detail::count_forks();
        forks_ = detail::forks.load(std::memory_order_relaxed);
    }
    // Whether this process is a forked child of the one that made it.
    bool inherited() const { return forks_ != detail::forks.load(std::memory_order_relaxed); }

private:
    std::uint32_t forks_;
};

// One T a process. A forked child begins with a new one: in the old one threads that the child does
// not have may hold locks. Lives as long as the process, unless destroy() is called. Threads that
// come at once may each make a T, of which one stays: its constructor tells nobody of it.
template <class T>
class OnePerProcess {
public:
    T& get() {
        // Pairs with the exchange: whoever finds a node finds it constructed.
        Node* node = node_.load(std::memory_order_acquire);
        if (node && !node->origin.inherited()) return node->value;
        auto fresh = std::make_unique<Node>();
        if (!node_.compare_exchange_strong(node, fresh.get(), std::memory_order_acq_rel))
            return node->value;
        return fresh.release()->value;
    }
    // Called while nobody else uses it. Does nothing to an object of the process that forked this
    // one.
    void destroy() {
        Node* node = node_.load(std::memory_order_acquire);
        if (!node || node->origin.inherited()) return;
        node_.store(nullptr, std::memory_order_release);
        delete node;
    }

private:
    struct Node {
        Origin origin;
        T value;
    };
    std::atomic<Node*> node_{nullptr};
};

// A public call is no cancellation point: cancelling a thread would unwind code that waits for
// others. While this object lives, the calling thread cannot be cancelled. A thread that may be
// cancelled at any moment is cancelled when this object ends.
class NoCancellation {
public:
    NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~NoCancellation() noexcept(false) { pthread_setcancelstate(before_, nullptr); }
    NoCancellation(const NoCancellation&) = delete;
    NoCancellation& operator=(const NoCancellation&) = delete;

private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace libddp
