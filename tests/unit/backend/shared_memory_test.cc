// What a process takes from another one that shares memory with it, and what it refuses.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "backends/shm/arena.h"
#include "backends/shm/handoff.h"
#include "backends/shm/segment.h"
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
            const ssize_t written = write(told[1], server.name().data(), server.name().size());
            char end;
            _exit(written > 0 && read(wanted[0], &end, 1) == 0 ? 0 : 1);
        }
        close(told[1]);
        close(wanted[0]);
        still_wanted_ = wanted[1];
        char name[64];
        const ssize_t size = read(told[0], name, sizeof name);
        name_.assign(name, size > 0 ? static_cast<std::size_t>(size) : 0);
        close(told[0]);
    }
    ~Stranger() {
        close(still_wanted_);
        if (child_ > 0) waitpid(child_, nullptr, 0);
    }
    Stranger(const Stranger&) = delete;
    Stranger& operator=(const Stranger&) = delete;

    const std::string& name() const { return name_; }

private:
    pid_t child_ = -1;
    int still_wanted_ = -1;
    std::string name_;
};

TEST(SharedMemory, OfAnotherUserIsRefused) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can play another user";
    const Stranger stranger;
    ASSERT_FALSE(stranger.name().empty());
    const ErrorInfo error =
        error_of([&] { (void)shm::receive_descriptor(stranger.name(), Deadline::after_ms(10'000)); });
    EXPECT_EQ(error.code, DDP_ERROR_PERMISSION_DENIED);
    EXPECT_THAT(error.message, HasSubstr("a process of another user offers the shared memory"));
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
        EXPECT_EQ(error_of([fd] { const shm::Segment taken(fd); }).code, DDP_ERROR_PERMISSION_DENIED);
    }
}

TEST(SharedMemory, IsNotUsedBeyondItsEnd) {
    shm::Segment segment;
    const std::size_t page = shm::page_size();
    segment.reserve(0, 2 * page);
    EXPECT_EQ(error_of([&] { (void)segment.map(page, page); }).code, DDP_OK);
    EXPECT_EQ(error_of([&] { (void)segment.map(page, 2 * page); }).code, DDP_ERROR_RANK_FAILED);
    EXPECT_EQ(error_of([&] { (void)segment.map(3 * page, page); }).code, DDP_ERROR_RANK_FAILED);
    EXPECT_EQ(error_of([&] { (void)segment.map(page, SIZE_MAX - page + 1); }).code, DDP_ERROR_RANK_FAILED);
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
    EXPECT_NE(there.reach(0, location, 2 * page - 64), nullptr);
    EXPECT_EQ(there.reach(0, location, 2 * page - 63), nullptr);
    EXPECT_EQ(there.reach(0, {location.block, location.bytes, 2 * page + 1}, 0), nullptr);
    EXPECT_EQ(there.reach(0, {location.block, location.bytes, SIZE_MAX}, 2), nullptr);
    // What is mapped counts, not what is said later.
    EXPECT_EQ(there.reach(0, {location.block, 100 * page, 0}, 3 * page), nullptr);
}

}  // namespace
}  // namespace libddp
