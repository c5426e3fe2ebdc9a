#include "core/reducer.h"

#include <algorithm>
#include <utility>

#include "comm/link.h"
#include "core/agreement.h"
#include "core/hook_state.h"
#include "core/norms.h"
#include "core/number_check.h"
#include "core/publisher.h"
#include "core/step_check.h"
#include "core/step_votes.h"
#include "core/unused.h"
#include "core/value_check.h"
#include "device/host_copy.h"
#include "util/log.h"

namespace libddp {
namespace {

// How long the destructor waits for reductions that are under way on a healthy group.
constexpr std::int64_t kDrainMs = 1'000;
// More than any rank counts.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 62;

Observers observers_of(const Model& model) {
    Observers result;
    const ReducerOptions& o = model.options.reducer;
    const auto add = [&result](auto observer) {
        auto* const one = observer.get();
        result.all.push_back(std::move(observer));
        return one;
    };
    if (o.find_unused || o.static_graph) result.unused = add(std::make_unique<Unused>(model));
    if (o.check_interval > 0 || o.verify_interval > 0)
        add(std::make_unique<ValueCheck>(
            model.table, std::vector{o.check_interval, o.verify_interval}, o.verify_buffers));
    // Before the next, which asks it.
    if (!model.norms.empty()) result.norms = add(std::make_unique<Norms>(model));
    if (o.nonfinite != Nonfinite::kPass)
        result.numbers =
            add(std::make_unique<NumberCheck>(model.table, o.nonfinite == Nonfinite::kSkip));
    if (o.check) result.check = add(std::make_unique<StepCheck>(model.table));
    if (o.shard) result.publisher = add(std::make_unique<Publisher>());
    if (o.votes) result.votes = add(std::make_unique<StepVotes>());
    return result;
}

void wait_for_devices(const ReducerParts& parts) {
    parts.model.streams.wait(parts.group->timeout_ms(),
                             [&parts] { parts.group->check_in_wait("a device"); });
}

}  // namespace

Reducer::Reducer(std::shared_ptr<Group> group, const ContextNumber& number, const Model& model,
                 HookPtr hook, const std::vector<std::int32_t>& frozen,
                 std::optional<Planner::Buckets> planned)
    : parts_(std::move(group), number, model, std::move(hook), observers_of(model)),
      arrivals_(parts_),
      results_(parts_, arrivals_) {
    parts_.participation.freeze(frozen, true);
    begin_record();
    Planner& planner = parts_.planner;
    const ReducerOptions& options = model.options.reducer;
    planner.set_tunes_caps(options.tune_caps && !planned);
    change_buckets(planned ? planner.lay_out(*planned) : planner.make());
    planner.set_first(parts_.layout->plan());
    agree_on_plan(*parts_.group, number.tag(), parts_.layout->plan_hash());
    if (options.rebuild && !planned) planner.record_order();
}

void Reducer::begin_record() {
    record::AnnouncedStep* announced = nullptr;
    parts_.recorder =
        parts_.group->link(0)->recorder().of_context(parts_.model.param_names(), announced);
    arrivals_.record_in(announced);
    parts_.queue.set_recorder(parts_.recorder);
}

Reducer::~Reducer() {
    end_work();
    try {
        parts_.model.streams.gather();  // buckets are freed in the order of the context's streams
    } catch (const Error& error) {
        log(LogLevel::kWarn, "a context is freed on a device that has failed: ", error.what());
    }
}

void Reducer::end_work() {
    LaunchQueue& queue = parts_.queue;
    Group& group = *parts_.group;
    if (parts_.observers.publisher && !group.broken())
        parts_.observers.publisher->drain(Deadline::after_ms(kDrainMs));
    // The others wait for gradients that this rank will never announce, unless there are no others.
    const bool missed =
        parts_.phase.load(std::memory_order_acquire) == Phase::kFilling && !queue.all_launched();
    if (!missed || group.world() == 1) {
        if (queue.in_flight() && !group.broken()) queue.drain(Deadline::after_ms(kDrainMs));
        if (!queue.in_flight()) return;
    }
    const char* const captured =
        parts_.step->captured() ? ", while it was being captured into a graph" : "";
    // Buckets are about to go: no operation may still write into them.
    const std::int64_t step = parts_.totals.steps;
    group.break_everywhere(
        {DDP_ERROR_ABORTED,
         str("rank ", group.rank(), " freed its context in the middle of step ", step, captured),
         group.rank(), -1, -1, step});
    queue.drain(Deadline::after_ms(kDrainMs));
}

void Reducer::record_plan() const {
    Planner::Buckets buckets;
    for (const PlanBucket& bucket : parts_.layout->plan().buckets) buckets.push_back(bucket.params);
    parts_.recorder.plan(buckets);
}

// The other ranks go on with the new buckets: this one may not stay behind.
void Reducer::change_buckets(BucketPlan plan, Layout::Before buckets) {
    Group& group = *parts_.group;
    try {
        if (parts_.layout) {
            move_gradients(std::move(plan), buckets);
        } else {
            parts_.layout = std::make_unique<Layout>(group, parts_.model, std::move(plan));
            parts_.use_layout();
        }
        layouts_.fetch_add(1, std::memory_order_acq_rel);
        record_plan();
        // the last to do for new buckets: the hook may fail
        parts_.hook.tell_buckets(parts_.queue.homes());
    } catch (...) {
        layouts_.fetch_add(1, std::memory_order_acq_rel);  // some gradients may have moved
        if (group.broken()) throw;
        ErrorInfo info = caught();
        info.rank = group.rank();
        info.message = str("rank ", info.rank, " cannot get its buckets: ", info.message);
        throw Error(group.break_everywhere(info));
    }
}

void Reducer::move_gradients(BucketPlan plan, Layout::Before buckets) {
    wait_for_devices(parts_);  // else each bucket that is given back waits for all that is enqueued
    parts_.queue.reset_layout(nullptr, parts_.model.table);
    try {
        parts_.layout = std::make_unique<Layout>(*parts_.group, parts_.model, std::move(plan),
                                                 *parts_.layout, buckets);
    } catch (...) {
        parts_.use_layout();
        throw;
    }
    parts_.use_layout();
    wait_for_devices(parts_);  // views are there for every stream then
}

void Reducer::begin(double factor, bool sync, std::int64_t share) {
    parts_.step->begin = {true, sync, factor, share};
    parts_.totals.clock.begin();
}

void Reducer::rebuild_if_due(std::int32_t root) {
    if (parts_.planner.due()) rebuild(root);
}

void Reducer::rebuild(std::int32_t root) {
    BucketPlan plan = parts_.planner.next(*parts_.group, *parts_.number, root, *parts_.hook.hook(),
                                          parts_.layout->plan());
    if (plan == parts_.layout->plan()) return;
    log(LogLevel::kInfo, "rank ", parts_.group->rank(), ": rebuilt ", parts_.layout->size(),
        " buckets into ", plan.buckets.size());
    change_buckets(std::move(plan));
    ++parts_.totals.rebuilds;
}

// An unsynced step that is under way stays one: what is set counts from the next step on. So a
// scope of unsynced steps can end in the middle of one, as an exception ends it.
void Reducer::set_sync(bool sync) {
    const Phase phase = parts_.phase.load(std::memory_order_acquire);
    const Step::Begin& begin = parts_.step->begin;
    const bool unsynced = phase == Phase::kFillingLocal || phase == Phase::kClosingLocal ||
                          (begin.told && !begin.sync);
    if (!parts_.group->broken() && !unsynced) {
        require_idle();
        require_not_begun();
    }
    parts_.sync = sync;
}

void Reducer::require_not_begun() const {
    if (parts_.step->begin.told)
        parts_.refuse_in_step(str("step ", parts_.totals.steps,
                                  " has begun; where ranks exchange what they do, call it before "
                                  "ddp_step_begin"));
}

void Reducer::set_hook(HookPtr hook) {
    // what the hook before has kept is freed in the order of the context's streams
    parts_.model.streams.gather();
    parts_.hook.set(std::move(hook), parts_.queue.homes());
    parts_.planner.restart_tuning();
}

void Reducer::set_frozen(const std::vector<std::int32_t>& params, bool frozen) {
    require_idle();
    parts_.participation.freeze(params, frozen);
    if (!parts_.model.options.reducer.shard) parts_.planner.set_due(true);
    parts_.next_step(parts_.step->begin);
}

void Reducer::skip(std::vector<std::int32_t> params, std::int32_t authority) {
    require_idle();
    if (parts_.model.options.join)
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "with DDP_CONTEXT_JOIN a rank without inputs could not know the choice");
    if (authority < -1 || authority >= parts_.group->world())
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "authority is ", authority,
                  "; it must be a rank from 0 to ", parts_.group->world() - 1, ", or -1");
    for (auto id : params) parts_.model.table.require(id);
    if (authority >= 0) {
        const OpTag tag = parts_.number->tag(Purpose::kSkip);
        auto count = static_cast<std::int64_t>(params.size());
        parts_.group->run(
            {DDP_COLLECTIVE_BROADCAST, nullptr, &count, 1, DDP_I64, DDP_SUM, authority}, tag);
        if (count < 0)
            throw Error({DDP_ERROR_IO,
                         str("rank ", authority, " sent ", count, " as its number of parameters"),
                         authority});
        params.resize(static_cast<std::size_t>(count));
        if (count > 0)
            parts_.group->run({DDP_COLLECTIVE_BROADCAST, nullptr, params.data(), params.size(),
                               DDP_I32, DDP_SUM, authority},
                              tag);
        for (auto id : params) parts_.model.table.require(id);
    }
    parts_.participation.skip(params);
    parts_.next_step(parts_.step->begin);
}

