#include "elastic/handover.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/verdict.h"
#include "util/error.h"
#include "util/log.h"

namespace libddp {
namespace {

OpTag healing() {
    return OpTag::of(Purpose::kSetGroup);
}

void broadcast(Group& group, void* memory, std::size_t bytes, std::int32_t root) {
    if (bytes > 0)
        group.run({DDP_COLLECTIVE_BROADCAST, nullptr, memory, bytes, DDP_U8, DDP_SUM, root},
                  healing());
}

template <class Bytes>
void broadcast_all(Group& group, Bytes& bytes, std::int32_t root) {
    std::uint64_t size = bytes.size();
    broadcast(group, &size, sizeof size, root);
    bytes.resize(size);
    broadcast(group, bytes.data(), size, root);
}

// In turn each donor sends a piece of all blocks together: a model has many small ones, and each
// collective waits for every rank. Returns what this rank has got; a donor keeps what it has.
std::vector<std::byte> send_blocks(Group& group, const StateBlocks& blocks,
                                   const std::vector<std::int32_t>& donors, bool gives) {
    const std::size_t total = bytes_of(blocks);
    std::size_t turn = 0;
    std::vector<std::byte> got(gives ? std::min(total, kStatePiece) : total);
    for (std::size_t begin = 0; begin < total; begin += kStatePiece, ++turn) {
        const std::size_t bytes = std::min(kStatePiece, total - begin);
        const std::int32_t root = donors[turn % donors.size()];
        std::byte* const piece = got.data() + (gives ? 0 : begin);
        if (root == group.rank()) copy_piece(blocks, begin, bytes, piece);
        broadcast(group, piece, bytes, root);
    }
    return got;
}

// The state of a context beside values, as told by a rank with the newest state.
struct ContextState {
    std::string plan;
    std::vector<std::byte> hook;
    bool records_order = false;
    bool tunes_caps = false;
};

ContextState send_state(Group& group, Context& context, std::int32_t donor) {
    ContextState state;
    if (group.rank() == donor) {
        const Reducer& reducer = context.committed();
        state = {plan_to_text(reducer.parts().layout->plan(), context.model().table),
                 reducer.hook_state(),
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
void take_state(Context& context, const ContextState& state, bool of_hook) {
    Reducer& reducer = context.committed();
    if (!context.model().options.reducer.shard) {  // those take the plan of the first rank
        context.adopt_plan(state.plan);
        reducer.rebuild(0);
        state.records_order ? reducer.planner().record_order() : reducer.planner().keep();
        reducer.planner().set_tunes_caps(state.tunes_caps);
    }
    if (of_hook) reducer.load_hook_state(state.hook.data(), state.hook.size(), true);
}

// Donors have equally many steps and must hold the same bits. If they differ, the largest set of
// donors that are alike gives its bits, and of equally large sets the one with the lowest rank. In
// the same message each rank says whether the program needs copies.
std::vector<std::int32_t> agree_on_donors(Group& group, const Roster& roster,
                                          const StateBlocks& state, OpenStep& open,
                                          std::vector<std::int32_t> donors) {
    struct Claim {
        std::uint64_t hash = 0, needs_copies = 0;
    };
    const auto is_donor = [&](std::int32_t rank) {
        return std::find(donors.begin(), donors.end(), rank) != donors.end();
    };
    std::vector<Claim> claims(static_cast<std::size_t>(group.world()));
    Claim& mine = claims[static_cast<std::size_t>(group.rank())];
    mine.needs_copies = open.needs_copies() ? 1 : 0;
    if (donors.size() > 1 && is_donor(group.rank())) mine.hash = hash_of(state);
    group.run({DDP_COLLECTIVE_ALLGATHER, nullptr, claims.data(), sizeof(Claim), DDP_U8}, healing());
    for (const Claim& claim : claims)
        if (claim.needs_copies != 0) open.need_copies();

    const auto hash = [&](std::int32_t rank) {
        return claims[static_cast<std::size_t>(rank)].hash;
    };
    const auto count = [&](std::int32_t rank) {
        return std::count_if(donors.begin(), donors.end(),
                             [&](std::int32_t other) { return hash(other) == hash(rank); });
    };
    const std::int32_t best =
        *std::max_element(donors.begin(), donors.end(), [&](std::int32_t a, std::int32_t b) {
            return count(a) < count(b);  // the first of equals, which is the lowest rank
        });
    std::vector<std::int32_t> alike, others;
    for (const std::int32_t rank : donors)
        (hash(rank) == hash(best) ? alike : others).push_back(rank);
    if (!others.empty() && (group.rank() == best || hash(group.rank()) != hash(best)) &&
        is_donor(group.rank()))
        log(LogLevel::kWarn, ranks_text(others), " and ", ranks_text(alike),
            " have other bits after the same step, ", std::max<std::int64_t>(roster.newest(), 0),
            "; all get those of ", ranks_text(alike),
            ". What the program adds to the job must change alike on every rank");
    return alike;
}

}  // namespace

void AppliedSteps::require_known(const Roster& roster) const {
    const std::int64_t known =
        roster.members[static_cast<std::size_t>(roster.donors().front())].steps;
    if (!unknown || known >= count) return;
    throw CallError(
        {DDP_ERROR_INVALID_STATE,
         str("step ", count,
             " had its mean gradients and was not committed, so it may be in the values or not, "
             "and no rank knows: steps before called nothing between ddp_finalize and "
             "ddp_elastic_commit, and so no copy of the state was kept. Begin again from a "
             "checkpoint. Commit each step that was finalized, also one that is left out, and call "
             "collectives before ddp_finalize or after ddp_elastic_commit"),
         -1, -1, -1, count});
}

// The state arrives in memory of its own first: if the group breaks meanwhile, this rank still has
// what it had.
void hand_over(Group& group, const Roster& roster, const JobParts& parts, OpenStep& open,
               const std::function<std::shared_ptr<Group>()>& alone, AppliedSteps& applied) {
    parts.compare(group);
    Averager* const averager = parts.averager();
    KeptShards* const kept = parts.kept();
    if (kept) kept->meet(group, roster.number);
    // Values come with the shards.
    const StateBlocks& state = kept && kept->has_begun() ? parts.added() : parts.state();
    const bool goes_back = kept && kept->found();
    const std::int64_t newest = goes_back ? kept->step() : roster.newest();
    std::vector<std::int32_t> donors = goes_back ? kept->holders() : roster.donors();
    // Ranks that train apart have momenta, and values until the first outer step, of their own.
    if (averager) donors.resize(1);
    if (goes_back) kept->restore(parts.added(), parts.buffers());
    donors = agree_on_donors(group, roster, state, open, std::move(donors));
    const bool gives = std::find(donors.begin(), donors.end(), roster.rank) != donors.end();
    std::vector<std::byte> values, buffers;
    if (donors.size() < roster.members.size()) values = send_blocks(group, state, donors, gives);
    // Each rank's forward passes have changed its own: one speaks for all.
    const bool gives_buffers = roster.rank == donors.front();
    if (roster.members.size() > 1)
        buffers = send_blocks(group, parts.buffers(), {donors.front()}, gives_buffers);
    for (Context* context : parts.contexts()) context->set_group(alone());
    open.take_hooks_back();
    std::vector<ContextState> states;
    for (Context* context : parts.contexts())
        states.push_back(send_state(group, *context, donors.front()));
    std::vector<std::byte> outer;
    if (averager) {
        if (gives) outer = averager->state();
        broadcast_all(group, outer, donors.front());
    }
    // Everybody has everything: from here on no loss of a rank matters.
    group.run({}, healing());
    if (!gives_buffers) fill_blocks(parts.buffers(), buffers.data());
    if (!gives) {
        applied.unknown = true;  // until all of it is here: memory may run out
        fill_blocks(state, values.data());
        log(LogLevel::kInfo, "rank ", roster.rank, " got the state of step ",
            std::max<std::int64_t>(newest, 0), ": ", values.size() + buffers.size(), " bytes from ",
            donors.size(), " ranks");
    }
    for (std::size_t i = 0; i < states.size(); ++i)
        take_state(*parts.contexts()[i], states[i], !gives && newest > 0);
    if (averager && !gives) averager->load_state(outer.data(), outer.size());
    applied = {std::max<std::int64_t>(newest, 0), true, false};
}

}  // namespace libddp
