#include "core/step_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string_view>

#include "comm/monitor.h"
#include "device/memory.h"
#include "kernels/dtype.h"
#include "util/hash.h"
#include "util/log.h"

namespace libddp {
namespace {

// So many different values, all of them those of the result before, are no coincidence, even where gradients take few values.
constexpr std::int32_t kProof = 16;
// After so many steps a gradient that was always zero is worth a line.
constexpr std::int32_t kZeroSteps = 20;

std::uint64_t hash_of(const void* data, std::size_t bytes) {
    return Hash().add_words({static_cast<const char*>(data), bytes}).value();
}

// Whether a number has few digits, as in gradients that somebody makes up: their means easily are gradients of others. Those that a
// training computes hardly ever are round. In types of 16 bits, and among integers, nothing tells the two apart.
template <class Bits>
bool is_round(const char* value, std::size_t size) {
    constexpr Bits low = (Bits{1} << (sizeof(Bits) == 4 ? 12 : 26)) - 1;
    for (std::size_t i = 0; i < size; i += sizeof(Bits)) {
        Bits bits = 0;
        std::memcpy(&bits, value + i, sizeof bits);
        if ((bits & low) != 0) return false;
    }
    return true;
}

bool is_round(ddp_dtype dtype, std::string_view value) {
    if (dtype == DDP_F32 || dtype == DDP_C64) return is_round<std::uint32_t>(value.data(), value.size());
    if (dtype == DDP_F64 || dtype == DDP_C128) return is_round<std::uint64_t>(value.data(), value.size());
    return true;
}

// How many different values there are besides zero, as far as kProof, or without those that are round.
std::int32_t different_values(const Param& param, const void* gradient, bool with_round) {
    const std::size_t size = dtype_size(param.dtype);
    const std::string_view bytes(static_cast<const char*>(gradient), param.bytes);
    const std::string zero(size, '\0');
    std::array<std::string_view, kProof> found;
    std::size_t count = 0;
    for (std::size_t i = 0; i < bytes.size() && count < found.size(); i += size) {
        const std::string_view value = bytes.substr(i, size);
        if (value == zero || (!with_round && is_round(param.dtype, value))) continue;
        const auto end = found.begin() + static_cast<std::ptrdiff_t>(count);
        if (std::find(found.begin(), end, value) == end) found[count++] = value;
    }
    return static_cast<std::int32_t>(count);
}

bool has_gradient(const Param& param) {
    return !param.ignored && !param.sparse && param.bytes > 0;
}

bool has_value(const Param& param) {
    return !param.ignored && param.data && param.bytes > 0;
}

}  // namespace

StepCheck::StepCheck(const ParamTable& table, std::int64_t interval)
    : table_(table), interval_(interval), views_(table.params().size()), gradients_(table.params().size()) {
    move_views();
}

void StepCheck::move_views() {
    const auto lives_here = [](const Param& param) { return !param.grad && !param.ignored && !param.sparse; };
    std::size_t total = kAlignment;  // a parameter without elements has a place, too
    for (const Param& param : table_.params())
        if (lives_here(param)) total += align_up(param.bytes);
    auto memory = allocate_zeroed(total);
    std::byte* next = memory.get();
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        const Param& param = table_[id];
        if (!lives_here(param)) continue;
        std::byte*& view = views_[static_cast<std::size_t>(id)];
        if (view && param.bytes > 0) std::memcpy(next, view, param.bytes);
        view = next;
        next += align_up(param.bytes);
    }
    memory_ = std::move(memory);
}

void StepCheck::announce(std::int32_t param, const void* gradient) {
    const Param& p = table_[param];
    if (!has_gradient(p)) return;
    Gradient& g = at(param);
    g.announced = true;
    g.announced_hash = hash_of(gradient, p.bytes);
    const std::int32_t values = different_values(p, gradient, true);
    if (g.zero_steps >= 0) g.zero_steps = values == 0 ? g.zero_steps + 1 : -1;
    if (!g.has_result || g.announced_hash != g.result_hash || values == 0) {
        g.repeated_values = g.repeated_digits = 0;
        g.repeats_new = false;
        return;
    }
    if (g.repeated_values == 0) g.repeats_new = g.result_was_new;
    g.repeated_values = std::min(g.repeated_values + values, kProof);
    g.repeated_digits = std::min(g.repeated_digits + different_values(p, gradient, false), kProof);
}

std::optional<ErrorInfo> StepCheck::examine(std::int32_t param, const void* gradient, std::int32_t rank,
                                            std::int64_t step) {
    Gradient& g = at(param);
    if (!g.announced) return std::nullopt;
    const Param& p = table_[param];
    if (hash_of(gradient, p.bytes) != g.announced_hash)
        return ErrorInfo{
            DDP_ERROR_INVALID_STATE,
            str("step ", step, ": the gradient of '", p.name, "' was written on rank ", rank,
                " after it was announced, so that the mean is not that of the gradients. Announce it after the last "
                "write, and leave it alone until ddp_finalize returns",
                p.uses > 1 ? "" : "; if several layers share it, register it with `uses`"),
            rank,
            param,
            -1,
            step};
    if (g.repeated_digits >= kProof && g.repeats_new)
        return ErrorInfo{
            DDP_ERROR_MISSING_GRADIENT,
            str("step ", step, ": the gradient of '", p.name, "' was announced on rank ", rank,
                ", but nobody has written it: it still is the result of the step before. Write the gradient of "
                "each step to ",
                p.grad ? "desc.grad" : "its view (ddp_grad_view, again when ddp_layout_generation has changed)",
                ", or give it to ddp_put"),
            rank,
            param,
            -1,
            step};
    warn_of_doubt(p, g, rank, step);
    return std::nullopt;
}

