// The optimizers of optimizer.h: their numbers, beside references in f64, and the same bits however
// the parameters are sharded.
#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ddp/ddp.hpp"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace optimizer_test {

using testing::HasSubstr;

template <class Call>
std::string message_of(Call call) {
    return error_of(call).what();
}

// One number under an optimizer, in f64 by the formulas of optimizer.h.
struct Adam {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.01;
    double m = 0, v = 0;
    int t = 0;
    double operator()(double x, double g) {
        ++t;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        const double m_hat = m / (1 - std::pow(beta1, t)), v_hat = v / (1 - std::pow(beta2, t));
        return x - lr * decay * x - lr * m_hat / (std::sqrt(v_hat) + eps);
    }
};
struct Sgd {
    double lr = 1e-3, momentum = 0, decay = 0;
    bool nesterov = false;
    double b = 0;
    double operator()(double x, double g) {
        const double d = g + decay * x;
        b = momentum * b + d;
        return x - lr * (nesterov ? d + momentum * b : b);
    }
};

double first_value(std::size_t k) {
    return 0.01 * static_cast<double>(k % 97) - 0.3;
}
double gradient_of(std::size_t k, int step) {
    return std::sin(static_cast<double>(k + 1) * (1.3 + step)) * std::ldexp(1.0, step % 5 - 2);
}

// One parameter of `count` numbers of T under the optimizer, beside a reference for each of them.
// The references see what the optimizer sees: numbers rounded to T.
template <class T, class Reference>
void compare(const std::string& name, const std::string& options, const Reference& reference,
             double tolerance) {
    on_ranks(1, [&](int, ddp_group* group) {
        constexpr std::size_t kCount = 1003;
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::vector<T> value(kCount), gradient(kCount);
        context.add_param<T>("w", {17, 59}, value.data(), gradient.data());
        context.commit();
        std::vector<double> want(kCount);
        for (std::size_t k = 0; k < kCount; ++k) {
            value[k] = static_cast<T>(first_value(k));
            want[k] = static_cast<double>(value[k]);
        }
        std::vector<Reference> references(kCount, reference);
        ddp::Optimizer optimizer(context, name, options);
        for (int step = 0; step < 20; ++step) {
            for (std::size_t k = 0; k < kCount; ++k) {
                gradient[k] = static_cast<T>(gradient_of(k, step));
                want[k] = references[k](want[k], 0.25 * static_cast<double>(gradient[k]));
            }
            context.grad_ready(0);
            context.finalize();
            optimizer.step(0.25);
            for (std::size_t k = 0; k < kCount; ++k)
                ASSERT_NEAR(value[k], want[k], tolerance * (1 + std::fabs(want[k])))
                    << name << " " << options << ", step " << step << ", element " << k;
        }
    });
}

TEST(Optimizer, AdamWIsThePapers) {
    compare<double>("adamw", "", Adam{}, 1e-14);
    compare<double>("adamw", "lr=0.1,beta1=0.5,beta2=0.9,eps=0.01,weight_decay=0.3",
                    Adam{0.1, 0.5, 0.9, 0.01, 0.3}, 1e-13);
    compare<float>("adamw", "lr=0.01", Adam{0.01}, 2e-6);
}

TEST(Optimizer, SgdIsTheTextbooks) {
    compare<double>("sgd", "", Sgd{}, 1e-14);
    compare<double>("sgd", "lr=0.1,momentum=0.9", Sgd{0.1, 0.9}, 1e-14);
    compare<double>("sgd", "lr=0.1,momentum=0.9,nesterov=1,weight_decay=0.2",
                    Sgd{0.1, 0.9, 0.2, true}, 1e-14);
    compare<float>("sgd", "lr=0.1,momentum=0.9,weight_decay=0.2", Sgd{0.1, 0.9, 0.2}, 3e-6);
}

