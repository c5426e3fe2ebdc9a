// How dense gradients get into their buckets and out again: HostGradients for those in the CPU's
// memory, DeviceGradients for those on devices. Both have the same functions, and Gradients chooses
// between them in one place.
//
// A gradient of the CPU is in its bucket when ddp_grad_ready returns. One of a device need not even
// be computed then: what is known is the stream on which it will be. When all of a bucket are
// announced, events are recorded on their streams; when the bucket is launched, the context's
// stream there waits for the events and then fills the bucket.
//
// A view that this rank does not use travels as zeros, and may have to become again what it was:
// its contents are kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/layout.h"
#include "core/participation.h"
#include "core/rows_and_factors.h"
#include "core/step.h"
#include "hooks/bucket.h"
#include "hooks/hook.h"
#include "kernels/arithmetic.h"
#include "kernels/dtype.h"
#include "util/mutex.h"

namespace libddp {

class HostGradients {
public:
    // The CPU has no streams, and what is announced is complete.
    static void* caller(const Gradient&) { return nullptr; }
    static void come(const Gradient&, void*, bool) {}

    void copy_given(const Gradient& gradient, const void* given, bool add, void* stream);
    void copy_out(const Gradient& gradient, void* memory, void* stream);

    // Brings a gradient into its bucket, times `scale`.
    void fill(std::int32_t, const Gradient& gradient, double scale) {
        if (scale == 0) return clear(gradient);  // not 0 * infinity
        if (scale != 1)                          // a view is still in this core's cache
            cpu::scale_copy(gradient.place, gradient.grad ? gradient.grad : gradient.place,
                            gradient.count, gradient.dtype, scale);
        else if (gradient.grad && gradient.bytes > 0)
            std::memmove(gradient.place, gradient.grad, gradient.bytes);
        if (gradient.grad) count_copied(gradient);
    }
    // fill(), and the first element that is not finite; their number if all are. Behind it the
    // bucket is unspecified.
    std::size_t fill_checked(const Gradient& gradient, double scale) {
        if (scale == 0) {
            clear(gradient);
            return gradient.count;
        }
        if (!gradient.grad && scale == 1)
            return cpu::first_nonfinite(gradient.place, gradient.count, gradient.dtype);
        const void* const source = gradient.grad ? gradient.grad : gradient.place;
        if (gradient.grad) count_copied(gradient);
        return cpu::scale_copy_checked(gradient.place, source, gradient.count, gradient.dtype,
                                       scale);
    }
    // Zeros stand for a gradient that this rank does not have. keep: a view's contents.
    void fill_with_zeros(std::int32_t param, const Gradient& gradient, bool keep);
    // A view's contents may have to come back.
    void keep(std::int32_t param, const Gradient& gradient);
    // The program's gradient counts, although this rank does not use it. After keep().
    void fill_unused(std::int32_t param, const Gradient& gradient, double scale) {
        fill(param, gradient, scale);
    }
    // The same (counts), or zeros, for one of which this was known before the step.
    void fill_absent(std::int32_t param, const Gradient& gradient, bool counts, double scale) {
        if (!counts) return fill_with_zeros(param, gradient, true);
        keep(param, gradient);
        fill(param, gradient, scale);
    }
    // Everything is in the bucket already.
    static void pack(const ddp_bucket&, const Hook::Target&, double) {}

    // Copies the result of a tensor from where the hook left it to the program's memory, or into
    // the view.
    void take_result(const ddp_bucket& bucket, const BucketTensor& tensor,
                     const Gradient& gradient) {
        void* const target = gradient.grad ? gradient.grad : tensor.gradient;
        if (bucket.result)
            convert_result(bucket, tensor, target);
        else if (target == tensor.gradient)
            return;  // it is there
        else if (tensor.owned > 0)
            std::memmove(bucket.first_owned(target, tensor),
                         bucket.first_owned(tensor.gradient, tensor),
                         static_cast<std::size_t>(tensor.owned) * dtype_size(bucket.dtype));
        count_copied(gradient);
    }
    // A view becomes again what it was.
    void give_back(const ddp_bucket& bucket, const BucketTensor& tensor, const Gradient& gradient);
    // Zeros, where the program finds it.
    static void clear_home(const ddp_bucket&, const Gradient& gradient) {
        if (gradient.bytes > 0)
            std::memset(gradient.grad ? gradient.grad : gradient.place, 0, gradient.bytes);
    }
    static void deliver(const ddp_bucket&) {}
    static void finish(Group&, std::int64_t, bool) {}
    // Nothing of a step is left.
    void forget_step() {
        const Lock lock(mutex_);
        kept_.clear();
    }

