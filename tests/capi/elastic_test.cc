// ddp::Elastic, with a rank alone. What several ranks do is in tests/unit/elastic and tests/dist/elastic.
#include <algorithm>
#include <limits>
#include <string>
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
        EXPECT_EQ(error.status(), DDP_ERROR_ALREADY_EXISTS);
        EXPECT_NE(std::string(error.what()).find("momentum"), std::string::npos);
    }
}

TEST(ShardRange, SharesAreContiguousAndDifferByAtMostOne) {
    for (const std::int64_t count : {0L, 1L, 5L, 64L, std::numeric_limits<std::int64_t>::max()})
        for (const std::int32_t world : {1, 2, 3, 7, 65, std::numeric_limits<std::int32_t>::max()}) {
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
        {"rank", kInvalid, {"rank is 2", "world_size 2"}, calling(ddp_shard_range, 1, 2, 2, &begin, &end)},
        {"world", kInvalid, {"world_size 0"}, calling(ddp_shard_range, 1, 0, 0, &begin, &end)},
        null_argument("ddp_shard_range", "begin", calling(ddp_shard_range, 1, 0, 1, nullptr, &end)),
        null_argument("ddp_shard_range", "end", calling(ddp_shard_range, 1, 0, 1, &begin, nullptr)),
    });
}

}  // namespace elastic_test