// Trains one matrix under the optimizer, beside a reference of all of it.
template <class Reference>
void compare_matrix(const std::string& name, const std::string& options, std::size_t rows,
                    std::size_t columns, Reference reference) {
    on_ranks(1, [&](int, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::vector<double> value(rows * columns), gradient(value.size());
        for (std::size_t k = 0; k < value.size(); ++k) value[k] = first_value(k);
        std::vector<double> want = value;
        const auto r = static_cast<std::int64_t>(rows), c = static_cast<std::int64_t>(columns);
        context.add_param<double>("w", {r, c}, value.data(), gradient.data());
        context.commit();
        ddp::Optimizer optimizer(context, name, options);
        for (int step = 0; step < 10; ++step) {
            for (std::size_t k = 0; k < value.size(); ++k) gradient[k] = gradient_of(k, step);
            std::vector<double> scaled = gradient;
            for (double& number : scaled) number *= 0.5;
            reference(want, scaled);
            context.grad_ready(0);
            context.finalize();
            optimizer.step(0.5);
            for (std::size_t k = 0; k < value.size(); ++k)
                ASSERT_NEAR(value[k], want[k], 1e-11) << name << ", step " << step << ", " << k;
        }
    });
}

double length(const std::vector<double>& numbers) {
    return std::sqrt(std::inner_product(numbers.begin(), numbers.end(), numbers.begin(), 0.0));
}

// Algorithm 2 of You et al. 2020, without bounds of the trust ratio.
struct Lamb {
    double lr, beta1, beta2, eps, decay;
    std::vector<double> m{}, v{};
    int t = 0;
    void operator()(std::vector<double>& x, const std::vector<double>& g) {
        m.resize(x.size()), v.resize(x.size());
        ++t;
        std::vector<double> u(x.size());
        for (std::size_t k = 0; k < x.size(); ++k) {
            m[k] = beta1 * m[k] + (1 - beta1) * g[k];
            v[k] = beta2 * v[k] + (1 - beta2) * g[k] * g[k];
            u[k] = m[k] / (1 - std::pow(beta1, t)) /
                       (std::sqrt(v[k] / (1 - std::pow(beta2, t))) + eps) +
                   decay * x[k];
        }
        const double trust = length(x) / length(u);
        for (std::size_t k = 0; k < x.size(); ++k) x[k] -= lr * trust * u[k];
    }
};

TEST(Optimizer, LambIsThePapers) {
    compare_matrix("lamb", "", 13, 77, Lamb{1e-3, 0.9, 0.999, 1e-6, 0.01});
    compare_matrix("lamb", "lr=0.1,beta1=0.5,beta2=0.8,eps=0.01,weight_decay=0.2", 1, 1001,
                   Lamb{0.1, 0.5, 0.8, 0.01, 0.2});
}

// The trust ratio is 1 where a norm is 0: values of zero begin to move.
TEST(Optimizer, LambMovesZeros) {
    on_ranks(1, [](int, ddp_group* group) {
        Model model(group, {10}, false);
        model.context.commit();
        ddp::Optimizer optimizer(model.context, "lamb", "lr=0.5,weight_decay=0");
        model.fill(0, 1);
        model.context.grad_ready(0);
        model.context.finalize();
        optimizer.step();
        for (const float value : model.data[0]) EXPECT_NEAR(value, -0.5, 1e-5);
    });
}

using Matrix = std::vector<std::vector<double>>;

Matrix times(const Matrix& a, const Matrix& b) {
    Matrix product(a.size(), std::vector<double>(b[0].size()));
    for (std::size_t i = 0; i < a.size(); ++i)
        for (std::size_t j = 0; j < b[0].size(); ++j)
            for (std::size_t k = 0; k < b.size(); ++k) product[i][j] += a[i][k] * b[k][j];
    return product;
}
Matrix transposed(const Matrix& a) {
    Matrix result(a[0].size(), std::vector<double>(a.size()));
    for (std::size_t i = 0; i < a.size(); ++i)
        for (std::size_t j = 0; j < a[0].size(); ++j) result[j][i] = a[i][j];
    return result;
}

// Keller Jordan's Muon, in f64 throughout.
struct Muon {
    std::size_t rows, columns;
    double lr, momentum, decay, growth;
    bool nesterov;
    std::vector<double> b{};
    void operator()(std::vector<double>& x, const std::vector<double>& g) {
        b.resize(x.size());
        std::vector<double> u(x.size());
        for (std::size_t k = 0; k < x.size(); ++k) {
            b[k] = momentum * b[k] + (1 - momentum) * g[k];
            u[k] = nesterov ? (1 - momentum) * g[k] + momentum * b[k] : b[k];
        }
        const double norm = length(u);
        Matrix o(rows, std::vector<double>(columns));
        for (std::size_t k = 0; k < u.size(); ++k) o[k / columns][k % columns] = u[k] / norm;
        for (int i = 0; i < 5; ++i) {
            // a X + (b A + c A^2) X
            const Matrix one = times(times(o, transposed(o)), o);
            const Matrix two = times(times(o, transposed(o)), one);
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t c = 0; c < columns; ++c)
                    o[r][c] = 3.4445 * o[r][c] - 4.7750 * one[r][c] + 2.0315 * two[r][c];
        }
        for (std::size_t k = 0; k < x.size(); ++k)
            x[k] = (1 - lr * decay) * x[k] - lr * growth * o[k / columns][k % columns];
    }
};

