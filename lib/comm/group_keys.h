// The keys of a group in the store, below the group's prefix:
//     rank/<r>     the process that is this rank
//     verdict      the verdict
//     ask          a rank has seen a timeout, and asks how far all are
//     at/<r>       the answer of rank r
//     left/<r>     how far rank r had come when it left, and why it left
//     ended        how the first process exits that has not left
//     let_go       how many ranks read none of these keys any more
//     split/...    the keys of groups that were split from this one, which have monitors of their own
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "record/recorder.h"
#include "rendezvous/store.h"
#include "util/error.h"

namespace libddp::group_keys {

inline constexpr const char* kClaims = "rank/";
inline constexpr const char* kVerdict = "verdict";
inline constexpr const char* kAsk = "ask";
inline constexpr const char* kLeft = "left/";
inline constexpr const char* kEnded = "ended";
inline constexpr const char* kLetGo = "let_go";
inline constexpr const char* kParts = "split/";

inline std::string claim(std::int32_t rank) {
    return str(kClaims, rank);
}
inline std::string answer(std::int32_t rank) {
    return str("at/", rank);
}
inline std::string left(std::int32_t rank) {
    return str(kLeft, rank);
}

}  // namespace libddp::group_keys

namespace libddp {

// A rank of a group, and the store where the group's ranks agree.
struct MonitorConfig {
    std::shared_ptr<Store> store;
    std::string prefix;  // of this group's keys
    std::int32_t rank = 0;
    std::int32_t world = 1;
    std::int32_t store_rank = -1;  // the rank whose process runs the store, -1: none of the group
    std::string identity;          // "pid 12 on host x", for messages
    std::string group;             // its name, for messages
    record::Recorder recorder{};
    bool goes_on = false;  // its owner forms another group when this one breaks

    std::string key(const std::string& name) const { return prefix + name; }
};

}  // namespace libddp
