// ddp_param_desc.grad_dtype: gradients of another type than their parameters' values.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "capi/lone_context.h"
#include "ddp/ddp.hpp"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "support/error_of.h"
#include "support/model.h"
#include "support/ranks.h"

namespace grad_dtype_test {

using ddp::detail::call;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kCount = 1000;

std::vector<double> numbers(const void* bytes, ddp_dtype dtype) {
    std::vector<double> result(kCount * (libddp::is_complex(dtype) ? 2 : 1));
    libddp::cpu::convert(result.data(), libddp::is_complex(dtype) ? DDP_C128 : DDP_F64, bytes,
                         dtype, kCount);
    return result;
}

Bytes bytes_of(const std::vector<double>& values, ddp_dtype dtype) {
    Bytes result(kCount * libddp::dtype_size(dtype));
    libddp::cpu::convert(result.data(), dtype, values.data(),
                         libddp::is_complex(dtype) ? DDP_C128 : DDP_F64, kCount);
    return result;
}

// A number of its own for each element, with more digits than 16 bits hold.
std::vector<double> numbers_of(int rank, std::size_t parts) {
    std::vector<double> result(kCount * parts);
    for (std::size_t i = 0; i < result.size(); ++i)
        result[i] = std::sin(static_cast<double>(i + 1) * (rank + 1.3));
    return result;
}

// For a value in bf16 with a gradient in f32.
ddp_param_desc desc_of(const char* name, const std::vector<std::int64_t>& shape, void* data,
                       std::uint32_t flags = 0) {
    ddp_param_desc desc;
    ddp_param_desc_init(&desc);
    desc.name = name;
    desc.shape = shape.data();
    desc.ndim = static_cast<std::int32_t>(shape.size());
    desc.dtype = DDP_BF16;
    desc.grad_dtype = DDP_F32;
    desc.data = data;
    desc.flags = flags;
    return desc;
}

ddp_param registered(ddp::Context& context, const ddp_param_desc& desc) {
    ddp_param id = -1;
    call(ddp_register_param, context.get(), &desc, &id);
    return id;
}

// Half the distance from 1 to the next number of the type.
double rounding_of(ddp_dtype dtype) {
    switch (dtype) {
        case DDP_F16:
            return 0x1p-11;
        case DDP_BF16:
            return 0x1p-8;
        case DDP_F32:
        case DDP_C64:
            return 0x1p-24;
        default:
            return 0x1p-53;
    }
}

enum class Home { kCopy, kView, kInPlace };

struct Kind {
    ddp_dtype value, gradient;
    Home home;
};
const std::vector<Kind> kKinds = {
    {DDP_BF16, DDP_F32, Home::kCopy},   {DDP_BF16, DDP_F32, Home::kView},
    {DDP_F16, DDP_F32, Home::kInPlace}, {DDP_BF16, DDP_F64, Home::kView},
    {DDP_F32, DDP_BF16, Home::kCopy},   {DDP_BF16, DDP_BF16, Home::kView},
    {DDP_C64, DDP_C128, Home::kCopy},   {DDP_F64, DDP_F32, Home::kView}};

// One parameter of each kind.
class Model {
public:
    explicit Model(ddp_group* group, std::uint32_t flags = 0)
        : borrowed_(group), context(borrowed_, options(flags)) {
        for (const Kind& kind : kKinds) {
            const auto rank = ddp_group_rank(group);
            data.push_back(bytes_of(numbers_of(rank, parts(kind)), kind.value));
            own_.emplace_back(kCount * libddp::dtype_size(kind.gradient));
            std::string name = std::to_string(data.size());
            name.insert(0, 1, 'p');
            const std::vector<std::int64_t> shape{kCount};
            auto desc = desc_of(name.c_str(), shape, data.back().data());
            desc.dtype = kind.value;
            desc.grad_dtype = kind.gradient;
            desc.grad = kind.home == Home::kView ? nullptr : own_.back().data();
            if (kind.home == Home::kInPlace) desc.flags = DDP_PARAM_IN_PLACE;
            registered(context, desc);
        }
        context.commit();
    }

