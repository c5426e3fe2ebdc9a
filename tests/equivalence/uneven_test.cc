// Ranks that run out of inputs before others.
#include "equivalence/branches.h"
#include "equivalence/hooks.h"
#include "equivalence/net.h"

using namespace equivalence;

namespace uneven_test {

// Three or more, and the ranks take turns at having most.
int inputs_of(int rank, int world, int epoch = 0) {
    return 3 + (rank + epoch) % world;
}

class Uneven : public Equivalence {
protected:
    int present(int step, int epoch = 0) const {
        int count = 0;
        for (int rank = 0; rank < world(); ++rank)
            count += step < inputs_of(rank, world(), epoch) ? 1 : 0;
        return count;
    }
    int most_inputs(int epoch = 0) const {
        int most = 0;
        for (int rank = 0; rank < world(); ++rank)
            most = std::max(most, inputs_of(rank, world(), epoch));
        return most;
    }
    static Batch batch_of(int rank, int step) {
        return make_batch(static_cast<unsigned>(1000 * rank + step), 2);
    }

    // The mean over ranks in one process, with zeros for the ranks without inputs.
    Tensors mean_gradients(const Tensors& weights, int step, int epoch, int divisor) const {
        Tensors sum = zeros_like(weights);
        for (int rank = 0; rank < world(); ++rank) {
            if (step >= inputs_of(rank, world(), epoch)) continue;
            const Tensors own = gradients_of(weights, batch_of(rank, step));
            for (std::size_t i = 0; i < sum.size(); ++i)
                for (std::size_t k = 0; k < sum[i].size(); ++k) sum[i][k] += own[i][k] / divisor;
        }
        return sum;
    }
    int divisor(std::uint32_t flags, int step, int epoch) const {
        return flags & DDP_CONTEXT_DIVIDE_BY_PRESENT ? present(step, epoch) : world();
    }
};
INSTANTIATE_TEST_SUITE_P(All, Uneven, testing::ValuesIn(all_cases()), name_of);

TEST_P(Uneven, GradientsAreDividedByTheWorldOrByThePresent) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::uint32_t flags : {0u, std::uint32_t{DDP_CONTEXT_DIVIDE_BY_PRESENT}}) {
            Replica<double> model(group, view(), with_flags(DDP_CONTEXT_JOIN | flags));
            for (const char* name : {"a", "b", "c"}) model.add(name, {7});
            model.context.commit();
            for (int step = 0; step < inputs_of(rank, world()); ++step) {
                model.context.step_begin();
                for (ddp_param i = 0; i < model.count(); ++i)
                    model.set(i, 10.0 * (rank + 1) + step + i);
                model.all_ready();
                end_step(model.context);
                for (ddp_param i = 0; i < model.count(); ++i) {
                    double sum = 0;
                    for (int r = 0; r < world(); ++r)
                        if (step < inputs_of(r, world())) sum += 10.0 * (r + 1) + step + i;
                    expect_near(model.grad(i),
                                std::vector<double>(7, sum / divisor(flags, step, 0)),
                                at_step(step));
                }
            }
            model.context.join();
        }
    });
}

// The last rank to join has the model of a single process that saw every rank's inputs; after
// ddp_join all have it.
TEST_P(Uneven, TheModelEqualsOneProcess) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::uint32_t flags : {0u, std::uint32_t{DDP_CONTEXT_DIVIDE_BY_PRESENT}}) {
            Trainee net(group, view(), with_flags(DDP_CONTEXT_JOIN | flags));
            net.context.commit();
            Tensors alone = initial_weights();
            for (int epoch = 0; epoch < 2; ++epoch) {
                for (int step = 0; step < inputs_of(rank, world(), epoch); ++step) {
                    net.context.step_begin();
                    net.zero_grads();
                    net.backward(batch_of(rank, step));
                    end_step(net.context);
                    net.optimize();
                }
                net.context.join();
                for (int step = 0; step < most_inputs(epoch); ++step) {
                    const Tensors mean =
                        mean_gradients(alone, step, epoch, divisor(flags, step, epoch));
                    for (std::size_t i = 0; i < alone.size(); ++i)
                        descend(alone[i], mean[i].data());
                }
                net.expect_values(alone, numbered("epoch ", epoch));
                for (const auto& tensor : net.values)
                    expect_same_on_every_rank(group, tensor.data(), tensor.size());
            }
        }
    });
}

