#include "core/launch_queue.h"

#include <algorithm>
#include <utility>

#include "comm/link.h"
#include "comm/verdict.h"
#include "core/step_votes.h"
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

void LaunchQueue::reset_layout(const Layout* layout, const ParamTable& table) {
    const std::size_t size = layout ? layout->size() : 0;
    plan_hash_ = layout ? layout->plan_hash() : 0;
    // what is under way has the old ones
    entries_ = std::make_shared<std::vector<Entry>>(size);
    pending_ = std::vector<std::atomic<std::int32_t>>(size);
    for (std::size_t b = 0; b < size; ++b) {
        Entry& entry = (*entries_)[b];
        const PlanBucket& planned = layout->plan().buckets[b];
        entry.bucket = layout->describe(b);
        entry.sections = entry.bucket.sections;
        entry.alone = planned.alone;
        entry.in_place = planned.in_place;
        entry.content = planned.content;
        const auto& ids = planned.params;
        auto name = [&](std::int32_t id) { return table[id].name; };
        std::string label =
            str(ids.size() == 1 ? "parameter '" : "parameters '", name(ids.front()), "'");
        if (ids.size() > 1) label += str(" to '", name(ids.back()), "'");
        entry.label = std::make_shared<const std::string>(std::move(label));
        entry.memory = layout->memory(b);
    }
}

void LaunchQueue::set_take(std::size_t bucket, Collective::Take take) {
    Entry& entry = (*entries_)[bucket];
    entry.taking = nullptr;
    if (!take) return;
    auto sections =
        entry.sections ? *entry.sections : std::vector<BucketSection>{{0, entry.bucket.count}};
    for (BucketSection& section : sections) section.take = take;
    entry.taking = std::make_shared<const std::vector<BucketSection>>(std::move(sections));
}

std::vector<StreamPtr> LaunchQueue::homes() const {
    std::vector<StreamPtr> homes;
    for (const Entry& entry : *entries_) homes.push_back(entry.bucket.home);
    return homes;
}

void LaunchQueue::begin_step(Step& step, const Participation& participation) {
    step_ = &step;
    step_->agreement = participation.hash() ^ plan_hash_;
    Entry* last = nullptr;
    last_live_ = nullptr;
    for (std::size_t b = 0; b < entries_->size(); ++b) {
        Entry& entry = (*entries_)[b];
        renew(entry.now);
        std::int32_t expected = 0;
        for (auto& tensor : entry.bucket.tensors) {
            const Role role = participation.role(tensor.param);
            tensor.absent = role != Role::kExpected;
            entry.now.live = entry.now.live || role != Role::kAbsent;
            if (role == Role::kExpected)
                ++expected;
            else
                entry.now.has_absent = true;
        }
        entry.bucket.step = step.synced_number;
        entry.bucket.result = nullptr;
        entry.bucket.done = nullptr;
        entry.bucket.sections = entry.sections;
        entry.bucket.is_last = false;
        if (entry.now.live) last_live_ = &entry;
        if (entry.now.live && !entry.alone) last = &entry;
        pending_[b].store(expected, std::memory_order_relaxed);
    }
    if (last) last->bucket.is_last = true;
}

void LaunchQueue::gradient_absent(std::int32_t bucket, std::int32_t param) {
    for (auto& tensor : (*entries_)[static_cast<std::size_t>(bucket)].bucket.tensors)
        if (tensor.param == param) tensor.absent = true;
    gradient_in_place(bucket, /*used=*/false);
}

// The first to come launches; whoever comes while it does leaves a request, and it looks again
// before it goes. A request releases a bucket to the thread that launches, and takes over from the
// one that launched before.
void LaunchQueue::launch_ready() {
    Step& step = *step_;
    if (step.requests.fetch_add(1, std::memory_order_acq_rel) != 0) return;
    const auto may_launch = [this, &step] {
        if (step.next == entries_->size() ||
            pending_[step.next].load(std::memory_order_acquire) != 0)
            return false;
        return step.next == 0 ||
               // a hook failed: nothing after it makes sense
               (*entries_)[step.next - 1].now.error.ok();
    };
    std::uint32_t served = 1;
    for (;;) {
        while (may_launch()) launch((*entries_)[step.next++]);
        std::uint32_t before = step.requests.fetch_sub(served, std::memory_order_acq_rel);
        if (before == served) return;
        served = before - served;
    }
}

