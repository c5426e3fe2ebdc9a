// Connections of processes that do not know the group's secret.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "unit/backend/fake_host.h"
#include "wire/sockets.h"

namespace libddp {
namespace {

using namespace testing_backend;

// The port in the first line, which is rank 0's: "encrypted 1 127.0.0.1 PORT".
int port_of_rank0(const std::string& all) {
    return std::stoi(all.substr(all.rfind(' ', all.find('\n')) + 1));
}

Descriptor connect_to(int port) {
    Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress to = resolve("127.0.0.1", port, Deadline::after_ms(0)).front();
    return connect(fd.get(), to.get(), to.size) == 0 ? std::move(fd) : Descriptor();
}

// Sends what a port scanner, Gloo, or nobody sends, again and again.
class Strangers {
public:
    // Returns once some of them are there.
    explicit Strangers(int port) : thread_([this, port] { knock(port); }) {
        while (knocks_ < 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ~Strangers() {
        end_ = true;
        thread_.join();
    }

private:
    void knock(int port) {
        std::mt19937 random(1);
        std::vector<Descriptor> silent;
        while (!end_) {
            Descriptor fd = connect_to(port);
            if (!fd) continue;  // the group has ended
            ++knocks_;
            std::string bytes(random() % 400, '\0');
            for (char& byte : bytes) byte = static_cast<char>(random());
            if (random() % 4 == 0) bytes = "GET / HTTP/1.0\r\n\r\n";
            if (random() % 4 == 0) bytes.assign(48, '\1');
            // the beginning of a TLS handshake
            if (random() % 4 == 0) bytes.insert(0, "\x16\x03\x01\x01\x00\x01", 6);
            [[maybe_unused]] const auto sent =
                send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (random() % 2 == 0) silent.push_back(std::move(fd));
            if (silent.size() > 300) silent.clear();
        }
    }
    std::atomic<bool> end_{false};
    std::atomic<int> knocks_{0};
    std::thread thread_;
};

// Strangers come as soon as rank 0 says where it listens, and before the ranks do.
class CrowdedStore final : public KeyValueStore {
public:
    void set(const std::string& key, const std::string& value) override {
        if (key == "tcp/all") strangers_ = std::make_unique<Strangers>(port_of_rank0(value));
        inner_.set(key, value);
    }
    ddp_status get(const std::string& key, std::int64_t timeout_ms, std::string& value) override {
        return inner_.get(key, timeout_ms, value);
    }

private:
    MemoryStore inner_;
    std::unique_ptr<Strangers> strangers_;
};

TEST(TcpStrangers, DoNotMatterWhileRanksConnectAndWork) {
    for (const char* options : {"", "wire=plain"}) {
        CrowdedStore store;
        each_rank(3, [&](int r) {
            Rank rank(store, r, 3, options, 20000, 0, tcp_backend());
            ASSERT_EQ(rank.status, DDP_OK) << rank.failure.message;
            for (int i = 0; i < 20; ++i) {
                std::vector<float> data(100'000, 1);
                ASSERT_EQ(rank.allreduce(data), DDP_OK) << rank.failure.message;
                ASSERT_EQ(data, std::vector<float>(data.size(), 3));
            }
        });
    }
}

}  // namespace
}  // namespace libddp
