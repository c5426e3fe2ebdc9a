#include "core/device_norms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace libddp {

DeviceNorms::DeviceNorms(const Model& model) : model_(model) {
    const std::size_t bytes = kKinds * model.table.params().size() * sizeof(double);
    for (const auto& streams : model.streams.all()) {
        const StreamPtr& stream = streams->stream();
        devices_.push_back(
            std::make_unique<OnDevice>(OnDevice{stream,
                                                stream->allocate(bytes),
                                                allocate_pinned(streams->device().kind, bytes),
                                                {},
                                                nullptr}));
    }
}

DeviceNorms::~DeviceNorms() {
    for (const auto& d : devices_) release_after(std::move(d->here), d->brought);
}

DeviceNorms::OnDevice& DeviceNorms::of(const ddp_device& device) const {
    return **std::find_if(devices_.begin(), devices_.end(),
                          [&](const auto& d) { return same_device(d->stream->device(), device); });
}

void DeviceNorms::count(const ddp_bucket& bucket, const std::vector<Result>& results,
                        ddp_dtype dtype, cpu::NormKind kind) {
    OnDevice& d = of(bucket.device);
    std::vector<ddp_norm_item> items;
    for (const Result& result : results)
        items.push_back({result.numbers, result.count,
                         reinterpret_cast<double*>(d.there.get()) + place(result.param, kind)});
    if (items.empty()) return;
    const auto which = static_cast<ddp_norm_kind>(kind);
    d.stream->wait(*bucket.done);
    on_device::norm_terms(
        *d.stream, items, dtype, which,
        d.scratch.require(on_device::norm_scratch(items, dtype, which), d.stream));
}

void DeviceNorms::bring() {
    const std::size_t bytes = kKinds * model_.table.params().size() * sizeof(double);
    for (const auto& d : devices_) {
        d->stream->copy_to_host(d->here.get(), d->there.get(), bytes);
        d->brought = d->stream->record();
    }
}

double DeviceNorms::terms(std::int32_t param, cpu::NormKind kind) const {
    const OnDevice& d = of(model_.table[param].device);
    const double terms = reinterpret_cast<const double*>(d.here.get())[place(param, kind)];
    return std::isnan(terms) ? std::numeric_limits<double>::quiet_NaN() : terms;
}

}  // namespace libddp
