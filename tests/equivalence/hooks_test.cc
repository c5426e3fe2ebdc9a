// Communication hooks: what they return, how they are replaced, and that with the right hook
// nothing changes.
#include "equivalence/hooks.h"

#include <map>

#include "equivalence/net.h"

using namespace equivalence;

namespace hooks_test {

class Hooks : public Equivalence {
protected:
    Batch global_batch(int step) const {
        return make_batch(static_cast<unsigned>(900 + step), 2 * static_cast<std::size_t>(world()));
    }
    void forward_backward(int rank, Trainee& net, int step) const {
        net.context.step_begin();
        net.zero_grads();
        net.backward(share_of(global_batch(step), rank, world()));
        end_step(net.context);
    }
    void train(int rank, Trainee& net, int steps) const {
        for (int step = 0; step < steps; ++step) {
            forward_backward(rank, net, step);
            net.optimize();
        }
    }
    Tensors trained_alone(int steps) const {
        Tensors weights = initial_weights();
        for (int step = 0; step < steps; ++step) train_alone(weights, global_batch(step));
        return weights;
    }
};
INSTANTIATE_TEST_SUITE_P(All, Hooks, testing::ValuesIn(all_cases()), name_of);

// A work that the hook itself completes, and a continuation that makes the result.
TEST_P(Hooks, AResultThatTheHookMakesItself) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view());
        net.context.commit();
        net.context.set_comm_hook([](ddp_group*, ddp_bucket* bucket) {
            ddp_work* own = nullptr;
            ddp::detail::call(ddp_work_create, std::int64_t{10'000}, &own);
            ddp::Work future(own);
            std::fill_n(static_cast<double*>(ddp_bucket_buffer(bucket)), ddp_bucket_count(bucket),
                        1.0);
            ddp::detail::call(ddp_work_complete, own, DDP_OK, static_cast<const char*>(nullptr));
            return future.then([bucket] {
                auto* values = static_cast<double*>(ddp_bucket_buffer(bucket));
                for (std::size_t i = 0; i < ddp_bucket_count(bucket); ++i) values[i] *= 2;
                return ddp::Work();
            });
        });
        for (int step = 0; step < 3; ++step) {
            forward_backward(rank, net, step);
            for (ddp_param i = 0; i < net.count(); ++i)
                EXPECT_TRUE(net.holds(i, 2)) << at_step(step);
        }
    });
}

// PyTorch refuses a second hook. Here it replaces the first, whose state is destroyed, and the
// default can come back.
TEST_P(Hooks, ANewHookReplacesTheOldOne) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view());
        net.context.commit();
        std::map<std::string, int> calls;
        auto counting = [&calls](const std::string& name, std::shared_ptr<int> state) {
            return [&calls, name, state](ddp_group* g, ddp_bucket* bucket) {
                ++calls[name];
                return average(g, bucket);
            };
        };
        auto state = std::make_shared<int>();
        net.context.set_comm_hook(counting("first", state));
        forward_backward(rank, net, 0);
        EXPECT_GT(state.use_count(), 1);
        net.context.set_comm_hook(counting("second", nullptr));
        EXPECT_EQ(state.use_count(), 1) << "destroyed with the hook";
        forward_backward(rank, net, 1);
        net.context.use_default_hook();
        forward_backward(rank, net, 2);
        net.expect_gradients(gradients_of(net.values, global_batch(2)), "default");
        const int buckets = ddp_context_bucket_count(net.context.get());
        EXPECT_EQ(calls["first"], buckets);
        EXPECT_EQ(calls["second"], buckets);
    });
}

// A hook of the wrong kind on one rank: an error on every rank that names the hook, the rank and
// the bucket.
TEST_P(Hooks, AnInvalidResultIsAnErrorEverywhere) {
    struct Mistake {
        ddp_comm_hook_fn hook;
        ddp_status status;
    };
    const Mistake mistakes[] = {
        {+[](void*, ddp_group*, ddp_bucket*, ddp_work**, ddp_error**) -> ddp_status { return 1; },
         DDP_ERROR_CALLBACK},
        {+[](void*, ddp_group*, ddp_bucket* bucket, ddp_work**, ddp_error** error) -> ddp_status {
             return ddp_bucket_set_buffer(bucket, ddp_bucket_buffer(bucket), DDP_I64, error);
         },
         DDP_ERROR_UNSUPPORTED}};
    for (const Mistake& mistake : mistakes)
        on_ranks(ranks(), [&](int rank, ddp_group* group) {
            Trainee net(group, view());
            const int culprit = world() - 1;
            const Facts facts = facts_of([&] {
                if (rank == culprit)
                    ddp::detail::call(ddp_set_comm_hook, net.context.get(), mistake.hook,
                                      static_cast<void*>(nullptr),
                                      static_cast<void (*)(void*)>(nullptr));
                else
                    net.context.set_comm_hook(average);
                // the culprit may be through with its step before this returns elsewhere
                net.context.commit();
                forward_backward(rank, net, 0);
            });
            EXPECT_EQ(facts.status, mistake.status) << facts;
            EXPECT_EQ(facts.rank, culprit) << facts;
            EXPECT_EQ(facts.bucket, 0) << facts;
        });
}

