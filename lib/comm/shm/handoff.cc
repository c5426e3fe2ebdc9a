#include "comm/shm/handoff.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "util/error.h"
#include "util/quiet_thread.h"

namespace libddp::shm {
namespace {

constexpr int kBacklog = 128;

// A name in the kernel's table instead of a file, so that nothing is left over.
socklen_t address_of(const std::string& name, sockaddr_un& address) {
    address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

std::string random_name() {
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        fail(DDP_ERROR_INTERNAL, "getrandom: ", std::strerror(errno));
    std::string name = "libddp-";
    for (unsigned char byte : bytes) {
        name += "0123456789abcdef"[byte >> 4];
        name += "0123456789abcdef"[byte & 15];
    }
    return name;
}

bool same_user(int connection) {
    ucred peer{};
    socklen_t size = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// The one byte that a descriptor must travel with, and room for the descriptor.
struct Parcel {
    Parcel() {
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
    }
    char byte = 'd';
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
};

void send_descriptor(int connection, int fd) {
    Parcel parcel;
    cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    // Who has gone meanwhile needs nothing more.
    sendmsg(connection, &parcel.message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

class Socket {
public:
    explicit Socket(int fd) : fd_(fd) {
        if (fd_ < 0) fail(DDP_ERROR_UNSUPPORTED, "a local socket: ", std::strerror(errno));
    }
    ~Socket() { close(fd_); }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    int fd() const { return fd_; }

private:
    const int fd_;
};

}  // namespace

HandoffServer::HandoffServer(int fd) : fd_(fd), name_(random_name()) {
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    stop_ = eventfd(0, EFD_CLOEXEC);
    sockaddr_un address;
    const socklen_t size = address_of(name_, address);
    const bool open = listener_ >= 0 && stop_ >= 0 &&
                      bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                      listen(listener_, kBacklog) == 0;
    if (!open) {
        const int error = errno;
        if (listener_ >= 0) close(listener_);
        if (stop_ >= 0) close(stop_);
        fail(DDP_ERROR_UNSUPPORTED, "a local socket to hand shared memory over: ", std::strerror(error));
    }
    thread_ = quiet_thread([this] { serve(); });
}

HandoffServer::~HandoffServer() {
    eventfd_write(stop_, 1);
    thread_.join();
    close(listener_);
    close(stop_);
}

void HandoffServer::serve() noexcept {
    for (;;) {
        pollfd waits[] = {{listener_, POLLIN, 0}, {stop_, POLLIN, 0}};
        if (poll(waits, 2, -1) < 0 && errno != EINTR) return;
        if (waits[1].revents) return;
        const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (connection < 0) continue;
        if (same_user(connection)) send_descriptor(connection, fd_);
        close(connection);
    }
}

int receive_descriptor(const std::string& name, const Deadline& deadline) {
    const Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address;
    if (name.empty() || name.size() >= sizeof address.sun_path)
        fail(DDP_ERROR_UNAVAILABLE, "'", name, "' is not the name of a local socket");
    const socklen_t size = address_of(name, address);
    if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
        fail(DDP_ERROR_UNAVAILABLE, "the rank that makes the shared memory cannot be reached: ", std::strerror(errno));
    pollfd wait{socket.fd(), POLLIN, 0};
    int ready;
    do {
        ready = poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(deadline.remaining_ms(), 1'000'000)));
    } while (ready < 0 && errno == EINTR);
    if (ready == 0) fail(DDP_ERROR_TIMEOUT, "the rank that makes the shared memory did not hand it over in time");
    Parcel parcel;
    const auto received = recvmsg(socket.fd(), &parcel.message, MSG_CMSG_CLOEXEC);
    const cmsghdr* header = received == 1 ? CMSG_FIRSTHDR(&parcel.message) : nullptr;
    if (!header || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
        fail(DDP_ERROR_PERMISSION_DENIED,
             "the rank that makes the shared memory did not hand it over: do all ranks of "
             "this host run as the same user?");
    int fd;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

}  // namespace libddp::shm
