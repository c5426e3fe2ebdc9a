// Gradients that add up over several backward passes before ranks exchange them.
#include "equivalence/hooks.h"
#include "equivalence/net.h"

using namespace equivalence;

namespace no_sync_test {

class NoSync : public Equivalence {
protected:
    Batch global_batch(int step) const {
        return make_batch(static_cast<unsigned>(500 + step), 2 * static_cast<std::size_t>(world()));
    }

    // Several rounds of `local` unsynced passes and a synced one. After it the gradient is that of
    // one process that went through all of their global batches.
    void check_rounds(int rank, Trainee& net, int local) {
        Tensors alone = initial_weights();
        int pass = 0;
        for (int round = 0; round < 3; ++round) {
            net.zero_grads();
            Tensors expected = zeros_like(alone), mine = zeros_like(alone);
            for (int i = 0; i <= local; ++i, ++pass) {
                const Batch share = share_of(global_batch(pass), rank, world());
                add_gradients(alone, global_batch(pass), expected);
                add_gradients(alone, share, mine);
                net.context.set_sync(i == local);
                net.context.step_begin();
                net.backward(share);
                end_step(net.context);
                if (i < local) net.expect_gradients(mine, "local, " + at_step(pass));
            }
            net.expect_gradients(expected, numbered("synced, round ", round));
            net.optimize();
            for (std::size_t i = 0; i < alone.size(); ++i) descend(alone[i], expected[i].data());
            net.expect_values(alone, numbered("round ", round));
        }
        const ddp_stats stats = net.context.stats();
        EXPECT_EQ(stats.steps, 3 * (local + 1));
        EXPECT_EQ(stats.synced_steps, 3);
    }
};
INSTANTIATE_TEST_SUITE_P(All, NoSync, testing::ValuesIn(all_cases()), name_of);

TEST_P(NoSync, AccumulatedGradientsEqualOneProcess) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (int local : {0, 1, 3}) {
            Trainee net(group, view());
            net.context.commit();
            check_rounds(rank, net, local);
        }
    });
}

TEST_P(NoSync, WithHooksToo) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (auto hook : {&average, &sum_then_divide}) {
            Trainee net(group, view());
            int calls = 0;
            net.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
                ++calls;
                return hook(g, bucket);
            });
            net.context.commit();
            check_rounds(rank, net, 2);
            EXPECT_EQ(calls, 3 * ddp_context_bucket_count(net.context.get()))
                << "synced steps only";
        }
    });
}

TEST_P(NoSync, WithEveryOption) {
    constexpr std::uint32_t find = DDP_CONTEXT_FIND_UNUSED;
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::uint32_t flags :
             {find, find | DDP_CONTEXT_SKIP_UNUSED_BUCKETS, std::uint32_t{DDP_CONTEXT_STATIC_GRAPH},
              std::uint32_t{DDP_CONTEXT_JOIN}}) {
            Trainee net(group, view(), with_flags(flags));
            net.context.commit();
            check_rounds(rank, net, 1);
            if (flags == DDP_CONTEXT_JOIN) net.context.join();
        }
    });
}

// Local gradients differ between ranks while the batches do; the synced step makes them the same
// bits everywhere.
TEST_P(NoSync, GradientsDifferUntilTheSyncedStep) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view());
        net.context.commit();
        for (bool sync : {false, false, true}) {
            net.context.set_sync(sync);
            net.context.step_begin();
            net.backward(share_of(global_batch(0), rank, world()));
            end_step(net.context);
            std::vector<double> firsts(static_cast<std::size_t>(world()));
            ddp::detail::call(ddp_allgather, group, static_cast<const void*>(net.grad(3)),
                              static_cast<void*>(firsts.data()), std::size_t{1}, DDP_F64,
                              static_cast<ddp_work**>(nullptr));
            for (int other = 1; other < world(); ++other)
                EXPECT_EQ(firsts[static_cast<std::size_t>(other)] == firsts[0], sync)
                    << "rank " << other;
        }
        for (ddp_param i = 0; i < net.count(); ++i)
            expect_same_on_every_rank(group, net.grad(i), net.size(i));
    });
}

// The scope of the C++ wrapper: unsynced inside, synced after it.
TEST_P(NoSync, TheScopeEndsWhereItEnds) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Replica<double> model(group, view());
        model.add("a", {5});
        model.context.commit();
        {
            const ddp::Context::NoSync scope(model.context);
            model.set(0, rank + 1);
            model.all_ready();
            end_step(model.context);
            EXPECT_TRUE(model.holds(0, rank + 1));
        }
        model.all_ready();
        end_step(model.context);
        expect_near(model.grad(0), std::vector<double>(5, (world() + 1) / 2.0));
    });
}

}  // namespace no_sync_test
