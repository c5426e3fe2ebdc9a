#include "hooks/powersgd.h"

#include <algorithm>
#include <array>
#include <limits>

#include "hooks/builtin.h"
#include "hooks/plain.h"
#include "kernels/default_arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/log.h"
#include "util/options.h"

namespace libddp {
namespace {

using Method = PowerSgdOptions::Method;
// in the order of Method
constexpr std::array<std::string_view, 3> kMethods{"auto", "gram_schmidt", "qr"};

}  // namespace

// The options on which all ranks must agree. How often a rank logs is not among them.
std::string PowerSgdHook::options() const {
    const auto& o = options_;
    return str("rank=", o.rank, ",start=", o.start_step, ",min_rate=", exact(o.min_rate),
               ",epsilon=", exact(o.epsilon), ",seed=", o.seed,
               ",error_feedback=", o.error_feedback, ",warm_start=", o.warm_start,
               ",orthogonalization=", kMethods[static_cast<std::size_t>(o.orthogonalization)]);
}

WorkPtr PowerSgdHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    state_.note_step(bucket.step);
    if (state_.step() < options_.start_step) return AllreduceHook().reduce(group, bucket, tag);
    const DefaultArithmeticScope arithmetic;
    WorkPtr work = is_real(bucket.dtype) ? compress(group, bucket, tag)
                                         : AllreduceHook().reduce(group, bucket, tag);
    if (bucket.is_last) log_statistics(group);
    return work;
}

std::size_t PowerSgdHook::columns_for(std::size_t n, std::size_t m) const {
    const std::size_t columns = std::min({n, m, static_cast<std::size_t>(options_.rank)});
    const double sent =
        (static_cast<double>(n) + static_cast<double>(m)) * static_cast<double>(columns);
    return sent * options_.min_rate < static_cast<double>(n) * static_cast<double>(m) ? columns : 0;
}

bool PowerSgdHook::uses_qr(std::size_t columns) const {
    constexpr std::size_t kMostColumnsOfGramSchmidt = 2;
    if (options_.orthogonalization == Method::kAuto) return columns > kMostColumnsOfGramSchmidt;
    return options_.orthogonalization == Method::kQr;
}

void* PowerSgdHook::last_q(std::int32_t owner, std::size_t rows, std::size_t columns,
                           powersgd::Site& site) {
    if (!starts_warm()) return nullptr;
    Kept& kept = state_.q(owner);
    if (!kept.memory || kept.rows != rows || kept.columns != columns) {
        kept = Kept::zeros(site.compute(), rows, columns, site.home());
        site.use_home();
    }
    if (kept.convert_to(site.compute())) site.use_home();
    return kept.memory.get();
}

void PowerSgdHook::begin(const powersgd::Site& site, const std::vector<ddp_thin>& qs,
                         const ddp_thin_rules& rules) {
    std::vector<ddp_segment> last;
    for (const ddp_thin& q : qs) last.push_back({q.data, q.kept, q.rows * q.columns});
    site.transfer(last, site.compute());
    site.thin(DDP_THIN_DRAW, qs, rules);
    site.thin(DDP_THIN_ORTHOGONALIZE, qs, rules);
}

void PowerSgdHook::count_elements(std::size_t before, std::size_t after) {
    elements_before_ += before;
    elements_after_ += after;
}

void PowerSgdHook::log_statistics(const ddp_group& group) {
    if (options_.stats_interval == 0 || compressed_steps_++ % options_.stats_interval != 0) return;
    if (group.impl->rank() != 0 || elements_after_ == 0) return;
    log(LogLevel::kInfo, name_, ": after ", compressed_steps_,
        compressed_steps_ == 1 ? " step" : " steps", " with compression ", elements_after_,
        " elements were sent for ", elements_before_, ", a rate of ",
        static_cast<double>(elements_before_) / static_cast<double>(elements_after_));
}

HookPtr make_powersgd(OptionReader& options, bool batched) {
    PowerSgdOptions o;
    options.integer("rank", o.rank, 1, std::numeric_limits<std::int32_t>::max());
    options.integer("start", o.start_step, 0);
    options.real("min_rate", o.min_rate, 0);
    options.real("epsilon", o.epsilon, 0);
    options.integer("seed", o.seed, 0);
    options.integer("stats_interval", o.stats_interval, 0);
    options.flag("error_feedback", o.error_feedback);
    options.flag("warm_start", o.warm_start);
    if (const auto method = options.take("orthogonalization")) {
        const auto found = std::find(kMethods.begin(), kMethods.end(), *method);
        if (found == kMethods.end())
            fail(DDP_ERROR_INVALID_ARGUMENT, options.name("orthogonalization"), ": '", *method,
                 "' is none of auto, gram_schmidt, qr");
        o.orthogonalization = static_cast<Method>(found - kMethods.begin());
    }
    if (batched) return std::make_shared<BatchedPowerSgdHook>(o);
    return std::make_shared<LayeredPowerSgdHook>(o);
}

}  // namespace libddp
