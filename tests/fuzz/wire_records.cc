// TLS records from an end that knows the key: of the kinds and sizes that the input wants, cut and
// changed on the way, with others between them.
#include <algorithm>
#include <cstring>
#include <string>

#include "fuzz/channels.h"
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
    sealing.seal(kind, wire::Parts(&piece, 1), content.size(),
                 reinterpret_cast<unsigned char*>(bytes.data()));
    // A record that replaces the key in the receiver does so here.
    if (kind == Records::Content::kHandshake && content.size() == 5 &&
        content.compare(0, 4, kKeyUpdate) == 0)
        sealing.replace_key();
    return bytes;
}

// The records of the receiver, opened by what knows its key.
class Answers {
public:
    void take(std::string_view bytes) {
        bytes_ += bytes;
        while (bytes_.size() >= Records::kHeader) {
            const auto* record = reinterpret_cast<const unsigned char*>(bytes_.data());
            const auto size = Records::content_size(record);
            check(size.has_value(), "the receiver sends what is no record");
            if (bytes_.size() < Records::whole(*size)) return;
            std::string content(*size, '\0');
            const iovec piece{content.data(), content.size()};
            const auto kind = opening_.open(record, *size, &piece, 1);
            if (kind == Records::Content::kHandshake) {
                check(content == kKeyUpdate + '\0', "the receiver sends another message");
                opening_.replace_key();
            } else {
                check(kind == Records::Content::kData, "a record of the receiver cannot be opened");
                data_ += content;
            }
            bytes_.erase(0, Records::whole(*size));
        }
    }
    const std::string& data() const { return data_; }

private:
    Records opening_{kSecrets[1], false, 0};
    std::string bytes_, data_;
};

}  // namespace

DDP_FUZZ_TARGET(wire_records, input) {
    const wire::Cryptography inside;
    Reader bytes(input);
    Sockets in;
    Records sealing(kSecrets[0], true, 0);
    Answers answers;
    const auto receiver = wire::make_tls_channel(std::move(in.mine), Records(kSecrets[1], true, 0),
                                                 Records(kSecrets[0], false, 0));
    std::string sent, received, answered;
    bool valid = true;  // nothing has been sent yet that the receiver refuses
    int without_data = 0;
    while (!bytes.empty()) {
        const std::uint8_t what = bytes.byte();
        if (what < 100) {
            std::string content = std::string(bytes.piece(60)) +
                                  std::string(bytes.number<std::uint16_t>() % 16'500, 'x');
            content.resize(std::min(content.size(), Records::kLongest));
            valid &= in.send(record(sealing, Records::Content::kData, content));
            without_data = content.empty() ? without_data + 1 : 0;
            sent += content;
        } else if (what < 120) {
            valid &= in.send(record(sealing, Records::Content::kHandshake,
                                    kKeyUpdate + static_cast<char>(bytes.flag())));
            ++without_data;
        } else if (what < 140) {
            valid = false;
            const auto kind = static_cast<Records::Content>(bytes.byte());
            const std::string content(bytes.piece());
            in.send(record(sealing, kind, content));
            if (kind == Records::Content::kData) sent += content;
        } else if (what < 160) {
            valid = false;
            const std::string whole =
                record(sealing, Records::Content::kData, std::string(bytes.piece()));
            std::string changed = whole;
            changed[bytes.number<std::uint16_t>() % whole.size()] ^=
                static_cast<char>(1 + bytes.below(255));
            changed.resize(whole.size() - bytes.below(8));
            in.send(changed);
        } else if (what < 180) {
            valid = false;
            in.send(bytes.piece());
        } else if (what < 200) {
            std::string answer(bytes.number<std::uint16_t>(), static_cast<char>(what));
            const iovec part{answer.data(), answer.size()};
            accepts([&] { answered += answer.substr(0, receiver->send(&part, 1)); });
            answers.take(in.receive());
        } else {
            received += receive(*receiver, bytes);
        }
        valid &= without_data <= 30;
        check(sent.compare(0, received.size(), received) == 0,
              "other bytes are received than were sent");
        check(answered.compare(0, answers.data().size(), answers.data()) == 0,
              "the receiver sends other bytes than its own");
    }
    in.end();
    received += receive(*receiver, bytes);
    check(sent.compare(0, received.size(), received) == 0,
          "other bytes are received than were sent");
    check(!valid || received == sent, "not all bytes are received");
}

}  // namespace fuzz::wire_records
