// Sends back what comes over a channel: frames_peer SOCKET SECRET SECRET FRAMES, with the secrets of
// what it sends and of what it receives in hexadecimal, and after how many frames keys are replaced.
// Says at last how the connection ended.
#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "wire/channels.h"
#include "wire/crypto.h"

namespace {

using namespace libddp;

wire::Frames::Secret secret_of(const std::string& digits) {
    wire::Frames::Secret secret;
    for (std::size_t i = 0; i < secret.size(); ++i)
        secret[i] = static_cast<unsigned char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
    return secret;
}

void wait(const wire::Channel& channel, short events) {
    pollfd one{channel.fd(), events, 0};
    if (poll(&one, 1, 60'000) == 0) std::exit(2);
}

void send_all(wire::Channel& channel, std::string bytes) {
    while (!bytes.empty()) {
        const iovec piece{bytes.data(), bytes.size()};
        bytes.erase(0, channel.send(&piece, 1));
        if (!bytes.empty()) wait(channel, POLLOUT);
    }
    while (!channel.flush()) wait(channel, POLLOUT);
}

}  // namespace

int main(int, char** arguments) {
    const wire::Cryptography inside;
    const std::uint64_t frames_of_a_key = std::stoull(arguments[4]);
    const auto channel =
        wire::make_encrypted_channel(Descriptor(std::stoi(arguments[1])),
                                     wire::Frames(secret_of(arguments[2]), true, frames_of_a_key),
                                     wire::Frames(secret_of(arguments[3]), false, frames_of_a_key));
    try {
        for (;;) {
            std::string bytes(50'000, '\0');
            const iovec piece{bytes.data(), bytes.size()};
            bytes.resize(channel->receive(&piece, 1));
            if (bytes.empty())
                wait(*channel, POLLIN);
            else
                send_all(*channel, bytes);
        }
    } catch (const Error& error) {
        std::puts(error.what());
    }
    return 0;
}
