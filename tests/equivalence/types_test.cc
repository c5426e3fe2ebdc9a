// Element types, shapes and cuts into buckets that are out of the ordinary.
#include "equivalence/replica.h"

using namespace equivalence;
using testing::ElementsAre;

namespace types_test {

class Types : public Equivalence {
protected:
    // The mean over ranks of rank + 1.
    double mean() const { return (world() + 1) / 2.0; }

    // The real and imaginary parts are averaged each on its own.
    template <class Real>
    void check_complex(int rank, ddp_group* group) {
        using Complex = std::complex<Real>;
        auto expected = [](double scale, std::size_t k, int step) {
            return Complex(static_cast<Real>(12 * scale) + static_cast<Real>(k),
                           static_cast<Real>(-24 * scale) + static_cast<Real>(step));
        };
        Replica<Complex> model(group, view());
        model.add("a", {3, 2}, std::vector<Complex>(6, Complex(1, -1)));
        model.add("scalar", {});
        model.context.commit();
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            for (ddp_param i = 0; i < 2; ++i)
                for (std::size_t k = 0; k < model.size(i); ++k)
                    model.grad(i)[k] = expected(rank + 1, k, step);
            model.all_ready();
            end_step(model.context);
            for (ddp_param i = 0; i < 2; ++i)
                for (std::size_t k = 0; k < model.size(i); ++k)
                    EXPECT_EQ(model.grad(i)[k], expected(mean(), k, step)) << i << " [" << k << "]";
        }
    }
};
INSTANTIATE_TEST_SUITE_P(All, Types, testing::ValuesIn(all_cases()), name_of);

TEST_P(Types, ComplexParameters) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        check_complex<float>(rank, group);
        check_complex<double>(rank, group);
    });
}

// 2^15 on every rank: the sum of two is infinite in binary16, the mean is 2^15.
TEST_P(Types, LargeHalfGradientsStayFinite) {
    constexpr std::uint16_t large = 0x7800;
    for (const std::string& backend :
         {std::string(GetParam().backend), std::string("threads-plain")})
        on_ranks({world(), backend}, [&](int, ddp_group* group) {
            Replica<Half> model(group, view());
            model.add("a", {7, 5});
            model.add("b", {3});
            model.context.commit();
            for (int step = 0; step < 2; ++step) {
                model.context.step_begin();
                for (ddp_param i = 0; i < 2; ++i) model.set(i, {large});
                model.all_ready();
                end_step(model.context);
                // A third of 2^15 is rounded before three of them are added.
                const int rounding = world() == 3 ? 1 : 0;
                for (ddp_param i = 0; i < 2; ++i)
                    for (std::size_t k = 0; k < model.size(i); ++k)
                        ASSERT_NEAR(model.grad(i)[k].bits, large, rounding) << backend;
            }
        });
}

// Each gradient comes back to its own place, element for element, whatever the shapes and cuts.
// (PyTorch's tensors may have any strides; here gradients are contiguous, so that the cuts are what
// can go wrong.)
TEST_P(Types, EveryShapeKeepsItsLayout) {
    const std::vector<Shape> shapes{{},   {1},          {2, 3},    {3, 2},
                                    {17}, {1, 1, 5, 1}, {4, 4, 4}, {31, 3}};
    auto element = [](std::size_t i, std::size_t k, double rank) {
        return static_cast<double>(1000 * i + k) + 1e6 * rank;
    };
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::uint64_t cap : {1, 100, 1'000'000}) {
            Replica<double> model(group, view(), small_buckets(cap));
            for (std::size_t i = 0; i < shapes.size(); ++i)
                model.add(std::string(i + 1, 'p'), shapes[i]);
            model.context.commit();
            for (int step = 0; step < 3; ++step) {
                model.context.step_begin();
                for (ddp_param i = 0; i < model.count(); ++i) {
                    if (view()) {
                        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(model.grad(i)) % 64, 0u);
                    }
                    for (std::size_t k = 0; k < model.size(i); ++k)
                        model.grad(i)[k] = element(static_cast<std::size_t>(i), k, rank + 1);
                }
                // Another order than that of registration, so that the second plan differs from the
                // first.
                for (ddp_param i = 0; i < model.count(); i += 2) model.context.grad_ready(i);
                for (ddp_param i = 1; i < model.count(); i += 2) model.context.grad_ready(i);
                end_step(model.context);
                for (ddp_param i = 0; i < model.count(); ++i) {
                    std::vector<double> expected(model.size(i));
                    for (std::size_t k = 0; k < expected.size(); ++k)
                        expected[k] = element(static_cast<std::size_t>(i), k, mean());
                    expect_near(model.grad(i), expected, numbered("parameter ", i));
                }
            }
        }
    });
}

TEST_P(Types, LayersWithoutOutputsAreNoTrouble) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        for (std::uint64_t cap : {1, 1000}) {
            Replica<float> model(group, view(), small_buckets(cap));
            model.add("empty.weight", {0, 10});
            model.add("empty.bias", {0});
            model.add("weight", {2, 2});
            model.add("last", {5, 0, 3});
            model.context.commit();
            for (int step = 0; step < 3; ++step) {
                model.context.step_begin();
                model.set(2, static_cast<float>(rank + 1));
                model.all_ready();
                end_step(model.context);
                EXPECT_TRUE(model.holds(2, static_cast<float>(mean())));
            }
        }
    });
}

// Caps bucket by bucket: 40 bytes, then 80, and the last one repeats.
TEST_P(Types, ListOfBucketCaps) {
    on_ranks(ranks(), [&](int rank, ddp_group* group) {
        auto options = ddp::Context::defaults();
        const std::uint64_t caps[] = {40, 80};
        options.bucket_caps = caps;
        options.bucket_cap_count = 2;
        Replica<float> model(group, view(), options);
        for (const char* name : {"a", "b", "c", "d", "e"}) model.add(name, {10});
        model.context.commit();
        std::vector<int> buckets;
        for (ddp_param i = 0; i < model.count(); ++i)
            buckets.push_back(ddp_context_param_bucket(model.context.get(), i));
        EXPECT_THAT(buckets, ElementsAre(2, 2, 1, 1, 0)) << "in reverse order of registration";
        for (int step = 0; step < 3; ++step) {
            model.context.step_begin();
            for (ddp_param i = 0; i < model.count(); ++i)
                model.set(i, static_cast<float>((rank + 1) * (i + 1)));
            model.all_ready();
            end_step(model.context);
            for (ddp_param i = 0; i < model.count(); ++i)
                EXPECT_TRUE(model.holds(i, static_cast<float>(mean() * (i + 1)))) << i;
        }
    });
}

}  // namespace types_test
