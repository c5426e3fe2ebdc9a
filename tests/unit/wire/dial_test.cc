// One attempt of a client to connect.
#include "wire/dial.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <thread>

#include "support.h"

namespace libddp::wire::testing {
namespace {

// A listener of which nobody takes connections, as full as its queue gets: another connection waits
// for an answer.
struct FullListener {
    FullListener() {
        SocketAddress any;
        for (const SocketAddress& found : resolve("127.0.0.1", 0, Deadline::after_ms(10'000)))
            any = found;
        EXPECT_EQ(bind(socket.get(), any.get(), any.size), 0);
        EXPECT_EQ(listen(socket.get(), 0), 0);
        address = local_address(socket.get());
        for (Descriptor& client : clients) {
            client.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
            connect(client.get(), address.get(), address.size);
        }
    }

    const Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    SocketAddress address;
    Descriptor clients[4];
};

// The threads of a program have handlers, and its signals interrupt what libddp asks the kernel.
TEST(Dial, ASignalIsNoConnection) {
    const FullListener listener;
    struct sigaction before {
    }, handler{};
    handler.sa_handler = [](int) {};
    ASSERT_EQ(sigaction(SIGUSR1, &handler, &before), 0);
    {
        const std::jthread signaller([to = pthread_self()](const std::stop_token& over) {
            while (!over.stop_requested()) pthread_kill(to, SIGUSR1);
        });
        Dial dial(listener.address, "me", key_of("s3cret"), Protection::kEncrypted);
        // The kernel gives up an attempt that nobody answers (kSilentConnectionMs).
        for (const auto end = Deadline::after_ms(2000); !end.expired() && !dial.accepted();)
            EXPECT_EQ(dial.advance(), nullptr);
        EXPECT_FALSE(dial.accepted());
    }
    EXPECT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

}  // namespace
}  // namespace libddp::wire::testing