// What correct programs may do, too, is an error of nobody's.
void StepCheck::warn_of_doubt(const Param& param, Gradient& g, std::int32_t rank, std::int64_t step) const {
    if (g.warned) return;
    const char* doubt = g.repeated_values >= kProof  ? " is the result of the step before, bit for bit"
                        : g.zero_steps >= kZeroSteps ? " has been zero in every step since ddp_commit"
                                                     : nullptr;
    if (!doubt) return;
    g.warned = true;
    log(LogLevel::kWarn, "rank ", rank, ", step ", step, ": the gradient of '", param.name, "'", doubt,
        "; does the program write it where libddp reads it (DDP_CONTEXT_CHECK)?");
}

void StepCheck::remember(std::int32_t param, const void* gradient) {
    Gradient& g = at(param);
    g.has_result = g.announced;
    if (!g.announced) return;
    g.result_hash = hash_of(gradient, table_[param].bytes);
    g.result_was_new = g.result_hash != g.announced_hash;
}

void StepCheck::forget_step() {
    for (Gradient& g : gradients_) g.announced = false;
    comparison_ = nullptr;
}

void StepCheck::start_comparison(Group& group, bool counts, const OpTag& tag) {
    values_.clear();
    Hash all;
    for (const Param& p : table_.params()) {
        values_.push_back(has_value(p) && counts ? hash_of(p.data, p.bytes) : 0);
        all.add(values_.back());
    }
    claims_ = std::make_shared<std::vector<Claim>>(static_cast<std::size_t>(group.world()));
    (*claims_)[static_cast<std::size_t>(group.rank())] = {counts ? 1u : 0u, all.value()};
    comparison_ =
        group.submit({DDP_COLLECTIVE_ALLGATHER, nullptr, claims_->data(), sizeof(Claim), DDP_U8}, tag.keeping(claims_));
}

std::optional<ErrorInfo> StepCheck::end_comparison(Group& group, std::int64_t step, const OpTag& tag) {
    if (!comparison_) return std::nullopt;
    const WorkPtr work = std::move(comparison_);
    work->wait(std::nullopt);
    if (!work->result().ok()) throw Error(work->result());
    std::vector<std::int32_t> ranks;
    bool same = true;
    for (std::int32_t r = 0; r < group.world(); ++r) {
        if ((*claims_)[static_cast<std::size_t>(r)].counts == 0) continue;
        ranks.push_back(r);
        same = same &&
               (*claims_)[static_cast<std::size_t>(r)].hash == (*claims_)[static_cast<std::size_t>(ranks.front())].hash;
    }
    if (same) return std::nullopt;
    std::vector<std::uint64_t> all(values_.size() * static_cast<std::size_t>(group.world()));
    group.run({DDP_COLLECTIVE_ALLGATHER, values_.data(), all.data(), values_.size() * sizeof values_[0], DDP_U8}, tag);
    return describe_difference(all, ranks, step);
}

// The ranks by what they have: the largest party first, among equal ones that of the lowest rank.
StepCheck::Parties StepCheck::parties_of(std::size_t param, const std::vector<std::uint64_t>& hashes,
                                         const std::vector<std::int32_t>& ranks) const {
    Parties parties;
    std::map<std::uint64_t, std::size_t> party_of;
    for (const std::int32_t r : ranks) {
        const std::uint64_t hash = hashes[static_cast<std::size_t>(r) * values_.size() + param];
        const auto [found, is_new] = party_of.emplace(hash, parties.size());
        if (is_new) parties.emplace_back();
        parties[found->second].push_back(r);
    }
    std::stable_sort(parties.begin(), parties.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    return parties;
}

// Every rank computes this from the same hashes, so every rank says the same.
ErrorInfo StepCheck::describe_difference(const std::vector<std::uint64_t>& hashes,
                                         const std::vector<std::int32_t>& ranks, std::int64_t step) const {
    Parties first;
    std::int32_t param = -1, others = 0;
    for (std::int32_t id = 0; id < table_.size(); ++id) {
        Parties parties = parties_of(static_cast<std::size_t>(id), hashes, ranks);
        if (parties.size() <= 1) continue;
        if (param >= 0) {
            ++others;
            continue;
        }
        param = id;
        first = std::move(parties);
    }
    if (param < 0) return {DDP_ERROR_INTERNAL, "the values of all parameters hash differently but one by one alike"};
    std::vector<std::int32_t> odd;
    for (std::size_t i = 1; i < first.size(); ++i) odd.insert(odd.end(), first[i].begin(), first[i].end());
    std::sort(odd.begin(), odd.end());
    const std::string more = others == 0 ? "" : str(" and of ", others, " more parameter", others == 1 ? "" : "s");
    return {DDP_ERROR_MISMATCH,
            str("step ", step, ": the values of '", table_[param].name, "'", more, " differ between ranks: ",
                ranks_text(odd), odd.size() == 1 ? " has" : " have", " others than ", ranks_text(first.front()),
                ". Ranks that begin alike and apply the same gradients stay alike: look for an update before "
                "ddp_finalize, for "
                "random numbers or hyperparameters of a rank's own, and for values that were loaded on one rank only"),
            odd.front(),
            param,
            -1,
            step};
}

}  // namespace libddp
