#include "rendezvous/protocol.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <system_error>

#include "util/deadline.h"
#include "util/error.h"
#include "util/printable.h"

namespace libddp {
namespace {

// How many keys and values each operation has. values == kPerKey: as many as keys.
constexpr std::size_t kPerKey = static_cast<std::size_t>(-1);

// A version follows.
constexpr std::string_view kIdentity = "store ";

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
    Shape{Op::kCheck, 0, limits::kKeysPerRequest, 0},
    Shape{Op::kWait, 0, limits::kKeysPerRequest, 0},
    Shape{Op::kRemove, 1, 1, 0},
    Shape{Op::kListKeys, 0, 0, 1},
    Shape{Op::kSetWill, 1, 2, kPerKey},
    Shape{Op::kRemoveWill, 1, 1, 0},
    Shape{Op::kCancel, 0, 0, 0},
    Shape{Op::kGoodbye, 0, 0, 0},
};

std::optional<Outcome> wrong_shape(const Request& request) {
    const auto* shape = std::find_if(kShapes.begin(), kShapes.end(),
                                     [&](const Shape& known) { return known.op == request.op; });
    if (shape == kShapes.end())
        return failed(DDP_ERROR_UNSUPPORTED,
                      str("store operation ", static_cast<int>(request.op), " is not known"));
    if (request.keys.size() > limits::kKeysPerRequest)
        return failed(DDP_ERROR_LIMIT, str("keys: ", request.keys.size(), " in one call, at most ",
                                           limits::kKeysPerRequest, " are allowed"));
    std::size_t values = shape->values == kPerKey ? request.keys.size() : shape->values;
    if (request.keys.size() < shape->min_keys || request.keys.size() > shape->max_keys ||
        request.values.size() != values)
        return failed(DDP_ERROR_INVALID_ARGUMENT,
                      str("store operation ", static_cast<int>(request.op), " got ",
                          request.keys.size(), " keys and ", request.values.size(), " values"));
    return std::nullopt;
}

std::optional<Outcome> beyond_limit(const Request& request) {
    for (const auto& key : request.keys) {
        if (key.empty())
            return failed(DDP_ERROR_INVALID_ARGUMENT, "key: is empty; keys have 1 to 1024 bytes");
        if (key.size() > limits::kKey)
            return failed(DDP_ERROR_LIMIT, str("key ", in_quotes(key), ": has ", key.size(),
                                               " bytes, at most ", limits::kKey, " are allowed"));
    }
    for (const auto& value : request.values)
        if (value.size() > limits::kValue)
            return failed(
                DDP_ERROR_LIMIT,
                str("value",
                    request.keys.empty() ? std::string() : " of " + in_quotes(request.keys.front()),
                    ": has ", value.size(), " bytes, at most ", limits::kValue, " are allowed"));
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
    if (request.timeout_ms < kForever || request.timeout_ms > kLongestWaitMs)
        return failed(DDP_ERROR_INVALID_ARGUMENT,
                      str("timeout_ms: ", request.timeout_ms, " is out of range"));
    return std::nullopt;
}

bool changes_state(Op op) {
    return op != Op::kGet && op != Op::kCheck && op != Op::kWait && op != Op::kListKeys;
}

bool may_wait(Op op) {
    return op == Op::kGet || op == Op::kWait;
}

std::string describe_wait(const Request& request) {
    if (!may_wait(request.op) || request.keys.empty()) return "an answer";
    const std::string name = in_quotes(request.keys.front());
    return request.keys.size() == 1 ? "key " + name
                                    : str(request.keys.size(), " keys, ", name, " among them");
}

namespace {

void write_header(ByteWriter& out, Op op, std::uint64_t id, std::size_t payload) {
    out.u32(static_cast<std::uint32_t>(payload));
    out.u8(static_cast<std::uint8_t>(op));
    out.u64(id);
}

std::string frame(Op op, std::uint64_t id, std::string_view payload) {
    ByteWriter out;
    out.reserve(kFrameHeader + payload.size());
    write_header(out, op, id, payload.size());
    out.raw(payload);
    return out.take();
}

std::size_t bytes_in(const Strings& list) {
    std::size_t total = 0;
    for (const auto& item : list) total += item.size() + 4;
    return total;
}

}  // namespace

void ByteWriter::integer(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) u8(static_cast<std::uint8_t>(value >> (8 * i)));
}

void ByteWriter::string(std::string_view bytes) {
    u32(static_cast<std::uint32_t>(bytes.size()));
    raw(bytes);
}

void ByteWriter::strings(const Strings& list) {
    u32(static_cast<std::uint32_t>(list.size()));
    for (const auto& item : list) string(item);
}

std::uint64_t ByteReader::integer(int bytes) {
    std::string_view from = raw(static_cast<std::size_t>(bytes));
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) {
        auto byte = static_cast<unsigned char>(from[static_cast<std::size_t>(i)]);
        value |= static_cast<std::uint64_t>(byte) << (8 * i);
    }
    return value;
}

