#include "core/reducer.h"

#include "core/agreement.h"
#include "device/dtype.h"
#include "device/kernels.h"
#include "util/log.h"

namespace libddp {
namespace {

// How many missing parameters a message names.
constexpr std::size_t kNamedParams = 8;
// How long the destructor waits for reductions that are under way on a healthy group.
constexpr std::int64_t kDrainMs = 1'000;

std::vector<PlanParam> plan_params(const ParamTable& table) {
    std::vector<PlanParam> result;
    for (const auto& p : table.params()) result.push_back({p.bytes, p.dtype, p.device});
    return result;
}

}  // namespace

Reducer::Reducer(std::shared_ptr<Group> group, const ParamTable& table, ReducerOptions options, CommHook hook)
    : group_(std::move(group)), table_(table), options_(options), launcher_(group_), recording_(options.rebuild) {
    launcher_.set_hook(std::move(hook));
    const auto count = table_.params().size();
    slots_ = std::make_unique<Slot[]>(count);
    ready_order_.resize(count);
    adopt(std::make_unique<BucketStore>(
        *group_, table_, make_plan(plan_params(table_), reverse_order(count), {options_.first_cap, options_.cap})));
    agree_on_plan(*group_, store_->plan_hash());
}

Reducer::~Reducer() {
    if (!launcher_.in_flight()) return;
    if (!group_->broken()) launcher_.drain(Deadline::after_ms(kDrainMs));
    if (!launcher_.in_flight()) return;
    // Buckets are about to go: no operation may still write into them.
    group_->break_everywhere({DDP_ERROR_ABORTED,
                              str("rank ", group_->rank(), " freed its context in the middle of step ", steps_),
                              group_->rank(), -1, -1, steps_});
    launcher_.drain(Deadline::after_ms(kDrainMs));
}

void Reducer::adopt(std::unique_ptr<BucketStore> store) {
    if (store_) store->copy_from(*store_, table_);
    store_ = std::move(store);
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        const Param& p = table_.params()[static_cast<std::size_t>(id)];
        Slot& slot = slots_[static_cast<std::size_t>(id)];
        slot.bucket = store_->bucket_of(id);
        slot.place = store_->slot(id);
        slot.grad = p.grad;
        slot.count = static_cast<std::size_t>(p.count);
        slot.dtype = p.dtype;
    }
    launcher_.reset_layout(*store_, table_, options_.mean);
    arm();
}

void Reducer::arm() {
    prescale_ = options_.mean && launcher_.uses_default_hook() && !group_->fuses_scale() && group_->world() > 1;
    launcher_.arm(synced_steps_, steps_, prescale_);
}

void Reducer::grad_ready(std::int32_t param) {
    if (param < 0 || param >= table_.size())
        fail(DDP_ERROR_INVALID_ARGUMENT, "ddp_grad_ready: parameter ", param, " does not exist; there are ",
             table_.size());
    if (group_->broken()) group_->check();
    Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kIdle) phase = begin_step();
    if (phase == Phase::kDraining) wrong_phase(phase, param);

    Slot& slot = slots_[static_cast<std::size_t>(param)];
    if (slot.ready.exchange(kYes, std::memory_order_acq_rel) == kYes)
        throw Error({DDP_ERROR_INVALID_STATE,
                     str("ddp_grad_ready: the gradient of '", name(param), "' was announced twice in step ", steps_,
                         "; announce it once it is complete, and call ddp_finalize at the end of the backward pass"),
                     -1, param, slot.bucket, steps_});
    if (phase == Phase::kFillingLocal) {
        slot.waits_for_sync = true;
        return;
    }
    if (recording_) ready_order_[ready_count_.fetch_add(1, std::memory_order_relaxed)] = param;
    put_in_place(slot);
    group_->executor().run_callbacks();
}

// The first gradient of a step decides whether the step communicates.
Reducer::Phase Reducer::begin_step() {
    Phase expected = Phase::kIdle;
    const Phase wanted = sync_ ? Phase::kFilling : Phase::kFillingLocal;
    return phase_.compare_exchange_strong(expected, wanted, std::memory_order_acq_rel) ? wanted : expected;
}

void Reducer::put_in_place(Slot& slot) {
    const double scale = pack_scale(slot.dtype);
    if (slot.grad)
        cpu::scale_copy(slot.place, slot.grad, slot.count, slot.dtype, scale);
    else if (scale != 1)
        cpu::scale_copy(slot.place, slot.place, slot.count, slot.dtype, scale);  // still in this core's cache
    launcher_.gradient_in_place(slot.bucket);
}

// Integers are never divided beforehand: that would lose everything. The group divides their sum.
double Reducer::pack_scale(ddp_dtype dtype) const {
    return prescale_ && is_floating(dtype) ? 1.0 / group_->world() : 1.0;
}

void Reducer::finalize() {
    group_->check();
    Phase phase = phase_.load(std::memory_order_acquire);
    if (phase == Phase::kIdle) phase = begin_step();
    if (phase == Phase::kFillingLocal) return end_local_step();
    if (phase == Phase::kDraining ||
        !phase_.compare_exchange_strong(phase, Phase::kDraining, std::memory_order_acq_rel))
        fail(DDP_ERROR_INVALID_STATE, "ddp_finalize: another thread is inside ddp_finalize of step ", steps_);
    collect_accumulated();
    for (std::size_t b = 0; b < store_->size(); ++b) write_back(launcher_.wait(b));
    end_synced_step();
}

