#include "elastic/job.h"

#include <algorithm>
#include <cstring>

#include "comm/round_robin.h"
#include "comm/verdict.h"
#include "elastic/keys.h"
#include "util/error.h"
#include "util/log.h"

namespace libddp {
namespace {

// State travels in pieces of this size, of which each of those who have it sends one in turn.
constexpr std::size_t kPiece = std::size_t{16} << 20;

// For so many steps a rank that comes or goes waits for the end of a window before a warning.
constexpr std::int64_t kLongWindow = 1'000;

// With the same ranks, of which none is known to be lost.
constexpr int kAttempts = 3;

// How long the store has to answer one whose connection has ended.
constexpr std::int64_t kStoreMs = 1'000;

OpTag healing() {
    return OpTag::of(Purpose::kSetGroup);
}

void broadcast(Group& group, void* memory, std::size_t bytes, std::int32_t root) {
    if (bytes > 0) group.run({DDP_COLLECTIVE_BROADCAST, nullptr, memory, bytes, DDP_U8, DDP_SUM, root}, healing());
}

template <class Bytes>
void broadcast_all(Group& group, Bytes& bytes, std::int32_t root) {
    std::uint64_t size = bytes.size();
    broadcast(group, &size, sizeof size, root);
    bytes.resize(size);
    broadcast(group, bytes.data(), size, root);
}

// In turn each donor sends a piece of all blocks together: a model has many small ones, and each collective waits for every rank. Returns
// what this rank has got; a donor keeps what it has.
std::vector<std::byte> send_blocks(Group& group, const StateBlocks& blocks, const std::vector<std::int32_t>& donors,
                                   bool gives) {
    const std::size_t total = bytes_of(blocks);
    std::size_t turn = 0;
    std::vector<std::byte> got(gives ? std::min(total, kPiece) : total);
    for (std::size_t begin = 0; begin < total; begin += kPiece, ++turn) {
        const std::size_t bytes = std::min(kPiece, total - begin);
        const std::int32_t root = donors[turn % donors.size()];
        std::byte* const piece = got.data() + (gives ? 0 : begin);
        if (root == group.rank()) copy_piece(blocks, begin, bytes, piece);
        broadcast(group, piece, bytes, root);
    }
    return got;
}

// Whether those who are left may go on: another rank has gone, stands still, or cannot go on for a reason of its host or its program.
bool concerns_others(const ErrorInfo& error, std::int32_t rank) {
    if (may_be_an_echo(error.code)) return true;
    const bool of_one_rank = error.code == DDP_ERROR_OUT_OF_MEMORY || error.code == DDP_ERROR_IO ||
                             error.code == DDP_ERROR_LIMIT || error.code == DDP_ERROR_INTERRUPTED;
    return of_one_rank && error.rank >= 0 && error.rank != rank;
}

}  // namespace

ElasticJob::ElasticJob(std::shared_ptr<Store> store, GroupConfig config, const MembershipOptions& options)
    : store_(std::move(store)),
      config_(std::move(config)),
      membership_(store_, config_.name, options),
      group_(make_alone()) {}

void ElasticJob::require_not_begun(const char* what) const {
    if (membership_.roster().number > 0) fail_call(DDP_ERROR_INVALID_STATE, "the job has begun: ", what);
}

void ElasticJob::add_context(Context& context) {
    require_not_begun("contexts and states are added before");
    context.committed();
    for (const auto* list : {&context.model().table.params(), &context.model().table.buffers()})
        for (const Param& param : *list)
            if (param.data && !is_cpu(param.device))
                fail_call(DDP_ERROR_UNSUPPORTED, "'", param.name, "' is on ", device_name(param.device),
                          "; an elastic job has its state in memory of the CPU");
    parts_.contexts.push_back(&context);
    numbers_.push_back(context.number().value());
}

void ElasticJob::add_averager(Averager& averager) {
    require_not_begun("averagers are added before");
    if (std::find(parts_.contexts.begin(), parts_.contexts.end(), &averager.context()) == parts_.contexts.end())
        fail_call(DDP_ERROR_INVALID_STATE, "the averager's context is not in the job; add that first");
    if (averager.periods() > 1)
        fail_call(DDP_ERROR_UNSUPPORTED, "the averager has ", averager.periods(),
                  " periods; in an elastic job, whose ranks change, it has one");
    if (!averager.has_outer())
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the averager has no outer optimizer, so there is nothing to go back to when a rank is lost; call "
                  "ddp_averager_set_outer. DDP_OUTER_SGD with learning_rate 1 and momentum 0 is the plain average");
    if (averager_) fail_call(DDP_ERROR_UNSUPPORTED, "the job has an averager; it has no more than one");
    averager_ = &averager;
}

