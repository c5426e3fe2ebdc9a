/* context.hpp: contexts in C++. See ddp.hpp. */
#ifndef DDP_CONTEXT_HPP
#define DDP_CONTEXT_HPP

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "group.hpp"

namespace ddp {

class Context : public detail::Handle<ddp_context, ddp_context_free> {
public:
    /* A hook: receives the bucket, starts what it needs, returns the work to wait for (or an empty
     * one). */
    using Hook = std::function<Work(ddp_group* group, ddp_bucket* bucket)>;

    explicit Context(const Group& group) : Context(group, defaults()) {}
    Context(const Group& group, const ddp_context_options& options)
        : Context(group.get(), options) {}
    /* A context of a group that something else owns, such as an Elastic. */
    explicit Context(ddp_group* group) : Context(group, defaults()) {}
    Context(ddp_group* group, const ddp_context_options& options) {
        ddp_context* context = nullptr;
        detail::call(ddp_context_create, group, &options, &context);
        handle_.reset(context);
    }
    static ddp_context_options defaults() {
        ddp_context_options options;
        ddp_context_options_init(&options);
        return options;
    }

    /* grad nullptr: the gradient lives in its bucket (grad_view). */
    template <class T>
    ddp_param add_param(const std::string& name, const std::vector<std::int64_t>& shape, T* data,
                        T* grad = nullptr, std::uint32_t flags = 0, std::uint32_t uses = 1) {
        return add_param(name, shape, data, grad, ddp_device{DDP_DEVICE_CPU, 0}, flags, uses);
    }
    /* On a device: device.h. */
    template <class T>
    ddp_param add_param(const std::string& name, const std::vector<std::int64_t>& shape, T* data,
                        T* grad, ddp_device device, std::uint32_t flags = 0,
                        std::uint32_t uses = 1) {
        return add(ddp_register_param, describe<T>(name, shape, data, grad, device, flags, uses));
    }
    /* With a gradient of another type: ddp_param_desc.grad_dtype. */
    template <class T, class G>
    ddp_param add_param(const std::string& name, const std::vector<std::int64_t>& shape, T* data,
                        G* grad, ddp_device device = {DDP_DEVICE_CPU, 0}, std::uint32_t flags = 0,
                        std::uint32_t uses = 1) {
        ddp_param_desc desc =
            describe<T>(name, shape, data, static_cast<T*>(nullptr), device, flags, uses);
        desc.grad = grad;
        desc.grad_dtype = dtype_of<G>::value;
        return add(ddp_register_param, desc);
    }
    template <class T>
    void add_buffer(const std::string& name, const std::vector<std::int64_t>& shape, T* data,
                    ddp_device device) {
        const ddp_param_desc desc =
            describe<T>(name, shape, data, static_cast<T*>(nullptr), device, 0, 0);
        detail::call(ddp_register_buffer, get(), &desc);
    }
    template <class T>
    void add_buffer(const std::string& name, const std::vector<std::int64_t>& shape, T* data) {
        add_buffer(name, shape, data, ddp_device{DDP_DEVICE_CPU, 0});
    }
    void commit() { detail::call(ddp_commit, get()); }
    void step_begin() { detail::call(ddp_step_begin, get()); }
    void set_sync(bool sync) { detail::call(ddp_set_sync, get(), std::int32_t{sync}); }
    void grad_ready(ddp_param param) { detail::call(ddp_grad_ready, get(), param); }
    /* A gradient that lies elsewhere: copied to its place and announced. flags: DDP_PUT_ADD. */
    template <class T>
    void put(ddp_param param, const T* gradient, std::uint32_t flags = 0) {
        detail::call(ddp_put, get(), param, static_cast<const void*>(gradient), flags);
    }
    void finalize() { detail::call(ddp_finalize, get()); }
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
    void join() { detail::call(ddp_join, get()); }

