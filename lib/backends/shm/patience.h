// How a rank waits for the others of its team: it spins, lets others run, sleeps, and looks whether
// they are still there.
#pragma once

#include <cstdint>
#include <string>

#include "backends/common/failure.h"
#include "backends/shm/control.h"
#include "util/error.h"

namespace libddp::shm {

inline constexpr char kGaveUp[] = "a rank went away: another rank of the same host gave up";

// An error of a team that concerns its ranks. Numbers of ranks, here and below, are those within
// the team; in messages they are options.names.
class TeamError : public Error {
    using Error::Error;
};

class Patience {
public:
    // All three outlive this object.
    Patience(const TeamOptions& options, const Control& control, const backend::Failure& failure);

    // True once the counter is there. Gives up early while another rank may need the processor that
    // this one spins on, and at once where there are more ranks than processors.
    bool spin(const Counter& counter, std::uint32_t target, std::int64_t nanoseconds);
    // Throws TIMEOUT, RANK_FAILED, INTERRUPTED, or the failure.
    void wait(Counter& counter, std::uint32_t target, std::int64_t timeout_ms);
    // On which processor this rank is now; negative: on none.
    void take_seat(int processor);

private:
    void sleep(Counter& counter, std::uint32_t target, std::int64_t timeout_ms) const;
    void check_others(const Counter& counter, std::uint32_t target) const;
    ErrorInfo describe_timeout() const;

    const TeamOptions& options_;
    const Control& control_;
    const backend::Failure& failure_;
    const bool crowded_;  // more ranks than usable_processors(): who spins keeps others from coming
    int seat_ = -1;       // processor on which this rank was last seen
};

}  // namespace libddp::shm