void ElasticJob::add_state(StateBlock block) {
    require_not_begun("contexts and states are added before");
    for (const StateBlock& other : own_blocks_)
        if (other.name == block.name) fail_call(DDP_ERROR_ALREADY_EXISTS, "there is a state '", block.name, "'");
    own_blocks_.push_back(std::move(block));
}

void ElasticJob::set_steps(std::int64_t steps) {
    require_not_begun("its steps are counted");
    if (steps < 0) fail_call(DDP_ERROR_INVALID_ARGUMENT, "steps is ", steps);
    steps_ = steps;
}

bool ElasticJob::apart() const {
    return averager_ && averager_->steps() != averager_->shared_steps();
}

bool ElasticJob::in_window() const {
    return std::any_of(parts_.contexts.begin(), parts_.contexts.end(),
                       [](const Context* context) { return context->committed().parts().gradients.any_waits(); });
}

void ElasticJob::go_back() {
    if (!averager_) return;
    if (membership_.roster().number == 0) uncounted_ = steps() - averager_->steps();
    averager_->go_back();
    if (steps_ >= 0) steps_ = std::max<std::int64_t>(averager_->steps() + uncounted_, 0);
}

// Undoes what the program has done since begin(), as far as that is possible.
void ElasticJob::undo_step() {
    undone_ = undone_ || begun_ || in_window();
    if (in_window() || window_steps_ > 0) undone_window_ = steps_ - window_steps_;
    steps_ -= std::exchange(window_steps_, 0);
    begun_ = false;
    if (averager_goes_back()) return open_.commit();
    if (averager_ && open_.is_open()) averager_->set_steps(averager_steps_);
    if (!open_.undo(parts_, *group_)) state_unknown_ = true;
}

void ElasticJob::open_step() {
    begun_ = true;
    if (averager_goes_back()) return open_.commit();
    if (averager_ && !open_.is_open()) averager_steps_ = averager_->steps();
    const bool early = std::any_of(parts_.contexts.begin(), parts_.contexts.end(),
                                   [](const Context* context) { return context->committed().results().come_early(); });
    open_.begin(parts_, *group_, !has_committed_ || needs_copies_ || early);
}

void ElasticJob::require_known_state(const Roster& roster) const {
    const std::int64_t known = roster.members[static_cast<std::size_t>(roster.donors().front())].steps;
    if (!state_unknown_ || known >= steps_) return;
    fail_call(DDP_ERROR_INVALID_STATE, "step ", steps_,
              " had its mean gradients and was not committed, so it may be in the values or not, and no rank knows: "
              "steps before called "
              "nothing between ddp_finalize and ddp_elastic_commit, and so no copy of the state was kept. Begin again "
              "from a checkpoint. "
              "Commit each step that was finalized, also one that is left out, and call collectives before "
              "ddp_finalize or after "
              "ddp_elastic_commit");
}

void ElasticJob::begin() {
    membership_.require_present();
    changed_ = false;
    try {
        begin_or_form();
    } catch (const Error& error) {
        if (error.info().code == DDP_ERROR_UNAVAILABLE) explain_loss_of_store(error.info().message);
        throw;
    }
}

void ElasticJob::begin_or_form() {
    if (!group_->broken())
        for (const Context* context : parts_.contexts) context->require_between_steps();
    if (membership_.roster().number > 0) {
        // An error that no loss of a rank has caused would happen again.
        if (group_->broken() && !concerns_others(group_->verdict(), group_->rank())) group_->check();
        const bool in_doubt = begun_ && open_.in_doubt(parts_, *group_);
        if (formed_ && !group_->broken() && !in_doubt && !may_meet()) return open_step();
        undo_step();
        leaving_ = leave_announced_ && !state_unknown_;
        if (leaving_) return;
    }
    form();
    open_step();
    changed_ = true;
    try {
        membership_.remove_old_keys();
    } catch (const Error& error) {
        log(LogLevel::kWarn, "keys of old rosters stay in the store: ", error.what());
    }
}