void LaunchQueue::launch(Entry& entry) {
    Launch& now = entry.now;
    now.launched = true;
    if (!now.live) return;
    const NoCancellation uncancelled;
    now.launched_at = Deadline::Clock::now();
    OpTag tag = tag_of(entry);
    if (votes_ && &entry == last_live_) {
        const bool waited_for = entry.alone || hook_.hook()->ends_last();
        tag.carried = votes_->depart(
            *step_, waited_for ? hook_.link_of(entry.bucket).impl->link(0).get() : nullptr);
    }
    record_launch(entry, record::EventKind::kLaunch, record::to_ns(now.launched_at));
    try {
        if (now.has_absent || entry.bucket.stream)
            gradients_.complete(entry.bucket, target_of(entry), *step_);
        now.work = step_->ballots ? start_with_vote(entry, tag) : reduce(entry, tag);
        if (entry.bucket.stream) mark_end(entry, tag);
    } catch (...) {
        // Tell the others now: they would wait for this bucket.
        now.error = break_with(in_this_group(caught()), entry);
    }
    if (!now.work) now.finished_at = Deadline::Clock::now();
}

// Hooks use the bucket as well as its memory.
OpTag LaunchQueue::tag_of(const Entry& entry) const {
    const auto link = hook_.group().link(static_cast<std::size_t>(entry.bucket.index));
    OpTag tag{.facts = facts(step_->captured() ? Purpose::kGraph : Purpose::kProgram),
              .order = {link->executor(), entry.bucket.stream},
              .memory = {std::shared_ptr<const Entry>(entries_, &entry), nullptr, entry.borrowers},
              .label = entry.label};
    tag.facts.bucket = entry.bucket.index;
    if (entry.bucket.stream) tag.comparisons = comparisons_;
    return tag;
}

Hook::Target LaunchQueue::target_of(Entry& entry) const {
    if (entry.bucket.stream && !entry.alone && !step_->ballots)
        return hook_.hook()->target(entry.bucket);
    return {entry.bucket.buffer, entry.bucket.dtype};
}

// Later buckets may have the same stream, so the place is marked when all of this one is enqueued.
// With a work of the program's own LaunchQueue::wait() does that: a continuation would keep its
// place in the queue, and hold up what follows.
void LaunchQueue::mark_end(Entry& entry, const OpTag& tag) {
    const auto mark = [&entry](const OpTag&) -> WorkPtr {
        entry.bucket.done = entry.bucket.stream->record();
        return nullptr;
    };
    WorkPtr& work = entry.now.work;
    if (!work)
        mark(tag);
    else if (!work->is_user_completed())
        work = work->then(mark, true, tag);
}

// The hook is called in a continuation of the ranks' votes. Where buckets have different queues,
// each waits until the hook was called for those before it.
WorkPtr LaunchQueue::start_with_vote(Entry& entry, const OpTag& tag) {
    WorkPtr turn = ask_for_votes(entry, tag);
    WorkPtr called;
    if (hook_.group().link_count() > 1) {
        called = std::make_shared<Work>(nullptr);
        turn = turn->then(
            [before = std::exchange(step_->last_called, called)](const OpTag&) { return before; },
            true, tag);
    }
    return turn->then(
        [this, &entry, called](const OpTag& inherited) -> WorkPtr {
            const Completion at_end{called};
            entry.now.voted_out = *entry.now.ballot == 0;
            if (entry.now.voted_out) return nullptr;
            return reduce(entry, inherited);
        },
        hook_.hook()->any_thread(), tag);
}

// One byte, the maximum over ranks: 1 if any rank used the bucket. Only then it is sent, in the
// place of the queue where the vote stood.
WorkPtr LaunchQueue::ask_for_votes(Entry& entry, const OpTag& tag) {
    std::shared_ptr<std::uint8_t>& ballot = entry.now.ballot;
    ballot = std::make_shared<std::uint8_t>(entry.now.used.load(std::memory_order_relaxed) ? 1 : 0);
    return hook_.link_of(entry.bucket)
        .impl->submit({DDP_COLLECTIVE_ALLREDUCE, nullptr, ballot.get(), 1, DDP_U8, DDP_MAX},
                      tag.keeping(ballot));
}

WorkPtr LaunchQueue::reduce(Entry& entry, OpTag tag) {
    ddp_group& link = hook_.link_of(entry.bucket);
    if (entry.alone)
        return gradients_.reduce_alone(*link.impl, entry.bucket.tensors.front().param, *step_, tag);
    tag.traffic = hook_.given(entry.content);
    Hook& hook = *hook_.running();
    if (hook.is_allreduce() && entry.taking) entry.bucket.sections = entry.taking;
    if (!recorder_) return hook.reduce(link, entry.bucket, tag);
    const std::int64_t since = record::now_ns();
    record_launch(entry, record::EventKind::kHookBegin, since);
    WorkPtr work = hook.reduce(link, entry.bucket, tag);
    record_launch(entry, record::EventKind::kHookEnd, record::now_ns(), since);
    return work;
}

