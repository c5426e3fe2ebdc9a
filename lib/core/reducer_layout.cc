// What happens between steps: plans, buckets, roles, another group.
#include <algorithm>

#include "comm/link.h"
#include "core/agreement.h"
#include "core/reducer.h"
#include "util/log.h"

namespace libddp {
namespace {

// How long the destructor waits for reductions that are under way on a healthy group.
constexpr std::int64_t kDrainMs = 1'000;
// More than any rank counts.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 62;

std::vector<std::int32_t> reduced_in_reverse(const ParamTable& table) {
    std::vector<std::int32_t> order = reverse_order(table.params().size());
    std::erase_if(order, [&table](std::int32_t id) { return table[id].ignored; });
    return order;
}

}  // namespace

Reducer::Reducer(std::shared_ptr<Group> group, const ContextNumber& number, const ParamTable& table,
                 const ContextStreams& streams, ReducerOptions options, HookPtr hook,
                 const std::vector<std::int32_t>& frozen, std::optional<std::vector<std::vector<std::int32_t>>> planned)
    : group_(std::move(group)),
      number_(&number),
      table_(table),
      streams_(streams),
      options_(std::move(options)),
      queue_(group_, number, *this),
      participation_(table),
      order_(reduced_in_reverse(table)),
      used_map_(table.params().size()),
      on_host_(table),
      on_devices_(table, streams),
      sparse_(table),
      factors_(table),
      used_(table.params().size()) {
    queue_.set_hook(std::move(hook));
    participation_.freeze(frozen, true);
    if (options_.check_interval > 0 || options_.verify_interval > 0)
        values_ = std::make_unique<ValueCheck>(table_, std::vector{options_.check_interval, options_.verify_interval},
                                               options_.verify_buffers);
    if (options_.nonfinite != Nonfinite::kPass)
        numbers_ = std::make_unique<NumberCheck>(table_, options_.nonfinite == Nonfinite::kSkip);
    sparse_.prepare();
    factors_.prepare();
    states_ = std::vector<ParamState>(table_.params().size());
    begin_record();
    set_tunes_caps(options_.tune_caps && !planned);
    change_buckets(planned ? lay_out(plan_params(), *planned) : make_next_plan(caps()));
    initial_plan_ = store_->plan();
    agree_on_plan(*group_, number_->tag(), store_->plan_hash());
    if (options_.rebuild && !planned) order_.start();
}

void Reducer::begin_record() {
    std::vector<std::string> names;
    for (const Param& p : table_.params()) names.push_back(p.name);
    recorder_ = group_->link(0)->recorder().of_context(names, announced_);
    queue_.set_recorder(recorder_);
}

Reducer::~Reducer() {
    end_work();
    try {
        streams_.gather();  // buckets are freed in the order of the context's streams
    } catch (const Error& error) {
        log(LogLevel::kWarn, "a context is freed on a device that has failed: ", error.what());
    }
}

void Reducer::end_work() {
    // The others wait for gradients that this rank will never announce, unless there are no others.
    const bool missed = phase_.load(std::memory_order_acquire) == Phase::kFilling && !queue_.all_launched();
    if (!missed || group_->world() == 1) {
        if (queue_.in_flight() && !group_->broken()) queue_.drain(Deadline::after_ms(kDrainMs));
        if (!queue_.in_flight()) return;
    }
    // Buckets are about to go: no operation may still write into them.
    group_->break_everywhere({DDP_ERROR_ABORTED,
                              str("rank ", group_->rank(), " freed its context in the middle of step ", steps_),
                              group_->rank(), -1, -1, steps_});
    queue_.drain(Deadline::after_ms(kDrainMs));
}

void Reducer::record_plan() const {
    std::vector<std::vector<std::int32_t>> buckets;
    for (const PlanBucket& bucket : store_->plan().buckets) buckets.push_back(bucket.params);
    recorder_.plan(buckets);
}

std::vector<PlanParam> Reducer::plan_params() const {
    std::vector<PlanParam> result;
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        const Param& p = table_[id];
        const BucketClass bucket_class = participation_.frozen(id) ? BucketClass::kFrozen
                                         : p.delayed               ? BucketClass::kDelayed
                                                                   : BucketClass::kNormal;
        result.push_back(
            {p.bytes, p.dtype, p.device, bucket_class, p.alone(), p.sparse, p.place != nullptr, p.follows});
    }
    return result;
}

