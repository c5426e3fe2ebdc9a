// ddp::Elastic, with a rank alone. Several ranks are tested in tests/unit/elastic and
// tests/dist/elastic.
#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "capi/bad_input.h"
#include "ddp/ddp.hpp"

namespace elastic_test {

struct Job {
    Job() {
        ddp_store_options where;
        ddp_store_options_init(&where);
        where.uri = "tcp://127.0.0.1:0";
        where.is_server = 1;
        ddp::detail::call(ddp_store_create, &where, &store);
        ddp_group_options group = ddp::Group::defaults();
        group.store = store;
        group.timeout_ms = 20'000;
        ddp_elastic_options options = ddp::Elastic::defaults();
        options.group = &group;
        options.max_world = 1;
        elastic = ddp::Elastic(options);
    }
    ~Job() {
        elastic = ddp::Elastic(static_cast<ddp_elastic*>(nullptr));
        ddp_store_free(store);
    }

    ddp_store* store = nullptr;
    ddp::Elastic elastic{static_cast<ddp_elastic*>(nullptr)};
};

TEST(ElasticInCxx, ARankAloneTrains) {
    Job job;
    std::vector<float> value(3), gradient(3), momentum(3);
    ddp::Context context(job.elastic.group());
    const ddp_param param = context.add_param("w", {3}, value.data(), gradient.data());
    context.commit();
    job.elastic.add_context(context);
    job.elastic.add_state("momentum", momentum.data(), momentum.size() * sizeof(float));
    job.elastic.set_step(5);
    for (int step = 5; step < 8; ++step) {
        const ddp_elastic_step now = job.elastic.begin();
        EXPECT_EQ(now.step, step);
        EXPECT_EQ(now.changed, step == 5);
        EXPECT_EQ(now.rank, 0);
        EXPECT_EQ(now.world_size, 1);
        EXPECT_GT(now.fence, 1'700'000'000'000);  // a new store begins with the time of day
        gradient.assign(3, 2);
        context.grad_ready(param);
        context.finalize();
        EXPECT_EQ(gradient[1], 2);
        job.elastic.commit();
        job.elastic.confirm_member();
    }
    job.elastic.announce_leave();
    while (!job.elastic.begin().leaving) job.elastic.commit();
    job.elastic.leave();
    EXPECT_THROW(job.elastic.confirm_member(), ddp::Error);
    EXPECT_EQ(ddp_group_world_size(job.elastic.group()), 1);
}

TEST(ElasticInCxx, FailuresAreExceptions) {
    Job job;
    std::vector<float> momentum(3);
    EXPECT_THROW(job.elastic.commit(), ddp::Error);
    job.elastic.add_state("momentum", momentum.data(), 12);
    try {
        job.elastic.add_state("momentum", momentum.data(), 12);
        ADD_FAILURE() << "two states have one name";
    } catch (const ddp::Error& error) {
        EXPECT_EQ(error.status(), DDP_ERROR_ALREADY_EXISTS) << error.what();
    }
}

// A job of one rank, whose program does what the test says.
struct Training : Job {
    Training() {
        param = context.add_param("w", {3}, value.data(), gradient.data());
        context.add_buffer("seen", {3}, seen.data());
        context.commit();
        elastic.add_context(context);
        elastic.add_state("momentum", momentum.data(), momentum.size() * sizeof(float));
    }
    void reduce() {
        for (float& s : seen) s += 1;  // a forward pass
        gradient.assign(3, 2);
        context.grad_ready(param);
        context.finalize();
    }
    void apply() {
        for (std::size_t i = 0; i < 3; ++i) value[i] -= momentum[i] = momentum[i] / 2 + gradient[i];
    }
    void log_loss() {
        float loss = 1;
        ddp::detail::call(ddp_allreduce, elastic.group(), &loss, &loss, std::size_t{1}, DDP_F32,
                          DDP_SUM, static_cast<ddp_work**>(nullptr));
    }

