// vote.h: bits of each rank that travel with a step.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "comm/link.h"
#include "ddp/ddp.hpp"
#include "support/cases.h"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace vote_test {

using testing::HasSubstr;
using Votes = ddp::Context::Votes;

constexpr std::uint32_t kStop = DDP_VOTE_STOP, kCheckpoint = DDP_VOTE_CHECKPOINT,
                        kSkip = DDP_VOTE_SKIP, kNonfinite = DDP_VOTE_NONFINITE,
                        kUser = DDP_VOTE_USER;
constexpr std::uint32_t kBits[] = {kStop, kCheckpoint, kSkip, kNonfinite, kUser, 1u << 31};

template <class Call>
std::string message_of(Call call) {
    return error_of(call).what();
}

bool same(const Votes& a, const Votes& b) {
    return a.any == b.any && a.all == b.all && a.level == b.level;
}

std::string text_of(const Votes& votes) {
    return std::to_string(votes.any) + "/" + std::to_string(votes.all) + "/" +
           std::to_string(votes.level);
}

// The vote of a rank in a step: often none. all: of each rank, now and then.
Votes vote_of(int step, int rank) {
    std::uint32_t x = static_cast<std::uint32_t>(step) * 2654435761u + 977u;
    const bool all = step % 5 == 4;
    x ^= all ? 0u : static_cast<std::uint32_t>(rank) * 40503u * 65537u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    Votes votes;
    for (int bit = 0; bit < 6; ++bit)
        if ((x >> (4 * bit) & 3) == 0) votes.any |= kBits[bit];
    if ((x >> 24 & 3) == 0) votes.level = static_cast<std::int32_t>(x >> 26 & 31) + 1;
    return votes;
}

Votes expected(int step, int world) {
    Votes want;
    want.all = ~0u;
    for (int rank = 0; rank < world; ++rank) {
        const Votes one = vote_of(step, rank);
        want.any |= one.any;
        want.all &= one.any;
        want.level = std::max(want.level, one.level);
    }
    return want;
}

ddp_context_options options_of(std::uint32_t flags, std::uint64_t cap = 2000) {
    auto options = ddp::Context::defaults();
    options.flags = flags | DDP_CONTEXT_VOTES;
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = cap;
    return options;
}

// Several buckets.
struct Voting : Model {
    explicit Voting(ddp_group* group, std::uint32_t flags = 0, bool view = true,
                    std::uint64_t cap = 2000)
        : Model(group, {300, 3, 500, 700}, view, options_of(flags, cap)) {}

    void announce(float value) {
        for (int p = count(); p-- > 0;) {
            context.wait_value(p);
            std::fill_n(grad(p), size(p), value);
            context.grad_ready(p);
        }
    }
    void cast(const Votes& votes) {
        if (votes.any != 0) context.vote(votes.any);
        if (votes.level != 0) context.vote_level(votes.level);
    }
    void step(float value = 1) {
        context.step_begin();
        announce(value);
        context.finalize();
    }
    void expect(const Votes& want, const std::string& where) {
        const Votes got = context.votes();
        EXPECT_TRUE(same(got, want)) << where << ": " << text_of(got) << ", not " << text_of(want);
    }
};

struct Kind {
    const char* backend;
    const char* options;
    unsigned round_robin = 0;
};

class StepVotes : public testing::TestWithParam<std::tuple<int, Kind>> {
protected:
    RankOptions options() const {
        RankOptions result(std::get<0>(GetParam()), std::get<1>(GetParam()).backend);
        result.backend_options = std::get<1>(GetParam()).options;
        result.round_robin = std::get<1>(GetParam()).round_robin;
        return result;
    }
    int world() const { return std::get<0>(GetParam()); }
};