BucketPlan Reducer::make_next_plan(const std::vector<std::size_t>& caps) const {
    return make_plan(plan_params(), order_.agreed(), caps);
}

// The other ranks go on with the new buckets: this one may not stay behind.
void Reducer::change_buckets(BucketPlan plan) {
    try {
        // Its memory is as large as that of the buckets.
        if (options_.check && !check_) check_ = std::make_unique<StepCheck>(table_);
        adopt(std::make_unique<BucketStore>(*group_, table_, streams_, std::move(plan)));
    } catch (...) {
        if (group_->broken()) throw;
        ErrorInfo info = caught();
        info.rank = group_->rank();
        info.message = str("rank ", info.rank, " cannot get its buckets: ", info.message);
        throw Error(group_->break_everywhere(info));
    }
}

void Reducer::adopt(std::unique_ptr<BucketStore> store) {
    if (store_) {
        store->copy_from(*store_, table_);
        if (check_) check_->move_views();
        // Views are there for every stream then. And registered memory is given back when its device is done with it, which each
        // bucket would wait for by itself.
        streams_.wait(group_->timeout_ms(), [this] { group_->check_in_wait("a device"); });
    }
    store_ = std::move(store);
    layouts_.fetch_add(1, std::memory_order_acq_rel);
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        const Param& p = table_[id];
        ParamState& s = state(id);
        s.bucket = store_->bucket_of(id);
        s.sparse = p.sparse;
        s.factored = p.factored;
        s.streams = streams_.find(p.device);
        s.place = store_->place(id);
        s.grad = check_ && !p.grad ? check_->view(id) : p.grad;
        s.count = static_cast<std::size_t>(p.count);
        s.bytes = p.bytes;
        s.dtype = p.dtype;
        s.uses = p.uses;
    }
    record_plan();
    on_devices_.reset_layout(*store_);
    queue_.reset_layout(*store_, table_, options_.mean);
    arm();
    queue_.tell_hook_buckets();
}

// Nothing of a step is left: neither what it learnt nor how it was begun.
void Reducer::forget_step() {
    used_map_.clear();
    on_host_.forget_step();
    on_devices_.forget_step();
    if (check_) check_->forget_step();
    if (values_) values_->forget_step();
    if (numbers_) numbers_->forget_step();
    undecided_.clear();
    discarding_ = shadowing_ = false;
    begun_ = false;
    factor_ = 1;
}

void Reducer::arm() {
    for (std::int32_t id = 0; id < table_.size(); ++id) state(id).role = participation_.role(id);
    on_devices_.arm(participation_);
    queue_.arm({synced_steps_, steps_, participation_.hash(), options_.votes && group_->world() > 1}, participation_);
}

std::byte* Reducer::view(std::int32_t param) const {
    const Param& p = table_[param];
    if (p.in_place && p.grad) return static_cast<std::byte*>(p.grad);  // a check copies from there
    return check_ && !p.grad ? check_->view(param) : store_->place(param);
}

std::vector<std::shared_ptr<const void>> Reducer::view_memory() const {
    auto memory = store_->all_memory();
    if (check_) memory.push_back(check_->memory());
    return memory;
}

