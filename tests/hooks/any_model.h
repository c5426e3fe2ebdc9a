// A model with parameters of any dtype on one rank, its numbers as f64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "support/model.h"
#include "support/ranks.h"

using Numbers = std::vector<double>;
using Bytes = std::vector<std::byte>;

struct AnyParam {
    ddp_dtype dtype;
    std::int64_t count;
};

// All gradients of a model, one after another.
template <class Model>
Bytes all_bytes(Model& model) {
    Bytes all;
    for (int i = 0; i < model.count(); ++i) {
        const Bytes one = model.bytes(i);
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

// How many numbers are in `count` elements: two in a complex one.
inline std::size_t numbers_in(const AnyParam& p) {
    return static_cast<std::size_t>(p.count) * (libddp::is_complex(p.dtype) ? 2 : 1);
}

template <class T>
void copy_numbers(const Numbers& from, void* to) {
    for (std::size_t i = 0; i < from.size(); ++i) static_cast<T*>(to)[i] = static_cast<T>(from[i]);
}
template <class T>
Numbers copy_numbers(const void* from, std::size_t count) {
    return Numbers(static_cast<const T*>(from), static_cast<const T*>(from) + count);
}

inline Bytes to_bytes(const Numbers& values, ddp_dtype dtype) {
    const std::size_t elements = values.size() / (libddp::is_complex(dtype) ? 2 : 1);
    Bytes bytes(elements * libddp::dtype_size(dtype));
    switch (dtype) {
        case DDP_I32:
            copy_numbers<std::int32_t>(values, bytes.data());
            break;
        case DDP_I64:
            copy_numbers<std::int64_t>(values, bytes.data());
            break;
        case DDP_U8:
            copy_numbers<std::uint8_t>(values, bytes.data());
            break;
        default:
            libddp::cpu::convert(bytes.data(), dtype, values.data(),
                                 libddp::is_complex(dtype) ? DDP_C128 : DDP_F64, elements);
    }
    return bytes;
}

inline Numbers to_numbers(const void* bytes, const AnyParam& p) {
    switch (p.dtype) {
        case DDP_I32:
            return copy_numbers<std::int32_t>(bytes, numbers_in(p));
        case DDP_I64:
            return copy_numbers<std::int64_t>(bytes, numbers_in(p));
        case DDP_U8:
            return copy_numbers<std::uint8_t>(bytes, numbers_in(p));
        default:
            Numbers values(numbers_in(p));
            libddp::cpu::convert(values.data(), libddp::is_complex(p.dtype) ? DDP_C128 : DDP_F64,
                                 bytes, p.dtype, static_cast<std::size_t>(p.count));
            return values;
    }
}

class AnyModel {
public:
    AnyModel(ddp_group* group, std::vector<AnyParam> params, bool view,
             ddp_context_options options = ddp::Context::defaults())
        : params_(std::move(params)), view_(view), borrowed_(group), context(borrowed_, options) {
        for (std::size_t i = 0; i < params_.size(); ++i) {
            const auto& p = params_[i];
            own_.emplace_back(static_cast<std::size_t>(p.count) * libddp::dtype_size(p.dtype) + 1);
            ddp_param_desc desc;
            ddp_param_desc_init(&desc);
            std::string name = std::to_string(i);
            name.insert(0, 1, 'p');
            desc.name = name.c_str();
            desc.shape = &p.count;
            desc.ndim = 1;
            desc.dtype = p.dtype;
            desc.grad = view ? nullptr : own_.back().data();
            ddp_param id = -1;
            ddp::detail::call(ddp_register_param, context.get(),
                              static_cast<const ddp_param_desc*>(&desc), &id);
        }
    }

    int count() const { return static_cast<int>(params_.size()); }
    const AnyParam& param(int i) const { return params_[static_cast<std::size_t>(i)]; }

    std::byte* grad(int i) {
        return view_ ? static_cast<std::byte*>(context.grad_view<void>(i))
                     : own_[static_cast<std::size_t>(i)].data();
    }
    Bytes bytes(int i) {
        const auto& p = param(i);
        return {grad(i), grad(i) + static_cast<std::size_t>(p.count) * libddp::dtype_size(p.dtype)};
    }
    Numbers numbers(int i) { return to_numbers(grad(i), param(i)); }
    Bytes bytes() { return all_bytes(*this); }

    // One step with these gradients, ready from the last to the first, or the other way round.
    void step(const std::function<Numbers(int param)>& gradient, bool forwards = false) {
        context.step_begin();
        for (int n = 0; n < count(); ++n) {
            const int i = forwards ? n : count() - 1 - n;
            const Bytes values = to_bytes(gradient(i), param(i).dtype);
            if (!values.empty()) std::memcpy(grad(i), values.data(), values.size());
            context.grad_ready(i);
        }
        context.finalize();
    }

    // The bytes that this rank has given to collectives since the hook was installed.
    std::uint64_t sent_bytes() {
        ddp_stats stats{};
        stats.struct_size = sizeof stats;
        ddp::detail::call(ddp_stats_get, context.get(), &stats);
        return stats.hook_bytes_out;
    }

    // The hook's state for a model's only parameter on this rank: the only array, at the end of the
    // file.
    Numbers kept() {
        const ddp_dtype dtype = param(0).dtype == DDP_F64 ? DDP_F64 : DDP_F32;
        const auto file = context.save_hook_state();
        const std::size_t size =
            static_cast<std::size_t>(param(0).count) * libddp::dtype_size(dtype);
        Bytes array(size);
        std::memcpy(array.data(), file.data() + (file.size() - size), size);
        return to_numbers(array.data(), {dtype, param(0).count});
    }

private:
    std::vector<AnyParam> params_;
    const bool view_;
    std::vector<Bytes> own_;
    BorrowedGroup borrowed_;

public:
    ddp::Context context;
};

// Numbers of a gradient: of many magnitudes and both signs, such as every dtype holds; for integers
// whole and small.
inline Numbers some_numbers(const AnyParam& p, int rank, int step, int seed = 0) {
    Numbers values(numbers_in(p));
    const bool whole = p.dtype == DDP_I32 || p.dtype == DDP_I64 || p.dtype == DDP_U8;
    for (std::size_t k = 0; k < values.size(); ++k) {
        const double wave = std::sin(static_cast<double>(1 + rank * 7 + step * 3 + seed * 11) *
                                     (static_cast<double>(k % 1000) + 1.5));
        values[k] =
            whole ? std::floor(10 + 10 * wave) : std::ldexp(wave, static_cast<int>(k % 7) - 3);
    }
    // As the dtype holds them.
    const Bytes bytes = to_bytes(values, p.dtype);
    return to_numbers(bytes.data(), p);
}

// The relative error of one rounding, and a little more.
inline double rounding_of(ddp_dtype dtype) {
    return dtype == DDP_F16    ? 0x1p-11
           : dtype == DDP_BF16 ? 0x1p-8
           : dtype == DDP_F64  ? 0x1p-52
                               : 0x1p-23;
}

// The promise of error feedback after `steps` steps of one parameter: nothing that a rank gave may
// be lost. The sum of everything that was applied, and of the mean of the ranks' error feedback, is
// the sum of the true means. Returns the most error feedback.
inline double expect_nothing_is_lost(ddp_dtype dtype, int world, bool varying, int steps,
                                     const char* hook, const char* options) {
    std::vector<Numbers> kept(static_cast<std::size_t>(world)),
        applied(static_cast<std::size_t>(world), Numbers(500));
    Numbers wanted(500), rounding(500);
    on_ranks({world}, [&](int rank, ddp_group* group) {
        const auto r = static_cast<std::size_t>(rank);
        AnyModel m(group, {{dtype, 500}}, true);
        m.context.use_hook(hook, options);
        m.context.commit();
        for (int s = 0; s < steps; ++s) {
            m.step([&](int i) { return some_numbers(m.param(i), rank, varying ? s : 0); });
            const Numbers result = m.numbers(0);
            for (std::size_t k = 0; k < result.size(); ++k) {
                applied[r][k] += result[k];
                if (rank == 0) rounding[k] += std::fabs(result[k]) * rounding_of(dtype);
            }
        }
        kept[r] = m.kept();
    });
    for (int s = 0; s < steps; ++s)
        for (int r = 0; r < world; ++r) {
            const Numbers x = some_numbers({dtype, 500}, r, varying ? s : 0);
            for (std::size_t k = 0; k < x.size(); ++k) wanted[k] += x[k] / world;
        }
    double most = 0;
    for (std::size_t k = 0; k < wanted.size(); ++k) {
        double mean = 0;
        for (const auto& one : kept) {
            mean += one[k] / world;
            most = std::max(most, std::fabs(one[k]));
        }
        for (const auto& one : applied) EXPECT_EQ(one[k], applied[0][k]) << "ranks differ";
        // Results are rounded, and so is what is kept, in every step.
        rounding[k] += steps * (100 + std::fabs(wanted[k])) *
                       rounding_of(dtype == DDP_F64 ? DDP_F64 : DDP_F32);
        EXPECT_NEAR(applied[0][k] + mean, wanted[k], rounding[k])
            << "element " << k << " after " << steps << " steps";
    }
    return most;
}