    void abort(const std::string& reason) {
        detail::call(ddp_context_abort, get(), reason.c_str());
    }

    template <class T>
    T* grad_view(ddp_param param) {
        void* view = nullptr;
        detail::call(ddp_grad_view, get(), param, &view);
        return static_cast<T*>(view);
    }
    std::int64_t layout_generation() const { return ddp_layout_generation(get()); }
    /* While it lives, today's views can be read and written. */
    std::shared_ptr<ddp_layout> hold_layout() {
        ddp_layout* layout = nullptr;
        detail::call(ddp_layout_hold, get(), &layout);
        return std::shared_ptr<ddp_layout>(layout, &ddp_layout_free);
    }

    void set_comm_hook(Hook hook) {
        auto state = std::make_unique<Hook>(std::move(hook));
        detail::call(ddp_set_comm_hook, get(), &run_hook, static_cast<void*>(state.get()),
                     &destroy_hook);
        state.release();
    }
    void use_default_hook() {
        detail::call(ddp_set_comm_hook, get(), static_cast<ddp_comm_hook_fn>(nullptr),
                     static_cast<void*>(nullptr), static_cast<void (*)(void*)>(nullptr));
    }

    /* builtin_hooks.h */
    void use_hook(const std::string& name, const std::string& options = {}) {
        detail::call(ddp_use_hook, get(), name.c_str(), options.c_str());
    }
    std::string hook_name() const { return ddp_hook_name(get()); }
    std::vector<unsigned char> save_hook_state() {
        void* data = nullptr;
        std::size_t size = 0;
        detail::call(ddp_hook_state_save, get(), &data, &size);
        const std::unique_ptr<void, decltype(&ddp_free)> owner(data, &ddp_free);
        const auto* bytes = static_cast<const unsigned char*>(data);
        return {bytes, bytes + size};
    }
    void load_hook_state(const std::vector<unsigned char>& state, std::uint32_t flags = 0) {
        detail::call(ddp_hook_state_load, get(), static_cast<const void*>(state.data()),
                     state.size(), flags);
    }

#ifdef DDP_EXPERIMENTAL
    using ReducedCallback = std::function<void(ddp_param param, bool used)>;
    using BufferHook =
        std::function<void(ddp_group* group, const ddp_tensor* const* buffers, std::size_t count)>;
    using BucketFunction = std::function<void(ddp_group* group, ddp_bucket* bucket)>;

    /* Shards: shard.h. */
    /* norm.h. All parameters, or these. */
    std::int32_t track_grad_norm(double p = 2) {
        std::int32_t norm = -1;
        detail::call(ddp_track_grad_norm, get(), p, static_cast<const ddp_param*>(nullptr),
                     std::size_t{0}, &norm);
        return norm;
    }
    std::int32_t track_grad_norm(double p, const std::vector<ddp_param>& params) {
        static const ddp_param none = -1; /* an empty list is not NULL */
        std::int32_t norm = -1;
        detail::call(ddp_track_grad_norm, get(), p, params.empty() ? &none : params.data(),
                     params.size(), &norm);
        return norm;
    }
    double grad_norm(std::int32_t norm) {
        double value = 0;
        detail::call(ddp_grad_norm, get(), norm, &value);
        return value;
    }
    double clip_grad_norm(std::int32_t norm, double max_norm) {
        double value = 0;
        detail::call(ddp_clip_grad_norm, get(), norm, max_norm, &value);
        return value;
    }
    double clip_factor(std::int32_t norm, double max_norm) {
        double factor = 0;
        detail::call(ddp_clip_factor, get(), norm, max_norm, &factor);
        return factor;
    }

    /* Votes (vote.h) need DDP_CONTEXT_VOTES. */
    void vote(std::uint32_t bits) {
        detail::call(ddp_step_vote, get(), bits);
    }
    void vote_level(std::int32_t level) {
        detail::call(ddp_step_vote_level, get(), level);
    }
    struct Votes {
        std::uint32_t any = 0, all = 0;
        std::int32_t level = 0;
    };
    Votes votes() { /* of the last step */
        Votes votes;
        detail::call(ddp_step_votes, get(), &votes.any, &votes.all, &votes.level);
        return votes;
    }