TEST(Optimizer, MuonIsKellerJordans) {
    compare_matrix("muon", "lr=0.02", 12, 31, Muon{12, 31, 0.02, 0.95, 0.1, 1, true});
    compare_matrix("muon", "lr=0.02,nesterov=0,momentum=0.5,weight_decay=0", 40, 7,
                   Muon{40, 7, 0.02, 0.5, 0, std::sqrt(40 / 7.0), false});
    compare_matrix("muon", "match_rms_adamw=1", 33, 21,
                   Muon{33, 21, 1e-3, 0.95, 0.1, 0.2 * std::sqrt(33.0), true});
    const std::string as_adamw =
        "adamw=1,adamw_lr=0.01,adamw_weight_decay=0.2,adamw_beta2=0.999,"
        "adamw_eps=1e-8";
    compare<double>("muon", as_adamw, Adam{0.01, 0.9, 0.999, 1e-8, 0.2}, 1e-13);
}

// How a model is trained.
struct Training {
    std::string name, options{};
    bool shard = false, view = false, in_step = false;
    std::uint64_t cap = 1 << 20;
    std::vector<ddp_owner> owners{};
    ddp_dtype value = DDP_F32, gradient = DDP_F32;
};

const std::vector<std::vector<std::int64_t>> kShapes = {
    {40, 25}, {3}, {257}, {129, 61}, {0}, {1}, {5, 20, 10}, {8, 8}, {9001}, {17, 1}};

