// Gradients on devices: on which streams they come, how they get into their bucket and out of it again, each with one
// transfer a bucket.
//
// A gradient of the CPU is in its bucket when ddp_grad_ready returns. One of a device need not even be computed then: what
// is known is the stream on which it will be. When all of a bucket are announced, events are recorded on their streams; when
// the bucket is launched, the context's stream there waits for the events and then fills the bucket.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/bucket_store.h"
#include "core/device_streams.h"
#include "core/param_table.h"
#include "core/participation.h"
#include "hooks/bucket.h"
#include "hooks/hook.h"

namespace libddp {

class DeviceGradients {
public:
    // How a gradient's place is filled. kept: a view's contents may have to come back.
    enum class Fill : std::uint8_t { kGradient, kZeros, kKeptZeros };

    DeviceGradients(const ParamTable& table, const ContextStreams& streams) : table_(table), streams_(streams) {}

    // New buckets. Not while a step is under way.
    void reset_layout(const BucketStore& store);
    // All wait for their gradients again.
    void arm(const Participation& participation);

    // A gradient of this bucket will be complete when the stream comes to this point. Any thread.
    void come(std::int32_t bucket, void* stream);
    // The last that is said about a gradient in this step, after come(). Before the queue is told.
    void decide(std::int32_t bucket, std::int32_t param, Fill fill);

    // On the launching thread. scale: of the gradients; those that are absent become zeros. Returns how many bytes were
    // copied.
    std::uint64_t pack(const ddp_bucket& bucket, const Hook::Target& target, double scale);

    // The result of a tensor goes into target (null: its view); deliver() enqueues all of that. False if it is there already.
    bool take_result(const ddp_bucket& bucket, const BucketTensor& tensor, void* target);
    // A view becomes again what it was.
    void give_back(const ddp_bucket& bucket, const BucketTensor& tensor);
    void deliver();
    // The same when this bucket is done.
    void deliver(const ddp_bucket& bucket);
    // Nothing of a step is left.
    void forget_step();

private:
    struct Bucket {
        DeviceStreams* device_streams = nullptr;
        std::vector<std::int32_t> params;
        std::atomic<std::int32_t> missing{0};
        std::mutex mutex;
        std::vector<void*> streams;
        std::vector<EventPtr> complete;  // where the streams were when the last gradient came

        std::vector<EventPtr> take_complete() {
            const std::lock_guard lock(mutex);
            return std::exchange(complete, {});
        }
    };
    using Route = std::tuple<const DeviceStreams*, ddp_dtype, ddp_dtype>;

    Bucket& bucket(std::int32_t index) { return *buckets_[static_cast<std::size_t>(index)]; }
    void keep_views(const ddp_bucket& bucket);
    Fill fill_of(const BucketTensor& tensor) const { return fills_[static_cast<std::size_t>(tensor.param)]; }
    bool is_view(const BucketTensor& tensor) const { return !table_[tensor.param].grad; }
    void add_result(const ddp_bucket& bucket, ddp_dtype from, const ddp_segment& segment);

    const ParamTable& table_;
    const ContextStreams& streams_;
    std::vector<std::unique_ptr<Bucket>> buckets_;  // null: of the CPU
    std::vector<Fill> fills_;                       // by parameter
    std::map<std::int32_t, std::shared_ptr<std::byte>> kept_;
    std::map<Route, std::vector<ddp_segment>> results_;
};

}  // namespace libddp