// The votes of every step are those that ranks cast before it, and the means are what they are
// without.
TEST_P(StepVotes, AreThoseOfAllRanksInTheStep) {
    struct Way {
        std::uint32_t flags;
        const char* hook;
        bool view;
        std::uint64_t cap;
    };
    const std::vector<Way> ways = fewer_if_sanitized<Way>({
        {0, "", true, 1},
        {0, "", false, 1 << 20},
        {DDP_CONTEXT_FIND_UNUSED, "", true, 2000},
        {DDP_CONTEXT_FIND_UNUSED | DDP_CONTEXT_SKIP_UNUSED_BUCKETS, "", true, 1},
        {DDP_CONTEXT_SHARD, "", true, 2000},
        {DDP_CONTEXT_SKIP_NONFINITE, "", false, 2000},
        {DDP_CONTEXT_CHECK, "", true, 2000},
        {0, "fp16", true, 2000},
        {0, "powersgd", true, 2000},
        {0, "noop", true, 2000},
        {0, "post_local_sgd:start=3", true, 2000},
    });
    for (const Way& way : ways)
        on_ranks(options(), [&](int rank, ddp_group* group) {
            Voting model(group, way.flags, way.view, way.cap);
            model.context.commit();
            if (*way.hook != '\0') {
                const std::string hook = way.hook;
                const std::size_t colon = hook.find(':');
                model.context.use_hook(hook.substr(0, colon),
                                       colon == std::string::npos ? "" : hook.substr(colon + 1));
            }
            model.expect({}, "before the first step");
            for (int step = 0; step < 12; ++step) {
                model.cast(vote_of(step, rank));
                model.step(static_cast<float>(rank));
                model.expect(expected(step, world()), "flags " + std::to_string(way.flags) +
                                                          ", hook " + way.hook + ", step " +
                                                          std::to_string(step));
                const bool shard = (way.flags & DDP_CONTEXT_SHARD) != 0;
                if (shard) model.context.publish();
                if (!shard && *way.hook == '\0') {
                    EXPECT_TRUE(model.holds(2, static_cast<float>(world() - 1) / 2, 0));
                }
            }
        });
}

// Ranks vote at any time, from another thread: they agree, and no vote is lost or counts twice.
TEST_P(StepVotes, AtAnyTime) {
    constexpr int kVotes = 60;
    std::mutex mutex;
    std::vector<std::vector<std::uint32_t>> seen;
    on_ranks(options(), [&](int rank, ddp_group* group) {
        Voting model(group);
        model.context.commit();
        std::atomic<int> cast{0};
        // Bit rank of the user's bits, again only when the last one was seen: each counts once.
        std::atomic<bool> pending{false};
        std::thread voter([&] {
            for (int i = 0; i < kVotes; ++i) {
                while (pending.load()) std::this_thread::yield();
                pending.store(true);
                model.context.vote(kUser << rank);
                cast.fetch_add(1);
            }
        });
        std::vector<std::uint32_t> mine;
        int counted = 0;
        for (bool going = true; going;) {
            // The end is a vote, too.
            if (counted == kVotes) model.context.vote(kStop);
            model.step();
            const Votes votes = model.context.votes();
            mine.push_back(votes.any);
            if (votes.any & (kUser << rank)) {
                ++counted;
                EXPECT_LE(counted, cast.load());
                pending.store(false);
            }
            going = !(votes.all & kStop);
        }
        voter.join();
        EXPECT_EQ(counted, kVotes);
        const std::lock_guard lock(mutex);
        seen.push_back(std::move(mine));
    });
    for (const auto& one : seen) EXPECT_EQ(one, seen.front());
    for (int rank = 0; rank < world(); ++rank)
        EXPECT_EQ(std::count_if(seen.front().begin(), seen.front().end(),
                                [&](std::uint32_t any) { return any & (kUser << rank); }),
                  kVotes);
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, Kind>>& instance) {
    const Kind& kind = std::get<1>(instance.param);
    std::string name = kind.backend + std::to_string(std::get<0>(instance.param));
    if (*kind.options != '\0') name += "ring";
    if (kind.round_robin > 0) name += "robin";
    std::erase(name, '-');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Worlds, StepVotes,
                         testing::Combine(testing::Values(1, 2, 5),
                                          testing::Values(Kind{"threads", ""})),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Backends, StepVotes,
                         testing::Combine(testing::Values(3),
                                          testing::Values(Kind{"tcp", ""},
                                                          Kind{"tcp", "algorithm=ring"},
                                                          Kind{"shm", ""}, Kind{"hierarchical", ""},
                                                          Kind{"gloo", ""}, Kind{"tcp", "", 3})),
                         name_of);

// Operations of five steps with four buckets.
std::int64_t operations(const std::string& backend, bool votes, const std::string& hook) {
    std::int64_t result = 0;
    on_ranks({3, backend}, [&](int rank, ddp_group* group) {
        auto options = options_of(0, 1);
        if (!votes) options.flags = 0;
        Model model(group, {300, 3, 500, 700}, true, options);
        model.context.commit();
        if (!hook.empty()) model.context.use_hook(hook);
        const libddp::Link& link = *group->impl->link(0);
        const std::int64_t before = link.counts().given();
        for (int step = 0; step < 5; ++step) {
            for (int p = 4; p-- > 0;) model.context.grad_ready(p);
            model.context.finalize();
        }
        if (rank == 0) result = link.counts().given() - before;
    });
    return result;
}