Planner& Reducer::planner() {
    require_idle();
    if (parts_.model.options.reducer.shard)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "with DDP_CONTEXT_SHARD the buckets decide who owns what, so they stay as "
                  "ddp_commit made them; call ddp_plan_adopt before it for another plan");
    return parts_.planner;
}

std::vector<std::byte> Reducer::hook_state() const {
    const Hook& hook = *parts_.hook.hook();
    parts_.model.streams.gather();
    HookState state;
    hook.save(state);
    return write_hook_state(state, {hook.name(), parts_.group->rank(), parts_.group->world()},
                            parts_.model.table, parts_.group->timeout_ms());
}

void Reducer::load_hook_state(const std::byte* data, std::size_t size, bool shared_only) {
    Hook& hook = *parts_.hook.hook();
    HookState state =
        read_hook_state(data, size, {hook.name(), parts_.group->rank(), parts_.group->world()},
                        parts_.model.table, shared_only);
    parts_.model.streams.gather();
    state.copies = std::make_shared<HostCopies>(parts_.group->timeout_ms());
    for (auto& array : state.arrays)
        if (array.param >= 0)
            array.home = parts_.model.streams.stream(parts_.model.table[array.param].device);
    hook.load(state);
}

// Gradients that are reduced in place do not move out of the way of what may still write into them.
// Then the new group breaks at once: its other ranks would wait.
void Reducer::leave_group(Group& next) {
    if (parts_.observers.publisher) parts_.observers.publisher->leave_group(parts_);
    parts_.queue.drain(Deadline::after_ms(kDrainMs));
    if (!parts_.group->broken()) parts_.queue.finish_comparisons(/*of_step_before=*/false);
    parts_.model.streams.gather();
    std::string why;
    std::int32_t param = -1;
    if (parts_.queue.in_flight(/*in_place_only=*/true)) {
        why = "a reduction of the old group has not ended";
    } else if (parts_.group->broken() && parts_.group->shares_memory()) {
        const auto& params = parts_.model.table.params();
        const auto shared = std::find_if(params.begin(), params.end(), [](const Param& p) {
            return p.in_place.memory && p.in_place.shared && !p.ignored;
        });
        if (shared != params.end()) {
            param = static_cast<std::int32_t>(shared - params.begin());
            why =
                str("a rank of the old group may have stopped in the middle of a reduction, and go "
                    "on later; '",
                    shared->name, "' lies in memory of ddp_mem_alloc");
        }
    }
    if (why.empty()) return;
    throw Error(next.break_everywhere(
        {DDP_ERROR_ABORTED,
         str("rank ", next.rank(),
             " cannot take its context to another group, because something may still write into "
             "gradients that are reduced in place: ",
             why, "; free the context, and make another with gradients in other memory"),
         next.rank(), param}));
}

