#include "core/value_check.h"

#include <algorithm>
#include <map>

#include "comm/verdict.h"
#include "core/reducer_parts.h"
#include "util/hash.h"

namespace libddp {

ValueCheck::ValueCheck(const ParamTable& table, std::vector<std::int64_t> intervals, bool buffers)
    : table_(table), intervals_(std::move(intervals)), buffers_(buffers) {}

bool ValueCheck::compares_in(std::int64_t synced_step) const {
    return std::any_of(intervals_.begin(), intervals_.end(), [synced_step](std::int64_t interval) {
        return interval > 0 && synced_step % interval == 0;
    });
}

void ValueCheck::on_close(ReducerParts& parts) {
    const Step& step = *parts.step;
    if (step.discarded() || parts.group->world() == 1 || !compares_in(step.synced_number)) return;
    if (parts.model.options.reducer.keep_local_unused || !parts.hook.hook()->keeps_models_alike())
        return;
    start(*parts.group, step.has_results(), parts.queue.step_tag(Purpose::kValues));
}

void ValueCheck::on_end(ReducerParts& parts) {
    if (parts.group->world() == 1) return;
    if (const auto error =
            end(*parts.group, parts.step->number, parts.queue.step_tag(Purpose::kEndOfCheck)))
        throw Error(parts.group->break_everywhere(*error));
}

void ValueCheck::start(Group& group, bool counts, const OpTag& tag) {
    hashes_.clear();
    const auto add = [&](const Param& p) {
        hashes_.push_back(counts && !p.ignored && p.data && p.bytes > 0 ? hash_of(p.data, p.bytes)
                                                                        : 0);
    };
    for (const Param& p : table_.params()) add(p);
    if (buffers_)
        for (const Param& p : table_.buffers()) add(p);
    Hash all;
    for (const std::uint64_t hash : hashes_) all.add(hash);
    claims_ = std::make_shared<std::vector<Claim>>(static_cast<std::size_t>(group.world()));
    (*claims_)[static_cast<std::size_t>(group.rank())] = {counts ? 1u : 0u, all.value()};
    comparison_ =
        group.submit({DDP_COLLECTIVE_ALLGATHER, nullptr, claims_->data(), sizeof(Claim), DDP_U8},
                     tag.keeping(claims_));
}

std::optional<ErrorInfo> ValueCheck::end(Group& group, std::int64_t step, const OpTag& tag) {
    if (!comparison_) return std::nullopt;
    const WorkPtr work = std::move(comparison_);
    work->wait(std::nullopt);
    if (!work->result().ok()) throw Error(work->result());
    std::vector<std::int32_t> ranks;
    bool same = true;
    for (std::int32_t r = 0; r < group.world(); ++r) {
        if ((*claims_)[static_cast<std::size_t>(r)].counts == 0) continue;
        ranks.push_back(r);
        same = same && (*claims_)[static_cast<std::size_t>(r)].hash ==
                           (*claims_)[static_cast<std::size_t>(ranks.front())].hash;
    }
    if (same) return std::nullopt;
    std::vector<std::uint64_t> all(hashes_.size() * static_cast<std::size_t>(group.world()));
    group.run({DDP_COLLECTIVE_ALLGATHER, hashes_.data(), all.data(),
               hashes_.size() * sizeof hashes_[0], DDP_U8},
              tag);
    return describe(all, ranks, step);
}

// The ranks by what they have: the largest party first, among equal ones that of the lowest rank.
ValueCheck::Parties ValueCheck::parties_of(std::size_t entry,
                                           const std::vector<std::uint64_t>& hashes,
                                           const std::vector<std::int32_t>& ranks) const {
    Parties parties;
    std::map<std::uint64_t, std::size_t> party_of;
    for (const std::int32_t r : ranks) {
        const std::uint64_t hash = hashes[static_cast<std::size_t>(r) * hashes_.size() + entry];
        const auto [found, is_new] = party_of.emplace(hash, parties.size());
        if (is_new) parties.emplace_back();
        parties[found->second].push_back(r);
    }
    std::stable_sort(parties.begin(), parties.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
    return parties;
}

// Every rank computes this from the same hashes, so every rank says the same.
ErrorInfo ValueCheck::describe(const std::vector<std::uint64_t>& hashes,
                               const std::vector<std::int32_t>& ranks, std::int64_t step) const {
    Parties first;
    std::int32_t entry = -1, others = 0;
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
        Parties parties = parties_of(i, hashes, ranks);
        if (parties.size() <= 1) continue;
        if (entry >= 0) {
            ++others;
            continue;
        }
        entry = static_cast<std::int32_t>(i);
        first = std::move(parties);
    }
    if (entry < 0)
        return {DDP_ERROR_INTERNAL,
                "the values of all parameters hash differently but one by one alike"};
    std::vector<std::int32_t> odd;
    for (std::size_t i = 1; i < first.size(); ++i)
        odd.insert(odd.end(), first[i].begin(), first[i].end());
    std::sort(odd.begin(), odd.end());
    const bool is_param = entry < table_.size();
    const std::string& name =
        is_param ? table_[entry].name
                 : table_.buffers()[static_cast<std::size_t>(entry - table_.size())].name;
    const std::string more = others == 0
                                 ? ""
                                 : str(" and of ", others, " more ",
                                       buffers_ ? "tensor" : "parameter", others == 1 ? "" : "s");
    const bool tie = 2 * first[0].size() <= ranks.size();
    return {
        DDP_ERROR_MISMATCH,
        str("step ", step, ": the values of ", is_param ? "'" : "the buffer '", name, "'", more,
            " differ between ranks: ", ranks_text(odd), odd.size() == 1 ? " has" : " have",
            " others than ", ranks_text(first[0]),
            tie ? "; with no majority nobody can tell which are right" : "",
            ". Ranks that begin alike and apply the same gradients stay alike: look for an update "
            "before ddp_finalize, for random numbers or hyperparameters of a rank's own, for "
            "values that were loaded on one rank only, and for memory that is damaged"),
        tie ? -1 : odd.front(),
        is_param ? entry : -1,
        -1,
        step};
}

}  // namespace libddp
