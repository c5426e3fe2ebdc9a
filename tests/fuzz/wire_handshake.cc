// Bytes of a stranger in a handshake: to a server or a client alone; or between both, whose bytes
// are changed on the way. The first byte says which, the second the protection.
#include <memory>
#include <string>

#include "fuzz/sockets.h"
#include "fuzz/target.h"
#include "wire/channel.h"

namespace fuzz::wire_handshake {
namespace {

using namespace libddp;
using wire::Handshake;
using wire::Protection;

constexpr const char* kIdentity = "group/0/1/0";

wire::Key key() {
    static const wire::Key made = wire::derive_key("a secret", "fuzz");
    return made;
}

std::optional<wire::Key> find_key(std::string_view identity) {
    if (identity != kIdentity) return std::nullopt;
    return key();
}

// Goes on with a handshake until it wants something of the peer. False: it is over.
bool goes_on(Handshake& handshake, bool& done) {
    return accepts([&] { done = handshake.advance() == Handshake::Wants::kNothing; }) && !done;
}

void alone(Reader& bytes, bool serves, Protection protection) {
    Sockets sockets;
    const auto handshake =
        serves ? Handshake::server(std::move(sockets.mine), find_key, protection)
               : Handshake::client(std::move(sockets.mine), kIdentity, key(), protection);
    bool done = false;
    while (goes_on(*handshake, done) && !bytes.empty()) {
        sockets.send(bytes.piece());
        sockets.receive();
    }
    check(!done, "a stranger has proved that it knows the key");
    sockets.end();
    goes_on(*handshake, done);
    check(!done, "a stranger has proved that it knows the key");
}

// From one end to the other, with a byte changed where the input wants it. True: something came.
bool relay(const Sockets& from, const Sockets& to, Reader& bytes, bool& changed) {
    std::string came = from.receive();
    if (came.empty()) return false;
    if (bytes.byte() >= 128) {
        const std::size_t at = bytes.number<std::uint16_t>() % came.size();
        const auto change = static_cast<char>(bytes.byte());
        // TLS 1.3 takes any version in the header of a handshake that is not encrypted yet.
        const bool ignored = at == 2 && came[0] == 22;
        changed = changed || (change != 0 && !ignored);
        came[at] = static_cast<char>(came[at] ^ change);
    }
    to.send(came);
    return true;
}

void between(Reader& bytes, Protection protection) {
    Sockets left, right;
    const auto client = Handshake::client(std::move(left.mine), kIdentity, key(), protection);
    const auto server = Handshake::server(std::move(right.mine), find_key, protection);
    bool client_done = false, server_done = false, changed = false, more = true;
    while (more) {
        const bool client_goes = goes_on(*client, client_done),
                   server_goes = goes_on(*server, server_done);
        const bool up = relay(left, right, bytes, changed),
                   down = relay(right, left, bytes, changed);
        more = (client_goes || server_goes) && (up || down);
    }
    check(changed || (client_done && server_done), "two ends that know the key do not meet");
    check(!changed || !(client_done && server_done), "a change on the way was not noticed");
    if (server_done) check(server->identity() == kIdentity, "a client has another identity");
}

}  // namespace

DDP_FUZZ_TARGET(wire_handshake, input) {
    Reader bytes(input);
    const std::size_t which = bytes.below(3);
    const auto protection = static_cast<Protection>(bytes.below(2));
    if (which == 2)
        between(bytes, protection);
    else
        alone(bytes, which == 0, protection);
}

}  // namespace fuzz::wire_handshake