    std::vector<float> value = std::vector<float>(3), gradient = value, momentum = value,
                       seen = value;
    ddp::Context context{elastic.group()};
    ddp_param param = -1;
};

// In the first step it is not known yet what the program calls.
TEST(ElasticStep, OneThatWasNotCommittedIsUndone) {
    Training job;
    for (const bool logs : {false, true}) {
        const auto before = std::tuple(job.value, job.momentum, job.seen);
        const std::int64_t step = job.elastic.begin().step;
        job.reduce();
        job.apply();
        if (logs) job.log_loss();
        EXPECT_NE(job.value, std::get<0>(before));
        EXPECT_EQ(job.elastic.begin().step, step);
        EXPECT_EQ(std::tuple(job.value, job.momentum, job.seen), before);
    }
    job.reduce();
    job.log_loss();
    job.apply();
    job.elastic.commit();
    const auto before = std::tuple(job.value, job.momentum, job.seen);
    for (int i = 0; i < 2; ++i) {  // it has shown that it calls something there
        EXPECT_EQ(job.elastic.begin().step, 1);
        EXPECT_EQ(std::tuple(job.value, job.momentum, job.seen), before);
        job.reduce();
        job.apply();
    }
}

TEST(ElasticStep, WhereNoCopyIsKeptOneThatMayHaveBeenAppliedIsAnError) {
    Training job;
    for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(job.elastic.begin().step, step);
        job.reduce();
        job.apply();
        job.elastic.commit();
    }
    job.elastic.begin();
    job.reduce();
    const Facts facts = facts_of([&] { job.elastic.begin(); });
    EXPECT_EQ(facts, (Facts{DDP_ERROR_INVALID_STATE, -1, -1, -1, 3}));
    EXPECT_THAT(facts.message,
                testing::HasSubstr("step 3 had its mean gradients and was not committed"));
}

// Buffers change without means. A step without results leaves no doubt.
TEST(ElasticStep, OneWithoutResultsBeginsAgain) {
    Training job;
    job.elastic.begin();
    job.reduce();
    job.elastic.commit();
    for (int i = 0; i < 3; ++i) {
        const ddp_elastic_step now = job.elastic.begin();
        EXPECT_EQ(now.step, 1);
        EXPECT_EQ(now.changed, 0);
        ddp::detail::call(ddp_step_discard, job.context.get());
    }
}

TEST(ElasticStep, IsCommittedOnce) {
    Training job;
    job.elastic.begin();
    job.reduce();
    job.elastic.commit();
    try {
        job.elastic.commit();
        ADD_FAILURE() << "it was committed twice";
    } catch (const ddp::Error& error) {
        EXPECT_EQ(error.status(), DDP_ERROR_INVALID_STATE);
    }
    EXPECT_EQ(job.elastic.begin().step, 1);
}

// A function of the program may update a parameter before ddp_finalize returns, and so before
// another rank is lost.
TEST(ElasticStep, WhatWasAppliedBeforeItsEndIsUndone) {
    Training job;
    const auto apply = [](void* training, ddp_param, std::int32_t, ddp_error**) -> ddp_status {
        static_cast<Training*>(training)->apply();
        return DDP_OK;
    };
    ddp::detail::call(ddp_set_reduced_callback, job.context.get(), +apply, static_cast<void*>(&job),
                      static_cast<void (*)(void*)>(nullptr));
    for (int i = 0; i < 3; ++i) {
        job.elastic.begin();
        job.reduce();
        job.elastic.commit();
    }
    const auto before = std::tuple(job.value, job.momentum, job.seen);
    job.elastic.begin();
    job.reduce();
    EXPECT_NE(job.value, std::get<0>(before));
    EXPECT_EQ(job.elastic.begin().step, 3);
    EXPECT_EQ(std::tuple(job.value, job.momentum, job.seen), before);
}

TEST(ElasticStep, WhatWasAppliedParameterByParameterIsUndone) {
    Training job;
    const auto reduce_and_apply = [&job] {
        job.gradient.assign(3, 2);
        job.context.grad_ready(job.param);
        job.context.finalize_async();
        job.context.wait(job.param);
        job.apply();
        job.context.finalize();
    };
    job.elastic.begin();
    reduce_and_apply();
    job.elastic.commit();
    const auto before = std::tuple(job.value, job.momentum);
    EXPECT_EQ(job.elastic.begin().step, 1);
    reduce_and_apply();
    EXPECT_EQ(job.elastic.begin().step, 1);
    EXPECT_EQ(std::tuple(job.value, job.momentum), before);
}

// Accumulated gradients are no part of the state: a loss takes the job back to the step after the
// last synced one.
TEST(ElasticStep, AWindowOfAccumulationIsUndoneAsAWhole) {
    Training job;
    const auto accumulate = [&job] {
        for (float& s : job.seen) s += 1;
        for (float& g : job.gradient) g += 1;
        job.context.grad_ready(job.param);
        job.context.finalize();
    };
    for (int step = 0; step < 8; ++step) {
        EXPECT_EQ(job.elastic.begin().step, step);
        job.context.set_sync(step % 4 == 3);
        accumulate();
        if (step % 4 == 3) {
            EXPECT_EQ(job.gradient[0], 4);
            job.apply();
            job.gradient.assign(3, 0);
        }
        job.elastic.commit();
    }
    const auto before = std::tuple(job.value, job.momentum, job.seen);
    for (int step = 8; step < 11; ++step) {
        EXPECT_EQ(job.elastic.begin().step, step);
        job.context.set_sync(false);
        accumulate();
        job.elastic.commit();
    }
    EXPECT_EQ(job.gradient[0], 3);
    ddp::detail::call(ddp_group_abort, job.elastic.group(), "as a loss would");
    const ddp_elastic_step now = job.elastic.begin();
    EXPECT_EQ(now.step, 8);
    EXPECT_EQ(now.changed, 1);
    EXPECT_EQ(std::tuple(job.value, job.momentum, job.seen), before);
    EXPECT_EQ(job.gradient[0], 0);
}

