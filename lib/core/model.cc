#include "core/model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "device/device.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/hash.h"

namespace libddp {
namespace {

// The name of what reads gradients or values of parameters; null: nothing does.
const char* what_checks(const ReducerOptions& r) {
    if (r.check) return "DDP_CONTEXT_CHECK (or DDP_DEBUG=check)";
    if (r.nonfinite == Nonfinite::kRefuse) return "DDP_CONTEXT_REFUSE_NONFINITE";
    if (r.nonfinite == Nonfinite::kSkip) return "DDP_CONTEXT_SKIP_NONFINITE";
    return r.verify_interval > 0 ? "verify_interval" : nullptr;
}

// Empty: nothing stands in the way.
std::string why_unshardable(const Param& p, bool shard) {
    if (!shard || p.ignored) return "";
    if (p.alone()) return "sparse or factored, and DDP_CONTEXT_SHARD shards dense gradients only";
    if (p.in_place.asked)
        return "registered with DDP_PARAM_IN_PLACE, and with DDP_CONTEXT_SHARD values travel "
               "through the memory of gradients; register it without";
    if (!p.data && p.count > 0 && p.gradient.owner != Owner::kAll)
        return "registered without data, so no rank could publish what it has updated; give "
               "desc.data, or let all ranks own it (ddp_set_owner)";
    return "";
}

}  // namespace

std::string ContextOptions::text() const {
    const auto& r = reducer;
    std::string caps;
    for (std::size_t i = 0; i < r.caps.size(); ++i) caps += str(i ? " " : "", r.caps[i]);
    std::string result = str("options bucket caps ", caps, ", reduction ",
                             weighted ? "weighted mean"
                             : r.mean ? "mean"
                                      : "sum");
    const std::pair<bool, const char*> facts[] = {{!r.rebuild, "no rebuild"},
                                                  {r.tune_caps, "autotune"},
                                                  {!initial_broadcast, "no initial broadcast"},
                                                  {!buffer_broadcast, "no buffer broadcast"},
                                                  {r.find_unused, "find unused"},
                                                  {r.static_graph, "static graph"},
                                                  {r.keep_local_unused, "keep local unused"},
                                                  {r.accumulate, "accumulate"},
                                                  {r.skip_unused, "skip unused buckets"},
                                                  {join, "join"},
                                                  {r.shard, "shard"},
                                                  {r.votes, "votes"},
                                                  {divide_by_present, "divide by present"},
                                                  {stop_at_first_join, "stop at first join"},
                                                  {r.consensus_order, "consensus order"}};
    for (const auto& [holds, text] : facts)
        if (holds) result += str(", ", text);
    if (r.rebuild_interval > 0) result += str(", rebuild interval ", r.rebuild_interval);
    if (r.check)
        result +=
            str(", check with interval ", r.check_interval, " (DDP_CONTEXT_CHECK or DDP_DEBUG)");
    if (r.verify_interval > 0)
        result +=
            str(", verify interval ", r.verify_interval, r.verify_buffers ? " with buffers" : "");
    if (r.nonfinite != Nonfinite::kPass)
        result += r.nonfinite == Nonfinite::kSkip ? ", skip nonfinite" : ", refuse nonfinite";
    return result;
}

std::string TrackedNorm::text() const {
    const char* const names[] = {"1", "2", "infinity"};
    std::string result = str(names[static_cast<int>(kind)], " of ");
    if (all) return result + "all";
    Hash which;
    for (const std::int32_t id : params) which.add(static_cast<std::uint64_t>(id));
    return str(result, params.size(), " parameters (", std::hex, which.value(), ")");
}

std::string Model::text() const {
    std::string result = options.text();
    for (std::size_t i = 0; i < norms.size(); ++i)
        result += str(", norm ", i, ": ", norms[i].text());
    if (batch.samples > 0)
        result += str(", global batch ", batch.samples, " in multiples of ", batch.multiple);
    return result;
}

std::int32_t Model::track(TrackedNorm norm) {
    std::sort(norm.params.begin(), norm.params.end());
    for (const std::int32_t id : norm.params) table.require(id);
    const auto twice = std::adjacent_find(norm.params.begin(), norm.params.end());
    if (twice != norm.params.end())
        throw CallError({DDP_ERROR_INVALID_ARGUMENT,
                         str("'", table[*twice].name, "' is in params twice"), -1, *twice});
    norms.push_back(std::move(norm));
    return static_cast<std::int32_t>(norms.size()) - 1;
}

void Model::complete_norms() {
    for (TrackedNorm& norm : norms) {
        norm.params.resize(norm.all ? table.params().size() : norm.params.size());
        if (norm.all) std::iota(norm.params.begin(), norm.params.end(), 0);
    }
}

void Model::check_norms() const {
    if (!norms.empty() && options.reducer.keep_local_unused)
        fail_call(DDP_ERROR_UNSUPPORTED,
                  "with DDP_CONTEXT_KEEP_LOCAL_UNUSED gradients differ between ranks, and have no "
                  "norm in common (ddp_track_grad_norm)");
    for (const TrackedNorm& norm : norms)
        for (const std::int32_t id : norm.params) {
            const Param& p = table[id];
            if (p.ignored || is_floating(p.gradient.dtype)) continue;
            throw CallError({DDP_ERROR_UNSUPPORTED,
                             str("parameter '", p.name, "' is ", dtype_name(p.gradient.dtype),
                                 ", which has no norm; give ddp_track_grad_norm a list without it"),
                             -1, id});
        }
}

void Model::copy_if_checked(Param& param) const {
    if (options.reducer.check && param.in_place.memory)
        param.grad = std::exchange(param.in_place.memory, nullptr);
}

void Model::check() const {
    check_norms();
    bool any = false;
    for (std::int32_t id = 0; id < table.size(); ++id) {
        const Param& p = table[id];
        const auto refuse = [&](const std::string& why) {
            throw CallError(
                {DDP_ERROR_UNSUPPORTED, str("parameter '", p.name, "' is ", why), -1, id});
        };
        any = any || !p.ignored;
        if (const std::string why = why_unshardable(p, options.reducer.shard); !why.empty())
            refuse(why);
        if (const char* check = what_checks(options.reducer);
            check && !p.ignored && !is_cpu(p.device))
            refuse(str("on ", device_name(p.device), ", and ", check,
                       " looks at memory of the CPU only; train without it, or on the CPU"));
        if (p.ignored || is_floating(p.gradient.dtype)) continue;
        if (options.weighted || options.divide_by_present)
            refuse(str(
                dtype_name(p.gradient.dtype), ", and ",
                options.weighted ? "DDP_REDUCTION_WEIGHTED_MEAN" : "DDP_CONTEXT_DIVIDE_BY_PRESENT",
                " needs floating-point gradients"));
    }
    for (const Param& b : table.buffers())
        if (options.reducer.verify_buffers && !is_cpu(b.device))
            fail_call(DDP_ERROR_UNSUPPORTED, "buffer '", b.name, "' is on ", device_name(b.device),
                      ", and DDP_CONTEXT_VERIFY_BUFFERS looks at memory of the CPU only");
    if (!any) fail_call(DDP_ERROR_INVALID_STATE, "no parameter was registered that is not ignored");
}

std::vector<const Param*> Model::all() const {
    std::vector<const Param*> entries;
    for (const Param& p : table.params()) entries.push_back(&p);
    for (const Param& b : table.buffers()) entries.push_back(&b);
    return entries;
}

std::vector<const Param*> Model::buffers() const {
    std::vector<const Param*> entries;
    for (const Param& b : table.buffers()) entries.push_back(&b);
    return entries;
}

std::vector<std::string> Model::param_names() const {
    std::vector<std::string> names;
    for (const Param& p : table.params()) names.push_back(p.name);
    return names;
}

}  // namespace libddp
