#include "core/launcher.h"

#include <algorithm>
#include <utility>

#include "comm/link.h"
#include "comm/monitor.h"
#include "kernels/dtype.h"
#include "util/hash.h"
#include "util/interrupt.h"

namespace libddp {
namespace {

// Completes a work, if there is one, however the scope ends.
struct Completion {
    const WorkPtr& work;

    ~Completion() {
        if (work) work->complete({});
    }
};

}  // namespace

void Launcher::set_group(std::shared_ptr<Group> group) {
    group_ = std::move(group);
    while (links_.size() < group_->link_count()) links_.push_back(std::make_unique<ddp_group>());
    for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->impl = group_->link(i);
}

ddp_group& Launcher::link_of(const Slot& slot) const {
    return *links_[static_cast<std::size_t>(slot.bucket.index) % group_->link_count()];
}

void Launcher::set_hook(HookPtr hook) {
    hook_ = std::move(hook);
    hook_hash_ = Hash().add(hook_->name()).add(hook_->options()).value();
    hook_bytes_in_ = 0;
    if (traffic_) copied_before_ = copied_bytes();
    traffic_ = std::make_shared<Traffic>();
    tell_hook_buckets();
}

void Launcher::tell_hook_buckets() const {
    Hook::Buckets buckets;
    buckets.timeout_ms = group_->timeout_ms();
    for (const Slot& slot : slots_) buckets.homes.push_back(slot.bucket.home);
    hook_->set_buckets(buckets);
}

void Launcher::reset_layout(const BucketStore& store, const ParamTable& table, bool mean) {
    plan_hash_ = store.plan_hash();
    slots_.clear();
    pending_ = std::vector<std::atomic<std::int32_t>>(store.size());
    used_ = std::vector<std::atomic<bool>>(store.size());
    for (std::size_t b = 0; b < store.size(); ++b) {
        Slot slot;
        slot.bucket = store.describe(b, table);
        slot.bucket.mean = mean;
        slot.alone = store.plan().buckets[b].alone;
        slot.content = store.plan().buckets[b].content;
        const auto& ids = store.plan().buckets[b].params;
        auto name = [&](std::int32_t id) { return table[id].name; };
        std::string label = str(ids.size() == 1 ? "parameter '" : "parameters '", name(ids.front()), "'");
        if (ids.size() > 1) label += str(" to '", name(ids.back()), "'");
        slot.label = std::make_shared<const std::string>(std::move(label));
        slot.memory = store.memory(b);
        slots_.push_back(std::move(slot));
    }
}

void Launcher::arm(const Step& step, const Participation& participation) {
    step_ = step;
    step_.agreement ^= plan_hash_ ^ hook_hash_;
    Slot* last = nullptr;
    for (std::size_t b = 0; b < slots_.size(); ++b) {
        Slot& slot = slots_[b];
        slot.work = nullptr;
        slot.error = {};
        slot.launched = slot.voted_out = slot.live = slot.has_absent = false;
        std::int32_t expected = 0;
        for (auto& tensor : slot.bucket.tensors) {
            const Role role = participation.role(tensor.param);
            tensor.absent = role != Role::kExpected;
            slot.live = slot.live || role != Role::kAbsent;
            if (role == Role::kExpected)
                ++expected;
            else
                slot.has_absent = true;
        }
        slot.bucket.step = step.synced_steps;
        const bool prescaled = slot.bucket.stream ? step.prescaled_on_devices : step.prescaled;
        slot.bucket.prescaled = prescaled && is_floating(slot.bucket.dtype);  // integers are divided after the sum
        slot.bucket.result = nullptr;
        slot.bucket.done = nullptr;
        slot.bucket.is_last = false;
        if (slot.live && !slot.alone) last = &slot;
        pending_[b].store(expected, std::memory_order_relaxed);
        used_[b].store(false, std::memory_order_relaxed);
    }
    if (last) last->bucket.is_last = true;
    next_ = 0;
    last_called_ = nullptr;
    requests_.store(0, std::memory_order_release);
}

void Launcher::gradient_absent(std::int32_t bucket, std::int32_t param) {
    for (auto& tensor : slots_[static_cast<std::size_t>(bucket)].bucket.tensors)
        if (tensor.param == param) tensor.absent = true;
    gradient_in_place(bucket, /*used=*/false);
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
    slot.launched = true;
    if (!slot.live) return;
    slot.launched_at = Deadline::Clock::now();
    const auto executor = group_->link(static_cast<std::size_t>(slot.bucket.index))->executor();
    const OpTag tag{step_.agreement, step_.step, slot.bucket.index,  slot.label, slot.memory,
                    executor,        nullptr,    slot.bucket.stream, nullptr,    step_.synced_steps};
    try {
        if (slot.has_absent || slot.bucket.stream) owner_.complete_bucket(slot.bucket, place_of(slot));
        slot.work = step_.votes ? start_with_vote(slot, tag) : call_hook(slot, tag);
        if (slot.bucket.stream) mark_end(slot, tag);
    } catch (...) {
        // Tell the others now: they would wait for this bucket.
        slot.error = break_with(in_this_group(caught()), slot);
    }
    if (!slot.work) slot.finished_at = Deadline::Clock::now();
}

Hook::Place Launcher::place_of(Slot& slot) const {
    if (slot.bucket.stream && !slot.alone && !step_.votes) return hook_->place(slot.bucket);
    return {slot.bucket.buffer, slot.bucket.dtype};
}

// Later buckets may have the same stream, so the place is marked when all of this one is enqueued. With a work of the
// program's own Launcher::wait() does that: a continuation would keep its place in the queue, and hold up what follows.
void Launcher::mark_end(Slot& slot, const OpTag& tag) {
    const auto mark = [&slot](const OpTag&) -> WorkPtr {
        slot.bucket.done = slot.bucket.stream->record();
        return nullptr;
    };
    if (!slot.work)
        mark(tag);
    else if (!slot.work->is_user_completed())
        slot.work = slot.work->then(mark, true, tag);
}

// The hook is called in a continuation of the ranks' votes. Where buckets have different queues, each waits until the hook was
// called for those before it.
WorkPtr Launcher::start_with_vote(Slot& slot, const OpTag& tag) {
    WorkPtr turn = ask_for_votes(slot, tag);
    WorkPtr called;
    if (group_->link_count() > 1) {
        called = std::make_shared<Work>(nullptr);
        turn = turn->then([before = std::exchange(last_called_, called)](const OpTag&) { return before; }, true, tag);
    }
    return turn->then(
        [this, &slot, called](const OpTag& inherited) -> WorkPtr {
            const Completion at_end{called};
            slot.voted_out = *slot.ballot == 0;
            if (slot.voted_out) return nullptr;
            return call_hook(slot, inherited);
        },
        hook_->any_thread(), tag);
}

// One byte, the maximum over ranks: 1 if any rank used the bucket. Only then it is sent, in the place of the queue where
// the vote stood.
WorkPtr Launcher::ask_for_votes(Slot& slot, const OpTag& tag) {
    const auto index = static_cast<std::size_t>(slot.bucket.index);
    slot.ballot = std::make_shared<std::uint8_t>(used_[index].load(std::memory_order_relaxed) ? 1 : 0);
    return link_of(slot).impl->submit({DDP_COLLECTIVE_ALLREDUCE, nullptr, slot.ballot.get(), 1, DDP_U8, DDP_MAX},
                                      tag.keeping(slot.ballot));
}

WorkPtr Launcher::call_hook(Slot& slot, OpTag tag) {
    ddp_group& link = link_of(slot);
    if (slot.alone) return owner_.reduce_alone(*link.impl, slot.bucket.tensors.front().param, tag);
    hook_bytes_in_ += slot.content;
    tag.traffic = traffic_;
    return hook_->reduce(link, slot.bucket, tag);
}

OpTag Launcher::step_tag(Purpose purpose) const {
    OpTag tag{step_.agreement, step_.step, -1, nullptr, nullptr, group_->link(0)->executor()};
    tag.synced_steps = step_.synced_steps;
    tag.purpose = purpose;
    return tag;
}

// The verdict of another group, which a hook has used, counts the ranks of that group. One of this group has broken it by now.
ErrorInfo Launcher::in_this_group(ErrorInfo error) const {
    if (error.rank < 0 || group_->broken()) return error;
    error.rank = -1;
    error.message = str("in another group, which counts its own ranks: ", error.message);
    return error;
}

// The result, or why the wait was ended; a work of the program's own knows nothing of the group.
ErrorInfo Launcher::wait_for(Work& work) const {
    try {
        work.wait(std::nullopt);
        return in_this_group(work.result());
    } catch (const Error& error) {
        if (!is_interruption(error.info())) return in_this_group(error.info());
        return interruption(group_->rank(), "a work that the program completes");
    }
}

const ddp_bucket& Launcher::wait(std::size_t index) {
    Slot& slot = slots_[index];
    if (slot.error.ok() && slot.work) {
        slot.error = wait_for(*slot.work);
        if (!slot.error.ok()) slot.error = break_with(slot.error, slot);
    }
    if (!slot.error.ok()) throw Error(slot.error);
    if (slot.live && slot.bucket.stream && !slot.bucket.done) slot.bucket.done = slot.bucket.stream->record();
    if (!slot.launched) {
        group_->check();  // the hook of an earlier bucket failed
        fail(DDP_ERROR_INTERNAL, "bucket ", index, " was not launched although all of its gradients are ready");
    }
    return slot.bucket;
}

void Launcher::tell_travel(StepClock& clock) const {
    for (const Slot& slot : slots_)
        if (slot.launched && slot.live)
            clock.travelled(slot.launched_at, slot.work ? slot.work->finished_at() : slot.finished_at);
}

bool Launcher::in_flight() const {
    for (const auto& slot : slots_)
        if (slot.work && !slot.work->done()) return true;
    return false;
}

void Launcher::drain(const Deadline& deadline) {
    const interrupt::Off off;
    for (auto& slot : slots_)
        if (slot.work && !slot.work->wait(deadline, /*lend=*/false)) return;
}

// The verdict may stem from a rank that knows nothing of buckets, or from the store: then this rank says where it was
// itself.
ErrorInfo Launcher::break_with(ErrorInfo error, const Slot& slot) {
    const std::string where = str("bucket ", slot.bucket.index, " of step ", step_.step, ", ", *slot.label);
    error = on_rank(group_->rank(), std::move(error));
    if (error.bucket < 0) error = with_bucket(std::move(error), slot, str(" (", where, ")"));
    ErrorInfo verdict = group_->break_everywhere(error);
    if (verdict.bucket < 0)
        verdict = with_bucket(std::move(verdict), slot, str(" (rank ", group_->rank(), " was at ", where, ")"));
    return verdict;
}

ErrorInfo Launcher::with_bucket(ErrorInfo error, const Slot& slot, const std::string& text) const {
    error.bucket = slot.bucket.index;
    error.step = step_.step;
    error.message += text;
    return error;
}

}  // namespace libddp
