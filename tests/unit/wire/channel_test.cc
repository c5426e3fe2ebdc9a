// Bytes that go through a channel, and attacks of a relay between the ends.
#include <sys/socket.h>

#include <thread>

#include "support.h"
#include "wire/channels.h"
#include "wire/crypto.h"

namespace libddp::wire::testing {
namespace {

const char* name_of(const ::testing::TestParamInfo<Protection>& test) {
    return test.param == Protection::kEncrypted ? "encrypted" : "plain";
}

class EachChannel : public ::testing::TestWithParam<Protection> {};
INSTANTIATE_TEST_SUITE_P(Wire, EachChannel, ::testing::ValuesIn(kAll), name_of);
// A direction of a channel: bytes that go, in pieces of odd sizes, and those that have come.
struct Traffic {
    Traffic(Channel& sender, Channel& receiver, std::size_t size, unsigned seed)
        : from(sender), to(receiver), bytes(random_bytes(size, seed)), random(seed) {}

    // Sizes of all magnitudes.
    std::size_t odd() { return random() % (std::size_t{1} << (random() % 18)); }

    std::vector<iovec> cut(char* memory, std::size_t size) {
        std::vector<iovec> pieces;
        for (std::size_t at = 0; at < size;) {
            const std::size_t step = std::min(size - at, random() % 5 == 0 ? 0 : odd());
            pieces.push_back({memory + at, step});
            at += step;
            if (pieces.size() == 200) break;
        }
        return pieces;
    }

    bool step() {
        const std::size_t before = sent + received.size();
        auto out = cut(bytes.data() + sent, std::min(bytes.size() - sent, odd()));
        sent += from.send(out.data(), static_cast<int>(out.size()));
        if (sent == bytes.size()) flushed = from.flush();
        std::string space(odd() + 1, '?');
        auto in = cut(space.data(), space.size());
        space.resize(to.receive(in.data(), static_cast<int>(in.size())));
        received += space;
        return sent + received.size() != before;
    }
    bool done() const { return received.size() >= bytes.size() && flushed; }

