// A descriptor of shared memory as another process hands it over, or whatever it hands over
// instead; and whatever a process says to get one. The first byte says whether the rest is what a
// server sends, what a caller says, or an address.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "backends/shm/handoff.h"
#include "backends/shm/segment.h"
#include "fuzz/target.h"

namespace fuzz::shm_handoff {
namespace {

using namespace libddp;

constexpr std::size_t kTokenSize = 64;

int new_memory(bool sealed) {
    const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    check(fd >= 0 && ftruncate(fd, 8192) == 0, "there is no memory");
    if (sealed) fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    return fd;
}

// The descriptors that the other process may send.
const std::vector<int>& descriptors() {
    static const std::vector<int> all{new_memory(true), new_memory(false), eventfd(0, EFD_CLOEXEC),
                                      open("/dev/null", O_RDWR | O_CLOEXEC)};
    return all;
}

// A process that sends what it is told, to one client after another.
class Sender {
public:
    Sender() : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        // Without a name of its own, the kernel gives it one.
        socklen_t size = sizeof address.sun_family;
        const bool listens =
            bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
            listen(listener_, 1) == 0;
        size = sizeof address;
        check(listens && getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
              "there is no local socket");
        name_.assign(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
        descriptors();
        std::thread([this] { serve(); }).detach();
    }

    std::string address() const { return name_ + ' ' + std::string(kTokenSize, '0'); }
    bool is_at(std::string_view address) const {
        return address.substr(0, address.find(' ')) == name_;
    }
    void prepare(std::string_view what) {
        const std::lock_guard lock(mutex_);
        next_ = what;
        done_ = false;
    }
    void wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return done_; });
    }

private:
    void serve() {
        for (;;) {
            // A thread that waits in accept() has a number for the descriptor already.
            pollfd wait{listener_, POLLIN, 0};
            poll(&wait, 1, -1);
            const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            const std::lock_guard lock(mutex_);
            if (client >= 0) {
                char token[kTokenSize];
                check(recv(client, token, sizeof token, MSG_WAITALL) == kTokenSize,
                      "a client does not say its token");
                send(client, next_);
                close(client);
            }
            done_ = true;
            changed_.notify_all();
        }
    }
    static void send(int client, std::string_view what) {
        Reader bytes(what);
        std::vector<int> sent(bytes.below(6));
        for (int& fd : sent) fd = descriptors()[bytes.below(descriptors().size())];
        std::string text(bytes.piece(8));
        iovec part{text.data(), text.size()};
        alignas(cmsghdr) char control[CMSG_SPACE(6 * sizeof(int))] = {};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        if (!sent.empty()) {
            message.msg_control = control;
            message.msg_controllen = CMSG_SPACE(sent.size() * sizeof(int));
            cmsghdr* header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(sent.size() * sizeof(int));
            std::memcpy(CMSG_DATA(header), sent.data(), sent.size() * sizeof(int));
        }
        if (!text.empty()) sendmsg(client, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }

    const int listener_;
    std::string name_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string next_;  // a client that is told to come again gets it once more
    bool done_ = false;
};

// A server of a rank's, and a process that knows where it is. `bytes` says how much of the token it
// knows, and what else it says.
void steal(Reader bytes) {
    static const int memory = new_memory(true);
    static const shm::HandoffServer& server = *new shm::HandoffServer(memory);
    const std::string token = server.address().substr(server.name().size() + 1);
    const std::string said =
        token.substr(0, bytes.below(kTokenSize + 1)) + std::string(bytes.rest());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, server.name().data(), server.name().size());
    const auto size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + server.name().size());
    const Descriptor thief(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    check(connect(thief.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0,
          "the server is not there");
    if (!said.empty()) ::send(thief.get(), said.data(), said.size(), MSG_NOSIGNAL);
    shutdown(thief.get(), SHUT_WR);
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    check(recvmsg(thief.get(), &message, MSG_CMSG_CLOEXEC) == 1, "the server does not answer");
    const cmsghdr* got = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (got) std::memcpy(&fd, CMSG_DATA(got), sizeof fd);
    close(fd);
    // The server reads no further than a token has bytes.
    check((got != nullptr) == (said.compare(0, kTokenSize, token) == 0),
          "the token decides who gets the memory");
}

// The number that the next descriptor gets: greater than before if one was left open.
int lowest_free() {
    const int fd = dup(STDIN_FILENO);
    close(fd);
    return fd;
}

// Other threads, libFuzzer's among them, have one open for a moment.
bool all_closed(int before) {
    for (int look = 0; look < 100; ++look, usleep(1000))
        if (lowest_free() <= before) return true;
    return false;
}

}  // namespace

DDP_FUZZ_TARGET(shm_handoff, input) {
    static Sender& sender = *new Sender;
    Reader bytes(input);
    const std::uint8_t what = bytes.byte();
    const auto deadline = Deadline::after_ms(100);
    if (what >= 192) {
        const std::string address(bytes.rest());
        if (!sender.is_at(address))
            accepts([&] { close(shm::receive_descriptor(address, deadline)); });
        return;
    }
    if (what >= 128) return steal(bytes);
    const std::uint64_t offset = what % 4 * 2048, size = what / 4 * 256U;
    const int before = lowest_free();
    sender.prepare(bytes.rest());
    accepts([&] {
        const shm::Segment segment(shm::receive_descriptor(sender.address(), deadline));
        const shm::Mapping memory = segment.map(offset, size);
        memory.data()[memory.bytes() - 1] = std::byte{1};
    });
    sender.wait();
    check(all_closed(before), "a descriptor is left open");
}

}  // namespace fuzz::shm_handoff