void LaunchQueue::record_launch(const Entry& entry, record::EventKind kind, std::int64_t at_ns,
                                std::int64_t since_ns) const {
    recorder_.write({.kind = kind,
                     .step = step_->number,
                     .bucket = entry.bucket.index,
                     .bytes = entry.content,
                     .since_ns = since_ns,
                     .time_ns = at_ns});
}

void LaunchQueue::finish_comparisons(bool of_step_before) try {
    const auto wait = [](const std::vector<WorkPtr>& due) {
        for (const WorkPtr& comparison : due) wait_for_comparison(*comparison);
    };
    wait(std::exchange(left_behind_, comparisons_->take()));
    if (!of_step_before) wait(std::exchange(left_behind_, {}));
} catch (const Error& error) {
    // A hook may reduce in a group of its own.
    Group& group = hook_.group();
    throw Error(group.break_everywhere(on_rank(group.rank(), in_this_group(error.info()))));
}

void LaunchQueue::forget_comparisons() {
    left_behind_.clear();
    comparisons_ = std::make_shared<Comparisons>();  // old operations still have the other one
}

OpTag LaunchQueue::step_tag(Purpose purpose) const {
    return {.facts = facts(purpose), .order = {.queue = hook_.group().link(0)->executor()}};
}

OpFacts LaunchQueue::facts(Purpose purpose) const {
    OpFacts facts = hook_.facts(purpose);
    facts.plan = step_->agreement;
    facts.step = step_->number;
    facts.synced_steps = step_->synced_number;
    return facts;
}

// The verdict of another group, which a hook has used, counts the ranks of that group. One of this
// group has broken it by now.
ErrorInfo LaunchQueue::in_this_group(ErrorInfo error) const {
    if (error.rank < 0 || hook_.group().broken()) return error;
    error.rank = -1;
    error.message = str("in another group, which counts its own ranks: ", error.message);
    return error;
}

const ddp_bucket& LaunchQueue::wait(std::size_t index) {
    Entry& entry = (*entries_)[index];
    Launch& now = entry.now;
    if (now.error.ok() && now.work) {
        try {
            now.work->wait(std::nullopt);
            now.error = in_this_group(now.work->result());
        } catch (const Error& error) {
            // A work of the program's own knows nothing of the group.
            now.error =
                is_interruption(error.info())
                    ? interruption(hook_.group().rank(), "a work that the program completes")
                    : in_this_group(error.info());
        }
        if (!now.error.ok()) now.error = break_with(now.error, entry);
    }
    if (!now.error.ok()) throw Error(now.error);
    if (now.live && entry.bucket.stream && !entry.bucket.done)
        entry.bucket.done = entry.bucket.stream->record();
    if (!now.launched) {
        hook_.group().check();  // the hook of an earlier bucket failed
        fail(DDP_ERROR_INTERNAL, "bucket ", index,
             " was not launched although all of its gradients are ready");
    }
    return entry.bucket;
}

void LaunchQueue::tell_travel(StepClock& clock) const {
    for (const Entry& entry : *entries_) {
        const Launch& now = entry.now;
        if (now.launched && now.live)
            clock.travelled(now.launched_at, now.work ? now.work->finished_at() : now.finished_at);
    }
}

bool LaunchQueue::in_flight(bool in_place_only) const {
    return std::any_of(entries_->begin(), entries_->end(), [in_place_only](const Entry& entry) {
        return (entry.in_place || !in_place_only) && entry.in_flight();
    });
}

void LaunchQueue::drain(const Deadline& deadline) {
    const interrupt::Off off;
    for (auto& entry : *entries_)
        if (entry.now.work && !entry.now.work->wait(deadline, /*lend=*/false)) return;
}

// The verdict may stem from a rank that knows nothing of buckets, or from the store: then this rank
// says where it was itself.
ErrorInfo LaunchQueue::break_with(ErrorInfo error, const Entry& entry) {
    const std::string where =
        str("bucket ", entry.bucket.index, " of step ", step_->number, ", ", *entry.label);
    error = on_rank(hook_.group().rank(), std::move(error));
    const auto complete = [&](ErrorInfo& named, const std::string& text) {
        if (named.bucket >= 0) return;
        named.bucket = entry.bucket.index;
        named.step = step_->number;
        named.message += text;
    };
    complete(error, str(" (", where, ")"));
    ErrorInfo verdict = hook_.group().break_everywhere(error);
    complete(verdict, str(" (rank ", hook_.group().rank(), " was at ", where, ")"));
    return verdict;
}

}  // namespace libddp