    static std::size_t parts(const Kind& kind) { return libddp::is_complex(kind.value) ? 2 : 1; }
    std::byte* gradient(std::size_t i) {
        return kKinds[i].home == Home::kView
                   ? static_cast<std::byte*>(context.grad_view<void>(static_cast<ddp_param>(i)))
                   : own_[i].data();
    }
    void fill(std::size_t i, int rank) {
        const Bytes bytes = bytes_of(numbers_of(rank, parts(kKinds[i])), kKinds[i].gradient);
        std::memcpy(gradient(i), bytes.data(), bytes.size());
    }
    void step(int rank) {
        context.step_begin();
        for (std::size_t i = kKinds.size(); i-- > 0;) {
            fill(i, rank);
            context.grad_ready(static_cast<ddp_param>(i));
        }
        context.finalize();
    }
    // Each gradient is the mean over these ranks: of the inputs as the gradient's type holds them,
    // with no more error than the sum in f32 (f64 for f64) and one rounding have.
    void expect_mean(int ranks, int world) {
        for (std::size_t i = 0; i < kKinds.size(); ++i) {
            const Kind& kind = kKinds[i];
            std::vector<double> sum(kCount * parts(kind));
            for (int rank = 0; rank < ranks; ++rank) {
                const auto mine = numbers(
                    bytes_of(numbers_of(rank, parts(kind)), kind.gradient).data(), kind.gradient);
                for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += mine[k];
            }
            const auto got = numbers(gradient(i), kind.gradient);
            const double step =
                rounding_of(kind.gradient) + world * std::min(0x1p-24, rounding_of(kind.gradient));
            for (std::size_t k = 0; k < sum.size(); ++k)
                ASSERT_NEAR(got[k], sum[k] / world, 2 * step) << "p" << i + 1 << " " << k;
        }
    }

private:
    static ddp_context_options options(std::uint32_t flags) {
        auto result = ddp::Context::defaults();
        result.flags = flags;
        result.bucket_cap_bytes = result.first_bucket_cap_bytes = 5000;
        return result;
    }

    BorrowedGroup borrowed_;
    std::vector<Bytes> own_;

public:
    std::vector<Bytes> data;
    ddp::Context context;
};

TEST(GradDtype, MeansAreThoseOfTheGradientsType) {
    for (int world = 1; world <= 4; ++world)
        for (const std::uint32_t flags :
             {0u, std::uint32_t{DDP_CONTEXT_CHECK}, std::uint32_t{DDP_CONTEXT_REFUSE_NONFINITE}}) {
            // alone, a gradient is its own mean, which a check doubts
            if (world == 1 && flags == DDP_CONTEXT_CHECK) continue;
            on_ranks(world, [&](int rank, ddp_group* group) {
                Model model(group, flags);
                for (std::size_t i = 0; i < kKinds.size(); ++i)
                    EXPECT_EQ(model.data[i],
                              bytes_of(numbers_of(0, Model::parts(kKinds[i])), kKinds[i].value));
                for (int step = 0; step < 3; ++step) {  // with a rebuild
                    model.step(rank);
                    model.expect_mean(world, world);
                }
            });
        }
}

TEST(GradDtype, HooksSeeBoth) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Model model(group);
        int seen = 0;
        model.context.set_comm_hook([&](ddp_group* g, ddp_bucket* bucket) {
            for (std::int32_t i = 0; i < ddp_bucket_param_count(bucket); ++i, ++seen) {
                ddp_tensor gradient{}, value{};
                gradient.struct_size = value.struct_size = sizeof(ddp_tensor);
                call(ddp_bucket_gradient, bucket, i, &gradient);
                call(ddp_bucket_parameter, bucket, i, &value);
                const Kind& kind = kKinds[static_cast<std::size_t>(gradient.param)];
                EXPECT_EQ(gradient.dtype, kind.gradient);
                EXPECT_EQ(ddp_bucket_dtype(bucket), kind.gradient);
                EXPECT_EQ(value.dtype, kind.value);
                EXPECT_EQ(value.data, model.data[static_cast<std::size_t>(value.param)].data());
            }
            call(ddp_allreduce, g, static_cast<const void*>(nullptr), ddp_bucket_buffer(bucket),
                 ddp_bucket_count(bucket), ddp_bucket_dtype(bucket), ddp_bucket_op(bucket),
                 static_cast<ddp_work**>(nullptr));
            return ddp::Work();
        });
        model.step(rank);
        EXPECT_EQ(seen, static_cast<int>(kKinds.size()));
        model.expect_mean(2, 2);
    });
}

