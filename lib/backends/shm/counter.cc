#include "backends/shm/counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace libddp::shm {
namespace {

// Between processes: without FUTEX_PRIVATE_FLAG.
void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* timeout) {
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr,
            0);
}

}  // namespace

void Counter::wake_all() {
    futex(value_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Counter::sleep(std::uint32_t target, std::int64_t milliseconds) {
    const timespec timeout{static_cast<time_t>(milliseconds / 1000),
                           static_cast<long>(milliseconds % 1000) * 1000000};
    sleepers_.fetch_add(1);
    const std::uint32_t seen = value_.load();
    if (static_cast<std::int32_t>(seen - target) < 0) futex(value_, FUTEX_WAIT, seen, &timeout);
    sleepers_.fetch_sub(1);
}

}  // namespace libddp::shm
