// Every field is drawn independently of the others, so that RapidCheck can shrink each of them
// alone. Then make_valid takes out what the documentation forbids.
#include "property/generate.h"

#include <algorithm>
#include <utility>

#include "property/elements.h"

namespace property {
namespace {

// RapidCheck draws from a small part of a range at first and grows it; here every case may have the
// whole.
rc::Gen<int> number(int from, int to) {
    return rc::gen::resize(rc::kNominalSize, rc::gen::inRange(from, to + 1));
}

rc::Gen<bool> chance(int percent) {
    return rc::gen::map(number(0, 99), [percent](int drawn) { return drawn >= 100 - percent; });
}

// The earlier choices are the simpler ones.
template <class T>
rc::Gen<T> choice(std::vector<T> choices) {
    const int last = static_cast<int>(choices.size()) - 1;
    return rc::gen::map(number(0, last), [choices = std::move(choices)](int index) {
        return choices[static_cast<std::size_t>(index)];
    });
}

template <class T>
rc::Gen<std::vector<T>> list(int most, rc::Gen<T> element) {
    return rc::gen::resize(most, rc::gen::container<std::vector<T>>(std::move(element)));
}

// Empty in `percent` of the draws. Shrinks by taking out one parameter at a time.
rc::Gen<Mask> mask(int percent_empty) {
    const auto drawn = rc::gen::map(
        rc::gen::pair(chance(100 - percent_empty), number(0, (1 << kMostParams) - 1)),
        [](const std::pair<bool, int>& p) { return p.first ? Mask(p.second) : Mask{0}; });
    return rc::gen::shrink(drawn, [](Mask full) {
        std::vector<Mask> smaller;
        for (int id = 0; id < kMostParams; ++id)
            if (has(full, id)) smaller.push_back(full & ~(1u << id));
        return rc::seq::fromContainer(smaller);
    });
}

rc::Gen<Param> any_param() {
    using rc::gen::set;
    const std::vector<ddp_dtype> dtypes = {DDP_F32, DDP_F64, DDP_F16, DDP_BF16, DDP_I32,
                                           DDP_I64, DDP_U8,  DDP_C64, DDP_C128};
    return rc::gen::build<Param>(
        set(&Param::dtype, choice(dtypes)),
        set(&Param::count, rc::gen::weightedOneOf<int>({{8, number(0, 8)}, {1, number(0, 200)}})),
        set(&Param::home,
            choice(std::vector<Home>{Home::kCopy, Home::kView, Home::kInPlace, Home::kInPlace})),
        set(&Param::delayed, chance(10)), set(&Param::uses, choice(std::vector<int>{1, 1, 2})),
        set(&Param::owner, rc::gen::cast<ddp_owner>(number(0, 2))));
}

// `comes` is here what does NOT come.
rc::Gen<Part> any_part() {
    using rc::gen::set;
    return rc::gen::build<Part>(
        set(&Part::comes, mask(30)), set(&Part::once, mask(50)), set(&Part::marked, mask(50)),
        set(&Part::order, rc::gen::cast<unsigned>(number(0, 999))), set(&Part::async, chance(40)),
        set(&Part::weight, number(0, 2)), set(&Part::vote, rc::gen::cast<unsigned>(number(0, 15))));
}

// `frozen` is here what changes.
rc::Gen<Step> any_step() {
    using rc::gen::set;
    const auto parts = rc::gen::map(rc::gen::container<std::vector<Part>>(kMostRanks, any_part()),
                                    [](const std::vector<Part>& drawn) {
                                        std::array<Part, kMostRanks> result;
                                        std::copy(drawn.begin(), drawn.end(), result.begin());
                                        return result;
                                    });
    return rc::gen::build<Step>(
        set(&Step::no_sync, chance(35)), set(&Step::begin, chance(60)),
        set(&Step::request_rebuild, chance(15)), set(&Step::late, chance(25)),
        set(&Step::frozen, mask(80)), set(&Step::skipped, mask(75)),
        set(&Step::authority, number(-1, kMostRanks - 1)), set(&Step::parts, parts));
}

rc::Gen<std::uint32_t> any_flags() {
    const auto flag = [](std::uint32_t bit, int percent) {
        return rc::gen::map(chance(percent), [bit](bool on) { return on ? bit : 0u; });
    };
    return rc::gen::apply([](auto... bits) { return (0u | ... | bits); },
                          flag(DDP_CONTEXT_KEEP_LOCAL_UNUSED, 35),
                          flag(DDP_CONTEXT_SKIP_UNUSED_BUCKETS, 35),
                          flag(DDP_CONTEXT_CONSENSUS_ORDER, 35), flag(DDP_CONTEXT_NO_REBUILD, 25),
                          flag(DDP_CONTEXT_SKIP_NONFINITE, 25), flag(DDP_CONTEXT_VOTES, 40));
}

// Buckets and pieces stay.
void choose_shardable(Case& c) {
    c.flags &= ~std::uint32_t{DDP_CONTEXT_CONSENSUS_ORDER};
    c.rebuild_interval = 0;
    for (Step& step : c.steps) step.request_rebuild = false;
    for (Param& p : c.params)
        if (p.home == Home::kInPlace) p.home = Home::kView;
    if (!c.in_step) return;
    c.discovery = Discovery::kNone;
    c.flags &= ~std::uint32_t{DDP_CONTEXT_SKIP_NONFINITE};
    c.callback = false;
    if (!c.joins) return;
    if (c.weighted()) c.reduction = DDP_REDUCTION_MEAN;
    c.frozen = 0;
    const auto last = std::max_element(c.inputs.begin(), c.inputs.begin() + c.world);
    *last = static_cast<int>(c.steps.size());
    for (Step& step : c.steps) {
        step.no_sync = step.late = false;
        step.begin = true;
        step.frozen = step.skipped = 0;
        step.authority = -1;
    }
}

void choose_valid_options(Case& c) {
    if (c.params.empty()) c.params.emplace_back();
    if (c.backend == Backend::kCaller) c.groups = 1;  // its groups cannot take turns
    c.in_step = c.in_step && c.shard;
    c.joins = c.joins && c.in_step;
    if (c.shard) choose_shardable(c);
    if (c.discovery == Discovery::kNone) c.flags &= ~std::uint32_t{DDP_CONTEXT_KEEP_LOCAL_UNUSED};
    if (c.discovery != Discovery::kFindUnused)
        c.flags &= ~std::uint32_t{DDP_CONTEXT_SKIP_UNUSED_BUCKETS};
    // A static graph is recorded in the first synced step: there nothing may be left out for
    // another reason.
    c.frozen &= c.discovery == Discovery::kStaticGraph ? 0 : c.all();
    for (Param& p : c.params)
        if (c.weighted() && is_integer(p.dtype)) p.dtype = p.dtype == DDP_U8 ? DDP_BF16 : DDP_F32;
}

// The last rank has what is left of the sum.
void choose_valid_weights(const Case& c, Step& step) {
    int left = kTotalWeight;
    for (int rank = 0; rank + 1 < c.world; ++rank)
        left -= step.parts[static_cast<std::size_t>(rank)].weight;
    step.parts[static_cast<std::size_t>(c.world) - 1].weight = left;
}

// Goes through the steps and keeps in mind what the library knows at each of them.
class ValidSteps {
public:
    explicit ValidSteps(Case& c) : c_(c), frozen_(c.frozen) {}

