#include "backends/shm/handoff.h"

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
#include "util/interrupt.h"
#include "util/quiet_thread.h"

namespace libddp::shm {
namespace {

constexpr int kBacklog = 128;
// How long a server without descriptors waits before it tries again.
constexpr int kPauseMs = 10;
// What the byte says that a descriptor must travel with.
constexpr char kHandedOver = 'd';
constexpr char kRefused = 'r';

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

// That byte, and room for one descriptor: of more, the kernel closes the others.
struct Parcel {
    Parcel() {
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = CMSG_LEN(sizeof(int));
    }
    char byte = kHandedOver;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
};

// The one that came with the message; none if it is not there.
Descriptor descriptor_in(const Parcel& parcel) {
    const cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
    if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int)))
        return Descriptor();
    int fd;
    std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return Descriptor(fd);
}

// Each one at once: of several that cannot be had, errno tells of the last only.
int opened(int fd) {
    if (fd < 0) cannot_start("the hand-over of shared memory", errno, DDP_ERROR_UNSUPPORTED);
    return fd;
}

void refuse(int connection) {
    send(connection, &kRefused, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

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

}  // namespace

HandoffServer::HandoffServer(int fd)
    : fd_(fd),
      name_(random_name()),
      listener_(opened(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))),
      stop_(opened(eventfd(0, EFD_CLOEXEC))),
      spare_(opened(fcntl(stop_.get(), F_DUPFD_CLOEXEC, 0))) {
    sockaddr_un address;
    const socklen_t size = address_of(name_, address);
    const bool listens = bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                         listen(listener_.get(), kBacklog) == 0;
    if (!listens) fail(DDP_ERROR_UNSUPPORTED, "a local socket to hand shared memory over: ", std::strerror(errno));
    thread_ = quiet_thread([this] { serve(); });
}

HandoffServer::~HandoffServer() {
    eventfd_write(stop_.get(), 1);
    thread_.join();
}

void HandoffServer::serve() noexcept {
    for (;;) {
        pollfd waits[] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
        if (poll(waits, 2, -1) < 0 && errno != EINTR) return;
        if (waits[1].revents) return;
        {
            const Descriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (!connection && lacks_descriptors(errno)) make_room();
            if (!connection) continue;
            if (same_user(connection.get()))
                send_descriptor(connection.get(), fd_);
            else
                refuse(connection.get());
        }
        if (!spare_) spare_.reset(fcntl(stop_.get(), F_DUPFD_CLOEXEC, 0));
    }
}

void HandoffServer::make_room() noexcept {
    pollfd stop{stop_.get(), POLLIN, 0};
    if (spare_)
        spare_.reset();
    else
        poll(&stop, 1, kPauseMs);
}

int receive_descriptor(const std::string& name, const Deadline& deadline) {
    const Descriptor socket(opened(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    sockaddr_un address;
    if (name.empty() || name.size() >= sizeof address.sun_path)
        fail(DDP_ERROR_UNAVAILABLE, "'", name, "' is not the name of a local socket");
    const socklen_t size = address_of(name, address);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0)
        fail(DDP_ERROR_UNAVAILABLE, "the rank that makes the shared memory cannot be reached: ", std::strerror(errno));
    if (!same_user(socket.get()))
        fail(DDP_ERROR_PERMISSION_DENIED,
             "a process of another user offers the shared memory: do all ranks of this host run as the same user?");
    pollfd wait{socket.get(), POLLIN, 0};
    int ready;
    do {
        if (interrupt::wanted()) fail(DDP_ERROR_INTERRUPTED, "the program ended the wait");
        ready = poll(&wait, 1,
                     static_cast<int>(std::min<std::int64_t>(deadline.remaining_ms(), interrupt::kSlice.count())));
    } while ((ready < 0 && errno == EINTR) || (ready == 0 && !deadline.expired()));
    if (ready == 0) fail(DDP_ERROR_TIMEOUT, "the rank that makes the shared memory did not hand it over in time");
    Parcel parcel;
    const auto received = recvmsg(socket.get(), &parcel.message, MSG_CMSG_CLOEXEC);
    Descriptor given = received >= 0 ? descriptor_in(parcel) : Descriptor();
    if (received == 1 && parcel.byte == kRefused)
        fail(DDP_ERROR_PERMISSION_DENIED,
             "the rank that makes the shared memory did not hand it over: do all ranks of this host run as the same "
             "user?");
    // Ended, or gave up; its own error, or the store's, says why.
    if (received != 1)
        fail(DDP_ERROR_RANK_FAILED, "the rank that makes the shared memory went away before it had handed it over");
    if (!given) cannot_start("the hand-over of shared memory", EMFILE);
    return given.release();
}

}  // namespace libddp::shm
