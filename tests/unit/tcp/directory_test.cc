// Where ranks listen, as they tell each other.
#include "backends/tcp/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "util/error.h"

namespace libddp::tcp {
namespace {

using ::testing::HasSubstr;

ErrorInfo refusal(const std::string& text, int world) {
    try {
        read_directory(text, world);
    } catch (const Error& error) {
        return error.info();
    }
    return {};
}

TEST(TcpDirectory, IsALineForEachRank) {
    const std::vector<Listening> ranks{{"encrypted", 1, "127.0.0.1", 9},
                                       {"encrypted", 1, "fe80::1", 65'535}};
    const std::string text = write_listening(ranks[0]) + "\n" + write_listening(ranks[1]);
    EXPECT_EQ(text, "encrypted 1 127.0.0.1 9\nencrypted 1 fe80::1 65535");
    EXPECT_EQ(read_directory(text, 2), ranks);
}

// A rank without a secret, or a store that others write, could send the others anywhere.
TEST(TcpDirectory, WhatIsNoAddressNamesTheRank) {
    for (const char* line :
         {"encrypted 1 example.org 9", "encrypted 1 127.0.0.1 0", "encrypted 1 127.0.0.1 -9",
          "encrypted 1 127.0.0.1 65536", "encrypted 1 127.0.0.1 4294967305",
          "encrypted 0 127.0.0.1 9", "encrypted 1 127.0.0.1", "encrypted 1 127.0.0.1 9 9",
          " 1 127.0.0.1 9", "encrypted\t1\t127.0.0.1\t9", "\x1b[2J"}) {
        const ErrorInfo error = refusal(std::string("encrypted 1 127.0.0.1 9\n") + line, 2);
        EXPECT_EQ(error.code, DDP_ERROR_INTERNAL) << line;
        EXPECT_EQ(error.rank, 1) << line;
        EXPECT_THAT(error.message, HasSubstr("where rank 1 says how it can be reached"));
        EXPECT_EQ(error.message.find('\x1b'), std::string::npos);
    }
}

TEST(TcpDirectory, OfAnotherNumberOfRanksIsRefused) {
    const std::string two = "encrypted 1 127.0.0.1 9\nencrypted 1 127.0.0.1 9";
    EXPECT_THAT(refusal(two, 1).message, HasSubstr("2 ranks, and the group has 1"));
    EXPECT_THAT(refusal(two, 3).message, HasSubstr("2 ranks, and the group has 3"));
    EXPECT_THAT(refusal("", 1).message, HasSubstr("0 ranks, and the group has 1"));
    EXPECT_THAT(refusal(two + "\n" + two + "\n" + two, 2).message,
                HasSubstr("more than 3 ranks, and the group has 2"));
}

}  // namespace
}  // namespace libddp::tcp
