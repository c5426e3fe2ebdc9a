// Messages over one connection whose other end goes away.
#include "backends/tcp/lane.h"

#include <gtest/gtest.h>

#include "unit/wire/support.h"
#include "util/error.h"

namespace libddp::tcp {
namespace {

using wire::Protection;

class LaneTest : public testing::TestWithParam<Protection> {
protected:
    LaneTest() {
        auto channels = wire::testing::open(GetParam());
        peer_ = std::make_unique<Lane>(0, 0, std::move(channels.client));
        mine_ = std::make_unique<Lane>(1, 0, std::move(channels.server));
    }
    void peer_sends(MessageType type, std::uint64_t operation, const std::string& text) {
        peer_->send(type, operation, text.data(), text.size());
        while (peer_->sending()) peer_->move();
    }
    void peer_goes() { peer_.reset(); }
    // The next message, as text.
    std::string receive(MessageType type, std::uint64_t operation, std::size_t bytes) {
        std::string text(bytes, ' ');
        int missing = 1;
        mine_->expect(type, operation, text.data(), bytes, &missing);
        while (missing > 0) mine_->move();
        return text;
    }
    ddp_status code_of_close() {
        try {
            mine_->peer_closed();
            return DDP_OK;
        } catch (const Error& error) {
            return error.info().code;
        }
    }

    std::unique_ptr<Lane> peer_, mine_;
};

TEST_P(LaneTest, WhatCameBeforeTheEndIsExpectedLater) {
    peer_sends(MessageType::kOpening, 1, "opening");
    peer_sends(MessageType::kData, 1, "data");
    peer_sends(MessageType::kGoodbye, 1, "");
    peer_goes();
    EXPECT_EQ(receive(MessageType::kOpening, 1, 7), "opening");
    EXPECT_EQ(code_of_close(), DDP_OK);
    EXPECT_EQ(receive(MessageType::kData, 1, 4), "data");
    EXPECT_EQ(code_of_close(), DDP_OK) << "it said goodbye";
    int missing = 1;
    mine_->expect(MessageType::kOpening, 2, nullptr, 0, &missing);
    try {
        for (;;) mine_->move();
    } catch (const Error& error) {
        EXPECT_EQ(error.info().code, DDP_ERROR_RANK_FAILED);
        EXPECT_STREQ(error.what(), "rank 1 left the group");
    }
}

TEST_P(LaneTest, AnEndWithoutGoodbyeIsAFailure) {
    peer_sends(MessageType::kOpening, 1, "opening");
    peer_goes();
    EXPECT_EQ(receive(MessageType::kOpening, 1, 7), "opening");
    EXPECT_EQ(code_of_close(), DDP_ERROR_RANK_FAILED);
}

TEST_P(LaneTest, WhatThePeerSaidIsReadAlthoughNothingCanBeSent) {
    peer_sends(MessageType::kOpening, 1, "opening");
    peer_goes();
    const std::string much(std::size_t{4} << 20, 'x');
    mine_->send(MessageType::kData, 1, much.data(), much.size());
    EXPECT_EQ(receive(MessageType::kOpening, 1, 7), "opening");
}

INSTANTIATE_TEST_SUITE_P(Tcp, LaneTest, testing::Values(Protection::kEncrypted, Protection::kPlain),
                         [](const auto& instance) {
                             return std::string(
                                 instance.param == Protection::kEncrypted ? "encrypted" : "plain");
                         });

}  // namespace
}  // namespace libddp::tcp
