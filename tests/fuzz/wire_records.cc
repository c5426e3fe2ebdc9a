// TLS records from an end that knows the key: of the kinds and sizes that the input wants, cut and changed on the way, with others between
// them.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/sockets.h"
#include "fuzz/target.h"
#include "wire/channels.h"
#include "wire/crypto.h"

namespace fuzz::wire_records {
namespace {

using namespace libddp;
using wire::Records;

constexpr Records::Secret kSecrets[2] = {{1}, {2}};
const std::string kKeyUpdate("\x18\0\0\1", 4);

std::string record(Records& sealing, Records::Content kind, std::string content) {
    content.resize(std::min(content.size(), Records::kLongest));
    std::string bytes(Records::whole(content.size()), '\0');
    const iovec piece{content.data(), content.size()};
    sealing.seal(kind, wire::Parts(&piece, 1), content.size(), reinterpret_cast<unsigned char*>(bytes.data()));
    // What replaces the key in the receiver does so here.
    if (kind == Records::Content::kHandshake && content.size() == 5 && content.compare(0, 4, kKeyUpdate) == 0)
        sealing.replace_key();
    return bytes;
}

// As many bytes as come, in pieces of the sizes that the input wants.
std::string receive(wire::Channel& from, Reader& bytes) {
    std::string came;
    accepts([&] {
        for (;;) {
            std::vector<char> first(1 + bytes.byte() * 80U), second(1 + bytes.byte());
            const iovec parts[] = {{first.data(), first.size()}, {second.data(), second.size()}};
            const std::size_t size = from.receive(parts, 2);
            if (size == 0) return;
            came.append(first.data(), std::min(size, first.size()));
            if (size > first.size()) came.append(second.data(), size - first.size());
        }
    });
    return came;
}

}  // namespace

DDP_FUZZ_TARGET(wire_records, input) {
    const wire::Cryptography inside;
    Reader bytes(input);
    Sockets in;
    Records sealing(kSecrets[0], true, 0);
    const auto receiver =
        wire::make_tls_channel(std::move(in.mine), Records(kSecrets[1], true, 0), Records(kSecrets[0], false, 0));
    std::string sent, received;
    while (!bytes.empty()) {
        const std::uint8_t what = bytes.byte();
        if (what < 100) {
            std::string content =
                std::string(bytes.piece(60)) + std::string(bytes.number<std::uint16_t>() % 16'500, 'x');
            in.send(record(sealing, Records::Content::kData, content));
            sent += content.substr(0, Records::kLongest);
        } else if (what < 120) {
            in.send(record(sealing, Records::Content::kHandshake, kKeyUpdate + static_cast<char>(bytes.flag())));
        } else if (what < 140) {
            const auto kind = static_cast<Records::Content>(bytes.byte());
            const std::string content(bytes.piece());
            in.send(record(sealing, kind, content));
            if (kind == Records::Content::kData) sent += content;
        } else if (what < 160) {
            const std::string whole = record(sealing, Records::Content::kData, std::string(bytes.piece()));
            std::string changed = whole;
            changed[bytes.number<std::uint16_t>() % whole.size()] ^= static_cast<char>(1 + bytes.below(255));
            changed.resize(whole.size() - bytes.below(8));
            in.send(changed);
        } else if (what < 180) {
            in.send(bytes.piece());
        } else if (what < 200) {
            std::string answer(bytes.number<std::uint16_t>(), 'y');
            const iovec part{answer.data(), answer.size()};
            accepts([&] { receiver->send(&part, 1); });
            in.receive();
        } else {
            received += receive(*receiver, bytes);
        }
        check(sent.compare(0, received.size(), received) == 0, "other bytes are received than were sent");
    }
    in.end();
    received += receive(*receiver, bytes);
    check(sent.compare(0, received.size(), received) == 0, "other bytes are received than were sent");
}

}  // namespace fuzz::wire_records
