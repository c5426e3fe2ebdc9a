// A context whose group is replaced, or whose ranks fail and start again.
#include "equivalence/branches.h"
#include "equivalence/net.h"

using namespace equivalence;

namespace groups_test {

// A group of one's own, freed after what uses it.
class PartOf : public ddp::Group {
public:
    PartOf(ddp_group* group, int color) : ddp::Group(split(group, color)) {}

private:
    static ddp_group* split(ddp_group* group, int color) {
        ddp_group* out = nullptr;
        ddp::detail::call(ddp_group_split, group, std::int32_t{color}, ddp_group_rank(group), &out);
        return out;
    }
};

class Groups : public Equivalence {
protected:
    Batch global_batch(int step) const {
        return make_batch(static_cast<unsigned>(step), 2 * static_cast<std::size_t>(world()));
    }
    void step(int rank, Trainee& net, int number) const {
        net.context.step_begin();
        net.zero_grads();
        net.backward(share_of(global_batch(number), rank, world()));
        end_step(net.context);
        net.optimize();
    }
    Tensors trained_alone(int steps) const {
        Tensors weights = initial_weights();
        for (int i = 0; i < steps; ++i) train_alone(weights, global_batch(i));
        return weights;
    }
    // The last rank gives up in the middle of step 2; every rank gets an error. `spare`: another
    // group of the same ranks, in which all meet before, so that nobody is still busy with step 1.
    void fail_in_step_two(int rank, Trainee& net, ddp::Group& spare) const {
        spare.barrier();
        const ddp::Error error = error_of([&] {
            net.context.step_begin();
            net.accumulate(share_of(global_batch(2), rank, world()));
            net.context.grad_ready(3);
            if (rank == world() - 1) net.context.abort("out of memory");
            for (ddp_param i = 2; i >= 0; --i) net.context.grad_ready(i);
            end_step(net.context);
        });
        EXPECT_EQ(error.status(), DDP_ERROR_ABORTED) << error.what();
        EXPECT_EQ(error.rank(), world() - 1);
    }
};
INSTANTIATE_TEST_SUITE_P(All, Groups, testing::ValuesIn(all_cases()), name_of);

// Between steps, to a group of fewer ranks and back: the mean is that of the group of the moment.
// The content of a parameter that nobody uses stays.
TEST_P(Groups, TheMeanIsThatOfTheNewGroup) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        // Even ranks and odd ranks.
        PartOf all(group, 0), part(group, rank % 2);
        for (bool find_unused : {false, true}) {
            Replica<double> model(group, view(),
                                  with_flags(find_unused ? DDP_CONTEXT_FIND_UNUSED : 0));
            for (const char* name : {"a", "b", "unused"})
                if (find_unused || *name != 'u') model.add(name, {9});
            model.context.commit();
            if (find_unused) model.set(2, 5);
            int step = 0;
            auto check = [&](const std::vector<int>& members) {
                for (int end = step + 2; step < end; ++step) {
                    double sum = 0;
                    for (int member : members) sum += 10.0 * (member + 1) + step;
                    model.context.step_begin();
                    for (ddp_param i = 0; i < 2; ++i) {
                        model.set(i, 10.0 * (rank + 1) + step);
                        model.context.grad_ready(i);
                    }
                    end_step(model.context);
                    for (ddp_param i = 0; i < 2; ++i)
                        expect_near(
                            model.grad(i),
                            std::vector<double>(9, sum / static_cast<double>(members.size())),
                            at_step(step));
                    if (find_unused) {
                        EXPECT_TRUE(model.holds(2, 5));
                    }
                }
            };
            std::vector<int> everybody, mine;
            for (int r = 0; r < world(); ++r) everybody.push_back(r);
            for (int r = rank % 2; r < world(); r += 2) mine.push_back(r);
            check(everybody);
            model.context.set_group(part);
            check(mine);
            model.context.set_group(all);
            check(everybody);
        }
    });
}

// The same context goes on in another group; the step that failed is done again.
TEST_P(Groups, AContextGoesOnAfterAFailure) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        PartOf next(group, 0);
        Trainee net(group, view());
        net.context.commit();
        step(rank, net, 0);
        step(rank, net, 1);
        fail_in_step_two(rank, net, next);
        net.context.set_group(next);
        for (int i = 2; i < 5; ++i) step(rank, net, i);
        net.expect_values(trained_alone(5), "recovered");
        for (const auto& tensor : net.values)
            expect_same_on_every_rank(next.get(), tensor.data(), tensor.size());
    });
}

// Everything is made again: another group, another context, the values that rank 0 had.
TEST_P(Groups, ANewContextGoesOnAfterAFailure) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        PartOf next(group, 0);
        Tensors saved;
        {
            Trainee net(group, view());
            net.context.commit();
            step(rank, net, 0);
            step(rank, net, 1);
            saved = net.values;
            fail_in_step_two(rank, net, next);
        }
        Trainee net(next.get(), view(), small_buckets(), rank == 0 ? saved : initial_weights(7));
        net.context.commit();
        for (int i = 2; i < 5; ++i) step(rank, net, i);
        net.expect_values(trained_alone(5), "started again");
    });
}

}  // namespace groups_test