std::size_t size_of(const std::vector<std::int64_t>& shape) {
    return static_cast<std::size_t>(
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

std::uint16_t to_bf16(float number) {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float from_bf16(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

void add_param(ddp::Context& context, int number, const std::vector<std::int64_t>& shape,
               ddp_dtype value, ddp_dtype gradient, void* data, void* grad) {
    const std::string name = std::to_string(number);
    ddp_param_desc desc;
    ddp_param_desc_init(&desc);
    desc.name = name.c_str();
    desc.shape = shape.data();
    desc.ndim = static_cast<std::int32_t>(shape.size());
    desc.dtype = value;
    desc.grad_dtype = gradient;
    desc.data = data;
    desc.grad = grad;
    ddp_param param = -1;
    ddp::detail::call(ddp_register_param, context.get(), &desc, &param);
}

// Numbers of f32 or bf16.
class Numbers {
public:
    Numbers(ddp_dtype dtype, std::size_t count) : dtype_(dtype), memory_(count * size()) {}
    std::size_t size() const { return dtype_ == DDP_F32 ? 4 : 2; }
    void* data() { return memory_.data(); }
    std::vector<std::byte>& bytes() { return memory_; }
    void set(std::size_t k, float number, void* where = nullptr) {
        std::byte* at = (where ? static_cast<std::byte*>(where) : memory_.data()) + k * size();
        const std::uint16_t half = to_bf16(number);
        dtype_ == DDP_F32 ? std::memcpy(at, &number, 4) : std::memcpy(at, &half, 2);
    }
    float get(std::size_t k) const {
        float number = 0;
        std::uint16_t half = 0;
        std::memcpy(dtype_ == DDP_F32 ? static_cast<void*>(&number) : &half,
                    memory_.data() + k * size(), size());
        return dtype_ == DDP_F32 ? number : from_bf16(half);
    }

private:
    ddp_dtype dtype_;
    std::vector<std::byte> memory_;
};

// The bytes of all values of this rank after some steps whose gradients depend on the values.
std::vector<std::byte> train(int rank, ddp_group* group, const Training& training,
                             int skipped_step = -1) {
    BorrowedGroup borrowed(group);
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = training.cap;
    options.flags = training.shard ? DDP_CONTEXT_SHARD : 0;
    ddp::Context context(borrowed, options);
    std::vector<Numbers> values, gradients;
    const auto count = static_cast<int>(kShapes.size());
    for (int p = 0; p < count; ++p) {
        const auto& shape = kShapes[static_cast<std::size_t>(p)];
        Numbers& value = values.emplace_back(training.value, size_of(shape));
        gradients.emplace_back(training.gradient, size_of(shape));
        for (std::size_t k = 0; k < size_of(shape); ++k)
            value.set(k, static_cast<float>(first_value(k + static_cast<std::size_t>(p))));
    }
    for (int p = 0; p < count; ++p) {
        const auto i = static_cast<std::size_t>(p);
        add_param(context, p, kShapes[i], training.value, training.gradient, values[i].data(),
                  training.view ? nullptr : gradients[i].data());
        if (training.shard && !training.owners.empty())
            context.set_owner(p, training.owners[i % training.owners.size()]);
    }
    context.commit();
    ddp::Optimizer optimizer(context, training.name, training.options);
    optimizer.set(1, "weight_decay", 0);
    if (training.in_step) optimizer.in_step(0.7);
    for (int step = 0; step < 6; ++step) {
        if (step == 3) optimizer.set("lr", 0.003);
        for (int p = count; p-- > 0;) {
            const auto i = static_cast<std::size_t>(p);
            if (training.shard) context.wait_value(p);
            void* const where = training.view ? context.grad_view<float>(p) : nullptr;
            for (std::size_t k = 0; k < size_of(kShapes[i]); ++k)
                gradients[i].set(k,
                                 values[i].get(k) * std::ldexp(1.37f, 3 * rank - step) +
                                     static_cast<float>(gradient_of(k, rank)),
                                 where);
            context.grad_ready(p);
        }
        context.finalize();
        if (training.in_step) continue;
        if (step != skipped_step) optimizer.step(0.7);
        if (training.shard) context.publish();
    }
    std::vector<std::byte> all;
    for (int p = 0; p < count; ++p) {
        if (training.shard) context.wait_value(p);
        const auto& bytes = values[static_cast<std::size_t>(p)].bytes();
        all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
}

using Values = std::vector<std::vector<std::byte>>;  // of each rank

Values train(int world, const Training& training) {
    Values result(static_cast<std::size_t>(world));
    RankOptions options(world);
    options.flags = DDP_GROUP_DETERMINISTIC;
    on_ranks(options, [&](int rank, ddp_group* group) {
        result[static_cast<std::size_t>(rank)] = train(rank, group, training);
    });
    return result;
}

const std::vector<ddp_owner> kMixed = {DDP_OWNER_WHOLE, DDP_OWNER_ELEMENTS, DDP_OWNER_REPLICATED};
const std::vector<ddp_owner> kNoElements = {DDP_OWNER_WHOLE, DDP_OWNER_REPLICATED, DDP_OWNER_WHOLE};
// Matrices have no more than one owner.
const std::vector<ddp_owner> kWhole = {
    DDP_OWNER_WHOLE,    DDP_OWNER_ELEMENTS, DDP_OWNER_ELEMENTS, DDP_OWNER_REPLICATED,
    DDP_OWNER_WHOLE,    DDP_OWNER_ELEMENTS, DDP_OWNER_WHOLE,    DDP_OWNER_REPLICATED,
    DDP_OWNER_ELEMENTS, DDP_OWNER_WHOLE};

class Optimizers : public testing::TestWithParam<std::tuple<int, std::array<const char*, 2>>> {};

TEST_P(Optimizers, GetTheSameBitsHoweverParametersAreSharded) {
    const auto [world, kind] = GetParam();
    for (const auto& [value, gradient] :
         {std::pair{DDP_F32, DDP_F32}, std::pair{DDP_BF16, DDP_BF16}, std::pair{DDP_BF16, DDP_F32},
          std::pair{DDP_F32, DDP_BF16}}) {
        const Training base{
            .name = kind[0], .options = kind[1], .value = value, .gradient = gradient};
        const Values want = train(world, base);
        ASSERT_EQ(want, Values(want.size(), want[0]));
        for (const auto& [view, in_step, cap, owners] :
             {std::tuple(true, false, 64, std::vector<ddp_owner>{}),
              std::tuple(false, false, 4096, kMixed), std::tuple(true, false, 1 << 20, kMixed),
              std::tuple(false, false, 1 << 20, kWhole), std::tuple(false, true, 4096, kMixed),
              std::tuple(true, true, 2048, kNoElements),
              std::tuple(false, true, 2048, std::vector<ddp_owner>{})}) {
            if (base.name == "muon" && owners == kMixed) continue;
            if (base.name == "muon" && owners.empty()) continue;
            if (base.name == "lamb" && in_step && owners != kNoElements) continue;
            Training training = base;
            training.shard = true;
            training.view = view;
            training.in_step = in_step;
            training.cap = static_cast<std::uint64_t>(cap);
            training.owners = owners;
            EXPECT_EQ(train(world, training), want)
                << "view " << view << ", in step " << in_step << ", cap " << cap << ", types "
                << value << ", " << gradient;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Optimizers,
    testing::Combine(testing::Values(1, 2, 3, 5),
                     testing::Values(std::array{"sgd",
                                                "lr=0.01,momentum=0.9,nesterov=1,weight_decay=0.1"},
                                     std::array{"adamw", "lr=0.01"}, std::array{"lamb", "lr=0.01"},
                                     std::array{"muon", "lr=0.02"})),
    [](const auto& instance) {
        return std::get<1>(instance.param)[0] + std::to_string(std::get<0>(instance.param));
    });

// A context of three parameters, and an optimizer that subtracts gradients.
struct Small : Model {
    explicit Small(ddp_group* group, std::uint32_t flags = 0, bool view = false)
        : Model(group, {1000, 3, 500}, view, options(flags)) {}
    static ddp_context_options options(std::uint32_t flags) {
        auto result = ddp::Context::defaults();
        result.flags = flags;
        result.bucket_cap_bytes = result.first_bucket_cap_bytes = 2000;
        return result;
    }
    void backward(float value = 1) {
        for (int p = 0; p < count(); ++p) context.wait_value(p);
        for (int p = count(); p-- > 0;) {
            fill(p, value);
            context.grad_ready(p);
        }
        context.finalize();
    }
};

TEST(Optimizer, AppliesEachStepOnce) {
    on_ranks(2, [](int, ddp_group* group) {
        Small model(group);
        model.context.commit();
        ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
        EXPECT_THAT(message_of([&] { optimizer.step(); }),
                    HasSubstr("no step has given means yet"));
        model.backward();
        optimizer.step();
        EXPECT_EQ(model.data[0][4], -5);
        EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("have been applied already"));
        model.context.grad_ready(0);
        EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("is under way"));
        for (int p = 1; p < model.count(); ++p) model.context.grad_ready(p);
        model.context.finalize();
        ddp::Optimizer second(model.context, "adamw");
        second.step();
        EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("have been applied already"));
    });
}

TEST(Optimizer, RefusesWhatIsNotTheMean) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Small model(group, DDP_CONTEXT_SKIP_NONFINITE);
        model.context.commit();
        ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
        model.backward();
        optimizer.step();
        const auto before = model.data;
        EXPECT_THAT(message_of([&] { model.backward(rank == 0 ? INFINITY : 1); }),
                    HasSubstr("not finite"));
        EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("all ranks skipped"));
        model.backward();
        model.context.set_sync(false);
        model.context.grad_ready(0);
        model.context.grad_ready(1);
        model.context.grad_ready(2);
        model.context.finalize();
        EXPECT_THAT(message_of([&] { optimizer.step(); }),
                    HasSubstr("gradients of unsynced steps wait"));
        EXPECT_EQ(model.data, before);
        for (const double scale : {-1.0, double{INFINITY}, std::nan("")})
            EXPECT_THAT(message_of([&] { optimizer.step(scale); }), HasSubstr("scale is "));
    });
}