// Whether somebody joins or leaves before this step. In a window ranks are not in step with each other: the members meet at its end.
bool ElasticJob::may_meet() {
    if (apart() || !membership_.is_due(steps_)) return false;
    if (!in_window()) {
        waits_ = 0;
        return true;
    }
    if (++waits_ == kLongWindow)
        log(LogLevel::kWarn, "step ", steps_, ": since ", kLongWindow,
            " steps a rank waits to join or to leave. Ranks do so after a step in which every context of the job is "
            "synced that has accumulated gradients; let their unsynced steps end together");
    return false;
}

// A process whose connection to the store has ended counts as dead, even if the store still runs. Returns if it has not ended.
void ElasticJob::explain_loss_of_store(const std::string& reason) const {
    try {
        store_->answers(kStoreMs);
        return;
    } catch (const Error&) {  // what ended it is in `reason`
    }
    try {
        store_->reconnect(kStoreMs);
    } catch (const Error&) {
        fail(DDP_ERROR_UNAVAILABLE, reason, "; free the job, and create it again when the store can be reached");
    }
    fail(DDP_ERROR_RANK_FAILED, "this rank was cut off from the store, and the others go on without this rank (",
         reason, "); free the job, and create it again to get their state");
}

// Until a roster begins without a further loss. Each attempt is bounded by the timeout of groups. One that fails although nobody was lost
// is made again a few times only.
void ElasticJob::form() {
    formed_ = false;
    undo_step();
    go_back();
    find_state();
    std::vector<Member> tried;
    for (int attempt = 1;; ++attempt) {
        const std::int64_t steps = state_unknown_ ? -1 : has_had_state_ ? steps_ : loaded_steps(steps_);
        const Roster& roster = membership_.meet(steps, [this] { call_from_group(); });
        require_known_state(roster);
        try {
            const std::shared_ptr<Group> group = make_group(roster);
            heal(*group, roster);
            for (Context* context : parts_.contexts) context->set_group(group);
            group_ = group;
            formed_ = true;
            forget_gradients();
            return;
        } catch (const Error& error) {
            if (std::exchange(tried, roster.members) != roster.members) attempt = 1;
            const std::size_t stay = roster.members.size() - static_cast<std::size_t>(roster.joined);
            // Ranks that have trained together have the same model, so the rank with another one is a rank that joins.
            const bool is_theirs =
                error.info().code == DDP_ERROR_MISMATCH && static_cast<std::size_t>(roster.rank) < stay;
            if (!(concerns_others(error.info(), roster.rank) || is_theirs) || attempt == kAttempts) throw;
            log(is_theirs ? LogLevel::kWarn : LogLevel::kInfo, "roster ", roster.number,
                " did not begin: ", error.what());
        }
    }
}

// A program that adds to its gradients begins with nothing: steps that were undone, and its first roster, because it may have been left
// behind within a window and have joined again.
void ElasticJob::forget_gradients() {
    if (!std::exchange(undone_, false)) return;
    for (Context* context : parts_.contexts) context->committed().clear_gradients();
    const std::int64_t window = std::exchange(undone_window_, -1);
    if (window < 0) return;
    const Roster& now = roster();
    log(LogLevel::kWarn, "rank ", now.rank, ": roster ", now.number,
        " began within an accumulation window (ranks that left: ", now.left.size(), ", that joined: ", now.joined,
        "). What this rank has accumulated since step ", window,
        " is discarded, and its gradients are zero. All ranks accumulate again from step ", steps_,
        " on, which ddp_elastic_begin says now");
}

// A rank that has not heard that the members meet waits for this rank in a collective.
void ElasticJob::call_from_group() {
    if (membership_.roster().number > 0 && !group_->broken())
        group_->break_everywhere({DDP_ERROR_ABORTED,
                                  str("rank ", group_->rank(), " waits in ddp_elastic_begin for a new roster"),
                                  group_->rank()});
}

std::shared_ptr<Group> ElasticJob::make_alone() const {
    GroupConfig alone = config_;
    alone.rank = 0;
    alone.world = 1;
    alone.store = store_;
    alone.name = config_.name + " alone";
    return create_group(alone);
}

std::shared_ptr<Group> ElasticJob::make_group(const Roster& roster) const {
    GroupConfig config = config_;
    config.rank = roster.rank;
    config.world = static_cast<std::int32_t>(roster.members.size());
    config.store = store_;
    config.prefix = elastic_keys::kJobs + config_.name + "/group/" + std::to_string(roster.number) + "/";
    config.absent = [this] { return membership_.lost_member(); };
    return create_group(config);
}

