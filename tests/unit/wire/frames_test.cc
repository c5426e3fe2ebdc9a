// Frames: against bytes that another library has made, and against OpenSSL's own end of a handshake.
#include <openssl/ssl.h>
#include <sys/resource.h>

#include <new>

#include "support.h"
#include "wire/channels.h"
#include "wire/crypto.h"

namespace libddp::wire::testing {
namespace {

std::string from_hex(const std::string& digits) {
    std::string bytes;
    for (std::size_t at = 0; at < digits.size(); at += 2)
        bytes += static_cast<char>(std::stoi(digits.substr(at, 2), nullptr, 16));
    return bytes;
}

std::string seal(Frames& frames, std::string content) {
    std::string frame(Frames::whole(content.size()), '?');
    // In two pieces of odd sizes.
    const std::size_t first = content.size() / 3;
    const iovec pieces[] = {{content.data(), first},
                            {content.data() + first, content.size() - first}};
    frames.seal(Parts(pieces, 2), content.size(), reinterpret_cast<unsigned char*>(frame.data()));
    return frame;
}

std::optional<std::string> open_frame(Frames& frames, const std::string& frame) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(frame.data());
    const std::optional<std::size_t> size = Frames::content_size(bytes);
    if (!size || Frames::whole(*size) > frame.size()) return std::nullopt;
    std::string content(*size, '?');
    const std::size_t first = *size / 2;
    const iovec places[] = {{content.data(), first}, {content.data() + first, *size - first}};
    if (!frames.open(bytes, places + (first == 0 ? 1 : 0), first == 0 ? 1 : 2)) return std::nullopt;
    return content;
}

// Two frames of the first key and one of the next: frames.py --vectors.
TEST(Frames, AreThoseOfTheDescription) {
    Frames::Secret secret;
    for (std::size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<unsigned char>(i);
    const std::string contents[] = {"gradients", std::string(20, '\0'), "!"};
    const std::string expected[] = {
        "09000000d0eac816703d9dbbbb404320ec6b652773af0008f550db7d50",
        "140000002576fcc35d378eadc63563e15e206d66d6aaef68d0f5500327cf82888eee0bccb38058b0",
        "01000000842d8aff995b029709284f9ff0397da801"};
    const Cryptography inside;
    Frames sealing(secret, true, 2), opening(secret, false, 2), late(secret, false, 2);
    for (std::size_t i = 0; i < std::size(contents); ++i) {
        const std::string frame = seal(sealing, contents[i]);
        EXPECT_EQ(frame, from_hex(expected[i])) << i;
        EXPECT_EQ(open_frame(opening, frame), contents[i]);
        if (i != 1) continue;
        EXPECT_EQ(open_frame(late, frame), std::nullopt) << "one is missing before it";
    }
}

TEST(Frames, HaveBetween1And65536Bytes) {
    for (const auto& [header, size] :
         {std::pair(std::string("\1\0\0\0", 4), std::optional<std::size_t>(1)),
          {std::string("\0\0\1\0", 4), 65'536},
          {std::string("\1\0\1\0", 4), std::nullopt},
          {std::string("\0\0\0\0", 4), std::nullopt},
          {std::string("\1\0\0\1", 4), std::nullopt}})
        EXPECT_EQ(Frames::content_size(reinterpret_cast<const unsigned char*>(header.data())),
                  size);
}

// A channel whose other end is OpenSSL's, as a server.
class BesideOpenSsl : public ::testing::Test {
protected:
    BesideOpenSsl() : context_(SSL_CTX_new(TLS_server_method())) {
        SSL_CTX_set_psk_find_session_callback(
            context_, [](SSL* ssl, const unsigned char*, std::size_t, SSL_SESSION** session) {
                const Key key = key_of("s3cret");
                const unsigned char cipher[] = {0x13, 0x01};
                *session = SSL_SESSION_new();
                SSL_SESSION_set1_master_key(*session, key.data(), key.size());
                SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, cipher));
                SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
                return 1;
            });
        accept_any_application(context_);
        SSL_CTX_set_num_tickets(context_, 0);
        ssl_ = SSL_new(context_);
    }
    ~BesideOpenSsl() override {
        SSL_free(ssl_);
        SSL_CTX_free(context_);
    }

    // Makes the channel, if OpenSSL's first bytes are right.
    ErrorInfo meet(const std::string& first) {
        auto [mine, other] = connected();
        other_ = std::move(other);
        SSL_set_fd(ssl_, other_.get());
        End end{Handshake::client(std::move(mine), "me", key_of("s3cret"), Protection::kEncrypted)};
        const int size = static_cast<int>(first.size());
        bool said = false;
        for (int turn = 0; turn < 10 && !end.over(); ++turn) {
            end.step();
            if (SSL_accept(ssl_) == 1 && !said) said = SSL_write(ssl_, first.data(), size) == size;
        }
        char byte = 0;
        if (end.done && SSL_read(ssl_, &byte, 1) == 1 && byte == 'r')
            channel_ = end.handshake->take_channel();
        return end.error;
    }

    Frames frames(const std::string& label, bool sends) {
        Frames::Secret secret;
        EXPECT_EQ(SSL_export_keying_material(ssl_, secret.data(), secret.size(), label.data(),
                                             label.size(), nullptr, 0, 0),
                  1);
        return {secret, sends};
    }

    SSL_CTX* context_;
    SSL* ssl_ = nullptr;
    Descriptor other_;
    std::unique_ptr<Channel> channel_;
};

TEST_F(BesideOpenSsl, EachDirectionHasTheSecretOfItsLabel) {
    const ErrorInfo error = meet("w");
    ASSERT_TRUE(error.ok()) << error.message;
    Frames from_client = frames("EXPERIMENTAL libddp from the client", false),
           from_server = frames("EXPERIMENTAL libddp from the server", true);
    EXPECT_EQ(send_some(*channel_, "up"), 2U);
    EXPECT_EQ(open_frame(from_client, read_all(other_.get())), "up");
    write_all(other_.get(), seal(from_server, "down"));
    EXPECT_EQ(receive_some(*channel_, 100), "down");
    // A reflected frame is of the other direction.
    EXPECT_EQ(send_some(*channel_, "up"), 2U);
    write_all(other_.get(), read_all(other_.get()));
    EXPECT_EQ(error_of([&] { receive_some(*channel_, 100); }).code, DDP_ERROR_PERMISSION_DENIED);
}

TEST_F(BesideOpenSsl, DataDoNotComeWithTheWelcome) {
    EXPECT_EQ(meet("wXYZ").code, DDP_ERROR_UNAVAILABLE);
}

#ifndef DDP_SANITIZED  // sanitizers end a process that finds no memory
// A key that was replaced by half would protect two frames with one nonce.
TEST(Frames, NothingIsSentAfterAKeyCouldNotBeReplaced) {
    const Cryptography inside;
    auto [mine, other] = connected();
    const auto channel =
        make_encrypted_channel(std::move(mine), Frames({{1}}, true, 3), Frames({{2}}, false, 3));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(send_some(*channel, "before"), 6U);
    read_all(other.get());
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    const rlimit none{0, before.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    EXPECT_THROW(send_some(*channel, "the fourth"), std::bad_alloc);
    setrlimit(RLIMIT_AS, &before);
    for (int i = 0; i < 2; ++i)
        EXPECT_EQ(error_of([&] { send_some(*channel, "after"); }).code, DDP_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(read_all(other.get()), "");
}
#endif

}  // namespace
}  // namespace libddp::wire::testing
