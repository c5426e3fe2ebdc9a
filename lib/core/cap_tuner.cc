#include "core/cap_tuner.h"

#include <algorithm>
#include <cmath>

#include "util/error.h"

namespace libddp {
namespace {

// Each cap is so many times the next smaller one.
constexpr double kFactor = 4;
// So many times up from the usual cap, and as many down. The first of several caps with equal plans
// counts.
constexpr int kPowers[] = {1, 2, 3, -1, -2, -3};
constexpr double kLeastCap = 65536, kMostCap = 1e15;

// A visit takes at least this long, and so many steps. The first one takes kFirstSteps: nobody
// knows yet how long a step is.
constexpr double kVisitMs = 150;
constexpr std::size_t kLeastSteps = 5, kMostSteps = 100, kFirstSteps = 8, kMostPerTime = 4;

// A cap is dropped if it was so much slower than the usual one in both of the first sweeps (in one
// the machine may have been busy), and after kWideSweeps unless it is among the fastest.
constexpr double kSlow = 1.1;
constexpr int kWideSweeps = 3, kSweeps = 7;
constexpr std::size_t kFinalists = 2;
constexpr double kLeastGain = 0.02;

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

double CapTuner::Trial::ratio() const {
    return ratios.empty() ? 1 : median(ratios);
}

double CapTuner::Trial::best() const {
    return ratios.empty() ? 1 : *std::min_element(ratios.begin(), ratios.end());
}

// Before the first sweep one step is enough: the plan is about to be rebuilt. Where many steps do
// not count, a visit has an end too.
bool CapTuner::due() const {
    if (done_) return false;
    if (sweep_ == 0) return ended_ >= 1;
    const std::size_t wanted = steps_ > 0 ? steps_ : kFirstSteps;
    return times_.size() >= wanted || ended_ >= kMostPerTime * wanted;
}

void CapTuner::step_ended(Point now) {
    if (done_ || due()) return;
    ++ended_;
    if (last_end_ != Point())
        times_.push_back(std::chrono::duration<double, std::milli>(now - last_end_).count());
    last_end_ = now;
}

double CapTuner::step_ms() const {
    return median(times_);
}

void CapTuner::advance(double step_ms, const Planner& plan) {
    if (sweep_ == 0) {
        find_caps(plan);
        begin_sweep();
    } else {
        if (steps_ == 0 && step_ms > 0)
            steps_ = std::clamp(static_cast<std::size_t>(std::ceil(kVisitMs / step_ms)),
                                kLeastSteps, kMostSteps);
        if (current_ == 0) usual_ms_ = step_ms;
        if (step_ms > 0 && usual_ms_ > 0) trials_[current_].ratios.push_back(step_ms / usual_ms_);
        do ++current_;
        while (current_ < trials_.size() && trials_[current_].dropped);
        if (current_ == trials_.size()) end_sweep();
    }
    times_.clear();
    ended_ = 0;
    skip_step();
}

// Caps that make the same plan as another are left out.
void CapTuner::find_caps(const Planner& plan) {
    std::vector<BucketPlan> plans{plan(caps())};
    for (const int power : kPowers) {
        const double wish = static_cast<double>(usual_cap()) * std::pow(kFactor, power);
        if (wish < kLeastCap || wish > kMostCap) continue;
        Caps caps = make_caps(first_cap_, static_cast<std::size_t>(wish));
        BucketPlan next = plan(caps);
        if (std::find(plans.begin(), plans.end(), next) != plans.end()) continue;
        plans.push_back(std::move(next));
        trials_.push_back({std::move(caps), {}, false});
    }
}

void CapTuner::begin_sweep() {
    current_ = 0;
    ++sweep_;
    const auto left =
        std::count_if(trials_.begin(), trials_.end(), [](const Trial& t) { return !t.dropped; });
    if (left == 1 || sweep_ > kSweeps) choose();
}

void CapTuner::end_sweep() {
    if (sweep_ == 2)
        for (Trial& trial : trials_) trial.dropped = trial.best() > kSlow;
    if (sweep_ == kWideSweeps) keep_fastest(kFinalists);
    begin_sweep();
}

// The usual cap always stays: the others are compared with it.
void CapTuner::keep_fastest(std::size_t count) {
    std::vector<Trial*> others;
    for (std::size_t i = 1; i < trials_.size(); ++i)
        if (!trials_[i].dropped) others.push_back(&trials_[i]);
    std::sort(others.begin(), others.end(),
              [](const Trial* a, const Trial* b) { return a->ratio() < b->ratio(); });
    for (std::size_t i = count; i < others.size(); ++i) others[i]->dropped = true;
}

void CapTuner::choose() {
    done_ = true;
    double best = 1 - kLeastGain;
    for (std::size_t i = 1; i < trials_.size(); ++i) {
        if (trials_[i].dropped || trials_[i].ratio() >= best) continue;
        best = trials_[i].ratio();
        current_ = i;
    }
}

std::string CapTuner::text() const {
    std::string text =
        str("bucket cap ", caps().back(),
            " bytes; time of a step, relative to that with the usual cap of ", usual_cap(), ":");
    for (std::size_t i = 1; i < trials_.size(); ++i)
        text += str(i > 1 ? "," : "", " ", trials_[i].caps.back(), ": ",
                    std::round(trials_[i].ratio() * 1000) / 1000);
    return text;
}

}  // namespace libddp