    void set_owner(ddp_param param, ddp_owner owner, double cost = 0) {
        detail::call(ddp_set_owner, get(), param, owner, cost);
    }
    std::vector<ddp_piece> pieces() {
        std::vector<ddp_piece> all(static_cast<std::size_t>(ddp_piece_count(get())));
        for (std::size_t i = 0; i < all.size(); ++i) {
            all[i].struct_size = sizeof all[i];
            detail::call(ddp_piece_get, get(), static_cast<std::int32_t>(i), &all[i]);
        }
        return all;
    }
    void publish() {
        detail::call(ddp_publish, get());
    }
    /* Empty: none. */
    using Update = std::function<void(const ddp_piece* const* pieces, std::size_t count)>;
    void set_update(Update update) {
        if (!update)
            return detail::call(ddp_set_update, get(), static_cast<ddp_update_fn>(nullptr),
                                static_cast<void*>(nullptr), static_cast<void (*)(void*)>(nullptr));
        auto state = std::make_unique<Update>(std::move(update));
        detail::call(ddp_set_update, get(), &run_update, static_cast<void*>(state.get()),
                     &destroy_update);
        state.release();
    }
    void wait_value(ddp_param param) {
        detail::call(ddp_wait_value, get(), param);
    }
    void wait_value_on(ddp_param param, void* stream) {
        detail::call(ddp_wait_value_on, get(), param, stream);
    }
    /* Their state: shard_state.h. */
    template <class T>
    void add_shard_array(const std::string& key, ddp_param param, std::int64_t first,
                         std::int64_t count, T* data, bool replicated = false) {
        detail::call(ddp_shard_array, get(), key.c_str(), param, first, count, dtype_of<T>::value,
                     static_cast<void*>(data), replicated ? 1 : 0);
    }
    void save_shards(const std::string& folder, const std::string& note = {}) {
        detail::call(ddp_shard_save, get(), folder.c_str(), note.c_str());
    }
    /* The note. */
    std::string load_shards(const std::string& folder) {
        char* note = nullptr;
        detail::call(ddp_shard_load, get(), folder.c_str(), &note);
        const std::unique_ptr<char, decltype(&ddp_free)> owner(note, &ddp_free);
        return note;
    }

    /* The slices of a tensor: in_place.h. The first of their indices. */
    template <class T>
    ddp_param add_slices(const std::string& name, const std::vector<std::int64_t>& shape, T* data,
                         T* grad = nullptr, std::uint32_t flags = 0, std::uint32_t uses = 1) {
        return add_slices(name, shape, data, grad, ddp_device{DDP_DEVICE_CPU, 0}, flags, uses);
    }
    template <class T>
    ddp_param add_slices(const std::string& name, const std::vector<std::int64_t>& shape, T* data,
                         T* grad, ddp_device device, std::uint32_t flags = 0,
                         std::uint32_t uses = 1) {
        return add(ddp_register_slices, describe<T>(name, shape, data, grad, device, flags, uses));
    }

    /* overlap.h */
    void finalize_async() {
        detail::call(ddp_finalize_async, get());
    }
    void wait(ddp_param param) {
        detail::call(ddp_wait_param, get(), param);
    }

