#include "training.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "measure.h"

namespace bench {
namespace {

ddp_context_options with_shards(ddp_context_options options, Training::Kind kind) {
    if (kind != Training::Kind::kFull) options.flags |= DDP_CONTEXT_SHARD;
    return options;
}

}  // namespace

Training::Training(ddp_group* group, ddp_context_options options, const Model& model,
                   const std::vector<Gradient>* own, Kind kind)
    : values_(model),
      gradients_(group, with_shards(options, kind), model, own, {.values = &values_.all()}),
      kind_(kind) {
    ddp_optimizer* optimizer = nullptr;
    Result made;
    made.check(ddp_optimizer_create(gradients_.context(), "adamw", nullptr, &optimizer, made));
    optimizer_.reset(optimizer);
    Result installed;
    if (kind == Kind::kInStep) installed.check(ddp_optimizer_in_step(optimizer, 1, installed));
}

void Training::wait() {
    for (std::size_t i = 0; i < values_.all().size() && kind_ != Kind::kFull; ++i) {
        Result result;
        result.check(ddp_wait_value(gradients_.context(), static_cast<ddp_param>(i), result));
    }
}

double Training::step(
    const std::function<void(const std::vector<Gradient>&, const Ready&)>& backward) {
    const double start = now_ms();
    wait();
    gradients_.begin_step();
    backward(gradients_.all(), [this](std::size_t i) { gradients_.ready(i); });
    gradients_.finalize();
    if (kind_ != Kind::kInStep) {
        Result stepped, published;
        stepped.check(ddp_optimizer_step(optimizer_.get(), 1, stepped));
        if (kind_ == Kind::kSharded) published.check(ddp_publish(gradients_.context(), published));
    }
    return now_ms() - start;
}

void Training::check(ddp_group* group) {
    wait();
    std::vector<float> least;
    for (const Gradient& value : values_.all())
        if (value.count > 0)
            least.insert(least.end(), {value.data[0], value.data[value.count - 1]});
    std::vector<float> most = least;
    for (auto [numbers, op] : {std::pair(&least, DDP_MIN), std::pair(&most, DDP_MAX)}) {
        Result result;
        result.check(ddp_allreduce(group, nullptr, numbers->data(), numbers->size(), DDP_F32, op,
                                   nullptr, result));
    }
    const auto is_number = [](float number) { return std::isfinite(number); };
    if (least != most || !std::all_of(most.begin(), most.end(), is_number))
        throw std::runtime_error("ranks have different values after the optimizer");
}

}  // namespace bench
