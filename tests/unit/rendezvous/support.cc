#include "support.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <utility>

#include "etcd_server.h"
#include "util/deadline.h"
#include "wire/sockets.h"

namespace libddp::testing {
namespace {

class TcpService final : public Service {
public:
    TcpService() : server_(open("tcp://127.0.0.1:0", true)) {}
    std::shared_ptr<Store> connect() override { return open(uri()); }
    std::string uri() const override { return server_->describe(); }

private:
    std::shared_ptr<Store> server_;
};

class FileService final : public Service {
public:
    std::shared_ptr<Store> connect() override { return open(uri()); }
    std::string uri() const override { return path_.uri(); }

private:
    TempPath path_;
};

// One etcd for all tests of the process; each service has keys of its own there.
class EtcdService final : public Service {
public:
    explicit EtcdService(int ttl_s) : uri_(cluster().uri(ttl_s)) {}
    std::shared_ptr<Store> connect() override { return open(uri_); }
    std::string uri() const override { return uri_; }

private:
    static EtcdCluster& cluster() {
        static EtcdCluster one(1);
        return one;
    }
    std::string uri_;
};

bool readable(int fd, std::int64_t within_ms) {
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, static_cast<int>(within_ms)) > 0;
}

}  // namespace

ErrorInfo error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.info();
    }
    return {};
}

void expect_error(ddp_status code, const std::vector<std::string>& parts,
                  const std::function<void()>& call) {
    ErrorInfo error = error_of(call);
    EXPECT_EQ(error.code, code) << error.message;
    for (const auto& part : parts)
        EXPECT_NE(error.message.find(part), std::string::npos)
            << "'" << part << "' is not in: " << error.message;
}

std::int64_t elapsed_ms(std::chrono::steady_clock::time_point since) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                                 since)
        .count();
}

bool eventually(const std::function<bool()>& condition) {
    for (auto deadline = Deadline::after_ms(kLongMs); !deadline.expired();) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return condition();
}

HeldPort::HeldPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // Sockets that say so may share a port of which at most one listens.
    const int on = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        throw std::runtime_error("no port is free");
}

HeldPort::~HeldPort() {
    ::close(socket_);
}

std::string HeldPort::uri() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    return str("tcp://127.0.0.1:", ntohs(address.sin_port));
}

TempPath::TempPath()
    : TempPath((std::filesystem::temp_directory_path() / "ddp-rendezvous-").string()) {}

TempPath::TempPath(const std::string& beginning) {
    std::string name = beginning + "XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = name;
    file_ = folder_ + "/store";
}

TempPath::~TempPath() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

std::shared_ptr<Store> open(const std::string& uri, bool is_server, const std::string& secret,
                            std::int64_t timeout_ms) {
    return open_store({uri, is_server, timeout_ms, secret});
}

std::unique_ptr<Service> make_service(const std::string& kind, int etcd_ttl_s) {
    if (kind == "tcp") return std::make_unique<TcpService>();
    if (kind == "etcd") return std::make_unique<EtcdService>(etcd_ttl_s);
    return std::make_unique<FileService>();
}

std::vector<const char*> store_kinds() {
    std::vector<const char*> kinds = {"tcp", "file"};
    if (has_etcd()) kinds.push_back("etcd");
    return kinds;
}

RawSocket::RawSocket(int port, const std::string& from)
    : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from.c_str(), &address.sin_addr);
    if (from != "127.0.0.1" &&
        ::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        throw std::runtime_error("bind failed");
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        throw std::runtime_error("connect failed");
}

RawSocket::~RawSocket() {
    ::close(fd_);
}

bool RawSocket::send(const std::string& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
        ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (count <= 0) return false;
        sent += static_cast<std::size_t>(count);
    }
    return true;
}

std::string RawSocket::receive(std::size_t size) {
    std::string bytes;
    while (bytes.size() < size && readable(fd_, kLongMs)) {
        char buffer[4096];
        ssize_t count = recv(fd_, buffer, std::min(sizeof buffer, size - bytes.size()), 0);
        if (count <= 0) break;
        bytes.append(buffer, static_cast<std::size_t>(count));
    }
    return bytes;
}

bool RawSocket::closed_by_peer(std::int64_t within_ms) {
    for (auto deadline = Deadline::after_ms(within_ms); readable(fd_, deadline.remaining_ms());) {
        char buffer[4096];
        if (recv(fd_, buffer, sizeof buffer, 0) <= 0) return true;
    }
    return false;
}

namespace {

Descriptor connected(int port) {
    Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    // The kernel holds little of what the client does not read.
    const int little = 16'384;
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        throw std::runtime_error("connect failed");
    fcntl(fd.get(), F_SETFL, O_NONBLOCK);
    return fd;
}

}  // namespace

RawClient::RawClient(int port, const std::string& secret, const std::string& identity) {
    auto handshake =
        wire::Handshake::client(connected(port), identity, wire::derive_key(secret, kStoreKey),
                                wire::Protection::kEncrypted);
    while (handshake->advance() != wire::Handshake::Wants::kNothing)
        if (!readable(handshake->fd(), kLongMs)) throw std::runtime_error("the server is silent");
    channel_ = handshake->take_channel();
    version_ = decode_version(receive(kVersionSize));
}

