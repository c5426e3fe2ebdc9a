#include "rendezvous/protocol.h"

#include <algorithm>

#include "util/error.h"

namespace libddp {
namespace {

std::string frame(Op op, std::uint64_t id, std::string_view payload) {
    ByteWriter out;
    out.reserve(kFrameHeader + payload.size());
    out.u32(static_cast<std::uint32_t>(payload.size()));
    out.u8(static_cast<std::uint8_t>(op));
    out.u64(id);
    out.raw(payload);
    return out.take();
}

std::size_t bytes_in(const Strings& list) {
    std::size_t total = 0;
    for (const auto& item : list) total += item.size() + 4;
    return total;
}

void write_request(ByteWriter& out, const Request& request) {
    out.reserve(64 + bytes_in(request.keys) + bytes_in(request.values));
    out.i64(request.number);
    out.i64(request.timeout_ms);
    out.strings(request.keys);
    out.strings(request.values);
}

Request read_request(ByteReader& in, Op op) {
    Request request;
    request.op = op;
    request.number = in.i64();
    request.timeout_ms = in.i64();
    request.keys = in.strings();
    request.values = in.strings();
    in.end();
    return request;
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
    // Every string has at least its own length field: a count beyond that is a lie, found before memory is reserved for
    // it.
    if (count > left_.size() / 4) fail(DDP_ERROR_IO, "malformed store message: it cannot hold ", count, " strings");
    Strings list;
    list.reserve(std::min(count, limits::kKeysPerRequest));
    for (std::size_t i = 0; i < count; ++i) list.push_back(string());
    return list;
}

void ByteReader::end() const {
    if (!left_.empty()) fail(DDP_ERROR_IO, "malformed store message: ", left_.size(), " bytes too many");
}

std::string encode_request(std::uint64_t id, const Request& request) {
    ByteWriter out;
    write_request(out, request);
    return frame(request.op, id, out.take());
}

std::string encode_record(Caller caller, const Request& request) {
    ByteWriter out;
    out.u64(caller.owner);
    write_request(out, request);
    return frame(request.op, caller.request, out.take());
}

std::string encode_reply(std::uint64_t id, const Outcome& outcome) {
    std::size_t size = 64 + outcome.message.size() + bytes_in(outcome.values);
    if (size > limits::kFrame)
        return encode_reply(id, failed(DDP_ERROR_LIMIT, str("the answer would have ", size, " bytes, at most ",
                                                            limits::kFrame, " are allowed: ask for less at a time")));
    ByteWriter out;
    out.reserve(size);
    out.i64(outcome.code);
    out.i64(outcome.number);
    out.string(outcome.message);
    out.strings(outcome.values);
    return frame(Op::kReply, id, out.take());
}

std::string encode_closing(std::string_view reason) {
    ByteWriter out;
    out.string(reason);
    return frame(Op::kClosing, 0, out.take());
}

Request decode_request(const Frame& from) {
    ByteReader in(from.payload);
    return read_request(in, from.op);
}

Request decode_record(const Frame& from, Caller& caller) {
    ByteReader in(from.payload);
    caller = {in.u64(), from.id};
    return read_request(in, from.op);
}

Outcome decode_reply(const Frame& from) {
    ByteReader in(from.payload);
    Outcome outcome;
    outcome.code = static_cast<ddp_status>(in.i64());
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

std::optional<Frame> FrameReader::next() {
    std::string_view rest = std::string_view(buffer_).substr(start_);
    if (rest.size() < kFrameHeader) return std::nullopt;
    ByteReader header(rest.substr(0, kFrameHeader));
    std::size_t size = header.u32();
    if (size > limits::kFrame)
        fail(DDP_ERROR_IO, "malformed store message: a frame of ", size, " bytes, at most ", limits::kFrame,
             " are allowed");
    if (rest.size() - kFrameHeader < size) return std::nullopt;
    Frame whole;
    whole.op = static_cast<Op>(header.u8());
    whole.id = header.u64();
    whole.payload.assign(rest.substr(kFrameHeader, size));
    start_ += kFrameHeader + size;
    // Consumed bytes are dropped once they are the larger part: linear work in total, and no memory kept from a large
    // frame.
    if (start_ * 2 >= buffer_.size()) {
        std::string kept(buffer_, start_);
        buffer_.swap(kept);
        start_ = 0;
    }
    return whole;
}

}  // namespace libddp