// Ranks without inputs call the hooks too, and cast no vote on what is used.
TEST_P(Uneven, WithHooksAndUnusedParameters) {
    // Branch 0 in every step, branch 1 on the rank with most inputs, branch 2 nowhere. A rank
    // without inputs uses none.
    const Graph graph = [this](int rank, int step) {
        std::set<ddp_param> used;
        if (step < inputs_of(rank, world())) used.insert(0);
        if (inputs_of(rank, world()) == most_inputs()) used.insert(1);
        return used;
    };
    constexpr std::uint32_t find = DDP_CONTEXT_FIND_UNUSED;
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::uint32_t flags : {find, find | DDP_CONTEXT_SKIP_UNUSED_BUCKETS,
                                    std::uint32_t{DDP_CONTEXT_STATIC_GRAPH}})
            for (bool hook : {false, true}) {
                SCOPED_TRACE(testing::Message() << "flags " << flags << (hook ? ", hook" : ""));
                Branches model(group, view(), DDP_CONTEXT_JOIN | flags, 3);
                if (hook) model.context.set_comm_hook(sum_then_divide);
                model.context.commit();
                for (int step = 0; step < inputs_of(rank, world()); ++step) {
                    model.context.step_begin();
                    model.backward(graph, step);
                    end_step(model.context);
                    model.expect_step(graph, step);
                }
                model.context.join();
            }
    });
}

// Buffers come from the lowest rank that still has inputs; unsynced steps stay unsynced for those
// without.
TEST_P(Uneven, WithBuffersAndUnsyncedSteps) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Replica<double> model(group, view(), with_flags(DDP_CONTEXT_JOIN));
        model.add("a", {3});
        std::vector<double> buffer(4);
        model.context.add_buffer<double>("running", {4}, buffer.data());
        model.context.commit();
        // Two passes an input: one stays local.
        for (int step = 0; step < inputs_of(rank, world()); ++step) {
            int lowest = 0;
            while (step >= inputs_of(lowest, world())) ++lowest;
            for (bool sync : {false, true}) {
                model.context.set_sync(sync);
                model.context.step_begin();
                if (!sync && step > 0) {
                    EXPECT_THAT(buffer, testing::Each(100 * lowest + step - 1)) << at_step(step);
                }
                for (std::size_t k = 0; k < 3; ++k)
                    model.grad(0)[k] = rank + 1 + (sync ? model.grad(0)[k] : 0);
                model.all_ready();
                end_step(model.context);
            }
            double sum = 0;
            for (int r = 0; r < world(); ++r) sum += step < inputs_of(r, world()) ? 2 * (r + 1) : 0;
            expect_near(model.grad(0), std::vector<double>(3, sum / world()), at_step(step));
            std::fill(buffer.begin(), buffer.end(), 100 * rank + step);
        }
        model.context.join();
        EXPECT_THAT(buffer, testing::Each(100 * (world() - 1) + most_inputs() - 1))
            << "those of the last to join";
    });
}

TEST_P(Uneven, AllStopAtTheFirstToEnd) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view(), with_flags(DDP_CONTEXT_JOIN | DDP_CONTEXT_STOP_AT_FIRST_JOIN));
        net.context.commit();
        // The last rank has two inputs, every other one five.
        const int culprit = world() - 1;
        const ddp::Error error = error_of([&] {
            for (int step = 0; step < (rank == culprit ? 2 : 5); ++step) {
                net.context.step_begin();
                net.zero_grads();
                net.backward(batch_of(rank, step));
                end_step(net.context);
                net.optimize();
                EXPECT_LT(step, 2);
            }
            net.context.join();
            // With a single rank nobody is early.
            if (world() == 1) throw ddp::Error(DDP_ERROR_UNEVEN_INPUTS, "none");
        });
        EXPECT_EQ(error.status(), DDP_ERROR_UNEVEN_INPUTS) << error.what();
        EXPECT_EQ(error.rank(), world() == 1 ? -1 : culprit);
        EXPECT_EQ(net.context.stats().steps, 2);
        for (const auto& tensor : net.values)
            expect_same_on_every_rank(group, tensor.data(), tensor.size());
    });
}

// Without DDP_CONTEXT_JOIN a step costs no exchange, and ddp_join says what it needs.
TEST_P(Uneven, WithoutJoinEvenInputsTrain) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view());
        net.context.commit();
        EXPECT_EQ(facts_of([&] { net.context.join(); }), Facts{DDP_ERROR_INVALID_STATE});
        Tensors alone = initial_weights();
        for (int step = 0; step < 3; ++step) {
            net.zero_grads();
            net.context.step_begin();
            net.backward(batch_of(rank, step));
            end_step(net.context);
            net.optimize();
            const Tensors mean = mean_gradients(alone, step, 0, world());
            for (std::size_t i = 0; i < alone.size(); ++i) descend(alone[i], mean[i].data());
        }
        net.expect_values(alone, "even inputs");
    });
}

}  // namespace uneven_test
