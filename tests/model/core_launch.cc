// Each bucket is launched once, in the order of the plan, by a thread that sees all gradients in it,
// whichever threads put them there. When the last gradient is in place, every bucket is launched.
//
// weaken lib/core/launch_queue.h: fetch_sub(1, std::memory_order_acq_rel) => fetch_sub(1, std::memory_order_acquire)
// weaken lib/core/launch_queue.h: fetch_sub(1, std::memory_order_acq_rel) => fetch_sub(1, std::memory_order_relaxed)
// weaken lib/core/launch_queue.cc: .load(std::memory_order_acquire) != 0 => .load(std::memory_order_relaxed) != 0
// weaken lib/core/launch_queue.cc: fetch_add(1, std::memory_order_acq_rel) => fetch_add(1, std::memory_order_acquire)
// weaken lib/core/launch_queue.cc: fetch_add(1, std::memory_order_acq_rel) => fetch_add(1, std::memory_order_release)
// weaken lib/core/launch_queue.cc: fetch_sub(served, std::memory_order_acq_rel) => fetch_sub(served, std::memory_order_acquire)
// weaken lib/core/launch_queue.cc: fetch_sub(served, std::memory_order_acq_rel) => fetch_sub(served, std::memory_order_release)
// weaken lib/core/launch_queue.cc: if (before == served) return; => return;
// also kThreads = 2 => kThreads = 3
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "checker.h"

namespace libddp {
namespace {

constexpr int kThreads = 2, kBuckets = 2;

struct Step {
    std::atomic<std::uint32_t> requests{0};
    std::size_t next = 0;
    bool ballots = true;
};

struct NoError {
    bool ok() const { return true; }
};
struct Entry {
    struct {
        NoError error;
        std::atomic<bool> used{false};
        bool launched = false;
    } now;
};
struct Entries {
    Entry entries[kBuckets];
    std::size_t size() const { return kBuckets; }
    Entry& operator[](std::size_t b) { return entries[b]; }
};

int gradients[kBuckets][kThreads];
Entries all_entries;
Step the_step;

class LaunchQueue {
public:
    LaunchQueue() {
        for (auto& count : pending_) count.store(kThreads, std::memory_order_relaxed);
    }
    // from lib/core/launch_queue.h: gradient_in_place
    void launch_ready();

private:
    void launch(Entry& entry) {
        ALWAYS(!entry.now.launched);
        entry.now.launched = true;
        ALWAYS(entry.now.used.load(std::memory_order_relaxed));
        const std::size_t bucket = &entry == &all_entries[0] ? 0 : 1;
        ALWAYS(bucket == 0 || all_entries[0].now.launched);
        for (const int gradient : gradients[bucket]) ALWAYS(gradient == 1);
    }

    Step* step_ = &the_step;
    Entries* entries_ = &all_entries;
    std::atomic<std::int32_t> pending_[kBuckets];
};

// from lib/core/launch_queue.cc: LaunchQueue::launch_ready

LaunchQueue queue;

// Threads come to the buckets in different orders.
void* announce(void* argument) {
    const int thread = model::number_of(argument);
    for (int i = 0; i < kBuckets; ++i) {
        const int bucket = thread == 0 ? i : kBuckets - 1 - i;
        gradients[bucket][thread] = 1;
        queue.gradient_in_place(bucket);
    }
    return nullptr;
}

}  // namespace
}  // namespace libddp

int main() {
    using namespace libddp;
    long threads[kThreads];
    for (int thread = 0; thread < kThreads; ++thread)
        threads[thread] = model::start(announce, static_cast<std::size_t>(thread));
    for (const long thread : threads) model::join(thread);
    for (Entry& entry : all_entries.entries) ALWAYS(entry.now.launched);
    return 0;
}
