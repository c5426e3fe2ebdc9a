// A clock that goes on while the machine is suspended and while this process is stopped, for what
// others decide about this process meanwhile.
#pragma once

#include <cstdint>
#include <ctime>

namespace libddp {

// Milliseconds of CLOCK_BOOTTIME.
inline std::int64_t boot_ms() {
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace libddp
