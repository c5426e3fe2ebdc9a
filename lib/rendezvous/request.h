// One operation on a store and its result, as plain values: what the wire and the log of a file store carry.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/status.h"

namespace libddp {

// The numbers are part of the wire protocol and of the file format: never renumber.
enum class Op : std::uint8_t {
    kSet = 1,
    kGet = 2,
    kCompareSet = 3,
    kAdd = 4,
    kAppend = 5,
    kCheck = 6,
    kWait = 7,
    kMultiSet = 8,
    kMultiGet = 9,
    kRemove = 10,
    kNumKeys = 11,
    kListKeys = 12,
    kQueuePush = 13,
    kQueuePop = 14,
    kQueueSize = 15,
    kBarrier = 16,
    kSetWill = 17,  // keys: the will's, and perhaps the condition's; values: theirs
    kRemoveWill = 18,
    kCancel = 19,   // number: the request to forget. Never answered.
    kGoodbye = 20,  // the caller leaves on purpose. Never answered.
    kReply = 64,    // server to client
    kClosing = 65,  // server to client: the server ends on purpose
};

namespace limits {
inline constexpr std::size_t kKey = 1024;
inline constexpr std::size_t kValue = std::size_t{64} << 20;
inline constexpr std::size_t kKeysPerRequest = 65'536;
// A request or reply as a whole. Larger than any single value so that multi_set and compare_set have room.
inline constexpr std::size_t kFrame = std::size_t{256} << 20;
inline constexpr std::size_t kTotal = std::size_t{1} << 30;
// Waits and watches that one client may have open at once.
inline constexpr std::size_t kWaitsPerOwner = 65'536;
// Ten years: keeps deadlines far from the clock's overflow whatever number the caller gives.
inline constexpr std::int64_t kLongestWaitMs = std::int64_t{10} * 365 * 24 * 3600 * 1000;
}  // namespace limits

inline constexpr std::int64_t kNoWait = 0;
inline constexpr std::int64_t kForever = -1;

using Strings = std::vector<std::string>;

struct Request {
    Op op = Op::kNumKeys;
    Strings keys;                       // or the name of a queue or barrier
    Strings values;                     // compare_set: expected, desired; list_keys: the prefix
    std::int64_t number = 0;            // add: the amount; barrier: the count; cancel: the request
    std::int64_t timeout_ms = kNoWait;  // kNoWait, kForever or milliseconds
};

struct Outcome {
    ddp_status code = DDP_OK;
    std::string message;
    std::int64_t number = 0;
    Strings values;
};

Outcome failed(ddp_status code, std::string message);

// Who asked: a connection (or a participant of a file store) and its own number for the request.
struct Caller {
    std::uint64_t owner = 0;
    std::uint64_t request = 0;
    auto operator<=>(const Caller&) const = default;
};

// The failure that the request deserves whatever the store holds: wrong shape or beyond a limit. nullopt: none.
std::optional<Outcome> invalid(const Request& request);

// Whether the operation may have to wait for somebody else.
bool may_wait(Op op);

// What a request waits for: "key 'x'", "barrier 'b'".
std::string describe_wait(const Request& request);

// A key for a message: in quotes, shortened, unprintable bytes escaped.
std::string printable(std::string_view name);

}  // namespace libddp