void Reducer::rebuild(std::int32_t root) {
    rebuild_due_ = false;
    BucketPlan plan;
    if (next_plan_) {
        plan = std::move(*next_plan_);
        next_plan_.reset();
        set_tunes_caps(false);
    } else {
        order_.agree(*group_, number_->tag(), root, options_.consensus_order);
        if (tuning()) tune();
        plan = make_next_plan(caps());
    }
    agree_on_plan(*group_, number_->tag(), hash_plan(plan));
    if (plan == store_->plan()) return;
    log(LogLevel::kInfo, "rank ", group_->rank(), ": rebuilt ", store_->size(), " buckets into ", plan.buckets.size());
    change_buckets(std::move(plan));
    ++rebuilds_;
}

void Reducer::set_tunes_caps(bool tunes) {
    tuner_.reset();
    if (tunes) tuner_.emplace(options_.first_cap, options_.caps.back());
}

// The ranks' steps take equally long, but for noise: the mean has less of it.
void Reducer::tune() {
    if (!tuner_->due()) return tuner_->skip_step();
    double step_ms = tuner_->step_ms();
    group_->run({DDP_COLLECTIVE_ALLREDUCE, nullptr, &step_ms, 1, DDP_F64, DDP_AVG}, number_->tag(Purpose::kPlan));
    tuner_->advance(step_ms, [this](const CapTuner::Caps& caps) { return make_next_plan(caps); });
    if (tuner_->done() && group_->rank() == 0) log(LogLevel::kInfo, "rank 0 chose ", tuner_->text());
}

// An unsynced step that is under way stays one: what is set counts from the next step on. So a scope of unsynced steps can end in the
// middle of one, as an exception ends it.
void Reducer::set_sync(bool sync) {
    const Phase phase = phase_.load(std::memory_order_acquire);
    const bool unsynced = phase == Phase::kFillingLocal || phase == Phase::kClosingLocal || (begun_ && !begun_sync_);
    if (!group_->broken() && !unsynced) {
        require_idle();
        require_not_begun();
    }
    sync_ = sync;
}

void Reducer::require_not_begun() const {
    if (begun_)
        fail_call(DDP_ERROR_INVALID_STATE, "step ", steps_,
                  " has begun; where ranks exchange what they do, call it before ddp_step_begin");
}

void Reducer::set_hook(HookPtr hook) {
    streams_.gather();  // what the hook before has kept is freed in the order of the context's streams
    queue_.set_hook(std::move(hook));
    if (tuner_) tuner_->restart();
    arm();
}

void Reducer::set_frozen(const std::vector<std::int32_t>& params, bool frozen) {
    require_idle();
    participation_.freeze(params, frozen);
    rebuild_due_ = true;
    arm();
}

void Reducer::skip(const std::vector<std::int32_t>& params) {
    require_idle();
    participation_.skip(params);
    arm();
}

void Reducer::request_rebuild() {
    require_idle();
    order_.start();
}

void Reducer::keep_plan() {
    require_idle();
    if (order_.recording()) order_.finish();
    rebuild_due_ = false;
}

void Reducer::adopt_plan(std::vector<std::vector<std::int32_t>> buckets) {
    require_idle();
    next_plan_ = lay_out(plan_params(), buckets);
    rebuild_due_ = true;
}

// Gradients that are reduced in place do not move out of the way of what may still write into them. Then the new group breaks at
// once: its other ranks would wait.
void Reducer::leave_group(Group& next) {
    queue_.drain(Deadline::after_ms(kDrainMs));
    streams_.gather();
    std::string why;
    if (queue_.in_flight_in_place()) {
        why = "a reduction of the old group has not ended";
    } else if (group_->broken() && group_->shares_memory()) {
        const auto& params = table_.params();
        const auto shared = std::find_if(params.begin(), params.end(),
                                         [](const Param& p) { return p.place && p.shared && !p.ignored; });
        if (shared != params.end())
            why = str("a rank of the old group may have stopped in the middle of a reduction, and go on later; '",
                      shared->name, "' lies in memory of ddp_mem_alloc");
    }
    if (why.empty()) return;
    throw Error(next.break_everywhere({DDP_ERROR_ABORTED,
                                       str("rank ", next.rank(),
                                           " cannot take its context to another group, because something may still "
                                           "write into gradients that are reduced in place: ",
                                           why, "; free the context, and make another with gradients in other memory"),
                                       next.rank()}));
}