TEST(Optimizer, ComesBeforeThePublishing) {
    on_ranks(2, [](int, ddp_group* group) {
        Small model(group, DDP_CONTEXT_SHARD, true);
        model.context.commit();
        ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
        model.backward();
        model.context.publish();
        EXPECT_THAT(message_of([&] { optimizer.step(); }),
                    HasSubstr("ddp_publish or ddp_set_update has sent the values"));
        model.backward();
        optimizer.step();
        model.context.publish();
        for (int p = 0; p < model.count(); ++p) model.context.wait_value(p);
        EXPECT_EQ(model.data[0][4], -5);
        EXPECT_EQ(model.data[2][499], -500);
        model.context.set_update([](const ddp_piece* const*, std::size_t) {});
        model.backward();
        EXPECT_THAT(message_of([&] { optimizer.step(); }), HasSubstr("ddp_set_update has sent"));
    });
}

// A difference between ranks is an error before anybody trains on.
TEST(Optimizer, RanksDoTheSame) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Small model(group);
        model.context.commit();
        EXPECT_THAT(
            message_of([&] { ddp::Optimizer(model.context, "sgd", rank == 0 ? "lr=1" : "lr=2"); }),
            HasSubstr("optimizer sgd lr=2"));
        EXPECT_THAT(message_of([&] { ddp::Optimizer(model.context, rank == 0 ? "sgd" : "adamw"); }),
                    HasSubstr("optimizer adamw"));
    });
    for (const bool shard : {false, true})
        for (const std::string how : {"scale", "lr", "step"})
            on_ranks(2, [&](int rank, ddp_group* group) {
                Small model(group, shard ? DDP_CONTEXT_SHARD : 0);
                model.context.commit();
                ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
                model.backward();
                optimizer.step();
                if (shard) model.context.publish();
                model.backward();
                if (rank == 1 && how == "lr") optimizer.set(2, "lr", 0.5);
                if (rank == 0 || how != "step") optimizer.step(rank == 1 && how == "scale" ? 2 : 1);
                EXPECT_THAT(message_of([&] {
                                if (shard) model.context.publish();
                                for (int p = 0; p < model.count(); ++p) model.context.wait_value(p);
                                model.backward();
                            }),
                            HasSubstr("their optimizers have different settings"))
                    << shard << how;
            });
}

