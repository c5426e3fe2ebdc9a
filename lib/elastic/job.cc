#include "elastic/job.h"

#include <utility>

#include "comm/verdict.h"
#include "util/error.h"
#include "util/log.h"

namespace libddp {
namespace {

// For so many steps a rank that comes or goes waits for the end of a window before a warning.
constexpr std::int64_t kLongWindow = 1'000;

// With the same ranks, of which none is known to be lost.
constexpr int kAttempts = 3;

// Whether those who are left may go on: another rank has gone, stands still, or cannot go on for a
// reason of its host or its program.
bool concerns_others(const ErrorInfo& error, std::int32_t rank) {
    if (may_be_an_echo(error.code)) return true;
    const bool of_one_rank = error.code == DDP_ERROR_OUT_OF_MEMORY || error.code == DDP_ERROR_IO ||
                             error.code == DDP_ERROR_LIMIT || error.code == DDP_ERROR_INTERRUPTED;
    return of_one_rank && error.rank >= 0 && error.rank != rank;
}

}  // namespace

ElasticJob::ElasticJob(std::shared_ptr<Store> store, GroupConfig config,
                       const MembershipOptions& options)
    : groups_(std::move(store), std::move(config)),
      membership_(groups_.store(), groups_.job(), options),
      group_(groups_.alone()) {}

JobParts& ElasticJob::parts_before(const char* what) {
    if (membership_.roster().number > 0)
        fail_call(DDP_ERROR_INVALID_STATE, "the job has begun: ", what);
    return parts_;
}

void ElasticJob::add_context(Context& context) {
    parts_before("contexts and states are added before").add_context(context);
}

void ElasticJob::add_averager(Averager& averager) {
    parts_before("averagers are added before").add_averager(averager);
}

void ElasticJob::add_state(StateBlock block) {
    parts_before("contexts and states are added before").add_state(std::move(block));
}

void ElasticJob::set_steps(std::int64_t steps) {
    parts_before("its steps are counted");
    if (steps < 0) fail_call(DDP_ERROR_INVALID_ARGUMENT, "steps is ", steps);
    applied_.count = steps;
}

void ElasticJob::go_back() {
    Averager* const averager = parts_.averager();
    if (!averager) return;
    if (membership_.roster().number == 0) uncounted_ = steps() - averager->steps();
    averager->go_back();
    if (applied_.count >= 0)
        applied_.count = std::max<std::int64_t>(averager->steps() + uncounted_, 0);
}

// Undoes what the program has done since begin(), as far as that is possible.
void ElasticJob::undo_step() {
    const std::int64_t window = open_.window_steps();
    undone_ = undone_ || open_.begun() || parts_.in_window();
    if (parts_.in_window() || window > 0) undone_window_ = applied_.count - window;
    applied_.count -= window;
    if (!open_.undo(*group_)) applied_.unknown = true;
}

void ElasticJob::begin() {
    membership_.require_present();
    changed_ = false;
    try {
        begin_or_form();
    } catch (const Error& error) {
        if (error.info().code == DDP_ERROR_UNAVAILABLE)
            groups_.explain_loss_of_store(error.info().message);
        throw;
    }
}

void ElasticJob::begin_or_form() {
    if (!group_->broken()) parts_.require_between_steps();
    if (membership_.roster().number > 0) {
        // An error that no loss of a rank has caused would happen again.
        if (group_->broken() && !concerns_others(group_->verdict(), group_->rank()))
            group_->check();
        const bool in_doubt = open_.begun() && open_.in_doubt(*group_);
        if (formed_ && !group_->broken() && !in_doubt && !may_meet()) return open_.begin(*group_);
        undo_step();
        leaving_ = leave_announced_ && !applied_.unknown;
        if (leaving_) return;
    }
    form();
    open_.begin(*group_);
    changed_ = true;
    try {
        membership_.remove_old_keys();
    } catch (const Error& error) {
        log(LogLevel::kWarn, "keys of old rosters stay in the store: ", error.what());
    }
}

// Whether somebody joins or leaves before this step. In a window ranks are not in step with each
// other: the members meet at its end.
bool ElasticJob::may_meet() {
    if (parts_.apart() || !membership_.is_due(applied_.count)) return false;
    const bool is_kept = !parts_.kept() || parts_.kept()->is_kept(applied_.count);
    if (!parts_.in_window() && is_kept) {
        waits_ = 0;
        return true;
    }
    if (++waits_ != kLongWindow) return false;
    if (!is_kept)
        log(LogLevel::kWarn, "step ", applied_.count, ": since ", kLongWindow,
            " steps a rank waits to join or to leave. Ranks do so right after "
            "ddp_elastic_keep_shards");
    else
        log(LogLevel::kWarn, "step ", applied_.count, ": since ", kLongWindow,
            " steps a rank waits to join or to leave. Ranks do so after a step in which every "
            "context of the job is synced that has accumulated gradients; let their unsynced steps "
            "end together");
    return false;
}

KeptShards& ElasticJob::kept_of(const Context& context) const {
    membership_.require_present();
    KeptShards* const kept = parts_.kept();
    if (!kept || &kept->context() != &context)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the job has no context with DDP_CONTEXT_SHARD, or another one; add it with "
                  "ddp_elastic_add_context");
    if (membership_.roster().number == 0)
        fail_call(DDP_ERROR_INVALID_STATE, "the job has not begun; call ddp_elastic_begin first");
    return *kept;
}