// Contexts are committed, and what is added stays where it is.
void ElasticJob::find_state() {
    parts_.state.clear();
    parts_.buffers.clear();
    for (const Context* context : parts_.contexts) {
        const ParamTable& table = context->model().table;
        for (const auto& [list, blocks] :
             {std::pair(&table.params(), &parts_.state), {&table.buffers(), &parts_.buffers}})
            for (const Param& param : *list)
                if (param.data && !param.ignored)
                    blocks->push_back({param.name, static_cast<std::byte*>(param.data), param.bytes});
    }
    parts_.state.insert(parts_.state.end(), own_blocks_.begin(), own_blocks_.end());
}

// Contexts of one shape would be taken for each other if a rank added them in another order.
std::string ElasticJob::order_of_creation() const {
    if (numbers_.size() < 2) return "";
    std::string text;
    for (const std::int32_t number : numbers_)
        text += str(text.empty() ? "" : ", ",
                    std::count_if(numbers_.begin(), numbers_.end(), [number](auto other) { return other < number; }));
    return str(", which it created in the order ", text);
}

void ElasticJob::compare_blocks(Group& group) const {
    std::vector<std::string> lines;
    for (const auto* blocks : {&parts_.state, &parts_.buffers})
        for (const StateBlock& block : *blocks) lines.push_back(str("'", block.name, "' of ", block.bytes, " bytes"));
    if (averager_) lines.push_back(str("an averager ", averager_->rhythm()));
    agree_on_model(group, {},
                   str(parts_.contexts.size(), " contexts", order_of_creation(), ", ", lines.size(), " states"), lines);
}

// Donors have equally many steps and must hold the same bits. If they differ, the largest set of donors that are alike gives its bits, and
// of equally large sets the one with the lowest rank. In the same message each rank says whether the program needs copies.
std::vector<std::int32_t> ElasticJob::agree_on_donors(Group& group, std::vector<std::int32_t> donors) {
    struct Claim {
        std::uint64_t hash = 0, needs_copies = 0;
    };
    const auto is_donor = [&](std::int32_t rank) {
        return std::find(donors.begin(), donors.end(), rank) != donors.end();
    };
    std::vector<Claim> claims(static_cast<std::size_t>(group.world()));
    Claim& mine = claims[static_cast<std::size_t>(group.rank())];
    mine.needs_copies = needs_copies_ ? 1 : 0;
    if (donors.size() > 1 && is_donor(group.rank())) mine.hash = hash_of(parts_.state);
    group.run({DDP_COLLECTIVE_ALLGATHER, nullptr, claims.data(), sizeof(Claim), DDP_U8}, healing());
    for (const Claim& claim : claims) needs_copies_ = needs_copies_ || claim.needs_copies != 0;

    const auto hash = [&](std::int32_t rank) { return claims[static_cast<std::size_t>(rank)].hash; };
    const auto count = [&](std::int32_t rank) {
        return std::count_if(donors.begin(), donors.end(),
                             [&](std::int32_t other) { return hash(other) == hash(rank); });
    };
    const std::int32_t best = *std::max_element(donors.begin(), donors.end(), [&](std::int32_t a, std::int32_t b) {
        return count(a) < count(b);  // the first of equals, which is the lowest rank
    });
    std::vector<std::int32_t> alike, others;
    for (const std::int32_t rank : donors) (hash(rank) == hash(best) ? alike : others).push_back(rank);
    if (!others.empty() && (group.rank() == best || hash(group.rank()) != hash(best)) && is_donor(group.rank()))
        log(LogLevel::kWarn, ranks_text(others), " and ", ranks_text(alike), " have other bits after the same step, ",
            std::max<std::int64_t>(membership_.roster().newest(), 0), "; all get those of ", ranks_text(alike),
            ". What the program adds to the job must change alike on every rank");
    return alike;
}