std::string_view ByteReader::raw(std::size_t size) {
    if (size > left_.size()) fail(DDP_ERROR_IO, "malformed store message: it ends too early");
    std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
}

Strings ByteReader::strings() {
    std::size_t count = u32();
    // Every string has at least its own length field: a count beyond that is a lie, found before
    // memory is reserved for it.
    if (count > left_.size() / 4)
        fail(DDP_ERROR_IO, "malformed store message: it cannot hold ", count, " strings");
    Strings list;
    list.reserve(std::min(count, limits::kKeysPerRequest));
    for (std::size_t i = 0; i < count; ++i) list.push_back(string());
    return list;
}

void ByteReader::end() const {
    if (!left_.empty())
        fail(DDP_ERROR_IO, "malformed store message: ", left_.size(), " bytes too many");
}

std::string store_identity() {
    return str(kIdentity, kProtocolVersion);
}

std::optional<std::uint32_t> version_of(std::string_view identity) {
    if (!identity.starts_with(kIdentity)) return std::nullopt;
    identity.remove_prefix(kIdentity.size());
    std::uint32_t version = 0;
    const char* end = identity.data() + identity.size();
    const auto [stopped, error] = std::from_chars(identity.data(), end, version);
    if (error != std::errc() || stopped != end) return std::nullopt;
    return version;
}

std::string encode_version() {
    ByteWriter out;
    out.u32(kProtocolVersion);
    return out.take();
}

std::uint32_t decode_version(std::string_view bytes) {
    return ByteReader(bytes).u32();
}

std::string encode_request(std::uint64_t id, const Request& request) {
    ByteWriter out;
    out.reserve(64 + bytes_in(request.keys) + bytes_in(request.values));
    out.i64(request.number);
    out.i64(request.timeout_ms);
    out.strings(request.keys);
    out.strings(request.values);
    return frame(request.op, id, out.take());
}

std::string encode_reply_payload(const Outcome& outcome) {
    ByteWriter out;
    out.reserve(64 + outcome.message.size() + bytes_in(outcome.values));
    out.i64(outcome.code);
    out.i64(outcome.number);
    out.string(outcome.message);
    out.strings(outcome.values);
    return out.take();
}

std::string encode_reply_header(std::uint64_t id, std::size_t payload) {
    ByteWriter out;
    write_header(out, Op::kReply, id, payload);
    return out.take();
}

std::string encode_closing(std::string_view reason) {
    ByteWriter out;
    out.string(reason);
    return frame(Op::kClosing, 0, out.take());
}

Request decode_request(const Frame& from) {
    ByteReader in(from.payload);
    Request request;
    request.op = from.op;
    request.number = in.i64();
    request.timeout_ms = in.i64();
    request.keys = in.strings();
    request.values = in.strings();
    in.end();
    return request;
}

Outcome decode_reply(const Frame& from) {
    ByteReader in(from.payload);
    Outcome outcome;
    const std::int64_t code = in.i64();
    if (code > DDP_OK || code < std::numeric_limits<ddp_status>::min())
        fail(DDP_ERROR_IO, "malformed store message: ", code, " is no status");
    outcome.code = static_cast<ddp_status>(code);
    outcome.number = in.i64();
    outcome.message = in.string();
    outcome.values = in.strings();
    in.end();
    return outcome;
}

std::string decode_closing(const Frame& from) {
    ByteReader in(from.payload);
    std::string reason = in.string();
    in.end();
    return reason;
}

std::size_t FrameReader::announced() const {
    if (pending() < kFrameHeader) return 0;
    return kFrameHeader + ByteReader(std::string_view(buffer_).substr(start_, kFrameHeader)).u32();
}

std::optional<Frame> FrameReader::next() {
    std::string_view rest = std::string_view(buffer_).substr(start_);
    if (rest.size() < kFrameHeader) return std::nullopt;
    ByteReader header(rest.substr(0, kFrameHeader));
    std::size_t size = header.u32();
    if (size > limits::kFrame)
        fail(DDP_ERROR_IO, "malformed store message: a frame of ", size, " bytes, at most ",
             limits::kFrame, " are allowed");
    if (rest.size() - kFrameHeader < size) return std::nullopt;
    Frame whole;
    whole.op = static_cast<Op>(header.u8());
    whole.id = header.u64();
    constexpr std::size_t kLong = std::size_t{64} << 10;
    if (size >= kLong && start_ == 0 && rest.size() == kFrameHeader + size) {
        whole.payload = std::move(buffer_);
        whole.payload.erase(0, kFrameHeader);
        buffer_.clear();
        return whole;
    }
    whole.payload.assign(rest.substr(kFrameHeader, size));
    start_ += kFrameHeader + size;
    // Consumed bytes are dropped once they are the larger part: linear work in total, and no memory
    // kept from a large frame.
    if (start_ * 2 >= buffer_.size()) {
        std::string kept(buffer_, start_);
        buffer_.swap(kept);
        start_ = 0;
    }
    return whole;
}

}  // namespace libddp
