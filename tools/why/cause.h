// The rank that holds a group up and the reason, in one sentence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "why/position.h"

namespace libddp::record {

struct Cause {
    enum class Kind {
        kDead,  // a process was ended, or ended by itself before it left the group
        // the program or libddp found a mistake: a missing gradient, a mismatch, a lack of memory
        kVerdict,
        kStopped,   // a process is stopped
        kBehind,    // a rank has not come to what the others wait for
        kLeft,      // a rank has left the group, and others go on
        kAbsent,    // there is no record of a rank for which the others wait
        kDisagree,  // ranks are in different operations, and nothing has compared them
        kTransfer,  // all ranks are in the same operation, and it does not end
    };

    Kind kind;
    std::int32_t rank;  // -1: none alone
    std::string sentence;
    std::string place{};  // where that rank is, and who waits for it: a part of the sentence
};

// A word, for metrics and JSON: "behind".
const char* kind_name(Cause::Kind kind);

// Where nobody says otherwise.
inline constexpr std::int64_t kPatienceNs = 1'000'000'000;

// patience_ns: waits that are shorter are nobody's fault. Empty: nobody waits longer, and nothing
// failed.
std::optional<Cause> find_cause(const Group& group, std::int64_t patience_ns);

// Lines that can be printed: the cause, and where each rank is that has a record. One line names
// all others.
std::string group_text(const Group& group, std::int64_t patience_ns);

}  // namespace libddp::record