// The state arrives in memory of its own first: if the group breaks meanwhile, this rank still has what it had.
void ElasticJob::heal(Group& group, const Roster& roster) {
    compare_blocks(group);
    const std::int64_t newest = roster.newest();
    std::vector<std::int32_t> donors = roster.donors();
    // Ranks that train apart have momenta, and values until the first outer step, of their own.
    if (averager_) donors = {donors.front()};
    donors = agree_on_donors(group, std::move(donors));
    const bool gives = std::find(donors.begin(), donors.end(), roster.rank) != donors.end();
    std::vector<std::byte> values, buffers;
    if (donors.size() < roster.members.size()) values = send_blocks(group, parts_.state, donors, gives);
    // Each rank's forward passes have changed its own: one speaks for all.
    const bool gives_buffers = roster.rank == donors.front();
    if (roster.members.size() > 1) buffers = send_blocks(group, parts_.buffers, {donors.front()}, gives_buffers);
    for (Context* context : parts_.contexts) context->set_group(make_alone());
    open_.take_hooks_back(parts_);
    std::vector<ContextState> states;
    for (Context* context : parts_.contexts) states.push_back(send_state(group, *context, donors.front()));
    std::vector<std::byte> outer;
    if (averager_) {
        if (gives) outer = averager_->state();
        broadcast_all(group, outer, donors.front());
    }
    // Everybody has everything: from here on no loss of a rank matters.
    group.run({}, healing());
    if (!gives_buffers) fill_blocks(parts_.buffers, buffers.data());
    if (!gives) {
        state_unknown_ = true;  // until all of it is here: memory may run out
        fill_blocks(parts_.state, values.data());
        log(LogLevel::kInfo, "rank ", roster.rank, " got the state of step ", std::max<std::int64_t>(newest, 0), ": ",
            values.size() + buffers.size(), " bytes from ", donors.size(), " ranks");
    }
    for (std::size_t i = 0; i < states.size(); ++i) take_state(*parts_.contexts[i], states[i], !gives && newest > 0);
    if (averager_ && !gives) averager_->load_state(outer.data(), outer.size());
    steps_ = std::max<std::int64_t>(newest, 0);
    has_had_state_ = true;
    state_unknown_ = false;
    if (averager_) uncounted_ = steps_ - averager_->steps();
}

ElasticJob::ContextState ElasticJob::send_state(Group& group, Context& context, std::int32_t donor) const {
    ContextState state;
    if (group.rank() == donor) {
        const Reducer& reducer = context.committed();
        state = {plan_to_text(reducer.parts().layout->plan(), context.model().table), reducer.hook_state(),
                 reducer.parts().planner.due() || reducer.parts().planner.recording(),
                 reducer.parts().planner.tunes_caps()};
    }
    broadcast_all(group, state.plan, donor);
    broadcast_all(group, state.hook, donor);
    broadcast(group, &state.records_order, sizeof state.records_order, donor);
    broadcast(group, &state.tunes_caps, sizeof state.tunes_caps, donor);
    return state;
}

// In the group of this rank alone, so that all come to the new group alike.
void ElasticJob::take_state(Context& context, const ContextState& state, bool of_hook) const {
    context.adopt_plan(state.plan);
    Reducer& reducer = context.committed();
    reducer.rebuild(0);
    state.records_order ? reducer.planner().record_order() : reducer.planner().keep();
    reducer.planner().set_tunes_caps(state.tunes_caps);
    if (of_hook) reducer.load_hook_state(state.hook.data(), state.hook.size(), true);
}

void ElasticJob::commit() {
    if (!begun_)
        fail_call(DDP_ERROR_INVALID_STATE, "no step has begun; each ddp_elastic_begin is committed at most once");
    for (const Context* context : parts_.contexts) context->require_between_steps();
    if (!needs_copies_ && !averager_goes_back() && !open_.is_plain(parts_, *group_)) {
        needs_copies_ = true;
        log(LogLevel::kInfo, "step ", steps_,
            " used the group between ddp_finalize and ddp_elastic_commit, where a rank may be lost: each "
            "step begins with a copy of the job's state from now on, of ",
            bytes_of(parts_.state), " bytes");
    }
    if (in_window()) {
        ++window_steps_;
        if (!needs_copies_ && !averager_goes_back() && open_.has_results(parts_)) {
            needs_copies_ = true;
            log(LogLevel::kInfo, "step ", steps_,
                " had means of one context while another accumulates gradients, so a loss takes back more than one "
                "step: each window begins with a copy of the job's state from now on, of ",
                bytes_of(parts_.state), " bytes");
        }
    } else {
        open_.commit();
        window_steps_ = 0;
        has_committed_ = true;
    }
    begun_ = false;
    ++steps_;  // of what this rank holds, whether it counts or not
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
    if (membership_.roster().number == 0) fail_call(DDP_ERROR_INVALID_STATE, "the job has not begun; just free it");
    if (!leave_announced_) membership_.announce_leave();
    leave_announced_ = true;
}

void ElasticJob::leave() {
    if (!group_->broken())
        for (const Context* context : parts_.contexts) context->require_between_steps();
    membership_.leave();
    group_ = make_alone();
    for (Context* context : parts_.contexts) context->set_group(group_);
}

}  // namespace libddp
