// A rank that sleeps for a counter is woken when the counter is there, and then sees what the ranks
// that have counted wrote before.
//
// also kRanks = 2 => kRanks = 3
// weaken lib/backends/shm/counter.h: value_.fetch_add(amount) => value_.fetch_add(amount, std::memory_order_relaxed)
// weaken lib/backends/shm/counter.h: value_.fetch_add(amount) => value_.fetch_add(amount, std::memory_order_acq_rel)
// weaken lib/backends/shm/counter.h: value_.load(std::memory_order_acquire) => value_.load(std::memory_order_relaxed)
// weaken lib/backends/shm/counter.h: sleepers_.load() => sleepers_.load(std::memory_order_acquire)
// weaken lib/backends/shm/counter.cc: sleepers_.fetch_add(1) => sleepers_.fetch_add(1, std::memory_order_acq_rel)
// weaken lib/backends/shm/counter.cc: value_.load() => value_.load(std::memory_order_acquire)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "checker.h"
#include "util/mutex.h"

namespace {

libddp::Mutex kernel;
bool asleep = false;

// A thread that falls asleep ends here.
void futex_call(std::uint32_t* word, int operation, std::uint32_t value) {
    bool sleeps = false;
    {
        const libddp::Lock lock(kernel);
        sleeps = operation == FUTEX_WAIT && __atomic_load_n(word, __ATOMIC_RELAXED) == value;
        asleep = sleeps;
    }
    if (sleeps) __VERIFIER_thread_exit(nullptr);
}

}  // namespace

#define syscall(number, word, operation, value, ...) futex_call(word, operation, value)
#include "backends/shm/counter.cc"

namespace {

using libddp::shm::Counter;

constexpr int kRanks = 2;

Counter counter;
int message[kRanks];

void* count(void* argument) {
    const int rank = libddp::model::number_of(argument);
    message[rank] = 1;
    counter.add();
    return nullptr;
}

void* sleep_for_all(void*) {
    if (!counter.reached(kRanks)) counter.sleep(kRanks, 50);
    if (counter.reached(kRanks))
        for (const int one : message) ALWAYS(one == 1);
    return nullptr;
}

}  // namespace

int main() {
    const long sleeper = libddp::model::start(sleep_for_all, 0);
    long ranks[kRanks];
    for (int rank = 0; rank < kRanks; ++rank)
        ranks[rank] = libddp::model::start(count, static_cast<std::size_t>(rank));
    libddp::model::join(sleeper);
    for (const long rank : ranks) libddp::model::join(rank);
    ALWAYS(counter.reached(kRanks));
    ALWAYS(!asleep);
    return 0;
}
