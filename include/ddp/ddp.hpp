/* ddp.hpp: the C++ face of libddp, header-only, C++17. Each class owns one C handle; failures are exceptions.
 *
 * The semantics are those of the C functions: group.h, context.h, hook.h. Objects move and do not copy. Any C function
 * can be used beside the classes through get(). A hook or continuation may throw: the exception's text becomes the
 * error that Context::finalize throws.
 */
#ifndef DDP_DDP_HPP
#define DDP_DDP_HPP

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ddp.h"

namespace ddp {

/* What a C function reported. */
class Error : public std::runtime_error {
public:
    explicit Error(ddp_status status, const std::string& message = {})
        : std::runtime_error(message.empty() ? ddp_status_name(status) : message), status_(status) {}
    Error(ddp_status status, const ddp_error& e)
        : std::runtime_error(ddp_error_message(&e)),
          status_(status),
          rank_(ddp_error_rank(&e)),
          param_(ddp_error_param(&e)),
          bucket_(ddp_error_bucket(&e)),
          step_(ddp_error_step(&e)) {}

    ddp_status status() const noexcept { return status_; }
    std::int32_t rank() const noexcept { return rank_; }
    std::int32_t param() const noexcept { return param_; }
    std::int32_t bucket() const noexcept { return bucket_; }
    std::int64_t step() const noexcept { return step_; }

private:
    ddp_status status_;
    std::int32_t rank_ = -1, param_ = -1, bucket_ = -1;
    std::int64_t step_ = -1;
};

/* Throws if a C function failed; frees the error. check(ddp_foo(..., &error), error). */
inline void check(ddp_status status, ddp_error* error) {
    if (status == DDP_OK) return;
    std::unique_ptr<ddp_error, decltype(&ddp_error_free)> owned(error, &ddp_error_free);
    if (!owned) throw Error(status);
    throw Error(status, *owned);
}

namespace detail {

/* Calls f(args..., &error) and throws on failure. */
template <class F, class... Args>
void call(F f, Args... args) {
    ddp_error* error = nullptr;
    ddp_status status = f(args..., &error);
    check(status, error);
}

/* The dtype of a C++ type. */
template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
    static constexpr ddp_dtype value = DDP_F32;
};
template <>
struct dtype_of<double> {
    static constexpr ddp_dtype value = DDP_F64;
};
template <>
struct dtype_of<std::int32_t> {
    static constexpr ddp_dtype value = DDP_I32;
};
template <>
struct dtype_of<std::int64_t> {
    static constexpr ddp_dtype value = DDP_I64;
};
template <>
struct dtype_of<std::uint8_t> {
    static constexpr ddp_dtype value = DDP_U8;
};

/* Runs a function of C++ inside a C callback: an exception becomes a status and an error object. */
template <class F>
ddp_status guarded(ddp_error** error, F&& body) noexcept {
    try {
        body();
        return DDP_OK;
    } catch (const Error& e) {
        *error = ddp_error_create(e.status(), e.what());
        return e.status();
    } catch (const std::exception& e) {
        *error = ddp_error_create(DDP_ERROR_CALLBACK, e.what());
    } catch (...) {
        *error = ddp_error_create(DDP_ERROR_CALLBACK, "an exception that is not a std::exception");
    }
    return DDP_ERROR_CALLBACK;
}

template <class T, void (*Free)(T*)>
class Handle {
public:
    Handle() = default;
    explicit Handle(T* handle) : handle_(handle) {}
    T* get() const noexcept { return handle_.get(); }
    T* release() noexcept { return handle_.release(); }
    explicit operator bool() const noexcept { return handle_ != nullptr; }

protected:
    struct Deleter {
        void operator()(T* handle) const { Free(handle); }
    };
    std::unique_ptr<T, Deleter> handle_;
};

}  // namespace detail

/* An operation under way. The destructor lets go of it and does not wait. */
class Work : public detail::Handle<ddp_work, ddp_work_free> {
public:
    using Handle::Handle;

    /* timeout_ms 0: as long as the group allows. */
    void wait(std::int64_t timeout_ms = 0) { detail::call(ddp_work_wait, get(), timeout_ms); }
    bool test() {
        std::int32_t done = 0;
        detail::call(ddp_work_test, get(), &done);
        return done != 0;
    }
    /* fn() runs when this work is done, and may return a Work to wait for next (or an empty one). */
    Work then(std::function<Work()> fn, std::uint32_t flags = 0) {
        auto state = std::make_unique<std::function<Work()>>(std::move(fn));
        ddp_work* out = nullptr;
        detail::call(ddp_work_then, get(), &run, static_cast<void*>(state.get()), &destroy, flags, &out);
        state.release();
        return Work(out);
    }

private:
    static ddp_status run(void* state, ddp_work** next, ddp_error** error) {
        return detail::guarded(error, [&] {
            if (Work work = (*static_cast<std::function<Work()>*>(state))()) *next = work.release();
        });
    }
    static void destroy(void* state) { delete static_cast<std::function<Work()>*>(state); }
};

