#include "hooks/powersgd.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "hooks/options.h"
#include "hooks/plain.h"
#include "kernels/default_arithmetic.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/log.h"

namespace libddp {
namespace {

// The shortest text that is read back as the same number.
std::string exact(double value) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, value).ptr;
    return {text, end};
}

}  // namespace

PowerSgdHook::PowerSgdHook(const ddp_powersgd_options& options, const char* name)
    : options_(options), name_(name), state_(options.rank, (options.flags & DDP_POWERSGD_BATCHED) != 0, name) {}

// The options on which all ranks must agree. How often a rank logs is not among them.
std::string PowerSgdHook::options() const {
    const auto& o = options_;
    const char* method = o.flags & DDP_POWERSGD_GRAM_SCHMIDT ? "gram_schmidt"
                         : o.flags & DDP_POWERSGD_QR         ? "qr"
                                                             : "auto";
    return str("rank=", o.rank, ",start=", o.start_step, ",min_rate=", exact(o.min_compression_rate),
               ",epsilon=", exact(o.orthogonalization_epsilon), ",seed=", o.seed,
               ",error_feedback=", feeds_back() ? 1 : 0, ",warm_start=", o.flags & DDP_POWERSGD_NO_WARM_START ? 0 : 1,
               ",orthogonalization=", method);
}

WorkPtr PowerSgdHook::reduce(ddp_group& group, ddp_bucket& bucket, const OpTag& tag) {
    state_.note_step(bucket.step);
    if (state_.step() < options_.start_step) return group.impl->submit(allreduce_of(bucket), tag);
    const DefaultArithmeticScope arithmetic;
    WorkPtr work = is_real(bucket.dtype) ? compress(group, bucket, tag) : group.impl->submit(allreduce_of(bucket), tag);
    if (bucket.is_last) log_statistics(group);
    return work;
}

std::size_t PowerSgdHook::columns_for(std::size_t n, std::size_t m) const {
    const std::size_t columns = std::min({n, m, static_cast<std::size_t>(options_.rank)});
    const double sent = (static_cast<double>(n) + static_cast<double>(m)) * static_cast<double>(columns);
    return sent * options_.min_compression_rate < static_cast<double>(n) * static_cast<double>(m) ? columns : 0;
}

bool PowerSgdHook::uses_qr(std::size_t columns) const {
    constexpr std::size_t kMostColumnsOfGramSchmidt = 2;
    return !(options_.flags & DDP_POWERSGD_GRAM_SCHMIDT) &&
           ((options_.flags & DDP_POWERSGD_QR) || columns > kMostColumnsOfGramSchmidt);
}

void* PowerSgdHook::last_q(std::int32_t owner, std::size_t rows, std::size_t columns, powersgd::Site& site) {
    if (!starts_warm()) return nullptr;
    Kept& kept = state_.q(owner);
    if (!kept.memory || kept.rows != rows || kept.columns != columns) {
        kept = Kept::zeros(site.compute(), rows, columns, site.home());
        site.use_home();
    }
    if (kept.convert_to(site.compute())) site.use_home();
    return kept.memory.get();
}

void PowerSgdHook::begin(const powersgd::Site& site, const std::vector<ddp_thin>& qs, const ddp_thin_rules& rules) {
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
    log(LogLevel::kInfo, name_, ": after ", compressed_steps_, compressed_steps_ == 1 ? " step" : " steps",
        " with compression ", elements_after_, " elements were sent for ", elements_before_, ", a rate of ",
        static_cast<double>(elements_before_) / static_cast<double>(elements_after_));
}

ddp_powersgd_options powersgd_defaults() {
    ddp_powersgd_options options{};
    options.struct_size = sizeof options;
    options.rank = 1;
    options.start_step = 1000;
    options.min_compression_rate = 2;
    options.stats_interval = 10000;
    return options;
}

HookPtr make_powersgd(const ddp_powersgd_options& options) {
    constexpr std::uint32_t kMethods = DDP_POWERSGD_GRAM_SCHMIDT | DDP_POWERSGD_QR;
    constexpr std::uint32_t kFlags =
        DDP_POWERSGD_NO_ERROR_FEEDBACK | DDP_POWERSGD_NO_WARM_START | DDP_POWERSGD_BATCHED | kMethods;
    const auto refuse = [](const auto&... parts) { fail_call(DDP_ERROR_INVALID_ARGUMENT, parts...); };
    const auto in_range = [](double value) { return std::isfinite(value) && value >= 0; };
    if (options.flags & ~kFlags)
        fail_call(DDP_ERROR_UNSUPPORTED, "flags has unknown bits 0x", std::hex, options.flags & ~kFlags);
    if (options.rank < 1) refuse("rank is ", options.rank, "; it must be at least 1");
    if ((options.flags & kMethods) == kMethods)
        refuse("flags has both DDP_POWERSGD_GRAM_SCHMIDT and DDP_POWERSGD_QR; give one of them, or neither");
    if (options.start_step < 0) refuse("start_step is ", options.start_step, "; it must be at least 0");
    if (!in_range(options.min_compression_rate))
        refuse("min_compression_rate (min_rate) is ", options.min_compression_rate,
               "; it must be finite and at least 0");
    if (!in_range(options.orthogonalization_epsilon))
        refuse("orthogonalization_epsilon (epsilon) is ", options.orthogonalization_epsilon,
               "; it must be finite and at least 0");
    if (options.stats_interval < 0)
        refuse("stats_interval is ", options.stats_interval, "; it must be at least 0, which is never");
    if (options.flags & DDP_POWERSGD_BATCHED) return std::make_shared<BatchedPowerSgdHook>(options);
    return std::make_shared<LayeredPowerSgdHook>(options);
}

}  // namespace libddp
