#include "core/launch_queue.h"

#include <algorithm>
#include <utility>

#include "comm/link.h"
#include "comm/monitor.h"
#include "kernels/dtype.h"
#include "util/hash.h"
#include "util/interrupt.h"
#include "util/process.h"

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

void LaunchQueue::set_group(std::shared_ptr<Group> group, const ContextNumber& number) {
    group_ = std::move(group);
    number_ = &number;
    while (links_.size() < group_->link_count()) links_.push_back(std::make_unique<ddp_group>());
    for (std::size_t i = 0; i < links_.size(); ++i) links_[i]->impl = group_->link(i);
}

ddp_group& LaunchQueue::link_of(const Entry& entry) const {
    return *links_[static_cast<std::size_t>(entry.bucket.index) % group_->link_count()];
}

void LaunchQueue::set_hook(HookPtr hook) {
    hook_ = std::move(hook);
    hook_hash_ = static_cast<std::uint32_t>(Hash().add(hook_->name()).add(hook_->options()).value());
    hook_bytes_in_ = 0;
    if (traffic_) copied_before_ = copied_bytes();
    traffic_ = std::make_shared<Traffic>();
    tell_hook_buckets();
}

void LaunchQueue::tell_hook_buckets() const {
    Hook::Buckets buckets;
    buckets.timeout_ms = group_->timeout_ms();
    for (const Entry& entry : *entries_) buckets.homes.push_back(entry.bucket.home);
    hook_->set_buckets(buckets);
}

void LaunchQueue::reset_layout(const BucketStore& store, const ParamTable& table, bool mean) {
    plan_hash_ = store.plan_hash();
    entries_ = std::make_shared<std::vector<Entry>>();  // what is under way has the old ones
    pending_ = std::vector<std::atomic<std::int32_t>>(store.size());
    used_ = std::vector<std::atomic<bool>>(store.size());
    for (std::size_t b = 0; b < store.size(); ++b) {
        Entry entry;
        entry.bucket = store.describe(b, table);
        entry.bucket.mean = mean;
        entry.alone = store.plan().buckets[b].alone;
        entry.in_place = store.plan().buckets[b].in_place;
        entry.content = store.plan().buckets[b].content;
        const auto& ids = store.plan().buckets[b].params;
        auto name = [&](std::int32_t id) { return table[id].name; };
        std::string label = str(ids.size() == 1 ? "parameter '" : "parameters '", name(ids.front()), "'");
        if (ids.size() > 1) label += str(" to '", name(ids.back()), "'");
        entry.label = std::make_shared<const std::string>(std::move(label));
        entry.memory = store.memory(b);
        entries_->push_back(std::move(entry));
    }
}

void LaunchQueue::arm(const Step& step, const Participation& participation) {
    step_ = step;
    step_.agreement ^= plan_hash_;
    Entry* last = nullptr;
    for (std::size_t b = 0; b < entries_->size(); ++b) {
        Entry& entry = (*entries_)[b];
        entry.work = nullptr;
        entry.error = {};
        entry.launched = entry.voted_out = entry.live = entry.has_absent = false;
        std::int32_t expected = 0;
        for (auto& tensor : entry.bucket.tensors) {
            const Role role = participation.role(tensor.param);
            tensor.absent = role != Role::kExpected;
            entry.live = entry.live || role != Role::kAbsent;
            if (role == Role::kExpected)
                ++expected;
            else
                entry.has_absent = true;
        }
        entry.bucket.step = step.synced_steps;
        entry.bucket.result = nullptr;
        entry.bucket.done = nullptr;
        entry.bucket.is_last = false;
        if (entry.live && !entry.alone) last = &entry;
        pending_[b].store(expected, std::memory_order_relaxed);
        used_[b].store(false, std::memory_order_relaxed);
    }
    if (last) last->bucket.is_last = true;
    next_ = 0;
    last_called_ = nullptr;
    requests_.store(0, std::memory_order_release);
}

void LaunchQueue::gradient_absent(std::int32_t bucket, std::int32_t param) {
    for (auto& tensor : (*entries_)[static_cast<std::size_t>(bucket)].bucket.tensors)
        if (tensor.param == param) tensor.absent = true;
    gradient_in_place(bucket, /*used=*/false);
}

