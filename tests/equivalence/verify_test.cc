// Models that differ between ranks: found when they are committed, on every rank, by name, without
// harm to the group.
#include "equivalence/replica.h"

using namespace equivalence;

namespace verify_test {

struct Described {
    std::string name;
    Shape shape;
    ddp_dtype dtype = DDP_F32;
    std::uint32_t flags = 0, uses = 1;
};
using Description = std::vector<Described>;

class Verify : public Equivalence {
protected:
    // Rank 1 comes with another model than the others. param: the first that differs. words: of the
    // message.
    void check(const Description& others, const Description& of_rank_one, std::int32_t param,
               const std::vector<std::string>& words,
               const ddp_context_options& options_of_rank_one = small_buckets()) {
        on_ranks(ranks(), [&](int rank, ddp_group* group) {
            const BorrowedGroup borrowed(group);
            ddp::Context context(borrowed, rank == 1 ? options_of_rank_one : small_buckets());
            for (const Described& d : rank == 1 ? of_rank_one : others) add(context, d);
            for (int attempt = 0; attempt < 2; ++attempt) {
                const Facts facts = facts_of([&] { context.commit(); });
                EXPECT_EQ(facts, (Facts{DDP_ERROR_MISMATCH, 1, param}));
                for (const std::string& word : words)
                    EXPECT_THAT(facts.message, testing::HasSubstr(word));
                EXPECT_EQ(ddp_context_bucket_count(context.get()), -1) << "still being built";
            }
            EXPECT_EQ(ddp_group_status(group, nullptr), DDP_OK);
            go_on(group);
        });
    }

private:
    void add(ddp::Context& context, const Described& d) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = d.name.c_str();
        desc.shape = d.shape.data();
        desc.ndim = static_cast<std::int32_t>(d.shape.size());
        desc.dtype = d.dtype;
        desc.flags = d.flags;
        desc.uses = d.uses;
        ddp_param param = -1;
        ddp::detail::call(ddp_register_param, context.get(),
                          static_cast<const ddp_param_desc*>(&desc), &param);
    }
    // In the same group, equal models train.
    void go_on(ddp_group* group) {
        Replica<double> model(group, view());
        model.add("a", {4});
        model.context.commit();
        model.set(0, ddp_group_rank(group));
        model.all_ready();
        end_step(model.context);
        EXPECT_TRUE(model.holds(0, (world() - 1) / 2.0));
    }
};
INSTANTIATE_TEST_SUITE_P(All, Verify, testing::ValuesIn(cases_of_several()), name_of);

const Description kModel{{"first", {3, 4}}, {"second", {4}}, {"third", {2, 2}}};

Description changed(std::size_t at, const Described& to) {
    Description model = kModel;
    model[at] = to;
    return model;
}

TEST_P(Verify, EqualModelsPass) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::int64_t count : {1, 4, 100}) {
            Replica<double> model(group, view());
            for (std::int64_t i = 0; i < count; ++i) model.add(numbered("p", i), {i % 7, 3});
            model.context.commit();
            EXPECT_EQ(model.context.stats().param_count, count) << "rank " << rank;
        }
    });
}

TEST_P(Verify, DifferentShapesAreNamed) {
    check(kModel, changed(1, {"second", {5}}), 1, {"'second' f32[4]", "'second' f32[5]"});
    check(kModel, changed(0, {"first", {12}}), 0, {"'first' f32[3,4]", "'first' f32[12]"});
}

TEST_P(Verify, DifferentNumbersOfParametersAreNamed) {
    Description more = kModel, fewer = kModel;
    more.push_back({"fourth", {1}});
    fewer.pop_back();
    check(kModel, more, 3, {"'fourth'", "nothing"});
    check(kModel, fewer, 2, {"'third'", "nothing"});
}

// As many elements in another layout. PyTorch compares strides for this; contiguous tensors differ
// by their extents.
TEST_P(Verify, DifferentLayoutsAreNamed) {
    check(kModel, changed(0, {"first", {4, 3}}), 0, {"'first' f32[3,4]", "'first' f32[4,3]"});
    check(kModel, changed(2, {"third", {1, 2, 2}}), 2, {"'third'"});
}

// Differences that PyTorch does not compare, and then hangs or sums bytes of different types.
TEST_P(Verify, DifferentTypesNamesAndFlagsAreNamed) {
    check(kModel, changed(1, {"second", {4}, DDP_F64}), 1, {"f32[4]", "f64[4]"});
    check(kModel, changed(1, {"zweiter", {4}}), 1, {"'second'", "'zweiter'"});
    check(kModel, changed(1, {"second", {4}, DDP_F32, DDP_PARAM_DELAYED}), 1, {"'second'"});
    check(kModel, changed(1, {"second", {4}, DDP_F32, DDP_PARAM_SPARSE}), 1, {"'second'"});
    check(kModel, changed(1, {"second", {4}, DDP_F32, 0, 2}), 1, {"'second'"});
    check(kModel, {kModel[1], kModel[0], kModel[2]}, 0, {"'first'", "'second'"});
}

TEST_P(Verify, DifferentOptionsAreNamed) {
    auto sum = small_buckets(), checks = sum, verifies = sum, tunes = sum;
    sum.reduction = DDP_REDUCTION_SUM;
    checks.flags = DDP_CONTEXT_CHECK;
    checks.check_interval = 25;
    verifies.verify_interval = 25;
    tunes.flags = DDP_CONTEXT_AUTOTUNE;
    check(kModel, kModel, -1, {"reduction mean", "reduction sum"}, sum);
    check(kModel, kModel, -1, {"find unused"}, with_flags(DDP_CONTEXT_FIND_UNUSED));
    check(kModel, kModel, -1, {"bucket caps"}, small_buckets(4096));
    check(kModel, kModel, -1, {"check with interval 25", "DDP_DEBUG"}, checks);
    check(kModel, kModel, -1, {"verify interval 25"}, verifies);
    check(kModel, kModel, -1, {"skip nonfinite"}, with_flags(DDP_CONTEXT_SKIP_NONFINITE));
    check(kModel, kModel, -1, {"refuse nonfinite"}, with_flags(DDP_CONTEXT_REFUSE_NONFINITE));
    check(kModel, kModel, -1, {"autotune"}, tunes);
}

}  // namespace verify_test
