// Verdicts survive the store; malformed ones do not get past.
#include "comm/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/monitor.h"
#include "comm/signature.h"

using namespace libddp;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
    for (const char* text : {"", "1", "x y z", "0 0 0 0 0 fine", "-7 1 2 3", "-7 1 2 3 4",
                             "99999999999 1 1 1 1 m", "5 0 0 0 0 a status that is no error"}) {
        auto e = decode_verdict(text);
        EXPECT_EQ(e.code, DDP_ERROR_INTERNAL) << text;
    }
}

Signature bucket_of_step(std::int64_t step, std::int64_t synced_steps) {
    return {{.plan = 7, .step = step, .synced_steps = synced_steps, .bucket = 2, .context = 0},
            DDP_COLLECTIVE_ALLREDUCE,
            DDP_F32,
            DDP_AVG,
            0,
            0,
            40,
            1000};
}

std::string name_of(std::int32_t context, std::int32_t param) {
    return context == 1 && param == 0 ? "critic" : "";
}

// Both sides must say the same. Returns what they say.
std::string story(const Signature& of_rank_0, const Signature& of_rank_1) {
    auto from_0 = describe_mismatch(of_rank_0, 0, of_rank_1, 1, "", name_of);
    EXPECT_EQ(from_0, describe_mismatch(of_rank_1, 1, of_rank_0, 0, "", name_of));
    return from_0;
}

TEST(Signature, AProgramsOwnCollectiveIsNoOtherBucketPlan) {
    Signature own{OpFacts{}, DDP_COLLECTIVE_ALLREDUCE, DDP_F32, DDP_SUM, 0, 0, 40, 4};
    const std::string text = story(bucket_of_step(3, 3), own);
    EXPECT_THAT(text,
                HasSubstr("rank 0 is at allreduce of 1000 f32 (avg), bucket 2 of step 3; rank 1 is "
                          "at allreduce of 4 f32 (sum), called by the program itself; rank 1 calls "
                          "a collective of its own, which rank 0 does not call here"));
    EXPECT_THAT(text, HasSubstr("ddp_join"));
    EXPECT_THAT(text, Not(HasSubstr("plans")));
    EXPECT_THAT(story(own, bucket_of_step(3, 3)),
                HasSubstr("rank 0 calls a collective of its own, which rank 1"));
    own.purpose = Purpose::kModel;  // libddp's: neither rank's program called a collective
    EXPECT_THAT(story(own, bucket_of_step(3, 3)),
                AllOf(HasSubstr("ddp_commit"), Not(HasSubstr("of its own"))));
}

TEST(Signature, PartsThatDifferAreNamed) {
    Signature a = bucket_of_step(3, 3), b = a;
    a.kind = b.kind = DDP_COLLECTIVE_REDUCE_SCATTER;
    a.parts = 1;
    b.parts = 2;
    EXPECT_THAT(story(a, b), HasSubstr("the ranks divide the message differently"));
    b.count = 999;
    EXPECT_THAT(story(a, b), HasSubstr("different sizes"));
}

TEST(Signature, UnevenPartsOnOneRankAreNamed) {
    Signature a = bucket_of_step(3, 3), b = a;
    a.kind = b.kind = DDP_COLLECTIVE_ALL_TO_ALL;
    a.parts = kUnevenParts;
    a.count = 0;
    EXPECT_THAT(story(a, b), AllOf(HasSubstr("rank 0 is at all_to_all of uneven parts of f32"),
                                   HasSubstr("rank 1 is at all_to_all of 1000 f32"),
                                   HasSubstr("ddp_all_to_allv")));
    b.kind = DDP_COLLECTIVE_ALLGATHER;
    EXPECT_THAT(story(a, b), HasSubstr("in a different order"));
}

TEST(Signature, NoSyncOnOneRankIsNamed) {
    EXPECT_THAT(story(bucket_of_step(2, 2), bucket_of_step(4, 2)),
                AllOf(HasSubstr("rank 0 syncs step 2, and rank 1 did not sync it (no_sync)"),
                      HasSubstr("ddp_set_sync")));
    EXPECT_THAT(story(bucket_of_step(4, 2), bucket_of_step(2, 2)),
                HasSubstr("rank 1 syncs step 2, and rank 0 did not sync it (no_sync)"));
    EXPECT_THAT(story(bucket_of_step(2, 2), bucket_of_step(4, 4)),
                HasSubstr("ran ddp_finalize more often"));
}

