// TLS 1.3 records: against the example of RFC 8448, and against OpenSSL at the other end.
#include <openssl/ssl.h>
#include <sys/resource.h>

#include <functional>
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

// RFC 8448, 3: the client's first application data.
TEST(Records, AreThoseOfTheStandard) {
    const std::string text =
        from_hex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
    const std::string expected = from_hex(
        "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20"
        "441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4");
    Records::Secret secret;
    std::copy(text.begin(), text.end(), secret.begin());
    std::string content(50, '\0');
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i);

    const Cryptography inside;
    std::string record(Records::whole(content.size()), '?');
    ASSERT_EQ(record.size(), expected.size());
    auto* bytes = reinterpret_cast<unsigned char*>(record.data());
    // In two pieces of odd sizes.
    const iovec pieces[] = {{content.data(), 7}, {content.data() + 7, 43}};
    Records(secret, true, 0).seal(Records::Content::kData, Parts(pieces, 2), content.size(), bytes);
    EXPECT_EQ(record, expected);

    EXPECT_EQ(Records::content_size(bytes), content.size());
    std::string opened(content.size(), '?');
    const iovec places[] = {{opened.data(), 31}, {opened.data() + 31, 19}};
    EXPECT_EQ(Records(secret, false, 0).open(bytes, content.size(), places, 2),
              Records::Content::kData);
    EXPECT_EQ(opened, content);
    EXPECT_EQ(Records(secret, false, 1).open(bytes, content.size(), places, 2), std::nullopt);
}

