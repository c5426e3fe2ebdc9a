// Messages that a process takes from another one that shares memory with it, and messages that it
// refuses.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/shm/arena.h"
#include "backends/shm/handoff.h"
#include "backends/shm/segment.h"
#include "backends/shm/team.h"
#include "support/slack.h"
#include "unit/backend/fake_host.h"
#include "util/descriptors.h"
#include "util/error.h"

namespace libddp {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kNobody = 65534;

template <class Call>
ErrorInfo error_of(Call call) {
    try {
        call();
    } catch (const Error& error) {
        return error.info();
    }
    return {};
}

// A process of another user that offers memory of its own, as long as this object lives.
class Stranger {
public:
    Stranger() {
        int told[2], wanted[2];
        if (pipe(told) != 0 || pipe(wanted) != 0) return;
        child_ = fork();
        if (child_ == 0) {
            close(wanted[1]);
            if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
            const shm::Segment segment;
            const shm::HandoffServer server(segment.fd());
            const std::string address = server.address();
            const ssize_t written = write(told[1], address.data(), address.size());
            char end;
            _exit(written > 0 && read(wanted[0], &end, 1) == 0 ? 0 : 1);
        }
        close(told[1]);
        close(wanted[0]);
        still_wanted_ = wanted[1];
        char address[256];
        const ssize_t size = read(told[0], address, sizeof address);
        address_.assign(address, size > 0 ? static_cast<std::size_t>(size) : 0);
        close(told[0]);
    }
    ~Stranger() {
        close(still_wanted_);
        if (child_ > 0) waitpid(child_, nullptr, 0);
    }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;

