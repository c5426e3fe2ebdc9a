#include "util/descriptors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "support/few_descriptors.h"
#include "util/error.h"

namespace libddp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ErrorInfo wish(std::size_t count) {
    try {
        require_descriptors(count, "the test");
    } catch (const Error& error) {
        return error.info();
    }
    return {};
}

TEST(RequireDescriptors, SaysWhetherThereAreSoMany) {
    for (const int left : {0, 1, 2, 5, 20}) {
        const FewDescriptors few(left);
        const auto count = static_cast<std::size_t>(left);
        // Looking at each descriptor takes one, so a wish for none may fail where there is none
        // left.
        if (left > 0) {
            EXPECT_TRUE(wish(count).ok()) << left;
        }
        const ErrorInfo error = wish(count + 1);
        EXPECT_EQ(error.code, DDP_ERROR_LIMIT) << left;
        EXPECT_THAT(error.message,
                    AllOf(HasSubstr("the test cannot start"), HasSubstr("ulimit -n")))
            << left;
    }
}

TEST(RequireDescriptors, OnesAboveTheLimitTakeNothingOfIt) {
    const int high = fcntl(0, F_DUPFD, 200);
    {
        const FewDescriptors few(3);
        EXPECT_TRUE(wish(3).ok());
        EXPECT_FALSE(wish(4).ok());
    }
    close(high);
}

TEST(RequireDescriptors, LeavesThemToOtherThreads) {
    std::atomic<bool> over{false};
    std::atomic<long> opened{0};
    long refused = 0;
    const FewDescriptors few(8);
    std::thread other([&] {
        for (; !over; ++opened)
            if (const int fd = dup(0); fd >= 0)
                close(fd);
            else
                ++refused;
    });
    // Both are busy at the same time, however late the other thread starts. The answer is no while
    // that thread has one.
    for (int i = 0; i < 3000 || opened < 3000; ++i) (void)wish(8);
    over = true;
    other.join();
    EXPECT_EQ(refused, 0);
}

}  // namespace
}  // namespace libddp