    std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

private:
    static void clear(const Gradient& gradient) {
        if (gradient.bytes > 0) std::memset(gradient.place, 0, gradient.bytes);
    }
    static void convert_result(const ddp_bucket& bucket, const BucketTensor& tensor, void* target);
    void count_copied(const Gradient& gradient) {
        copied_bytes_.fetch_add(gradient.bytes, std::memory_order_relaxed);
    }

    std::atomic<std::uint64_t> copied_bytes_{0};
    Mutex mutex_;
    std::map<std::int32_t, std::vector<std::byte>> kept_ DDP_GUARDED_BY(mutex_);
};

// Each bucket is filled with one transfer, and emptied with another.
class DeviceGradients {
public:
    DeviceGradients(const ParamTable& table, const ContextStreams& streams)
        : table_(table), streams_(streams) {}

    // New buckets. Not while a step is under way.
    void reset_layout(const Layout& layout);
    // All wait for their gradients again.
    void begin_step(const Participation& participation);

    // The program's stream for calls that name none.
    static void* caller(const Gradient& gradient) { return gradient.streams->caller(); }
    // A gradient will be complete when the stream comes to this point. later: a later step reduces
    // it. Any thread.
    void come(const Gradient& gradient, void* stream, bool later);

    // In the order of a stream of the program's: after all of the steps before.
    void copy_given(const Gradient& gradient, const void* given, bool add, void* stream);
    // The same; what follows on the context's stream comes after it.
    void copy_out(const Gradient& gradient, void* memory, void* stream);

    // The last that is said about a gradient in this step, after come(), and before the queue is
    // told. pack() fills and scales.
    void fill(std::int32_t param, const Gradient& gradient, double) {
        decide(param, gradient, Fill::kGradient);
    }
    void fill_with_zeros(std::int32_t param, const Gradient& gradient, bool keep) {
        decide(param, gradient, keep ? Fill::kKeptZeros : Fill::kZeros);
    }
    static void keep(std::int32_t, const Gradient&) {}  // pack() does
    void fill_unused(std::int32_t param, const Gradient& gradient, double) {
        decide(param, gradient, Fill::kUnused);
    }
    // On the launching thread. begin_step() has asked for zeros.
    void fill_absent(std::int32_t param, const Gradient& gradient, bool counts, double);
    // On the launching thread. scale: of the gradients; those that are absent become zeros.
    void pack(const ddp_bucket& bucket, const Hook::Target& target, double scale);

    // deliver() enqueues what these three ask for.
    void take_result(const ddp_bucket& bucket, const BucketTensor& tensor,
                     const Gradient& gradient);
    void give_back(const ddp_bucket& bucket, const BucketTensor& tensor, const Gradient& gradient);
    void clear_home(const ddp_bucket& bucket, const Gradient& gradient);
    void deliver();
    // The same when this bucket is done.
    void deliver(const ddp_bucket& bucket);
    // The work that is enqueued to finish buckets takes effect: for the host, or (enqueue) for the
    // callers' streams. Other buckets may travel on. An error breaks the group; step is for its
    // message.
    void finish(Group& group, std::int64_t step, bool enqueue);
    // Gradients of a step that did not sync: what comes next is ordered after them.
    void end_local_step() { streams_.follow_noted(); }
    void forget_step();

    std::uint64_t copied_bytes() const { return copied_bytes_.load(std::memory_order_relaxed); }

private:
    // How a gradient's place is filled. Kept zeros, and an unused gradient that counts: a view's
    // contents may have to come back.
    enum class Fill : std::uint8_t { kGradient, kZeros, kKeptZeros, kUnused };

    struct Bucket {
        DeviceStreams* device_streams = nullptr;
        std::vector<std::int32_t> params;
        std::atomic<std::int32_t> missing{0};
        Mutex mutex;
        std::vector<void*> streams DDP_GUARDED_BY(mutex);
        // where the streams were when the last gradient came
        std::vector<EventPtr> complete DDP_GUARDED_BY(mutex);

        std::vector<EventPtr> take_complete() {
            const Lock lock(mutex);
            return std::exchange(complete, {});
        }
    };
    using Route = std::tuple<const DeviceStreams*, ddp_dtype, ddp_dtype>;
    using ProgramStream = std::pair<const DeviceStreams*, void*>;

    Bucket& bucket(std::int32_t index) { return *buckets_[static_cast<std::size_t>(index)]; }
    void decide(std::int32_t param, const Gradient& gradient, Fill fill);
    void keep_views(const ddp_bucket& bucket);
    Fill fill_of(const BucketTensor& tensor) const {
        return fills_[static_cast<std::size_t>(tensor.param)];
    }
    bool is_view(const BucketTensor& tensor) const { return !table_[tensor.param].grad; }
    void add_result(const ddp_bucket& bucket, ddp_dtype from, const ddp_segment& segment);

