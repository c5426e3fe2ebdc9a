#include "exporter.h"

#include <fcntl.h>
#include <httplib.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "util/ports.h"

namespace ddprun {
namespace {

// A scraper sends one short request. All clients share one thread, so none may keep it for long.
constexpr std::size_t kMostRequestBytes = 8192;
constexpr std::size_t kMostHeaders = 64;
constexpr Milliseconds kRequestTime{1000};
constexpr Milliseconds kResponseTime{2000};
constexpr Milliseconds kBetweenLooksAtStop{50};
// Clients that come more often get the same text. Reading takes at most this part of the time of
// one processor.
constexpr Milliseconds kLeastAge{500};
constexpr int kReadingShare = 10;

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kFrontPage =
    "<!doctype html><title>ddprun</title><p>The metrics of this job: <a "
    "href=\"/metrics\">/metrics</a>\n";

// A connection that ends when its time or its bytes are used up, however the client spreads them.
class Connection : public httplib::Stream {
public:
    Connection(int socket, const std::atomic<bool>& stopping)
        : socket_(socket), stopping_(stopping), deadline_(Clock::now() + kRequestTime) {}

    bool is_readable() const override { return left_ > 0 && await(POLLIN); }
    bool is_writable() const override { return await(POLLOUT); }
    ssize_t read(char* to, std::size_t size) override {
        if (taken_ == held_ && !fill()) return -1;
        const std::size_t count = std::min(size, held_ - taken_);
        std::memcpy(to, buffer_ + taken_, count);
        taken_ += count;
        return static_cast<ssize_t>(count);
    }
    ssize_t write(const char* from, std::size_t size) override {
        if (!answering_) deadline_ = Clock::now() + kResponseTime;
        answering_ = true;
        if (!await(POLLOUT)) return -1;
        return send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    using httplib::Stream::write;
    void get_remote_ip_and_port(std::string&, int&) const override {}
    void get_local_ip_and_port(std::string&, int&) const override {}
    socket_t socket() const override { return socket_; }

private:
    bool fill() {
        if (left_ == 0 || !await(POLLIN)) return false;
        const ssize_t got = recv(socket_, buffer_, std::min(left_, sizeof buffer_), MSG_DONTWAIT);
        if (got <= 0) return false;
        left_ -= static_cast<std::size_t>(got);
        taken_ = 0;
        held_ = static_cast<std::size_t>(got);
        return true;
    }
    bool await(short event) const {
        for (;;) {
            const auto left = std::chrono::duration_cast<Milliseconds>(deadline_ - Clock::now());
            if (left.count() <= 0 || stopping_) return false;
            pollfd wanted{socket_, event, 0};
            const int ready =
                poll(&wanted, 1, static_cast<int>(std::min(left, kBetweenLooksAtStop).count()));
            if (ready > 0) return true;
            if (ready < 0 && errno != EINTR) return false;
        }
    }

    const int socket_;
    const std::atomic<bool>& stopping_;
    Clock::time_point deadline_;
    bool answering_ = false;
    std::size_t left_ = kMostRequestBytes;
    std::size_t taken_ = 0, held_ = 0;
    char buffer_[1024];
};

// Runs what it gets at once: connections wait in the kernel for their turn.
class OneByOne : public httplib::TaskQueue {
    // The library's newer versions have bool here, the older ones void.
    using Done = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));

public:
    Done enqueue(std::function<void()> task) override {
        task();
        return Done(true);
    }
    void shutdown() override {}
};

}  // namespace

class Exporter::Server : private httplib::Server {
public:
    explicit Server(Endpoint& address) {
        new_task_queue = [] { return new OneByOne; };
        // By default the library lets several processes share a port.
        set_socket_options([](socket_t socket) {
            const int on = 1;
            setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
            fcntl(socket, F_SETFD, FD_CLOEXEC);
        });
        set_pre_routing_handler(
            [this](const httplib::Request& request, httplib::Response& response) {
                route(request, response);
                return HandlerResponse::Handled;
            });
        errno = 0;
        address.port = bind(address);
        if (address.port < 0)
            throw std::runtime_error(errno != 0 ? std::strerror(errno)
                                                : "there is no such address");
    }