// A loss in the window of one context takes back what another has applied in it.
TEST(ElasticStep, WhileOneContextAccumulatesWhatAnotherAppliesIsCopied) {
    Training job;
    std::vector<float> other(3), other_gradient(3);
    ddp::Context second(job.elastic.group());
    const ddp_param param = second.add_param("w", {3}, other.data(), other_gradient.data());
    second.commit();
    job.elastic.add_context(second);
    const auto step = [&](std::int64_t number) {
        EXPECT_EQ(job.elastic.begin().step, number);
        second.set_sync(number % 2 == 1);
        for (float& g : other_gradient) g += 1;
        second.grad_ready(param);
        second.finalize();
        if (number % 2 == 1) {
            for (std::size_t i = 0; i < 3; ++i) other[i] -= other_gradient[i];
            other_gradient.assign(3, 0);
        }
        job.reduce();
        job.apply();
        job.elastic.commit();
    };
    for (int number = 0; number < 6; ++number) step(number);
    const auto before = std::tuple(job.value, job.momentum, other, job.seen);
    step(6);
    EXPECT_NE(job.value, std::get<0>(before));
    ddp::detail::call(ddp_group_abort, job.elastic.group(), "as a loss would");
    EXPECT_EQ(job.elastic.begin().step, 6);
    EXPECT_EQ(std::tuple(job.value, job.momentum, other, job.seen), before);
    EXPECT_EQ(other_gradient[0], 0);
}

// Until the first outer step the averager has nothing to go back to.
TEST(ElasticStep, OneOfTheWarmUpOfAnAveragerIsUndone) {
    Training job;
    const std::int64_t period = 5;
    ddp_averager* averager = nullptr;
    ddp::detail::call(ddp_averager_create, job.context.get(), &period,
                      static_cast<const std::int32_t*>(nullptr), std::size_t{1}, std::int64_t{3},
                      &averager);
    ddp::detail::call(ddp_averager_set_outer, averager,
                      static_cast<const ddp_outer_options*>(nullptr));
    ddp::detail::call(ddp_elastic_add_averager, job.elastic.get(), averager);
    const std::vector<float> before = job.value;
    EXPECT_EQ(job.elastic.begin().step, 0);
    job.reduce();
    job.apply();
    ddp::detail::call(ddp_averager_step, averager, static_cast<std::int32_t*>(nullptr));
    EXPECT_EQ(job.elastic.begin().step, 0);
    EXPECT_EQ(job.value, before);
    EXPECT_EQ(ddp_averager_get_step(averager), 0);
    ddp_averager_free(averager);
}

TEST(ShardRange, SharesAreContiguousAndDifferByAtMostOne) {
    for (const std::int64_t count : {0L, 1L, 5L, 64L, std::numeric_limits<std::int64_t>::max()})
        for (const std::int32_t world :
             {1, 2, 3, 7, 65, std::numeric_limits<std::int32_t>::max()}) {
            std::int64_t before = 0;
            for (std::int32_t rank = 0; rank < std::min(world, 100); ++rank) {
                const ddp::Shard share = ddp::shard_range(count, rank, world);
                EXPECT_EQ(share.begin, before);
                const std::int64_t more = share.end - share.begin - count / world;
                EXPECT_TRUE(more == 0 || more == 1) << more;
                before = share.end;
            }
            EXPECT_EQ(ddp::shard_range(count, world - 1, world).end, count);
        }
}

TEST(ShardRange, RefusesWhatIsNoRankOfAWorld) {
    Untouched<std::int64_t> begin, end;
    expect_refused({
        {"count", kInvalid, {"count is -1"}, calling(ddp_shard_range, -1, 0, 1, &begin, &end)},
        {"rank", kInvalid, {"rank is -1"}, calling(ddp_shard_range, 1, -1, 1, &begin, &end)},
        {"rank",
         kInvalid,
         {"rank is 2", "world_size 2"},
         calling(ddp_shard_range, 1, 2, 2, &begin, &end)},
        {"world", kInvalid, {"world_size 0"}, calling(ddp_shard_range, 1, 0, 0, &begin, &end)},
        null_argument("ddp_shard_range", "begin", calling(ddp_shard_range, 1, 0, 1, nullptr, &end)),
        null_argument("ddp_shard_range", "end", calling(ddp_shard_range, 1, 0, 1, &begin, nullptr)),
    });
}

}  // namespace elastic_test