void Reducer::set_group(std::shared_ptr<Group> group, const ContextNumber& number) {
    if (!parts_.group->broken())
        require_idle();
    else if (parts_.observers.votes)
        parts_.observers.votes->recast();
    Publisher* const publisher = parts_.observers.publisher;
    // An operation of the old group may still write, or another rank of it: then that memory is
    // left to them. The new group may reach only memory of its own.
    const bool move = parts_.queue.in_flight() || parts_.group->shares_memory() ||
                      group->shares_memory() || !parts_.model.streams.empty() ||
                      !parts_.layout->intact() || publisher;
    parts_.group = std::move(group);
    parts_.number = &number;
    parts_.hook.set_group(parts_.group, number);
    begin_record();
    record_plan();
    parts_.queue.forget_comparisons();
    parts_.gradients.forget_window();
    parts_.gradients.leave_group();
    const bool any_differ = agree_on_counts(publisher && publisher->torn());
    parts_.forget_step();
    // other ranks use other parameters, and one may have no record yet
    parts_.participation.forget_record();
    BucketPlan plan = parts_.planner.common(*parts_.group, number, parts_.layout->plan());
    parts_.step->begin = {};
    if (move)
        change_buckets(std::move(plan), Layout::Before::kMustMove);
    else if (plan != parts_.layout->plan())
        change_buckets(std::move(plan));
    else
        parts_.next_step();
    if (publisher) publisher->enter_group(parts_, any_differ);
    parts_.phase.store(Phase::kIdle, std::memory_order_release);
}

