// One operation on a store and its result, as plain values: what the wire and the log of a file
// store carry.
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
    kCheck = 6,
    kWait = 7,
    kRemove = 10,
    kListKeys = 12,
    kSetWill = 17,  // keys: the will's, and perhaps the condition's; values: theirs
    kRemoveWill = 18,
    kCancel = 19,   // number: the wait to forget. Never answered.
    kGoodbye = 20,  // the caller leaves on purpose. Never answered.
    kReply = 64,    // server to client
    kClosing = 65,  // server to client: the server ends on purpose
};

namespace limits {
inline constexpr std::size_t kKey = 1024;
inline constexpr std::size_t kValue = std::size_t{64} << 20;
inline constexpr std::size_t kKeysPerRequest = 65'536;
// A request or reply as a whole: list_keys returns this much, and compare_set sends two values.
inline constexpr std::size_t kFrame = std::size_t{256} << 20;
// The most that a store holds. Waits count.
inline constexpr std::size_t kTotal = std::size_t{1} << 30;
// Waits and watches that one client may have open at once.
inline constexpr std::size_t kWaitsPerOwner = 65'536;
}  // namespace limits

inline constexpr std::int64_t kNoWait = 0;
inline constexpr std::int64_t kForever = -1;

using Strings = std::vector<std::string>;

struct Request {
    Op op = Op::kCheck;
    Strings keys = {};
    Strings values = {};                // compare_set: expected, desired; list_keys: the prefix
    std::int64_t number = 0;            // add: the amount; cancel: the request
    std::int64_t timeout_ms = kNoWait;  // kNoWait, kForever or milliseconds
};

struct Outcome {
    ddp_status code = DDP_OK;
    std::string message;
    std::int64_t number = 0;
    Strings values;
};

Outcome failed(ddp_status code, std::string message);

// The source of a request: a connection (or a participant) and its own number for the request.
struct Caller {
    std::uint64_t owner = 0;
    std::uint64_t request = 0;
    auto operator<=>(const Caller&) const = default;
};

// The failure that the request deserves whatever the store holds: wrong shape or beyond a limit.
// nullopt: none.
std::optional<Outcome> invalid(const Request& request);

// Whether the operation may have to wait for somebody else.
bool may_wait(Op op);

// Whether it leaves a trace in a store, so that all who keep one must know of it.
bool changes_state(Op op);

// The object of a request's wait: "key 'x'".
std::string describe_wait(const Request& request);

// The store's binary format. Everything is little endian.
//
// Wire: a channel (wire/channel.h) for which the client asks with store_identity(). In it the
// server first sends u32 its version. Then come frames in both directions:
//     u32 length of the payload | u8 operation | u64 request id | payload
// The id is the client's own number for a request; a reply carries the same one, so that a
// connection can have many requests open at once. Lengths are never trusted: a frame beyond
// limits::kFrame ends the connection, memory grows with the bytes that really came, and counts are
// checked against what is left of the payload before anything is reserved.
//
// A file store's log holds the frames of requests. The id is the owner there.

inline constexpr std::uint32_t kProtocolVersion = 4;
inline constexpr std::size_t kVersionSize = 4;

// The name of a client in the handshake, and the version that it then speaks; nullopt: it wants no
// store.
std::string store_identity();
std::optional<std::uint32_t> version_of(std::string_view identity);
// The label of the key in wire::derive_key.
inline constexpr std::string_view kStoreKey = "libddp store";

inline constexpr std::size_t kFrameHeader = 4 + 1 + 8;

struct Frame {
    Op op = Op::kReply;
    std::uint64_t id = 0;
    std::string payload;
};

// Fixed-width little-endian fields, appended to a string.
class ByteWriter {
public:
    void u8(std::uint8_t value) { out_.push_back(static_cast<char>(value)); }
    void u32(std::uint32_t value) { integer(value, 4); }
    void u64(std::uint64_t value) { integer(value, 8); }
    void i64(std::int64_t value) { integer(static_cast<std::uint64_t>(value), 8); }
    void raw(std::string_view bytes) { out_.append(bytes); }
    void string(std::string_view bytes);
    void strings(const Strings& list);
    void reserve(std::size_t bytes) { out_.reserve(bytes); }
    std::string take() { return std::move(out_); }

private:
    void integer(std::uint64_t value, int bytes);
    std::string out_;
};

// The counterpart. Every read throws Error (DDP_ERROR_IO) rather than pass the end.
class ByteReader {
public:
    explicit ByteReader(std::string_view bytes) : left_(bytes) {}

    std::uint8_t u8() { return static_cast<std::uint8_t>(integer(1)); }
    std::uint32_t u32() { return static_cast<std::uint32_t>(integer(4)); }
    std::uint64_t u64() { return integer(8); }
    std::int64_t i64() { return static_cast<std::int64_t>(integer(8)); }
    std::string_view raw(std::size_t size);
    std::string string() { return std::string(raw(u32())); }
    Strings strings();
    void end() const;  // throws if bytes are left

private:
    std::uint64_t integer(int bytes);
    std::string_view left_;
};

std::string encode_request(std::uint64_t id, const Request& request);
std::string encode_version();
std::uint32_t decode_version(std::string_view bytes);  // exactly kVersionSize
// A reply in two parts. Replies with the same outcome have the same second part.
std::string encode_reply_header(std::uint64_t id, std::size_t payload);
std::string encode_reply_payload(const Outcome& outcome);
std::string encode_closing(std::string_view reason);

// These throw Error (DDP_ERROR_IO) on anything malformed; whether the request makes sense is for
// invalid() to say.
Request decode_request(const Frame& frame);
Outcome decode_reply(const Frame& frame);
std::string decode_closing(const Frame& frame);

// Cuts a stream of bytes into frames.
class FrameReader {
public:
    void feed(std::string_view bytes) { buffer_.append(bytes); }
    // The next whole frame, or nullopt until more bytes come. Throws Error (DDP_ERROR_IO) on an
    // oversized one.
    std::optional<Frame> next();
    // Bytes that belong to a frame that is not whole yet.
    std::size_t pending() const { return buffer_.size() - start_; }
    // How many bytes that frame has, once its header has come; 0 before. Only if next() has found
    // none.
    std::size_t announced() const;
    // Sets memory aside for that frame, so that it is not copied as it grows.
    void expect_announced() { buffer_.reserve(start_ + announced()); }

private:
    std::string buffer_;
    std::size_t start_ = 0;
};

}  // namespace libddp
