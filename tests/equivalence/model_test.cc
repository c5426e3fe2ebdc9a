// The parts of a model that libddp sends besides gradients, leaves alone, or reports as a whole.
#include <deque>

#include "equivalence/net.h"

using namespace equivalence;
using testing::Each;
using testing::ElementsAre;

namespace model_test {

class ModelState : public Equivalence {
protected:
    // A step of a model whose gradients do not matter.
    void any_step(Replica<double>& model) const {
        model.context.step_begin();
        model.all_ready();
        end_step(model.context);
    }
};
INSTANTIATE_TEST_SUITE_P(All, ModelState, testing::ValuesIn(all_cases()), name_of);

// Tensors of every type and of sizes around every boundary, as parameters and as buffers.
class MixedState {
public:
    using Bytes = std::deque<std::vector<std::uint8_t>>;

    MixedState(ddp::Context& context, bool view) {
        for (ddp_dtype type :
             {DDP_F16, DDP_BF16, DDP_F32, DDP_F64, DDP_I32, DDP_I64, DDP_U8, DDP_C64, DDP_C128})
            for (std::int64_t count : {0, 1, 63, 64, 65, 1000})
                for (bool buffer : {false, true}) add(context, type, count, buffer, view);
        add(context, DDP_F32, 1'100'000, true, view);  // too large to travel together with others
    }
    // Any bytes, NaNs among them: they are sent, not computed with.
    static void fill(Bytes& bytes, std::uint32_t seed) {
        std::array<std::uint8_t, 997> pattern;
        for (auto& byte : pattern) {
            seed = seed * 1664525u + 1013904223u;
            byte = static_cast<std::uint8_t>(seed >> 24);
        }
        for (auto& tensor : bytes)
            for (std::size_t at = 0; at < tensor.size(); at += pattern.size())
                std::copy_n(pattern.begin(), std::min(pattern.size(), tensor.size() - at),
                            tensor.data() + at);
    }
    Bytes filled(std::uint32_t seed) const {
        Bytes result = values;
        fill(result, seed);
        return result;
    }

    Bytes values;

private:
    void add(ddp::Context& context, ddp_dtype type, std::int64_t count, bool buffer, bool view) {
        const std::size_t bytes = static_cast<std::size_t>(count) * ddp_dtype_size(type);
        const std::string name = numbered("tensor", values.size());
        // not null without elements
        for (auto* memory : {&values, &grads_}) memory->emplace_back(bytes).reserve(16);
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name.c_str();
        desc.shape = &count;
        desc.ndim = 1;
        desc.dtype = type;
        desc.data = values.back().data();
        desc.grad = view || buffer ? nullptr : grads_.back().data();
        const ddp_param_desc* described = &desc;
        ddp_param param = -1;
        if (buffer)
            ddp::detail::call(ddp_register_buffer, context.get(), described);
        else
            ddp::detail::call(ddp_register_param, context.get(), described, &param);
    }

    Bytes grads_;
};

// From rank 0 when the context is committed, and from every rank in turn, as the last one to join.
TEST_P(ModelState, MixedTypesAreSentFromEveryRoot) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        const BorrowedGroup borrowed(group);
        ddp::Context context(borrowed,
                             with_flags(DDP_CONTEXT_JOIN | DDP_CONTEXT_NO_BUFFER_BROADCAST,
                                        ddp::Context::defaults()));
        MixedState state(context, view());
        const auto seed = [](int r) { return 100u + static_cast<std::uint32_t>(r); };
        MixedState::fill(state.values, seed(rank));
        context.commit();
        EXPECT_TRUE(state.values == state.filled(seed(0))) << "commit";
        for (int root = 0; root < world(); ++root) {
            if (rank == root) {
                context.step_begin();
                for (ddp_param i = 0; i < context.stats().param_count; ++i) context.grad_ready(i);
                end_step(context);
            }
            MixedState::fill(state.values, seed(10 * root + rank));
            context.join();
            EXPECT_TRUE(state.values == state.filled(seed(11 * root)))
                << "rank " << root << " joined last";
        }
    });
}