// A channel whose other end is OpenSSL's.
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
        SSL_CTX_set_alpn_select_cb(
            context_,
            [](SSL*, const unsigned char** chosen, unsigned char* size,
               const unsigned char* offered, unsigned, void*) {
                *chosen = offered + 1;
                *size = offered[0];
                return SSL_TLSEXT_ERR_OK;
            },
            nullptr);
        SSL_CTX_set_num_tickets(context_, 0);
        ssl_ = SSL_new(context_);
        SSL_set_msg_callback(ssl_, [](int sends, int, int kind, const void* message,
                                      std::size_t size, SSL*, void* self) {
            if (sends == 0 && kind == SSL3_RT_HANDSHAKE && size > 0 &&
                *static_cast<const char*>(message) == SSL3_MT_KEY_UPDATE)
                ++static_cast<BesideOpenSsl*>(self)->new_keys_;
        });
        SSL_set_msg_callback_arg(ssl_, this);
    }
    ~BesideOpenSsl() override {
        SSL_free(ssl_);
        SSL_CTX_free(context_);
    }

    void SetUp() override {
        const ErrorInfo error = meet("w");
        ASSERT_TRUE(error.ok()) << error.message;
        ASSERT_NE(channel_, nullptr);
    }

    // Makes the channel, if OpenSSL's first bytes are right.
    ErrorInfo meet(const std::string& first) {
        auto [mine, other] = connected();
        other_ = std::move(other);
        SSL_set_fd(ssl_, other_.get());
        End end{Handshake::client(std::move(mine), "me", key_of("s3cret"), Protection::kTls)};
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

    // Bytes of odd sizes from the channel to OpenSSL; and the other way.
    void expect_up(std::size_t size, unsigned seed) {
        const std::string bytes = random_bytes(size, seed);
        std::mt19937 random(seed);
        std::size_t sent = 0;
        std::string received;
        for (int idle = 0; received.size() < size && idle < 1000; ++idle) {
            const std::size_t step = random() % 60'000 + 1;
            sent += send_some(*channel_, std::string_view(bytes).substr(sent, step));
            channel_->flush();
            char piece[50'000];
            const int count = SSL_read(ssl_, piece, static_cast<int>(random() % sizeof piece + 1));
            if (count > 0) received.append(piece, static_cast<std::size_t>(count)), idle = 0;
        }
        EXPECT_TRUE(received == bytes) << received.size();
    }
    void expect_down(std::size_t size, unsigned seed) {
        const std::string bytes = random_bytes(size, seed);
        std::mt19937 random(seed);
        std::size_t sent = 0;
        int step = 0;
        std::string received;
        for (int idle = 0; received.size() < size && idle < 1000; ++idle) {
            // OpenSSL wants the same bytes again after it could not write them.
            if (step == 0)
                step = static_cast<int>(std::min<std::size_t>(size - sent, random() % 60'000 + 1));
            if (sent < size && SSL_write(ssl_, bytes.data() + sent, step) == step) {
                sent += static_cast<std::size_t>(step);
                step = 0;
            }
            const std::string piece = receive_some(*channel_, random() % 50'000 + 1);
            received += piece;
            if (!piece.empty()) idle = 0;
        }
        EXPECT_TRUE(received == bytes) << received.size();
    }

    SSL_CTX* context_;
    SSL* ssl_ = nullptr;
    Descriptor other_;
    std::unique_ptr<Channel> channel_;
    int new_keys_ = 0;  // that the channel has told OpenSSL of
};

TEST_F(BesideOpenSsl, BytesArriveInOrder) {
    for (unsigned seed = 1; seed < 4; ++seed) {
        expect_up(1'000'000, seed);
        expect_down(1'000'000, seed);
        expect_up(1, seed);
        expect_down(1, seed);
    }
}

TEST_F(BesideOpenSsl, OpenSslReplacesItsKey) {
    for (const int kind :
         {SSL_KEY_UPDATE_NOT_REQUESTED, SSL_KEY_UPDATE_REQUESTED, SSL_KEY_UPDATE_REQUESTED}) {
        ASSERT_EQ(SSL_key_update(ssl_, kind), 1);
        expect_down(100'000, 5);
        expect_up(100'000, 6);
        EXPECT_EQ(SSL_get_key_update_type(ssl_), SSL_KEY_UPDATE_NONE);
    }
    EXPECT_EQ(new_keys_, 2);
}

TEST_F(BesideOpenSsl, CloseNotifyIsTheEnd) {
    expect_down(1000, 7);
    SSL_write(ssl_, "last words", 10);
    SSL_shutdown(ssl_);
    EXPECT_EQ(receive_some(*channel_, 100), "last words");
    const ErrorInfo error = error_of([&] { receive_some(*channel_, 100); });
    EXPECT_EQ(error.code, DDP_ERROR_UNAVAILABLE);
    EXPECT_EQ(error.message, "the connection ended");
}

TEST_F(BesideOpenSsl, AnAlertIsNamed) {
    write_all(channel_->fd(), std::string("\x17\x03\x03\0\x20", 5) + std::string(32, 'x'));
    char byte = 0;
    EXPECT_LE(SSL_read(ssl_, &byte, 1), 0);
    const ErrorInfo error = error_of([&] { receive_some(*channel_, 100); });
    EXPECT_EQ(error.code, DDP_ERROR_PERMISSION_DENIED);
    EXPECT_EQ(error.message,
              "bytes of the connection were changed on the way (alert 20 of the other end)");
}

TEST_F(BesideOpenSsl, RecordsWithoutDataHaveABound) {
    for (int i = 0; i < 30; ++i) {
        SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
        EXPECT_EQ(SSL_do_handshake(ssl_), 1);
    }
    expect_down(10, 11);
    for (int i = 0; i < 40; ++i) {
        SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED);
        EXPECT_EQ(SSL_do_handshake(ssl_), 1);
    }
    const ErrorInfo error = error_of([&] { receive_some(*channel_, 100); });
    EXPECT_EQ(error.code, DDP_ERROR_PERMISSION_DENIED);
    EXPECT_EQ(error.message, "the other end sends records without data");
}

// A record that a rank with the key may send, but libddp never does.
TEST_F(BesideOpenSsl, PaddingIsRefused) {
    SSL_set_block_padding(ssl_, 4096);
    SSL_write(ssl_, "padded", 6);
    EXPECT_EQ(error_of([&] { receive_some(*channel_, 100); }).code, DDP_ERROR_PERMISSION_DENIED);
}

class BeforeAChannel : public BesideOpenSsl {
    void SetUp() override {}
};

TEST_F(BeforeAChannel, DataDoNotComeWithTheWelcome) {
    EXPECT_EQ(meet("wXYZ").code, DDP_ERROR_UNAVAILABLE);
}

class BesideOpenSslWithFewRecords : public BesideOpenSsl {
    void SetUp() override {
        const auto before = std::exchange(records_of_a_key, 3);
        BesideOpenSsl::SetUp();
        records_of_a_key = before;
    }
};

TEST_F(BesideOpenSslWithFewRecords, TheChannelReplacesItsKey) {
    for (int i = 1; i <= 30; ++i) {
        expect_up(10, static_cast<unsigned>(i));
        EXPECT_EQ(new_keys_, (i - 1) / 3);  // with the record after the third
    }
    expect_down(100'000, 8);
    expect_up(1'000'000, 9);
    EXPECT_GT(new_keys_, 30);
}

#ifndef DDP_SANITIZED  // sanitizers end a process that finds no memory
// A key that was replaced by half would protect two records with one nonce.
TEST_F(BesideOpenSslWithFewRecords, NothingIsSentAfterAKeyCouldNotBeReplaced) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(send_some(*channel_, "before"), 6U);
    read_all(other_.get());
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    const rlimit none{0, before.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    EXPECT_THROW(send_some(*channel_, "the fourth"), std::bad_alloc);
    setrlimit(RLIMIT_AS, &before);
    for (int i = 0; i < 2; ++i)
        EXPECT_EQ(error_of([&] { send_some(*channel_, "after"); }).code, DDP_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(read_all(other_.get()), "");
}
#endif

}  // namespace
}  // namespace libddp::wire::testing