TEST(GradDtype, AnAverageOfValuesIsInTheirType) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Model model(group, DDP_CONTEXT_NO_INITIAL_BROADCAST);
        model.step(rank);
        call(ddp_average_parameters, model.context.get(), static_cast<ddp_group*>(nullptr));
        for (std::size_t i = 0; i < kKinds.size(); ++i) {
            const Kind& kind = kKinds[i];
            const auto of = [&](int r) {
                return numbers(bytes_of(numbers_of(r, Model::parts(kind)), kind.value).data(),
                               kind.value);
            };
            const auto first = of(0), second = of(1),
                       got = numbers(model.data[i].data(), kind.value);
            for (std::size_t k = 0; k < got.size(); ++k)
                ASSERT_NEAR(got[k], (first[k] + second[k]) / 2, rounding_of(kind.value)) << i;
        }
        model.expect_mean(2, 2);
    });
}

// Rank 1 has no inputs: it takes part with gradients of zero.
TEST(GradDtype, Join) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Model model(group, DDP_CONTEXT_JOIN);
        if (rank == 0) {
            model.step(0);
            model.expect_mean(1, 2);
        }
        model.context.join();
    });
}

TEST(GradDtype, Put) {
    on_ranks(2, [](int rank, ddp_group* group) {
        Model model(group);
        model.context.step_begin();
        for (std::size_t i = 0; i < kKinds.size(); ++i) {
            Bytes given = bytes_of(numbers_of(rank, Model::parts(kKinds[i])), kKinds[i].gradient);
            model.context.put(static_cast<ddp_param>(i), given.data());
        }
        model.context.finalize();
        model.expect_mean(2, 2);
    });
}

// A sum in bf16 would lose what the other ranks add.
TEST(GradDtype, TheSumIsInF32) {
    on_ranks({4, "threads-plain"}, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::uint16_t value = 0;
        const ddp_param id = registered(context, desc_of("w", {}, &value));
        context.commit();
        *context.grad_view<float>(id) = rank == 0 ? 4.0F : 0.0078125F;
        context.grad_ready(id);
        context.finalize();
        EXPECT_EQ(*context.grad_view<float>(id), (4.0F + 3 * 0.0078125F) / 4);
    });
}

TEST(GradDtype, RowsAndFactors) {
    on_ranks(2, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::vector<std::uint16_t> rows(8), matrix(6);
        const ddp_param sparse =
            registered(context, desc_of("rows", {4, 2}, rows.data(), DDP_PARAM_SPARSE));
        const ddp_param factored =
            registered(context, desc_of("matrix", {2, 3}, matrix.data(), DDP_PARAM_FACTORED));
        context.commit();
        const std::int64_t index = 3;
        const float values[] = {1.0009765625F + static_cast<float>(rank), 2};
        call(ddp_grad_ready_sparse, context.get(), sparse, &index, static_cast<const void*>(values),
             std::size_t{1});
        const float left[] = {1, static_cast<float>(rank)}, right[] = {1.0009765625F, 2, 3};
        call(ddp_grad_ready_factors, context.get(), factored, static_cast<const void*>(left),
             static_cast<const void*>(right), std::size_t{1});
        context.finalize();
        const std::int64_t* indices = nullptr;
        const void* got = nullptr;
        std::size_t count = 0;
        call(ddp_sparse_gradient, context.get(), sparse, &indices, &got, &count);
        ASSERT_EQ(count, 1u);
        EXPECT_EQ(static_cast<const float*>(got)[0], 1.5009765625F);
        const float* product = context.grad_view<float>(factored);
        EXPECT_EQ(product[0], 1.0009765625F);
        EXPECT_EQ(product[3], 1.0009765625F / 2);
    });
}

