#include "core/norms.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "comm/verdict.h"
#include "core/reducer_parts.h"
#include "core/unused.h"
#include "kernels/dtype.h"
#include "kernels/on_device.h"
#include "util/error.h"

namespace libddp {
namespace {

using cpu::NormKind;

constexpr NormKind kKinds[] = {NormKind::kMagnitudes, NormKind::kSquares, NormKind::kLargest};

std::uint8_t bit(NormKind kind) {
    return static_cast<std::uint8_t>(1u << static_cast<unsigned>(kind));
}

double norm_of(double terms, NormKind kind) {
    return kind == NormKind::kSquares ? std::sqrt(terms) : terms;
}

// Multiplies parts of gradients, on devices when it ends.
class Scaling {
public:
    Scaling(const ReducerParts& parts, double factor) : parts_(parts), factor_(factor) {}

    void add(std::int32_t id, std::int64_t first, std::int64_t count) {
        const ParamState& s = parts_.gradients[id];
        auto* const at = static_cast<std::byte*>(s.grad ? s.grad : s.place) +
                         static_cast<std::size_t>(first) * dtype_size(s.dtype);
        const auto n = static_cast<std::size_t>(count);
        if (s.streams)
            on_devices_[{s.streams, s.dtype}].push_back({at, at, n});
        else
            cpu::scale_copy(at, at, n, s.dtype, factor_);
    }
    void end() {
        for (const auto& [where, segments] : on_devices_)
            on_device::transfer(*where.first->stream(), segments, where.second, where.second,
                                factor_);
    }

private:
    const ReducerParts& parts_;
    const double factor_;
    std::map<std::pair<const DeviceStreams*, ddp_dtype>, std::vector<ddp_segment>> on_devices_;
};

}  // namespace

void Norms::Sum::add(double more, std::int32_t nonfinite_param, NormKind kind) {
    terms = cpu::add_norm_terms(terms, more, kind);
    if (nonfinite_param >= 0 && (nonfinite < 0 || nonfinite_param < nonfinite))
        nonfinite = nonfinite_param;
}

Norms::Norms(const Model& model)
    : model_(model),
      kinds_(model.table.params().size()),
      terms_(3 * kinds_.size()),
      counted_(kinds_.size()),
      used_(kinds_.size()),
      clipped_(kinds_.size()) {
    if (!model.streams.empty()) on_devices_ = std::make_unique<DeviceNorms>(model);
    for (const TrackedNorm& norm : model.norms)
        for (const std::int32_t id : norm.params)
            kinds_[static_cast<std::size_t>(id)] |= bit(norm.kind);
}

void Norms::count(ReducerParts& parts, const ddp_bucket& bucket) {
    if (!parts.queue.sent(static_cast<std::size_t>(bucket.index))) return;
    std::vector<DeviceNorms::Result> on_device;
    bool in_blocks = false;
    for (const BucketTensor& tensor : bucket.tensors) {
        const auto i = static_cast<std::size_t>(tensor.param);
        if (counted_[i] != 0) continue;
        counted_[i] = 1;
        if (blocks_ && blocks_->has(tensor.param)) {
            in_blocks = true;
            continue;
        }
        const void* numbers = nullptr;
        auto count = static_cast<std::size_t>(tensor.owned);
        ddp_dtype dtype = bucket.dtype;
        if (model_.table[tensor.param].sparse) {
            const std::vector<std::byte>& rows =
                parts.gradients.rows().reduced(tensor.param).values;
            numbers = rows.data();
            count = rows.size() / dtype_size(dtype);
        } else if (bucket.result) {
            numbers = bucket.owned_result(tensor);
            dtype = bucket.result_dtype;
        } else {
            numbers = bucket.first_owned(tensor.gradient, tensor);
        }
        if (bucket.stream) {
            on_device.push_back({tensor.param, numbers, count});
            continue;
        }
        for (const NormKind kind : kKinds)
            if ((kinds_[i] & bit(kind)) != 0)
                terms(tensor.param, kind) = cpu::norm_terms(numbers, count, dtype, kind);
    }
    if (!on_device.empty()) count_on_device(bucket, on_device);
    const bool taken = bucket.sections != nullptr;
    if (!in_blocks || taken) return;
    const Group& group = *parts.group;
    blocks_->count_share(
        static_cast<std::size_t>(bucket.index), bucket.result ? bucket.result : bucket.buffer,
        bucket.result ? bucket.result_dtype : bucket.dtype, group.rank(), group.world());
}

void Norms::count_on_device(const ddp_bucket& bucket,
                            const std::vector<DeviceNorms::Result>& results) {
    for (const NormKind kind : kKinds) {
        std::vector<DeviceNorms::Result> of_kind;
        for (const DeviceNorms::Result& result : results)
            if ((kinds_[static_cast<std::size_t>(result.param)] & bit(kind)) != 0)
                of_kind.push_back(result);
        on_devices_->count(bucket, of_kind, bucket.result ? bucket.result_dtype : bucket.dtype,
                           kind);
    }
}

bool Norms::finite(std::int32_t param) const {
    const auto i = static_cast<std::size_t>(param);
    if (blocks_ && blocks_->has(param)) return counted_[i] != 0 && blocks_->finite(param);
    const auto known = [&](NormKind kind) {
        return (kinds_[i] & bit(kind)) != 0 &&
               std::isfinite(terms_[3 * i + static_cast<std::size_t>(kind)]);
    };
    return counted_[i] != 0 && std::any_of(std::begin(kKinds), std::end(kKinds), known);
}

// Ranks share the counting, unless an exchange takes longer than to count everything. Where devices
// count, the host is not to wait for other ranks.
void Norms::on_layout(ReducerParts& parts) {
    constexpr std::int64_t kMany = 1 << 18;
    blocks_ = nullptr;
    if (model_.options.reducer.shard || on_devices_) return;
    std::int64_t numbers = 0;
    for (std::size_t i = 0; i < kinds_.size(); ++i)
        if (kinds_[i] != 0) numbers += model_.table[static_cast<std::int32_t>(i)].count;
    if (numbers < kMany) return;
    blocks_ = std::make_shared<NormTerms>(*parts.layout, model_, kinds_);
    for (std::size_t b = 0; b < parts.layout->size(); ++b) {
        const ddp_dtype dtype = parts.layout->plan().buckets[b].dtype;
        const std::size_t size = dtype_size(dtype);
        parts.queue.set_take(b, [blocks = blocks_, b, dtype, size](
                                    const void* data, std::size_t offset, std::size_t bytes) {
            blocks->count(b, data, offset / size, bytes / size, dtype);
        });
    }
}

bool Norms::exchanges(const ReducerParts& parts) const {
    return (blocks_ || model_.options.reducer.shard) && parts.group->world() > 1;
}

void Norms::note_used(const ReducerParts& parts) {
    for (std::size_t i = 0; i < used_.size(); ++i)
        used_[i] = counted_[i] != 0 && used_anywhere(parts, static_cast<std::int32_t>(i)) ? 1 : 0;
    step_ = parts.step->number;
}

// An error of a device breaks the group.
void Norms::take_from_devices(ReducerParts& parts) {
    parts.gradients.on_devices().finish(*parts.group, step_, /*enqueue=*/false);
    for (std::int32_t id = 0; id < model_.table.size(); ++id) {
        const auto i = static_cast<std::size_t>(id);
        if (used_[i] == 0 || is_cpu(model_.table[id].device)) continue;
        for (const NormKind kind : kKinds)
            if ((kinds_[i] & bit(kind)) != 0) terms(id, kind) = on_devices_->terms(id, kind);
    }
}

// with_common: also the gradients that all ranks own.
Norms::Sum Norms::own_sum(const TrackedNorm& norm, bool with_common) {
    Sum sum;
    for (const std::int32_t id : norm.params) {
        if (used_[static_cast<std::size_t>(id)] == 0) continue;
        if (!with_common && model_.table[id].gradient.owner == Owner::kAll) continue;
        const double more = terms(id, norm.kind);
        sum.add(more, std::isfinite(more) ? -1 : id, norm.kind);
    }
    return sum;
}

void Norms::add_up_own(bool with_common) {
    sums_.clear();
    for (const TrackedNorm& norm : model_.norms) sums_.push_back(own_sum(norm, with_common));
}

std::uint8_t Norms::add_up(ReducerParts& parts, std::uint8_t flag, const OpTag& tag) {
    added_up_ = true;
    if (Unused* const unused = parts.discovering()) unused->wait();
    note_used(parts);
    if (on_devices_) {
        on_devices_->bring();
        take_from_devices(parts);
    }
    if (blocks_) flag = exchange_terms(parts, flag, tag);
    const bool sums = exchanges(parts) && !blocks_;
    add_up_own(!sums || parts.group->rank() == 0);
    return sums ? exchange_sums(parts, flag, tag) : flag;
}

// Each term is of one rank, and 0 on the others. So is each flag. A segment that nobody has counted
// would be one of zeros.
std::uint8_t Norms::exchange_terms(ReducerParts& parts, std::uint8_t flag, const OpTag& tag) {
    std::vector<double>& all = blocks_->all();
    const std::size_t terms_end = all.size();
    all.resize(terms_end + static_cast<std::size_t>(parts.group->world()) + 1);
    all[terms_end + static_cast<std::size_t>(parts.group->rank())] = flag;
    all.back() = static_cast<double>(blocks_->counted());
    parts.group->run({DDP_COLLECTIVE_ALLREDUCE, nullptr, all.data(), all.size(), DDP_F64}, tag);
    const auto flags = all.begin() + static_cast<std::ptrdiff_t>(terms_end);
    const double most = *std::max_element(flags, all.end() - 1), counted = all.back();
    all.resize(terms_end);
    if (!(most >= 0 && most <= UINT8_MAX)) damaged(parts);
    std::size_t segments = 0;
    for (std::size_t b = 0; b < parts.layout->size(); ++b)
        if (parts.queue.sent(b)) segments += blocks_->segments(b);
    // A rank that has found a bad number has not counted everything.
    if (most == 0 && counted != static_cast<double>(segments))
        throw Error(parts.group->break_everywhere(
            {DDP_ERROR_INTERNAL,
             str("ranks have counted ", counted, " of ", segments,
                 " parts of the results for a norm; the backend '", parts.group->backend_name(),
                 "' must call ddp_collective.take for each block of an allreduce once "
                 "(DDP_BACKEND_GIVES)"),
             -1, -1, -1, parts.step->number}));
    for (std::int32_t id = 0; id < model_.table.size(); ++id)
        for (const NormKind kind : kKinds)
            if (blocks_->has(id) && (kinds_[static_cast<std::size_t>(id)] & bit(kind)) != 0)
                terms(id, kind) = blocks_->of(id, kind);
    return static_cast<std::uint8_t>(most);
}

std::uint8_t Norms::exchange_sums(ReducerParts& parts, std::uint8_t flag, const OpTag& tag) {
    sums_.front().flag = flag;
    const std::size_t count = sums_.size();
    std::vector<Sum> all(count * static_cast<std::size_t>(parts.group->world()));
    parts.group->run(
        {DDP_COLLECTIVE_ALLGATHER, sums_.data(), all.data(), count * sizeof(Sum), DDP_U8}, tag);
    sums_.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    std::int32_t most = sums_.front().flag;
    for (std::size_t i = count; i < all.size(); ++i) {
        sums_[i % count].add(all[i].terms, all[i].nonfinite, model_.norms[i % count].kind);
        most = std::max(most, all[i].flag);
    }
    for (const Sum& sum : sums_)
        if (sum.nonfinite >= model_.table.size() || most > UINT8_MAX) damaged(parts);
    return static_cast<std::uint8_t>(most);
}

void Norms::damaged(ReducerParts& parts) const {
    throw Error(parts.group->break_everywhere(
        {DDP_ERROR_IO, "a rank sent norms that no rank has; its memory is damaged", -1, -1, -1,
         parts.step->number}));
}

// A rank that has no more inputs counts its part for the others.
void Norms::shadow(ReducerParts& parts) {
    if (!blocks_ || added_up_) return;
    for (std::size_t b = 0; b < parts.layout->size(); ++b) count(parts, parts.queue.wait(b));
    add_up(parts, 0, parts.queue.step_tag(Purpose::kNorm));
}

// Where no rank needs to be told, the host does not wait for devices before it is asked.
void Norms::on_end(ReducerParts& parts) {
    if (parts.step->discarded() || parts.step->skipped) return;
    if (!parts.step->has_results()) return shadow(parts);
    const bool later = on_devices_ && !exchanges(parts);
    if (later) {
        note_used(parts);
        on_devices_->bring();
    } else if (!added_up_) {
        add_up(parts, 0, parts.queue.step_tag(Purpose::kNorm));
    }
    std::fill(clipped_.begin(), clipped_.end(), 0);
    const Lock lock(mutex_);
    waits_ = later;
    // Relaxed: a thread that finds it takes the lock before it reads anything else.
    ended_.store(&parts, std::memory_order_relaxed);
}

void Norms::on_forget() {
    std::fill(counted_.begin(), counted_.end(), 0);
    if (blocks_) blocks_->clear();
    added_up_ = false;
}

const TrackedNorm& Norms::require(std::int32_t norm) {
    if (norm < 0 || static_cast<std::size_t>(norm) >= model_.norms.size())
        fail_call(DDP_ERROR_INVALID_ARGUMENT, "norm is ", norm, "; ddp_track_grad_norm has given ",
                  model_.norms.size());
    ReducerParts* const parts = ended_.load(std::memory_order_relaxed);
    if (!parts)
        fail_call(DDP_ERROR_INVALID_STATE,
                  "the last step has no norm: none has ended, or it was not synced, or it gave no "
                  "result");
    const Lock lock(mutex_);
    if (waits_) {
        take_from_devices(*parts);
        add_up_own(true);
        waits_ = false;
    }
    return model_.norms[static_cast<std::size_t>(norm)];
}

double Norms::value(std::int32_t norm) {
    const NormKind kind = require(norm).kind;
    return norm_of(sums_[static_cast<std::size_t>(norm)].terms, kind);
}

void Norms::refuse_nonfinite(std::int32_t norm, double value) const {
    if (std::isfinite(value)) return;
    const std::int32_t param = sums_[static_cast<std::size_t>(norm)].nonfinite;
    std::string text = str("norm ", norm, " is ", std::isnan(value) ? "nan" : "inf");
    if (param >= 0)
        text +=
            str("; the first result that is not finite, or too large for its squares, is that "
                "for '",
                model_.table[param].name, "'");
    throw CallError({DDP_ERROR_NONFINITE,
                     text + ". No gradient was clipped on any rank; leave the optimizer out of "
                            "this step",
                     -1, param});
}

double Norms::clip_factor(std::int32_t norm, double max_norm) {
    const double result = value(norm);
    for (const std::int32_t id : require(norm).params)
        if (clipped_[static_cast<std::size_t>(id)] != 0)
            throw CallError({DDP_ERROR_INVALID_STATE,
                             str("the gradient of '", model_.table[id].name,
                                 "' was clipped in this step already, so it is no longer what the "
                                 "norm counts"),
                             -1, id});
    refuse_nonfinite(norm, result);
    return std::min(1.0, max_norm / (result + 1e-6));
}

double Norms::clip(std::int32_t norm, double max_norm) {
    const double factor = clip_factor(norm, max_norm), result = value(norm);
    const std::vector<std::int32_t>& params = require(norm).params;
    ReducerParts& parts = *ended_.load(std::memory_order_relaxed);
    const StreamScope order(model_.streams);
    for (const std::int32_t id : params) clipped_[static_cast<std::size_t>(id)] = 1;
    if (factor == 1) return result;
    Scaling scaling(parts, factor);
    const auto counts = [&](std::int32_t id) {
        return parts.totals.used[static_cast<std::size_t>(id)] != 0;
    };
    if (model_.options.reducer.shard) {
        for (const ShardPiece& piece : parts.layout->shards().mine())
            if (counts(piece.param) &&
                std::binary_search(params.begin(), params.end(), piece.param))
                scaling.add(piece.param, piece.first, piece.count);
        scaling.end();
        return result;
    }
    for (const std::int32_t id : params) {
        if (!counts(id)) continue;
        if (parts.gradients[id].sparse)
            parts.gradients.rows().scale_result(id, factor);
        else
            scaling.add(id, 0, model_.table[id].count);
    }
    scaling.end();
    return result;
}

}  // namespace libddp
