// Clients that get a channel, and the answers to the others.
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include "support.h"

namespace libddp::wire::testing {
namespace {

void expect_error(const ErrorInfo& error, ddp_status code, const std::string& part) {
    EXPECT_EQ(error.code, code) << error.message;
    EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
}

// Two ends with a relay between them.
struct Meeting {
    explicit Meeting(Protection client_wants = Protection::kEncrypted,
                     Protection server_wants = Protection::kEncrypted,
                     const std::string& client_secret = "s3cret",
                     const std::string& identity = "me")
        : client{Handshake::client(std::move(relay.client), identity, key_of(client_secret),
                                   client_wants)},
          server{Handshake::server(std::move(relay.server), knows("me", key_of("s3cret")),
                                   server_wants)} {}

    void run() {
        drive(client, server, [this] { return relay.pump(); });
    }

    Relay relay;
    End client;
    End server;
};

TEST(Handshake, BothEndsAreDone) {
    for (Protection protection : kAll) {
        Meeting meeting(protection, protection);
        meeting.run();
        EXPECT_TRUE(meeting.client.done) << meeting.client.error.message;
        EXPECT_TRUE(meeting.server.done) << meeting.server.error.message;
        EXPECT_EQ(meeting.server.handshake->identity(), "me");
        EXPECT_EQ(meeting.client.handshake->advance(), Handshake::Wants::kNothing);
        EXPECT_NE(meeting.client.handshake->take_channel(), nullptr);
        EXPECT_LT(meeting.relay.up.seen.size(), 1000U);
        EXPECT_LT(meeting.relay.down.seen.size(), 1000U);
    }
}

TEST(Handshake, AnotherKeyIsRefused) {
    for (Protection protection : kAll) {
        Meeting meeting(protection, protection, "S3cret");
        meeting.run();
        expect_error(meeting.client.error, DDP_ERROR_PERMISSION_DENIED, "another key");
        expect_error(meeting.server.error, DDP_ERROR_PERMISSION_DENIED, "another key");
        expect_error(error_of([&] { meeting.server.handshake->advance(); }),
                     DDP_ERROR_PERMISSION_DENIED, "another key");
        EXPECT_THROW(meeting.client.handshake->take_channel(), Error);
    }
}

TEST(Handshake, AnUnknownIdentityIsRefused) {
    Meeting meeting(Protection::kEncrypted, Protection::kEncrypted, "s3cret", "somebody else");
    meeting.run();
    expect_error(meeting.client.error, DDP_ERROR_PERMISSION_DENIED, "no key for 'somebody else'");
    expect_error(meeting.server.error, DDP_ERROR_PERMISSION_DENIED,
                 "'somebody else', for which the server has no key");
}

TEST(Handshake, IdentitiesAreShortTexts) {
    const std::string longest(128, 'i');
    auto [client, server] = connected();
    End one{Handshake::client(std::move(client), longest, key_of(""), Protection::kEncrypted)};
    End two{
        Handshake::server(std::move(server), knows(longest, key_of("")), Protection::kEncrypted)};
    drive(one, two);
    EXPECT_TRUE(one.done && two.done) << one.error.message;
    EXPECT_EQ(two.handshake->identity(), longest);
    for (const std::string& wrong : {longest + "i", std::string("a\0b", 3)})
        EXPECT_THROW(Handshake::client(Descriptor(), wrong, key_of(""), Protection::kEncrypted),
                     Error);
}

TEST(Handshake, ProtectionsMustBeEqual) {
    for (Protection client : kAll) {
        for (Protection server : kAll) {
            if (client == server) continue;
            Meeting meeting(client, server);
            meeting.run();
            expect_error(meeting.client.error, DDP_ERROR_PERMISSION_DENIED,
                         "does not offer a connection that is");
            expect_error(meeting.server.error, DDP_ERROR_PERMISSION_DENIED,
                         "the client wants a connection that is");
        }
    }
}

TEST(Handshake, ALookupMayThrow) {
    auto [client, server] = connected();
    End one{Handshake::client(std::move(client), "me", key_of(""), Protection::kEncrypted)};
    auto lookup = [](std::string_view) -> std::optional<Key> { fail(DDP_ERROR_LIMIT, "too many"); };
    End two{Handshake::server(std::move(server), lookup, Protection::kEncrypted)};
    drive(one, two);
    expect_error(two.error, DDP_ERROR_LIMIT, "too many");
    EXPECT_FALSE(one.error.ok());
}

// A hello that offers this many identities, whose binders are worth nothing.
std::string hello_with_identities(int count) {
    auto [mine, other] = connected();
    End client{Handshake::client(std::move(mine), "me", key_of(""), Protection::kEncrypted)};
    client.step();
    std::string hello = read_all(other.get());
    const auto number = [&hello](std::size_t at, int bytes) {
        std::size_t value = 0;
        for (int i = 0; i < bytes; ++i)
            value =
                value << 8 | static_cast<unsigned char>(hello[at + static_cast<std::size_t>(i)]);
        return value;
    };
    const auto two = [](std::size_t value) {
        return std::string{static_cast<char>(value >> 8), static_cast<char>(value)};
    };
    // record header | message header | version, random | session | suites | compression | extensions
    std::size_t at = 5 + 4 + 2 + 32;
    at += 1 + number(at, 1);
    at += 2 + number(at, 2);
    at += 1 + number(at, 1);
    std::string identities, binders;
    for (int i = 0; i < count; ++i) {
        identities += two(5) + str(10'000 + i) + std::string(4, '\0');
        binders += std::string(1, ' ') + std::string(32, 'b');
    }
    // The last extension: type, length, 8 bytes of identities with their length, 33 of binders.
    const std::size_t last = 2 + 2 + 2 + 8 + 2 + 33;
    std::string extensions = hello.substr(at + 2, hello.size() - at - 2 - last);
    const std::string keys = two(identities.size()) + identities + two(binders.size()) + binders;
    extensions += two(41) + two(keys.size()) + keys;
    std::string message = hello.substr(9, at - 9) + two(extensions.size()) + extensions;
    message = std::string("\1\0", 2) + two(message.size()) + message;
    return hello.substr(0, 3) + two(message.size()) + message;
}

TEST(Handshake, FewIdentitiesOfAHelloAreLookedUp) {
    for (const int offered : {1, 2, 100}) {
        auto [mine, other] = connected();
        int lookups = 0;
        End server{Handshake::server(
            std::move(mine),
            [&lookups](std::string_view identity) -> std::optional<Key> {
                EXPECT_EQ(identity, "10000");
                ++lookups;
                return std::nullopt;
            },
            Protection::kEncrypted)};
        write_all(other.get(), hello_with_identities(offered));
        server.step();
        EXPECT_EQ(server.error.code, DDP_ERROR_PERMISSION_DENIED) << server.error.message;
        EXPECT_EQ(lookups, 1) << offered;
    }
}

TEST(Handshake, SilenceIsNoError) {
    auto [client, server] = connected();
    End one{Handshake::client(std::move(client), "me", key_of(""), Protection::kEncrypted)};
    End two{Handshake::server(std::move(server), knows("me", key_of("")), Protection::kEncrypted)};
    for (int i = 0; i < 3; ++i) EXPECT_EQ(two.handshake->advance(), Handshake::Wants::kRead);
    EXPECT_EQ(one.handshake->advance(), Handshake::Wants::kRead);
    EXPECT_EQ(one.handshake->advance(), Handshake::Wants::kRead);
}

TEST(Handshake, BytesMayComeOneByOne) {
    for (Protection protection : kAll) {
        Meeting meeting(protection, protection);
        std::string waiting[2];
        meeting.relay.up.change = [&](std::string bytes) {
            return waiting[0] += bytes, std::string();
        };
        meeting.relay.down.change = [&](std::string bytes) {
            return waiting[1] += bytes, std::string();
        };
        // The relay holds everything back and gives one byte in each turn.
        auto [client, client_side] = connected();
        auto [server, server_side] = connected();
        End one{Handshake::client(std::move(client), "me", key_of(""), protection)};
        End two{Handshake::server(std::move(server), knows("me", key_of("")), protection)};
        drive(one, two, [&, c = client_side.get(), s = server_side.get()] {
            waiting[0] += read_all(c);
            waiting[1] += read_all(s);
            bool moved = false;
            for (int i = 0; i < 2; ++i) {
                if (waiting[i].empty()) continue;
                write_all(i == 0 ? s : c, waiting[i].substr(0, 1));
                waiting[i].erase(0, 1);
                moved = true;
            }
            return moved;
        });
        EXPECT_TRUE(one.done) << one.error.message;
        EXPECT_TRUE(two.done) << two.error.message;
    }
}

TEST(Handshake, StrangersAreNamed) {
    std::vector<std::string> texts = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "x", "\n",
                                      std::string(1, '\0')};
    for (unsigned i = 0; i < 100; ++i) texts.push_back(random_bytes(1 + i * 7, i));
    for (const bool to_server : {true, false}) {
        for (const std::string& text : texts) {
            if (text[0] == 21 || text[0] == 22) continue;
            auto [mine, other] = connected();
            End end{to_server ? Handshake::server(std::move(mine), knows("me", key_of("")),
                                                  Protection::kEncrypted)
                              : Handshake::client(std::move(mine), "me", key_of(""),
                                                  Protection::kEncrypted)};
            write_all(other.get(), text);
            end.step();
            expect_error(end.error, DDP_ERROR_UNAVAILABLE, "not libddp");
        }
    }
}

TEST(Handshake, WhatOnlyLooksLikeTlsIsRefused) {
    for (unsigned seed = 0; seed < 200; ++seed) {
        std::string text = random_bytes(100 + seed * 3, seed);
        text[0] = seed % 8 == 0 ? '\x15' : '\x16';
        text[1] = 3;
        text[2] = static_cast<char>(seed % 4);
        text[3] = 0;
        if (seed % 2 == 0) text[5] = seed % 4 == 0 ? 1 : 2;  // ClientHello or ServerHello
        for (const bool to_server : {true, false}) {
            auto [mine, other] = connected();
            End end{to_server ? Handshake::server(std::move(mine), knows("me", key_of("")),
                                                  Protection::kEncrypted)
                              : Handshake::client(std::move(mine), "me", key_of(""),
                                                  Protection::kEncrypted)};
            write_all(other.get(), text);
            end.step();
            if (end.error.ok()) {  // it waits for the rest of a message
                other.reset();
                end.step();
            }
            EXPECT_TRUE(end.error.code == DDP_ERROR_UNAVAILABLE ||
                        end.error.code == DDP_ERROR_PERMISSION_DENIED)
                << end.error.message;
        }
    }
}

TEST(Handshake, AStrangerMakesNobodyTakeManyBytes) {
    auto [mine, other] = connected();
    End end{Handshake::server(std::move(mine), knows("me", key_of("")), Protection::kEncrypted)};
    std::string record("\x16\x03\x01\x3f\xff\x01\x00\xff\xff",
                       9);  // the longest record: part of a ClientHello that is longer still
    record.resize(5 + 0x3fff);
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += record;
    std::size_t sent = 0;
    while (end.error.ok() && sent < bytes.size()) {
        const ssize_t count = ::send(other.get(), bytes.data() + sent,
                                     std::min<std::size_t>(512, bytes.size() - sent), MSG_NOSIGNAL);
        ASSERT_GT(count, 0);
        sent += static_cast<std::size_t>(count);
        end.step();
    }
    expect_error(end.error, DDP_ERROR_UNAVAILABLE, "not libddp");
    EXPECT_LE(sent, 16384U);
}

// Neither end is done unless the other may be, wherever the connection is cut.
TEST(Handshake, ACutConnectionIsNoChannel) {
    for (Protection protection : {Protection::kEncrypted, Protection::kPlain}) {
        Meeting whole(protection, protection);
        whole.run();
        const std::size_t up = whole.relay.up.seen.size();
        const std::size_t down = whole.relay.down.seen.size();
        for (std::size_t most = 1; most < up; ++most) {
            Meeting meeting(protection, protection);
            meeting.relay.up.most = most;
            meeting.run();
            EXPECT_FALSE(meeting.server.done) << most;
            expect_error(meeting.server.error, DDP_ERROR_UNAVAILABLE,
                         "closed the connection during the handshake");
        }
        for (std::size_t most = 1; most < down; ++most) {
            Meeting meeting(protection, protection);
            meeting.relay.down.most = most;
            meeting.run();
            EXPECT_FALSE(meeting.client.done || meeting.server.done) << most;
            expect_error(meeting.client.error, DDP_ERROR_UNAVAILABLE,
                         "closed the connection during the handshake");
        }
    }
}

TEST(Handshake, AChangedByteIsNoChannel) {
    Meeting whole;
    whole.run();
    for (const bool upwards : {true, false}) {
        const std::size_t size = (upwards ? whole.relay.up : whole.relay.down).seen.size();
        for (std::size_t at = 0; at < size; ++at) {
            Meeting meeting;
            auto& direction = upwards ? meeting.relay.up : meeting.relay.down;
            std::size_t passed = 0;
            direction.change = [&, at](std::string bytes) {
                if (at >= passed && at < passed + bytes.size())
                    bytes[at - passed] ^= static_cast<char>(1 << (at % 8));
                passed += bytes.size();
                return bytes;
            };
            meeting.run();
            // TLS ignores the version in the header of the first record.
            const bool ignored = (at == 1 || at == 2) && meeting.client.done && meeting.server.done;
            EXPECT_TRUE(ignored || !(meeting.client.done && meeting.server.done)) << at;
            for (const auto* end : {&meeting.client, &meeting.server})
                EXPECT_TRUE(end->error.ok() || end->error.code == DDP_ERROR_UNAVAILABLE ||
                            end->error.code == DDP_ERROR_PERMISSION_DENIED)
                    << end->error.message;
        }
    }
}

TEST(Handshake, ARecordedClientIsRefused) {
    for (Protection protection : kAll) {
        Meeting recorded(protection, protection);
        recorded.run();
        ASSERT_TRUE(recorded.server.done);
        auto [mine, other] = connected();
        End server{Handshake::server(std::move(mine), knows("me", key_of("s3cret")), protection)};
        write_all(other.get(), recorded.relay.up.seen);
        server.step();
        EXPECT_EQ(server.error.code, DDP_ERROR_PERMISSION_DENIED) << server.error.message;
    }
}

TEST(Handshake, AReflectedClientIsRefused) {
    auto [mine, other] = connected();
    End client{Handshake::client(std::move(mine), "me", key_of("s3cret"), Protection::kEncrypted)};
    for (int turn = 0; turn < 4; ++turn) {
        client.step();
        write_all(other.get(), read_all(other.get()));
    }
    EXPECT_EQ(client.error.code, DDP_ERROR_UNAVAILABLE) << client.error.message;
}

// An end that speaks TLS 1.3 like libddp, but does not know the key.
class Impostor {
public:
    explicit Impostor(bool server) : context_(SSL_CTX_new(TLS_method())), ssl_(nullptr) {
        if (server) certify();
        accept_any_application(context_);
        ssl_ = SSL_new(context_);
        if (server)
            SSL_set_accept_state(ssl_);
        else
            SSL_set_connect_state(ssl_);
    }
    ~Impostor() {
        SSL_free(ssl_);
        SSL_CTX_free(context_);
    }
    void take(Descriptor fd) {
        fd_ = std::move(fd);
        SSL_set_fd(ssl_, fd_.get());
    }
    bool step() {
        if (SSL_do_handshake(ssl_) == 1 && !said_) said_ = SSL_write(ssl_, "w", 1) == 1;
        return false;
    }
    bool shook_hands() const { return SSL_is_init_finished(ssl_) == 1; }
    SSL* ssl() { return ssl_; }

private:
    void certify() {
        EVP_PKEY* key = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
        X509* certificate = X509_new();
        X509_set_version(certificate, 2);
        ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
        X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
        X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
        X509_set_pubkey(certificate, key);
        X509_sign(certificate, key, nullptr);
        SSL_CTX_use_certificate(context_, certificate);
        SSL_CTX_use_PrivateKey(context_, key);
        X509_free(certificate);
        EVP_PKEY_free(key);
    }