void ElasticJob::keep_shards(const Context& context, std::vector<StateArray> arrays,
                             std::int64_t step, ddp_keep where) {
    KeptShards& kept = kept_of(context);
    kept.keep(std::move(arrays), step, where, parts_.added(), parts_.buffers(), [&] {
        if (step < 0) fail_call(DDP_ERROR_INVALID_ARGUMENT, "step is ", step);
        if (kept.waits()) return;
        if (open_.begun())
            fail_call(DDP_ERROR_INVALID_STATE, "step ", applied_.count,
                      " has begun; call it after ddp_elastic_commit");
        if (step != applied_.count)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "step is ", step, ", and the job has applied ",
                      applied_.count);
    });
    applied_.count = step;
}

bool ElasticJob::recall_shards(const Context& context, const std::vector<StateArray>& arrays) {
    return kept_of(context).recall(arrays, parts_.added(), parts_.buffers());
}

// Until a roster begins without a further loss. Each attempt is bounded by the timeout of groups.
// One that fails although nobody was lost is made again a few times only.
void ElasticJob::form() {
    formed_ = false;
    undo_step();
    go_back();
    KeptShards* const kept = parts_.kept();
    if (kept) kept->leave();
    parts_.find_state();
    std::vector<Member> tried;
    for (int attempt = 1;; ++attempt) {
        const Roster& roster = membership_.meet(applied_.told(), [this] {
            if (membership_.roster().number > 0) call_from(*group_);
        });
        applied_.require_known(roster);
        try {
            const std::shared_ptr<Group> group = groups_.join(membership_);
            hand_over(
                *group, roster, parts_, open_, [this] { return groups_.alone(); }, applied_);
            if (parts_.averager()) uncounted_ = applied_.count - parts_.averager()->steps();
            const std::shared_ptr<Group> near =
                kept ? groups_.join_part(membership_, kept->neighbours()) : nullptr;
            parts_.set_group(group);
            if (kept) kept->enter(near);
            group_ = group;
            formed_ = true;
            forget_gradients();
            return;
        } catch (const Error& error) {
            if (std::exchange(tried, roster.members) != roster.members) attempt = 1;
            // Ranks that have trained together have the same model, so the rank with another one is
            // a rank that joins.
            const bool is_theirs = error.info().code == DDP_ERROR_MISMATCH && roster.stayed;
            if (!(concerns_others(error.info(), roster.rank) || is_theirs) || attempt == kAttempts)
                throw;
            log(is_theirs ? LogLevel::kWarn : LogLevel::kInfo, "roster ", roster.number,
                " did not begin: ", error.what());
        }
    }
}

// A program that adds to its gradients begins with nothing: steps that were undone, and its first
// roster, because it may have been left behind within a window and have joined again.
void ElasticJob::forget_gradients() {
    if (!std::exchange(undone_, false)) return;
    parts_.clear_gradients();
    const std::int64_t window = std::exchange(undone_window_, -1);
    if (window < 0) return;
    const Roster& now = roster();
    log(LogLevel::kWarn, "rank ", now.rank, ": roster ", now.number,
        " began within an accumulation window (ranks that left: ", now.left.size(),
        ", that joined: ", now.joined, "). What this rank has accumulated since step ", window,
        " is discarded, and its gradients are zero. All ranks accumulate again from step ",
        applied_.count, " on, which ddp_elastic_begin says now");
}

void ElasticJob::commit() {
    if (!open_.begun())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "no step has begun; each ddp_elastic_begin is committed at most once");
    parts_.require_between_steps();
    open_.commit(*group_, applied_.count);
    ++applied_.count;  // of what this rank holds, whether it counts or not
    const bool formed = std::exchange(formed_, false);
    membership_.confirm_if_in_doubt();  // if that fails, the ranks meet before the next step
    formed_ = formed;
}

void ElasticJob::confirm_member() {
    membership_.require_present();
    if (membership_.roster().number == 0) fail_call(DDP_ERROR_INVALID_STATE, "no step has begun");
    membership_.confirm();
}

void ElasticJob::announce_leave() {
    if (membership_.roster().number == 0)
        fail_call(DDP_ERROR_INVALID_STATE, "the job has not begun; just free it");
    if (!leave_announced_) membership_.announce_leave();
    leave_announced_ = true;
}

void ElasticJob::leave() {
    if (!group_->broken()) parts_.require_between_steps();
    membership_.leave();
    if (parts_.kept()) parts_.kept()->leave();
    group_ = groups_.alone();
    parts_.set_group(group_);
}

}  // namespace libddp