TEST(Optimizer, UnusedParametersStayAsTheyAre) {
    for (const std::uint32_t flag : {0u, std::uint32_t{DDP_CONTEXT_SHARD}})
        on_ranks(3, [flag](int rank, ddp_group* group) {
            Small model(group, DDP_CONTEXT_FIND_UNUSED | flag);
            model.context.commit();
            ddp::Optimizer optimizer(model.context, "adamw");
            for (int step = 0; step < 4; ++step) {
                for (int p = 0; p < model.count(); ++p) model.context.wait_value(p);
                for (int p = 0; p < model.count(); ++p) {
                    model.fill(p, 3);
                    if (p == 0 || (p == 2 && rank == 1 && step != 2)) model.context.grad_ready(p);
                }
                model.context.finalize();
                optimizer.step();
                if (flag) model.context.publish();
            }
            std::vector<std::int64_t> want = {4, 0, 3};
            for (const ddp_optimizer_state& state : optimizer.states()) {
                if (std::string(state.name) != "step") continue;
                EXPECT_EQ(*static_cast<std::int64_t*>(state.data),
                          want[static_cast<std::size_t>(state.param)]);
            }
            for (int p = 0; p < model.count() && flag; ++p) model.context.wait_value(p);
            EXPECT_EQ(model.data[1], std::vector<float>(3));
            EXPECT_NEAR(model.data[0][9], -4e-3, 1e-5);
            EXPECT_NEAR(model.data[2][9], -3e-3, 1e-5);
        });
}

// A checkpoint that the program loads, or an average of models.
TEST(Optimizer, AMasterFollowsAValueThatTheProgramChanges) {
    on_ranks(1, [](int, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::vector<std::uint16_t> value(100, to_bf16(1));
        std::vector<float> gradient(100);
        add_param(context, 0, {100}, DDP_BF16, DDP_F32, value.data(), gradient.data());
        context.commit();
        ddp::Optimizer optimizer(context, "sgd", "lr=1");
        const auto step = [&](float number) {
            std::fill(gradient.begin(), gradient.end(), number);
            context.grad_ready(0);
            context.finalize();
            optimizer.step();
        };
        // Each is too little for a bf16 near 1, and three together are not.
        step(0x1p-10f);
        EXPECT_EQ(from_bf16(value[7]), 1);
        step(0x1p-10f);
        EXPECT_EQ(from_bf16(value[7]), 1);
        step(0x1p-10f);
        EXPECT_EQ(from_bf16(value[7]), 1 - 0x1p-8f);
        value[7] = to_bf16(4);
        step(1);
        EXPECT_EQ(from_bf16(value[7]), 3);
        EXPECT_EQ(from_bf16(value[8]), -0x3p-10f);
        const auto states = optimizer.states();
        ASSERT_EQ(states.size(), 2u);
        EXPECT_STREQ(states[0].name, "master");
        EXPECT_EQ(states[0].dtype, DDP_F32);
        EXPECT_EQ(static_cast<float*>(states[0].data)[7], 3);
        EXPECT_EQ(static_cast<float*>(states[0].data)[8], -0x3p-10f);
    });
}

