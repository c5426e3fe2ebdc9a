// The parameters of a model on one rank: values and gradients in memory of their own (copy) or in
// buckets (view).
#pragma once

#include <cstring>
#include <functional>
#include <numeric>

#include "equivalence/equivalence.h"
#include "support/model.h"

namespace equivalence {

// A binary16 number as its bits.
struct Half {
    std::uint16_t bits = 0;
};

template <class T>
constexpr ddp_dtype dtype_of = ddp::dtype_of<T>::value;
template <>
inline constexpr ddp_dtype dtype_of<Half> = DDP_F16;
template <>
inline constexpr ddp_dtype dtype_of<std::complex<float>> = DDP_C64;
template <>
inline constexpr ddp_dtype dtype_of<std::complex<double>> = DDP_C128;

using Shape = std::vector<std::int64_t>;

inline std::size_t count_of(const Shape& shape) {
    return static_cast<std::size_t>(
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

template <class T>
class Replica {
public:
    Replica(ddp_group* group, bool view, ddp_context_options options = small_buckets())
        : borrowed(group), context(borrowed, options), view_(view) {}

    ddp_param add(const std::string& name, const Shape& shape, std::vector<T> initial = {},
                  std::uint32_t flags = 0, std::uint32_t uses = 1) {
        initial.resize(count_of(shape));
        values.push_back(std::move(initial));
        const bool own = (!view_ || (flags & DDP_PARAM_IGNORED)) && !(flags & DDP_PARAM_SPARSE);
        // never null: that would be a view
        own_.emplace_back(own ? std::max<std::size_t>(count_of(shape), 1) : 0);
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name.c_str();
        desc.shape = shape.data();
        desc.ndim = static_cast<std::int32_t>(shape.size());
        desc.dtype = dtype_of<T>;
        desc.data = values.back().data();
        desc.grad = own ? own_.back().data() : nullptr;
        desc.flags = flags;
        desc.uses = uses;
        ddp_param param = -1;
        ddp::detail::call(ddp_register_param, context.get(),
                          static_cast<const ddp_param_desc*>(&desc), &param);
        own_grad_.push_back(own);
        return param;
    }

    ddp_param count() const { return static_cast<ddp_param>(values.size()); }
    std::size_t size(ddp_param i) const { return values[static_cast<std::size_t>(i)].size(); }
    // Where the program writes and reads the gradient. Views may move in step_begin.
    T* grad(ddp_param i) {
        const auto at = static_cast<std::size_t>(i);
        if (own_grad_[at]) return own_[at].data();
        void* view = nullptr;
        ddp::detail::call(ddp_grad_view, context.get(), i, &view);
        return static_cast<T*>(view);
    }
    std::vector<T*> grads() {
        std::vector<T*> result;
        for (ddp_param i = 0; i < count(); ++i) result.push_back(grad(i));
        return result;
    }
    void set(ddp_param i, const T& value) { std::fill_n(grad(i), size(i), value); }
    void zero_grads() {
        for (ddp_param i = 0; i < count(); ++i) set(i, T{});
    }
    // As a backward pass would: the last layer first.
    void all_ready() {
        for (ddp_param i = count() - 1; i >= 0; --i) context.grad_ready(i);
    }
    bool holds(ddp_param i, const T& value) {
        return std::all_of(grad(i), grad(i) + size(i), [&](const T& x) { return x == value; });
    }

    BorrowedGroup borrowed;
    ddp::Context context;
    std::vector<std::vector<T>> values;

private:
    bool view_;
    std::vector<std::vector<T>> own_;
    std::vector<bool> own_grad_;
};

}  // namespace equivalence