TEST(StepVote, AddsNoCollective) {
    for (const char* backend : {"tcp", "shm", "hierarchical"})
        for (const char* hook : {"", "bf16"}) {
            EXPECT_EQ(operations(backend, false, hook), 20) << backend << " " << hook;
            EXPECT_EQ(operations(backend, true, hook), 20) << backend << " " << hook;
        }
    EXPECT_EQ(operations("threads", true, ""), 25);
    EXPECT_EQ(operations("gloo", true, ""), 25);
    EXPECT_EQ(operations("tcp", true, "noop"), 5);
}

// Beyond 16 ranks of tcp each one talks to a few.
TEST(StepVote, BeyondAFullMesh) {
    on_ranks({18, "tcp"}, [](int rank, ddp_group* group) {
        Voting model(group);
        model.context.commit();
        for (int step = 0; step < 6; ++step) {
            model.cast(vote_of(step, rank));
            model.step();
            model.expect(expected(step, 18), "step " + std::to_string(step));
            if (step % 18 == rank) model.context.vote(kUser << 1);
            model.step();
            model.expect({kUser << 1, 0, 0}, "one rank");
        }
    });
}

TEST(StepVote, OfAnUnsyncedStepCountsInTheSyncedOne) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Voting model(group);
        model.context.commit();
        for (int window = 0; window < 3; ++window) {
            model.context.set_sync(false);
            if (rank == 1) model.context.vote(kStop);
            model.step();
            model.expect({}, "unsynced");
            if (rank == 0) model.context.vote(kCheckpoint);
            model.step();
            model.expect({}, "unsynced");
            model.context.set_sync(true);
            model.step();
            model.expect({kStop | kCheckpoint, 0, 0}, "synced");
            model.step();
            model.expect({}, "the next");
        }
    });
}

TEST(StepVote, OfAStepWithoutResults) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Voting model(group, DDP_CONTEXT_SKIP_NONFINITE);
        model.context.commit();
        if (rank == 2) model.context.vote(kNonfinite);
        EXPECT_THAT(
            message_of([&] { model.step(rank == 2 ? std::numeric_limits<float>::infinity() : 1); }),
            HasSubstr("All ranks skip the step"));
        model.expect({kNonfinite, 0, 0}, "skipped");
        if (rank == 1) model.context.vote(kSkip);
        model.announce(1);
        model.context.discard_step();
        model.expect({kSkip, 0, 0}, "discarded");
        if (rank == 1) model.context.vote(kSkip);
        model.context.discard_step();
        model.expect({kSkip, 0, 0}, "discarded without a gradient");
        model.step();
        model.expect({}, "the next");
    });
}

// A step in which nothing travels.
TEST(StepVote, WithoutABucket) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Voting model(group);
        model.context.commit();
        model.context.set_frozen({0, 1, 2, 3}, true);
        model.context.vote(rank == 0 ? kStop : kStop | kSkip);
        model.context.finalize();
        model.expect({kStop | kSkip, kStop, 0}, "frozen");
    });
}

TEST(StepVote, OfRanksThatHaveJoined) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Voting model(group, DDP_CONTEXT_JOIN);
        model.context.commit();
        for (int step = 0; step < 3 + rank; ++step) {
            model.context.vote(kStop | (rank == 2 ? kCheckpoint : 0u));
            model.step();
            const std::uint32_t of_joined = step == 3 ? kUser : 0u;
            const std::uint32_t of_one = step == 4 ? kCheckpoint : 0u;
            model.expect({kStop | kCheckpoint | of_joined, kStop | of_one, 0},
                         "step " + std::to_string(step));
        }
        // The vote of a rank that has joined counts, and `all` does not ask it.
        if (rank == 0) model.context.vote(kUser);
        model.context.join();
    });
}

TEST(StepVote, OfAFunctionOfTheProgramsThatReduces) {
    on_ranks(3, [](int rank, ddp_group* group) {
        Voting model(group);
        model.context.set_comm_hook([](ddp_group* of, ddp_bucket* bucket) {
            ddp_work* work = nullptr;
            ddp::detail::call(ddp_allreduce, of, static_cast<const void*>(nullptr),
                              ddp_bucket_buffer(bucket), ddp_bucket_count(bucket),
                              ddp_bucket_dtype(bucket), ddp_reduce_op{DDP_AVG}, &work);
            return ddp::Work(work);
        });
        model.context.commit();
        for (int step = 0; step < 8; ++step) {
            model.cast(vote_of(step, rank));
            model.step(static_cast<float>(rank));
            model.expect(expected(step, 3), "step " + std::to_string(step));
            EXPECT_TRUE(model.holds(0, 1, 0));
        }
    });
}

