// A model whose parameters are matrices, on one rank, its numbers as f64.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "hooks/any_model.h"
#include "support/model.h"
#include "support/ranks.h"

using Shape = std::vector<std::int64_t>;

class MatrixModel {
public:
    MatrixModel(ddp_group* group, std::vector<Shape> shapes, ddp_dtype dtype = DDP_F32,
                bool view = true, ddp_context_options options = ddp::Context::defaults())
        : shapes_(std::move(shapes)),
          dtype_(dtype),
          view_(view),
          borrowed_(group),
          context(borrowed_, options) {
        for (int i = 0; i < count(); ++i) {
            own_.emplace_back(static_cast<std::size_t>(size(i)) * libddp::dtype_size(dtype) + 1);
            ddp_param_desc desc;
            ddp_param_desc_init(&desc);
            const std::string name = "p" + std::to_string(i);
            const Shape& shape = shapes_[static_cast<std::size_t>(i)];
            desc.name = name.c_str();
            desc.shape = shape.data();
            desc.ndim = static_cast<std::int32_t>(shape.size());
            desc.dtype = dtype;
            desc.grad = view ? nullptr : own_.back().data();
            ddp_param id = -1;
            ddp::detail::call(ddp_register_param, context.get(),
                              static_cast<const ddp_param_desc*>(&desc), &id);
        }
    }

    int count() const { return static_cast<int>(shapes_.size()); }
    std::int64_t size(int i) const {
        std::int64_t size = 1;
        for (const std::int64_t extent : shapes_[static_cast<std::size_t>(i)]) size *= extent;
        return size;
    }
    AnyParam param(int i) const { return {dtype_, size(i)}; }
    std::byte* grad(int i) {
        return view_ ? static_cast<std::byte*>(context.grad_view<void>(i))
                     : own_[static_cast<std::size_t>(i)].data();
    }
    Numbers numbers(int i) { return to_numbers(grad(i), param(i)); }
    Bytes bytes(int i) {
        return {grad(i), grad(i) + static_cast<std::size_t>(size(i)) * libddp::dtype_size(dtype_)};
    }
    Bytes bytes() { return all_bytes(*this); }

    // One step with these gradients, ready from the last to the first, or the other way round.
    void step(const std::function<Numbers(int param)>& gradient, bool forwards = false) {
        context.step_begin();
        for (int n = 0; n < count(); ++n) {
            const int i = forwards ? n : count() - 1 - n;
            const Bytes values = to_bytes(gradient(i), dtype_);
            if (!values.empty()) std::memcpy(grad(i), values.data(), values.size());
            context.grad_ready(i);
        }
        context.finalize();
    }

private:
    std::vector<Shape> shapes_;
    const ddp_dtype dtype_;
    const bool view_;
    std::vector<Bytes> own_;
    BorrowedGroup borrowed_;

public:
    ddp::Context context;
};

// The numbers that each rank saw, to be compared after all have ended.
class Seen {
public:
    void add(int rank, Bytes bytes) {
        const std::lock_guard lock(mutex_);
        auto& all = bytes_[rank];
        all.insert(all.end(), bytes.begin(), bytes.end());
    }
    const Bytes& of(int rank) { return bytes_[rank]; }
    bool same(int world) {
        for (int rank = 1; rank < world; ++rank)
            if (of(rank) != of(0)) return false;
        return !of(0).empty();
    }

private:
    std::mutex mutex_;
    std::map<int, Bytes> bytes_;
};

// The mean or the sum over ranks of what `gradient` gives, in f64.
inline Numbers total_of(int world, bool mean, const std::function<Numbers(int rank)>& gradient) {
    Numbers total = gradient(0);
    for (int rank = 1; rank < world; ++rank) {
        const Numbers other = gradient(rank);
        for (std::size_t k = 0; k < total.size(); ++k) total[k] += other[k];
    }
    if (mean)
        for (double& x : total) x /= world;
    return total;
}

inline double length_of(const Numbers& values) {
    double sum = 0;
    for (const double x : values) sum += x * x;
    return std::sqrt(sum);
}

// |a - b| / |b|, or |a| if b is nothing.
inline double distance(const Numbers& a, const Numbers& b) {
    Numbers difference = a;
    for (std::size_t k = 0; k < a.size(); ++k) difference[k] -= b[k];
    const double length = length_of(b);
    return length_of(difference) / (length > 0 ? length : 1);
}

inline ddp_context_options buckets_of(std::uint64_t bytes,
                                      ddp_reduction reduction = DDP_REDUCTION_MEAN) {
    auto options = ddp::Context::defaults();
    options.bucket_cap_bytes = options.first_bucket_cap_bytes = bytes;
    options.reduction = reduction;
    return options;
}

inline Numbers gradient(const MatrixModel& m, int rank, int step, int param) {
    return some_numbers(m.param(param), rank, step, param);
}
