// all_to_all.h on memory of devices, in a hook: on backends that take it, and through the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/ddp.hpp"
#include "support/device_model.h"
#include "support/error_of.h"
#include "support/ranks.h"

namespace device_all_to_all_test {

class DeviceAllToAll : public DeviceTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, DeviceAllToAll,
                         testing::Values("streams", "threads", "threads-plain", "tcp", "shm"),
                         [](const auto& test) {
                             std::string name = test.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

// Rank r has the numbers 1000000 r, 1000000 r + 1, ...
float number(int rank, std::size_t i) {
    return static_cast<float>(1'000'000 * rank) + static_cast<float>(i);
}

// Each rank's bucket goes to the ranks in equal parts, and in uneven ones.
TEST_P(DeviceAllToAll, OfABucketInAHook) {
    struct Case {
        std::size_t size;
        std::uint64_t first[2];  // how much each rank sends to rank 0
    };
    for (const Case& c : {Case{600, {300, 10}}, Case{900'000, {3, 700'000}}, Case{900'000, {0, 0}},
                          Case{2, {2, 0}}})
        on_ranks({2, GetParam()}, [&](int rank, ddp_group* group) {
            const std::size_t half = c.size / 2;
            const std::uint64_t sent[] = {c.first[rank], c.size - c.first[rank]};
            std::uint64_t got[2];
            for (int from = 0; from < 2; ++from)
                got[from] = rank == 0 ? c.first[from] : c.size - c.first[from];
            auto* equal = static_cast<float*>(fake::allocate(rank, 2 * half * sizeof(float)));
            auto* uneven = static_cast<float*>(
                fake::allocate(rank, static_cast<std::size_t>(got[0] + got[1] + 1) * 4));
            fake::at<float>(uneven)[got[0] + got[1]] = -5;  // behind the message
            {
                DeviceModel model(group, {static_cast<std::int64_t>(c.size)}, true, {rank});
                model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
                    const void* buffer = ddp_bucket_buffer(bucket);
                    ddp_work *first = nullptr, *second = nullptr;
                    ddp_error* error = nullptr;
                    EXPECT_EQ(ddp_all_to_all(g, buffer, equal, half, DDP_F32, &first, &error),
                              DDP_OK)
                        << take_message(error);
                    ddp_work_free(first);
                    EXPECT_EQ(
                        ddp_all_to_allv(g, buffer, uneven, sent, got, 2, DDP_F32, &second, &error),
                        DDP_OK)
                        << take_message(error);
                    return ddp::Work(second);
                });
                model.context.commit();
                model.context.step_begin();
                model.give(0, number(rank, 0));
                model.context.finalize_on(model.stream(0));
                EXPECT_TRUE(fake::settle());
                model.close();
            }
            for (std::size_t i = 0; i < 2 * half; ++i)
                ASSERT_EQ(fake::at<float>(equal)[i],
                          number(static_cast<int>(i / half),
                                 static_cast<std::size_t>(rank) * half + i % half))
                    << i;
            std::size_t at = 0;
            for (int from = 0; from < 2; ++from)
                for (std::size_t i = 0; i < got[from]; ++i, ++at)
                    ASSERT_EQ(
                        fake::at<float>(uneven)[at],
                        number(from, rank == 0 ? i : static_cast<std::size_t>(c.first[from]) + i))
                        << at;
            EXPECT_EQ(fake::at<float>(uneven)[at], -5);
            fake::release(equal);
            fake::release(uneven);
        });
}

TEST_P(DeviceAllToAll, CountsThatDoNotFitAreAnErrorOnEveryRank) {
    on_ranks({2, GetParam()}, [&](int rank, ddp_group* group) {
        auto* recv = static_cast<float*>(fake::allocate(rank, 4096));
        {
            DeviceModel model(group, {600}, true, {rank});
            model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
                const std::uint64_t sent[] = {rank == 1 ? 7u : 6u, 5},
                                    got[] = {rank == 1 ? 5u : 6u, rank == 1 ? 5u : 6u};
                ddp_work* work = nullptr;
                ddp_error* error = nullptr;
                EXPECT_EQ(ddp_all_to_allv(g, ddp_bucket_buffer(bucket), recv, sent, got, 2, DDP_F32,
                                          &work, &error),
                          DDP_OK)
                    << take_message(error);
                return ddp::Work(work);
            });
            model.context.commit();
            model.context.step_begin();
            model.give(0, 1);
            try {
                model.context.finalize_on(model.stream(0));
                ADD_FAILURE() << "the counts differ";
            } catch (const ddp::Error& error) {
                EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH);
                EXPECT_THAT(error.what(), testing::HasSubstr("rank 1 sends 7 f32 to rank 0"));
                EXPECT_THAT(error.what(), testing::HasSubstr("rank 0 expects 6 of rank 1"));
            }
            EXPECT_TRUE(fake::settle());
            model.close();
        }
        fake::release(recv);
    });
}

}  // namespace device_all_to_all_test
