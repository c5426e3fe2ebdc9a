// ddp::Elastic, with a rank alone. What several ranks do is in tests/unit/elastic and tests/dist/elastic.
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
        gradient.assign(3, 2);
        context.grad_ready(param);
        context.finalize();
        EXPECT_EQ(gradient[1], 2);
        job.elastic.commit();
    }
    job.elastic.announce_leave();
    while (!job.elastic.begin().leaving) job.elastic.commit();
    job.elastic.leave();
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

}  // namespace elastic_test