void Reducer::end_local_step() {
    for (std::int32_t id = 0; id < table_.size(); ++id)
        slots_[static_cast<std::size_t>(id)].ready.store(kNo, std::memory_order_relaxed);
    ++steps_;
    arm();
    phase_.store(Phase::kIdle, std::memory_order_release);
}

// Gradients that were announced in local steps only are complete now; any other that is not ready never will be.
void Reducer::collect_accumulated() {
    std::vector<std::int32_t> missing;
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        Slot& slot = slots_[static_cast<std::size_t>(id)];
        if (slot.ready.load(std::memory_order_acquire) == kNo && !slot.waits_for_sync) missing.push_back(id);
    }
    if (!missing.empty()) report_missing(missing);
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        Slot& slot = slots_[static_cast<std::size_t>(id)];
        if (slot.ready.exchange(kYes, std::memory_order_acq_rel) == kYes) continue;
        if (recording_) ready_order_[ready_count_.fetch_add(1, std::memory_order_relaxed)] = id;
        put_in_place(slot);
    }
}

void Reducer::report_missing(const std::vector<std::int32_t>& missing) {
    std::string names;
    for (std::size_t i = 0; i < missing.size() && i < kNamedParams; ++i)
        names += str(i ? ", '" : "'", name(missing[i]), "'");
    if (missing.size() > kNamedParams) names += str(" and ", missing.size() - kNamedParams, " more");
    ErrorInfo error{DDP_ERROR_MISSING_GRADIENT,
                    str("ddp_finalize on rank ", group_->rank(), ", step ", steps_, ": ", missing.size(), " of ",
                        table_.size(), missing.size() == 1 ? " gradients was" : " gradients were",
                        " never announced with ddp_grad_ready: ", names),
                    group_->rank(),
                    missing.front(),
                    slots_[static_cast<std::size_t>(missing.front())].bucket,
                    steps_};
    throw Error(group_->break_everywhere(error));
}

// From where the hook left the result into the gradients: bucket slots for views, the caller's memory for copies.
void Reducer::write_back(const ddp_bucket& bucket) {
    const auto* own = static_cast<const std::byte*>(bucket.buffer);
    const std::size_t own_item = dtype_size(bucket.dtype);
    for (const auto& tensor : bucket.tensors) {
        void* target = slots_[static_cast<std::size_t>(tensor.param)].grad;
        if (!target) target = tensor.gradient;
        const auto count = static_cast<std::size_t>(tensor.count);
        if (!bucket.result) {
            if (target != tensor.gradient) cpu::scale_copy(target, tensor.gradient, count, bucket.dtype, 1);
            continue;
        }
        const auto at = static_cast<std::size_t>(static_cast<const std::byte*>(tensor.gradient) - own) / own_item;
        const auto* source = static_cast<const std::byte*>(bucket.result) + at * dtype_size(bucket.result_dtype);
        if (bucket.result_dtype == bucket.dtype)
            cpu::scale_copy(target, source, count, bucket.dtype, 1);
        else
            cpu::convert(target, bucket.dtype, source, bucket.result_dtype, count);
    }
}

void Reducer::end_synced_step() {
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        Slot& slot = slots_[static_cast<std::size_t>(id)];
        slot.ready.store(kNo, std::memory_order_relaxed);
        slot.waits_for_sync = false;
    }
    ++steps_;
    ++synced_steps_;
    if (recording_) {
        recording_ = false;
        rebuild_due_ = true;
    }
    arm();
    phase_.store(Phase::kIdle, std::memory_order_release);
}

bool Reducer::rebuild() {
    rebuild_due_ = false;
    std::vector<std::int32_t> order = ready_order_;
    group_->run({DDP_COLLECTIVE_BROADCAST, nullptr, order.data(), order.size(), DDP_I32});
    auto plan = make_plan(plan_params(table_), order, {options_.first_cap, options_.cap});
    agree_on_plan(*group_, hash_plan(plan));
    if (plan == store_->plan()) return false;
    log(LogLevel::kInfo, "rank ", group_->rank(), ": rebuilt ", store_->size(), " buckets into ", plan.buckets.size(),
        " in the order in which rank 0's gradients became ready");
    adopt(std::make_unique<BucketStore>(*group_, table_, std::move(plan)));
    return true;
}

void Reducer::set_sync(bool sync) {
    require_idle("ddp_set_sync");
    sync_ = sync;
}

void Reducer::set_hook(CommHook hook) {
    launcher_.set_hook(std::move(hook));
    arm();
}

void Reducer::require_idle(const char* call) const {
    if (!idle())
        fail(DDP_ERROR_INVALID_STATE, call, ": step ", steps_,
             " is under way; call it before the first ddp_grad_ready of a step or after ddp_finalize");
}

void Reducer::wrong_phase(Phase, std::int32_t param) const {
    throw Error({DDP_ERROR_INVALID_STATE,
                 str("ddp_grad_ready: '", name(param), "' came while ddp_finalize of step ", steps_,
                     " was running; announce every gradient before"),
                 -1, param, -1, steps_});
}

}  // namespace libddp
