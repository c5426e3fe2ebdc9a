// The value of every gradient on every rank during and after every step of a case: loops over
// integers, without buckets, threads or bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "property/case.h"
#include "property/elements.h"

namespace property {

// Gradients by rank and parameter.
using Gradients = std::vector<std::vector<Values>>;

struct Moment {
    Gradients written;       // what the program leaves before the end of the step
    Gradients after;         // and what it finds after it
    std::vector<bool> used;  // by any rank in the last synced step
};

// The sum over those ranks that have a gradient, each with its weight.
inline Values reduce(const Case& c, const Step& step, const Gradients& written,
                     const std::vector<Mask>& has_gradient, int param) {
    const auto p = static_cast<std::size_t>(param);
    Values result(written[0][p].size());
    for (std::size_t rank = 0; rank < written.size(); ++rank)
        for (std::size_t k = 0; k < result.size() && has(has_gradient[rank], param); ++k)
            result[k] += (c.weighted() ? step.parts[rank].weight : 1) * written[rank][p][k];
    for (auto& value : result) value /= c.divisor();
    return result;
}

inline std::vector<Moment> expect(const Case& c) {
    const auto world = static_cast<std::size_t>(c.world), count = c.params.size();
    std::vector<Moment> moments;
    Moment now;
    now.used.resize(count);
    now.written.resize(world);
    for (auto& of_rank : now.written)
        for (const Param& p : c.params) of_rank.emplace_back(components(p));
    std::vector<Mask> has_gradient(world);  // since the last synced step
    for (std::size_t s = 0; s < c.steps.size(); ++s) {
        const Step& step = c.steps[s];
        for (std::size_t rank = 0; rank < world; ++rank)
            for (std::size_t p = 0; p < count; ++p) {
                const bool accumulates = has(has_gradient[rank], static_cast<int>(p));
                for (std::size_t k = 0; k < now.written[rank][p].size(); ++k) {
                    auto& value = now.written[rank][p][k];
                    if (!accumulates) value = poison(rank);
                    if (has(step.parts[rank].comes, static_cast<int>(p)))
                        value = (accumulates ? value : 0) + gradient_value(c, s, rank, p, k);
                }
            }
        for (std::size_t rank = 0; rank < world; ++rank)
            has_gradient[rank] |= step.parts[rank].comes;
        now.after = now.written;
        for (int param = 0; param < c.param_count() && !step.no_sync; ++param) {
            const auto p = static_cast<std::size_t>(param);
            now.used[p] = false;
            for (Mask mask : has_gradient)
                now.used[p] = now.used[p] || has(mask & ~step.gone(), param);
            if (!now.used[p]) continue;
            const Values result = reduce(c, step, now.written, has_gradient, param);
            for (std::size_t rank = 0; rank < world; ++rank)
                if (has(has_gradient[rank], param) || !c.keeps_local_unused())
                    now.after[rank][p] = result;
        }
        if (!step.no_sync) has_gradient.assign(world, 0);
        moments.push_back(now);
        now.written = now.after;
    }
    return moments;
}

}  // namespace property