// A hook that does what libddp does without one gives the same bits.
TEST_P(Hooks, AveragingByHookEqualsTheDefault) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee plain(group, view()), hooked(group, view());
        plain.context.commit();
        hooked.context.set_comm_hook(average);
        hooked.context.commit();
        train(rank, plain, 4);
        train(rank, hooked, 4);
        plain.expect_values(trained_alone(4), "default");
        for (std::size_t i = 0; i < plain.values.size(); ++i)
            EXPECT_EQ(hooked.values[i], plain.values[i]) << i;
    });
}

TEST_P(Hooks, DivisionBeforeOrAfterTheSum) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (auto hook : {&sum_then_divide, &divide_then_sum}) {
            Trainee net(group, view());
            net.context.commit();
            net.context.set_comm_hook(hook);
            train(rank, net, 4);
            net.expect_values(trained_alone(4), "hook");
        }
    });
}

// The optimizer inside the step, parameter by parameter as gradients become final, instead of after
// it.
TEST_P(Hooks, AnOptimizerInTheStepEqualsOneAfterIt) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (auto hook : {&average, &sum_then_divide}) {
            Trainee net(group, view()), plain(group, view());
            net.context.set_comm_hook(hook);
            plain.context.set_comm_hook(hook);
            int calls = 0;
            net.context.set_reduced_callback([&](ddp_param param, bool used) {
                EXPECT_TRUE(used);
                descend(net.values[static_cast<std::size_t>(param)], net.grad(param));
                ++calls;
            });
            net.context.commit();
            plain.context.commit();
            for (int step = 0; step < 4; ++step) forward_backward(rank, net, step);
            train(rank, plain, 4);
            EXPECT_EQ(calls, 4 * net.count());
            net.expect_values(trained_alone(4), "optimizer in the step");
            for (std::size_t i = 0; i < net.values.size(); ++i)
                EXPECT_EQ(net.values[i], plain.values[i]) << i;
        }
    });
}

// The rows that a batch looks up in a table of embeddings, and the loss sum(scale * row) / batch
// size over them.
constexpr std::int64_t kRows = 10;
constexpr std::size_t kWidth = 2;

std::vector<std::int64_t> looked_up(int rank, int step) {
    std::vector<std::int64_t> indices;
    for (int i = 0; i < 3; ++i) indices.push_back((rank * 3 + step + i * i) % kRows);
    indices.push_back(step % kRows);  // by every rank
    return indices;
}

TEST_P(Hooks, SparseGradientsWithAndWithoutAHook) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (bool with_hook : {false, true}) {
            Replica<double> model(group, view());
            const ddp_param table =
                model.add("table", {kRows, kWidth}, std::vector<double>(kRows * kWidth, 0.5),
                          DDP_PARAM_SPARSE);
            const ddp_param scale = model.add("scale", {kWidth}, {1.0, -2.0});
            std::vector<ddp_param> seen;
            if (with_hook)
                model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
                    ddp_tensor tensor{};
                    tensor.struct_size = sizeof tensor;
                    ddp::detail::call(ddp_bucket_gradient, static_cast<const ddp_bucket*>(bucket),
                                      0, &tensor);
                    seen.push_back(tensor.param);
                    return sum_then_divide(g, bucket);
                });
            model.context.commit();
            Tensors alone{model.values[0], model.values[1]};
            for (int step = 0; step < 4; ++step) {
                // Here: rows one after another, those that occur twice too.
                const auto indices = looked_up(rank, step);
                const double each = 1.0 / static_cast<double>(indices.size());
                std::vector<double> rows;
                model.context.step_begin();
                model.set(scale, 0);
                for (std::int64_t index : indices)
                    for (std::size_t k = 0; k < kWidth; ++k) {
                        rows.push_back(model.values[1][k] * each);
                        model.grad(scale)[k] +=
                            model.values[0][static_cast<std::size_t>(index) * kWidth + k] * each;
                    }
                model.context.sparse_grad_ready(table, indices, rows.data());
                model.context.grad_ready(scale);
                end_step(model.context);
                auto [reduced, values] = model.context.sparse_gradient<double>(table);
                EXPECT_TRUE(std::is_sorted(reduced.begin(), reduced.end()));
                for (std::size_t i = 0; i < reduced.size(); ++i)
                    for (std::size_t k = 0; k < kWidth; ++k)
                        model.values[0][static_cast<std::size_t>(reduced[i]) * kWidth + k] -=
                            0.1 * values[i * kWidth + k];
                descend(model.values[1], model.grad(scale));

                // One process, with a dense gradient.
                Tensors gradients = zeros_like(alone);
                for (int r = 0; r < world(); ++r)
                    for (std::int64_t index : looked_up(r, step))
                        for (std::size_t k = 0; k < kWidth; ++k) {
                            const std::size_t at = static_cast<std::size_t>(index) * kWidth + k;
                            gradients[0][at] += alone[1][k] * each / world();
                            gradients[1][k] += alone[0][at] * each / world();
                        }
                for (std::size_t i = 0; i < 2; ++i) descend(alone[i], gradients[i].data());
                for (std::size_t i = 0; i < 2; ++i)
                    expect_near(model.values[i].data(), alone[i], at_step(step));
            }
            if (with_hook) {
                EXPECT_EQ(seen, std::vector<ddp_param>(4, scale)) << "hooks see dense buckets only";
            }
        }
    });
}

}  // namespace hooks_test