    SSL_CTX* context_;
    SSL* ssl_;
    Descriptor fd_;
    bool said_ = false;
};

TEST(Handshake, ACertificateIsNoKey) {
    auto [mine, other] = connected();
    Impostor impostor(true);
    impostor.take(std::move(other));
    End client{Handshake::client(std::move(mine), "me", key_of("s3cret"), Protection::kEncrypted)};
    for (int turn = 0; turn < 6; ++turn) {
        client.step();
        impostor.step();
    }
    EXPECT_FALSE(client.done);
    EXPECT_EQ(client.error.code, DDP_ERROR_PERMISSION_DENIED) << client.error.message;
}

TEST(Handshake, AClientWithoutAKeyIsRefused) {
    for (int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
        auto [mine, other] = connected();
        Impostor impostor(false);
        SSL_set_max_proto_version(impostor.ssl(), version);
        const unsigned char offer[] = "\x0clibddp tls 1";
        SSL_set_alpn_protos(impostor.ssl(), offer, sizeof offer - 1);
        impostor.take(std::move(other));
        End server{Handshake::server(std::move(mine), knows("me", key_of("s3cret")),
                                     Protection::kEncrypted)};
        for (int turn = 0; turn < 6; ++turn) {
            impostor.step();
            server.step();
        }
        EXPECT_FALSE(server.done || impostor.shook_hands());
        expect_error(server.error, DDP_ERROR_UNAVAILABLE, "not libddp");
    }
}

}  // namespace
}  // namespace libddp::wire::testing