TEST_P(ModelState, CommitSendsItUnlessToldNotTo) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (bool send : {true, false}) {
            Replica<double> model(group, view(),
                                  with_flags(send ? 0 : DDP_CONTEXT_NO_INITIAL_BROADCAST));
            model.add("a", {3, 5}, std::vector<double>(15, rank + 0.5));
            std::vector<double> buffer(4, rank + 0.25);
            model.context.add_buffer<double>("running", {4}, buffer.data());
            model.context.commit();
            EXPECT_THAT(model.values[0], Each(send ? 0.5 : rank + 0.5));
            EXPECT_THAT(buffer, Each(send ? 0.25 : rank + 0.25));
        }
    });
}

// Every rank changes its buffers in the forward pass, as batch normalisation does.
TEST_P(ModelState, BuffersFollowRankZero) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (bool follow : {true, false}) {
            Replica<double> model(group, view(),
                                  with_flags(follow ? 0 : DDP_CONTEXT_NO_BUFFER_BROADCAST));
            model.add("a", {3});
            std::vector<double> mean(2), large(1000);
            model.context.add_buffer<double>("mean", {2}, mean.data());
            model.context.add_buffer<double>("large", {10, 100}, large.data());
            model.context.commit();
            for (int step = 0; step < 4; ++step) {
                model.context.step_begin();
                const double expected = step == 0 ? 0 : 10 * (step - 1) + (follow ? 0 : rank);
                EXPECT_THAT(mean, Each(expected)) << at_step(step);
                EXPECT_THAT(large, Each(-expected));
                std::fill(mean.begin(), mean.end(), 10 * step + rank);
                std::fill(large.begin(), large.end(), -10 * step - rank);
                model.all_ready();
                end_step(model.context);
            }
        }
    });
}

// A hook that averages the buffers instead.
TEST_P(ModelState, ABufferHookReplacesThat) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Replica<double> model(group, view());
        model.add("a", {3});
        std::vector<double> buffer(6);
        model.context.add_buffer<double>("running", {2, 3}, buffer.data());
        int calls = 0;
        model.context.set_buffer_hook(
            [&](ddp_group* g, const ddp_tensor* const* buffers, std::size_t count) {
                ++calls;
                ASSERT_EQ(count, 1u);
                EXPECT_EQ(buffers[0]->count, 6);
                EXPECT_EQ(buffers[0]->param, -1);
                ddp::detail::call(ddp_allreduce, g, static_cast<const void*>(nullptr),
                                  buffers[0]->data, std::size_t{6}, buffers[0]->dtype, DDP_AVG,
                                  static_cast<ddp_work**>(nullptr));
            });
        model.context.commit();
        for (int step = 0; step < 3; ++step) {
            std::fill(buffer.begin(), buffer.end(), rank + step);
            any_step(model);
            if (step > 0)
                expect_near(buffer.data(), std::vector<double>(6, (world() - 1) / 2.0 + step),
                            at_step(step));
        }
        EXPECT_EQ(calls, 2) << "not before the first step: commit has sent them";
    });
}

