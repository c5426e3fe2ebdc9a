// Verdicts survive the store; malformed ones do not get past.
#include "comm/verdict.h"

#include <gtest/gtest.h>

#include "comm/signature.h"

using namespace libddp;

namespace {

TEST(Verdict, RoundTrip) {
    ErrorInfo e{DDP_ERROR_RANK_FAILED, "rank 2 died: why?\nsecond line", 2, -1, 5, 12345678901};
    auto back = decode_verdict(encode_verdict(e));
    EXPECT_EQ(back.code, e.code);
    EXPECT_EQ(back.message, e.message);
    EXPECT_EQ(back.rank, 2);
    EXPECT_EQ(back.param, -1);
    EXPECT_EQ(back.bucket, 5);
    EXPECT_EQ(back.step, 12345678901);
}

TEST(Verdict, MalformedTextIsAnError) {
    for (const char* text : {"", "1", "x y z", "0 0 0 0 0 fine", "-7 1 2 3", "-7 1 2 3 4", "99999999999 1 1 1 1 m"}) {
        auto e = decode_verdict(text);
        EXPECT_EQ(e.code, DDP_ERROR_INTERNAL) << text;
    }
}

TEST(Signature, MismatchReadsTheSameFromBothSides) {
    Signature a{7, 3, 40, 1000, 2, DDP_COLLECTIVE_ALLREDUCE, DDP_F32, DDP_AVG, 0, 0}, b = a;
    b.count = 999;
    auto from_a = describe_mismatch(a, 0, b, 1, ""), from_b = describe_mismatch(b, 1, a, 0, "");
    EXPECT_EQ(from_a, from_b);
    EXPECT_NE(from_a.find("allreduce of 1000 f32 (avg), bucket 2 of step 3"), std::string::npos) << from_a;
    EXPECT_NE(from_a.find("999"), std::string::npos);
}

}  // namespace