TEST(Optimizer, GoesOnFromASavedState) {
    on_ranks(2, [](int, ddp_group* group) {
        const auto run = [&](bool restart) {
            Small model(group, DDP_CONTEXT_SHARD);
            model.context.commit();
            auto optimizer = std::make_unique<ddp::Optimizer>(model.context, "adamw", "lr=0.1");
            for (int step = 0; step < 6; ++step) {
                if (restart && step == 3) {
                    auto next = std::make_unique<ddp::Optimizer>(model.context, "adamw", "lr=0.1");
                    const auto from = optimizer->states(), to = next->states();
                    EXPECT_EQ(from.size(), to.size());
                    for (std::size_t i = 0; i < from.size(); ++i) {
                        EXPECT_STREQ(from[i].name, to[i].name);
                        EXPECT_EQ(from[i].param, to[i].param);
                        EXPECT_EQ(from[i].first, to[i].first);
                        const std::size_t size = from[i].dtype == DDP_I64 ? 8 : 4;
                        std::memcpy(to[i].data, from[i].data,
                                    size * static_cast<std::size_t>(from[i].count));
                    }
                    optimizer = std::move(next);
                }
                model.backward(static_cast<float>(step));
                optimizer->step();
                model.context.publish();
            }
            for (int p = 0; p < model.count(); ++p) model.context.wait_value(p);
            return model.data;
        };
        EXPECT_EQ(run(true), run(false));
    });
}

TEST(Optimizer, AnotherGroup) {
    on_ranks(2, [](int rank, ddp_group* group) {
        for (const std::uint32_t flag : {0u, std::uint32_t{DDP_CONTEXT_SHARD}}) {
            Small model(group, flag);
            model.context.commit();
            ddp::Optimizer optimizer(model.context, "sgd", "lr=1");
            model.backward();
            BorrowedGroup all(group);
            ddp::Group alone = all.split(rank, 0);
            if (flag) model.context.publish();
            model.context.set_group(alone);
            if (flag) {
                EXPECT_THAT(message_of([&] { optimizer.step(); }),
                            HasSubstr("owns other pieces since ddp_context_set_group"));
                continue;
            }
            EXPECT_THAT(message_of([&] { optimizer.step(); }),
                        HasSubstr("no step has given means yet in this group"));
            model.backward();
            optimizer.step();
            EXPECT_EQ(model.data[0][4], -5);
        }
    });
}

TEST(Optimizer, MuonNeedsWholeMatrices) {
    on_ranks(2, [](int, ddp_group* group) {
        BorrowedGroup borrowed(group);
        auto options = ddp::Context::defaults();
        options.flags = DDP_CONTEXT_SHARD;
        ddp::Context context(borrowed, options);
        std::vector<float> matrix(100), other(100), bias(10);
        context.add_param<float>("bias", {10}, bias.data());
        context.add_param<float>("matrix", {10, 10}, matrix.data());
        context.add_param<float>("embedding", {50, 2}, other.data());
        context.set_owner(1, DDP_OWNER_WHOLE);
        context.commit();
        ddp::Optimizer optimizer(context, "muon");
        const auto backward = [&] {
            for (int p = 0; p < 3; ++p) context.grad_ready(p);
            context.finalize();
        };
        backward();
        EXPECT_THAT(
            message_of([&] { optimizer.step(); }),
            HasSubstr("'embedding' is updated as a whole matrix, and each rank owns elements "
                      "of it; call ddp_set_owner"));
        optimizer.set(2, "adamw", 1);
        optimizer.step();
        context.publish();
        EXPECT_THAT(message_of([&] { optimizer.set(1, "adamw", 1); }),
                    HasSubstr("adamw cannot change after the first step"));
    });
}