// The first to come launches; whoever comes while it does leaves a request, and it looks again before it goes.
void LaunchQueue::launch_ready() {
    if (requests_.fetch_add(1, std::memory_order_acq_rel) != 0) return;
    const auto may_launch = [this] {
        if (next_ == entries_->size() || pending_[next_].load(std::memory_order_acquire) != 0) return false;
        return next_ == 0 || (*entries_)[next_ - 1].error.ok();  // a hook failed: nothing after it makes sense
    };
    std::uint32_t served = 1;
    for (;;) {
        while (may_launch()) launch((*entries_)[next_++]);
        std::uint32_t before = requests_.fetch_sub(served, std::memory_order_acq_rel);
        if (before == served) return;
        served = before - served;
    }
}

void LaunchQueue::launch(Entry& entry) {
    entry.launched = true;
    if (!entry.live) return;
    const NoCancellation uncancelled;
    entry.launched_at = Deadline::Clock::now();
    record_launch(entry, record::EventKind::kLaunch, record::to_ns(entry.launched_at));
    // Hooks use the bucket as well as its memory.
    OpTag tag = number_->tag().keeping(std::shared_ptr<Entry>(entries_, &entry));
    tag.plan = step_.agreement;
    tag.step = step_.step;
    tag.hook = hook_hash_;
    tag.bucket = entry.bucket.index;
    tag.label = entry.label;
    tag.executor = group_->link(static_cast<std::size_t>(entry.bucket.index))->executor();
    tag.borrowers = entry.borrowers;
    tag.stream = entry.bucket.stream;
    tag.synced_steps = step_.synced_steps;
    try {
        if (entry.has_absent || entry.bucket.stream) owner_.complete_bucket(entry.bucket, target_of(entry));
        entry.work = step_.votes ? start_with_vote(entry, tag) : call_hook(entry, tag);
        if (entry.bucket.stream) mark_end(entry, tag);
    } catch (...) {
        // Tell the others now: they would wait for this bucket.
        entry.error = break_with(in_this_group(caught()), entry);
    }
    if (!entry.work) entry.finished_at = Deadline::Clock::now();
}

Hook::Target LaunchQueue::target_of(Entry& entry) const {
    if (entry.bucket.stream && !entry.alone && !step_.votes) return hook_->target(entry.bucket);
    return {entry.bucket.buffer, entry.bucket.dtype};
}

// Later buckets may have the same stream, so the place is marked when all of this one is enqueued. With a work of the
// program's own LaunchQueue::wait() does that: a continuation would keep its place in the queue, and hold up what follows.
void LaunchQueue::mark_end(Entry& entry, const OpTag& tag) {
    const auto mark = [&entry](const OpTag&) -> WorkPtr {
        entry.bucket.done = entry.bucket.stream->record();
        return nullptr;
    };
    if (!entry.work)
        mark(tag);
    else if (!entry.work->is_user_completed())
        entry.work = entry.work->then(mark, true, tag);
}

// The hook is called in a continuation of the ranks' votes. Where buckets have different queues, each waits until the hook was
// called for those before it.
WorkPtr LaunchQueue::start_with_vote(Entry& entry, const OpTag& tag) {
    WorkPtr turn = ask_for_votes(entry, tag);
    WorkPtr called;
    if (group_->link_count() > 1) {
        called = std::make_shared<Work>(nullptr);
        turn = turn->then([before = std::exchange(last_called_, called)](const OpTag&) { return before; }, true, tag);
    }
    return turn->then(
        [this, &entry, called](const OpTag& inherited) -> WorkPtr {
            const Completion at_end{called};
            entry.voted_out = *entry.ballot == 0;
            if (entry.voted_out) return nullptr;
            return call_hook(entry, inherited);
        },
        hook_->any_thread(), tag);
}

// One byte, the maximum over ranks: 1 if any rank used the bucket. Only then it is sent, in the place of the queue where
// the vote stood.
WorkPtr LaunchQueue::ask_for_votes(Entry& entry, const OpTag& tag) {
    const auto index = static_cast<std::size_t>(entry.bucket.index);
    entry.ballot = std::make_shared<std::uint8_t>(used_[index].load(std::memory_order_relaxed) ? 1 : 0);
    return link_of(entry).impl->submit({DDP_COLLECTIVE_ALLREDUCE, nullptr, entry.ballot.get(), 1, DDP_U8, DDP_MAX},
                                       tag.keeping(entry.ballot));
}

