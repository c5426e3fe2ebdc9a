#include "util/process.h"

#include "util/at_exit.h"

namespace libddp::detail {

std::atomic<std::uint32_t> forks{0};

void count_forks() {
    // A child of vfork, or of posix_spawn, shares this memory and does not count.
    static const int registered = [] {
        stay_loaded();
        return pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    }();
    (void)registered;
}

}  // namespace libddp::detail