    Channel& from;
    Channel& to;
    std::string bytes;
    std::mt19937 random;
    std::size_t sent = 0;
    bool flushed = false;
    std::string received;
};

TEST_P(EachChannel, EveryByteArrivesInOrder) {
    for (const int buffer : {1, 20'000, 0}) {
        for (unsigned seed = 1; seed < 5; ++seed) {
            Channels channels = open(GetParam(), buffer);
            Traffic up(*channels.client, *channels.server, 700'000, seed);
            Traffic down(*channels.server, *channels.client, 700'000, seed + 100);
            for (int idle = 0; !(up.done() && down.done()) && idle < 100'000;) {
                const bool moved_up = up.step(), moved_down = down.step();
                idle = moved_up || moved_down ? 0 : idle + 1;
            }
            ASSERT_TRUE(up.received == up.bytes);
            ASSERT_TRUE(down.received == down.bytes);
        }
    }
}

TEST_P(EachChannel, SizesAroundFrames) {
    Channels channels = open(GetParam());
    for (const std::size_t middle : {1U, 4096U, 16'384U, 32'768U, 65'536U, 131'072U}) {
        for (const std::size_t size : {middle - 1, middle, middle + 1}) {
            const std::string bytes = random_bytes(size, static_cast<unsigned>(size));
            std::size_t sent = 0;
            std::string received;
            for (int turns = 0; received.size() < size && turns < 1000; ++turns) {
                sent += send_some(*channels.client, std::string_view(bytes).substr(sent));
                channels.client->flush();
                received += receive_some(*channels.server, size);
            }
            ASSERT_TRUE(received == bytes) << size;
            EXPECT_EQ(receive_some(*channels.server, 10), "");
        }
    }
    EXPECT_EQ(channels.client->send(nullptr, 0), 0U);
    EXPECT_EQ(channels.client->receive(nullptr, 0), 0U);
    iovec nothing[2] = {{nullptr, 0}, {nullptr, 0}};
    EXPECT_EQ(channels.client->send(nothing, 2), 0U);
    EXPECT_EQ(channels.client->receive(nothing, 2), 0U);
}

// The memory that a send has taken is the caller's again, whatever the kernel has taken.
TEST_P(EachChannel, MemoryThatWasTakenMayChange) {
    Channels channels = open(GetParam(), 1);
    std::string expected, received;
    std::mt19937 random(5);
    for (unsigned round = 0; round < 300; ++round) {
        std::string bytes = random_bytes(random() % 200'000, round);
        const std::size_t taken = send_some(*channels.client, bytes);
        expected += bytes.substr(0, taken);
        std::fill(bytes.begin(), bytes.end(), '!');
        received += receive_some(*channels.server, random() % 50'000);
    }
    for (int idle = 0; idle < 200;) {
        channels.client->flush();
        const std::string more = receive_some(*channels.server, 50'000);
        received += more;
        idle = more.empty() ? idle + 1 : 0;
    }
    EXPECT_TRUE(received == expected);
}

TEST_P(EachChannel, BytesMayFollowTheHandshakeAtOnce) {
    const Key key = key_of("");
    for (const bool client_first : {true, false}) {
        auto [client, server] = connected();
        End one{Handshake::client(std::move(client), "me", key, GetParam())};
        End two{Handshake::server(std::move(server), knows("me", key), GetParam())};
        while (!one.done) {
            one.step();
            if (!one.done) two.step();
        }
        // The client's last byte of the handshake and its data are in the socket together.
        const std::string bytes = random_bytes(50'000, 3);
        auto first = one.handshake->take_channel();
        if (client_first) {
            EXPECT_EQ(send_some(*first, bytes), bytes.size());
        }
        while (!two.over()) two.step();
        ASSERT_TRUE(two.done) << two.error.message;
        auto second = two.handshake->take_channel();
        EXPECT_EQ(send_some(*second, bytes), bytes.size());
        EXPECT_EQ(receive_some(*first, bytes.size()), bytes);
        if (client_first) {
            EXPECT_EQ(receive_some(*second, bytes.size()), bytes);
        }
    }
}

TEST_P(EachChannel, TheEndIsNamed) {
    Channels channels = open(GetParam());
    send_some(*channels.client, "last words");
    channels.client.reset();
    EXPECT_EQ(receive_some(*channels.server, 100), "last words");
    for (int i = 0; i < 2; ++i) {
        const ErrorInfo error = error_of([&] { receive_some(*channels.server, 100); });
        EXPECT_EQ(error.code, DDP_ERROR_UNAVAILABLE);
        EXPECT_EQ(error.message, "the connection ended");
    }
    const ErrorInfo error = error_of([&] {
        for (int i = 0; i < 1000; ++i) send_some(*channels.server, std::string(1000, 'x'));
    });
    EXPECT_EQ(error.code, DDP_ERROR_UNAVAILABLE);
}

TEST_P(EachChannel, ACutConnectionGivesWhatCame) {
    const std::string bytes = random_bytes(200'000, 4);
    for (const std::size_t most : {1U, 100U, 5000U, 20'000U, 65'000U, 66'000U, 150'000U}) {
        Relay relay;
        Channels channels = open(std::move(relay.client), std::move(relay.server), GetParam(),
                                 [&] { return relay.pump(); });
        relay.up.most = relay.up.passed + most;
        std::size_t sent = 0;
        std::string received;
        ErrorInfo error;
        for (int turn = 0; turn < 1000 && error.ok(); ++turn) {
            error_of(
                [&] { sent += send_some(*channels.client, std::string_view(bytes).substr(sent)); });
            relay.pump();
            error = error_of([&] { received += receive_some(*channels.server, bytes.size()); });
        }
        EXPECT_EQ(error.code, DDP_ERROR_UNAVAILABLE) << error.message;
        EXPECT_LE(received.size(), most);
        EXPECT_EQ(received, bytes.substr(0, received.size()));
    }
}

// A relay that does `change` to the bytes after the handshake. The receiver gets a prefix of the
// sent bytes, and then an error.
void expect_detected(const std::function<std::string(std::string)>& change) {
    const std::string bytes = random_bytes(300'000, 6);
    Relay relay;
    Channels channels = open(std::move(relay.client), std::move(relay.server),
                             Protection::kEncrypted, [&] { return relay.pump(); });
    relay.up.change = change;
    std::size_t sent = 0;
    std::string received;
    ErrorInfo error;
    for (int turn = 0; turn < 1000 && error.ok() && received.size() < bytes.size(); ++turn) {
        sent += send_some(*channels.client, std::string_view(bytes).substr(sent));
        channels.client->flush();
        relay.pump();
        error = error_of([&] { received += receive_some(*channels.server, bytes.size()); });
    }
    EXPECT_EQ(error.code, DDP_ERROR_PERMISSION_DENIED) << error.message;
    EXPECT_NE(error.message.find("changed on the way"), std::string::npos) << error.message;
    EXPECT_LT(received.size(), bytes.size());
    EXPECT_TRUE(received == bytes.substr(0, received.size()));
    EXPECT_EQ(error_of([&] { receive_some(*channels.server, 1); }).code,
              DDP_ERROR_PERMISSION_DENIED);
}

TEST(EncryptedChannel, AFlippedBitIsFound) {
    std::mt19937 random(8);
    for (int round = 0; round < 40; ++round) {
        std::size_t at = round < 24 ? static_cast<std::size_t>(round) : random() % 250'000;
        std::size_t passed = 0;
        expect_detected([&](std::string bytes) {
            if (at >= passed && at < passed + bytes.size())
                bytes[at - passed] ^= static_cast<char>(1 << (at % 8));
            passed += bytes.size();
            return bytes;
        });
    }
}

TEST(EncryptedChannel, BytesThatGoMissingOrComeTwiceAreFound) {
    // The last is a whole frame.
    for (const std::size_t size : {1U, 22U, 16'406U, 65'556U}) {
        bool first = true;
        expect_detected([&](std::string bytes) {
            if (!std::exchange(first, false)) return bytes;
            return bytes.substr(std::min(size, bytes.size()));
        });
        first = true;
        expect_detected([&](std::string bytes) {
            if (!std::exchange(first, false)) return bytes;
            return bytes.substr(0, size) + bytes;
        });
    }
}

// The frames of one connection mean nothing in another, nor in the other direction.
TEST(EncryptedChannel, RecordedBytesAreFound) {
    const std::string bytes = random_bytes(1000, 7);
    auto [one, two] = connected();
    Channels recorded = open(std::move(one), std::move(two), Protection::kEncrypted);
    send_some(*recorded.client, bytes);
    std::string seen = read_all(recorded.server->fd());

    Channels other = open(Protection::kEncrypted);
    write_all(other.client->fd(), seen);
    EXPECT_EQ(error_of([&] { receive_some(*other.server, 1000); }).code,
              DDP_ERROR_PERMISSION_DENIED);

    write_all(recorded.server->fd(), seen);
    EXPECT_EQ(error_of([&] { receive_some(*recorded.client, 1000); }).code,
              DDP_ERROR_PERMISSION_DENIED);
}

TEST_P(EachChannel, TheWireShowsWhatItMay) {
    const std::string text = "a gradient is a secret of its owner";
    auto [one, two] = connected();
    Channels channels = open(std::move(one), std::move(two), GetParam());
    std::string bytes;
    for (int i = 0; i < 1000; ++i) bytes += text;
    EXPECT_EQ(send_some(*channels.client, bytes), bytes.size());
    const std::string seen = read_all(channels.server->fd());
    EXPECT_GE(seen.size(), bytes.size());
    EXPECT_EQ(seen.find("gradient") == std::string::npos, GetParam() == Protection::kEncrypted);
    EXPECT_EQ(seen == bytes, GetParam() == Protection::kPlain);
}

TEST_P(EachChannel, LongMessagesBetweenThreads) {
    auto [one, two] = connected_tcp();
    Channels channels = open(std::move(one), std::move(two), GetParam());
    const std::string bytes = random_bytes(std::size_t{16} << 20, 9);
    std::thread sender([&] {
        for (std::size_t sent = 0; sent < bytes.size();)
            sent += send_some(*channels.client, std::string_view(bytes).substr(sent));
        while (!channels.client->flush()) std::this_thread::yield();
    });
    std::string received(bytes.size(), '\0');
    for (std::size_t got = 0; got < bytes.size();) {
        iovec piece{received.data() + got, bytes.size() - got};
        got += channels.server->receive(&piece, 1);
    }
    sender.join();
    EXPECT_TRUE(received == bytes);
}

TEST(EncryptedChannel, AKeyIsReplaced) {
    const Cryptography inside;
    const Frames::Secret up_secret{{1}}, down_secret{{2}};
    auto [one, two] = connected(20'000);
    const Channels channels{make_encrypted_channel(std::move(one), Frames(up_secret, true, 3),
                                                   Frames(down_secret, false, 3)),
                            make_encrypted_channel(std::move(two), Frames(down_secret, true, 3),
                                                   Frames(up_secret, false, 3))};
    Traffic up(*channels.client, *channels.server, 3'000'000, 11);
    Traffic down(*channels.server, *channels.client, 3'000'000, 12);
    for (int idle = 0; !(up.done() && down.done()) && idle < 100'000;) {
        const bool moved_up = up.step(), moved_down = down.step();
        idle = moved_up || moved_down ? 0 : idle + 1;
    }
    EXPECT_TRUE(up.received == up.bytes);
    EXPECT_TRUE(down.received == down.bytes);
}

}  // namespace
}  // namespace libddp::wire::testing