    void choose() {
        for (Step& step : c_.steps) {
            choose_absence(step);
            for (int rank = 0; rank < c_.world; ++rank)
                choose_part(step, static_cast<std::size_t>(rank));
            if (c_.weighted()) choose_valid_weights(c_, step);
            if (!step.no_sync) end_synced_step();
            ++step_;
        }
    }

private:
    bool discovering() const {
        return c_.discovery == Discovery::kFindUnused ||
               (c_.discovery == Discovery::kStaticGraph && !recorded_);
    }

    void choose_absence(Step& step) {
        step.begin = step.begin || c_.weighted();
        step.late = step.late && step.begin;
        step.authority = std::min(step.authority, c_.world - 1);
        if (c_.discovery == Discovery::kStaticGraph && !recorded_) step.frozen = step.skipped = 0;
        frozen_ ^= step.frozen & c_.all();
        step.frozen = frozen_;
        step.skipped &= c_.all();
    }

    void choose_part(Step& step, std::size_t rank) {
        Part& part = step.parts[rank];
        // A gradient may stay away if it came before, if nothing is reduced, or if that is found
        // out.
        const Mask may_stay_away = step.no_sync || discovering() ? c_.all() : has_gradient_[rank];
        const Mask known_unused = recorded_ ? ~graph_[rank] : 0;
        const Mask absent = (part.comes & may_stay_away) | known_unused | step.gone();
        part.comes = c_.all() & ~absent;
        if (!c_.has_inputs(static_cast<int>(rank), step_)) part.comes = 0;
        part.once &= part.comes & may_stay_away;
        part.marked &= discovering() ? absent & c_.all() : 0;
        for (int id = 0; id < c_.param_count(); ++id)
            if (c_.params[static_cast<std::size_t>(id)].uses == 1) part.once &= ~(1u << id);
        has_gradient_[rank] |= part.comes;
    }