// That of rank 0. A rank may have another if a rebuild has failed there.
BucketPlan Reducer::common_plan() {
    const BucketPlan& mine = store_->plan();
    if (group_->world() == 1) return mine;
    std::vector<std::vector<std::int32_t>> lists;
    try {
        lists = plan_of_rank_0(*group_, number_->tag(), mine, table_);
    } catch (const CallError& error) {
        throw Error(group_->break_everywhere(error.info()));
    }
    const bool same = std::equal(lists.begin(), lists.end(), mine.buckets.begin(), mine.buckets.end(),
                                 [](const auto& list, const PlanBucket& bucket) { return list == bucket.params; });
    BucketPlan plan = same ? mine : lay_out(plan_params(), lists);
    agree_on_plan(*group_, number_->tag(), hash_plan(plan));
    return plan;
}

void Reducer::set_group(std::shared_ptr<Group> group, const ContextNumber& number) {
    if (!group_->broken()) require_idle();
    // An operation of the old group may still write, or another rank of it: then that memory is left to them. The new group
    // may reach only memory of its own.
    const bool move = queue_.in_flight() || group_->shares_memory() || group->shares_memory() || !streams_.empty();
    group_ = std::move(group);
    number_ = &number;
    queue_.set_group(group_, number);
    begin_record();
    record_plan();
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        state(id).calls.store(0, std::memory_order_relaxed);
        state(id).waits_for_sync.store(false, std::memory_order_relaxed);
        forget_given(id);
    }
    accumulates_ = false;
    factors_.prepare();
    Hook& hook = *queue_.hook();
    hook.forget_step(synced_steps_);
    // Ranks that come from elsewhere have counted differently. Those on which the last step or a rebuild failed are behind the others.
    std::int64_t counts[] = {steps_, synced_steps_, rebuild_due_, order_.recording(), tunes_caps(), hook.steps()};
    group_->run({DDP_COLLECTIVE_ALLREDUCE, nullptr, counts, std::size(counts), DDP_I64, DDP_MAX},
                number_->tag(Purpose::kSetGroup));
    if (counts[0] < steps_ || counts[1] < synced_steps_ || counts[0] > kMostSteps || counts[1] > counts[0] ||
        counts[5] < hook.steps() || counts[5] > kMostSteps)
        throw Error(group_->break_everywhere(
            {DDP_ERROR_IO, str("a rank has sent ", counts[0], ", ", counts[1], " and ", counts[5],
                               " as its numbers of steps; its memory is damaged")}));
    steps_ = counts[0];
    synced_steps_ = counts[1];
    forget_step();
    rebuild_due_ = counts[2] != 0;
    if (counts[3] != 0) order_.start();
    set_tunes_caps(counts[4] != 0);
    if (hook.steps() != counts[5]) hook.resume(counts[5]);
    participation_.forget_record();  // other ranks use other parameters, and one may have no record yet
    BucketPlan plan = common_plan();
    if (move || plan != store_->plan())
        change_buckets(std::move(plan));
    else
        arm();
    phase_.store(Phase::kIdle, std::memory_order_release);
}

void Reducer::clear_gradients() {
    require_idle();
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        const ParamState& s = state(id);
        if (s.sparse || s.streams || s.role == Role::kIgnored || participation_.frozen(id)) continue;
        HostGradients::clear_home({}, s);
    }
}

void Reducer::require_idle() const {
    if (idle()) return;
    group_->check();  // a broken step does not end
    fail_call(DDP_ERROR_INVALID_STATE, "step ", steps_,
              " is under way; call it before the first ddp_grad_ready of a step or after ddp_finalize");
}

}  // namespace libddp
