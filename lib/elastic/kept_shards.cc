#include "elastic/kept_shards.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "comm/verdict.h"
#include "core/publisher.h"
#include "elastic/neighbours.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/host.h"

namespace libddp {
namespace {

constexpr const char* kValue = "value";
constexpr std::size_t kMostNeighbours = 3;

Publisher& publisher_of(const Context& context) {
    return *context.committed().parts().observers.publisher;
}

std::int64_t results_of(const Context& context) {
    return context.committed().parts().totals.results;
}

void refuse_values(const std::vector<StateArray>& arrays) {
    for (const StateArray& array : arrays)
        if (array.key == kValue)
            fail_call(DDP_ERROR_INVALID_ARGUMENT, "an array is called '", kValue,
                      "'; libddp keeps the values itself");
}

}  // namespace

// Travels in a meeting, from each rank to all.
struct KeptShards::Told {
    struct One {
        Choice choice;
        std::int64_t world = 0;
        std::int64_t ranks[kMostNeighbours] = {-1, -1, -1};
    };
    std::uint64_t host = 0, known = 0;
    One kept[2];
};

const KeptShards::Slot* KeptShards::slot_of(const Id& id) const {
    for (const Slot& slot : slots_)
        if (slot.id == id && id.roster > 0) return &slot;
    return nullptr;
}

std::byte* KeptShards::memory_of(const Slot& slot, std::int32_t rank) const {
    std::byte* memory = slot.memory.get();
    for (const std::int32_t other : slot.ranks) {
        if (other == rank) break;
        memory += slot.layout->bytes(other);
    }
    return memory;
}

void KeptShards::meet(Group& group, std::int64_t roster) {
    const bool trained = results_of(context_) != results_ || publisher_of(context_).updates();
    known_ = known_ || (slot_of(latest_.id) && trained);
    std::vector<Told> all(static_cast<std::size_t>(group.world()));
    Told& mine = all[static_cast<std::size_t>(group.rank())];
    mine.host = Hash().add(host_id()).value();
    mine.known = known_ ? 1 : 0;
    for (std::size_t i = 0; i < std::size(slots_); ++i) {
        const Slot& slot = slots_[i];
        Told::One& one = mine.kept[i];
        one.choice = slot;
        if (slot.layout) one.world = slot.layout->world();
        std::copy(slot.ranks.begin(), slot.ranks.end(), one.ranks);
    }
    group.run({DDP_COLLECTIVE_ALLGATHER, nullptr, all.data(), sizeof(Told), DDP_U8},
              OpTag::of(Purpose::kKeptShards));
    choose(all);
    std::vector<std::uint64_t> hosts;
    for (const Told& told : all) hosts.push_back(told.host);
    neighbours_ = neighbours_of(group.rank(), hosts);
    roster_ = roster;
    latest_ = chosen_;
    layout_ = nullptr;
}

void KeptShards::choose(const std::vector<Told>& all) {
    std::set<Id, std::greater<>> ids;
    for (const Told& told : all)
        for (const Told::One& one : told.kept)
            if (one.choice.id.roster > 0) ids.insert(one.choice.id);
    chosen_ = {};
    sources_.clear();
    for (const Id& id : ids) {
        Choice choice;
        std::vector<std::int32_t> sources;
        holders_.clear();
        for (std::size_t rank = 0; rank < all.size(); ++rank)
            for (const Told::One& one : all[rank].kept) {
                if (one.choice.id != id) continue;
                choice = one.choice;
                holders_.push_back(static_cast<std::int32_t>(rank));
                sources.resize(static_cast<std::size_t>(one.world), -1);
                for (const std::int64_t whose : one.ranks)
                    if (whose >= 0 && sources[static_cast<std::size_t>(whose)] < 0)
                        sources[static_cast<std::size_t>(whose)] = static_cast<std::int32_t>(rank);
            }
        const bool whole = std::find(sources.begin(), sources.end(), -1) == sources.end();
        if (whole || sources_.empty()) sources_ = std::move(sources);  // else those of the newest
        if (!whole) continue;
        chosen_ = choice;
        break;
    }
    const bool known =
        std::any_of(all.begin(), all.end(), [](const Told& told) { return told.known != 0; });
    known_ = known || found();
    lost_ = known && !found();
}

void KeptShards::restore(const StateBlocks& added, const StateBlocks& buffers) const {
    const Slot* const slot = slot_of(chosen_.id);
    if (!slot) return;
    fill_blocks(added, slot->added.data());
    fill_blocks(buffers, slot->buffers.data());
    Hook& hook = *context_.hook();
    if (hook.steps() > slot->hook_steps) hook.resume(slot->hook_steps);
}

void KeptShards::leave() {
    near_ = nullptr;
    publisher_of(context_).hold(true);
}

void KeptShards::enter(std::shared_ptr<Group> near) {
    near_ = std::move(near);
    waits_ = true;
    publisher_of(context_).hold(has_begun());
}

std::vector<StateArray> KeptShards::with_values(std::vector<StateArray> arrays) const {
    const auto& shards = context_.committed().parts().layout->shards();
    for (const ShardPiece& piece : shards.mine()) {
        const Param& p = context_.model().table[piece.param];
        if (!p.data) continue;
        const std::size_t item = p.bytes / static_cast<std::size_t>(p.count);
        const std::size_t before = static_cast<std::size_t>(piece.first) * item;
        arrays.push_back({kValue, piece.param, piece.first, piece.count, p.dtype,
                          static_cast<std::byte*>(p.data) + before, piece.replicated});
    }
    return arrays;
}

void KeptShards::keep(std::vector<StateArray> arrays, std::int64_t step, ddp_keep where,
                      const StateBlocks& added, const StateBlocks& buffers,
                      const std::function<void()>& check) {
    Together together(context_, Purpose::kKeptShards);
    together.run([&] {
        check();
        const ReducerParts& parts = context_.committed().parts();
        context_.committed().require_idle();
        if (parts.gradients.any_waits())
            parts.refuse_in_step(
                "gradients of unsynced steps wait; keep shards after the synced step");
        if (publisher_of(context_).torn())
            fail_call(DDP_ERROR_INVALID_STATE,
                      "ranks have different values since one was lost; call "
                      "ddp_elastic_recall_shards, or load a checkpoint on every rank "
                      "(ddp_shard_load), before shards are kept");
        refuse_values(arrays);
        if (where == DDP_KEEP_IN_CHECKPOINT)
            arrays.clear();
        else
            arrays = with_values(std::move(arrays));
        std::erase_if(arrays, [](const StateArray& array) { return array.count == 0; });
    });
    const Choice choice{
        {roster_, latest_.id.roster == roster_ ? latest_.id.serial + 1 : 1}, step, where};
    agree(together, choice, arrays);
    if (where == DDP_KEEP_AT_NEIGHBOUR) compare_replicas(together, arrays);
    // Every rank is here, and has the one before whole.
    known_ = known_ || latest_.id.roster == roster_;
    Slot& slot = slots_[slots_[0].id == latest_.id ? 1 : 0];
    slot.id = {};
    Group& group = *context_.group();
    try {
        slot.layout = where == DDP_KEEP_AT_NEIGHBOUR ? layout_ : nullptr;
        copy(slot, arrays);
        slot.added.take(added);
        slot.buffers.take(buffers);
    } catch (...) {
        ErrorInfo info = caught();
        info.rank = group.rank();
        info.message = str("rank ", info.rank, " cannot keep its shards: ", info.message);
        throw Error(group.break_everywhere(info));
    }
    slot.hook_steps = context_.hook()->steps();
    exchange(slot);
    static_cast<Choice&>(slot) = latest_ = choice;
    results_ = results_of(context_);
    waits_ = false;
    publisher_of(context_).release();
}

// All ranks keep the same step, after the same one, and know which rank keeps what.
void KeptShards::agree(Together& together, const Choice& choice,
                       const std::vector<StateArray>& arrays) {
    struct Claim {
        Choice choice;
        std::int64_t layout_changes;
    };
    const std::int32_t rank = context_.group()->rank();
    KeptLayout::Arrays mine = KeptLayout::describe(arrays);
    const bool changes =
        choice.where == DDP_KEEP_AT_NEIGHBOUR && (!layout_ || layout_->of(rank) != mine);
    const auto claims = together.gather(std::vector<Claim>{{choice, changes ? 1 : 0}});
    const Choice& first = claims.front().choice;
    const auto other = std::find_if(claims.begin(), claims.end(), [&first](const Claim& claim) {
        return claim.choice.step != first.step || claim.choice.where != first.where ||
               claim.choice.id != first.id;
    });
    const auto text = [](const Choice& one) {
        return str("step ", one.step,
                   one.where == DDP_KEEP_AT_NEIGHBOUR ? " at a neighbour" : " in a checkpoint",
                   " after it has kept ", one.id.serial - 1, " in this roster");
    };
    if (other != claims.end())
        together.run([&] {
            fail_call(DDP_ERROR_MISMATCH, "rank ", other - claims.begin(), " keeps ",
                      text(other->choice), ", and rank 0 ", text(first));
        });
    if (std::none_of(claims.begin(), claims.end(),
                     [](const Claim& claim) { return claim.layout_changes != 0; }))
        return;
    layout_ = std::make_shared<const KeptLayout>(together.gather_lists(std::move(mine)),
                                                 context_.model().table);
}

void KeptShards::compare_replicas(Together& together, const std::vector<StateArray>& arrays) const {
    if (layout_->replicas().empty()) return;
    std::vector<std::uint64_t> hashes;
    for (const StateArray& array : arrays)
        if (array.replicated) hashes.push_back(libddp::hash_of(array.data, array.bytes()));
    const auto all = together.gather_lists(std::move(hashes));
    const auto hash = [&all](std::int32_t rank, std::int32_t number) {
        return all[static_cast<std::size_t>(rank)][static_cast<std::size_t>(number)];
    };
    for (const KeptLayout::Replica& one : layout_->replicas())
        if (hash(one.rank, one.number) != hash(one.lower_rank, one.lower_number))
            together.run([&] {
                throw CallError({DDP_ERROR_MISMATCH,
                                 str("an array of '", context_.model().table[one.param].name,
                                     "' is replicated, and has other bits on rank ", one.rank,
                                     " than on rank ", one.lower_rank),
                                 one.rank, one.param});
            });
}

// This rank's own, to its place in the slot.
void KeptShards::copy(Slot& slot, const std::vector<StateArray>& arrays) {
    const std::int32_t rank = context_.group()->rank();
    slot.ranks = slot.layout ? neighbours_ : std::vector<std::int32_t>();
    std::size_t bytes = 0;
    for (const std::int32_t other : slot.ranks) bytes += slot.layout->bytes(other);
    if (bytes != slot.bytes || !slot.memory) {
        slot.bytes = 0;
        slot.memory = nullptr;
        slot.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
        slot.bytes = bytes;
    }
    std::byte* to = memory_of(slot, rank);
    for (const StateArray& array : arrays) to = std::copy_n(array.data, array.bytes(), to);
}

// With the neighbours'.
void KeptShards::exchange(const Slot& slot) {
    if (!near_ || slot.ranks.empty() || slot.bytes == 0) return;
    std::vector<std::uint64_t> counts;
    for (const std::int32_t rank : slot.ranks) counts.push_back(slot.layout->bytes(rank));
    try {
        near_->run({DDP_COLLECTIVE_ALLGATHER,
                    nullptr,
                    slot.memory.get(),
                    slot.bytes,
                    DDP_U8,
                    DDP_SUM,
                    0,
                    {DDP_DEVICE_CPU, 0},
                    std::make_shared<const std::vector<std::uint64_t>>(std::move(counts))},
                   OpTag::of(Purpose::kKeptShards).keeping(slot.memory));
    } catch (const Error& error) {
        ErrorInfo info = error.info();
        if (info.rank >= 0 && static_cast<std::size_t>(info.rank) < slot.ranks.size())
            info.rank = slot.ranks[static_cast<std::size_t>(info.rank)];
        info.message = str(info.message, " (among ", ranks_text(slot.ranks),
                           ", which keep each other's shards and are numbered from 0 there)");
        throw Error(context_.group()->break_everywhere(info));
    }
}

void KeptShards::refuse_lost() const {
    const Slot& newest = slots_[slots_[0].id < slots_[1].id ? 1 : 0];
    std::string what = "what was kept";
    std::int32_t param = -1;
    for (std::size_t rank = 0; rank < sources_.size() && newest.layout; ++rank) {
        const auto number = static_cast<std::int32_t>(rank);
        if (number >= newest.layout->world() || newest.layout->of(number).empty() ||
            (sources_[rank] >= 0))
            continue;
        const KeptLayout::Array& array = newest.layout->of(number).front();
        param = array.param;
        what = str("elements ", array.first, " to ", array.first + array.count - 1, " of '",
                   std::string(array.key, strnlen(array.key, sizeof array.key)), "' of '",
                   context_.model().table[param].name, "', and what else rank ", rank, " kept");
        break;
    }
    throw CallError({DDP_ERROR_INVALID_STATE,
                     str("no rank has ", what,
                         ": neighbours were lost together. Load a checkpoint on every rank "
                         "(ddp_shard_load), and call ddp_elastic_keep_shards with its step"),
                     -1, param});
}

bool KeptShards::recall(const std::vector<StateArray>& arrays, const StateBlocks& added,
                        const StateBlocks& buffers) {
    if (!waits_)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the roster is the same since shards were recalled or kept");
    if (lost_) refuse_lost();
    if (!found() || chosen_.where == DDP_KEEP_IN_CHECKPOINT) return false;
    const ParamTable& table = context_.model().table;
    Together together(context_, Purpose::kKeptShards);
    const Slot* const slot = slot_of(chosen_.id);
    const std::int32_t rank = context_.group()->rank();
    auto layout = slot ? slot->layout : nullptr;
    if (holders_.size() < static_cast<std::size_t>(context_.group()->world()))
        layout =
            KeptLayout::send(together, holders_.front(), rank == holders_.front(), layout, table);
    std::vector<std::vector<FileCopy>> copies;
    together.run([&] {
        context_.committed().require_idle();
        refuse_values(arrays);
        std::vector<StateArray> wanted = arrays;
        for (std::int32_t id = 0; id < table.size(); ++id) {
            const Param& p = table[id];
            if (p.data && !p.ignored)
                wanted.push_back(
                    {kValue, id, 0, p.count, p.dtype, static_cast<std::byte*>(p.data), false});
        }
        copies = layout->parts().copies(wanted, table);
    });
    transfer(*layout, std::move(copies));
    publisher_of(context_).hold(false);
    keep(arrays, chosen_.step, DDP_KEEP_AT_NEIGHBOUR, added, buffers, [] {});
    return true;
}

// One rank's part after another's, to all.
void KeptShards::transfer(const KeptLayout& layout,
                          std::vector<std::vector<FileCopy>> copies) const {
    Group& group = *context_.group();
    const OpTag tag = context_.number().tag(Purpose::kKeptShards);
    const Slot* const slot = slot_of(chosen_.id);
    std::size_t most = 0;
    for (std::int32_t rank = 0; rank < layout.world(); ++rank)
        most = std::max(most, layout.bytes(rank));
    const auto scratch = std::make_unique_for_overwrite<std::byte[]>(std::min(most, kStatePiece));
    for (std::int32_t rank = 0; rank < layout.world(); ++rank) {
        auto& wanted = copies[static_cast<std::size_t>(rank)];
        std::sort(wanted.begin(), wanted.end(),
                  [](const FileCopy& a, const FileCopy& b) { return a.offset < b.offset; });
        const std::int32_t root = sources_[static_cast<std::size_t>(rank)];
        const std::size_t total = layout.bytes(rank);
        for (std::size_t begin = 0; begin < total; begin += kStatePiece) {
            const std::size_t bytes = std::min(kStatePiece, total - begin);
            std::byte* const piece =
                root == group.rank() ? memory_of(*slot, rank) + begin : scratch.get();
            if (group.world() > 1)
                group.run({DDP_COLLECTIVE_BROADCAST, nullptr, piece, bytes, DDP_U8, DDP_SUM, root},
                          tag);
            for (const FileCopy& copy : wanted) {
                const std::size_t first = std::max<std::size_t>(copy.offset, begin);
                const std::size_t last =
                    std::min<std::size_t>(copy.offset + copy.bytes, begin + bytes);
                if (first < last)
                    std::memcpy(copy.to + (first - copy.offset), piece + (first - begin),
                                last - first);
            }
        }
    }
}

}  // namespace libddp
