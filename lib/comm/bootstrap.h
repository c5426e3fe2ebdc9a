// From what the caller and the environment say to a rank, a world size and an open store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/operation_counts.h"
#include "rendezvous/store.h"
#include "util/deadline.h"
#include "util/error.h"

namespace libddp {

struct GroupConfig {
    std::int32_t rank = -1;   // -1: from the environment
    std::int32_t world = -1;  // -1: from the environment
    std::string init_method = "env://";
    std::string backend = "auto";
    std::string backend_options;
    std::int64_t timeout_ms = kDefaultTimeoutMs;
    std::string name = "world";
    std::shared_ptr<Store> store;       // set: used instead of init_method
    std::optional<std::string> secret;  // of StoreConfig
    std::uint32_t flags = 0;
    bool insecure = false;  // of StoreConfig
    // alone, if everything is to come from the environment and there is no launcher's
    bool or_alone = false;
    std::uint32_t round_robin = 0;  // how many links the group gets; 0: one
    std::string prefix;             // set: of this group's keys, instead of one made from the name
    // Asked while ranks wait for each other: why one of them will not come; code DDP_OK: nothing is
    // known. May be null.
    std::function<ErrorInfo()> absent;
    std::shared_ptr<OperationCounts> counts;  // where they are counted; null: for this group alone
};

// Where a group meets.
struct MeetingPlace {
    std::int32_t rank = 0;
    std::int32_t world = 1;
    std::shared_ptr<Store> store;  // null when world is 1 and nothing asked for one
    std::int32_t store_rank = -1;  // the rank whose process runs the store, -1: none of the group
    // when this rank is done: its process runs the store, or the last one removes a file
    bool store_may_end = false;
    // of this group's keys; differs each time a process creates a group of this name
    std::string prefix;
};

// Checks the config, reads the environment, opens (or shares) the store. Throws Error.
MeetingPlace find_meeting_place(const GroupConfig& config);

// The store alone, for who does not know its rank yet. Throws Error, UNSUPPORTED if rank 0 were to
// run it.
std::shared_ptr<Store> find_store(const GroupConfig& config);

}  // namespace libddp