TEST(Signature, OneCauseIsNamed) {
    const Signature a = bucket_of_step(3, 3);
    Signature hook = a, params = a;
    hook.hook = 9;
    hook.plan = params.plan = a.plan + 1;
    EXPECT_THAT(story(a, hook),
                AllOf(HasSubstr("different communication hooks"), Not(HasSubstr("skip"))));
    EXPECT_THAT(story(a, params),
                AllOf(HasSubstr("freeze or skip different parameters"), Not(HasSubstr("hook"))));
}

TEST(Signature, AParameterThatOneRankFreezesIsFound) {
    const auto freezes = [](std::int32_t param) {
        Signature s = bucket_of_step(3, 3);
        s.frozen = param;
        return s;
    };
    EXPECT_EQ(frozen_on_one(freezes(-1), freezes(-1)), -1);
    EXPECT_EQ(frozen_on_one(freezes(2), freezes(2)), -1);
    EXPECT_EQ(frozen_on_one(freezes(-1), freezes(2)), 2);
    EXPECT_EQ(frozen_on_one(freezes(2), freezes(-1)), 2);
    EXPECT_EQ(frozen_on_one(freezes(0), freezes(2)), 0);
    EXPECT_EQ(frozen_on_one(freezes(2), freezes(0)), 0);
    Signature other = freezes(2);
    other.context = 1;
    EXPECT_EQ(frozen_on_one(freezes(-1), other), -1) << "of another context";
}

TEST(Verdict, ARanksOwnErrorNamesItOnce) {
    const ErrorInfo named = on_rank(2, {DDP_ERROR_CALLBACK, "the hook failed"});
    EXPECT_EQ(named.rank, 2);
    EXPECT_EQ(named.message, "rank 2: the hook failed");
    EXPECT_EQ(on_rank(3, named).message, named.message);
}

TEST(Monitor, DoesNotWaitForWhatNobodyListensFor) {
    auto server = open_store({"tcp://127.0.0.1:0", true, 5'000, ""});
    Monitor::Config config;
    config.store = open_store({server->describe(), false, 5'000, ""});
    config.world = 2;
    config.rank = 1;
    Monitor monitor(config, [](const ErrorInfo&) {});
    server->close();
    const auto begin = Deadline::Clock::now();
    try {
        monitor.start();
        FAIL() << "the store is gone";
    } catch (const Error& error) {
        EXPECT_EQ(monitor.resolve(error.info(), "joining").code, DDP_ERROR_UNAVAILABLE);
    }
    EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::milliseconds(500));
}

// It was only slow, and reads what the rank has written before it sees that the rank has gone: no
// will says that it died.
TEST(Monitor, AStoreThatDidNotAnswerHearsTheVerdictLater) {
    int address[2];
    ASSERT_EQ(pipe(address), 0);
    const pid_t child = fork();
    if (child == 0) {
        const auto server = open_store({"tcp://127.0.0.1:0", true, 5'000, ""});
        const std::string name = server->describe();
        if (write(address[1], name.data(), name.size()) < 0) _exit(1);
        for (;;) pause();
    }
    char name[100] = {};
    ASSERT_GT(read(address[0], name, sizeof name - 1), 0);
    {
        Monitor::Config config;
        config.store = open_store({name, false, 5'000, ""});
        config.world = 2;
        config.rank = 1;
        config.group = "world";
        Monitor monitor(std::move(config), [](const ErrorInfo&) {});
        monitor.start();
        kill(child, SIGSTOP);
        EXPECT_EQ(monitor.report({DDP_ERROR_MISMATCH, "a test", 1}).code, DDP_ERROR_MISMATCH);
    }
    kill(child, SIGCONT);
    const auto other = open_store({name, false, 5'000, ""});
    EXPECT_EQ(decode_verdict(other->get("verdict", 5'000)).code, DDP_ERROR_MISMATCH);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (int end : address) close(end);
}

TEST(Signature, MismatchReadsTheSameFromBothSides) {
    const Signature a = bucket_of_step(3, 3);
    Signature b = a;
    b.count = 999;
    const std::string from_a = story(a, b);
    EXPECT_NE(from_a.find("allreduce of 1000 f32 (avg), bucket 2 of step 3"), std::string::npos)
        << from_a;
    EXPECT_NE(from_a.find("999"), std::string::npos);
}

TEST(Signature, OfTwoContextsBothAreNamed) {
    const Signature a = bucket_of_step(3, 3);
    Signature b = a;
    b.context = 1;
    b.step = 4;  // the contexts, not their steps, are what differs
    const std::string text = story(a, b);
    EXPECT_THAT(text, HasSubstr("bucket 2 of step 3, context 0; rank 1"));
    EXPECT_THAT(text, HasSubstr("bucket 2 of step 4, context 1 (first parameter 'critic'); the "
                                "ranks use the contexts"));
}

}  // namespace