bool RawClient::wait(short events, std::int64_t ms) {
    pollfd entry{channel_->fd(), events, 0};
    return poll(&entry, 1, static_cast<int>(ms)) > 0;
}

bool RawClient::send(const std::string& bytes) {
    return send_for(bytes, kLongMs) == bytes.size();
}

std::size_t RawClient::send_for(const std::string& bytes, std::int64_t ms) {
    std::size_t sent = 0;
    try {
        for (auto deadline = Deadline::after_ms(ms); sent < bytes.size();) {
            iovec piece{const_cast<char*>(bytes.data()) + sent, bytes.size() - sent};
            const std::size_t taken = channel_->send(&piece, 1);
            sent += taken;
            if (taken == 0 && !wait(POLLOUT, deadline.remaining_ms())) return sent;
        }
        while (!channel_->flush() && wait(POLLOUT, ms)) {
        }
    } catch (const Error&) {
        return 0;
    }
    return sent;
}

std::string RawClient::receive(std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t got = 0;
    try {
        while (got < size) {
            iovec piece{bytes.data() + got, size - got};
            const std::size_t count = channel_->receive(&piece, 1);
            if (count == 0 && !wait(POLLIN, kLongMs)) break;
            got += count;
        }
    } catch (const Error&) {
    }
    return bytes.substr(0, got);
}

std::optional<Frame> RawClient::receive_frame() {
    while (true) {
        if (auto frame = frames_.next()) return frame;
        const std::string header = receive(kFrameHeader);
        frames_.feed(header);
        if (header.size() < kFrameHeader) return std::nullopt;
        if (frames_.announced() > kFrameHeader)
            frames_.feed(receive(frames_.announced() - kFrameHeader));
    }
}

bool RawClient::closed_by_peer(std::int64_t within_ms) {
    try {
        for (auto deadline = Deadline::after_ms(within_ms);;) {
            char buffer[4096];
            iovec piece{buffer, sizeof buffer};
            if (channel_->receive(&piece, 1) == 0 && !wait(POLLIN, deadline.remaining_ms()))
                return false;
        }
    } catch (const Error&) {
        return true;
    }
}

Descriptor listen_here() {
    Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener.get(), 8), 0);
    return listener;
}

Relay::Relay(int port, Options options) : options_(std::move(options)) {
    thread_ = std::thread([this, port] {
        Descriptor client(accept(listener_.get(), nullptr, nullptr));
        Descriptor server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in target{};
        target.sin_family = AF_INET;
        target.sin_port = htons(static_cast<std::uint16_t>(port));
        target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(connect(server.get(), reinterpret_cast<sockaddr*>(&target), sizeof target), 0);
        while (pass(client.get(), server.get(), up_) && pass(server.get(), client.get(), down_))
            std::this_thread::sleep_for(options_.pause);
    });
}

std::string Relay::uri() const {
    return str("tcp://127.0.0.1:", local_address(listener_.get()).port());
}

bool Relay::pass(int from, int to, std::atomic<std::size_t>& passed) {
    char buffer[65536];
    const ssize_t count = recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
    if (count <= 0) return count < 0 && errno == EAGAIN;
    passed += static_cast<std::size_t>(count);
    std::string bytes(buffer, static_cast<std::size_t>(count));
    for (std::size_t at; !options_.text.empty() && (at = bytes.find(options_.text)) != bytes.npos;
         saw_ = true)
        bytes.replace(at, options_.text.size(), options_.forged);
    return ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
}

std::string client_hello(const std::string& secret) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        throw std::runtime_error("socketpair failed");
    Descriptor other(ends[1]);
    auto handshake =
        wire::Handshake::client(Descriptor(ends[0]), store_identity(),
                                wire::derive_key(secret, kStoreKey), wire::Protection::kEncrypted);
    handshake->advance();
    char buffer[4096];
    const ssize_t count = recv(other.get(), buffer, sizeof buffer, 0);
    return std::string(buffer, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
}

Child::Child(std::vector<std::string> arguments) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    arguments.insert(arguments.begin(), RENDEZVOUS_CHILD);
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int status = posix_spawn(&pid_, RENDEZVOUS_CHILD, &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    output_ = ends[0];
    if (status != 0) throw std::runtime_error("the helper program cannot be started");
}

Child::~Child() {
    kill();
    ::close(output_);
}

void Child::kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

int Child::end() {
    ::kill(pid_, SIGTERM);
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
}

void Child::stop_running() const {
    ::kill(pid_, SIGSTOP);
    waitpid(pid_, nullptr, WUNTRACED);  // its threads stop one by one
}

std::string Child::read_line() {
    std::string line;
    char letter = 0;
    while (readable(output_, kLongMs) && ::read(output_, &letter, 1) == 1 && letter != '\n')
        line += letter;
    return line;
}

}  // namespace libddp::testing
