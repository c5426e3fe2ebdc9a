// Frames of a channel that knows the secret, cut and changed on the way, with others between them.
// Keys are replaced after three.
#include <cstring>
#include <string>

#include "fuzz/channels.h"
#include "fuzz/sockets.h"
#include "fuzz/target.h"
#include "wire/channels.h"
#include "wire/crypto.h"

namespace fuzz::wire_frames {
namespace {

using namespace libddp;

const wire::Frames::Secret kSecrets[2] = {{1}, {2}};

std::unique_ptr<wire::Channel> channel(Descriptor fd, int end) {
    return wire::make_encrypted_channel(std::move(fd), wire::Frames(kSecrets[end], true, 3),
                                        wire::Frames(kSecrets[1 - end], false, 3));
}

}  // namespace

DDP_FUZZ_TARGET(wire_frames, input) {
    const wire::Cryptography inside;
    Reader bytes(input);
    Sockets out, in;  // from the sender to the relay, and from the relay to the receiver
    const auto sender = channel(std::move(out.mine), 0), receiver = channel(std::move(in.mine), 1);
    std::string sent, received;
    bool changed = false;
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
            changed = changed || what >= 150;
            changed = !in.send(frames) || changed;
        } else if (what < 200) {
            changed = true;
            in.send(bytes.piece());
        } else {
            received += receive(*receiver, bytes);
        }
        check(sent.compare(0, received.size(), received) == 0,
              "other bytes are received than were sent");
    }
    for (bool more = !changed; more;) {
        const bool all_sent = sender->flush();
        const std::string frames = out.receive(), content = receive(*receiver, bytes);
        changed = !in.send(frames) || changed;
        received += content;
        more = !changed && (!all_sent || !frames.empty() || !content.empty());
    }
    in.end();
    received += receive(*receiver, bytes);
    check(sent.compare(0, received.size(), received) == 0,
          "other bytes are received than were sent");
    check(changed || received == sent, "not all bytes are received");
}

}  // namespace fuzz::wire_frames