// A signal handler has no argument for the context.
ddp_context* signalled = nullptr;

TEST(StepVote, InASignalHandler) {
    on_ranks(1, [](int, ddp_group* group) {
        Voting model(group);
        model.context.commit();
        signalled = model.context.get();
        struct sigaction action {
        }, before{};
        action.sa_handler = [](int) { ddp_step_vote(signalled, kCheckpoint, nullptr); };
        sigaction(SIGUSR1, &action, &before);
        raise(SIGUSR1);
        sigaction(SIGUSR1, &before, nullptr);
        model.step();
        model.expect({kCheckpoint, kCheckpoint, 0}, "signalled");
    });
}

// A vote counts again if other ranks may not have heard of it.
TEST(StepVote, SurvivesAGroupThatBreaks) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Voting model(group);
        model.context.commit();
        model.context.vote(rank == 0 ? kCheckpoint : kSkip);
        model.step();
        model.expect({kCheckpoint | kSkip, 0, 0}, "before");
        // Both are in step 1: rank 0 has sent its vote, and rank 1 breaks the group.
        if (rank == 0) {
            model.context.vote(kStop);
            EXPECT_THAT(message_of([&] { model.step(); }), HasSubstr("for the test"));
        } else {
            model.context.abort("for the test");
        }
        EXPECT_THAT(message_of([&] { model.context.finalize(); }), HasSubstr("for the test"));
        ddp_group_options alone;
        ddp_group_options_init(&alone);
        alone.rank = 0;
        alone.world_size = 1;
        ddp::Group next(alone);
        model.context.set_group(next);
        model.expect({}, "moved");
        model.step();
        // The other's vote of the step before counts again as well. It is not this rank's own.
        const std::uint32_t stop = rank == 0 ? kStop : 0u;
        model.expect({kCheckpoint | kSkip | stop, (rank == 0 ? kCheckpoint : kSkip) | stop, 0},
                     "after");
        model.step();
        model.expect({}, "the next");
    });
}

TEST(StepVote, StaysWithAContextThatMoves) {
    on_ranks(1, [](int, ddp_group* group) {
        Voting model(group);
        model.context.commit();
        model.context.vote(kStop);
        model.step();
        model.context.vote(kSkip);
        ddp_group_options alone;
        ddp_group_options_init(&alone);
        alone.rank = 0;
        alone.world_size = 1;
        ddp::Group next(alone);
        model.context.set_group(next);
        model.step();
        model.expect({kSkip, kSkip, 0}, "in the other group");
    });
}

TEST(StepVote, BadInput) {
    on_ranks(1, [](int, ddp_group* group) {
        {
            Model plain(group, {3}, true);
            plain.context.commit();
            for (const auto& text : {message_of([&] { plain.context.vote(kStop); }),
                                     message_of([&] { plain.context.vote_level(1); }),
                                     message_of([&] { plain.context.votes(); })})
                EXPECT_THAT(text, HasSubstr("create the context with DDP_CONTEXT_VOTES"));
        }
        Voting model(group);
        EXPECT_THAT(message_of([&] { model.context.vote(kStop); }), HasSubstr("ddp_commit"));
        model.context.commit();
        EXPECT_THAT(message_of([&] { model.context.vote(kStop | 1u << 15); }),
                    HasSubstr("bits has 0x8000, which has no name"));
        EXPECT_THAT(message_of([&] { model.context.vote_level(33); }),
                    HasSubstr("level is 33; it must be from 0 to 32"));
        EXPECT_THAT(message_of([&] { model.context.vote_level(-1); }), HasSubstr("level is -1"));
        model.context.vote_level(32);
        model.context.vote_level(7);
        model.context.vote_level(0);
        model.context.grad_ready(3);
        EXPECT_THAT(message_of([&] { model.context.votes(); }), HasSubstr("is under way"));
        for (int p = 0; p < 3; ++p) model.context.grad_ready(p);
        model.context.finalize();
        model.expect({0, 0, 32}, "refused bits are not cast");
        EXPECT_EQ(ddp_step_votes(model.context.get(), nullptr, nullptr, nullptr, nullptr), DDP_OK);
    });
}

TEST(StepVote, RanksCompareWhetherTheyHaveVotes) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Model model(group, {3}, true,
                    rank == 0 ? ddp::Context::defaults() : options_of(0, 26'214'400));
        EXPECT_THAT(message_of([&] { model.context.commit(); }), HasSubstr("votes"));
    });
}

}  // namespace vote_test
