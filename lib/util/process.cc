#include "util/process.h"

#include <dlfcn.h>

namespace libddp {

// The main program is not found here, and never unloaded.
void stay_loaded() {
    Dl_info here{};
    if (dladdr(reinterpret_cast<void*>(&stay_loaded), &here) != 0)
        dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

namespace detail {

std::atomic<std::uint32_t> forks{0};

void count_forks() {
    // A child of vfork, or of posix_spawn, shares this memory and does not count.
    static const int registered = [] {
        stay_loaded();
        return pthread_atfork(nullptr, nullptr,
                              [] { forks.fetch_add(1, std::memory_order_relaxed); });
    }();
    (void)registered;
}

}  // namespace detail
}  // namespace libddp
