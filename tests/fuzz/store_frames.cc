// The bytes of a connection: cut into frames, and each frame read as each kind of message.
#include <algorithm>

#include "fuzz/target.h"
#include "rendezvous/protocol.h"
#include "util/printable.h"

namespace fuzz::store_frames {
namespace {

using namespace libddp;

bool same(const Outcome& a, const Outcome& b) {
    return a.code == b.code && a.message == b.message && a.number == b.number &&
           a.values == b.values;
}

// A message has one form: what was read is written as it came.
void read_request(const Frame& frame, const std::string& bytes) {
    accepts([&] {
        const Request request = decode_request(frame);
        check(encode_request(frame.id, request) == bytes,
              "a request is written in another way than it was read");
        if (const auto failure = invalid(request))
            check(failure->code < 0, "an invalid request has no error");
        check(!describe_wait(request).empty(), "a wait has no description");
        for (const std::string& key : request.keys)
            check(printable(in_quotes(key)) == in_quotes(key), "a key is not made printable");
    });
}

void read_reply(const Frame& frame) {
    accepts([&] {
        const Outcome outcome = decode_reply(frame);
        check(outcome.code <= 0, "a reply has a code that is neither DDP_OK nor an error's");
        FrameReader again;
        const std::string payload = encode_reply_payload(outcome);
        again.feed(encode_reply_header(frame.id, payload.size()) + payload);
        const auto written = again.next();
        check(written && same(decode_reply(*written), outcome),
              "a reply changes when it is written and read");
    });
    accepts([&] { decode_closing(frame); });
}

}  // namespace

DDP_FUZZ_TARGET(store_frames, input) {
    Reader bytes(input);
    const std::size_t step = 1 + bytes.byte();
    FrameReader frames;
    accepts([&] {
        while (!bytes.empty()) {
            frames.feed(bytes.take(step));
            while (const auto frame = frames.next()) {
                ByteWriter whole;
                whole.u32(static_cast<std::uint32_t>(frame->payload.size()));
                whole.u8(static_cast<std::uint8_t>(frame->op));
                whole.u64(frame->id);
                whole.raw(frame->payload);
                read_request(*frame, whole.take());
                read_reply(*frame);
            }
        }
    });
    check(frames.pending() <= input.size(), "more bytes are pending than came");
}

}  // namespace fuzz::store_frames
