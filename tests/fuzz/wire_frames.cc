// Frames with message authentication codes: those of a channel that knows the key, cut and changed
// on the way, with others between them.
#include <cstring>
#include <string>

#include "fuzz/channels.h"
#include "fuzz/sockets.h"
#include "fuzz/target.h"
#include "wire/channels.h"

namespace fuzz::wire_frames {
namespace {

using namespace libddp;

constexpr unsigned char kKeys[2][wire::FrameCodes::kKeySize] = {{1}, {2}};

std::unique_ptr<wire::Channel> channel(Descriptor fd, int end) {
    return wire::make_auth_channel(std::move(fd), wire::FrameCodes(kKeys[end], true),
                                   wire::FrameCodes(kKeys[1 - end], false));
}

}  // namespace

DDP_FUZZ_TARGET(wire_frames, input) {
    Reader bytes(input);
    Sockets out, in;  // from the sender to the relay, and from the relay to the receiver
    const auto sender = channel(std::move(out.mine), 0), receiver = channel(std::move(in.mine), 1);
    std::string sent, received;
    while (!bytes.empty()) {
        const std::uint8_t what = bytes.byte();
        if (what < 100) {
            std::string message = std::string(bytes.piece(60)) +
                                  std::string(bytes.number<std::uint16_t>() % 20'000, 'x');
            iovec part{message.data(), message.size()};
            if (!message.empty()) sent += message.substr(0, sender->send(&part, 1));
        } else if (what < 180) {
            std::string frames = out.receive();
            if (what >= 150 && !frames.empty())
                frames[bytes.number<std::uint16_t>() % frames.size()] ^=
                    static_cast<char>(bytes.byte());
            in.send(frames);
        } else if (what < 200) {
            in.send(bytes.piece());
        } else {
            received += receive(*receiver, bytes);
        }
        check(sent.compare(0, received.size(), received) == 0,
              "other bytes are received than were sent");
    }
    in.end();
    received += receive(*receiver, bytes);
    check(sent.compare(0, received.size(), received) == 0,
          "other bytes are received than were sent");
}

}  // namespace fuzz::wire_frames
