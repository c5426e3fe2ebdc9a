#include "rendezvous/request.h"

#include <algorithm>
#include <array>

#include "util/error.h"

namespace libddp {
namespace {

// How many keys and values each operation has. values == kPerKey: as many as keys.
constexpr std::size_t kPerKey = static_cast<std::size_t>(-1);

struct Shape {
    Op op;
    std::size_t min_keys;
    std::size_t max_keys;
    std::size_t values;
};

constexpr std::array kShapes = {
    Shape{Op::kSet, 1, 1, 1},
    Shape{Op::kGet, 1, 1, 0},
    Shape{Op::kCompareSet, 1, 1, 2},
    Shape{Op::kAdd, 1, 1, 0},
    Shape{Op::kAppend, 1, 1, 1},
    Shape{Op::kCheck, 0, limits::kKeysPerRequest, 0},
    Shape{Op::kWait, 0, limits::kKeysPerRequest, 0},
    Shape{Op::kMultiSet, 0, limits::kKeysPerRequest, kPerKey},
    Shape{Op::kMultiGet, 0, limits::kKeysPerRequest, 0},
    Shape{Op::kRemove, 1, 1, 0},
    Shape{Op::kNumKeys, 0, 0, 0},
    Shape{Op::kListKeys, 0, 0, 1},
    Shape{Op::kQueuePush, 1, 1, 1},
    Shape{Op::kQueuePop, 1, 1, 0},
    Shape{Op::kQueueSize, 1, 1, 0},
    Shape{Op::kBarrier, 1, 1, 0},
    Shape{Op::kSetWill, 1, 2, kPerKey},
    Shape{Op::kRemoveWill, 1, 1, 0},
    Shape{Op::kCancel, 0, 0, 0},
    Shape{Op::kGoodbye, 0, 0, 0},
};

std::optional<Outcome> wrong_shape(const Request& request) {
    const auto* shape =
        std::find_if(kShapes.begin(), kShapes.end(), [&](const Shape& known) { return known.op == request.op; });
    if (shape == kShapes.end())
        return failed(DDP_ERROR_UNSUPPORTED, str("store operation ", static_cast<int>(request.op), " is not known"));
    if (request.keys.size() > limits::kKeysPerRequest)
        return failed(DDP_ERROR_LIMIT, str("keys: ", request.keys.size(), " in one call, at most ",
                                           limits::kKeysPerRequest, " are allowed"));
    std::size_t values = shape->values == kPerKey ? request.keys.size() : shape->values;
    if (request.keys.size() < shape->min_keys || request.keys.size() > shape->max_keys ||
        request.values.size() != values)
        return failed(DDP_ERROR_INVALID_ARGUMENT,
                      str("store operation ", static_cast<int>(request.op), " got ", request.keys.size(), " keys and ",
                          request.values.size(), " values"));
    return std::nullopt;
}

std::optional<Outcome> beyond_limit(const Request& request) {
    std::size_t total = 0;
    for (const auto& key : request.keys) {
        if (key.empty()) return failed(DDP_ERROR_INVALID_ARGUMENT, "key: is empty; keys have 1 to 1024 bytes");
        if (key.size() > limits::kKey)
            return failed(DDP_ERROR_LIMIT, str("key ", printable(key), ": has ", key.size(), " bytes, at most ",
                                               limits::kKey, " are allowed"));
        total += key.size() + sizeof(std::uint32_t);
    }
    for (const auto& value : request.values) {
        if (value.size() > limits::kValue)
            return failed(DDP_ERROR_LIMIT,
                          str("value", request.keys.empty() ? std::string() : " of " + printable(request.keys.front()),
                              ": has ", value.size(), " bytes, at most ", limits::kValue, " are allowed"));
        total += value.size() + sizeof(std::uint32_t);
    }
    // The fixed fields of a frame are far below this reserve.
    constexpr std::size_t kReserve = 4096;
    if (total > limits::kFrame - kReserve)
        return failed(DDP_ERROR_LIMIT, str("values: ", total, " bytes in one call, at most ", limits::kFrame - kReserve,
                                           " are allowed"));
    return std::nullopt;
}

}  // namespace

Outcome failed(ddp_status code, std::string message) {
    Outcome outcome;
    outcome.code = code;
    outcome.message = std::move(message);
    return outcome;
}

std::optional<Outcome> invalid(const Request& request) {
    if (auto failure = wrong_shape(request)) return failure;
    if (auto failure = beyond_limit(request)) return failure;
    if (request.op == Op::kListKeys && request.values.front().size() > limits::kKey)
        return failed(DDP_ERROR_LIMIT, str("prefix: is longer than ", limits::kKey, " bytes"));
    if (request.op == Op::kBarrier && request.number < 1)
        return failed(DDP_ERROR_INVALID_ARGUMENT, str("count: ", request.number, " is not at least 1"));
    if (request.timeout_ms < kForever || request.timeout_ms > limits::kLongestWaitMs)
        return failed(DDP_ERROR_INVALID_ARGUMENT, str("timeout_ms: ", request.timeout_ms, " is out of range"));
    return std::nullopt;
}

bool may_wait(Op op) {
    return op == Op::kGet || op == Op::kWait || op == Op::kMultiGet || op == Op::kQueuePop || op == Op::kBarrier;
}

std::string describe_wait(const Request& request) {
    if (!may_wait(request.op) || request.keys.empty()) return "an answer";
    const std::string name = printable(request.keys.front());
    if (request.op == Op::kQueuePop) return "queue " + name;
    if (request.op == Op::kBarrier) return "barrier " + name;
    return request.keys.size() == 1 ? "key " + name : str(request.keys.size(), " keys, ", name, " among them");
}

std::string printable(std::string_view name) {
    constexpr std::size_t kShown = 96;
    constexpr char kHex[] = "0123456789abcdef";
    std::string out = "'";
    for (char letter : name.substr(0, kShown)) {
        auto byte = static_cast<unsigned char>(letter);
        if (byte >= 0x20 && byte < 0x7f) {
            out += letter;
        } else {
            out += "\\x";
            out += kHex[byte >> 4];
            out += kHex[byte & 15];
        }
    }
    out += name.size() > kShown ? "...'" : "'";
    return out;
}

}  // namespace libddp
