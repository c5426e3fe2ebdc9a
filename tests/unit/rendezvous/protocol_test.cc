#include "rendezvous/protocol.h"

#include <random>

#include "support.h"
#include "util/printable.h"

namespace libddp {
namespace {

Request sample() {
    Request request;
    request.op = Op::kCompareSet;
    request.keys = {"key", std::string("with\0nul", 8)};
    request.values = {"", std::string(300, '\xff')};
    request.number = -7;
    request.timeout_ms = kForever;
    return request;
}

void expect_same(const Request& a, const Request& b) {
    EXPECT_EQ(a.op, b.op);
    EXPECT_EQ(a.keys, b.keys);
    EXPECT_EQ(a.values, b.values);
    EXPECT_EQ(a.number, b.number);
    EXPECT_EQ(a.timeout_ms, b.timeout_ms);
}

Frame only_frame(const std::string& bytes) {
    FrameReader reader;
    reader.feed(bytes);
    auto frame = reader.next();
    EXPECT_TRUE(frame);
    EXPECT_EQ(reader.pending(), 0u);
    return frame ? *frame : Frame();
}

TEST(Protocol, RequestRoundTrip) {
    Frame frame = only_frame(encode_request(0xfedcba9876543210u, sample()));
    EXPECT_EQ(frame.id, 0xfedcba9876543210u);
    expect_same(decode_request(frame), sample());
}

TEST(Protocol, ReplyRoundTrip) {
    Outcome outcome = failed(DDP_ERROR_TIMEOUT, "no");
    outcome.number = INT64_MIN;
    outcome.values = {"a", ""};
    const std::string payload = encode_reply_payload(outcome);
    Outcome back = decode_reply(only_frame(encode_reply_header(5, payload.size()) + payload));
    EXPECT_EQ(back.code, DDP_ERROR_TIMEOUT);
    EXPECT_EQ(back.message, "no");
    EXPECT_EQ(back.number, INT64_MIN);
    EXPECT_EQ(back.values, outcome.values);
    EXPECT_EQ(decode_closing(only_frame(encode_closing("why"))), "why");
}

TEST(Protocol, BytesAreLittleEndianAndStable) {
    Request request;
    request.op = Op::kSet;
    request.keys = {"k"};
    request.values = {"v"};
    std::string expected(
        "\x22\0\0\0\x01\x02\x01\0\0\0\0\0\0"  // length 34, op 1, id 0x0102
        "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"    // number, timeout
        "\1\0\0\0\1\0\0\0k\1\0\0\0\1\0\0\0v",
        13 + 16 + 18);
    EXPECT_EQ(encode_request(0x0102, request), expected);
}

TEST(Protocol, AnyCutIsNotAFrameAndAnyCutPayloadIsRefused) {
    std::string bytes = encode_request(1, sample());
    for (std::size_t size = 0; size < bytes.size(); ++size) {
        FrameReader reader;
        reader.feed(std::string_view(bytes).substr(0, size));
        EXPECT_FALSE(reader.next()) << size;
    }
    Frame whole = only_frame(bytes);
    for (std::size_t size = 0; size < whole.payload.size(); ++size) {
        Frame cut = whole;
        cut.payload.resize(size);
        EXPECT_EQ(testing::error_of([&] { decode_request(cut); }).code, DDP_ERROR_IO) << size;
    }
    whole.payload += 'x';
    EXPECT_EQ(testing::error_of([&] { decode_request(whole); }).code, DDP_ERROR_IO);
}

TEST(Protocol, FramesInPiecesAndTogether) {
    std::string bytes =
        encode_request(1, sample()) + encode_closing("x") + encode_request(2, sample());
    FrameReader reader;
    std::vector<std::uint64_t> ids;
    for (char byte : bytes) {
        reader.feed({&byte, 1});
        while (auto frame = reader.next()) ids.push_back(frame->id);
    }
    EXPECT_EQ(ids, (std::vector<std::uint64_t>{1, 0, 2}));
    FrameReader at_once;
    at_once.feed(bytes);
    EXPECT_EQ(at_once.next()->id, 1u);
    EXPECT_EQ(at_once.next()->id, 0u);
    EXPECT_EQ(at_once.next()->id, 2u);
    EXPECT_FALSE(at_once.next());
}

TEST(Protocol, LengthsOfTheWireAreNotTrusted) {
    FrameReader reader;
    reader.feed(std::string("\xff\xff\xff\xff\x01", 5) + std::string(8, '\0'));
    EXPECT_EQ(testing::error_of([&] { reader.next(); }).code, DDP_ERROR_IO);

    ByteWriter out;
    out.i64(0);
    out.i64(0);
    out.u32(0xffffffffu);  // so many keys
    Frame frame{Op::kCheck, 1, out.take()};
    EXPECT_EQ(testing::error_of([&] { decode_request(frame); }).code, DDP_ERROR_IO);
}

TEST(Protocol, AReplyIsASuccessOrAnError) {
    const auto reply_with = [](std::int64_t code) {
        ByteWriter out;
        out.i64(code);
        out.i64(0);
        out.string("");
        out.strings({});
        return testing::error_of([&] { decode_reply({Op::kReply, 1, out.take()}); }).code;
    };
    EXPECT_EQ(reply_with(0), DDP_OK);
    EXPECT_EQ(reply_with(-1), DDP_OK);
    for (const std::int64_t code : {std::int64_t{1}, std::int64_t{1} << 32, INT64_MIN, INT64_MAX})
        EXPECT_EQ(reply_with(code), DDP_ERROR_IO) << code;
}

TEST(Protocol, RandomPayloadsNeverDoMoreThanThrow) {
    std::mt19937 random(1);
    for (int round = 0; round < 20'000; ++round) {
        Frame frame = only_frame(encode_request(1, sample()));
        for (int flips = 0; flips < 3; ++flips)
            frame.payload[random() % frame.payload.size()] = static_cast<char>(random());
        testing::error_of([&] { invalid(decode_request(frame)); });
        testing::error_of([&] { decode_reply(frame); });
    }
}

TEST(Request, Limits) {
    Request request;
    request.op = Op::kSet;
    request.keys = {std::string(limits::kKey, 'k')};
    request.values = {std::string(limits::kValue, 'v')};
    EXPECT_FALSE(invalid(request));
    request.values[0] += 'v';
    EXPECT_EQ(invalid(request)->code, DDP_ERROR_LIMIT);
    request.values[0].clear();
    request.keys[0] += 'k';
    EXPECT_EQ(invalid(request)->code, DDP_ERROR_LIMIT);
    request.keys[0].clear();
    EXPECT_EQ(invalid(request)->code, DDP_ERROR_INVALID_ARGUMENT);

    Request check;
    check.op = Op::kCheck;
    check.keys.assign(limits::kKeysPerRequest + 1, "k");
    EXPECT_EQ(invalid(check)->code, DDP_ERROR_LIMIT);
    check.keys.clear();
    check.timeout_ms = -2;
    EXPECT_EQ(invalid(check)->code, DDP_ERROR_INVALID_ARGUMENT);
    check.op = static_cast<Op>(99);
    EXPECT_EQ(invalid(check)->code, DDP_ERROR_UNSUPPORTED);
}

TEST(Request, NamesInMessages) {
    EXPECT_EQ(in_quotes("a b"), "'a b'");
    EXPECT_EQ(in_quotes(std::string("\0\xff\n", 3)), "'\\x00\\xff\\x0a'");
    EXPECT_LT(in_quotes(std::string(1024, 'x')).size(), 110u);
}

TEST(Version, IsInTheIdentity) {
    EXPECT_EQ(version_of(store_identity()), kProtocolVersion);
    EXPECT_EQ(version_of("store 17"), 17U);
    for (const char* other :
         {"", "store", "store ", "store x", "store 3 ", "store 99999999999", "link 3"})
        EXPECT_FALSE(version_of(other)) << other;
    EXPECT_EQ(decode_version(encode_version()), kProtocolVersion);
}

}  // namespace
}  // namespace libddp
