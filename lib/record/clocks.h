// The clocks of several machines, put on one: from the collectives that their ranks ran together. No rank can end an allreduce before
// another one has begun it, whatever the clocks say. Each collective so bounds the difference of two clocks from both sides, and of
// hundreds the tightest bounds are as close as the time of the shortest collective.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "record/reader.h"

namespace libddp::record {

class Clocks {
public:
    explicit Clocks(const std::vector<ProcessRecord>& records);

    // What to add to the times of this process, so that they are on the clock of the first machine, which counts from 1970.
    std::int64_t offset(const ProcessRecord& process) const { return of(process).offset_ns; }
    // How far that may be wrong; 0 on the first machine; kUnknown where no collective joins the machines and their own time of day
    // has to do.
    std::int64_t uncertainty(const ProcessRecord& process) const { return of(process).uncertainty_ns; }
    // The largest of all.
    std::int64_t uncertainty() const;

    static constexpr std::int64_t kUnknown = -1;

private:
    struct Clock {
        std::int64_t offset_ns = 0, uncertainty_ns = kUnknown;
    };

    const Clock& of(const ProcessRecord& process) const;

    std::map<std::string, Clock> clocks_;
};

}  // namespace libddp::record