TEST(Optimizer, MistakesAreNamed) {
    on_ranks(1, [](int, ddp_group* group) {
        Small model(group);
        const auto refused = [&](const char* name, const char* options) {
            return message_of([&] { ddp::Optimizer(model.context, name, options); });
        };
        EXPECT_THAT(refused("sgd", ""), HasSubstr("call ddp_commit first"));
        model.context.commit();
        EXPECT_THAT(refused("adam", ""), HasSubstr("there is no optimizer 'adam'; there are: sgd"));
        EXPECT_THAT(refused("adamw", "momentum=0.9"),
                    HasSubstr("options of adamw: there is no option 'momentum'; there are: lr"));
        EXPECT_THAT(refused("adamw", "beta1=1"), HasSubstr("beta1 is 1; it must be at least 0 and "
                                                           "less than 1"));
        EXPECT_THAT(refused("sgd", "lr=-1"), HasSubstr("lr: -1 is less than 0"));
        EXPECT_THAT(refused("sgd", "nesterov=1"), HasSubstr("momentum is 0"));
        EXPECT_THAT(refused("sgd", "nesterov=0.5,momentum=0.9"), HasSubstr("whole number"));

        ddp::Optimizer optimizer(model.context, "sgd");
        EXPECT_THAT(message_of([&] { optimizer.set("beta1", 0.9); }),
                    HasSubstr("there is no setting 'beta1'; there are: lr, momentum"));
        EXPECT_THAT(message_of([&] { optimizer.set(3, "lr", 1); }),
                    HasSubstr("parameter 3 does not exist"));
        EXPECT_THAT(message_of([&] { optimizer.set(-2, "lr", 1); }), HasSubstr("parameter -2"));
        EXPECT_THAT(message_of([&] { optimizer.set("lr", std::nan("")); }), HasSubstr("lr is nan"));
        EXPECT_THAT(message_of([&] { optimizer.set("nesterov", 1); }), HasSubstr("momentum is 0"));
        EXPECT_EQ(optimizer.states().size(), 3u);
        optimizer.set("momentum", 0.9);
        EXPECT_EQ(optimizer.states().size(), 6u);
        EXPECT_EQ(ddp_optimizer_state_count(nullptr), -1);
        ddp_optimizer_state state{};
        state.struct_size = sizeof state;
        ddp_error* error = nullptr;
        EXPECT_EQ(ddp_optimizer_state_get(optimizer.get(), 6, &state, &error),
                  DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(take_message(error), HasSubstr("there are 6 states"));
        EXPECT_EQ(ddp_optimizer_state_get(optimizer.get(), 0, nullptr, &error),
                  DDP_ERROR_INVALID_ARGUMENT);
        EXPECT_THAT(take_message(error), HasSubstr("state is NULL"));

        BorrowedGroup borrowed(group);
        ddp::Context freed(borrowed);
        std::vector<float> data(4);
        freed.add_param<float>("w", {4}, data.data());
        freed.commit();
        ddp::Optimizer left(freed, "sgd");
        freed = ddp::Context(borrowed);
        EXPECT_THAT(message_of([&] { left.step(); }),
                    HasSubstr("context of this optimizer was freed"));

        freed.add_param<float>("valueless", {4}, nullptr);
        freed.commit();
        EXPECT_THAT(message_of([&] { ddp::Optimizer(freed, "sgd"); }),
                    HasSubstr("parameter 'valueless' has no data"));
        ddp::Context sparse(borrowed);
        sparse.add_param<float>("s", {2, 2}, data.data(), nullptr, DDP_PARAM_SPARSE);
        sparse.commit();
        EXPECT_THAT(message_of([&] { ddp::Optimizer(sparse, "sgd"); }),
                    HasSubstr("'s' has a sparse or factored gradient"));
        ddp::Context integers(borrowed);
        std::vector<std::int32_t> whole(4);
        integers.add_param<std::int32_t>("i", {4}, whole.data());
        integers.commit();
        EXPECT_THAT(message_of([&] { ddp::Optimizer(integers, "sgd"); }),
                    HasSubstr("'i' is not of a real floating-point type"));
        auto options = ddp::Context::defaults();
        options.flags = DDP_CONTEXT_JOIN;
        ddp::Context joining(borrowed, options);
        joining.add_param<float>("w", {4}, data.data());
        joining.commit();
        EXPECT_THAT(message_of([&] { ddp::Optimizer(joining, "sgd"); }),
                    HasSubstr("DDP_CONTEXT_JOIN"));
    });
}

}  // namespace optimizer_test