    /* device.h */
    void set_stream(ddp_device device, void* stream) {
        detail::call(ddp_set_stream, get(), device.kind, device.index, stream);
    }
    void grad_ready_on(ddp_param param, void* stream) {
        detail::call(ddp_grad_ready_on, get(), param, stream);
    }
    template <class T>
    void put_on(ddp_param param, const T* gradient, void* stream, std::uint32_t flags = 0) {
        detail::call(ddp_put_on, get(), param, static_cast<const void*>(gradient), flags, stream);
    }
    template <class T>
    void get_on(ddp_param param, T* memory, void* stream) {
        detail::call(ddp_get_on, get(), param, static_cast<void*>(memory), stream);
    }
    void finalize_on(void* stream) {
        detail::call(ddp_finalize_on, get(), stream);
    }
    void finalize_enqueue() {
        detail::call(ddp_finalize_enqueue, get());
    }
    void wait_on(ddp_param param, void* stream) {
        detail::call(ddp_wait_param_on, get(), param, stream);
    }

    /* freeze.h */
    void set_frozen(const std::vector<ddp_param>& params, bool frozen) {
        detail::call(ddp_set_frozen, get(), params.data(), params.size(), std::int32_t{frozen});
    }
    void skip(const std::vector<ddp_param>& params, std::int32_t authority = -1) {
        detail::call(ddp_skip_params, get(), params.data(), params.size(), authority);
    }
    bool skipped(ddp_param param) const {
        return ddp_skipped(get(), param) == 1;
    }
    void set_weight(double weight) {
        detail::call(ddp_set_weight, get(), weight);
    }

    /* batch_share.h */
    void share_batch(std::int64_t samples, std::int64_t multiple = 1, std::int64_t most = 0) {
        detail::call(ddp_share_batch, get(), samples, multiple, most);
    }
    struct BatchShare {
        std::int64_t begin = 0, end = 0;
        std::int64_t size() const { return end - begin; }
    };
    BatchShare batch_share() const {
        BatchShare share;
        detail::call(ddp_batch_share, get(), &share.begin, &share.end);
        return share;
    }
    void batch_time(std::chrono::nanoseconds time) {
        detail::call(ddp_batch_time, get(), static_cast<std::int64_t>(time.count()));
    }

    /* A sparse gradient: the rows that are not zero. */
    template <class T>
    void sparse_grad_ready(ddp_param param, const std::vector<std::int64_t>& indices,
                           const T* values) {
        detail::call(ddp_grad_ready_sparse, get(), param, indices.data(),
                     static_cast<const void*>(values), indices.size());
    }
    /* The reduced one: its rows' indices, and where the rows stand. Valid until the next step ends.
     */
    template <class T>
    std::pair<std::vector<std::int64_t>, const T*> sparse_gradient(ddp_param param) {
        const std::int64_t* indices = nullptr;
        const void* values = nullptr;
        std::size_t count = 0;
        detail::call(ddp_sparse_gradient, get(), param, &indices, &values, &count);
        return {std::vector<std::int64_t>(indices, indices + count), static_cast<const T*>(values)};
    }

    /* A gradient given as its factors: left is rows x n, right is rows x m, and the gradient left^T
     * right. */
    template <class T>
    void factors_grad_ready(ddp_param param, const T* left, const T* right, std::size_t rows) {
        detail::call(ddp_grad_ready_factors, get(), param, static_cast<const void*>(left),
                     static_cast<const void*>(right), rows);
    }

    /* plan.h, stats.h */
    void request_rebuild() {
        detail::call(ddp_request_rebuild, get());
    }
    std::string plan() {
        char* text = nullptr;
        detail::call(ddp_plan_save, get(), &text);
        const std::unique_ptr<char, decltype(&ddp_free)> owner(text, &ddp_free);
        return text;
    }
    void adopt_plan(const std::string& text) {
        detail::call(ddp_plan_adopt, get(), text.c_str());
    }
    ddp_stats stats() {
        ddp_stats stats{};
        stats.struct_size = sizeof stats;
        detail::call(ddp_stats_get, get(), &stats);
        return stats;
    }