    ~Server() override {
        stopping_ = true;
        if (!thread_.joinable()) return;
        // Before it runs, stop() would do nothing.
        while (!is_running() && !ended_) std::this_thread::sleep_for(Milliseconds(1));
        stop();
        thread_.join();
    }

    void follow(const JobNow& job, const std::string& folder) {
        {
            const std::lock_guard lock(mutex_);
            job_ = job;
            folder_ = folder;
            ++changes_;
        }
        if (thread_.joinable()) return;
        // Signals are for the thread of the loop.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        thread_ = std::thread([this] {
            listen_after_bind();
            ended_ = true;
        });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

private:
    // The port, or -1 with errno.
    int bind(const Endpoint& address) {
        if (address.port != 0) return bind_to_port(address.host, address.port) ? address.port : -1;
        const auto allowed = libddp::allowed_ports();
        if (!allowed) return bind_to_any_port(address.host);
        for (int port = allowed->last; port >= allowed->first; --port)
            if (bind_to_port(address.host, port)) return port;
        if (errno == EADDRINUSE)
            throw std::runtime_error("every port of " + allowed->text() +
                                     " is taken; give DDP_PORTS more ports");
        return -1;
    }

    bool process_and_close_socket(socket_t socket) override {
        fcntl(socket, F_SETFD, FD_CLOEXEC);
        Connection connection(socket, stopping_);
        bool closed = false;
        process(connection, closed, [](httplib::Request& request) {
            // Leaves out requests that cost this process much: ranges, which send parts of the text
            // again and again, and compression.
            request.ranges.clear();
            request.headers.erase("Accept-Encoding");
            request.headers.erase("Expect");
        });
        shutdown(socket, SHUT_WR);
        close(socket);
        return true;
    }

    // The library's newer versions want both ends' addresses, too, for a log.
    template <class Prepare>
    void process(Connection& connection, bool& closed, Prepare prepare) {
        if constexpr (requires { this->process_request(connection, true, closed, prepare); })
            process_request(connection, true, closed, prepare);
        else
            process_request(connection, "", 0, "", 0, true, closed, prepare);
    }

    void route(const httplib::Request& request, httplib::Response& response) {
        if (request.method != "GET") {
            response.status = 405;
            response.set_header("Allow", "GET");
        } else if (request.headers.size() > kMostHeaders) {
            response.status = 431;
        } else if (request.path == "/") {
            response.status = 200;
            response.set_content(kFrontPage, "text/html");
        } else if (request.path == "/metrics") {
            answer(response);
        } else {
            response.status = 404;
        }
    }

    void answer(httplib::Response& response) try {
        read_records();
        response.status = 200;
        response.set_content(text_, kMetricsType);
    } catch (const std::exception& error) {
        response.status = 503;
        response.set_content(std::string("the records cannot be read: ") + error.what() + "\n",
                             "text/plain");
    }

    void read_records() {
        std::unique_lock lock(mutex_);
        const JobNow job = job_;
        const std::string folder = folder_;
        const int changes = changes_;
        lock.unlock();
        const auto began = Clock::now();
        if (changes == read_changes_ && began < read_again_) return;
        if (folder.empty()) throw std::runtime_error("there are none");
        text_ = metrics_text(job, Snapshot(folder));
        const auto ended = Clock::now();
        read_changes_ = changes;
        read_again_ =
            ended + std::max<Clock::duration>(kLeastAge, (ended - began) * (kReadingShare - 1));
    }

    std::mutex mutex_;
    JobNow job_;
    std::string folder_;
    int changes_ = 0;
    // Used by the exporter's thread only.
    std::string text_;
    int read_changes_ = 0;
    Clock::time_point read_again_{};

    std::atomic<bool> stopping_{false};
    std::atomic<bool> ended_{false};
    std::thread thread_;
};

Exporter::Exporter(const Endpoint& address) : address_(address) {
    try {
        server_ = std::make_unique<Server>(address_);
    } catch (const std::runtime_error& error) {
        throw std::runtime_error("--metrics: cannot listen on " + address.host + " port " +
                                 std::to_string(address.port) + ": " + error.what());
    }
}

Exporter::~Exporter() = default;

std::string Exporter::url() const {
    std::string uri = address_.uri();
    return "http" + uri.substr(uri.find(':')) + "/metrics";
}

void Exporter::follow(const JobNow& job, const std::string& folder) {
    server_->follow(job, folder);
}

}  // namespace ddprun