    void end_synced_step() {
        if (!recorded_) graph_ = has_gradient_;
        recorded_ = c_.discovery == Discovery::kStaticGraph;
        has_gradient_.fill(0);
    }

    Case& c_;
    Mask frozen_;
    std::size_t step_ = 0;
    std::array<Mask, kMostRanks> has_gradient_{};  // since the last synced step
    std::array<Mask, kMostRanks> graph_{};
    bool recorded_ = false;
};

Case make_valid(Case c) {
    choose_valid_options(c);
    ValidSteps(c).choose();
    return c;
}

}  // namespace

rc::Gen<Case> any_case() {
    using rc::gen::set;
    const std::vector<ddp_reduction> reductions = {DDP_REDUCTION_MEAN, DDP_REDUCTION_MEAN,
                                                   DDP_REDUCTION_SUM, DDP_REDUCTION_WEIGHTED_MEAN};
    const std::vector<Discovery> discoveries = {Discovery::kNone, Discovery::kFindUnused,
                                                Discovery::kFindUnused, Discovery::kStaticGraph};
    const std::vector<Backend> backends = {Backend::kThreads, Backend::kPlain, Backend::kSingle,
                                           Backend::kCaller, Backend::kShm};
    const auto bytes = rc::gen::cast<std::uint64_t>(number(0, 600));
    const auto cap = rc::gen::cast<std::uint64_t>(number(1, 600));
    return rc::gen::map(
        rc::gen::build<Case>(
            set(&Case::world, number(1, kMostRanks)), set(&Case::backend, choice(backends)),
            set(&Case::groups, choice(std::vector<int>{1, 1, 2, 3})),
            set(&Case::reduction, choice(reductions)), set(&Case::discovery, choice(discoveries)),
            set(&Case::flags, any_flags()), set(&Case::bucket_cap, bytes),
            set(&Case::first_bucket_cap, bytes), set(&Case::caps, list(3, cap)),
            set(&Case::rebuild_interval, choice(std::vector<int>{0, 0, 0, 1, 2})),
            set(&Case::callback, chance(40)), set(&Case::shard, chance(35)),
            set(&Case::in_step, chance(40)), set(&Case::joins, chance(40)),
            set(&Case::inputs, rc::gen::container<std::array<int, kMostRanks>>(number(0, 5))),
            set(&Case::frozen, mask(80)), set(&Case::params, list(kMostParams, any_param())),
            set(&Case::steps, list(5, any_step()))),
        make_valid);
}

}  // namespace property