// Neither the value nor the gradient of an ignored parameter travels; the others train as if it
// were not there.
TEST_P(ModelState, IgnoredParametersStayTheRanksOwn) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        Trainee net(group, view());
        const ddp_param ignored =
            net.add("adapter", {2, 2}, std::vector<double>(4, rank), DDP_PARAM_IGNORED);
        net.context.commit();
        EXPECT_THAT(net.values.back(), Each(rank));
        Tensors alone = initial_weights();
        for (int step = 0; step < 3; ++step) {
            const Batch batch =
                make_batch(static_cast<unsigned>(step), 2 * static_cast<std::size_t>(world()));
            net.context.step_begin();
            net.zero_grads();
            net.set(ignored, 100 + rank);
            net.accumulate(share_of(batch, rank, world()));
            // Announcing it is allowed and does nothing, and so is not announcing it.
            for (ddp_param i = step == 0 ? ignored : ignored - 1; i >= 0; --i)
                net.context.grad_ready(i);
            end_step(net.context);
            EXPECT_TRUE(net.holds(ignored, 100 + rank));
            for (ddp_param i = 0; i < ignored; ++i)
                descend(net.values[static_cast<std::size_t>(i)], net.grad(i));
            train_alone(alone, batch);
            for (std::size_t i = 0; i < alone.size(); ++i)
                expect_near(net.values[i].data(), alone[i], at_step(step));
        }
    });
}

TEST_P(ModelState, StatisticsTellWhatHappened) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto sizes_of = [](ddp::Context& context, int initial) {
            std::vector<std::uint64_t> sizes(16);
            std::size_t count = 0;
            ddp::detail::call(ddp_stats_bucket_sizes, context.get(), std::int32_t{initial},
                              sizes.data(), sizes.size(), &count);
            sizes.resize(count);
            return sizes;
        };
        Replica<double> model(group, view(),
                              with_flags(DDP_CONTEXT_FIND_UNUSED, small_buckets(80)));
        for (std::int64_t count : {10, 20, 5, 5}) model.add(numbered("p", model.count()), {count});
        EXPECT_EQ(model.context.stats().param_count, 4);
        EXPECT_EQ(model.context.stats().bucket_count, 0) << "not before commit";
        model.context.commit();
        EXPECT_THAT(sizes_of(model.context, 1), ElementsAre(80, 160, 80));
        const std::vector<ddp_param> order{2, 0, 1};  // 3 is not used
        for (int step = 0; step < 4; ++step) {
            model.context.set_sync(step != 1);
            model.context.step_begin();
            for (ddp_param i : order) model.context.grad_ready(i);
            end_step(model.context);
        }
        const ddp_stats stats = model.context.stats();
        EXPECT_EQ(stats.steps, 4);
        EXPECT_EQ(stats.synced_steps, 3);
        EXPECT_EQ(stats.rebuilds, 1);
        EXPECT_EQ(stats.param_bytes, 320u);
        EXPECT_EQ(stats.unused_params, 1);
        EXPECT_EQ(stats.unused_bytes, 40u);
        EXPECT_EQ(stats.unsent_buckets, 0);
        EXPECT_EQ(stats.sent_bytes, 3 * 320u);
        EXPECT_EQ(stats.last_error, DDP_OK);
        EXPECT_GE(stats.total_backward_ns, stats.backward_ns);
        EXPECT_GE(stats.total_comm_ns, stats.comm_ns);
        EXPECT_GT(stats.comm_ns, 0);
        EXPECT_LE(stats.overlap_ns, stats.comm_ns);
        EXPECT_GT(stats.wait_ns, 0);
        std::vector<ddp_param> seen(8);
        std::size_t count = 0;
        ddp::detail::call(ddp_stats_ready_order, model.context.get(), seen.data(), seen.size(),
                          &count);
        seen.resize(count);
        EXPECT_THAT(std::vector<ddp_param>(seen.begin(), seen.begin() + 3), ElementsAre(2, 0, 1));
        const auto rebuilt = sizes_of(model.context, 0);
        EXPECT_EQ(rebuilt.size(), static_cast<std::size_t>(stats.bucket_count));
        EXPECT_EQ(std::accumulate(rebuilt.begin(), rebuilt.end(), std::uint64_t{0}), 320u);
        EXPECT_EQ(ddp_grad_ready(model.context.get(), 99, nullptr), DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_EQ(model.context.stats().last_error, DDP_ERROR_INVALID_ARGUMENT) << "rank " << rank;
    });
}

}  // namespace model_test