// Ranks that come from elsewhere have counted differently. Ranks on which the last step or a
// rebuild failed are behind the others. True: values differ on one of them.
bool Reducer::agree_on_counts(bool differ) {
    Totals& totals = parts_.totals;
    Planner& planner = parts_.planner;
    Hook& hook = *parts_.hook.hook();
    hook.forget_step(totals.synced_steps);
    std::int64_t counts[] = {
        totals.steps,         totals.synced_steps, planner.due(), planner.recording(),
        planner.tunes_caps(), hook.steps(),        differ};
    parts_.group->run(
        {DDP_COLLECTIVE_ALLREDUCE, nullptr, counts, std::size(counts), DDP_I64, DDP_MAX},
        parts_.number->tag(Purpose::kSetGroup));
    if (counts[0] < totals.steps || counts[1] < totals.synced_steps || counts[0] > kMostSteps ||
        counts[1] > counts[0] || counts[5] < hook.steps() || counts[5] > kMostSteps)
        throw Error(parts_.group->break_everywhere(
            {DDP_ERROR_IO, str("a rank has sent ", counts[0], ", ", counts[1], " and ", counts[5],
                               " as its numbers of steps; its memory is damaged")}));
    totals.steps = counts[0];
    totals.synced_steps = counts[1];
    totals.means = Means::kNone;
    totals.update = 0;
    planner.set_due(counts[2] != 0);
    if (counts[3] != 0) planner.record_order();
    planner.set_tunes_caps(counts[4] != 0);
    if (hook.steps() != counts[5]) hook.resume(counts[5]);
    return counts[6] != 0;
}

void Reducer::clear_gradients() {
    require_idle();
    for (std::int32_t id = 0; id < parts_.model.table.size(); ++id) {
        const ParamState& s = parts_.gradients[id];
        if (s.sparse || s.streams || s.now.role == Role::kIgnored ||
            parts_.participation.frozen(id))
            continue;
        HostGradients::clear_home({}, s);
    }
}

void Reducer::copy_out(std::int32_t param, void* memory, void* stream) {
    parts_.group->check();
    require_idle();
    parts_.gradients.copy_out(param, memory, stream);
}

void Reducer::require_idle() const {
    if (idle()) return;
    parts_.group->check();  // a broken step does not end
    parts_.refuse_in_step(str(
        "step ", parts_.totals.steps,
        " is under way; call it before the first ddp_grad_ready of a step or after ddp_finalize"));
}

}  // namespace libddp