    const ParamTable& table_;
    const ContextStreams& streams_;
    std::vector<std::unique_ptr<Bucket>> buckets_;  // null: of the CPU
    std::vector<Fill> fills_;                       // by parameter
    std::map<std::int32_t, std::shared_ptr<std::byte>> kept_;
    std::map<Route, std::vector<ddp_segment>> results_;
    std::atomic<std::uint64_t> copied_bytes_{0};
    Mutex mutex_;
    // that come after the steps before
    std::vector<ProgramStream> ordered_ DDP_GUARDED_BY(mutex_);
};

// All that ddp_grad_ready touches of a parameter, in one cache line. Its parts have different
// lives.
struct alignas(64) ParamState : Gradient {  // of the layout
    // until a synced step: announced in a local step, not yet reduced
    std::atomic<bool> waits_for_sync{false};
    // until another comes: ddp_put gave it, and nothing adds up there
    std::atomic<bool> given{false};
    Announcement now;  // of the step
};

// The gradients of all parameters.
class Gradients {
public:
    explicit Gradients(const Model& model);

    ParamState& operator[](std::int32_t param) { return states_[static_cast<std::size_t>(param)]; }
    const ParamState& operator[](std::int32_t param) const {
        return states_[static_cast<std::size_t>(param)];
    }
    ParamState* data() { return states_.data(); }

    // Not while a step is under way.
    void reset_layout(const Layout& layout);
    void begin_step(const Participation& participation);
    void forget_step();
    // Gradients of unsynced steps wait for a synced one.
    bool any_waits() const;
    // Forgets the gradients that came since the last synced step.
    void forget_window();
    void forget_given(std::int32_t param);
    // Another group: those of the old one may still use what they were given.
    void leave_group() { factors_.prepare(); }

    // The only place that tells the CPU from devices. body: called with the gradients of one of
    // them.
    template <class Body>
    void at(const Gradient& gradient, Body body) {
        if (gradient.streams) [[unlikely]]
            body(on_devices_);
        else
            body(on_host_);
    }
    template <class Body>
    void at(const ddp_bucket& bucket, Body body) {
        bucket.stream ? body(on_devices_) : body(on_host_);
    }
    HostGradients& on_host() { return on_host_; }
    DeviceGradients& on_devices() { return on_devices_; }
    SparseGradients& rows() { return rows_; }
    const SparseGradients& rows() const { return rows_; }
    FactorGradients& factors() { return factors_; }

    // By which a gradient is multiplied while it is brought into its bucket. Integers have no
    // factor. The link that runs the reduction divides a mean.
    static double scale(const Gradient& gradient, const Step& step) {
        return is_floating(gradient.dtype) ? step.begin.factor : 1;
    }
    // A part of it, or all, is a dense gradient.
    bool dense(std::int32_t param, const Gradient& gradient) {
        return !gradient.sparse && (!gradient.factored || factors_.whole(param));
    }
    // Throws unless `memory` is on the gradient's device and lies elsewhere than its place. It may be
    // the place itself, unless apart. name: of the argument. advice: for one that overlaps.
    void require_copyable(std::int32_t param, const char* name, const void* memory, bool apart,
                          const char* advice = "") const;
    // To memory of the program's, between steps.
    void copy_out(std::int32_t param, void* memory, void* stream);
    // A program that adds to gradients, and does not zero them before this step, has the mean of
    // earlier steps there. The mean of the sums has it whole only if ranks without a new gradient
    // count with it, too.
    bool counts_unused(const ParamState& state, const Step& step) const {
        return model_.options.reducer.accumulate && !state.sparse && !state.factored &&
               step.has_results() && !state.given.load(std::memory_order_relaxed);
    }

    // The last thing before a bucket is sent, on the thread that launches: puts zeros where this
    // rank has no gradient and knew so before the step, and brings gradients of devices to
    // `target`.
    void complete(const ddp_bucket& bucket, const Hook::Target& target, const Step& step);
    // Reduces a parameter that is alone in its bucket, because it goes a way of its own, without
    // the hook.
    WorkPtr reduce_alone(Group& group, std::int32_t param, const Step& step, const OpTag& tag);
    // Takes the result of such a parameter. Returns how many bytes this rank gave for it.
    std::uint64_t collect(std::int32_t param);

    std::uint64_t copied_bytes() const {
        return on_host_.copied_bytes() + on_devices_.copied_bytes();
    }

private:
    const Model& model_;
    std::vector<ParamState> states_;
    HostGradients on_host_;
    DeviceGradients on_devices_;
    SparseGradients rows_;
    FactorGradients factors_;
};

}  // namespace libddp