class Group : public detail::Handle<ddp_group, ddp_group_free> {
public:
    using Handle::Handle;

    /* Joins the group that the environment describes. */
    Group() : Group(defaults()) {}
    explicit Group(const ddp_group_options& options) {
        ddp_group* group = nullptr;
        detail::call(ddp_group_create, &options, &group);
        handle_.reset(group);
    }
    static ddp_group_options defaults() {
        ddp_group_options options;
        ddp_group_options_init(&options);
        return options;
    }

    std::int32_t rank() const { return ddp_group_rank(get()); }
    std::int32_t world_size() const { return ddp_group_world_size(get()); }

    /* In place. T is one of the types with a detail::dtype_of. */
    template <class T>
    Work allreduce(T* data, std::size_t count, ddp_reduce_op op = DDP_SUM) {
        ddp_work* work = nullptr;
        detail::call(ddp_allreduce, get(), static_cast<const void*>(nullptr), static_cast<void*>(data), count,
                     detail::dtype_of<T>::value, op, &work);
        return Work(work);
    }
    template <class T>
    Work broadcast(T* data, std::size_t count, std::int32_t root = 0) {
        ddp_work* work = nullptr;
        detail::call(ddp_broadcast, get(), static_cast<void*>(data), count, detail::dtype_of<T>::value, root, &work);
        return Work(work);
    }
    void barrier() { detail::call(ddp_barrier, get(), static_cast<ddp_work**>(nullptr)); }
    Group split(std::int32_t color, std::int32_t key = 0) {
        ddp_group* out = nullptr;
        detail::call(ddp_group_split, get(), color, key, &out);
        return Group(out);
    }
    void abort(const std::string& reason) { detail::call(ddp_group_abort, get(), reason.c_str()); }
};

class Context : public detail::Handle<ddp_context, ddp_context_free> {
public:
    /* A hook: receives the bucket, starts what it needs, returns the work to wait for (or an empty one). */
    using Hook = std::function<Work(ddp_group* group, ddp_bucket* bucket)>;
    using ReducedCallback = std::function<void(ddp_param param, bool used)>;
    using BufferHook = std::function<void(ddp_group* group, const ddp_tensor* buffers, std::size_t count)>;

    explicit Context(const Group& group) : Context(group, defaults()) {}
    Context(const Group& group, const ddp_context_options& options) {
        ddp_context* context = nullptr;
        detail::call(ddp_context_create, group.get(), &options, &context);
        handle_.reset(context);
    }
    static ddp_context_options defaults() {
        ddp_context_options options;
        ddp_context_options_init(&options);
        return options;
    }

    /* grad nullptr: the gradient lives in its bucket (grad_view). */
    template <class T>
    ddp_param add_param(const std::string& name, const std::vector<std::int64_t>& shape, T* data, T* grad = nullptr,
                        std::uint32_t flags = 0, std::uint32_t uses = 1) {
        ddp_param param = -1;
        ddp_param_desc desc = describe<T>(name, shape, data);
        desc.grad = grad;
        desc.flags = flags;
        desc.uses = uses;
        detail::call(ddp_register_param, get(), &desc, &param);
        return param;
    }
    template <class T>
    void add_buffer(const std::string& name, const std::vector<std::int64_t>& shape, T* data) {
        ddp_param_desc desc = describe<T>(name, shape, data);
        detail::call(ddp_register_buffer, get(), &desc);
    }
    void commit() { detail::call(ddp_commit, get()); }
    void step_begin() { detail::call(ddp_step_begin, get()); }
    void set_sync(bool sync) { detail::call(ddp_set_sync, get(), std::int32_t{sync}); }
    void grad_ready(ddp_param param) { detail::call(ddp_grad_ready, get(), param); }
    void finalize() { detail::call(ddp_finalize, get()); }
    void finalize_async() { detail::call(ddp_finalize_async, get()); }
    void wait(ddp_param param) { detail::call(ddp_wait_param, get(), param); }
    void discard_step() { detail::call(ddp_step_discard, get()); }
    void set_group(const Group& group) { detail::call(ddp_context_set_group, get(), group.get()); }

    /* participation.h */
    void mark_unused(const std::vector<ddp_param>& params) {
        detail::call(ddp_mark_unused, get(), params.data(), params.size());
    }
    bool used(ddp_param param) {
        std::int32_t used = 0;
        detail::call(ddp_param_used, get(), param, &used);
        return used != 0;
    }
    void set_frozen(const std::vector<ddp_param>& params, bool frozen) {
        detail::call(ddp_set_frozen, get(), params.data(), params.size(), std::int32_t{frozen});
    }
    void skip(const std::vector<ddp_param>& params, std::int32_t authority = -1) {
        detail::call(ddp_skip_params, get(), params.data(), params.size(), authority);
    }
    bool skipped(ddp_param param) const { return ddp_skipped(get(), param) == 1; }
    void set_weight(double weight) { detail::call(ddp_set_weight, get(), weight); }
    void join() { detail::call(ddp_join, get()); }

