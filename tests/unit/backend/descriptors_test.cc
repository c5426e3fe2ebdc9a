// Processes that can open no more files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/shm/handoff.h"
#include "backends/shm/segment.h"
#include "support/few_descriptors.h"
#include "util/error.h"
#include "util/host.h"

namespace libddp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Call>
void expect_limit(int left, Call call) {
    ErrorInfo error;
    try {
        const FewDescriptors few(left);
        call();
    } catch (const Error& thrown) {
        error = thrown.info();
    }
    EXPECT_EQ(error.code, DDP_ERROR_LIMIT) << left << " left: " << error.message;
    EXPECT_THAT(error.message, AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n")))
        << left << " left";
}

TEST(Descriptors, SharedMemoryNeedsThem) {
    expect_limit(0, [] { const shm::Segment segment; });
    expect_limit(0, [] { (void)host_id(); });
}

// Whichever of its three it is that it does not get.
TEST(Descriptors, AHandoffNeedsThem) {
    const shm::Segment segment;
    const auto hand_over = [&segment] { const shm::HandoffServer server(segment.fd()); };
    for (const int left : {0, 1, 2}) expect_limit(left, hand_over);
    const FewDescriptors few(3);
    EXPECT_NO_THROW(hand_over());
}

TEST(Descriptors, ATakeOverNeedsThem) {
    const std::string address = "libddp-nobody " + std::string(64, '0');
    expect_limit(0, [&] { (void)shm::receive_descriptor(address, Deadline::after_ms(10'000)); });
}

}  // namespace
}  // namespace libddp
