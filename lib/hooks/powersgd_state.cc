#include "hooks/powersgd_state.h"

#include <algorithm>

#include "device/host_copy.h"
#include "kernels/dtype.h"
#include "util/error.h"
#include "util/options.h"

namespace libddp::powersgd {
namespace {

constexpr const char* kSteps = "steps";
constexpr const char* kRank = "rank";
constexpr const char* kQ = "q";

// Null if there is no such bucket.
const StreamPtr* home_of(const std::vector<StreamPtr>& homes, std::int32_t bucket) {
    const auto index = static_cast<std::size_t>(bucket);
    return index < homes.size() ? &homes[index] : nullptr;
}

}  // namespace

Kept& State::error(std::int32_t param, std::size_t count, Site& site) {
    bool moved = false;
    Kept& kept = errors_.of(param, count, site.compute(), site.home(), &moved);
    if (moved) site.use_home();
    return kept;
}

// A bucket's Q starts anew where another bucket has its number on another device. One that came
// from a file for a bucket that was not there yet lies with the host, and is brought to it.
void State::set_buckets(const std::vector<StreamPtr>& homes, std::int64_t timeout_ms) {
    if (!whole_buckets_ || homes == homes_) return;
    HostCopies copies(timeout_ms);
    for (auto next = qs_.begin(); next != qs_.end();) {
        const auto entry = next++;
        Kept& q = entry->second;
        const StreamPtr* home = home_of(homes, entry->first);
        if (!home || (q.home && q.home != *home))
            qs_.erase(entry);
        else if (*home && !q.home && q.memory)
            q.bring_to(*home, copies);
    }
    homes_ = homes;
}

void State::save(HookState& state) const {
    state.numbers[kSteps] = steps_.begun();
    state.numbers[kRank] = rank_;
    errors_.save(state);
    for (const auto& [owner, q] : qs_) {
        if (!q.memory) continue;
        // A Q is kept column by column, which is its transpose row by row.
        std::vector<std::int64_t> shape{static_cast<std::int64_t>(q.columns),
                                        static_cast<std::int64_t>(q.rows)};
        state.arrays.push_back({whole_buckets_ ? -1 : owner, whole_buckets_ ? str(kQ, owner) : kQ,
                                q.dtype, std::move(shape), true, q.memory.get(), q.bytes(),
                                q.home});
    }
}

void State::load(const HookState& state) {
    const std::int64_t steps = saved_steps(state);
    std::map<std::int32_t, Kept> errors = errors_.read(state), qs;
    for (const Array& array : state.arrays) {
        if (array.key == HookState::kError) continue;
        const std::int32_t owner = owner_of_q(array);
        Kept q = read_q(array, owner, state.copies.get());
        if (!whole_buckets_) check_against_error(array, q, errors);
        qs[owner] = std::move(q);
    }
    steps_.resume(steps);
    errors_.load(std::move(errors));
    qs_ = std::move(qs);
}

std::int64_t State::saved_steps(const HookState& state) const {
    const auto number = [&](const char* key) {
        const auto found = state.numbers.find(key);
        if (found == state.numbers.end() || found->second < 0)
            fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state does not hold the number '", key,
                 "'");
        return found->second;
    };
    if (number(kRank) != rank_)
        fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state was saved with rank ", number(kRank),
             ", and this hook has rank ", rank_, ": install it with the rank of the state");
    const std::int64_t steps = number(kSteps);
    if (!StepCounter::plausible(steps))
        fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state has the number '", kSteps, "' as ",
             steps, ", which is more than is plausible");
    return steps;
}

Kept State::read_q(const Array& array, std::int32_t owner, HostCopies* copies) const {
    const bool good = array.shape.size() == 2 && array.shape[0] > 0 && array.shape[0] <= rank_ &&
                      array.shape[0] <= array.shape[1] &&
                      (array.dtype == DDP_F32 || array.dtype == DDP_F64);
    if (!good)
        fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state's array '", array.key,
             "' of parameter ", array.param, " has shape ", shape_text(array),
             "; it should have 1 to ", rank_, " rows, no more than columns, of f32 or f64");
    const auto columns = static_cast<std::size_t>(array.shape[0]),
               rows = static_cast<std::size_t>(array.shape[1]);
    const auto known = qs_.find(array.param);
    const bool other = !whole_buckets_ && known != qs_.end() && known->second.memory &&
                       (known->second.rows != rows || known->second.columns != columns);
    if (other)
        fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state's array '", array.key,
             "' of parameter ", array.param, " has shape ", shape_text(array),
             "; the parameter's is ", known->second.columns, " x ", known->second.rows);
    Array placed = array;
    if (const StreamPtr* home = home_of(homes_, owner); whole_buckets_ && home) placed.home = *home;
    Kept kept = Kept::loaded(placed, copies);
    kept.rows = rows;
    kept.columns = columns;
    return kept;
}

// A parameter's id, or the number after "q" in a bucket's.
std::int32_t State::owner_of_q(const Array& array) const {
    if (!whole_buckets_ && array.param >= 0 && array.key == kQ) return array.param;
    const bool of_bucket =
        whole_buckets_ && array.param < 0 && array.key.size() > 1 && array.key.starts_with(kQ);
    if (!of_bucket)
        fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state has an array '", array.key,
             "', which this hook does not keep");
    return static_cast<std::int32_t>(parse_int(
        array.key.substr(1), 0, INT32_MAX, str(hook_, ": the state's array '", array.key, "'")));
}

// A gradient of n x m has an error of n * m elements, and its Q has m rows and min(n, m, rank)
// columns.
void State::check_against_error(const Array& array, const Kept& q,
                                const std::map<std::int32_t, Kept>& errors) const {
    const auto error = errors.find(array.param);
    if (error == errors.end()) return;
    const std::size_t count = error->second.rows, n = count / q.rows;
    if (n * q.rows == count && q.columns == std::min({n, q.rows, static_cast<std::size_t>(rank_)}))
        return;
    fail(DDP_ERROR_INVALID_ARGUMENT, hook_, ": the state's array '", kQ, "' of parameter ",
         array.param, " has shape ", shape_text(array), ", which does not belong to an error of ",
         count, " elements with rank ", rank_);
}

}  // namespace libddp::powersgd