    /* A sparse gradient: the rows that are not zero. */
    template <class T>
    void sparse_grad_ready(ddp_param param, const std::vector<std::int64_t>& indices, const T* values) {
        detail::call(ddp_grad_ready_sparse, get(), param, indices.data(), static_cast<const void*>(values),
                     indices.size());
    }
    /* The reduced one: its rows' indices, and where the rows stand. Valid until the next step ends. */
    template <class T>
    std::pair<std::vector<std::int64_t>, const T*> sparse_gradient(ddp_param param) {
        const std::int64_t* indices = nullptr;
        const void* values = nullptr;
        std::size_t count = 0;
        detail::call(ddp_sparse_gradient, get(), param, &indices, &values, &count);
        return {std::vector<std::int64_t>(indices, indices + count), static_cast<const T*>(values)};
    }

    /* plan.h, stats.h */
    void request_rebuild() { detail::call(ddp_request_rebuild, get()); }
    std::string plan() {
        char* text = nullptr;
        detail::call(ddp_plan_save, get(), &text);
        const std::unique_ptr<char, decltype(&ddp_text_free)> owner(text, &ddp_text_free);
        return text;
    }
    void adopt_plan(const std::string& text) { detail::call(ddp_plan_adopt, get(), text.c_str()); }
    ddp_stats stats() {
        ddp_stats stats{};
        stats.struct_size = sizeof stats;
        detail::call(ddp_stats_get, get(), &stats);
        return stats;
    }
    void abort(const std::string& reason) { detail::call(ddp_context_abort, get(), reason.c_str()); }

    template <class T>
    T* grad_view(ddp_param param) {
        void* view = nullptr;
        detail::call(ddp_grad_view, get(), param, &view);
        return static_cast<T*>(view);
    }
    std::int64_t layout_generation() const { return ddp_layout_generation(get()); }

    void set_comm_hook(Hook hook) {
        auto state = std::make_unique<Hook>(std::move(hook));
        detail::call(ddp_set_comm_hook, get(), &run_hook, static_cast<void*>(state.get()), &destroy_hook);
        state.release();
    }
    /* Called when a parameter's gradient is final; used: whether any rank used it. */
    void set_reduced_callback(ReducedCallback callback) {
        auto state = std::make_unique<ReducedCallback>(std::move(callback));
        detail::call(ddp_set_reduced_callback, get(), &run_reduced, static_cast<void*>(state.get()), &destroy_reduced);
        state.release();
    }
    /* Instead of sending rank 0's buffers. */
    void set_buffer_hook(BufferHook hook) {
        auto state = std::make_unique<BufferHook>(std::move(hook));
        detail::call(ddp_set_buffer_hook, get(), &run_buffer_hook, static_cast<void*>(state.get()),
                     &destroy_buffer_hook);
        state.release();
    }
    void use_default_hook() {
        detail::call(ddp_set_comm_hook, get(), static_cast<ddp_comm_hook_fn>(nullptr), static_cast<void*>(nullptr),
                     static_cast<void (*)(void*)>(nullptr));
    }

    /* no_sync as a scope: steps that end inside it do not communicate. Must not be open across the middle of a step. */
    class NoSync {
    public:
        explicit NoSync(Context& context) : context_(context.get()) {
            detail::call(ddp_set_sync, context_, std::int32_t{0});
        }
        ~NoSync() { ddp_set_sync(context_, 1, nullptr); }
        NoSync(const NoSync&) = delete;
        NoSync& operator=(const NoSync&) = delete;

    private:
        ddp_context* context_;
    };

private:
    template <class T>
    static ddp_param_desc describe(const std::string& name, const std::vector<std::int64_t>& shape, T* data) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name.c_str();
        desc.shape = shape.data();
        desc.ndim = static_cast<std::int32_t>(shape.size());
        desc.dtype = detail::dtype_of<T>::value;
        desc.data = data;
        return desc;
    }
    static ddp_status run_hook(void* state, ddp_group* group, ddp_bucket* bucket, ddp_work** work, ddp_error** error) {
        return detail::guarded(error, [&] {
            if (Work result = (*static_cast<Hook*>(state))(group, bucket)) *work = result.release();
        });
    }
    static void destroy_hook(void* state) { delete static_cast<Hook*>(state); }
    static ddp_status run_reduced(void* state, ddp_param param, std::int32_t used, ddp_error** error) {
        return detail::guarded(error, [&] { (*static_cast<ReducedCallback*>(state))(param, used != 0); });
    }
    static void destroy_reduced(void* state) { delete static_cast<ReducedCallback*>(state); }
    static ddp_status run_buffer_hook(void* state, ddp_group* group, const ddp_tensor* buffers, std::size_t count,
                                      ddp_error** error) {
        return detail::guarded(error, [&] { (*static_cast<BufferHook*>(state))(group, buffers, count); });
    }
    static void destroy_buffer_hook(void* state) { delete static_cast<BufferHook*>(state); }
};

}  // namespace ddp

#endif  // DDP_DDP_HPP