    /* Called when a parameter's gradient is final; used: whether any rank used it. */
    void set_reduced_callback(ReducedCallback callback) {
        auto state = std::make_unique<ReducedCallback>(std::move(callback));
        detail::call(ddp_set_reduced_callback, get(), &run_reduced, static_cast<void*>(state.get()),
                     &destroy_reduced);
        state.release();
    }
    /* Instead of sending rank 0's buffers. */
    void set_buffer_hook(BufferHook hook) {
        auto state = std::make_unique<BufferHook>(std::move(hook));
        detail::call(ddp_set_buffer_hook, get(), &run_buffer_hook, static_cast<void*>(state.get()),
                     &destroy_buffer_hook);
        state.release();
    }

    /* more_hooks.h */
    void compress_hook(ddp_dtype dtype) {
        detail::call(ddp_compress_hook, get(), dtype);
    }
    void hook_then(BucketFunction function, std::uint32_t flags = 0) {
        auto state = std::make_unique<BucketFunction>(std::move(function));
        detail::call(ddp_hook_then, get(), &run_bucket_function, static_cast<void*>(state.get()),
                     &destroy_bucket_function, flags);
        state.release();
    }
#endif

    /* no_sync as a scope: steps that begin inside it do not communicate. An exception may end it
     * within one; discard that step inside the scope, too. */
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
    template <class Register>
    ddp_param add(Register function, const ddp_param_desc& desc) {
        ddp_param param = -1;
        detail::call(function, get(), &desc, &param);
        return param;
    }
    template <class T>
    static ddp_param_desc describe(const std::string& name, const std::vector<std::int64_t>& shape,
                                   T* data, T* grad, ddp_device device, std::uint32_t flags,
                                   std::uint32_t uses) {
        ddp_param_desc desc;
        ddp_param_desc_init(&desc);
        desc.name = name.c_str();
        desc.shape = shape.data();
        desc.ndim = static_cast<std::int32_t>(shape.size());
        desc.dtype = dtype_of<T>::value;
        desc.data = data;
        desc.grad = grad;
        desc.device = device;
        desc.flags = flags;
        desc.uses = uses;
        return desc;
    }
    static ddp_status run_hook(void* state, ddp_group* group, ddp_bucket* bucket, ddp_work** work,
                               ddp_error** error) {
        return detail::guarded(error, [&] {
            if (Work result = (*static_cast<Hook*>(state))(group, bucket)) *work = result.release();
        });
    }
    static void destroy_hook(void* state) {
        delete static_cast<Hook*>(state);
    }
#ifdef DDP_EXPERIMENTAL
    static ddp_status run_bucket_function(void* state, ddp_group* group, ddp_bucket* bucket,
                                          ddp_error** error) {
        return detail::guarded(error,
                               [&] { (*static_cast<BucketFunction*>(state))(group, bucket); });
    }
    static ddp_status run_update(void* state, const ddp_piece* const* pieces, std::size_t count,
                                 ddp_error** error) {
        return detail::guarded(error, [&] { (*static_cast<Update*>(state))(pieces, count); });
    }
    static void destroy_update(void* state) {
        delete static_cast<Update*>(state);
    }
    static void destroy_bucket_function(void* state) {
        delete static_cast<BucketFunction*>(state);
    }
    static ddp_status run_reduced(void* state, ddp_param param, std::int32_t used,
                                  ddp_error** error) {
        return detail::guarded(error,
                               [&] { (*static_cast<ReducedCallback*>(state))(param, used != 0); });
    }
    static void destroy_reduced(void* state) {
        delete static_cast<ReducedCallback*>(state);
    }
    static ddp_status run_buffer_hook(void* state, ddp_group* group,
                                      const ddp_tensor* const* buffers, std::size_t count,
                                      ddp_error** error) {
        return detail::guarded(error,
                               [&] { (*static_cast<BufferHook*>(state))(group, buffers, count); });
    }
    static void destroy_buffer_hook(void* state) {
        delete static_cast<BufferHook*>(state);
    }
#endif
};

}  // namespace ddp

#endif  // DDP_CONTEXT_HPP