    const std::string& address() const { return address_; }

private:
    pid_t child_ = -1;
    int still_wanted_ = -1;
    std::string address_;
};

TEST(SharedMemory, OfAnotherUserIsRefused) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can play another user";
    const Stranger stranger;
    ASSERT_FALSE(stranger.address().empty());
    const ErrorInfo error = error_of(
        [&] { (void)shm::receive_descriptor(stranger.address(), Deadline::after_ms(10'000)); });
    EXPECT_EQ(error.code, DDP_ERROR_PERMISSION_DENIED);
    EXPECT_THAT(error.message, HasSubstr("a process of another user offers the shared memory"));
}

// A process that hands these descriptors over to the next one that asks, with this byte.
class Giver {
public:
    Giver(std::vector<int> given, char byte)
        : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        socklen_t size = sizeof address.sun_family;  // the kernel gives it a name
        bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size);
        listen(listener_.get(), 1);
        size = sizeof address;
        getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
        name_.assign(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
        thread_ =
            std::thread([this, given = std::move(given), byte]() mutable { give(given, byte); });
    }
    ~Giver() { thread_.join(); }

    std::string address() const { return name_ + ' ' + std::string(64, '0'); }

private:
    void give(std::vector<int>& given, char byte) {
        const Descriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        char token[64];
        EXPECT_EQ(recv(client.get(), token, sizeof token, MSG_WAITALL), 64);
        iovec part{&byte, 1};
        const std::size_t bytes = given.size() * sizeof(int);
        std::vector<char> control(CMSG_SPACE(bytes));
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(bytes);
        std::memcpy(CMSG_DATA(header), given.data(), bytes);
        sendmsg(client.get(), &message, MSG_NOSIGNAL);
    }

    const Descriptor listener_;
    std::string name_;
    std::thread thread_;
};

TEST(SharedMemory, DescriptorsThatCameBesideAreClosed) {
    const shm::Segment segment;
    for (const char byte : {'d', 'r'})
        for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
            const Descriptor before(dup(segment.fd()));
            {
                const Giver giver(std::vector<int>(count, segment.fd()), byte);
                const ErrorInfo error = error_of([&] {
                    const Descriptor taken(
                        shm::receive_descriptor(giver.address(), Deadline::after_ms(10'000)));
                });
                EXPECT_EQ(error.code, byte == 'd' ? DDP_OK : DDP_ERROR_PERMISSION_DENIED)
                    << error.message;
            }
            const Descriptor after(dup(segment.fd()));
            EXPECT_EQ(after.get(), before.get() + 1) << count << " with '" << byte << "'";
        }
}

// A socket of this process, connected to that server: what every process of the same user can have.
Descriptor thief_at(const shm::HandoffServer& server) {
    Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, server.name().data(), server.name().size());
    const auto size =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + server.name().size());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size), 0)
        << std::strerror(errno);
    return fd;
}

// The answer's byte, 0 if the connection ended without; a descriptor with it is an error.
char answer_to(const Descriptor& thief) {
    char byte = 0;
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    EXPECT_GE(recvmsg(thief.get(), &message, MSG_CMSG_CLOEXEC), 0) << std::strerror(errno);
    EXPECT_EQ(message.msg_controllen, 0U)
        << "a descriptor was handed to somebody without the token";
    return byte;
}

std::string token_of(const shm::HandoffServer& server) {
    return server.address().substr(server.name().size() + 1);
}

TEST(SharedMemory, IsNotHandedOverWithoutTheToken) {
    const shm::Segment segment;
    const shm::HandoffServer server(segment.fd());
    const std::string token = token_of(server);
    ASSERT_EQ(token.size(), 64U);
    std::string near = token;
    near.back() = near.back() == '0' ? '1' : '0';
    const std::string_view good(token);
    for (const std::string_view said :
         {std::string_view(near), good.substr(0, 63), good.substr(1), good.substr(0, 1),
          std::string_view("GET / HTTP/1.0"), std::string_view("\0", 1)}) {
        const Descriptor thief = thief_at(server);
        ASSERT_EQ(send(thief.get(), said.data(), said.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(said.size()));
        EXPECT_EQ(answer_to(thief), 'r') << said;
    }
    const shm::HandoffServer other(segment.fd());
    EXPECT_NE(token_of(other), token) << "two servers have the same token";
    const Descriptor taken(
        shm::receive_descriptor(server.address(), Deadline::after_ms(with_slack(20'000))));
    EXPECT_TRUE(taken);
}

// Silent ones fill all of the server's places and the kernel's queue.
TEST(SharedMemory, IsHandedOverAlthoughStrangersSaySoLittle) {
    const shm::Segment segment;
    const shm::HandoffServer server(segment.fd());
    std::vector<Descriptor> silent;
    for (std::size_t i = 0; i < 4 * shm::HandoffServer::kMostCallers; ++i)
        silent.push_back(thief_at(server));
    for (int i = 0; i < 20; ++i) {
        const Descriptor taken(
            shm::receive_descriptor(server.address(), Deadline::after_ms(with_slack(20'000))));
        EXPECT_TRUE(taken);
    }
    // The oldest made room for the others.
    EXPECT_EQ(answer_to(silent.front()), 'l');
}

// A process that is stopped takes nobody in: its queue in the kernel is full.
TEST(SharedMemory, WaitsForAServerUntilItsDeadline) {
    const Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t size = sizeof address.sun_family;
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    ASSERT_EQ(listen(listener.get(), 0), 0);
    size = sizeof address;
    ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    std::vector<Descriptor> queue;
    do queue.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    while (connect(queue.back().get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    const std::string name(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
    const ErrorInfo error = error_of([&] {
        (void)shm::receive_descriptor(name + ' ' + std::string(64, '0'), Deadline::after_ms(300));
    });
    EXPECT_EQ(error.code, DDP_ERROR_TIMEOUT) << error.message;
}

TEST(SharedMemory, AddressesThatAreNone) {
    for (const std::string address :
         {"", " ", "name", "libddp-1 0000",
          " 0000000000000000000000000000000000000000000000000000000000000000"})
        EXPECT_EQ(error_of([&] {
                      (void)shm::receive_descriptor(address, Deadline::after_ms(1000));
                  }).code,
                  DDP_ERROR_UNAVAILABLE)
            << address;
}

TEST(SharedMemory, NeverShrinks) {
    shm::Segment segment;
    segment.reserve(0, 2 * shm::page_size());
    EXPECT_EQ(ftruncate(segment.fd(), 0), -1);
    EXPECT_EQ(errno, EPERM);
}

TEST(SharedMemory, ThatCanShrinkIsRefused) {
    for (const unsigned flags : {0u, unsigned{MFD_ALLOW_SEALING}}) {
        const int fd = memfd_create("stranger", MFD_CLOEXEC | flags);
        ASSERT_GE(fd, 0);
        EXPECT_EQ(error_of([fd] { const shm::Segment taken(fd); }).code,
                  DDP_ERROR_PERMISSION_DENIED);
    }
}

TEST(SharedMemory, IsNotUsedBeyondItsEnd) {
    shm::Segment segment;
    const std::size_t page = shm::page_size();
    segment.reserve(0, 2 * page);
    EXPECT_EQ(error_of([&] { (void)segment.map(page, page); }).code, DDP_OK);
    EXPECT_EQ(error_of([&] { (void)segment.map(page, 2 * page); }).code, DDP_ERROR_RANK_FAILED);
    EXPECT_EQ(error_of([&] { (void)segment.map(3 * page, page); }).code, DDP_ERROR_RANK_FAILED);
    EXPECT_EQ(error_of([&] { (void)segment.map(page, SIZE_MAX - page + 1); }).code,
              DDP_ERROR_RANK_FAILED);
}

TEST(SharedMemory, IsReachedOnlyWhereItIs) {
    shm::Segment segment, same(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0));
    const std::size_t page = shm::page_size();
    shm::FreedBlocks freed_here{}, freed_there{};
    shm::Arena here(segment, page, 1000 * page, freed_here, 2);
    shm::Arena there(same, 1000 * page, 2000 * page, freed_there, 2);
    auto* memory = static_cast<std::byte*>(here.allocate(2 * page));
    std::memset(memory, 7, 2 * page);
    const shm::Location location = here.locate(memory + 64, 100);
    std::byte* const reached = there.reach(0, location, 100);
    ASSERT_NE(reached, nullptr);
    EXPECT_EQ(reached[99], std::byte{7});
    EXPECT_EQ(here.reach(0, location, 100), memory + 64) << "its own is mapped once";
    EXPECT_EQ(here.reach(0, location, 2 * page - 63), nullptr);
    EXPECT_NE(there.reach(0, location, 2 * page - 64), nullptr);
    EXPECT_EQ(there.reach(0, location, 2 * page - 63), nullptr);
    EXPECT_EQ(there.reach(0, {location.block, location.bytes, 2 * page + 1}, 0), nullptr);
    EXPECT_EQ(there.reach(0, {location.block, location.bytes, SIZE_MAX}, 2), nullptr);
    // Numbers are read where their processor can.
    EXPECT_NE(there.reach(0, {location.block, location.bytes, 8}, 100, 8), nullptr);
    EXPECT_EQ(there.reach(0, {location.block, location.bytes, 4}, 100, 8), nullptr);
    EXPECT_EQ(there.reach(0, {location.block, page, 0}, 1), nullptr) << "it has another size";
    EXPECT_EQ(reached[99], std::byte{7}) << "it is still mapped";
    there.follow(0, freed_here);
    EXPECT_EQ(error_of([&] {
                  there.reach(0, {location.block, 100 * page, 0}, 3 * page);
              }).code,
              DDP_ERROR_RANK_FAILED)
        << "the segment is not that long";
}

TEST(SharedMemory, TellsEachFreedBlockUnlessThereWereTooMany) {
    shm::FreedBlocks freed{};
    std::uint64_t seen = 0, next = 1;
    for (const std::uint64_t more : {3, 0, 1, 63, 64, 2, 200, 63}) {
        for (std::uint64_t i = 0; i < more; ++i) freed.add(next++);
        std::vector<std::uint64_t> told, expected;
        const bool all = freed.follow(seen, [&](std::uint64_t block) { told.push_back(block); });
        EXPECT_EQ(all, more < 64) << more;
        EXPECT_EQ(seen, next - 1);
        if (all)
            for (std::uint64_t block = next - more; block < next; ++block)
                expected.push_back(block);
        EXPECT_EQ(told, expected) << more;
    }
}

TEST(SharedMemory, PlacesOfFreedBlocksAreUsedAgain) {
    shm::Segment segment, same(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0));
    const std::size_t page = shm::page_size();
    shm::FreedBlocks freed_here{}, freed_there{};
    shm::Arena here(segment, page, 9 * page, freed_here, 2);
    shm::Arena there(same, 9 * page, 17 * page, freed_there, 2);
    // Blocks of several sizes, freed in another order than they were made in, some while the other
    // rank has them mapped.
    for (int round = 0; round < 300; ++round) {
        const std::size_t pages[] = {1 + static_cast<std::size_t>(round) % 3, 2,
                                     1 + static_cast<std::size_t>(round) % 2};
        std::byte* blocks[3];
        for (int i = 0; i < 3; ++i) {
            const std::size_t bytes = pages[i] * page;
            blocks[i] = static_cast<std::byte*>(here.allocate(bytes));
            ASSERT_EQ(std::count(blocks[i], blocks[i] + bytes, std::byte{0}),
                      static_cast<std::ptrdiff_t>(bytes));
            std::memset(blocks[i], round % 100 + i + 1, bytes);
        }
        there.follow(0, freed_here);
        shm::Location locations[3];
        for (int i = 0; i < 3; ++i) {
            locations[i] = here.locate(blocks[i], pages[i] * page);
            const std::byte* seen = there.reach(0, locations[i], pages[i] * page);
            ASSERT_NE(seen, nullptr);
            ASSERT_EQ(std::memcmp(seen, blocks[i], pages[i] * page), 0);
        }
        for (int i : {round % 3, (round + 1) % 3, (round + 2) % 3}) here.deallocate(blocks[i]);
        if (round % 5 != 0) continue;
        // It hears of the freed blocks in a collective that reaches them once more.
        there.follow(0, freed_here);
        for (const shm::Location& location : locations)
            ASSERT_NE(there.reach(0, location, 1), nullptr);
    }
    void* const all = here.allocate(8 * page);  // in one piece again
    EXPECT_EQ(error_of([&] { here.allocate(1); }).code, DDP_ERROR_OUT_OF_MEMORY);
    here.stop_reuse();
    here.deallocate(all);
    EXPECT_EQ(error_of([&] { here.allocate(1); }).code, DDP_ERROR_OUT_OF_MEMORY);
}

// A rank that gives up in the middle of a collective may free its memory while the others still sum
// what is there.
TEST(SharedMemory, StaysThroughTheCollectiveInWhichItIsFreed) {
    constexpr int kWorld = 2;
    testing_backend::MemoryStore store;
    const backend::Failure none;
    std::unique_ptr<testing_backend::Rank> ranks[kWorld];
    std::unique_ptr<shm::Team> teams[kWorld];
    const auto join = [&](int rank) {
        ranks[rank] = std::make_unique<testing_backend::Rank>(store, rank, kWorld, "", 20'000, 0,
                                                              shm_backend());
        const shm::TeamOptions options{rank, kWorld, "team/", shm::page_size()};
        teams[rank] = std::make_unique<shm::Team>(ranks[rank]->host(), options, none);
    };
    std::thread other(join, 1);
    join(0);
    other.join();
    const std::size_t bytes = 2 * shm::page_size();
    shm::Arena& arena = teams[1]->arena();
    ddp_collective c{};
    c.timeout_ms = 20'000;
    void* const first = arena.allocate(bytes);
    void* const second = arena.allocate(bytes);
    const auto post = [&](const void* send, const void* recv) {
        teams[0]->post(c, 0, {}, {});
        teams[1]->post(c, 0, arena.locate(send, bytes), arena.locate(recv, bytes));
        teams[0]->meet(c);
    };

    post(first, second);
    std::byte* const send = teams[0]->send_of(1, bytes);
    arena.deallocate(first);
    std::byte* const recv = teams[0]->recv_of(1, bytes);
    unsigned char resident;
    ASSERT_EQ(mincore(send, 1, &resident), 0);
    EXPECT_EQ(*send, std::byte{0});

    post(second, second);
    EXPECT_EQ(teams[0]->send_of(1, bytes), recv);
    EXPECT_EQ(mincore(send, 1, &resident), -1) << "the next collective does not let go of it";
    EXPECT_EQ(errno, ENOMEM);
}

}  // namespace
}  // namespace libddp
