#include "core/launcher.h"

#include "hooks/allreduce.h"
#include "util/error_object.h"

namespace libddp {

CommHook default_hook() {
    return {&allreduce_hook, nullptr, true};
}

void Launcher::reset_layout(const BucketStore& store, const ParamTable& table, bool mean) {
    plan_hash_ = store.plan_hash();
    slots_.clear();
    pending_ = std::make_unique<std::atomic<std::int32_t>[]>(store.size());
    for (std::size_t b = 0; b < store.size(); ++b) {
        Slot slot;
        slot.bucket = store.describe(b, table);
        slot.bucket.mean = mean;
        const auto& ids = store.plan().buckets[b].params;
        auto name = [&](std::int32_t id) { return table.params()[static_cast<std::size_t>(id)].name; };
        std::string label = str(ids.size() == 1 ? "parameter '" : "parameters '", name(ids.front()), "'");
        if (ids.size() > 1) label += str(" to '", name(ids.back()), "'");
        slot.label = std::make_shared<const std::string>(std::move(label));
        slot.memory = store.memory(b);
        slots_.push_back(std::move(slot));
    }
}

void Launcher::arm(std::int64_t synced_steps, std::int64_t step, bool prescaled) {
    step_ = step;
    for (std::size_t b = 0; b < slots_.size(); ++b) {
        Slot& slot = slots_[b];
        slot.work = nullptr;
        slot.error = {};
        slot.launched = false;
        slot.bucket.step = synced_steps;
        slot.bucket.prescaled = prescaled;
        slot.bucket.result = nullptr;
        pending_[b].store(static_cast<std::int32_t>(slot.bucket.tensors.size()), std::memory_order_relaxed);
    }
    next_ = 0;
    requests_.store(0, std::memory_order_release);
}

// The first to come launches; whoever comes while it does leaves a request, and the launcher looks again before it
// goes.
void Launcher::launch_ready() {
    if (requests_.fetch_add(1, std::memory_order_acq_rel) != 0) return;
    std::uint32_t served = 1;
    for (;;) {
        launch_consecutive();
        std::uint32_t before = requests_.fetch_sub(served, std::memory_order_acq_rel);
        if (before == served) return;
        served = before - served;
    }
}

void Launcher::launch_consecutive() {
    while (next_ < slots_.size() && pending_[next_].load(std::memory_order_acquire) == 0) {
        if (next_ > 0 && !slots_[next_ - 1].error.ok()) return;  // a hook failed: nothing after it makes sense
        launch(slots_[next_++]);
    }
}

void Launcher::launch(Slot& slot) {
    ScopedTag tag({plan_hash_, step_, slot.bucket.index, slot.label, slot.memory, handle_.impl->executor_handle()});
    ddp_work* work = nullptr;
    ddp_error* error = nullptr;
    ddp_status status = hook_.fn(hook_.user_data.get(), &handle_, &slot.bucket, &work, &error);
    slot.launched = true;
    if (status == DDP_OK) {
        if (work) slot.work = work->impl;
        delete work;
        return;
    }
    delete work;
    ErrorInfo info = take_user_error(status, error, hook_.is_default ? "allreduce" : "the communication hook");
    if (!hook_.is_default && info.rank < 0) info.rank = handle_.impl->rank();
    // Tell the others now: they would wait for this bucket.
    slot.error = break_with(std::move(info), slot);
}

const ddp_bucket& Launcher::wait(std::size_t index) {
    Slot& slot = slots_[index];
    if (slot.error.ok() && slot.work) {
        slot.work->wait(std::nullopt);
        if (!slot.work->result().ok()) slot.error = break_with(slot.work->result(), slot);
    }
    if (!slot.error.ok()) throw Error(slot.error);
    if (!slot.launched) {
        handle_.impl->check();  // the hook of an earlier bucket failed
        fail(DDP_ERROR_INTERNAL, "bucket ", index, " was not launched although all of its gradients are ready");
    }
    return slot.bucket;
}

bool Launcher::in_flight() const {
    for (const auto& slot : slots_)
        if (slot.work && !slot.work->done()) return true;
    return false;
}

void Launcher::drain(const Deadline& deadline) {
    for (auto& slot : slots_)
        if (slot.work && !slot.work->wait(deadline)) return;
}

// The verdict may stem from a rank that knows nothing of buckets, or from the store: then this rank says where it was
// itself.
ErrorInfo Launcher::break_with(ErrorInfo error, const Slot& slot) {
    return with_bucket(handle_.impl->break_everywhere(with_bucket(std::move(error), slot)), slot);
}

ErrorInfo Launcher::with_bucket(ErrorInfo error, const Slot& slot) const {
    if (error.bucket < 0) {
        error.bucket = slot.bucket.index;
        error.step = step_;
        error.message += str(" (bucket ", slot.bucket.index, " of step ", step_, ", ", *slot.label, ")");
    }
    return error;
}

}  // namespace libddp
