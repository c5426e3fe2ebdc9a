// Training on several ranks is training of one process on the global batch.
#include "equivalence/net.h"

using namespace equivalence;

namespace forward_backward_test {

class ForwardBackward : public Equivalence {
protected:
    Batch global_batch(int step) const {
        return make_batch(static_cast<unsigned>(100 + step), 3 * static_cast<std::size_t>(world()));
    }
};
INSTANTIATE_TEST_SUITE_P(All, ForwardBackward, testing::ValuesIn(all_cases()), name_of);

TEST_P(ForwardBackward, GradientsAreThoseOfTheGlobalBatch) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view());
        net.context.commit();
        const Batch batch = global_batch(0);
        net.backward(share_of(batch, rank, world()));
        end_step(net.context);
        net.expect_gradients(gradients_of(net.values, batch), "one step");
        for (ddp_param i = 0; i < net.count(); ++i)
            expect_same_on_every_rank(group, net.grad(i), net.size(i));
    });
}

TEST_P(ForwardBackward, TrainingEqualsOneProcess) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view(), small_buckets(), initial_weights(rank == 0 ? 1 : 99));
        net.context.commit();
        Tensors alone = initial_weights();
        for (int step = 0; step < 5; ++step) {
            net.context.step_begin();
            net.zero_grads();
            net.backward(share_of(global_batch(step), rank, world()));
            end_step(net.context);
            net.optimize();
            train_alone(alone, global_batch(step));
            net.expect_values(alone, at_step(step));
        }
        for (const auto& tensor : net.values)
            expect_same_on_every_rank(group, tensor.data(), tensor.size());
    });
}

// Every other iteration runs without libddp at all: the gradient grows where it stands, and the
// next step averages the whole of it. Nobody sets it to zero.
TEST_P(ForwardBackward, GradientsMayGrowOutsideOfSteps) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view());
        net.context.commit();
        Tensors alone = zeros_like(net.values);
        for (int iteration = 0; iteration < 6; ++iteration) {
            const Batch batch = global_batch(iteration);
            add_gradients(net.values, batch, alone);
            if (iteration % 2 == 0) {
                net.accumulate(share_of(batch, rank, world()));
                if (world() > 1) {
                    EXPECT_GT(std::abs(net.grad(3)[0] - alone[3][0]), 1e-9)
                        << "what a rank has is its own";
                }
                continue;
            }
            net.context.step_begin();
            net.backward(share_of(batch, rank, world()));
            end_step(net.context);
            net.expect_gradients(alone, numbered("iteration ", iteration));
        }
    });
}

// Two outputs of one model, each with a backward pass of its own, and one end of the step.
TEST_P(ForwardBackward, SeveralBackwardPassesMakeOneStep) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Replica<double> model(group, view());
        for (const char* output : {"a", "b"})
            for (std::size_t i = 0; i < net_shapes().size(); ++i)
                model.add(output + std::to_string(i), net_shapes()[i], initial_weights()[i]);
        model.context.commit();
        const Tensors weights(model.values.begin(), model.values.begin() + 4);
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            model.zero_grads();
            const Batch of_a = global_batch(2 * step), of_b = global_batch(2 * step + 1);
            const auto grads = model.grads();
            add_gradients(weights, share_of(of_b, rank, world()), {grads.begin() + 4, grads.end()});
            for (ddp_param i = 7; i >= 4; --i) model.context.grad_ready(i);
            add_gradients(weights, share_of(of_a, rank, world()),
                          {grads.begin(), grads.begin() + 4});
            for (ddp_param i = 3; i >= 0; --i) model.context.grad_ready(i);
            end_step(model.context);
            for (ddp_param i = 0; i < 8; ++i)
                expect_near(
                    model.grad(i),
                    gradients_of(weights, i < 4 ? of_a : of_b)[static_cast<std::size_t>(i % 4)],
                    at_step(step));
        }
    });
}

// An evaluation between two steps: a forward pass that no backward pass follows.
TEST_P(ForwardBackward, AForwardPassAloneChangesNothing) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view());
        net.context.commit();
        Tensors alone = initial_weights();
        for (int step = 0; step < 3; ++step) {
            net.context.step_begin();  // evaluation
            net.expect_values(alone, "evaluation before " + at_step(step));
            net.context.step_begin();
            net.zero_grads();
            net.backward(share_of(global_batch(step), rank, world()));
            end_step(net.context);
            net.optimize();
            train_alone(alone, global_batch(step));
        }
        net.expect_values(alone, "end");
        EXPECT_EQ(net.context.stats().steps, 3);
    });
}

// Both layers of x -> W W x use one matrix; each announces it once it has added its part.
TEST_P(ForwardBackward, ASharedWeightGetsBothParts) {
    constexpr std::size_t n = 3;
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Replica<double> model(group, view());
        model.add("bias", {n}, {0.1, -0.2, 0.3});
        const ddp_param shared =
            model.add("shared", {n, n}, {.1, .2, .3, -.4, .5, -.6, .7, .8, -.9}, 0, 2);
        model.context.commit();
        const auto& w = model.values[1];
        // The gradient of (sum over o of (W W x + bias)[o]): that of the layer near the loss, or of
        // the other one.
        auto add_part = [&](const Sample& sample, bool near_the_loss, double* gradient,
                            double factor) {
            for (std::size_t row = 0; row < n; ++row)
                for (std::size_t column = 0; column < n; ++column) {
                    double part = 0;
                    for (std::size_t k = 0; k < n; ++k)
                        part += near_the_loss ? w[column * n + k] * sample.x[k] : w[k * n + row];
                    gradient[row * n + column] +=
                        factor * (near_the_loss ? part : part * sample.x[column]);
                }
        };
        for (int step = 0; step < 3; ++step) {
            const Batch batch =
                make_batch(static_cast<unsigned>(step), static_cast<std::size_t>(world()));
            const Sample& mine = batch[static_cast<std::size_t>(rank)];
            model.context.step_begin();
            model.zero_grads();
            model.set(0, 1);
            model.context.grad_ready(0);
            for (bool near_the_loss : {true, false}) {
                add_part(mine, near_the_loss, model.grad(shared), 1);
                model.context.grad_ready(shared);
            }
            end_step(model.context);
            std::vector<double> expected(n * n);
            for (const Sample& sample : batch)
                for (bool near_the_loss : {true, false})
                    add_part(sample, near_the_loss, expected.data(), 1.0 / world());
            expect_near(model.grad(shared), expected, at_step(step));
            EXPECT_TRUE(model.holds(0, 1));
        }
    });
}

// Rank 0 saves; every rank starts again from what rank 0 saved, with the plan of the first run.
// Bits continue as if nothing had happened.
TEST_P(ForwardBackward, ACheckpointContinuesBitForBit) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto train = [&](Trainee& net, int from, int to) {
            for (int step = from; step < to; ++step) {
                net.context.step_begin();
                net.zero_grads();
                net.backward(share_of(global_batch(step), rank, world()));
                end_step(net.context);
                net.optimize();
            }
        };
        Trainee first(group, view());
        first.context.commit();
        train(first, 0, 3);
        const Tensors saved = first.values;
        const std::string plan = first.context.plan();
        train(first, 3, 6);

        Trainee second(group, view(), small_buckets(), rank == 0 ? saved : initial_weights(5));
        second.context.adopt_plan(plan);
        second.context.commit();
        second.expect_values(saved, "loaded");
        train(second, 3, 6);
        for (std::size_t i = 0; i < first.values.size(); ++i)
            EXPECT_EQ(second.values[i], first.values[i]) << "value " << i;
    });
}

}  // namespace forward_backward_test
