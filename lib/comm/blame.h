// Finds the rank to blame for a failure that nobody has written a verdict for: the rank that left
// before, is silent, or is behind.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/group_keys.h"
#include "util/error.h"

namespace libddp {

struct Blame {
    const MonitorConfig& config;
    const ErrorInfo& local;  // the failure as this rank saw it
    std::string operation;   // that failed
    std::string advice;      // about a rank that is missing
    std::int64_t begun;      // how many operations this rank has begun
    bool store_gone;
    std::string other_broke;  // the error that broke another group of this process; empty: none

    // Each returns the verdict.
    ErrorInfo silent_store() const;
    ErrorInfo for_timeout() const;
    // may_come: waits so many milliseconds for a verdict of the store.
    ErrorInfo for_loss(const std::function<void(std::int64_t ms)>& may_come) const;

private:
    struct Answers {
        std::vector<std::int32_t> silent, behind, left;  // left: before they came to this operation
        // the operation of another group that the first of `behind` is in; empty: none
        std::string elsewhere;
    };

    Answers ask_everyone() const;
    std::vector<std::int32_t> ranks_that_left() const;
    ErrorInfo silent_ranks(const std::vector<std::int32_t>& silent) const;
    ErrorInfo left_too_early(const std::vector<std::int32_t>& ranks) const;
    std::string why_they_left(const std::vector<std::int32_t>& ranks) const;
};

}  // namespace libddp