TEST(GradDtype, SlicesOfBoth) {
    on_ranks(2, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        std::vector<std::uint16_t> values(6, static_cast<std::uint16_t>(0x3f80 + rank));
        std::vector<float> gradients(6);
        const std::vector<std::int64_t> shape{3, 2};
        auto desc = desc_of("layers", shape, values.data());
        desc.grad = gradients.data();
        ddp_param first = -1;
        call(ddp_register_slices, context.get(), &desc, &first);
        context.commit();
        EXPECT_THAT(values, testing::Each(0x3f80));
        std::iota(gradients.begin(), gradients.end(), static_cast<float>(rank));
        for (ddp_param slice = first; slice < first + 3; ++slice) context.grad_ready(slice);
        context.finalize();
        for (std::size_t i = 0; i < gradients.size(); ++i)
            EXPECT_EQ(gradients[i], static_cast<float>(i) + 0.5F);
    });
}

TEST(GradDtype, RanksThatDisagreeLearnOfWhich) {
    on_ranks(2, [](int rank, ddp_group* group) {
        BorrowedGroup borrowed(group);
        ddp::Context context(borrowed);
        float value = 0;
        double own = 0;
        context.add_param("v", {}, &value, &own);
        auto desc = desc_of("w", {}, nullptr);
        if (rank == 0) desc.grad_dtype = 0;
        registered(context, desc);
        const ddp::Error error = error_of([&] { context.commit(); });
        EXPECT_EQ(error.status(), DDP_ERROR_MISMATCH);
        EXPECT_THAT(error.what(), HasSubstr("'w' bf16[]"));
        EXPECT_THAT(error.what(), HasSubstr("with gradients f32"));
    });
}

class BadGradDtype : public LoneContext {
protected:
    auto registering(ddp_dtype dtype, ddp_dtype gradient, void* grad = nullptr) {
        return [=, this](ddp_error** e) {
            auto d = desc("p");
            d.dtype = dtype;
            d.grad_dtype = gradient;
            d.grad = grad;
            return ddp_register_param(context, &d, &param, e);
        };
    }
    Untouched<ddp_param> param;
    alignas(64) std::byte memory[64] = {};
};

TEST_F(BadGradDtype, IsRefused) {
    auto buffer = desc("b");
    buffer.data = memory;
    buffer.grad_dtype = DDP_F32;
    expect_refused({
        {"unknown", DDP_ERROR_INVALID_ARGUMENT, {"'p'", "grad_dtype 77"}, registering(DDP_F32, 77)},
        {"integers",
         DDP_ERROR_UNSUPPORTED,
         {"'p'", "grad_dtype is f32", "dtype is i32"},
         registering(DDP_I32, DDP_F32)},
        {"real of complex",
         DDP_ERROR_UNSUPPORTED,
         {"'p'", "grad_dtype is f32", "dtype is c64"},
         registering(DDP_C64, DDP_F32)},
        {"alignment",
         DDP_ERROR_INVALID_ARGUMENT,
         {"'p'", "grad is not aligned", "f32"},
         registering(DDP_BF16, DDP_F32, memory + 2)},
        {"buffer",
         DDP_ERROR_INVALID_ARGUMENT,
         {"'b'", "grad_dtype is f32", "no gradient"},
         calling(ddp_register_buffer, context, &buffer)},
    });
    commit();
    expect_good_step({1, 0});
}

}  // namespace grad_dtype_test
