#include "backends/shm/handoff.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "util/error.h"
#include "util/interrupt.h"
#include "util/quiet_thread.h"
#include "util/random.h"

namespace libddp::shm {
namespace {

constexpr int kBacklog = 128;
// How long a server without descriptors waits before it tries again.
constexpr int kPauseMs = 10;
// The byte that an answer consists of, because a descriptor must travel with one. After kLater the
// caller tries again.
constexpr char kHandedOver = 'd';
constexpr char kRefused = 'r';
constexpr char kLater = 'l';
// In characters. 256 bits, so nobody guesses it.
constexpr std::size_t kTokenSize = 64;
// How long a caller waits after kLater.
constexpr std::chrono::milliseconds kAgain{5};

// A name in the kernel's table instead of a file, so that nothing is left over.
socklen_t address_of(const std::string& name, sockaddr_un& address) {
    address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool same_user(int connection) {
    ucred peer{};
    socklen_t size = sizeof peer;
    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           peer.uid == geteuid();
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

void say(int connection, char byte) {
    send(connection, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void send_descriptor(int connection, int fd) {
    Parcel parcel;
    cmsghdr* header = CMSG_FIRSTHDR(&parcel.message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    // A rank that has gone meanwhile needs nothing more.
    sendmsg(connection, &parcel.message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

[[noreturn]] void too_late() {
    fail(DDP_ERROR_TIMEOUT, "the rank that makes the shared memory did not hand it over in time");
}

[[noreturn]] void ended_by_program() {
    fail(DDP_ERROR_INTERRUPTED, "the program ended the wait");
}

// Waits while the server's queue is full, and for no longer than the deadline.
Descriptor connect_to(const std::string& name, const Deadline& deadline) {
    Descriptor socket(opened(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    sockaddr_un address;
    const socklen_t size = address_of(name, address);
    // A connect() that polls would never get its turn beside those that sleep.
    const timeval slice{0, std::chrono::microseconds(interrupt::kSlice).count()};
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice);
    while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
        if (errno != EAGAIN && errno != EINTR)
            fail(DDP_ERROR_UNAVAILABLE,
                 "the rank that makes the shared memory cannot be reached at its local socket: ",
                 std::strerror(errno),
                 ". If it still runs, it is on another host that has the same boot id and number "
                 "of a network namespace, as a cloned machine, or the same DDP_HOST_ID. Set "
                 "DDP_HOST_ID to another text on each host, or choose backend tcp");
        if (interrupt::wanted()) ended_by_program();
        if (deadline.expired()) too_late();
    }
    if (!same_user(socket.get()))
        fail(DDP_ERROR_PERMISSION_DENIED,
             "a process of another user offers the shared memory: do all ranks of this host run as "
             "the same user?");
    return socket;
}

void wait_for_answer(int connection, const Deadline& deadline) {
    pollfd wait{connection, POLLIN, 0};
    int ready;
    do {
        if (interrupt::wanted()) ended_by_program();
        ready = poll(&wait, 1,
                     static_cast<int>(std::min<std::int64_t>(deadline.remaining_ms(),
                                                             interrupt::kSlice.count())));
    } while ((ready < 0 && errno == EINTR) || (ready == 0 && !deadline.expired()));
    if (ready == 0) too_late();
}

}  // namespace

HandoffServer::HandoffServer(int fd)
    : fd_(fd),
      name_("libddp-" + random_text(16)),
      token_(random_text(kTokenSize / 2)),
      listener_(opened(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))),
      stop_(opened(eventfd(0, EFD_CLOEXEC))),
      spare_(opened(fcntl(stop_.get(), F_DUPFD_CLOEXEC, 0))) {
    callers_.reserve(kMostCallers);
    sockaddr_un address;
    const socklen_t size = address_of(name_, address);
    const bool listens =
        bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
        listen(listener_.get(), kBacklog) == 0;
    if (!listens)
        fail(DDP_ERROR_UNSUPPORTED,
             "a local socket to hand shared memory over: ", std::strerror(errno));
    thread_ = quiet_thread([this] { serve(); });
}

HandoffServer::~HandoffServer() {
    eventfd_write(stop_.get(), 1);
    thread_.join();
}

void HandoffServer::serve() noexcept {
    for (;;) {
        std::array<pollfd, 2 + kMostCallers> waits{};
        waits[0] = {listener_.get(), POLLIN, 0};
        waits[1] = {stop_.get(), POLLIN, 0};
        std::size_t count = 2;
        for (const Caller& caller : callers_) waits[count++] = {caller.connection.get(), POLLIN, 0};
        const int ready = poll(waits.data(), count, patience_ms());
        if (ready < 0 && errno != EINTR) return;
        if (ready < 0) continue;
        if (waits[1].revents) return;
        // First those that wait: a caller that has said its token makes no room for another.
        hear(waits.data() + 2);
        while (patience_ms() == 0) dismiss_oldest();
        if (waits[0].revents && !take_in()) continue;  // the room that it made is for a caller
        if (!spare_) spare_.reset(fcntl(stop_.get(), F_DUPFD_CLOEXEC, 0));
    }
}

// Until the oldest caller is dismissed; -1: there is none.
int HandoffServer::patience_ms() const noexcept {
    if (callers_.empty()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(callers_.front().came +
                                                                   kPatience - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(0, left.count()));
}

// waits: what poll() says of each caller.
void HandoffServer::hear(const pollfd* waits) noexcept {
    for (std::size_t i = callers_.size(); i-- > 0;)
        if (waits[i].revents && answered(callers_[i].connection.get()))
            callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
}

// False: it had no descriptor for the caller and has made room for the next try.
bool HandoffServer::take_in() noexcept {
    Descriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection && lacks_descriptors(errno)) {
        make_room();
        return false;
    }
    if (!connection) return true;
    if (!same_user(connection.get())) {
        say(connection.get(), kRefused);
    } else if (!answered(connection.get())) {  // usually the token has come already
        if (callers_.size() == kMostCallers) dismiss_oldest();
        callers_.push_back({std::move(connection), Clock::now()});
    }
    return true;
}

void HandoffServer::dismiss_oldest() noexcept {
    say(callers_.front().connection.get(), kLater);
    callers_.erase(callers_.begin());
}

// Answers the caller, which is then done. False: it has said nothing yet. A rank sends its token at
// once, so the kernel delivers it in one piece: whatever else comes is not from a rank.
bool HandoffServer::answered(int connection) noexcept {
    char said[kTokenSize];
    const ssize_t size = recv(connection, said, sizeof said, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (size > 0 && same_secret({said, static_cast<std::size_t>(size)}, token_))
        send_descriptor(connection, fd_);
    else
        say(connection, kRefused);
    return true;
}

void HandoffServer::make_room() noexcept {
    pollfd stop{stop_.get(), POLLIN, 0};
    if (!callers_.empty())
        dismiss_oldest();
    else if (spare_)
        spare_.reset();
    else
        poll(&stop, 1, kPauseMs);
}

int receive_descriptor(const std::string& address, const Deadline& deadline) {
    const std::size_t end = std::min(address.find(' '), address.size());
    const std::string name = address.substr(0, end);
    const std::string_view token =
        std::string_view(address).substr(std::min(end + 1, address.size()));
    if (name.empty() || name.size() >= sizeof(sockaddr_un::sun_path) || token.size() != kTokenSize)
        fail(DDP_ERROR_UNAVAILABLE,
             "the store's value is not an address of shared memory: do all ranks use the same "
             "version of libddp?");
    for (;;) {
        const Descriptor socket = connect_to(name, deadline);
        // If the server has closed the connection already, its answer is there.
        send(socket.get(), token.data(), token.size(), MSG_NOSIGNAL);
        wait_for_answer(socket.get(), deadline);
        Parcel parcel;
        const auto received = recvmsg(socket.get(), &parcel.message, MSG_CMSG_CLOEXEC);
        Descriptor given = received >= 0 ? descriptor_in(parcel) : Descriptor();
        if (received == 1 && parcel.byte == kLater) {
            if (deadline.expired()) too_late();
            if (!interrupt::sleep(kAgain, deadline)) ended_by_program();
            continue;
        }
        if (received == 1 && parcel.byte == kRefused)
            fail(DDP_ERROR_PERMISSION_DENIED,
                 "the rank that makes the shared memory did not hand it over: do all ranks of this "
                 "host run as the same user?");
        // Ended, or gave up; its own error, or the store's, says why.
        if (received != 1)
            fail(DDP_ERROR_RANK_FAILED,
                 "the rank that makes the shared memory went away before it had handed it over");
        if (!given) cannot_start("the hand-over of shared memory", EMFILE);
        return given.release();
    }
}

}  // namespace libddp::shm