WorkPtr LaunchQueue::call_hook(Entry& entry, OpTag tag) {
    ddp_group& link = link_of(entry);
    if (entry.alone) return owner_.reduce_alone(*link.impl, entry.bucket.tensors.front().param, tag);
    hook_bytes_in_ += entry.content;
    tag.traffic = traffic_;
    if (!recorder_) return hook_->reduce(link, entry.bucket, tag);
    const std::int64_t since = record::now_ns();
    record_launch(entry, record::EventKind::kHookBegin, since);
    WorkPtr work = hook_->reduce(link, entry.bucket, tag);
    record_launch(entry, record::EventKind::kHookEnd, record::now_ns(), since);
    return work;
}

void LaunchQueue::record_launch(const Entry& entry, record::EventKind kind, std::int64_t at_ns,
                                std::int64_t since_ns) const {
    recorder_.write({.kind = kind,
                     .step = step_.step,
                     .bucket = entry.bucket.index,
                     .bytes = entry.content,
                     .since_ns = since_ns,
                     .time_ns = at_ns});
}

OpTag LaunchQueue::step_tag(Purpose purpose) const {
    OpTag tag = number_->tag(purpose);
    tag.plan = step_.agreement;
    tag.hook = hook_hash_;
    tag.step = step_.step;
    tag.executor = group_->link(0)->executor();
    tag.synced_steps = step_.synced_steps;
    return tag;
}

// The verdict of another group, which a hook has used, counts the ranks of that group. One of this group has broken it by now.
ErrorInfo LaunchQueue::in_this_group(ErrorInfo error) const {
    if (error.rank < 0 || group_->broken()) return error;
    error.rank = -1;
    error.message = str("in another group, which counts its own ranks: ", error.message);
    return error;
}

const ddp_bucket& LaunchQueue::wait(std::size_t index) {
    Entry& entry = (*entries_)[index];
    if (entry.error.ok() && entry.work) {
        try {
            entry.work->wait(std::nullopt);
            entry.error = in_this_group(entry.work->result());
        } catch (const Error& error) {
            // A work of the program's own knows nothing of the group.
            entry.error = is_interruption(error.info())
                              ? interruption(group_->rank(), "a work that the program completes")
                              : in_this_group(error.info());
        }
        if (!entry.error.ok()) entry.error = break_with(entry.error, entry);
    }
    if (!entry.error.ok()) throw Error(entry.error);
    if (entry.live && entry.bucket.stream && !entry.bucket.done) entry.bucket.done = entry.bucket.stream->record();
    if (!entry.launched) {
        group_->check();  // the hook of an earlier bucket failed
        fail(DDP_ERROR_INTERNAL, "bucket ", index, " was not launched although all of its gradients are ready");
    }
    return entry.bucket;
}

void LaunchQueue::tell_travel(StepClock& clock) const {
    for (const Entry& entry : *entries_)
        if (entry.launched && entry.live)
            clock.travelled(entry.launched_at, entry.work ? entry.work->finished_at() : entry.finished_at);
}

bool LaunchQueue::in_flight() const {
    return std::any_of(entries_->begin(), entries_->end(), [](const Entry& entry) { return entry.in_flight(); });
}

bool LaunchQueue::in_flight_in_place() const {
    return std::any_of(entries_->begin(), entries_->end(),
                       [](const Entry& entry) { return entry.in_place && entry.in_flight(); });
}

void LaunchQueue::drain(const Deadline& deadline) {
    const interrupt::Off off;
    for (auto& entry : *entries_)
        if (entry.work && !entry.work->wait(deadline, /*lend=*/false)) return;
}

// The verdict may stem from a rank that knows nothing of buckets, or from the store: then this rank says where it was
// itself.
ErrorInfo LaunchQueue::break_with(ErrorInfo error, const Entry& entry) {
    const std::string where = str("bucket ", entry.bucket.index, " of step ", step_.step, ", ", *entry.label);
    error = on_rank(group_->rank(), std::move(error));
    if (error.bucket < 0) error = with_bucket(std::move(error), entry, str(" (", where, ")"));
    ErrorInfo verdict = group_->break_everywhere(error);
    if (verdict.bucket < 0)
        verdict = with_bucket(std::move(verdict), entry, str(" (rank ", group_->rank(), " was at ", where, ")"));
    return verdict;
}

ErrorInfo LaunchQueue::with_bucket(ErrorInfo error, const Entry& entry, const std::string& text) const {
    error.bucket = entry.bucket.index;
    error.step = step_.step;
    error.message += text;
    return error;
}

}  // namespace libddp
